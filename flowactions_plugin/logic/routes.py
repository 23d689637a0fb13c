"""The logic-webhook endpoint: a customer backend triggers an action that is configured here."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Response, Router, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from flowactions_hookspecs import ApiPrincipal, Host, LogicActionRef
from flowactions_hookspecs.checks import id_fault
from flowactions_plugin.host_answers import has_agent
from flowactions_plugin.http.auth import PRINCIPAL, ASGIRequest, RouteGuard, principal_of
from flowactions_plugin.http.openapi import openapi_spec, plugin_router
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.http.strict import NO_NUL, Id
from flowactions_plugin.logic.dispatch import ActionUnusable, LogicActions, RateExceeded

PATH: Final = "/v1/agents/{agent_id:str}/experiences/{experience_id:str}/logic-webhook"


class LogicWebhookCall(msgspec.Struct, rename="camel", kw_only=True):
    """Which action to trigger. Where it is sent, and what it carries, comes from its configuration only.

    The trigger row is given with ``experience_trigger``, node and trigger group with ``node_trigger``, and with the latter a
    survey question, if it is the trigger.
    """

    idempotency_key: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            pattern=NO_NUL,
            description="Stable for one event of yours: with the same key, the action is enqueued once.",
            examples=["order-4711-paid"],
        ),
    ]
    source: Annotated[
        Literal["experience_trigger", "node_trigger"], Meta(description="Where the action lives.")
    ]
    action_index: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="The action's place in its row or group.", examples=[0])
    ]
    trigger_row_id: Id | None = None
    node_id: Id | None = None
    node_trigger_group_id: Id | None = None
    question_id: Id | None = None


class Enqueued(msgspec.Struct, rename="camel"):
    """What a first call is answered with.

    Attributes:
        id: the delivery's.
        event_id: what the receiver dedupes on.
        status: it is in the outbox; the destination has not seen it yet.
    """

    id: str
    event_id: str
    status: Literal["pending"] = "pending"


class EnqueuedAnswer(msgspec.Struct):
    """What was enqueued."""

    data: Enqueued


@post(
    PATH,
    summary="Trigger a logic webhook",
    status_code=202,
    **openapi_spec(
        "api",
        {
            202: (EnqueuedAnswer, "Written to the outbox. The destination has not seen it yet."),
            204: (
                None,
                "A call with this key was taken before, within the dedupe window: nothing is enqueued.",
            ),
        },
        "unknown_action",
        "blocked_url",
        "body_too_large",
        "headers_too_large",
        "not_found",
        "rate_limited",
        changes=True,
        body="a JSON object with idempotencyKey, source, actionIndex and the action's ids",
    ),
)
async def trigger(
    principal: NamedDependency[ApiPrincipal],
    actions: NamedDependency[LogicActions],
    agent_id: Annotated[str, PathParameter(description="Percent-encoded.")],
    experience_id: Annotated[str, PathParameter(description="Percent-encoded.")],
    data: JSONBody[LogicWebhookCall],
) -> Response[Any]:
    """Enqueue the webhook action that the ids point at, once per ``idempotencyKey`` and agent (§4.2).

    The action's URL, method, headers and secret are those of its configuration; nothing of them is taken from
    the request, and unknown fields are ignored. An agent may be called sixty times in any minute; repeated keys
    do not count.
    """
    ref = _ref(data, principal.organization_id, agent_id, experience_id)
    try:
        delivery = await actions.call(ref, data.idempotency_key)
    except ActionUnusable as exc:
        if exc.reason == "question_required":
            raise Problem("invalid_request", str(exc), [_required("questionId")]) from None
        raise Problem(exc.reason, str(exc)) from None
    except RateExceeded as exc:
        seconds = math.ceil(exc.wait_ms / 1000)
        message = f"This agent was called as often as a minute admits: try again in {seconds} s."
        raise Problem("rate_limited", message, headers={"Retry-After": str(seconds)}) from None
    if delivery is None:
        return Response(None, status_code=204)
    return Response(EnqueuedAnswer(Enqueued(delivery.id, delivery.event_id)), status_code=202)


def logic_router(host: Host, guard: RouteGuard, actions: LogicActions) -> Router:
    """Make the router of the logic-webhook endpoint. The host says whose agent is called."""

    async def check_agent(request: ASGIRequest) -> None:
        # Another's agent is as if it were not there.
        principal: ApiPrincipal = principal_of(request)
        agent_id = request.path_params["agent_id"]
        if (
            id_fault(agent_id)
            or not await has_agent(host, principal.organization_id, agent_id)
            or not (principal.all_agents or agent_id in principal.agent_ids)
        ):
            raise Problem("not_found", "No agent has this id.")

    return plugin_router(
        "/",
        trigger,
        dependencies={"principal": PRINCIPAL, "actions": actions},
        guards=[guard.guard(check_agent)],
        tags=["Logic webhooks"],
    )


def _ref(call: LogicWebhookCall, organization_id: str, agent_id: str, experience_id: str) -> LogicActionRef:
    """Check which ids go with which source, and make the reference; a problem lists all that are missing or too many."""
    given = msgspec.to_builtins(call)
    of_experience, of_node = ["triggerRowId"], ["nodeId", "nodeTriggerGroupId"]
    wanted, others = of_node, of_experience
    if call.source == "experience_trigger":
        wanted, others = of_experience, [*of_node, "questionId"]
    errors = [_required(name) for name in wanted if given[name] is None]
    errors += [
        {"path": name, "message": f"does not go with source {call.source}"}
        for name in others
        if given[name] is not None
    ]
    if id_fault(experience_id):
        raise Problem("unknown_action", "The request names no webhook action.")
    if errors:
        raise Problem("invalid_request", "The ids do not go with the source.", errors)
    where = {"organizationId": organization_id, "agentId": agent_id, "experienceId": experience_id}
    ref: LogicActionRef = msgspec.convert(given | where, LogicActionRef)
    return ref


def _required(path: str) -> dict[str, str]:
    """Return what is wrong with a field that is missing."""
    return {"path": path, "message": "is required here"}
