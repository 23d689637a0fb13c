"""The route that sends many delivered webhooks again, paced: it begins a bulk action. An organization reaches its own only."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from litestar import Response, Router, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody

from flowactions_hookspecs import DashboardPrincipal
from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.bulk.sets import MOST_CANARY, MOST_RATE
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.routes import Id, OnceKey, Word, as_filter, resend_once
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.http.auth import BODY_BYTES, PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import BodyRule, openapi_spec, with_description
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.http.strict import Moment
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.keys import IdempotencyKeys


class Resend(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which delivered webhooks to send again: those that meet every filter that is given.

    One of ``ids``, ``eventId`` and ``createdFrom`` is needed. ``rate``: deliveries per second at the most; ``canary``: so many
    first; it stops when more than a tenth of their first attempts fail.
    """

    ids: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    agent_id: Word | None = None
    destination: Word | None = None
    event_type: Word | None = None
    event_id: Word | None = None
    created_from: Moment | None = None
    created_before: Moment | None = None
    finished_from: Moment | None = None
    finished_before: Moment | None = None
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=MOST_RATE)] | None = None
    canary: Annotated[int, msgspec.Meta(ge=0, le=MOST_CANARY)] = 0
    reason: Annotated[str, msgspec.Meta(max_length=MOST_REASON, pattern=r"^[^\x00]*$")] = ""

    def filter(self) -> Filter:
        """Return what has to be met."""
        names = [name for name in self.__struct_fields__ if name in Filter.__struct_fields__]
        return as_filter(**{name: getattr(self, name) for name in names})


class ResendBegun(msgspec.Struct, rename="camel"):
    """How many are sent again, and the bulk action that does it; without any, ``actionId`` is ``null``."""

    action_id: str | None
    counted: int


class ResendBegunAnswer(msgspec.Struct):
    """The answer when many are sent again."""

    data: ResendBegun


class ResendContext(NamedTuple):
    """What the route uses.

    Attributes:
        actions: begins the action.
        keys: the idempotency keys of callers.
    """

    actions: Actions
    keys: IdempotencyKeys


@post(
    "/resend",
    status_code=202,
    summary="Send delivered webhooks again",
    **openapi_spec(
        "dashboard",
        {},
        changes=True,
        query={},
        body=BodyRule(Resend, "a JSON object with ids, an eventId or createdFrom, and further filters"),
    ),
)
async def resend_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    context: NamedDependency[ResendContext],
    data: JSONBody[Resend],
    key: OnceKey = None,
) -> Response[ResendBegunAnswer]:
    """Send the delivered webhooks again that meet every given filter, as new deliveries with the same event ids.

    Workers carry it out as a bulk action, at the rate that is given, beginning ten seconds later. Its page can stop it.
    Each call begins another action, except with an `Idempotency-Key` that was used before: it is answered as the first one.
    """
    scope = Scope(principal.organization_id)
    actor = Actor(principal.user_id, principal.user_name, "dashboard")
    try:
        preview = await context.actions.preview(scope, "resend", data.filter(), rate=data.rate)
        if not preview.count:
            return Response(ResendBegunAnswer(ResendBegun(None, 0)), status_code=202)
        action = await context.actions.begin(
            scope,
            "resend",
            preview.token,
            actor,
            data.reason,
            rate=data.rate,
            canary=data.canary,
            once=resend_once(context.keys, principal.organization_id, key),
        )
    except ActionInvalid as exc:
        raise Problem("invalid_request", str(exc)) from None
    return Response(ResendBegunAnswer(ResendBegun(action.id, action.counted)), status_code=202)


def bulk_router(guard: RouteGuard, actions: Actions, keys: IdempotencyKeys) -> Router:
    """Build the router of what is done to many deliveries.

    Args:
        guard: decides who may call.
        actions: bulk actions.
        keys: the idempotency keys of callers.
    """
    context = ResendContext(actions, keys)
    return Router(
        "/v1/webhooks/outbox",
        route_handlers=with_description(resend_deliveries),
        dependencies={"principal": PRINCIPAL, "context": Provide(lambda: context, sync_to_thread=False)},
        guards=[guard.guard()],
        request_max_body_size=BODY_BYTES,
        exception_handlers=HANDLERS,
        tags=["Webhook outbox"],
    )
