"""INBOUND: events of the auth provider reach the host once, and again when it could not handle them."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import httpx

from flowactions_conformance.kit.outcomes import NotTestable
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support import chat
from flowactions_conformance.kit.support.compare import json_object
from flowactions_conformance.kit.trial import Trial

ROUTE = "/webhooks/auth"
CONNECTION = "/integrations/chat/connection"
INTACT = (
    "the host's own authentication or cross-site protection answers before the plugin: let /webhooks/auth pass",
    "the route is not mounted at its path below the driver's prefix",
    "middleware reads the body and hands it on re-encoded, so that the signature is wrong: hand the bytes on",
    "settings do not reach the plugin unchanged, AUTH_WEBHOOK_SIGNING_SECRET among them",
)
OWN_CONNECTION = "auth_event writes through a connection of its own, and waits for the transaction that it is in: write through event.transaction"
FAILED = ("auth_event raises: the log has the error", OWN_CONNECTION)


@check(
    "INBOUND-1",
    profile="inbound",
    clause="contract: What a host provides, auth_event; http: Events of the auth provider; spec 4.4",
    causes=(
        OWN_CONNECTION,
        *INTACT,
        "auth_event handles an event twice, for example at once and in a task of its own",
    ),
)
async def handles_an_event_once(trial: Trial) -> None:
    """An authentic event is handled by the host once, however often it is sent."""
    event = trial.id("event")
    for number in (1, 2):
        answer = await send_event(trial, event)
        causes = FAILED if answer.is_server_error else INTACT
        said = (
            f"an authentic event of the auth provider was answered {answer.status_code} at the {number}. time"
        )
        trial.answers(answer, 200, said, causes=causes)
        trial.equal(
            _acknowledged(answer),
            {"received": True, "duplicate": number == 2},
            f"an event that was sent {number} time(s) was not acknowledged as it should",
        )
        handled = await trial.call("handled", event)
        trial.equal(
            handled, 1, f"an event that was sent {number} time(s) was handled {handled} times, not once"
        )


@check(
    "INBOUND-2",
    profile="inbound",
    clause="contract: What a host provides, auth_event; http: Events of the auth provider; spec 4.4",
    causes=(
        "auth_event catches its own errors: let them out, and the provider sends the event again",
        "auth_event hands the event to a task or a queue in memory, and returns before it is handled",
        "a part of it is committed before it fails: write through event.transaction",
    ),
)
async def is_sent_again_after_a_failure(trial: Trial) -> None:
    """An event that the host fails to handle is not acknowledged, and handled when it is sent again."""
    event = trial.id("event")
    await trial.call("fail_auth_event", event)
    answer = await send_event(trial, event)
    raised = [each.data["raised"] for each in trial.reports("host_call") if each.data["method"] == "auth_event"]
    if answer.status_code == 200 and not any(raised) and await trial.call("handled", event):
        raise NotTestable(
            "fail_auth_event() has no effect: the event was acknowledged and handled. If the work did fail, auth_event has"
            " swallowed the error: the provider will not send it again"
        )
    trial.answers(
        answer,
        answer.status_code >= 500,
        "an event that the host failed to handle was acknowledged: the provider will not send it again",
        "500, because auth_event raised",
    )
    handled = await trial.call("handled", event)
    trial.equal(
        handled,
        0,
        "an event whose handling failed was kept: what is written is not rolled back with event.transaction",
    )
    answer = await send_event(trial, event)
    trial.equal(
        (answer.status_code, _acknowledged(answer)),
        (200, {"received": True, "duplicate": False}),
        "an event that the host failed to handle was not handled when it was sent again",
        causes=("the driver's fail_auth_event() fails more than once", *trial.check.causes),
    )
    handled = await trial.call("handled", event)
    trial.equal(handled, 1, f"an event that failed and was sent again was handled {handled} times, not once")


@check(
    "INBOUND-4",
    profile="inbound",
    alone=True,
    clause="http: Events of the auth provider; spec 4.4",
    causes=(
        "auth_event raises for an organization that is deleted: handle it, or ignore it",
        "the host names organizations otherwise than the auth provider does: organization_id is the provider's id",
        "the plugin that takes the event has another database than the one that has the connection",
    ),
)
async def removes_the_connection_with_its_organization(trial: Trial) -> None:
    """When an organization is deleted at the auth provider, its chat connection is removed."""
    # A host of its own: where there is one organization for everybody, other checks would lose its connection.
    await trial.start()
    await trial.seed()
    await chat.connect(trial, trial.author)
    event = trial.id("deleted")
    answer = await send_event(trial, event, kind="organization.deleted", id=trial.of_host(trial.organization))
    trial.answers(
        answer, 200, "the event organization.deleted was refused", causes=(*trial.check.causes, *INTACT)
    )
    # The host may have deleted the organization, and its people with it.
    await trial.seed()
    answer = await trial.request("GET", CONNECTION, who=trial.author)
    trial.equal(
        (answer.status_code, json_object(answer)),
        (200, {"data": None}),
        "the chat connection of an organization that was deleted is still there",
    )


async def send_event(
    trial: Trial,
    event: str,
    *,
    kind: str = "user.created",
    at: float | None = None,
    secret: bytes | None = None,
    signed: bool = True,
    **data: str,
) -> httpx.Response:
    """Send an event as the auth provider does."""
    # Text that another JSON encoder would write otherwise: the signature is over the bytes as they are.
    said = {"type": kind, "data": {"id": trial.id("user"), "name": "Zoë ☂", "rate": 1.10, **data}}
    body = f" {json.dumps(said, ensure_ascii=False, indent=1)}\n".encode()
    headers = {"content-type": "application/json"}
    if signed:
        stamp = str(int(time.time() if at is None else at))
        key = secret or base64.b64decode(trial.session.auth_secret.removeprefix("whsec_"))
        signature = hmac.digest(key, f"{event}.{stamp}.".encode() + body, "sha256")
        headers |= {
            "svix-id": event,
            "svix-timestamp": stamp,
            "svix-signature": f"v1,{base64.b64encode(signature).decode()}",
        }
    return await trial.request("POST", ROUTE, headers=headers, content=body)


def _acknowledged(answer: httpx.Response) -> Any:
    data = json_object(answer).get("data")
    return (
        {name: data.get(name) for name in ("received", "duplicate")} if isinstance(data, dict) else answer.text
    )
