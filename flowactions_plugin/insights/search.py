"""Searches and counts over the outbox: each reads a page of an index, or a bounded number of rows (decision 33).

Lists of values are searched one value after the other. A search reads one source, or two that share no row: where an index holds
the rows that have failed, those are read from it; the others are searched for among all rows, from the newest back. All are in
the order of the ids, and are merged by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Row, TextClause, and_, func, literal, or_, select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import id_at, is_id, time_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.filters import BY_NAME, LIVE_STATES, STORED, Filter, Term
from flowactions_plugin.insights.results import Counted, Page, counted_to
from flowactions_plugin.insights.views import delivery_of
from flowactions_plugin.operators.audit import SKEW_MS
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    BEHIND_MS,
    EVERY_ORGANIZATION,
    FAILED,
    KEYED,
    LIVE,
    UNDELIVERED,
    outbox,
    pauses,
)

READ_BACK: Final = 5000
"""How many rows a page of a search reads that no index serves."""

COUNTED_BACK: Final = 10_000
"""The same, of a count; and up to how many rows that wait are searched as they are due."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""

EVENT_ROWS: Final = 5000
"""How many rows of an event are looked at; there is hardly ever more than one."""

MOST_PARTS: Final = 8
"""Into how many searches the values of lists are divided at the most; further ones are no index's."""

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
        few: whether its rows are so few that all are read, whatever the filter asks for.
    """

    names: Sequence[str] = ()
    extra: Conditions = ()
    whole: bool = True
    few: bool = False


def conditions(database: Database, wanted: Filter) -> list[ColumnElement[bool] | TextClause]:
    """Return the SQL conditions of a filter, with those of the indexes that serve them (decision 33)."""
    found = [_condition(database, term) for term in wanted.terms]
    states = wanted.states
    # Of indexes on few rows: SQLite, too, finds these by them.
    partial = (
        (UNDELIVERED, states and "delivered" not in states),
        (FAILED, wanted.values("error")),
        (KEYED, wanted.values("key")),
    )
    return [*found, *(rows for rows, holds in partial if holds)]


def _condition(database: Database, term: Term) -> Any:
    field = BY_NAME[term.name]
    column: Any = outbox.c[field.column]
    if field.edge == "From":
        return column >= term.values[0]
    if field.edge:
        return column < term.values[0]
    if term.name == "status":
        of_states = or_(*(_is_in_state(database, each) for each in term.values))
        return ~of_states if term.excluded else of_states
    if term.excluded:
        return or_(column.is_(None), column.not_in(term.values))
    return column.in_(term.values) if len(term.values) > 1 else column == term.values[0]


def _is_in_state(database: Database, state: str) -> ColumnElement[bool]:
    """Return the condition that a row is in a state, stored or not."""
    stored = [inline(each) for each in STORED.get(state, (state,))]
    return and_(outbox.c.status.in_(stored), *_beside(database, state))


def _beside(database: Database, state: str) -> Conditions:
    """Return the conditions of a state beside the stored ones that it is of."""
    if state == "behind":
        return (outbox.c.next_attempt_at == inline(BEHIND_MS),)
    return is_due(database) if state == "due" else ()


def is_due(database: Database) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on rows that wait that they may be claimed now."""
    now = database.now()
    free = or_(outbox.c.claimed_until.is_(None), outbox.c.claimed_until <= now)
    return outbox.c.next_attempt_at <= now, ~is_paused(outbox.c.organization_id, outbox.c.destination), free


def is_paused(organization_id: Any, destination: Any) -> ColumnElement[bool]:
    """Return the condition that a destination is paused, by its organization or for all."""
    whose = or_(pauses.c.organization_id == organization_id, pauses.c.organization_id == EVERY_ORGANIZATION)
    return select(1).where(pauses.c.destination == destination, whose).exists()


def within(scope: Scope, wanted: Filter) -> Filter | None:
    """Return what is wanted within a scope; ``None``: nothing, because it is another organization's."""
    if scope.organization_id is None:
        return wanted
    if wanted.values("organization") and scope.organization_id not in wanted.values("organization"):
        return None
    return wanted.having("organization", scope.organization_id)


def _parts(database: Database, wanted: Filter) -> list[tuple[Filter, Conditions]]:
    """Divide a search by the values of its lists; no row belongs to two parts.

    A part is a filter whose lists have one value each, and the conditions of states that are not stored.
    """
    parts: list[tuple[Filter, Conditions]] = []
    for stored in sorted(wanted.states):
        those = [each for each in wanted.values("status") if stored in STORED.get(each, (each,))]
        beside = [_beside(database, each) for each in those]
        conditions = () if () in beside else (or_(*(and_(*each) for each in beside)),)
        parts.append((wanted.having("status", stored), conditions))
    parts = parts or [(wanted, ())]
    for name in ("organization", "destination", "error", "flow", "node"):
        values = wanted.values(name)
        if 1 < len(values) <= MOST_PARTS // len(parts):
            parts = [(each.having(name, value), beside) for each, beside in parts for value in values]
    return parts


