"""All SQL of the queue.

The lease contract: `claim` gives each row to one claimant, with a token and for `CLAIM_SECONDS`. Only the
holder of the row's present token can write its outcome; a claim that has expired is given to the next
claimant under a new token, so a worker that wakes too late changes nothing. Taking over uses up no attempt,
but is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    String,
    Text,
    case,
    delete,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Origin
from flowactions_plugin.outbox.delivery import (
    CLAIM_SECONDS,
    FINISHED,
    LONGEST_WAIT_SECONDS,
    NewDelivery,
    Outcome,
    Transition,
    storable,
)
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import LIVE, attempts, outbox

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

_ORIGIN = msgspec.json.Decoder(Origin)
_HEADERS = msgspec.json.Decoder(list[tuple[str, str]])


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A row in the hands of one worker.

    Attributes:
        defect: why the row cannot be sent as it is stored, ``None`` when it can.
    """

    id: str
    token: str
    organization_id: str
    agent_id: str
    origin: Origin | None
    event_id: str
    event_type: str
    url: str
    destination: str
    method: str
    headers: list[tuple[str, str]]
    body: bytes | None
    attempts: int
    earlier_attempts: int
    max_attempts: int
    takeovers: int
    defect: str | None = None


class Completion(NamedTuple):
    """An attempt that was made, and what is to be written of it."""

    delivery: ClaimedDelivery
    outcome: Outcome
    change: Transition


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of an organization are meant; what is ``None`` does not matter.

    Attributes:
        ids: only these rows.
        agent_id: only this agent's rows.
        destination: only rows to this scheme, host and port.
        event_type: only rows of this type (§6.1).
        finished_from: only rows that ended at this time or later, Unix milliseconds.
        finished_before: only rows that ended before this time, Unix milliseconds.
    """

    ids: tuple[str, ...] | None = None
    agent_id: str | None = None
    destination: str | None = None
    event_type: str | None = None
    finished_from: int | None = None
    finished_before: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Give the SQL for it."""
        found: list[ColumnElement[bool]] = []
        if self.ids is not None:
            found.append(outbox.c.id.in_(self.ids))
        for name in ("agent_id", "destination", "event_type"):
            value = getattr(self, name)
            if value is not None:
                found.append(outbox.c[name] == value)
        if self.finished_from is not None:
            found.append(outbox.c.finished_at >= self.finished_from)
        if self.finished_before is not None:
            found.append(outbox.c.finished_at < self.finished_before)
        return found


class _Shares:
    """Rows chosen so far, and what each destination may still have."""

    def __init__(self, limit: int, per_destination: int, busy: Mapping[str, int]) -> None:
        self.limit = limit
        self.ids: list[str] = []
        self._per_destination = per_destination
        self._taken = Counter(busy)

    @property
    def left(self) -> int:
        return self.limit - len(self.ids)

    def room(self, destination: str) -> int:
        return self._per_destination - self._taken[destination]

    def take(self, rows: Sequence[Row[Any]]) -> None:
        for row in rows:
            if self.left and self.room(row.destination) > 0:
                self.ids.append(row.id)
                self._taken[row.destination] += 1


