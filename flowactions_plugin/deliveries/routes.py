"""The routes of the outbox: list, show, retry, cancel, send again. An organization sees its own rows only."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from litestar import Response, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter

from flowactions_hookspecs import DashboardPrincipal
from flowactions_plugin.clock import ID_PATTERN, is_id
from flowactions_plugin.deliveries.changes import change_one, replay
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.deliveries.resend import send_one_again
from flowactions_plugin.deliveries.results import DeliveryDetail, DeliverySummary
from flowactions_plugin.deliveries.views import detail
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.health.results import Counted
from flowactions_plugin.http.auth import BODY_BYTES, PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import BodyRule, openapi_spec, with_description
from flowactions_plugin.http.problems import HANDLERS, WRONG_FORM, Problem
from flowactions_plugin.http.strict import Moment, integer, moment, text
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.keys import IdempotencyKeys, KeyUse
from flowactions_plugin.storage.database import Database

PAGE_LIMIT: Final = 100
REPLAY_LIMIT: Final = 10_000
"""How many deliveries one bulk retry changes at the most, which keeps its transaction short."""

_KEY: Final = re.compile(r"[ -~]{1,200}")

NO_NUL_PATTERN: Final = r"^[^\x00]*$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, max_length=36)]
Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, pattern=NO_NUL_PATTERN)]
OnceKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="1 to 200 printable ASCII characters that name this request. If you repeat the request with the same ones,"
        " nothing more is sent.",
    ),
]
"""The header with which a caller may repeat a request."""

LIST_QUERY: Final = {
    "status": text,
    "agentId": text,
    "destination": text,
    "eventType": text,
    "statusCode": integer,
    "finishedFrom": moment,
    "finishedBefore": moment,
    "cursor": text,
    "limit": integer,
}


class DeliveryPage(msgspec.Struct, rename="camel"):
    """Rows, newest first; ``nextCursor`` leads to older ones."""

    data: list[DeliverySummary]
    next_cursor: str | None


class OneDelivery(msgspec.Struct):
    """One row."""

    data: DeliveryDetail


class Cancelled(msgspec.Struct):
    """Whether a waiting delivery was there to be cancelled."""

    id: str
    cancelled: bool


class CancelAnswer(msgspec.Struct):
    """The answer of a cancellation."""

    data: Cancelled


class Requeued(msgspec.Struct):
    """Whether a dead row was there to be retried."""

    id: str
    requeued: bool


class RetryAnswer(msgspec.Struct):
    """The answer of a retry (§4.3)."""

    data: Requeued


class ResentDelivery(msgspec.Struct, rename="camel"):
    """Whether a delivered row was there to be sent again, and as which delivery it is."""

    id: str
    resent: bool
    resent_as: str | None


class ResendAnswer(msgspec.Struct):
    """The answer of what was sent again."""

    data: ResentDelivery


class Replay(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which dead deliveries to retry: those that meet every filter that is given, of which there has to be one.

    Attributes:
        all: instead of any filter: every dead delivery of the organization.
    """

    ids: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    agent_id: Word | None = None
    destination: Word | None = None
    event_type: Word | None = None
    last_status_code: Annotated[int, msgspec.Meta(ge=100, le=999)] | None = msgspec.field(
        default=None, name="statusCode"
    )
    finished_from: Moment | None = None
    finished_before: Moment | None = None
    all: bool = False
    reset_attempts: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=REPLAY_LIMIT)] = 1000

    def filter(self) -> Filter:
        """Return what has to be met.

        Raises:
            Problem: it has no filter and does not say ``all``, or it has both.
        """
        names = [name for name in self.__struct_fields__ if name in Filter.__struct_fields__]
        wanted = as_filter(**{name: getattr(self, name) for name in names})
        filtered = wanted != Filter()
        if filtered != self.all:
            return wanted
        message = "does not go with a filter"
        if not filtered:
            message = "name a filter, or set it to true to retry every dead delivery"
        raise Problem("invalid_request", WRONG_FORM, [{"path": "all", "message": message}])


class Replayed(msgspec.Struct):
    """How many were retried, and whether the limit may have left some over.

    ``delivered`` says how many delivered rows meet the filter, too: they are left out, and can be sent again. Where it is not
    ``exact``, they are so many at the least.
    """

    requeued: int
    more: bool
    delivered: Counted