def _sources(connection: Connection, wanted: Filter) -> Sequence[Source]:
    """Return what a part of a search within the scope reads."""
    for single in ("id", "key", "event"):
        if wanted.values(single):
            return [Source((single,))]
    organization, state = wanted.only("organization"), wanted.only("status")
    if organization is None and state in LIVE_STATES and (live := _live(connection)) is not None:
        return [Source(extra=(live,), few=True)]
    base = _base_source(wanted)
    if organization is not None and wanted.only("flow") is not None:
        names = ("organization", "flow", *(["node"] if wanted.only("node") is not None else []))
    elif wanted.only("destination") is not None:
        names = ("destination",)
    else:
        return [base]
    failed = Source(names, (FAILED,))
    if wanted.only("error") is not None:
        return [failed]
    return [failed, Source(base.names, (_NOT_FAILED,), whole=False)]


def _base_source(wanted: Filter) -> Source:
    """Return the index of all rows, of those in a state, or of those that have failed, which selects best."""
    if wanted.only("organization") is None:
        has_failed = wanted.values("error") or wanted.only("status") in {"retrying", "dead"}
        return Source(extra=(FAILED,) if has_failed else ())
    for name in ("error", "status"):
        if wanted.only(name) not in {None, "delivered"}:
            return Source(("organization", name))
    return Source(("organization",))


def _live(connection: Connection) -> ColumnElement[bool] | None:
    """Return the condition on all rows that wait; ``None``: they are too many to be read at once."""
    due_first = (outbox.c.next_attempt_at, outbox.c.id)
    ids = select(outbox.c.id).where(LIVE).order_by(*due_first).limit(inline(COUNTED_BACK + 1)).subquery()
    number = connection.execute(select(func.count()).select_from(ids)).scalar_one()
    return outbox.c.id.in_(select(ids.c.id)) if number <= COUNTED_BACK else None


def id_bounds(wanted: Filter, position: str | None = None) -> list[ColumnElement[bool]]:
    """Return conditions on the id that hold for all rows that were enqueued at the wanted time, before a place."""
    since, before = wanted.only("since"), wanted.only("before")
    bounds: list[ColumnElement[bool]] = [] if position is None else [outbox.c.id < position]
    bounds += [] if since is None else [outbox.c.id >= id_at(since - SKEW_MS)]
    return [*bounds, *([] if before is None else [outbox.c.id <= id_at(before + SKEW_MS, last=True)])]


def page(
    connection: Connection, database: Database, scope: Scope, wanted: Filter, before: str | None, limit: int
) -> Page:
    """Return a page of a search: the newest rows of all its sources, as far back as each was read; see `Insights.deliveries`."""
    if before and not is_id(before):
        raise FilterInvalid("cursor: must be the next cursor of a page of the same search", "cursor")
    inside = within(scope, wanted)
    if inside is None:
        return Page(rows=())
    found: list[Row[Any]] = []
    horizons = []
    for selected, horizon in _reads(connection, database, inside, READ_BACK, before or None):
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
        rows=[delivery_of(row, for_operators=scope.reads_inner) for row in rows[:limit]],
        next_cursor=following,
        looked_back_to=looked_back_to,
    )


def counted(
    connection: Connection, database: Database, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT
) -> Counted:
    """Count deliveries up to a limit, among some thousand rows where no index serves the filter."""
    inside = within(scope, wanted)
    if inside is None:
        return Counted(number=0, exact=True)
    total, exact = 0, True
    for selected, horizon in _reads(connection, database, inside, COUNTED_BACK):
        rows = select(literal(1)).select_from(outbox).where(*selected).limit(inline(limit + 1))
        total += connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one()
        exact = exact and horizon is None
    return counted_to(limit, total, exact=exact)


def _reads(
    connection: Connection, database: Database, wanted: Filter, most: int, position: str | None = None
) -> Iterator[tuple[Conditions, str | None]]:
    """Give the conditions on the rows of each source that are wanted, and the id to which it is read; ``None``: to its end."""
    bounds = id_bounds(wanted, position)
    if events := wanted.values("event"):
        # Read first: where PostgreSQL expects many of them, it may search all rows of an organization in order.
        mine = select(outbox.c.id).where(outbox.c.event_id.in_(events)).limit(inline(EVENT_ROWS))
        bounds.append(outbox.c.id.in_([row.id for row in connection.execute(mine).all()]))
    for part, beside in _parts(database, wanted):
        asked = [*conditions(database, part), *beside]
        for source in _sources(connection, part):
            rows = [*source.extra, *bounds]
            served = Filter.made(each for each in part.terms if _is_served(each, source))
            # Ids are in the order of the enqueue, so every source serves its time.
            left = [each for each in part.terms if each not in served.terms and each.name not in _ENQUEUED]
            if source.few or (source.whole and not left and not beside):
                yield [*asked, *rows], None
                continue
            last = select(outbox.c.id).where(*conditions(database, served), *rows).order_by(outbox.c.id.desc())
            horizon = connection.execute(last.offset(inline(most - 1)).limit(inline(1))).scalar_one_or_none()
            yield [*asked, *rows, *([] if horizon is None else [outbox.c.id >= horizon])], horizon


_ENQUEUED: Final = ("since", "before")


def _is_served(term: Term, source: Source) -> bool:
    is_one = len(term.values) == 1 or term.name in {"id", "key", "event"}
    return is_one and not term.excluded and term.name in source.names
