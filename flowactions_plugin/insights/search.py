"""Searches and counts over the outbox: each reads a page of an index, or a bounded number of rows (decision 33).

A search reads one source, or two that share no row: where an index holds the rows that have failed, those are read from it;
the others are searched for among all rows, from the newest back. Both are in the order of the ids, and are merged by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Row, TextClause, func, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import id_at, is_id, time_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.fields import RANGES
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Counted, Page, counted_to
from flowactions_plugin.insights.views import delivery_of
from flowactions_plugin.operators.audit import SKEW_MS
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import FAILED, KEYED, UNDELIVERED, outbox

READ_BACK: Final = 5000
"""How many rows a page of a search reads that no index serves."""

COUNTED_BACK: Final = 10_000
"""The same, of a count."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""

EVENT_ROWS: Final = 5000
"""How many rows of an event are looked at; there is hardly ever more than one."""

LIST_COLUMNS: Final = tuple(
    column for column in outbox.c if column.name not in {"body", "headers", "delivered_response"}
)


Conditions: TypeAlias = Sequence[ColumnElement[bool] | TextClause]

_NOT_FAILED: Final = outbox.c.error_class.is_(None)


class Source(NamedTuple):
    """Rows that an index returns by id, the newest first.

    Attributes:
        names: the fields of a filter that the index serves.
        extra: conditions beside the filter's that belong to the source.
        whole: whether the index serves these, too.
    """

    names: Sequence[str] = ()
    extra: Conditions = ()
    whole: bool = True


def conditions(wanted: Filter) -> list[ColumnElement[bool] | TextClause]:
    """Return the SQL conditions of a filter, with those of the indexes that serve them (decision 33)."""
    found: list[ColumnElement[bool] | TextClause] = []
    if wanted.ids is not None:
        found.append(outbox.c.id.in_(wanted.ids))
    if wanted.status is not None:
        found.append(outbox.c.status == inline(wanted.status))
    for name in _EQUAL:
        value = getattr(wanted, name)
        if value is not None:
            found.append(outbox.c[name] == value)
    # Of indexes on few rows: SQLite, too, finds these by them.
    partial = (
        (UNDELIVERED, wanted.status not in {None, "delivered"}),
        (FAILED, wanted.error_class is not None),
        (KEYED, wanted.idempotency_key is not None),
    )
    found += [rows for rows, holds in partial if holds]
    for name, _ in RANGES:
        start, end = getattr(wanted, f"{name}_from"), getattr(wanted, f"{name}_before")
        if start is not None:
            found.append(outbox.c[f"{name}_at"] >= start)
        if end is not None:
            found.append(outbox.c[f"{name}_at"] < end)
    return found


_EQUAL: Final = tuple(
    name
    for name in Filter.__struct_fields__
    if name not in {"ids", "status"} and not name.endswith(("_from", "_before"))
)


def within(scope: Scope, wanted: Filter) -> Filter | None:
    """Return what is wanted within a scope; ``None``: nothing, because it is another organization's."""
    if scope.organization_id is None:
        return wanted
    if wanted.organization_id not in {None, scope.organization_id}:
        return None
    return replace(wanted, organization_id=scope.organization_id)


def sources(wanted: Filter) -> Sequence[Source]:
    """Return what a search reads, for a filter within the scope."""
    for single in ("ids", "idempotency_key", "event_id"):
        if getattr(wanted, single) is not None:
            return [Source((single,))]
    base = _base_source(wanted)
    if wanted.organization_id is not None and wanted.flow_id is not None:
        names = ("organization_id", "flow_id", *(["node_id"] if wanted.node_id is not None else []))
    elif wanted.destination is not None:
        names = ("destination",)
    else:
        return [base]
    failed = Source(names, (FAILED,))
    if wanted.error_class is not None:
        return [failed]
    return [failed, Source(base.names, (_NOT_FAILED,), whole=False)]


