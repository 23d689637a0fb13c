"""The SQL of claims.

The lease contract: a claim gives each row to one claimant, with a token and for the lease. Only the holder of the row's
present token can write its outcome; a lease that has expired is reclaimed by the next claimant under a new token, so a
worker that wakes too late changes nothing. Reclaiming uses up no attempt, but is counted: a row that was reclaimed
`QUARANTINE_AFTER` times is claimed by `claim_quarantined` only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    LargeBinary,
    Row,
    Select,
    String,
    Text,
    bindparam,
    func,
    literal,
    null,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.outbox.claimed import COLUMNS, ClaimedDelivery, read_row
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import LIVE, QUARANTINE_AFTER, QUARANTINED, outbox
from flowactions_plugin.storage.text import raw_bytes, read_all, stored

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

CLAIM_BYTES: Final = 16 * 1024 * 1024
"""How much of bodies and headers a claim brings at the most, but always one row."""

WHOLE_SECONDS: Final = 1.0
"""How often a claim looks at the queue's whole index."""

BEHIND_MS: Final = 1000
"""How far behind the oldest row of the claim before the others begin to look.

PostgreSQL keeps the index entries of rows that were claimed until it vacuums. Claims that began at the very oldest would
walk over all of them."""


class Claims:
    """Claims rows of one database.

    Args:
        database: the queue's.
        lease_seconds: how long a claim holds.
    """

    def __init__(self, database: Database, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._last_destination = ""
        self._since = 0
        self._whole_at = 0.0
        # Built once for each dialect: building a statement costs more than running it.
        self._statements: dict[tuple[str, int, int | None], Executable] = {}

    async def claim(
        self, limit: int, per_destination: int | None, busy: Mapping[str, int]
    ) -> list[ClaimedDelivery]:
        """Claim rows that are due; see `OutboxStore.claim`."""
        # Before the statement: while its answer is on the way, the lease runs.
        lease_end = lease_clock() + self._lease_seconds
        token = uuid4().hex
        if per_destination is None:
            rows = await self._claim((limit, None), {"token": token})
        else:
            # Of a few sizes only, so that the database has planned them before.
            look = 1 << (2 * limit - 1).bit_length()
            held = [{"destination": place, "number": number} for place, number in busy.items()]
            given = {"token": token, "limit": limit, "busy": self._database.rows(held)}
            rows = await self._claim((look, per_destination), given)
            taken = Counter(busy)
            taken.update(row.destination for row in rows)
            if len(rows) <= limit // 2 and any(count >= per_destination for count in taken.values()):
                room = CLAIM_BYTES - sum(_size_of(row) for row in rows)
                if room > 0:
                    rows += await self._claim_elsewhere(limit - len(rows), per_destination, taken, token, room)
        return sorted((read_row(row, lease_end) for row in rows), key=lambda each: str(each.id))

    async def _claim(self, kind: tuple[int, int | None], given: Mapping[str, Any]) -> list[Row[Any]]:
        name = (self._database.dialect, *kind)
        if name not in self._statements:
            eligible = _eligible(self._database, *kind)
            self._statements[name] = _taken(self._database, eligible, self._lease_seconds)
        now = time.monotonic()
        if now > self._whole_at:
            self._since, self._whole_at = 0, now + WHOLE_SECONDS
        statement, parameters = self._statements[name], {**given, "since": self._since}
        rows = await self._database.at_once(lambda connection: read_all(connection, statement, parameters))
        if rows and self._database.dialect == "postgresql":
            self._since = min(row.due_at for row in rows) - BEHIND_MS
        return rows

    async def _claim_elsewhere(
        self, limit: int, per_destination: int, taken: Mapping[Any, int], token: str, room: int
    ) -> list[Row[Any]]:
        """Claim behind destinations that have their share and hold the head of the queue.

        The next few destinations are asked one by one, going round, so that each of them has its turn.
        """
        now = self._database.now()
        async with self._database.write() as connection:
            found: list[Row[Any]] = []
            for place in await self._next_destinations(connection):
                free = per_destination - taken.get(place, 0)
                if free > 0:
                    query = _due(self._database, now, free).where(outbox.c.destination == stored(place))
                    found += await connection.run_sync(read_all, query)
            found.sort(key=lambda row: (row.next_attempt_at, raw_bytes(row.id)))
            ids: list[Any] = []
            for row in found[:limit]:
                room -= row.size
                if ids and room < 0:
                    break
                ids.append(stored(row.id))
            if not ids:
                return []
            chosen = select(outbox.c.id, outbox.c.next_attempt_at).where(outbox.c.id.in_(ids))
            statement = _taken(self._database, chosen, self._lease_seconds)
            return await connection.run_sync(read_all, statement, {"token": token})

    async def _next_destinations(self, connection: AsyncConnection) -> Sequence[str]:
        """Go round the destinations that have live rows, a few at a time, by looking each up behind the last."""

        def after(place: Any) -> Any:
            return (
                select(outbox.c.destination)
                .where(LIVE, outbox.c.destination > place)
                .order_by(outbox.c.destination)
                .limit(inline(1))
                .scalar_subquery()
            )

        first = select(after(stored(self._last_destination)).label("place"), literal(1).label("number"))
        found = first.cte("places", recursive=True)
        found = found.union_all(
            select(after(found.c.place), found.c.number + 1).where(
                found.c.place.is_not(None), found.c.number < inline(DESTINATIONS_A_CLAIM)
            )
        )
        query = select(found.c.place).where(found.c.place.is_not(None))
        places = [row.place for row in await connection.run_sync(read_all, query)]
        # Past the last one, the round begins anew.
        self._last_destination = places[-1] if len(places) == DESTINATIONS_A_CLAIM else ""
        return places

    async def any_quarantined(self) -> bool:
        """Tell whether a row is due that may be sent in quarantine only."""
        async with self._database.read() as connection:
            return bool(await connection.run_sync(read_all, self._database.built(_quarantined)))

    async def claim_quarantined(self) -> ClaimedDelivery | None:
        """Claim the oldest row that may be sent in quarantine only, if one is due."""
        lease_end = lease_clock() + self._lease_seconds
        # It is not counted how often such a row is reclaimed: how often it was begun is.
        chosen = self._database.built(_quarantined)
        if self._database.dialect == "postgresql":
            chosen = chosen.with_for_update(skip_locked=True)
        statement = _taken(self._database, chosen, self._lease_seconds, count=False)
        parameters = {"token": uuid4().hex}
        rows = await self._database.at_once(lambda connection: read_all(connection, statement, parameters))
        return read_row(rows[0], lease_end) if rows else None

    async def begin_quarantined(self, delivery: ClaimedDelivery) -> bool:
        """Count a round in quarantine as begun, before its request leaves.

        Returns:
            Whether the claim still held.
        """
        begun = (
            update(outbox)
            .where(outbox.c.id == delivery.id, outbox.c.claim_token == delivery.token)
            # Not one more than there are: a repeated write counts once.
            .values(quarantine_rounds=delivery.quarantine_rounds + 1, updated_at=self._database.now())
            .returning(outbox.c.id)
        )
        return bool(await self._database.at_once(lambda connection: connection.execute(begun).all()))


def inline(value: Any) -> ColumnElement[Any]:
    """Write a value into the statement itself: PostgreSQL's plan for a statement depends on it."""
    return literal(value, literal_execute=True)


def _eligible(database: Database, look: int, per_destination: int | None) -> Select[Any]:
    """Choose the oldest rows that are due, within `CLAIM_BYTES` and each destination's share.

    Args:
        database: where.
        look: how many due rows are looked at.
        per_destination: the share, of which the parameter ``busy`` says how much is used; ``None``: all there is.
    """
    due = _due(database, database.now(), look)
    if per_destination is None:
        return _within_bytes(due)
    if database.dialect == "postgresql":
        due = due.where(outbox.c.next_attempt_at >= bindparam("since", type_=BigInteger))
    head = due.cte("head")
    busy = database.table_of("busy", destination=Text, number=Integer)
    order = (head.c.next_attempt_at, head.c.id)
    place = func.row_number().over(partition_by=head.c.destination, order_by=order)
    used = func.coalesce(busy.c.number, 0)
    ranked = (
        select(head.c.id, head.c.next_attempt_at, head.c.size, (place + used).label("place"))
        .join_from(head, busy, busy.c.destination == head.c.destination, isouter=True)
        .cte("ranked")
    )
    return _within_bytes(
        select(ranked.c.id, ranked.c.next_attempt_at, ranked.c.size)
        .where(ranked.c.place <= per_destination)
        .order_by(ranked.c.next_attempt_at, ranked.c.id)
        .limit(bindparam("limit", type_=Integer))
    )


def _within_bytes(rows: Select[Any]) -> Select[Any]:
    """Keep the first rows whose sizes together are within `CLAIM_BYTES`, and the first in any case."""
    each = rows.cte("sized")
    before = func.sum(each.c.size).over(order_by=(each.c.next_attempt_at, each.c.id), rows=(None, -1))
    total = select(each.c.id, each.c.next_attempt_at, each.c.size, before.label("before")).cte("summed")
    fits = total.c.before + total.c.size <= inline(CLAIM_BYTES)
    return select(total.c.id, total.c.next_attempt_at).where(total.c.before.is_(None) | fits)


def _due(database: Database, now: ColumnElement[int], limit: int) -> Select[Any]:
    """Choose and lock the oldest rows that are due."""
    return (
        select(outbox.c.id, outbox.c.destination, outbox.c.next_attempt_at, _size(database))
        .where(LIVE, outbox.c.takeovers < inline(QUARANTINE_AFTER), outbox.c.next_attempt_at <= now)
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(limit))
        .with_for_update(skip_locked=True)
    )


