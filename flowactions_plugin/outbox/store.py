"""The queue of one database: enqueue, claim, complete.

The lease contract is in `outbox.claims`, the statements that end claims are in `outbox.outcomes`. Operators list, retry and
cancel through `outbox.queries`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import msgspec
from sqlalchemy import Executable, Row, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.errors import RowInvalid
from flowactions_plugin.outbox import claims, outcomes
from flowactions_plugin.outbox.claimed import ClaimedDelivery, Completion, Return, read_row
from flowactions_plugin.outbox.group_commit import Group, GroupCommit
from flowactions_plugin.outbox.rules import CLAIM_SECONDS, NewDelivery
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import NO_AGENT, attempts, outbox
from flowactions_plugin.storage.text import is_text, raw_bytes, read_all, stored

T = TypeVar("T")

FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds between claims that search the whole index of rows that are due."""

SCAN_MARGIN: Final = 1000
"""Milliseconds before the due time of the oldest row of the last claim, where the other claims begin to search.

PostgreSQL keeps the index entries of claimed rows until it vacuums. Claims that began at the oldest entry would read all of
them."""

LEAST_WINDOW: Final = 32
"""How many due rows a claim examines at least."""

ELSEWHERE_SECONDS: Final = 0.1
"""Seconds without a look behind the destinations that hold the head of the queue, after a look that has found nothing."""

ROW_ERRORS: Final = ("22", "23")
"""SQLSTATE classes of errors about a value of one row, which say nothing about the other rows."""


GROUP_WORKS: Final = 32
"""Callers with keys that share a transaction at the most. Each has statements of its own, during which it holds locks."""

GROUP_LOCK_MS: Final = 100
"""How long a transaction of several callers waits for a lock on PostgreSQL. It is less than the server takes to find a
deadlock, so that it is this transaction that gives way."""


class _Work(Generic[T]):
    """What a caller writes with its row.

    Attributes:
        order: what is locked first.
        size: the bytes of the row.
        run: executes the statements.
        result: what ``run`` returned last.
    """

    __slots__ = ("order", "result", "run", "size")

    result: T

    def __init__(
        self, order: tuple[str, ...], size: int, run: Callable[[AsyncConnection], Awaitable[T]]
    ) -> None:
        self.order = order
        self.size = size
        self.run = run


