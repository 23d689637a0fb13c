"""Nodes by failures, counted among a bounded number of rows, and what became of the last deliveries of those with the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, and_, case, column, func, literal, select, union_all
from sqlalchemy.engine import Connection

from flowactions_plugin.insights.facts import FailingNode
from flowactions_plugin.insights.results import FailingOrigin, Failures
from flowactions_plugin.insights.standing import of_scope, readable, top
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import FAILED, FINISHED, LIVE, UNDELIVERED, outbox
from flowactions_plugin.watch.statistics import answered

FAILED_READ: Final = 1000
"""How many rows are read at the most of those that are dead, and of those that are tried again; each may be on another page."""

LEAST_FAILED: Final = 3
"""From so many failed deliveries on, a node is judged, by its last `JUDGED`."""

JUDGED: Final = 50

ARRIVED_READ: Final = 1000
"""Among so many of an organization's last rows it is looked for deliveries of a node that have arrived."""

NO_ATTEMPT: Final = ("waits", "not_sent", "cancelled")
"""Kinds of failure that say nothing of a node: it waits for the host, was ended by the plugin, or by a person."""

_ORIGIN: Final = ("organization_id", "flow_id", "node_id")

Origin: TypeAlias = tuple[str, str, str]
"""An organization, a flow and a node."""


def failures(connection: Connection, scope: Scope, now: int, limit: int) -> Failures:
    """Return nodes by deliveries that have failed: dead within the last hour, or tried again.

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
    heads = (select(head.limit(inline(FAILED_READ)).subquery()) for head in (dead, retried))
    both = select(union_all(*heads).subquery())
    read: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    nodes: defaultdict[Origin, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(top(both, ("state", *_ORIGIN), failed=func.count(column("failed")))):
        number = {row.state: row.failed}
        read[row.state] += row.number
        failed.update(number)
        if row.node_id is not None:
            nodes[row.organization_id or "", row.flow_id or "", row.node_id].update(number)
    return Failures(
        since=since,
        dead=failed["dead"],
        retrying=failed["retrying"],
        exact=max(read.values(), default=0) < FAILED_READ,
        nodes=most_failing(nodes, limit),
    )


def _head(state: str, failed: ColumnElement[bool]) -> Select[Any]:
    """Select the origins of rows, and whether each has failed."""
    columns = (outbox.c[name] for name in _ORIGIN)
    return select(literal(state).label("state"), *columns, case((failed, 1)).label("failed"))


def most_failing(found: Mapping[Origin, Counter[str]], limit: int) -> list[FailingOrigin]:
    """Return the nodes of the most deliveries that have failed, the most first; given are their numbers, by state."""
    some = [key for key, numbers in found.items() if numbers.total()]
    first = sorted(some, key=lambda key: (-found[key].total(), *key))[:limit]
    return [FailingOrigin(*key, dead=found[key]["dead"], retrying=found[key]["retrying"]) for key in first]


def failing_nodes(
    connection: Connection, scope: Scope, nodes: Sequence[FailingOrigin], places: set[str]
) -> list[FailingNode]:
    """Return those of some nodes most of whose last deliveries have failed.

    Args:
        connection: where.
        scope: whose.
        nodes: by failures.
        places: destinations that fail, and say nothing of a node.
    """
    asked = [node for node in nodes if node.dead + node.retrying >= LEAST_FAILED]
    if not asked:
        return []
    columns = [
        outbox.c[name]
        for name in ("id", *_ORIGIN, "status", "destination", "url", "last_error", "last_status_code")
    ]
    newest = outbox.c.id.desc()
    reads: list[Select[Any]] = []
    for node in asked:
        own = (outbox.c.organization_id == node.organization_id, _is(node))
        failed = select(*columns).where(*own, FAILED, outbox.c.error_class.not_in(NO_ATTEMPT))
        reads.append(failed.order_by(newest).limit(inline(JUDGED)))
        last = select(*columns).where(outbox.c.organization_id == node.organization_id).order_by(newest)
        arrived = last.limit(inline(ARRIVED_READ)).subquery()
        reads.append(select(arrived).where(_is(node, arrived.c), arrived.c.status == inline("delivered")))
    heads = (select(read.subquery()) for read in reads)
    rows: defaultdict[tuple[Any, ...], dict[str, Row[Any]]] = defaultdict(dict)
    for row in connection.execute(union_all(*heads)):
        if row.destination not in places or row.status == "delivered":
            rows[row[1:4]][row.id] = row
    found = []
    for node in asked:
        own_rows = rows[node.organization_id, node.flow_id or None, node.node_id]
        last_rows = [own_rows[row_id] for row_id in sorted(own_rows, reverse=True)[:JUDGED]]
        bad = [row for row in last_rows if row.status != "delivered"]
        if len(bad) >= LEAST_FAILED and 2 * len(bad) > len(last_rows):
            reason = readable(bad[0].last_error or answered(bad[0].last_status_code) or "", scope, bad[0].url)
            key = (node.organization_id, node.flow_id, node.node_id)
            found.append(FailingNode(*key, len(bad), len(last_rows), reason))
    return found


def _is(node: FailingOrigin, columns: Any = outbox.c) -> ColumnElement[bool]:
    flow = columns.flow_id == node.flow_id if node.flow_id else columns.flow_id.is_(None)
    return and_(flow, columns.node_id == node.node_id)
