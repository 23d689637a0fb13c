"""Connects a workspace of the fake chat provider to an organization, as a person with a browser does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

import httpx

from flowactions_conformance.chat_provider import Workspace
from flowactions_conformance.kit.outcomes import CommonCause
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Login
from flowactions_conformance.serving import NO_TIMEOUT, NO_TLS

INSTALL = "/integrations/chat/install"
CAUSES = (
    "the callback's route needs a session of the host: the provider sends the browser there, leave it to the plugin",
    "the cookie that the install route sets does not reach the browser, or does not come back",
    "the app answers below another path than the driver's prefix and FlowActions.load(prefix=…) say",
)


async def connect(trial: Trial, who: Login) -> Workspace:
    """Connect a workspace of its own to a person's organization.

    Returns:
        The workspace.

    Raises:
        CheckFailed: the install did not end in a connection.
    """
    workspace = trial.session.workspace()
    begun = await trial.request("GET", INSTALL, who=who)
    trial.answers(begun, 302, "the install of chat does not begin", causes=CAUSES)
    if "set-cookie" not in begun.headers:
        raise CommonCause(
            "the cookie that the plugin sets when an install of chat begins does not reach the browser",
            expected=f"Set-Cookie in the answer of GET {INSTALL}",
            actual=dict(begun.headers),
            causes=(
                "a CDN, proxy or middleware removes Set-Cookie from answers: leave those of the plugin alone",
            ),
        )
    back = await allow(begun.headers["location"], workspace)
    below = f"{trial.host.url}{trial.host.prefix}"
    trial.expect(
        back.startswith(f"{below}/"),
        "the chat provider sends the browser to another place than the host's",
        expected=f"an address below {below}",
        actual=back,
        causes=CAUSES,
    )
    ended = await trial.request(
        "GET",
        back.removeprefix(below),
        headers=await with_cookies(trial, who, begun.headers.get_list("set-cookie")),
    )
    trial.answers(
        ended,
        ended.status_code == 303 and "chat=connected" in ended.headers.get("location", ""),
        "the install of chat does not end in a connection",
        "303 to the dashboard's page with chat=connected",
        CAUSES,
    )
    return workspace


async def allow(consent_page: str, workspace: Workspace) -> str:
    """Clicks Allow on the provider's consent page; returns where the browser is sent."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(consent_page).query).items()}
    form = {**query, "workspace": workspace.id, "decision": "allow"}
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=NO_TIMEOUT) as provider:
        answer = await provider.post(consent_page.partition("?")[0], data=form)
    return answer.headers["location"]


async def with_cookies(trial: Trial, who: Login, set_cookies: Sequence[str]) -> Mapping[str, str]:
    """Return a person's headers, with the cookies that a browser has been given."""
    own: Mapping[str, str] = await trial.call("headers", who)
    given = [cookie.partition(";")[0] for cookie in set_cookies]
    kept = [value for name, value in own.items() if name.lower() == "cookie"]
    others = {name: value for name, value in own.items() if name.lower() != "cookie"}
    return {**others, "cookie": "; ".join([*kept, *given])}
