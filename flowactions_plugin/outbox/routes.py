"""The outbox for operators: list, look at, retry (§4.3). An organization sees its own rows only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from litestar import Response, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from flowactions_hookspecs import DashboardPrincipal, Header, Host, Origin
from flowactions_plugin.clock import ID_PATTERN, is_id, to_iso
from flowactions_plugin.http.auth import dashboard_principal
from flowactions_plugin.http.openapi import described, documented
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.outbox.delivery import FINISHED
from flowactions_plugin.outbox.store import Filter, OutboxStore

PAGE_LIMIT: Final = 100
REPLAY_LIMIT: Final = 10_000
"""How many deliveries one bulk retry takes at the most, so that nobody waits for its transaction."""

NO_NUL_PATTERN: Final = r"^[^\x00]*$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, max_length=36)]
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=NO_NUL_PATTERN)]


class DeliverySummary(msgspec.Struct, rename="camel", kw_only=True):
    """A row of the outbox."""

    id: str
    status: str
    idempotency_key: str | None
    event_id: str
    event_type: str
    agent_id: str
    url: str
    method: str
    attempts: int
    max_attempts: int
    next_attempt_at: str | None
    created_at: str
    updated_at: str
    finished_at: str | None
    last_status_code: int | None
    last_error: str | None


class Attempt(msgspec.Struct, rename="camel", kw_only=True):
    """One attempt of a delivery; of the answer's body the first 2 KiB are kept."""

    number: int
    started_at: str
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str


class DeliveryDetail(DeliverySummary, rename="camel", kw_only=True):
    """A row of the outbox with what it sends and what came of it."""

    origin: Origin
    headers: list[Header]
    body: str | None
    attempt_log: list[Attempt]


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


