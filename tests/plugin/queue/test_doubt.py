"""Leases that ended while nobody could write: whose rows a worker leaves alone, and for how long (§3.1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.health.fleet import Fleet
from flowactions_plugin.queue.contact import Contact, token_prefix
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.scheduled import ScheduledClaims
from flowactions_plugin.queue.worker import Worker
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.queueing import OutboxStore, Queue, a_schedule, a_worker, an_executor
from tests.rings import sampled
from tests.waiting import until

LEASE = 30.0


class Times:
    """A clock that a test sets, and contact by it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.contact = Contact(LEASE, lambda: self.now)

    def succeed(self, seconds: float = 0.0) -> None:
        """Have a statement begin now, take so long, and succeed."""
        began = self.now
        self.now += seconds
        self.contact.succeeded(began)

    def go_on(self, seconds: float) -> None:
        """Have the queue be written to from now on for so long."""
        end = self.now + seconds
        self.succeed()
        while self.now < end:
            self.now = min(end, self.now + self.contact.probe_seconds)
            self.succeed()

    def doubt(self) -> float | None:
        """Give since when leases are in doubt."""
        seconds = self.contact.doubt_seconds()
        return None if seconds is None else self.now - seconds


@pytest.fixture
def times() -> Times:
    return Times()


class TestContact:
    def test_without_an_outage_no_lease_is_in_doubt(self, times: Times) -> None:
        """Neither at the start, nor while the queue is written to every few seconds."""
        assert times.doubt() is None
        for _ in range(100):
            times.succeed(0.1)
            times.now += times.contact.probe_seconds
            assert times.doubt() is None

    @pytest.mark.parametrize("how", ["it fails", "it hangs", "the process stands still"])
    def test_after_an_outage_leases_are_in_doubt_for_the_length_of_a_lease(
        self, times: Times, how: str
    ) -> None:
        """Those that ended after the last success before it, however it was noticed; until a lease after its end."""
        times.succeed()
        if how == "it fails":
            times.contact.failed()
        times.succeed(60) if how == "it hangs" else setattr(times, "now", times.now + 60)
        assert times.doubt() == 1000
        times.succeed()
        end = times.now + LEASE
        while times.now < end:
            assert times.doubt() == 1000
            assert times.contact.remaining() == pytest.approx(end - times.now)
            times.succeed()
            times.now += 1.9
        assert times.doubt() is None
        assert times.contact.remaining() == float("inf")

    def test_a_worker_that_starts_in_an_outage_doubts_all_leases(self, times: Times) -> None:
        """It does not know since when the outage lasts."""
        times.contact.failed()
        times.succeed()
        assert times.doubt() == -float("inf")

    def test_leases_that_ended_while_the_last_statement_ran_are_in_doubt(self, times: Times) -> None:
        """That statement may have read the time before they ended: what counts is when it began."""
        times.succeed(4)
        times.contact.failed()
        assert times.doubt() == 1000

    def test_an_outage_soon_after_another_continues_it(self, times: Times) -> None:
        """What was in doubt before is in doubt again."""
        times.succeed()
        times.contact.failed()
        times.now += 20
        times.succeed()
        times.now += 2
        times.succeed()
        times.contact.failed()
        times.now += LEASE + 1
        assert times.doubt() == 1000


def test_leases_that_ended_just_before_are_in_doubt(times: Times) -> None:
    """The statement reads the time later than it is asked how old the doubt is."""
    times.succeed()
    times.now += 60
    times.contact.token_prefix = "aaaaaaaa"
    assert times.contact.doubt()["doubt_ms"] == 61_000


WAYS: dict[str, Callable[[OutboxStore], Awaitable[Sequence[Any]]]] = {
    "the oldest": lambda store: store.claim(50),
    "within limits": lambda store: store.claim(50, per_destination=5),
    "behind a limit": lambda store: store.claim(20, per_destination=5, in_flight={"http://no": 5}),
    "of organizations": lambda store: store.claim_of(["acme", "globex"], 50, per_destination=5, in_flight={}),
}


async def in_doubt(queue: Queue, times: Times, takeovers: int = 0) -> dict[str, str]:
    """Put a row of each kind, a minute after this worker's last contact; give their ids by kind."""
    stopped = Fleet(queue.database, "continuous", 1)
    owners = {
        "held by another": "aaaaaaaa",
        "expired before": "aaaaaaaa",
        "own": "bbbbbbbb",
        "of one that stopped": token_prefix(stopped.begin()),
    }
    await stopped.beat(0, 0)
    await stopped.stop()
    queue.store.contact = times.contact
    queue.store.contact.token_prefix = owners["own"]
    times.succeed()
    times.now += 60
    now = int(await queue.database.time() * 1000)
    ids = {}
    for number, kind in enumerate([*owners, "free"]):
        owner = ("acme", "globex")[number % 2]
        ids[kind] = await queue.put(organization_id=owner, destination=f"http://d{number}")
        if kind in owners:
            ended = now - (70_000 if kind == "expired before" else 10_000)
            await queue.run(
                f"UPDATE flowactions_outbox SET claimed_by = '{owners[kind]}', claimed_until = {ended}"  # noqa: S608
                f" WHERE id = '{ids[kind]}'"
            )
    await queue.run(f"UPDATE flowactions_outbox SET takeovers = {takeovers}")  # noqa: S608
    return ids


