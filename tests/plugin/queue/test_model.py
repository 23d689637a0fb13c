"""The queue against a model of §3.1: whatever happens in whatever order, both hold the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import select, text

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.queue.completer import Completer
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.host_calls import SecretSource
from flowactions_plugin.queue.rules import NewDelivery, Transition
from flowactions_plugin.queue.scheduled import ScheduledClaims
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import attempts, outbox
from flowactions_plugin.storage.sqlite import SQLite
from tests.queueing import Deliveries, OutboxStore, no_secret, nobody_listens
from tests.sending import as_transport, validate

T = TypeVar("T")

LEASE_MS = 30_000
SURPLUS_MS = 1000
DAY_MS = 86_400_000
DELAYS = {1: 5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128, 8: 256, 9: 300, 10: 300, 11: 300}
AGENTS = ["a", "b"]


@dataclass(frozen=True)
class Row:
    """A row as the specification has it."""

    status: str
    max_attempts: int
    due: int
    attempts: int = 0
    claim: str | None = None
    until: int | None = None
    """When the lease of the claim ends."""
    takeovers: int = 0
    rounds: int = 0
    waiting: int | None = None
    settled: str | None = field(default=None, compare=False)
    """The token of the last write, where it is one of the model's own claims."""
    finished: int | None = None
    log: tuple[int, ...] = ()


class Clocked(Database):
    """A database whose clock, on either engine, is the test's."""

    def __init__(self, url: str) -> None:
        self.milliseconds = 1_700_000_000_000
        super().__init__(url, clock=lambda: self.milliseconds / 1000)

    def _bind(self) -> None:
        super()._bind()
        self.sql.now = SQLite(self.clock).now  # type: ignore[method-assign]  # PostgreSQL's is the server's


