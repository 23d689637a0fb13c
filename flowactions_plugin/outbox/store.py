"""All SQL of the queue.

The lease contract: `claim` gives each row to one claimant, with a token and for `CLAIM_SECONDS`. Only the
holder of the row's present token can write its outcome; a claim that has expired is given to the next
claimant under a new token, so a worker that wakes too late changes nothing. Taking over uses up no attempt,
but is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Row,
    Select,
    String,
    Text,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.engine import Connection as SyncConnection
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
WHOLE_SECONDS: Final = 1.0
"""How often a claim looks at the queue's whole index."""

BEHIND_MS: Final = 1000
"""How far behind the oldest row of the claim before the others begin to look.

PostgreSQL keeps the index entries of rows that were claimed until it vacuums. Claims that began at the very oldest would
walk over all of them."""

_CLAIMED = (
    *(
        "id",
        "claim_token",
        "organization_id",
        "agent_id",
        "event_id",
        "event_type",
        "origin",
        "url",
        "destination",
    ),
    *("method", "headers", "body", "attempts", "earlier_attempts", "max_attempts", "takeovers"),
)
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


class OutboxStore:
    """The queue of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_destination = ""
        # Built once: building a statement costs more than running it.
        self._enqueued = _enqueued(database)
        self._completed = _completed(database)
        self._since = 0
        self._whole_at = 0.0
        self._claims: dict[tuple[int, int | None], Executable] = {}

    async def enqueue(self, delivery: NewDelivery, connection: AsyncConnection | None) -> None:
        """Write a row that is due now (§3.1), within the caller's transaction; ``None``: in one of its own."""
        row = msgspec.structs.asdict(delivery)
        row["origin"] = msgspec.json.encode(delivery.origin).decode()
        row["headers"] = msgspec.json.encode(delivery.headers).decode()
        if connection is None:
            await self._database.at_once(lambda own: own.execute(self._enqueued, row))
        else:
            async with self._database.write(connection) as joined:
                await joined.execute(self._enqueued, row)

    def check_transaction(self, transaction: AsyncConnection | None) -> None:
        """Raise `TransactionInvalid` unless a host's transaction can be joined."""
        self._database.check_transaction(transaction)

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
        token = uuid4().hex
        if per_destination is None:
            rows = await self._claim((limit, None), {"token": token})
        else:
            # Of a few sizes only, so that the database has planned them before.
            look = 1 << (2 * limit - 1).bit_length()
            held = [{"destination": place, "number": number} for place, number in (busy or {}).items()]
            given = {"token": token, "limit": limit, "busy": self._database.rows(held)}
            rows = await self._claim((look, per_destination), given)
            taken = Counter(busy or {})
            taken.update(row.destination for row in rows)
            if len(rows) <= limit // 2 and any(count >= per_destination for count in taken.values()):
                rows += await self._claim_elsewhere(limit - len(rows), per_destination, taken, token)
        return [_claimed(row) for row in sorted(rows, key=lambda row: row.id)]

    async def _claim(self, kind: tuple[int, int | None], given: Mapping[str, Any]) -> list[Row[Any]]:
        if kind not in self._claims:
            self._claims[kind] = _taken(self._database, _eligible(self._database, *kind))
        now = time.monotonic()
        if now > self._whole_at:
            self._since, self._whole_at = 0, now + WHOLE_SECONDS
        statement, parameters = self._claims[kind], {**given, "since": self._since}
        rows = await self._database.at_once(lambda connection: connection.execute(statement, parameters).all())
        if rows and self._database.dialect == "postgresql":
            self._since = min(row.due_at for row in rows) - BEHIND_MS
        return list(rows)

    async def _claim_elsewhere(
        self, limit: int, per_destination: int, taken: Mapping[str, int], token: str
    ) -> list[Row[Any]]:
        """Claim behind destinations that have their share and hold the head of the queue.

        The next few destinations are asked one by one, going round, so that each of them has its turn.
        """
        now = self._database.now()
        async with self._database.write() as connection:
            found: list[Row[Any]] = []
            for place in await self._next_destinations(connection):
                room = per_destination - taken.get(place, 0)
                if room > 0:
                    query = _due(now, room).where(outbox.c.destination == place)
                    found += (await connection.execute(query)).all()
            if not found:
                return []
            found.sort(key=lambda row: (row.next_attempt_at, row.id))
            chosen = select(outbox.c.id, outbox.c.next_attempt_at).where(
                outbox.c.id.in_([row.id for row in found[:limit]])
            )
            statement = _taken(self._database, chosen)
            return list((await connection.execute(statement, {"token": token})).all())

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
        given = {"done": self._database.rows([_written(each) for each in completions])}

        def write(connection: SyncConnection) -> set[str]:
            held = set(connection.execute(self._completed, given).scalars())
            if self._database.dialect == "sqlite":
                log = [_logged(each) for each in completions if each.delivery.id in held]
                if log:
                    # A log that holds this number already must not keep the outcome from being written.
                    connection.execute(self._database.insert_unless_there(attempts), log)
            return held

        return await self._database.at_once(write)

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

    async def release(self, deliveries: Sequence[ClaimedDelivery], delay_seconds: float = 0.0) -> int:
        """Give claims back without an attempt; the rows are due again after ``delay_seconds``.

        Returns:
            How many claims still held.
        """
        if not deliveries:
            return 0
        now = self._database.now()
        given = self._database.table_of("given", id=String, token=String)
        released = (
            update(outbox)
            .where(outbox.c.id == given.c.id, outbox.c.claim_token == given.c.token)
            .values(claim_token=None, next_attempt_at=now + int(delay_seconds * 1000), updated_at=now)
            .returning(outbox.c.id)
        )
        rows = self._database.rows([{"id": each.id, "token": each.token} for each in deliveries])
        return await self._database.at_once(
            lambda connection: len(connection.execute(released, {"given": rows}).all())
        )

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