@pytest.mark.parametrize("way", WAYS)
async def test_a_lease_in_doubt_is_not_reclaimed(queue: Queue, times: Times, way: str) -> None:
    """Rows without a lease, own rows, those of a worker that stopped, and those that expired before are claimed at once."""
    ids = await in_doubt(queue, times)
    held = ids.pop("held by another")
    assert {each.id for each in await WAYS[way](queue.store)} == {*ids.values()}
    times.go_on(LEASE - 1)
    assert await WAYS[way](queue.store) == []
    times.go_on(1)
    queue.store._full_scan_at = 0.0  # that of the whole index is not due each time
    queue.store._beyond_head_at = 0.0
    assert [each.id for each in await WAYS[way](queue.store)] == [held]


async def test_a_lease_in_doubt_is_not_reclaimed_for_quarantine(queue: Queue, times: Times) -> None:
    """The others are sent alone, one after the other, and this one when leases are not in doubt any more."""
    ids = await in_doubt(queue, times, takeovers=5)
    held = ids.pop("held by another")
    claimed = [await queue.store.claim_quarantined() for _ in ids]
    assert {each.id for each in claimed if each is not None} == {*ids.values()}
    assert not await queue.store.any_quarantined()
    assert await queue.store.claim_quarantined() is None
    times.go_on(LEASE)
    assert await queue.store.any_quarantined()
    found = await queue.store.claim_quarantined()
    assert found is not None
    assert found.id == held


async def test_a_probe_tells_whether_the_queue_can_be_written(queue: Queue) -> None:
    """It changes no row, and fails where a claim would."""
    row = await queue.row(await queue.put())
    await queue.store.probe()
    assert await queue.row(row.id) == row
    await queue.run("ALTER TABLE flowactions_outbox RENAME TO elsewhere")
    with pytest.raises(StorageUnavailable):
        await queue.store.probe()


FULL = (
    (
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END$$"
    ),
    "CREATE TRIGGER full_disk BEFORE UPDATE ON flowactions_outbox FOR EACH ROW EXECUTE FUNCTION full_disk()",
)


async def test_a_claim_that_fails_puts_leases_in_doubt(postgres_url: str) -> None:
    """On a full disk only what writes a row fails, and no probe does."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url) as database:
        queue = Queue(database)
        await queue.put()
        for statement in FULL:
            await queue.run(statement)
        await queue.store.probe()
        assert queue.store.contact.doubt_seconds() is None
        running = asyncio.create_task(a_worker(queue, lambda request: httpx.Response(200)).run())
        await until(lambda: queue.store.contact.doubt_seconds() is not None)
        running.cancel()
        await asyncio.wait({running})


async def test_a_tick_follows_when_the_doubt_ends(queue: Queue, times: Times) -> None:
    """What was left alone does not wait for the tick after that (§8)."""
    timing = Timing(quarantine_seconds=10_000)
    executor = an_executor(queue, lambda request: httpx.Response(200))
    claims = ScheduledClaims(queue.store, executor, tick_seconds=1000, claim_limit=5, timing=timing)
    assert await claims.run_once() > LEASE
    queue.store.contact = times.contact
    times.contact.failed()
    assert await claims.run_once() > LEASE
    times.succeed()
    assert await claims.run_once() <= LEASE


class Away:
    """A database that a test takes from one worker and gives back."""

    def __init__(self, database: Database) -> None:
        self._engines = database._engines
        self._opened = self._engines.current, self._engines.thread

    def take(self) -> None:
        self._engines.current = self._engines.thread = None

    def give_back(self) -> None:
        self._engines.current, self._engines.thread = self._opened


@pytest.mark.ci
@sampled(
    ("database_url", "delivery"),
    [("sqlite", "scheduled"), ("postgresql", "continuous")],
    size=1,
    indirect=["database_url"],
)
async def test_after_an_outage_no_worker_sends_what_another_keeps(database_url: str, delivery: str) -> None:
    """One worker comes back later than the other, with an outcome in memory: its row is not sent again."""
    arrived: Counter[str] = Counter()
    release = asyncio.Event()

    async def receive(request: httpx.Request) -> httpx.Response:
        arrived[request.url.path] += 1
        await release.wait()
        return httpx.Response(200)

    async with AsyncExitStack() as stack:
        url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
        late, early, outside = [Queue(await stack.enter_async_context(Database(url)), LEASE) for _ in range(3)]
        tasks = []
        for path, queue in (("/late", late), ("/early", early)):
            queue.store.contact.token_prefix = token_prefix(new_id(1000.0))
            if delivery == "scheduled":
                claims: Any = a_schedule(queue, receive)
            else:
                executor = an_executor(queue, receive)
                claims = ContinuousClaims(queue.store, executor, slots=9, per_destination=9)
            worker = Worker(queue.store, claims._executor, claims, chance=lambda: 0.0)
            tasks.append(asyncio.create_task(worker.run()))
            await queue.put(url=f"http://r{path}", destination=f"http://r{path}")
            await until(lambda path=path: arrived[path] == 1)  # type: ignore[misc]
        aways = [Away(queue.database) for queue in (late, early)]
        for away in aways:
            away.take()
        release.set()
        # So long that no machine makes a claim's statement read the time as much later than the doubt's age.
        await until(lambda: all((queue.store.contact.doubt_seconds() or 0) > 3 for queue in (late, early)))
        ended = int(await outside.database.time() * 1000)
        await outside.run(
            f"UPDATE flowactions_outbox SET claimed_until = {ended} WHERE status = 'pending'"  # noqa: S608
        )
        aways[1].give_back()
        await outside.put(url="http://r/new", destination="http://r/new")
        await until(lambda: arrived["/new"] == 1)
        aways[0].give_back()
        await until(lambda: drained(outside))
        assert arrived == {"/late": 1, "/early": 1, "/new": 1}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def drained(queue: Queue) -> bool:
    async with queue.database.read() as connection:
        rows = await connection.exec_driver_sql("SELECT DISTINCT status FROM flowactions_outbox")
        return [row.status for row in rows] == ["delivered"]