class OutboxStore:
    """The queue of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_destination = ""

    async def enqueue(self, delivery: NewDelivery, connection: AsyncConnection) -> None:
        """Write a row that is due now, within the caller's transaction (§3.1)."""
        now = self._database.now()
        row = {
            **msgspec.structs.asdict(delivery),
            "origin": msgspec.json.encode(delivery.origin).decode(),
            "headers": msgspec.json.encode(delivery.headers).decode(),
            "status": "pending",
            "attempts": 0,
            "earlier_attempts": 0,
            "takeovers": 0,
            "next_attempt_at": now,
            "created_at": now,
            "updated_at": now,
        }
        await connection.execute(insert(outbox).values(row))

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Have something called when what was enqueued on a connection is there for others."""
        self._database.after_commit(connection, call)

    async def claim(
        self, limit: int, *, per_destination: int | None = None, busy: Mapping[str, int] | None = None
    ) -> list[ClaimedDelivery]:
        """Claim up to ``limit`` rows that are due, oldest first (§8).

        Args:
            limit: how many at the most.
            per_destination: how many to one destination at the most, counted with those that are in flight.
                What is due elsewhere is then found behind any backlog, at a cost that does not grow with it.
            busy: how many are in flight to each destination.
        """
        now = self._database.now()
        async with self._database.write() as connection:
            if per_destination is None:
                due = _due(now, limit)
            else:
                shares = _Shares(limit, per_destination, busy or {})
                await self._share_out(connection, now, shares)
                if not shares.ids:
                    return []
                due = select(outbox.c.id).where(outbox.c.id.in_(shares.ids))
            # Apart, so that no plan can run it twice and claim more than the limit.
            chosen = due.cte("due")
            claimed = (
                update(outbox)
                .where(outbox.c.id.in_(select(chosen.c.id)))
                .values(
                    takeovers=outbox.c.takeovers
                    + outbox.c.claim_token.is_not(None).cast(outbox.c.takeovers.type),
                    claim_token=uuid4().hex,
                    next_attempt_at=now + int(CLAIM_SECONDS * 1000),
                    updated_at=now,
                )
                .returning(outbox)
            )
            rows = (await connection.execute(claimed)).all()
        return [_claimed(row) for row in sorted(rows, key=lambda row: row.id)]

    async def _share_out(self, connection: AsyncConnection, now: ColumnElement[int], shares: _Shares) -> None:
        """Choose rows so that no destination has more than its share, and lock them.

        Mostly the oldest rows suffice. When destinations that have their share hold the head of the queue, the
        next few destinations are asked one by one, going round, so that each of them has its turn.
        """
        look = 2 * shares.limit
        head = (await connection.execute(_due(now, look))).all()
        shares.take(head)
        if shares.left == 0 or len(head) < look:
            return
        places = [place for place in await self._next_destinations(connection) if shares.room(place)]
        if not places:
            return
        found: list[Row[Any]] = []
        for place in places:
            query = _due(now, shares.room(place)).where(outbox.c.destination == place)
            found += (await connection.execute(query)).all()
        shares.take(sorted(found, key=lambda row: (row.next_attempt_at, row.id)))

    async def _next_destinations(self, connection: AsyncConnection) -> Sequence[str]:
        """Go round the destinations that have live rows, a few at a time, by looking each up behind the last."""

        def after(place: Any) -> Any:
            return (
                select(outbox.c.destination)
                .where(LIVE, outbox.c.destination > place)
                .order_by(outbox.c.destination)
                .limit(_inline(1))
                .scalar_subquery()
            )

        first = select(after(self._last_destination).label("place"), literal(1).label("number"))
        found = first.cte("places", recursive=True)
        found = found.union_all(
            select(after(found.c.place), found.c.number + 1).where(
                found.c.place.is_not(None), found.c.number < _inline(DESTINATIONS_A_CLAIM)
            )
        )
        query = select(found.c.place).where(found.c.place.is_not(None))
        places = (await connection.execute(query)).scalars().all()
        # Past the last one, the round begins anew.
        self._last_destination = places[-1] if len(places) == DESTINATIONS_A_CLAIM else ""
        return places

    async def recall(self) -> int:
        """Bring back rows that wait longer than any rule lets them: the clock was set back after they were due.

        Returns:
            How many there were; they are due when a claim that may still hold has expired.
        """
        now = self._database.now()
        lost = (LIVE, outbox.c.next_attempt_at > now + int(LONGEST_WAIT_SECONDS * 1000))
        async with self._database.read() as connection:
            if (await connection.execute(select(outbox.c.id).where(*lost).limit(1))).first() is None:
                return 0
        recalled = (
            update(outbox).where(*lost).values(next_attempt_at=now + int(CLAIM_SECONDS * 1000), updated_at=now)
        )
        async with self._database.write() as connection:
            return (await connection.execute(recalled)).rowcount

    async def complete(self, completions: Sequence[Completion]) -> set[str]:
        """Write what came of attempts, of each if its claim still holds.

        Returns:
            The ids of those whose claim held. The others are in other workers' hands, and nothing of them was
            written.
        """
        now = self._database.now()
        done = self._database.table_of(
            "done",
            [_written(each) for each in completions],
            id=String,
            token=String,
            status=String,
            attempts=Integer,
            delay_ms=BigInteger,
            status_code=Integer,
            error=Text,
        )
        completed = (
            update(outbox)
            .where(outbox.c.id == done.c.id, outbox.c.claim_token == done.c.token)
            .values(
                status=done.c.status,
                attempts=done.c.attempts,
                takeovers=0,
                claim_token=None,
                next_attempt_at=now + done.c.delay_ms,
                last_status_code=done.c.status_code,
                last_error=done.c.error,
                updated_at=now,
                finished_at=case((done.c.status.in_(tuple(sorted(FINISHED))), now), else_=None),
            )
            .returning(outbox.c.id)
        )
        async with self._database.write() as connection:
            held = set((await connection.execute(completed)).scalars())
            log = [_logged(each) for each in completions if each.delivery.id in held]
            if log:
                # A log that holds this number already must not keep the outcome from being written.
                await connection.execute(self._database.insert_unless_there(attempts), log)
        return held

    async def bury(self, delivery: ClaimedDelivery, reason: str) -> bool:
        """End a claimed row without an attempt.

        Returns:
            Whether the claim still held.
        """
        now = self._database.now()
        buried = (
            update(outbox)
            .where(outbox.c.id == delivery.id, outbox.c.claim_token == delivery.token)
            .values(
                status="dead",
                claim_token=None,
                takeovers=0,
                last_error=storable(reason),
                updated_at=now,
                finished_at=now,
            )
        )
        async with self._database.write() as connection:
            return (await connection.execute(buried)).rowcount == 1

    async def release(self, delivery: ClaimedDelivery, delay_seconds: float) -> bool:
        """Give a claim back without an attempt; the row is due again after ``delay_seconds``.

        Returns:
            Whether the claim still held.
        """
        now = self._database.now()
        released = (
            update(outbox)
            .where(outbox.c.id == delivery.id, outbox.c.claim_token == delivery.token)
            .values(claim_token=None, next_attempt_at=now + int(delay_seconds * 1000), updated_at=now)
        )
        async with self._database.write() as connection:
            return (await connection.execute(released)).rowcount == 1

    async def retry(self, row_id: str, organization_id: str) -> bool:
        """Make a dead row of this organization due now (§4.3).

        Returns:
            Whether there was one.
        """
        now = self._database.now()
        requeued = (
            update(outbox)
            .where(
                outbox.c.id == row_id,
                outbox.c.organization_id == organization_id,
                outbox.c.status == _inline("dead"),
            )
            .values(status="pending", next_attempt_at=now, updated_at=now, finished_at=None)
        )
        async with self._database.write() as connection:
            return (await connection.execute(requeued)).rowcount == 1

    async def retry_many(
        self, organization_id: str, wanted: Filter, *, reset_attempts: bool, limit: int
    ) -> int:
        """Make dead rows of this organization due now, oldest first.

        Args:
            organization_id: the tenant.
            wanted: which of its dead rows.
            reset_attempts: whether the attempts made so far count no more, so that each row has all of its
                attempts again; if not, each gets one.
            limit: how many at the most.

        Returns:
            How many there were.
        """
        now = self._database.now()
        dead = (
            select(outbox.c.id)
            .where(
                outbox.c.organization_id == organization_id,
                outbox.c.status == _inline("dead"),
                *wanted.conditions(),
            )
            .order_by(outbox.c.id)
            .limit(_inline(limit))
            .with_for_update(skip_locked=True)
            .cte("dead")
        )
        requeued = (
            update(outbox)
            .where(outbox.c.id.in_(select(dead.c.id)), outbox.c.status == _inline("dead"))
            .values(status="pending", next_attempt_at=now, updated_at=now, finished_at=None)
        )
        if reset_attempts:
            requeued = requeued.values(
                attempts=0, earlier_attempts=outbox.c.earlier_attempts + outbox.c.attempts
            )
        async with self._database.write() as connection:
            # Counted, since SQLite's driver gives no row count for a statement that begins with WITH.
            return len((await connection.execute(requeued.returning(outbox.c.id))).all())

    async def prune(self, status: str, older_than_ms: int, limit: int) -> int:
        """Remove finished rows with their attempts, oldest first.

        Args:
            status: ``delivered`` or ``dead``.
            older_than_ms: only rows that finished longer ago than this.
            limit: how many at the most, so that nobody waits for the transaction.

        Returns:
            How many there were.
        """
        old = (
            outbox.c.status == _inline(status),
            outbox.c.finished_at.is_not(None),
            outbox.c.finished_at < self._database.now() - older_than_ms,
        )
        found = select(outbox.c.id).where(*old).order_by(outbox.c.finished_at).limit(_inline(limit))
        # Looked for without a lock: mostly there is nothing, and SQLite has one writer only.
        async with self._database.read() as connection:
            ids = (await connection.execute(found)).scalars().all()
        if ids:
            # A row that was retried meanwhile stays.
            gone = delete(outbox).where(outbox.c.id.in_(ids), *old).returning(outbox.c.id)
            async with self._database.write() as connection:
                removed = (await connection.execute(gone)).scalars().all()
                # Not left to the foreign key: SQLite heeds it only on connections that ask for it.
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(removed)))
        return len(ids)

    async def cancel(self, row_id: str, organization_id: str, reason: str) -> bool:
        """End a row of this organization that waits for its next attempt.

        Returns:
            Whether there was one; a row that is being sent just now does not wait.
        """
        now = self._database.now()
        cancelled = (
            update(outbox)
            .where(
                LIVE,
                outbox.c.id == row_id,
                outbox.c.organization_id == organization_id,
                outbox.c.claim_token.is_(None),
            )
            .values(status="dead", last_error=storable(reason), updated_at=now, finished_at=now)
        )
        async with self._database.write() as connection:
            return (await connection.execute(cancelled)).rowcount == 1

    async def page(
        self,
        organization_id: str,
        *,
        status: str | None,
        wanted: Filter,
        before: str | None,
        limit: int,
    ) -> Sequence[Row[Any]]:
        """List an organization's rows, newest first, without their bodies.

        Args:
            organization_id: the tenant.
            status: only rows in this state.
            wanted: only these.
            before: only rows older than the one with this id.
            limit: how many at the most.
        """
        conditions = [outbox.c.organization_id == organization_id, *wanted.conditions()]
        if status is not None:
            conditions.append(outbox.c.status == _inline(status))
        if before is not None:
            conditions.append(outbox.c.id < before)
        columns = [column for column in outbox.c if column.name not in {"body", "headers", "origin"}]
        query = select(*columns).where(*conditions).order_by(outbox.c.id.desc()).limit(_inline(limit))
        async with self._database.read() as connection:
            return (await connection.execute(query)).all()

    async def detail(self, row_id: str, organization_id: str) -> tuple[Row[Any], Sequence[Row[Any]]] | None:
        """Give a row of this organization with its attempts, ``None`` when there is none."""
        one = select(outbox).where(outbox.c.id == row_id, outbox.c.organization_id == organization_id)
        log = select(attempts).where(attempts.c.delivery_id == row_id).order_by(attempts.c.number)
        async with self._database.read() as connection:
            row = (await connection.execute(one)).one_or_none()
            return None if row is None else (row, (await connection.execute(log)).all())


def _written(completion: Completion) -> dict[str, Any]:
    delivery, outcome, change = completion
    return {
        "id": delivery.id,
        "token": delivery.token,
        "status": change.status,
        "attempts": delivery.attempts + 1,
        "delay_ms": int(change.delay_seconds * 1000),
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
    }


def _logged(completion: Completion) -> dict[str, Any]:
    delivery, outcome, _ = completion
    return {
        "delivery_id": delivery.id,
        "number": delivery.earlier_attempts + delivery.attempts + 1,
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
        "response": outcome.response,
    }


def _due(now: ColumnElement[int], limit: int) -> Select[Any]:
    """Choose and lock the oldest rows that are due."""
    return (
        select(outbox.c.id, outbox.c.destination, outbox.c.next_attempt_at)
        .where(LIVE, outbox.c.next_attempt_at <= now)
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(_inline(limit))
        .with_for_update(skip_locked=True)
    )


def _inline(value: Any) -> ColumnElement[Any]:
    """Write a value into the statement itself: PostgreSQL's plan for a statement depends on it."""
    return literal(value, literal_execute=True)


def _claimed(row: Row[Any]) -> ClaimedDelivery:
    origin, headers, defect = None, [], None
    try:
        origin, headers = _ORIGIN.decode(row.origin), _HEADERS.decode(row.headers)
    except msgspec.DecodeError as exc:
        defect = f"the stored row cannot be read: {exc}"
    return ClaimedDelivery(
        id=row.id,
        token=row.claim_token,
        organization_id=row.organization_id,
        agent_id=row.agent_id,
        event_id=row.event_id,
        event_type=row.event_type,
        origin=origin,
        url=row.url,
        destination=row.destination,
        method=row.method,
        headers=headers,
        body=row.body,
        attempts=row.attempts,
        earlier_attempts=row.earlier_attempts,
        max_attempts=row.max_attempts,
        takeovers=row.takeovers,
        defect=defect,
    )