def _enqueued(database: Database) -> Executable:
    now = database.now()
    return insert(outbox).values(
        status="pending",
        attempts=0,
        earlier_attempts=0,
        takeovers=0,
        next_attempt_at=now,
        created_at=now,
        updated_at=now,
    )


def _eligible(database: Database, look: int, per_destination: int | None) -> Select[Any]:
    """Choose the oldest rows that are due, and no more for a destination than its share has room for.

    Args:
        database: where.
        look: how many due rows are looked at.
        per_destination: the share, of which the parameter ``busy`` says how much is used; ``None``: all there is.
    """
    due = _due(database.now(), look)
    if per_destination is None:
        return due
    if database.dialect == "postgresql":
        due = due.where(outbox.c.next_attempt_at >= bindparam("since", type_=BigInteger))
    head = due.cte("head")
    busy = database.table_of("busy", destination=Text, number=Integer)
    order = (head.c.next_attempt_at, head.c.id)
    place = func.row_number().over(partition_by=head.c.destination, order_by=order)
    used = func.coalesce(busy.c.number, 0)
    ranked = (
        select(head.c.id, head.c.next_attempt_at, (place + used).label("place"))
        .join_from(head, busy, busy.c.destination == head.c.destination, isouter=True)
        .cte("ranked")
    )
    return (
        select(ranked.c.id, ranked.c.next_attempt_at)
        .where(ranked.c.place <= per_destination)
        .order_by(ranked.c.next_attempt_at, ranked.c.id)
        .limit(bindparam("limit", type_=Integer))
    )


def _taken(database: Database, eligible: Select[Any]) -> Executable:
    """Claim rows under the token of the parameter ``token``."""
    now = database.now()
    # Apart, so that no plan can run it twice and claim more than the limit.
    chosen = eligible.cte("due")
    given: list[ColumnElement[Any]] = [outbox.c[name] for name in _CLAIMED]
    # SQLite can give nothing of the rows as they were.
    given.append(chosen.c.next_attempt_at.label("due_at") if database.dialect == "postgresql" else null())
    return (
        update(outbox)
        .where(outbox.c.id == chosen.c.id)
        .values(
            takeovers=outbox.c.takeovers + outbox.c.claim_token.is_not(None).cast(outbox.c.takeovers.type),
            claim_token=bindparam("token", type_=String),
            next_attempt_at=now + int(CLAIM_SECONDS * 1000),
            updated_at=now,
        )
        .returning(*given)
    )


def _completed(database: Database) -> Executable:
    """Write the outcomes in the parameter ``done``, each if its claim still holds, and give the ids of those."""
    now = database.now()
    done: FromClause = database.table_of(
        "done",
        id=String,
        token=String,
        status=String,
        attempts=Integer,
        delay_ms=BigInteger,
        status_code=Integer,
        error=Text,
        number=Integer,
        started_at=BigInteger,
        duration_ms=Integer,
        response=Text,
    )
    postgresql = database.dialect == "postgresql"
    if postgresql:
        done = select(done).cte("outcomes")
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
    if not postgresql:
        return completed
    # Attempts are logged by the same statement, which SQLite has no way to say.
    held = completed.cte("completed")
    log = select(
        done.c.id,
        *(done.c[name] for name in ("number", "started_at", "duration_ms", "status_code", "error")),
        func.decode(done.c.response, "hex"),
    ).join_from(done, held, held.c.id == done.c.id)
    logged = database.insert_unless_there(attempts).from_select([column.name for column in attempts.c], log)
    return select(held.c.id).add_cte(logged.cte("logged"))


def _written(completion: Completion) -> dict[str, Any]:
    delivery, outcome, change = completion
    return {
        **_logged(completion),
        "id": delivery.id,
        "token": delivery.token,
        "status": change.status,
        "attempts": delivery.attempts + 1,
        "delay_ms": int(change.delay_seconds * 1000),
        "response": outcome.response.hex(),
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
