"""Failures, counted among a bounded number of rows: by flow and node, and by what stops attempts on this side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace
from sqlalchemy import Select, and_, case, func, select
from sqlalchemy.engine import Connection

from flowactions_plugin.insights.results import Blocked, Counted, DestinationState, FailingOrigin, Failures
from flowactions_plugin.insights.standing import of_scope
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import FINISHED, LIVE, UNDELIVERED, outbox

FAILED_READ: Final = 1000
"""How many rows are read at the most of those that are dead, and of those that are tried again; each may be on another page."""

DEPTH_READ: Final = 10_000
"""Among how many of the rows that are due first those are counted that wait for each destination."""

BLOCKED_READ: Final = 2500
"""Among how many of the rows that are due first those are counted that wait for something here."""

_ORIGIN_COLUMNS: Final = [
    outbox.c[name] for name in ("organization_id", "flow_id", "node_id", "status", "error_class", "finished_at")
]

Origin: TypeAlias = tuple[str, str | None, str | None]
"""An organization, a flow and a node."""


def failures(connection: Connection, scope: Scope, now: int, limit: int) -> Failures:
    """Return flows and nodes by deliveries that have failed: dead within the last hour, or tried again.

    An index returns the latest `FAILED_READ` rows of each kind, and only those are read: of all organizations, what ended
    last, and what is due last; of one, what was enqueued last, unless all that ended within the hour can be read.
    """
    since = now - HOUR_MS
    dead, all_dead = _origins(connection, scope, _ended(since), since)
    if not all_dead and scope.organization_id is not None:
        dead, all_dead = _origins(connection, scope, _newest(scope, "dead"), since)
    retried = _next() if scope.organization_id is None else _newest(scope, "retrying")
    retrying, all_retrying = _origins(connection, scope, retried, None)
    return Failures(
        since=since,
        dead=dead.total(),
        retrying=retrying.total(),
        exact=all_dead and all_retrying,
        flows=most_failing(_whole_flows(dead), _whole_flows(retrying), limit),
        nodes=most_failing(_nodes(dead), _nodes(retrying), limit),
    )


def _origins(
    connection: Connection, scope: Scope, rows: Select[Any], since: int | None
) -> tuple[Counter[Origin], bool]:
    """Count those of some rows that have failed, by their origin; return whether these are all."""
    head = rows.subquery("head")
    if since is None:
        failed = head.c.status == inline("retrying")
    else:
        failed = and_(head.c.finished_at >= since, func.coalesce(head.c.error_class, "") != inline("cancelled"))
    origin = (head.c.organization_id, head.c.flow_id, head.c.node_id)
    counted = case((and_(failed, *of_scope(head, scope)), 1))
    query = select(*origin, func.count().label("read"), func.count(counted).label("number")).group_by(*origin)
    found = connection.execute(query).all()
    numbers: Counter[Origin] = Counter()
    for row in found:
        if row.number:
            numbers[row.organization_id or "", row.flow_id, row.node_id] += row.number
    return numbers, sum(row.read for row in found) < FAILED_READ


def most_failing(dead: Counter[Origin], retrying: Counter[Origin], limit: int) -> list[FailingOrigin]:
    """Return the origins of the most deliveries that have failed, the most first.

    Args:
        dead: those that are dead, by origin.
        retrying: those that are tried again, by origin.
        limit: how many origins at the most.
    """
    both = dead + retrying
    first = sorted(both, key=lambda key: (-both[key], *(part or "" for part in key)))[:limit]
    return [
        FailingOrigin(
            organization_id=key[0], flow_id=key[1], node_id=key[2], dead=dead[key], retrying=retrying[key]
        )
        for key in first
    ]


def _whole_flows(numbers: Counter[Origin]) -> Counter[Origin]:
    """Return the sums over the nodes of each flow."""
    found: Counter[Origin] = Counter()
    for (organization, flow, _), number in numbers.items():
        found[organization, flow, None] += number
    return found


def _nodes(numbers: Counter[Origin]) -> Counter[Origin]:
    """Return those that come from a node."""
    return Counter({key: number for key, number in numbers.items() if key[2] is not None})


def _ended(since: int) -> Select[Any]:
    """Select the rows that are dead since then, the last ended first: the order of an index."""
    return (
        select(*_ORIGIN_COLUMNS)
        .where(outbox.c.status == inline("dead"), FINISHED, outbox.c.finished_at >= since)
        .order_by(outbox.c.finished_at.desc())
        .limit(inline(FAILED_READ))
    )


def _newest(scope: Scope, status: str) -> Select[Any]:
    """Select the rows of an organization in a state, the newest first: the order of an index."""
    return (
        select(*_ORIGIN_COLUMNS)
        .where(UNDELIVERED, outbox.c.status == inline(status), *of_scope(outbox, scope))
        .order_by(outbox.c.id.desc())
        .limit(inline(FAILED_READ))
    )


def _next() -> Select[Any]:
    """Select rows that wait, those due last first: the order of an index, in which those that are tried again come first."""
    return (
        select(*_ORIGIN_COLUMNS)
        .where(LIVE)
        .order_by(outbox.c.next_attempt_at.desc())
        .limit(inline(FAILED_READ))
    )


def blocked(connection: Connection, scope: Scope, limit: int) -> list[Blocked]:
    """Return what deliveries wait for here without an attempt, the most deliveries first.

    Args:
        connection: an open one.
        scope: whose.
        limit: how many reasons at the most.
    """
    columns = (outbox.c.organization_id, outbox.c.last_error, outbox.c.waiting_since)
    head = (
        select(*columns)
        .where(LIVE, *of_scope(outbox, scope))
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(BLOCKED_READ))
        .subquery("head")
    )
    waits = head.c.waiting_since.is_not(None)
    reason = case((waits, func.coalesce(head.c.last_error, "")))
    query = select(
        reason.label("reason"),
        func.count().label("number"),
        func.count(head.c.organization_id.distinct()).label("organizations"),
        func.min(head.c.waiting_since).label("since"),
    ).group_by(reason)
    rows = connection.execute(query).all()
    exact = sum(row.number for row in rows) < BLOCKED_READ
    found = [
        Blocked(
            reason=row.reason,
            deliveries=Counted(number=row.number, exact=exact),
            organizations=row.organizations,
            since=row.since,
        )
        for row in rows
        if row.reason is not None
    ]
    return sorted(found, key=lambda each: (-each.deliveries.number, each.reason))[:limit]


def with_depth(
    connection: Connection, scope: Scope, states: Sequence[DestinationState]
) -> list[DestinationState]:
    """Return destinations with how many deliveries wait for each, and since when."""
    columns = (outbox.c.organization_id, outbox.c.destination, outbox.c.created_at)
    head = (
        select(*columns)
        .where(LIVE, *of_scope(outbox, scope))
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(DEPTH_READ + 1))
        .subquery("head")
    )
    place = (head.c.organization_id, head.c.destination)
    query = select(*place, func.count().label("number"), func.min(head.c.created_at).label("since")).group_by(
        *place
    )
    rows = {(row.organization_id, row.destination): row for row in connection.execute(query)}
    exact = sum(row.number for row in rows.values()) <= DEPTH_READ
    found = []
    for each in states:
        row = rows.get((each.organization_id, each.destination))
        waiting = Counted(number=0 if row is None else row.number, exact=exact)
        found.append(replace(each, waiting=waiting, waiting_since=None if row is None else row.since))
    return found