class ReplayAnswer(msgspec.Struct):
    """The answer of a bulk retry."""

    data: Replayed


@get("/", summary="List deliveries", **openapi_spec("dashboard", {}, query=LIST_QUERY))
async def list_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    queries: NamedDependency[OperatorQueries],
    status: FromQuery[Literal["pending", "retrying", "delivered", "dead"] | None] = None,
    agent_id: Annotated[str | None, QueryParameter(name="agentId", pattern=NO_NUL_PATTERN)] = None,
    destination: Annotated[str | None, QueryParameter(pattern=NO_NUL_PATTERN)] = None,
    event_type: Annotated[str | None, QueryParameter(name="eventType", pattern=NO_NUL_PATTERN)] = None,
    status_code: Annotated[int | None, QueryParameter(name="statusCode", ge=100, le=999)] = None,
    finished_from: Annotated[datetime | None, QueryParameter(name="finishedFrom")] = None,
    finished_before: Annotated[datetime | None, QueryParameter(name="finishedBefore")] = None,
    cursor: Annotated[str | None, QueryParameter(pattern=ID_PATTERN)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_LIMIT)] = 50,
) -> DeliveryPage:
    """List the organization's deliveries, newest first (§4.3).

    With a filter that no index serves, a page reads back some thousand deliveries: it may be short, or empty, and
    ``nextCursor`` leads on as long as there are older ones.
    """
    wanted = as_filter(
        status=status,
        agent_id=agent_id,
        destination=destination,
        event_type=event_type,
        last_status_code=status_code,
        finished_from=finished_from,
        finished_before=finished_before,
    )
    try:
        page = await queries.deliveries(Scope(principal.organization_id), wanted, cursor, limit)
    except FilterInvalid as exc:
        message = str(exc).removeprefix("cursor: ")
        raise Problem("invalid_request", WRONG_FORM, [{"path": "cursor", "message": message}]) from None
    names = DeliverySummary.__struct_fields__
    shown = [DeliverySummary(**{name: getattr(row, name) for name in names}) for row in page.rows]
    return DeliveryPage(shown, page.next_cursor)


@get(
    "/{delivery_id:str}",
    summary="Show a delivery with its attempts",
    **openapi_spec("dashboard", {}, "not_found"),
)
async def show_delivery(
    principal: NamedDependency[DashboardPrincipal],
    queries: NamedDependency[OperatorQueries],
    delivery_id: FromPath[str],
) -> OneDelivery:
    """Show one delivery: what it sends, and each attempt with the answer's first 2 KiB."""
    found = await queries.detail(delivery_id, principal.organization_id) if is_id(delivery_id) else None
    if found is None:
        raise Problem("not_found", "No delivery has this id.")
    return OneDelivery(detail(*found))


@post(
    "/{delivery_id:str}/cancel",
    status_code=200,
    summary="Cancel a waiting delivery",
    **openapi_spec(
        "dashboard",
        {404: (CancelAnswer, "No delivery with this id waits for an attempt: `cancelled` is false.")},
        changes=True,
    ),
)
async def cancel_delivery(
    principal: NamedDependency[DashboardPrincipal],
    database: NamedDependency[Database],
    delivery_id: FromPath[str],
) -> Response[CancelAnswer]:
    """End a delivery that waits for its next attempt; one that a worker has claimed is not touched."""
    reason = f"cancelled by {principal.user_name}"
    cancelled = await change_one(
        database, "cancel", delivery_id, principal.organization_id, _actor(principal), reason
    )
    return Response(CancelAnswer(Cancelled(delivery_id, cancelled)), status_code=200 if cancelled else 404)


@post(
    "/{delivery_id:str}/retry",
    status_code=200,
    summary="Retry a dead delivery",
    **openapi_spec(
        "dashboard",
        {404: (RetryAnswer, "No dead delivery has this id: `requeued` is false.")},
        changes=True,
    ),
)
async def retry_delivery(
    principal: NamedDependency[DashboardPrincipal],
    database: NamedDependency[Database],
    delivery_id: FromPath[str],
) -> Response[RetryAnswer]:
    """Make a dead delivery due now; it gets one more attempt (§4.3)."""
    requeued = await change_one(database, "retry", delivery_id, principal.organization_id, _actor(principal))
    return Response(RetryAnswer(Requeued(delivery_id, requeued)), status_code=200 if requeued else 404)


