"""Searches and counts over the outbox: each reads a page of an index, or a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    TextClause,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.engine import Connection

from flowactions_plugin import clock
from flowactions_plugin.insights import search
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Counted, Page
from flowactions_plugin.insights.search import Source
from flowactions_plugin.insights.search import conditions as conditions_of
from flowactions_plugin.insights.views import delivery_of
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import FINISHED, LIVE, outbox

READ_BACK: Final = 5000
"""How many rows a page of a search reads that no index serves."""

COUNTED_BACK: Final = 10_000
"""The same, of a count."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""

EVENT_ROWS: Final = 5000
"""How many rows of an event are looked at; there is hardly ever more than one."""

ORGANIZATIONS: Final = 1000
"""How many organizations a search asks one by one; with more, it reads back among the rows of all."""

FIRST_SHARES: Final = 3
"""How many times its share of a page is read of each organization first."""

LIST_COLUMNS: Final = tuple(
    column for column in outbox.c if column.name not in {"body", "headers", "delivered_response"}
)


class Read(NamedTuple):
    """What was read of a source.

    Attributes:
        rows: those that are wanted, the newest first.
        horizon: the last row that was looked at, when there are older ones.
    """

    rows: Sequence[Row[Any]]
    horizon: Row[Any] | None = None


class DeliverySearch:
    """Searches in one database, on connections of its callers.

    Args:
        sql: how its database is asked.
    """

    def __init__(self, sql: Dialect) -> None:
        self._sql = sql

    def read(self, connection: Connection, wanted: Filter, before: str | None, limit: int) -> list[Read]:
        """Return what a page of a search may hold, of each of its sources.

        Args:
            connection: an open one.
            wanted: within the scope.
            before: only rows with smaller ids; ``None``: all.
            limit: how many rows of each source are asked for; one more says that there are more.
        """
        return [self._read(connection, wanted, source, before, limit) for source in search.sources(wanted)]

    def counted(self, connection: Connection, scope: Scope, wanted: Filter, limit: int) -> Counted:
        """Count deliveries on an open connection."""
        inside = search.within(scope, wanted)
        if inside is None:
            return Counted(number=0, exact=True)
        total, exact = 0, True
        for source in search.sources(inside):
            number, whole = self._count(connection, inside, source, limit)
            total, exact = total + number, exact and whole
        return Counted(number=min(total, limit), exact=exact and total <= limit)

    def _read(
        self, connection: Connection, wanted: Filter, source: Source, position: str | None, limit: int
    ) -> Read:
        bounds = search.id_bounds(wanted, position)
        conditions = [*self._conditions(connection, wanted, source), *bounds]
        query = select(*LIST_COLUMNS).where(*conditions).order_by(outbox.c.id.desc())
        if source.each_organization:
            organizations = self._organizations(connection, source)
            if organizations is not None:
                return Read(self._newest_of_each(connection, query, organizations, limit + 1))
            source = Source(Filter())
        horizon = None if source.whole else _horizon(connection, source, bounds, READ_BACK)
        if horizon is not None:
            query = query.where(outbox.c.id >= horizon.id)
        return Read(connection.execute(query.limit(inline(limit + 1))).all(), horizon)

    def _conditions(
        self, connection: Connection, wanted: Filter, source: Source
    ) -> list[ColumnElement[bool] | TextClause]:
        """Return the conditions on the rows of a source that are wanted."""
        conditions: list[ColumnElement[bool] | TextClause] = [*conditions_of(wanted), *source.extra]
        if source.event_id is not None:
            # Read first: where PostgreSQL expects many of them, it may search all rows of an organization in order.
            mine = select(outbox.c.id).where(outbox.c.event_id == source.event_id)
            found = connection.execute(mine.limit(inline(EVENT_ROWS))).all()
            conditions.append(outbox.c.id.in_([row.id for row in found]))
        return conditions

    def _organizations(self, connection: Connection, source: Source) -> Sequence[Any] | None:
        """Return the organizations that an index holds, each looked up behind the one before; ``None``: too many."""
        each = outbox.c.organization_id

        def after(organization: Any) -> Any:
            behind = select(each).where(each > organization, *source.rows).order_by(each)
            return behind.limit(inline(1)).scalar_subquery()

        first = select(after("").label("organization"), literal(1).label("number"))
        found = first.cte("organizations_found", recursive=True)
        found = found.union_all(
            select(after(found.c.organization), found.c.number + 1).where(
                found.c.organization.is_not(None), found.c.number <= inline(ORGANIZATIONS)
            )
        )
        rows = connection.execute(select(found.c.organization).where(found.c.organization.is_not(None))).all()
        return None if len(rows) > ORGANIZATIONS else [row.organization for row in rows]

    def _newest_of_each(
        self, connection: Connection, query: Select[Any], organizations: Sequence[Any], limit: int
    ) -> Sequence[Row[Any]]:
        """Return the newest of the rows that a query finds, which is run for one organization after the other."""
        ids = query.with_only_columns(outbox.c.id)
        heads = self._ids_of_each(connection, ids, organizations, 1)
        # Whatever is among the newest belongs to one of these.
        leading = [organization for organization, _ in _newest(heads, limit)]
        # Mostly each has a few of the newest. One of which all that were read are among these may have more.
        some = max(1, min(limit, FIRST_SHARES * limit // max(1, len(leading))))
        found = self._ids_of_each(connection, ids, leading, some)
        newest = _newest(found, limit)
        shares = Counter(organization for organization, _ in newest)
        more = [organization for organization in leading if shares[organization] == some < limit]
        if more:
            found = [each for each in found if each[0] not in more]
            newest = _newest([*found, *self._ids_of_each(connection, ids, more, limit)], limit)
        return connection.execute(query.where(outbox.c.id.in_([row_id for _, row_id in newest]))).all()

    def _ids_of_each(
        self, connection: Connection, ids: Select[Any], organizations: Sequence[Any], limit: int
    ) -> list[tuple[Any, Any]]:
        """Return organizations, and ids that a query finds, the first of each organization."""
        sql = self._sql
        if sql.is_server:
            given = sql.values_table("organizations", organization=Text)
            mine = (
                ids.where(outbox.c.organization_id == given.c.organization).limit(inline(limit)).lateral("mine")
            )
            each = select(given.c.organization, mine.c.id).select_from(given.join(mine, true()))
            asked = sql.json_rows([{"organization": organization} for organization in organizations])
            return [
                (row.organization, row.id) for row in connection.execute(each, {"organizations": asked}).all()
            ]
        one = ids.where(outbox.c.organization_id == bindparam("organization", type_=Text)).limit(inline(limit))
        return [
            (organization, row.id)
            for organization in organizations
            for row in connection.execute(one, {"organization": organization}).all()
        ]

    def _count(self, connection: Connection, wanted: Filter, source: Source, limit: int) -> tuple[int, bool]:
        """Return how many rows of a source are wanted, and whether these are all."""
        bounds = search.id_bounds(wanted)
        conditions = self._conditions(connection, wanted, source)
        horizon = None
        if source.each_organization:
            if wanted.status != "dead":
                return _count_within(connection, wanted, source)
            conditions.append(FINISHED)  # which has an index of the state
        elif not source.whole:
            horizon = _horizon(connection, source, bounds, COUNTED_BACK)
            if horizon is not None:
                bounds.append(outbox.c.id >= horizon.id)
        rows = select(literal(1)).select_from(outbox).where(*conditions, *bounds).limit(inline(limit + 1))
        number = connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one()
        return number, horizon is None


def _newest(found: Sequence[tuple[Any, Any]], limit: int) -> list[tuple[Any, Any]]:
    """Return those of organizations and ids that have the newest ids."""
    return sorted(found, key=lambda each: each[1], reverse=True)[:limit]


def _count_within(connection: Connection, wanted: Filter, source: Source) -> tuple[int, bool]:
    """Count among a bounded number of the rows of an index, in any order; return whether these are all."""
    rows = source.rows if wanted.status is None else (LIVE,)
    names = [name for name in ("status", "error_class") if getattr(wanted, name) is not None]
    columns = [outbox.c[name] for name in (*names, "created_at")]
    bounds = search.id_bounds(wanted)
    seen = select(*columns).where(*rows, *bounds).limit(inline(COUNTED_BACK + 1)).subquery("seen")
    matches = [seen.c[name] == getattr(wanted, name) for name in names]
    if wanted.created_from is not None:
        matches.append(seen.c.created_at >= wanted.created_from)
    if wanted.created_before is not None:
        matches.append(seen.c.created_at < wanted.created_before)
    read, number = connection.execute(
        select(func.count(), func.count(case((and_(*matches), 1)))).select_from(seen)
    ).one()
    return number, read <= COUNTED_BACK


def _horizon(
    connection: Connection, source: Source, bounds: Sequence[ColumnElement[bool]], limit: int
) -> Row[Any] | None:
    """Return the last of the rows that a search reads of a source; ``None``: it reads all of them."""
    last = (
        select(outbox.c.id)
        .where(*conditions_of(source.served), *source.extra, *bounds)
        .order_by(outbox.c.id.desc())
        .offset(inline(limit - 1))
        .limit(inline(1))
    )
    rows = connection.execute(last).all()
    return rows[0] if rows else None


def merged(reads: Sequence[Read], limit: int, *, for_operators: bool) -> Page:
    """Return the newest rows of all sources, as far back as each of them was read, and where the next page begins."""
    horizons = [each.horizon for each in reads if each.horizon is not None]
    horizon = max(horizons, key=attrgetter("id"), default=None)
    rows = sorted((row for each in reads for row in each.rows), key=attrgetter("id"), reverse=True)
    if horizon is not None:
        rows = [row for row in rows if row.id >= horizon.id]
    following: str | None = None
    looked_back_to: int | None = None
    if len(rows) > limit:
        following = rows[limit - 1].id
    elif horizon is not None:
        following, looked_back_to = horizon.id, clock.time_of(horizon.id)
    return Page(
        rows=[delivery_of(row, for_operators=for_operators) for row in rows[:limit]],
        next_cursor=following,
        looked_back_to=looked_back_to,
    )