class Outbox(RuleBasedStateMachine):
    """Drives the store, and the worker over it, as hosts, workers, operators and accidents do."""

    def __init__(self, database: Clocked, run: Callable[[Awaitable[Any]], Any]) -> None:
        super().__init__()
        self.database = database
        self.run = run
        self.store = OutboxStore(database)
        self.queries = Deliveries(database)
        self.enqueued = 0
        self.rows: dict[str, Row] = {}
        self.claims: list[ClaimedDelivery] = []

    @property
    def now(self) -> int:
        return self.database.milliseconds

    # Hosts

    @rule(max_attempts=st.integers(1, 10), agent=st.sampled_from(AGENTS))
    def enqueue(self, max_attempts: int, agent: str) -> None:
        self.enqueued += 1
        delivery = NewDelivery(
            # Not a random one: the same choices must lead to the same queue.
            id=f"{self.enqueued:08x}-0000-7000-8000-000000000000",
            organization_id="acme",
            agent_id=agent,
            origin=FlowNodeOrigin(organization_id="acme", agent_id=agent, flow_id="f", node_id="n"),
            event_id="evt",
            event_type="t",
            url="http://127.0.0.1/",
            destination="http://127.0.0.1:80",
            method="POST",
            headers=(),
            body=b"{}",
            max_attempts=max_attempts,
        )

        async def write() -> None:
            async with self.database.write() as connection:
                await self.store.enqueue(delivery, connection)

        self.run(write())
        self.rows[delivery.id] = Row("pending", max_attempts, self.now)

    # Workers

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        """A worker claims, and what becomes of it is left open: later, too late, or never (a crash)."""
        claimed = self.run(self.store.claim(limit))
        assert {delivery.id for delivery in claimed} == set(
            self._claimed(limit, [each.token for each in claimed])
        )
        self.claims += claimed

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), status=st.sampled_from([200, 204, 299, 302, 404, 500, None]), final=st.booleans())
    def write_outcome(self, data: st.DataObject, status: int | None, final: bool) -> None:
        """A worker, in time or woken after its claim was taken over, writes what came of its attempt."""
        claim = data.draw(st.sampled_from(self.claims))
        row = self.rows.get(claim.id)
        holds = row is not None and row.claim == claim.token
        number = claim.attempts + 1
        delivered = status is not None and 200 <= status < 300
        if delivered:
            change = Transition("delivered")
        elif final or number >= claim.max_attempts:
            change = Transition("dead")
        else:
            change = Transition("retrying", DELAYS[number])
        outcome = Outcome(
            0, 0, status_code=status, error=None if status else "down", final=final and not delivered
        )
        written = self.run(self.store.complete([Completion(claim, outcome, change)]))
        assert written == ({claim.id} if holds or self._repeats(claim) else set())
        if row is not None and holds:
            attempted = self._attempted(row, change.status, int(change.delay_seconds))
            self.rows[claim.id] = replace(attempted, settled=claim.token)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), delay=st.sampled_from([0, 30]))
    def release(self, data: st.DataObject, delay: int) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.rows.get(claim.id)
        holds = row is not None and row.claim == claim.token
        assert len(self.run(self.store.give_back([Return(claim, delay)]))) == int(holds or self._repeats(claim))
        if row is not None and holds:
            self.rows[claim.id] = replace(
                row,
                claim=None,
                until=None,
                due=self.now + delay * 1000,
                rounds=claim.quarantine_rounds,
                settled=claim.token,
            )

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        """What the host cannot be asked for is waited for as long again as before, and not for ever."""
        claim = data.draw(st.sampled_from(self.claims))
        row = self.rows.get(claim.id)
        holds = row is not None and row.claim == claim.token
        states = self.run(self.store.give_back([Return(claim, waits_for="the host")]))
        since = self.now if row is None or row.waiting is None else row.waiting
        ends = self.now - since >= 90 * DAY_MS
        if not holds or row is None:
            assert states == ({claim.id: row.status} if row is not None and row.settled == claim.token else {})
        elif ends:
            assert states == {claim.id: "dead"}
            self.rows[claim.id] = replace(
                row,
                status="dead",
                claim=None,
                until=None,
                finished=self.now,
                due=-1,
                takeovers=0,
                rounds=0,
                waiting=None,
                settled=claim.token,
            )
        else:
            assert states == {claim.id: row.status}
            pause = min(600_000, max(5000, self.now - since))
            self.rows[claim.id] = replace(
                row,
                claim=None,
                until=None,
                due=self.now + pause,
                waiting=since,
                rounds=claim.quarantine_rounds,
                settled=claim.token,
            )

    @rule(begins=st.booleans())
    def claim_quarantined(self, begins: bool) -> None:
        """The oldest row that was reclaimed five times, one at a time; what is begun is counted."""
        due = self._due(1, quarantined=True)
        assert self.run(self.store.any_quarantined()) == bool(due)
        claimed = self.run(self.store.claim_quarantined())
        assert ([] if claimed is None else [claimed.id]) == due
        if claimed is not None:
            row = replace(self.rows[claimed.id], claim=claimed.token, until=self.now + LEASE_MS)
            if begins:
                assert self.run(self.store.begin_quarantined(claimed))
                row = replace(row, rounds=row.rounds + 1)
            self.rows[claimed.id] = row
            self.claims.append(claimed)

    @rule(limit=st.integers(1, 4), answers=st.lists(st.sampled_from([200, 500, 503]), min_size=4, max_size=4))
    def tick(self, limit: int, answers: list[int]) -> None:
        """A whole tick; what each receiver answers is drawn."""
        given = iter(answers)
        answered: list[int] = []

        def answer(request: httpx.Request) -> httpx.Response:
            answered.append(next(given))
            return httpx.Response(answered[-1])

        ids = self._due(limit)
        sent = self._admitted(ids)
        sender = Sender(as_transport(answer), validate, self.database.clock, lambda: 0.0)
        executor = Executor(self.store, sender, Completer(self.store, nobody_listens), SecretSource(no_secret))
        claims = ScheduledClaims(self.store, executor, tick_seconds=1, claim_limit=limit)
        assert self.run(claims.tick()) == len(ids)
        assert len(answered) == len(sent)
        for row_id in ids:
            row = self.rows[row_id]
            if row_id not in sent:
                self.rows[row_id] = replace(
                    row,
                    claim=None,
                    until=None,
                    takeovers=self._takeovers(row),
                    due=self.now + SURPLUS_MS,
                    settled=None,
                )
                continue
            code = self.run(self._last_status(row_id))
            number = row.attempts + 1
            if code == 200:
                self.rows[row_id] = self._attempted(row, "delivered", 0)
            elif number >= row.max_attempts:
                self.rows[row_id] = self._attempted(row, "dead", 0)
            else:
                self.rows[row_id] = self._attempted(row, "retrying", DELAYS[number])

    # Time

    @rule(seconds=st.sampled_from([1, 5, 8, 30, 31, 300, 86_400, 90 * 86_400]))
    def time_passes(self, seconds: int) -> None:
        self.database.milliseconds += seconds * 1000

    @rule(seconds=st.sampled_from([1, 60, 3600, 10**6]))
    def the_clock_is_set_back(self, seconds: int) -> None:
        self.database.milliseconds -= seconds * 1000

    @rule()
    def rescue(self) -> None:
        """What the clock left behind is due after a lease at the latest."""
        far = self.now + 630_000
        live = {row_id: row for row_id, row in self.rows.items() if self._is_live(row)}
        waiting = [row_id for row_id, row in live.items() if row.due > far]
        held = [row_id for row_id, row in live.items() if row.due <= far and (row.until or 0) > far]
        assert self.run(self.store.rescue()) == len(waiting) + len(held)
        for row_id in waiting:
            self.rows[row_id] = replace(self.rows[row_id], due=self.now + LEASE_MS, until=None)
        for row_id in held:
            self.rows[row_id] = replace(self.rows[row_id], until=self.now + LEASE_MS)
        assert all(
            max(row.due, row.until or row.due) <= far for row in self.rows.values() if self._is_live(row)
        )

    # Operators

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.rows)))
        dead = self.rows[row_id].status == "dead"
        assert self.run(self.queries.retry(row_id, "acme")) == dead
        assert not self.run(self.queries.retry(row_id, "globex"))
        if dead:
            self._requeue(row_id, reset=False)

    @rule(reset=st.booleans(), limit=st.integers(1, 5))
    def retry_many(self, reset: bool, limit: int) -> None:
        dead = sorted(row_id for row_id, row in self.rows.items() if row.status == "dead")[:limit]
        found = self.run(self.queries.retry_many("acme", Filter(), reset_attempts=reset, limit=limit))
        assert found == len(dead)
        for row_id in dead:
            self._requeue(row_id, reset=reset)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row_id = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[row_id]
        waits = self._is_live(row) and row.claim is None
        assert self.run(self.queries.cancel(row_id, "acme", "no more")) == waits
        if waits:
            self.rows[row_id] = replace(
                row, status="dead", finished=self.now, due=-1, takeovers=0, rounds=0, waiting=None
            )

    @rule(status=st.sampled_from(["delivered", "dead"]), seconds=st.sampled_from([0, 60, 86_400]))
    def prune(self, status: Literal["delivered", "dead"], seconds: int) -> None:
        old = [
            row_id
            for row_id, row in self.rows.items()
            if row.status == status and row.finished is not None and row.finished < self.now - seconds * 1000
        ]
        assert self.run(self.queries.prune(status, seconds * 1000, 1000)) == len(old)
        for row_id in old:
            del self.rows[row_id]

    @invariant()
    def the_queue_and_the_model_agree(self) -> None:
        assert self.run(self._stored()) == self.rows

    def teardown(self) -> None:
        self.run(self._empty())

    # The model's rules

    @staticmethod
    def _is_live(row: Row) -> bool:
        return row.status in {"pending", "retrying"}

    def _repeats(self, claim: ClaimedDelivery) -> bool:
        """Tell whether a claim's last write was the row's last: repeated, it finds itself."""
        row = self.rows.get(claim.id)
        return row is not None and row.settled == claim.token

    @staticmethod
    def _takeovers(row: Row) -> int:
        return row.takeovers + (row.claim is not None)

    def _due(self, limit: int, *, quarantined: bool = False) -> list[str]:
        due = [
            (row.due, row_id)
            for row_id, row in self.rows.items()
            if self._is_live(row)
            and max(row.due, row.until or row.due) <= self.now
            and (row.takeovers >= 5) == quarantined
        ]
        return [row_id for _, row_id in sorted(due)[:limit]]

    def _admitted(self, ids: list[str]) -> list[str]:
        """Of what was reclaimed 2, 3 or 4 times, 16, 4 or 1 are sent at once, and of the rest none but in quarantine."""
        room = {2: 16, 3: 4, 4: 1, 5: 0}
        admitted = []
        for row_id in sorted(ids):
            level = self._takeovers(self.rows[row_id])
            if level >= 2 and room[level] == 0:
                continue
            if level >= 2:
                room[level] -= 1
            admitted.append(row_id)
        return admitted

    def _claimed(self, limit: int, tokens: list[str]) -> list[str]:
        ids = self._due(limit)
        for row_id in ids:
            row = self.rows[row_id]
            self.rows[row_id] = replace(
                row, takeovers=self._takeovers(row), claim=tokens[0], until=self.now + LEASE_MS
            )
        return ids

    def _attempted(self, row: Row, status: str, delay: int) -> Row:
        finished = status in {"delivered", "dead"}
        return replace(
            row,
            status=status,
            attempts=row.attempts + 1,
            claim=None,
            until=None,
            takeovers=0,
            rounds=0,
            waiting=None,
            settled=None,
            due=-1 if finished else self.now + delay * 1000,
            finished=self.now if finished else None,
            log=(*row.log, len(row.log) + 1),
        )

    def _requeue(self, row_id: str, *, reset: bool) -> None:
        row = self.rows[row_id]
        self.rows[row_id] = replace(
            row,
            status="pending",
            due=self.now,
            finished=None,
            attempts=0 if reset else row.attempts,
            takeovers=0,
            rounds=0,
            waiting=None,
        )

    # What the database holds

    async def _stored(self) -> dict[str, Row]:
        async with self.database.read() as connection:
            rows = (await connection.execute(select(outbox))).all()
            log = (await connection.execute(select(attempts).order_by(attempts.c.number))).all()
        return {
            row.id: Row(
                status=row.status,
                max_attempts=row.max_attempts,
                due=row.next_attempt_at if row.finished_at is None else -1,
                attempts=row.attempts,
                claim=row.claimed_by,
                until=row.claimed_until,
                takeovers=row.takeovers,
                rounds=row.quarantine_rounds,
                waiting=row.waiting_since,
                finished=row.finished_at,
                # The attempt that delivers a row is kept in the row.
                log=(
                    *(each.number for each in log if each.delivery_id == row.id),
                    *([] if row.delivered_started_at is None else [row.earlier_attempts + row.attempts]),
                ),
            )
            for row in rows
        }

    async def _last_status(self, row_id: str) -> int | None:
        async with self.database.read() as connection:
            query = select(outbox.c.last_status_code).where(outbox.c.id == row_id)
            code: int | None = (await connection.execute(query)).scalar_one()
            return code

    async def _empty(self) -> None:
        async with self.database.write() as connection:
            for table in ("flowactions_attempts", "flowactions_outbox"):
                await connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608


@pytest.fixture
def clocked(database_url: str) -> Iterator[tuple[Clocked, Callable[[Awaitable[Any]], Any]]]:
    with asyncio.Runner() as runner:
        database = Clocked(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)

        def run(work: Awaitable[T]) -> T:
            return runner.run(work)  # type: ignore[arg-type]

        run(database.__aenter__())
        yield database, run
        run(database.__aexit__())


@pytest.mark.parametrize("sequences", [8, pytest.param(60, marks=pytest.mark.full)])
def test_the_queue_does_what_the_table_of_states_says(
    clocked: tuple[Clocked, Callable[[Awaitable[Any]], Any]], sequences: int
) -> None:
    """Enqueue, claim, tick, crash, late writes, clocks, retry, cancel and prune, in any order."""
    machine: Any = partial(Outbox, *clocked)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
