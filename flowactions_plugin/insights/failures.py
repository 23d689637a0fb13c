"""Flows and nodes by failures, counted among a bounded number of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, case, column, func, literal, select, union_all
from sqlalchemy.engine import Connection

from flowactions_plugin.insights.results import FailingOrigin, Failures
from flowactions_plugin.insights.standing import of_scope, top
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import FINISHED, LIVE, UNDELIVERED, outbox

FAILED_READ: Final = 1000
"""How many rows are read at the most of those that are dead, and of those that are tried again; each may be on another page."""

_ORIGIN: Final = ("organization_id", "flow_id", "node_id")

Origin: TypeAlias = tuple[str, str | None, str | None]
"""An organization, a flow and a node."""


def failures(connection: Connection, scope: Scope, now: int, limit: int) -> Failures:
    """Return flows and nodes by deliveries that have failed: dead within the last hour, or tried again.

    An index gives the latest `FAILED_READ` rows of each kind, and only those are read: of all organizations, what ended
    last, and what is due last; of one, what was enqueued last.
    """
    since = now - HOUR_MS
    is_dead = and_(
        outbox.c.finished_at >= since, func.coalesce(outbox.c.error_class, "") != inline("cancelled")
    )
    if scope.organization_id is None:
        ended = (outbox.c.status == inline("dead"), FINISHED, outbox.c.finished_at >= since)
        dead = _head("dead", is_dead).where(*ended).order_by(outbox.c.finished_at.desc())
        # Those that are tried again are due last.
        retried = _head("retrying", outbox.c.status == inline("retrying")).where(LIVE)
        retried = retried.order_by(outbox.c.next_attempt_at.desc())
    else:
        dead, retried = (
            _head(state, failed)
            .where(UNDELIVERED, outbox.c.status == inline(state), *of_scope(outbox, scope))
            .order_by(outbox.c.id.desc())
            for state, failed in (("dead", is_dead), ("retrying", outbox.c.id.is_not(None)))
        )
    heads = (select(each.limit(inline(FAILED_READ)).subquery()) for each in (dead, retried))
    both = select(union_all(*heads).subquery())
    read: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    flows: defaultdict[Origin, Counter[str]] = defaultdict(Counter)
    nodes: defaultdict[Origin, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(top(both, ("state", *_ORIGIN), failed=func.count(column("failed")))):
        number = {row.state: row.failed}
        read[row.state] += row.number
        failed.update(number)
        flows[row.organization_id or "", row.flow_id, None].update(number)
        if row.node_id is not None:
            nodes[row.organization_id or "", row.flow_id, row.node_id].update(number)
    return Failures(
        since=since,
        dead=failed["dead"],
        retrying=failed["retrying"],
        exact=max(read.values(), default=0) < FAILED_READ,
        flows=most_failing(flows, limit),
        nodes=most_failing(nodes, limit),
    )


def _head(state: str, failed: ColumnElement[bool]) -> Select[Any]:
    """Select the origins of rows, and whether each has failed."""
    columns = (outbox.c[name] for name in _ORIGIN)
    return select(literal(state).label("state"), *columns, case((failed, 1)).label("failed"))


def most_failing(found: Mapping[Origin, Counter[str]], limit: int) -> list[FailingOrigin]:
    """Return the origins of the most deliveries that have failed, the most first; given are their numbers, by state."""
    some = [key for key, numbers in found.items() if numbers.total()]
    first = sorted(some, key=lambda key: (-found[key].total(), *(part or "" for part in key)))[:limit]
    return [
        FailingOrigin(
            organization_id=key[0],
            flow_id=key[1],
            node_id=key[2],
            dead=found[key]["dead"],
            retrying=found[key]["retrying"],
        )
        for key in first
    ]