def _base_source(wanted: Filter) -> Source:
    """Return the index of all rows, of those in a state, or of those that have failed, which selects best."""
    if wanted.organization_id is None:
        has_failed = wanted.error_class is not None or wanted.status in {"retrying", "dead"}
        return Source(extra=(FAILED,) if has_failed else ())
    for name in ("error_class", "status"):
        if getattr(wanted, name) not in {None, "delivered"}:
            return Source(("organization_id", name))
    return Source(("organization_id",))


def id_bounds(wanted: Filter, position: str | None = None) -> list[ColumnElement[bool]]:
    """Return conditions on the id that hold for all rows that were enqueued at the wanted time, before a place."""
    bounds: list[ColumnElement[bool]] = []
    if position is not None:
        bounds.append(outbox.c.id < position)
    if wanted.created_from is not None:
        bounds.append(outbox.c.id >= id_at(wanted.created_from - SKEW_MS))
    if wanted.created_before is not None:
        bounds.append(outbox.c.id <= id_at(wanted.created_before + SKEW_MS, last=True))
    return bounds


def page(connection: Connection, scope: Scope, wanted: Filter, before: str | None, limit: int) -> Page:
    """Return a page of a search: the newest rows of all its sources, as far back as each was read; see `Insights.deliveries`."""
    if before and not is_id(before):
        raise FilterInvalid("cursor: must be the next cursor of a page of the same search", "cursor")
    inside = within(scope, wanted)
    if inside is None:
        return Page(rows=())
    bounds = id_bounds(inside, before or None)
    found: list[Row[Any]] = []
    horizons = []
    for source in sources(inside):
        selected, horizon = _source_rows(connection, inside, source, bounds, READ_BACK)
        query = select(*LIST_COLUMNS).where(*selected).order_by(outbox.c.id.desc())
        found += connection.execute(query.limit(inline(limit + 1))).all()
        horizons += [] if horizon is None else [horizon]
    since = max(horizons, default="")
    rows = sorted((row for row in found if row.id >= since), key=attrgetter("id"), reverse=True)
    following, looked_back_to = None, None
    if len(rows) > limit:
        following = rows[limit - 1].id
    elif since:
        following, looked_back_to = since, time_of(since)
    return Page(
        rows=[delivery_of(row, for_operators=scope.organization_id is None) for row in rows[:limit]],
        next_cursor=following,
        looked_back_to=looked_back_to,
    )


def counted(connection: Connection, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT) -> Counted:
    """Count deliveries up to a limit, among some thousand rows where no index serves the filter."""
    inside = within(scope, wanted)
    if inside is None:
        return Counted(number=0, exact=True)
    bounds, total, exact = id_bounds(inside), 0, True
    for source in sources(inside):
        selected, horizon = _source_rows(connection, inside, source, bounds, COUNTED_BACK)
        rows = select(literal(1)).select_from(outbox).where(*selected).limit(inline(limit + 1))
        total += connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one()
        exact = exact and horizon is None
    return counted_to(limit, total, exact=exact)


def _source_rows(
    connection: Connection, wanted: Filter, source: Source, bounds: Conditions, most: int
) -> tuple[Conditions, str | None]:
    """Return the conditions on the rows of a source that are wanted, and the id to which it is read; ``None``: to its end."""
    selected = [*conditions(wanted), *source.extra, *bounds]
    if wanted.event_id is not None:
        # Read first: where PostgreSQL expects many of them, it may search all rows of an organization in order.
        mine = select(outbox.c.id).where(outbox.c.event_id == wanted.event_id)
        found = connection.execute(mine.limit(inline(EVENT_ROWS))).all()
        selected.append(outbox.c.id.in_([row.id for row in found]))
    served = Filter(**{name: getattr(wanted, name) for name in source.names})
    # Ids are in the order of the enqueue, so every source serves its time.
    if source.whole and served == replace(wanted, created_from=None, created_before=None):
        return selected, None
    last = (
        select(outbox.c.id)
        .where(*conditions(served), *source.extra, *bounds)
        .order_by(outbox.c.id.desc())
        .offset(inline(most - 1))
        .limit(inline(1))
    )
    horizon = connection.execute(last).scalar_one_or_none()
    return selected if horizon is None else [*selected, outbox.c.id >= horizon], horizon