class OutboxStore:
    """The queue of one database.

    Args:
        database: where it is.
        lease_seconds: how long a claim holds.
    """

    def __init__(self, database: Database, lease_seconds: float = CLAIM_SECONDS) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._last_destination = ""
        self._elsewhere_at = 0.0
        self._organizations_at = 0.0
        self._last_organization: Any = None
        self._crowded = True
        self._scan_from = 0
        self._full_scan_at = 0.0
        # Built once for each dialect: building a statement costs more than running it.
        self._groups = GroupCommit(
            self._enqueue_group, _row_bytes, is_interruptible=lambda: database.dialect != "sqlite"
        )
        self._works = GroupCommit(
            self._run_group,
            lambda work: work.size,
            is_interruptible=lambda: database.dialect != "sqlite",
            rows=GROUP_WORKS,
        )
        self._claiming: dict[tuple[str, int, int | None, int], Executable] = {}

    async def enqueue(self, delivery: NewDelivery, connection: AsyncConnection | None) -> None:
        """Write a row that is due now (§3.1), within the caller's transaction.

        Args:
            delivery: the row.
            connection: the transaction's; ``None``: one of the plugin's own, which rows of other callers may share.
                This returns when it has committed.
        """
        row = msgspec.structs.asdict(delivery)
        row["agent_id"] = delivery.agent_id or NO_AGENT
        row["flow_id"], row["node_id"] = delivery.place
        row["origin"] = msgspec.json.encode(delivery.origin).decode()
        row["headers"] = msgspec.json.encode(delivery.headers).decode()
        if connection is None:
            await self._groups.write(row)
        else:
            async with self._database.write(connection) as joined:
                await joined.execute(self._database.built(_enqueuing), row)

    async def together(
        self, order: tuple[str, ...], size: int, run: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        """Run what a caller writes with its row in a transaction of the plugin's own, which other callers may share.

        Args:
            order: what is locked first; callers that share a transaction lock in this order.
            size: the bytes of the row.
            run: executes the statements. It may be run again, after a rollback.

        Returns:
            What ``run`` returned, when the transaction has committed.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
            Exception: what ``run`` raised; nothing was written.
        """
        work = _Work(order, size, run)
        await self._works.write(work)
        return work.result

    async def _run_group(self, group: Group[_Work[Any]]) -> None:
        async with self._database.write(deadline=group.deadline) as connection:
            works = sorted(group.begin(), key=lambda work: work.order)
            if len(works) > 1:
                # Another transaction may hold one of the keys for long. Then each caller waits for its own key only.
                await self._database.limit_lock_waits(connection, GROUP_LOCK_MS)
            for work in works:
                work.result = await work.run(connection)

    async def _enqueue_group(self, group: Group[dict[str, Any]]) -> None:
        """Write the rows of several callers in one transaction: PostgreSQL gets them as one."""
        statement = self._database.built(_enqueuing)

        def write(connection: Connection) -> None:
            rows = group.begin()
            if rows:
                connection.execute(statement, rows if len(rows) > 1 else rows[0])

        await self._database.in_transaction(write, group.deadline)

    def transaction(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction, or join the caller's."""
        return self._database.write(connection)

    def reading(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a connection for reading, or read in the caller's transaction."""
        return self._database.read(connection)

    def using(self, transaction: AsyncConnection | None) -> AbstractContextManager[None]:
        """Keep a host's transaction for one call."""
        return self._database.using(transaction)

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Call a function once what was enqueued on a connection is visible to others."""
        self._database.after_commit(connection, call)

    async def claim(
        self,
        limit: int,
        *,
        per_destination: int | None = None,
        in_flight: Mapping[str, int] | None = None,
        look_elsewhere: bool = False,
    ) -> list[ClaimedDelivery]:
        """Claim up to ``limit`` rows that are due, oldest first (§8).

        Args:
            limit: how many at the most.
            per_destination: how many to one destination at the most, counted with those that are in flight.
                Rows to other destinations are then found behind any backlog, at a cost that does not grow with it, and
                organizations take turns.
            in_flight: how many are in flight to each destination.
            look_elsewhere: whether something was enqueued since the claim before: then rows behind a backlog are looked
                for, although the last look has found none.
        """
        if look_elsewhere:
            self._elsewhere_at = self._organizations_at = 0.0
        # Before the statement: the lease runs while its answer is on the way.
        lease_end = lease_clock() + self._lease_seconds
        token = uuid4().hex
        if per_destination is None:
            rows = await self._claim((limit, None), {"token": token})
        else:
            rows = await self._claim_within_limits(limit, per_destination, in_flight or {}, token)
        return sorted((read_row(row, lease_end) for row in rows), key=lambda each: str(each.id))

    async def _claim_within_limits(
        self, limit: int, per_destination: int, in_flight: Mapping[str, int], token: str
    ) -> list[Row[Any]]:
        """Claim rows within the per-destination limit.

        When few of the oldest rows are within it, destinations at their limit may hold the head of the queue: then rows
        behind them are claimed too.
        """
        # A power of two, so that few statements differ, and the database has planned them before.
        window = 1 << (max(limit, LEAST_WINDOW) - 1).bit_length()
        held = [{"destination": place, "number": number} for place, number in in_flight.items()]
        given = {"token": token, "limit": limit, "in_flight": self._database.json_rows(held)}
        turns = await self._next_organizations() if self._crowded else []
        turn = claims.turn_rows(limit, len(turns)) if turns else 0
        if turn and self._database.dialect == "postgresql":
            given["organizations"] = self._database.json_rows([{"place": place} for place in turns])
        rows = await self._claim((window, per_destination), given, turns, turn)
        used = Counter(in_flight)
        used.update(row.destination for row in rows)
        at_limit = any(count >= per_destination for count in used.values())
        self._crowded = at_limit or len(rows) >= limit
        if len(rows) <= limit // 2 and at_limit and time.monotonic() >= self._elsewhere_at:
            room = claims.CLAIM_BYTES - sum(claims.size_of(row) for row in rows)
            if room > 0:
                rows += await self._claim_elsewhere(limit - len(rows), per_destination, used, token, room)
        return rows

    async def _next_organizations(self) -> Sequence[str]:
        """Return the organizations that have their turn in the next claim; none when there are not several.

        Where there are more than have their turn in one claim, the next claims go on behind them.
        """
        if time.monotonic() < self._organizations_at:
            return []
        query = claims.next_organizations(self._last_organization)

        def read(connection: Connection) -> list[Row[Any]]:
            return read_all(connection, query)

        async with self._database.read() as connection:
            places = [row.place for row in await connection.run_sync(read)]
        whole = self._last_organization is None and len(places) < claims.ORGANIZATIONS_A_CLAIM
        self._last_organization = places[-1] if len(places) == claims.ORGANIZATIONS_A_CLAIM else None
        if whole and len(places) < 2:
            self._organizations_at = time.monotonic() + ELSEWHERE_SECONDS
            return []
        # Any other text could not be a parameter; such a row waits for its place in the queue.
        return [place for place in places if is_text(place)]

    async def _claim(
        self,
        kind: tuple[int, int | None],
        given: Mapping[str, Any],
        turns: Sequence[str] = (),
        turn: int = 0,
    ) -> list[Row[Any]]:
        name = (self._database.dialect, *kind, turn)
        if name not in self._claiming:
            eligible = claims.eligible(self._database, *kind, turn)
            self._claiming[name] = claims.claiming(self._database, eligible, self._lease_seconds)
        now = time.monotonic()
        if now > self._full_scan_at:
            self._scan_from, self._full_scan_at = 0, now + FULL_SCAN_INTERVAL
        statement, parameters = self._claiming[name], {**given, "since": self._scan_from}

        def claim(connection: Connection) -> list[Row[Any]]:
            if turn and self._database.dialect == "sqlite":
                parameters["turns"] = self._turn_ids(connection, turns, turn)
            return read_all(connection, statement, parameters)

        rows = await self._database.in_transaction(claim)
        if rows and self._database.dialect == "postgresql":
            self._scan_from = min(row.due_at for row in rows) - SCAN_MARGIN
        return rows

    def _turn_ids(self, connection: Connection, turns: Sequence[str], rows: int) -> str:
        """Return the ids of the oldest rows of some organizations on SQLite, for a claim in the same transaction."""
        name = ("turn", 0, None, rows)
        if name not in self._claiming:
            self._claiming[name] = claims.turn_of(self._database, rows)
        query = self._claiming[name]
        found = [row.id for place in turns for row in read_all(connection, query, {"place": place})]
        # Any other id could not be a parameter; such a row waits for its place in the queue.
        return self._database.json_rows([{"id": each} for each in found if is_text(each)])

    async def _claim_elsewhere(
        self, limit: int, per_destination: int, used: Mapping[Any, int], token: str, room: int
    ) -> list[Row[Any]]:
        """Claim rows behind the destinations that have reached their limit and hold the head of the queue.

        The next few destinations are asked one by one, in turn over the claims.
        """
        now = self._database.now()
        async with self._database.write() as connection:
            found: list[Row[Any]] = []
            places = await self._next_destinations(connection)
            for place in places:
                free = per_destination - used.get(place, 0)
                if free > 0:
                    due = claims.due_rows(self._database, now, free)
                    query = due.where(outbox.c.destination == stored(place))
                    found += await connection.run_sync(read_all, query)
            found.sort(key=lambda row: (row.next_attempt_at, raw_bytes(row.id)))
            ids: list[Any] = []
            for row in found[:limit]:
                room -= row.size
                if ids and room < 0:
                    break
                ids.append(stored(row.id))
            if not ids:
                if len(places) < claims.DESTINATIONS_A_CLAIM:
                    # All of them: without an enqueue there is nothing for a while, retries apart.
                    self._elsewhere_at = time.monotonic() + ELSEWHERE_SECONDS
                return []
            chosen = select(outbox.c.id, outbox.c.next_attempt_at).where(outbox.c.id.in_(ids))
            statement = claims.claiming(self._database, chosen, self._lease_seconds)
            return await connection.run_sync(read_all, statement, {"token": token})

    async def _next_destinations(self, connection: AsyncConnection) -> Sequence[str]:
        """Return the next few destinations that have live rows, beginning anew after the last."""
        query = claims.next_destinations(self._last_destination)
        places = [row.place for row in await connection.run_sync(read_all, query)]
        self._last_destination = places[-1] if len(places) == claims.DESTINATIONS_A_CLAIM else ""
        return places

    async def any_quarantined(self) -> bool:
        """Return whether a row is due that may be sent in quarantine only."""
        async with self._database.read() as connection:
            return bool(await connection.run_sync(read_all, self._database.built(claims.quarantined)))

    async def claim_quarantined(self) -> ClaimedDelivery | None:
        """Claim the oldest row that may be sent in quarantine only, if one is due."""
        lease_end = lease_clock() + self._lease_seconds
        chosen = self._database.built(claims.quarantined)
        if self._database.dialect == "postgresql":
            chosen = chosen.with_for_update(skip_locked=True)
        # Of such a row, the rounds that were begun are counted, and not the reclaims.
        statement = claims.claiming(self._database, chosen, self._lease_seconds, count_reclaims=False)
        parameters = {"token": uuid4().hex}
        rows = await self._database.in_transaction(
            lambda connection: read_all(connection, statement, parameters)
        )
        return read_row(rows[0], lease_end) if rows else None

    async def begin_quarantined(self, delivery: ClaimedDelivery) -> bool:
        """Count a round in quarantine as begun, before its request leaves.

        Returns:
            Whether the claim still held.
        """
        begun = (
            update(outbox)
            .where(outbox.c.id == delivery.id, outbox.c.claimed_by == delivery.token)
            # From the value that was claimed: a repeated write counts once.
            .values(quarantine_rounds=delivery.quarantine_rounds + 1, updated_at=self._database.now())
            .returning(outbox.c.id)
        )
        return bool(await self._database.in_transaction(lambda connection: connection.execute(begun).all()))

    async def rescue(self) -> int:
        """Make rows due that wait longer, or are held longer, than any rule lets them.

        The clock was set back after they were scheduled or claimed.

        Returns:
            How many there were; they are due when a claim that may still hold has expired.
        """
        rescued = 0
        for lost, rescuing in self._database.built(claims.rescuing):
            async with self._database.read() as connection:
                if (await connection.execute(lost)).first() is None:
                    continue
            parameters = {"lease_ms": int(self._lease_seconds * 1000)}
            async with self._database.write() as connection:
                rescued += (await connection.execute(rescuing, parameters)).rowcount
        return rescued

    async def complete(self, completions: Sequence[Completion]) -> set[str]:
        """Write the outcomes of attempts, and the ends without one, of each row whose claim still holds.

        It can be repeated when its answer was lost: then it finds what the first try wrote.

        Returns:
            The ids of those whose claim held. Other workers have claimed the others, of which nothing was written.

        Raises:
            RowInvalid: an outcome cannot be stored, and none was.
        """
        nameless = [each for each in completions if not is_text(each.delivery.id)]
        held = {each.delivery.id for each in nameless if await self._end_nameless(each)}
        named = [each for each in completions if is_text(each.delivery.id)]
        if not named:
            return held
        dialect = self._database.dialect
        logs = any(outcomes.is_logged(each) for each in named)
        completing = self._database.built(outcomes.completing if logs else outcomes.completing_unlogged)
        values = [outcomes.completion_values(each, dialect) for each in named]
        given = {"done": self._database.json_rows(values)}

        def write(connection: Connection) -> set[str]:
            updated = set(connection.execute(completing, given).scalars())
            if dialect == "sqlite":
                self._log(connection, [each for each in named if each.delivery.id in updated])
            return updated

        try:
            held |= await self._database.in_transaction(write)
        except DBAPIError as exc:
            if not str(getattr(exc.orig, "sqlstate", "")).startswith(ROW_ERRORS):
                raise
            raise RowInvalid(f"its outcome cannot be stored: {type(exc.orig).__name__}") from exc
        if len(held) < len(completions):
            held |= {row.id for row in await self._settled([each.delivery for each in named])}
        return held

    def _log(self, connection: Connection, written: Sequence[Completion]) -> None:
        """Write on SQLite what its one statement for outcomes cannot."""
        made = [outcomes.attempt_values(each) for each in written if outcomes.is_logged(each)]
        if made:
            # A log that holds this number already must not keep the outcome from being written.
            connection.execute(self._database.insert_unless_there(attempts), made)
        kept = [
            {"row": each.delivery.id, "by": each.delivery.token, "kept": each.outcome.response}
            for each in written
            if each.change.status == "delivered" and outcomes.response_text(each.outcome.response) is None
        ]
        if kept:
            connection.execute(outcomes.keeping_response(), kept)

    async def give_back(self, returns: Sequence[Return]) -> dict[str, str]:
        """Give claims back without an attempt, of each row whose claim still holds.

        Returns:
            The state of each row whose claim held: as it was, or ``dead`` for one that waited too long.
        """
        rows = [outcomes.return_values(each) for each in returns if is_text(each.delivery.id)]
        if not rows:
            return {}
        given = {"given": self._database.json_rows(rows)}
        giving_back = self._database.built(outcomes.giving_back)
        found: list[Any] = await self._database.in_transaction(
            lambda connection: list(connection.execute(giving_back, given).all())
        )
        if len(found) < len(rows):
            found += [*await self._settled([each.delivery for each in returns])]
        return {row.id: row.status for row in found}

    async def release(self, deliveries: Sequence[ClaimedDelivery], delay_seconds: float = 0.0) -> int:
        """Give claims back without an attempt; the rows are due again after ``delay_seconds``.

        Returns:
            How many claims still held.
        """
        return len(await self.give_back([Return(each, delay_seconds) for each in deliveries]))

    async def _settled(self, deliveries: Sequence[ClaimedDelivery]) -> list[Any]:
        """Return rows that were settled under their claims' tokens: an earlier try wrote them, and its answer was lost."""
        tokens = {each.id: each.token for each in deliveries if is_text(each.id)}
        query = select(outbox.c.id, outbox.c.status, outbox.c.settled_token).where(outbox.c.id.in_(tokens))
        rows: Sequence[Any] = await self._database.in_transaction(
            lambda connection: connection.execute(query).all()
        )
        return [row for row in rows if row.settled_token == tokens[row.id]]

    async def _end_nameless(self, completion: Completion) -> bool:
        ended, written = outcomes.ending_nameless(self._database, completion)

        def write(connection: Connection) -> bool:
            return connection.execute(ended).rowcount == 1 or connection.execute(written).first() is not None

        return await self._database.in_transaction(write)


def _row_bytes(row: Mapping[str, Any]) -> int:
    return len(row["body"] or b"") + len(row["headers"]) + len(row["url"])


def _enqueuing(database: Dialect) -> Executable:
    now = database.now()
    # A row that is written again is the same row.
    return database.insert_unless_there(outbox).values(
        status="pending",
        attempts=0,
        earlier_attempts=0,
        takeovers=0,
        next_attempt_at=now,
        created_at=now,
        updated_at=now,
    )