@post(
    "/{delivery_id:str}/resend",
    status_code=200,
    summary="Send a delivered webhook again",
    **openapi_spec(
        "dashboard",
        {
            404: (
                ResendAnswer,
                "No delivered webhook with this id is kept: `resent` is false. Retention and purges remove them.",
            )
        },
        changes=True,
    ),
)
async def resend_delivery(
    principal: NamedDependency[DashboardPrincipal],
    database: NamedDependency[Database],
    keys: NamedDependency[IdempotencyKeys],
    delivery_id: FromPath[str],
    key: OnceKey = None,
) -> Response[ResendAnswer]:
    """Send a delivered webhook again, as a new delivery with the same event id, headers and body.

    It is signed with the present secret. Receivers that dedupe by event id ignore it if they have processed the first one.
    Each call sends it once more, except with an `Idempotency-Key` that was used for this delivery before.
    """
    organization_id = principal.organization_id
    once = resend_once(keys, organization_id, key, delivery_id)
    new_id = await send_one_again(database, delivery_id, organization_id, _actor(principal), once=once)
    resent = ResentDelivery(delivery_id, new_id is not None, new_id)
    return Response(ResendAnswer(resent), status_code=404 if new_id is None else 200)


@post(
    "/retry",
    status_code=200,
    summary="Retry dead deliveries",
    **openapi_spec(
        "dashboard",
        {},
        changes=True,
        query={},
        body=BodyRule(Replay, 'a JSON object with a filter, or {"all": true} for every dead delivery'),
    ),
)
async def replay_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    database: NamedDependency[Database],
    queries: NamedDependency[OperatorQueries],
    data: JSONBody[Replay],
) -> ReplayAnswer:
    """Make the dead deliveries that meet every given filter due now, oldest first; without a filter, say ``all``.

    Each gets one more attempt, or with ``resetAttempts`` all of its attempts again. Ask again while there
    are more.
    """
    wanted = data.filter()
    scope = Scope(principal.organization_id)
    delivered = await queries.count(scope, msgspec.structs.replace(wanted, status="delivered"))
    requeued = await replay(
        database,
        principal.organization_id,
        wanted,
        _actor(principal),
        reset_attempts=data.reset_attempts,
        limit=data.limit,
    )
    return ReplayAnswer(Replayed(requeued, more=requeued == data.limit, delivered=delivered))


def resend_once(
    keys: IdempotencyKeys, organization_id: str, key: str | None, delivery_id: str = ""
) -> KeyUse | None:
    """Return the key with which a caller sends something again once; ``None``: without one.

    Args:
        keys: of the database.
        organization_id: the caller's.
        key: the header.
        delivery_id: of the delivery that is sent again; empty: those of a filter are.

    Raises:
        Problem: it is no such key.
    """
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        wrong = {"path": "Idempotency-Key", "message": "must be 1 to 200 printable ASCII characters"}
        raise Problem("invalid_request", WRONG_FORM, [wrong])
    return KeyUse(keys, organization_id, f"resend:{delivery_id}", key)


def outbox_router(
    guard: RouteGuard, queries: OperatorQueries, database: Database, keys: IdempotencyKeys
) -> Router:
    """Build the router of the outbox.

    Args:
        guard: decides who may call.
        queries: finds rows.
        database: where they are changed.
        keys: the idempotency keys of callers.
    """
    return Router(
        "/v1/webhooks/outbox",
        route_handlers=with_description(
            list_deliveries, replay_deliveries, show_delivery, cancel_delivery, retry_delivery, resend_delivery
        ),
        dependencies={
            "principal": PRINCIPAL,
            "queries": Provide(lambda: queries, sync_to_thread=False),
            "database": Provide(lambda: database, sync_to_thread=False),
            "keys": Provide(lambda: keys, sync_to_thread=False),
        },
        guards=[guard.guard()],
        request_max_body_size=BODY_BYTES,
        exception_handlers=HANDLERS,
        tags=["Webhook outbox"],
    )


def _actor(principal: DashboardPrincipal) -> Actor:
    return Actor(principal.user_id, principal.user_name, "dashboard")


def as_filter(**given: object) -> Filter:
    """Return the filter of parameters, among which there may be moments."""
    values: dict[str, Any] = {
        name: int(value.timestamp() * 1000) if isinstance(value, datetime) else value
        for name, value in given.items()
    }
    return Filter(**values)