class Replay(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which dead deliveries to retry: those that meet everything that is given."""

    ids: Annotated[tuple[Id, ...], msgspec.Meta(max_length=1000)] | None = None
    agent_id: Word | None = None
    destination: Word | None = None
    event_type: Word | None = None
    finished_from: datetime | None = None
    finished_before: datetime | None = None
    reset_attempts: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=REPLAY_LIMIT)] = 1000


class Replayed(msgspec.Struct):
    """How many were retried, and whether the limit may have left some over."""

    requeued: int
    more: bool


class ReplayAnswer(msgspec.Struct):
    """The answer of a bulk retry."""

    data: Replayed


@get(
    "/",
    summary="List deliveries",
    **described("dashboard", {}, "invalid_request"),
)
async def list_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    store: NamedDependency[OutboxStore],
    status: FromQuery[Literal["pending", "retrying", "delivered", "dead"] | None] = None,
    agent_id: Annotated[str | None, QueryParameter(name="agentId", pattern=NO_NUL_PATTERN)] = None,
    destination: Annotated[str | None, QueryParameter(pattern=NO_NUL_PATTERN)] = None,
    event_type: Annotated[str | None, QueryParameter(name="eventType", pattern=NO_NUL_PATTERN)] = None,
    finished_from: Annotated[datetime | None, QueryParameter(name="finishedFrom")] = None,
    finished_before: Annotated[datetime | None, QueryParameter(name="finishedBefore")] = None,
    cursor: Annotated[str | None, QueryParameter(pattern=ID_PATTERN)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_LIMIT)] = 50,
) -> DeliveryPage:
    """List the organization's deliveries, newest first."""
    wanted = Filter(
        agent_id=agent_id,
        destination=destination,
        event_type=event_type,
        finished_from=_milliseconds("finishedFrom", finished_from),
        finished_before=_milliseconds("finishedBefore", finished_before),
    )
    rows = await store.page(
        principal.organization_id, status=status, wanted=wanted, before=cursor, limit=limit + 1
    )
    shown = [DeliverySummary(**_summary(row)) for row in rows[:limit]]
    return DeliveryPage(shown, shown[-1].id if len(rows) > limit else None)


@get(
    "/{delivery_id:str}",
    summary="Show a delivery with its attempts",
    **described("dashboard", {}, "not_found"),
)
async def show_delivery(
    principal: NamedDependency[DashboardPrincipal],
    store: NamedDependency[OutboxStore],
    delivery_id: FromPath[str],
) -> OneDelivery:
    """Show one delivery: what it sends, and each attempt with the answer's first 2 KiB."""
    found = await store.detail(delivery_id, principal.organization_id) if is_id(delivery_id) else None
    if found is None:
        raise Problem("not_found", "There is no delivery with this id.")
    row, log = found
    return OneDelivery(
        DeliveryDetail(
            **_summary(row),
            origin=msgspec.json.decode(row.origin, type=Origin),
            headers=[Header(key=key, value=value) for key, value in msgspec.json.decode(row.headers)],
            body=None if row.body is None else row.body.decode("utf-8", "replace"),
            attempt_log=[
                Attempt(
                    number=attempt.number,
                    started_at=to_iso(attempt.started_at),
                    duration_ms=attempt.duration_ms,
                    status_code=attempt.status_code,
                    error=attempt.error,
                    response=(attempt.response or b"").decode("utf-8", "replace"),
                )
                for attempt in log
            ],
        )
    )


@post(
    "/{delivery_id:str}/cancel",
    status_code=200,
    summary="Cancel a waiting delivery",
    **described(
        "dashboard",
        {404: (CancelAnswer, "No delivery with this id waits for an attempt: `cancelled` is false.")},
    ),
)
async def cancel_delivery(
    principal: NamedDependency[DashboardPrincipal],
    store: NamedDependency[OutboxStore],
    delivery_id: FromPath[str],
) -> Response[CancelAnswer]:
    """End a delivery that waits for its next attempt; one that is being sent just now is not touched."""
    reason = f"cancelled by {principal.user_name}"
    cancelled = is_id(delivery_id) and await store.cancel(delivery_id, principal.organization_id, reason)
    return Response(CancelAnswer(Cancelled(delivery_id, cancelled)), status_code=200 if cancelled else 404)


@post(
    "/{delivery_id:str}/retry",
    status_code=200,
    summary="Retry a dead delivery",
    **described(
        "dashboard", {404: (RetryAnswer, "There is no dead delivery with this id: `requeued` is false.")}
    ),
)
async def retry_delivery(
    principal: NamedDependency[DashboardPrincipal],
    store: NamedDependency[OutboxStore],
    delivery_id: FromPath[str],
) -> Response[RetryAnswer]:
    """Make a dead delivery due now; it gets one more attempt (§4.3)."""
    requeued = is_id(delivery_id) and await store.retry(delivery_id, principal.organization_id)
    return Response(RetryAnswer(Requeued(delivery_id, requeued)), status_code=200 if requeued else 404)


@post(
    "/retry",
    status_code=200,
    summary="Retry dead deliveries",
    **described("dashboard", {}, "invalid_request", "too_large"),
)
async def replay_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    store: NamedDependency[OutboxStore],
    data: JSONBody[Replay],
) -> ReplayAnswer:
    """Make the dead deliveries that meet a filter due now, oldest first.

    Each gets one more attempt, or with ``resetAttempts`` all of its attempts again. Ask again while there
    are more.
    """
    wanted = Filter(
        ids=data.ids,
        agent_id=data.agent_id,
        destination=data.destination,
        event_type=data.event_type,
        finished_from=_milliseconds("finishedFrom", data.finished_from),
        finished_before=_milliseconds("finishedBefore", data.finished_before),
    )
    requeued = await store.retry_many(
        principal.organization_id, wanted, reset_attempts=data.reset_attempts, limit=data.limit
    )
    return ReplayAnswer(Replayed(requeued, more=requeued == data.limit))


def outbox_router(host: Host, store: OutboxStore) -> Router:
    """Make the router of the outbox."""
    return Router(
        "/v1/webhooks/outbox",
        route_handlers=documented(
            list_deliveries, replay_deliveries, show_delivery, cancel_delivery, retry_delivery
        ),
        dependencies={
            "principal": dashboard_principal(host),
            "store": Provide(lambda: store, sync_to_thread=False),
        },
        exception_handlers=HANDLERS,
        tags=["Webhook outbox"],
    )


def _milliseconds(name: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        error = {"path": name, "message": "Give the time zone, as in 2030-01-31T12:00:00Z."}
        raise Problem("invalid_request", "The request does not have the right form.", [error])
    return int(moment.timestamp() * 1000)


def _summary(row: Any) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in DeliverySummary.__struct_fields__}
    values["created_at"] = to_iso(row.created_at)
    values["updated_at"] = to_iso(row.updated_at)
    values["finished_at"] = None if row.finished_at is None else to_iso(row.finished_at)
    values["next_attempt_at"] = None if row.status in FINISHED else to_iso(row.next_attempt_at)
    return values
