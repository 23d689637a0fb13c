"""AUTH: who may call the plugin's routes is what the host says, and the host says it of everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.credentials import altered
from flowactions_conformance.kit.support.evidence import provides
from flowactions_conformance.kit.support.routes import ROUTES, Route
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Login

REFUSED: Final = frozenset({401, 403})
"""The plugin says 401. A host that refuses such a request before may say 403."""

FORBIDDEN: Final = 403
DASHBOARD: Final = tuple(route for route in ROUTES if route.caller == "dashboard")
LIST: Final = next(route for route in DASHBOARD if route.path == "/v1/webhooks/outbox")

ANYBODY: Final = "dashboard_principal returns somebody without a credential, or for one that it has not checked"
OTHER_KIND: Final = "dashboard_principal and api_principal look up the same tokens, without their kind"
MAY_CHANGE: Final = "dashboard_principal sets may_change=True for everybody: take it from the person's role"
SIGN_IN_PAGE: Final = "a page for signing in is answered in place of the plugin's 401: leave answers below the plugin's paths alone"


@check(
    "AUTH-1",
    profile="core",
    clause="contract: What a host does (Credentials), What a host provides (may_change); spec 5.1",
    causes=(
        ANYBODY,
        OTHER_KIND,
        MAY_CHANGE,
        SIGN_IN_PAGE,
    ),
)
async def everybody_gets_what_they_may(trial: Trial) -> None:
    """Each route gives everybody what they may: nobody nothing, a backend no dashboard, and no change to who may only look."""
    reader = Login(kind="dashboard", organization=trial.organization, id=trial.id("reader"), may_change=False)
    backend = Login(kind="api", organization=trial.organization, id=trial.id("backend"), all_agents=True)
    logins = (reader, backend) if provides(trial, "api_principal") else (reader,)
    await trial.seed(world=trial.world(logins=logins))
    credentials = {who.kind: await trial.call("headers", who) for who in logins}
    logic = _logic(trial, trial.agent)
    for route in (*DASHBOARD, logic):
        await _refused(trial, route, {}, "without a credential", ANYBODY)
        if route.caller == "backend":
            await _refused(trial, route, credentials["dashboard"], "with a person's credential", OTHER_KIND)
            continue
        if "api" in credentials:
            await _refused(trial, route, credentials["api"], "with a backend's credential", OTHER_KIND)
        if route.signed_in or route.changes:
            answer = await _send(trial, route, credentials["dashboard"])
            trial.answers(
                answer,
                (answer.status_code == FORBIDDEN) == route.changes,
                f"{route.method} {route.path}, by a person who may only look, is answered {answer.status_code}",
                "403" if route.changes else "an answer as for everybody",
                causes=(MAY_CHANGE,) if route.changes else (),
            )


@check(
    "AUTH-6",
    profile="core",
    clause="contract: What a host does (Credentials); http: Checks of every request; spec 5.1",
    causes=(
        "a token's signature is not compared, or not with that of the whole token: compare all of it, in constant time",
        "a token without a signature is let through: how a token is signed is the host's to know, and not the token's to say",
        "a key is looked up by its beginning, and the rest is not compared with what is stored",
        "tokens are compared in a column or with a function for which upper and lower case are the same",
    ),
)
async def altered_credentials_are_refused(trial: Trial) -> None:
    """Someone's credential of which a part was changed is refused: all of it is verified."""
    for kind, route in (("dashboard", LIST), ("api", None)):
        if kind == "api" and not provides(trial, "api_principal"):
            continue
        own, other = [
            Login(kind=kind, organization=trial.organization, id=trial.id(f"{kind}-{name}"))  # type: ignore[arg-type]
            for name in ("own", "other")
        ]
        await trial.seed(world=trial.world(logins=(own, other)))
        credentials = [await trial.call("headers", who) for who in (own, other)]
        whose = "a person" if kind == "dashboard" else "a backend"
        path = route or _logic(trial, trial.agent)
        answers = {how: await _send(trial, path, headers) for how, headers in altered(*credentials)}
        wrong = {
            how: answer.status_code for how, answer in answers.items() if answer.status_code not in REFUSED
        }
        trial.expect(
            not wrong,
            f"{path.method} {path.path} is answered when {whose}'s credential comes {', '.join(wrong)}",
            expected="401: all of a credential is compared",
            actual=wrong,
        )


async def _refused(trial: Trial, route: Route, headers: Mapping[str, str], how: str, cause: str) -> None:
    answer = await _send(trial, route, headers)
    said = f"{route.method} {route.path} {how} is answered {answer.status_code}"
    causes = (SIGN_IN_PAGE if answer.is_redirect else cause,)
    trial.answers(answer, answer.status_code in REFUSED, said, 401, causes)


async def _send(trial: Trial, route: Route, headers: Mapping[str, str]) -> httpx.Response:
    sending = dict(route.sending)
    both = {**headers, **sending.pop("headers", {})}
    return await trial.request(route.method, route.path, headers=both, **sending)


def _logic(trial: Trial, agent: str) -> Route:
    return Route("POST", trial.logic_path(agent), "backend", frozenset({400}), json={})