def _size(database: Database) -> ColumnElement[int]:
    """Give about how many bytes a row's body and headers take, without reading them."""
    length = func.octet_length if database.dialect == "postgresql" else func.length
    body = length(type_coerce(outbox.c.body, LargeBinary), type_=Integer)
    return (func.coalesce(body, 0) + length(outbox.c.headers, type_=Integer)).label("size")


def _quarantined(database: Dialect) -> Any:
    """Choose the oldest row that is due and may be sent in quarantine only."""
    if database.dialect == "sqlite":
        # Left to itself, SQLite searches the index of all rows that are due.
        chosen = text(
            f"SELECT id, next_attempt_at FROM {outbox.name} INDEXED BY ix_flowactions_outbox_quarantined"  # noqa: S608  names of ours only
            f" WHERE {QUARANTINED.text} AND next_attempt_at <= :now ORDER BY next_attempt_at, id LIMIT 1"
        )
        now: Any = database.now()
        return chosen.bindparams(now).columns(outbox.c.id, outbox.c.next_attempt_at)
    return (
        select(outbox.c.id, outbox.c.next_attempt_at)
        .where(QUARANTINED, outbox.c.next_attempt_at <= database.now())
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(1))
    )


def _taken(
    database: Database, eligible: Select[Any], lease_seconds: float, *, count: bool = True
) -> Executable:
    """Claim rows under the token of the parameter ``token``.

    Args:
        database: where.
        eligible: which rows.
        lease_seconds: for how long.
        count: whether reclaiming is counted.
    """
    now = database.now()
    # Apart, so that no plan can run it twice and claim more than the limit.
    chosen = eligible.cte("due")
    # As the driver gives them: on SQLite there may be anything in any column.
    given: list[ColumnElement[Any]] = [type_coerce(outbox.c[name], NullType()).label(name) for name in COLUMNS]
    # SQLite can give nothing of the rows as they were.
    given.append(chosen.c.next_attempt_at.label("due_at") if database.dialect == "postgresql" else null())
    taken = update(outbox).where(outbox.c.id == chosen.c.id)
    if count:
        expired = outbox.c.claim_token.is_not(None).cast(outbox.c.takeovers.type)
        taken = taken.values(takeovers=outbox.c.takeovers + expired)
    return taken.values(
        claim_token=bindparam("token", type_=String),
        next_attempt_at=now + int(lease_seconds * 1000),
        updated_at=now,
    ).returning(*given)


def _size_of(row: Row[Any]) -> int:
    return sum(len(value) for value in (row.body, row.headers) if isinstance(value, str | bytes))
