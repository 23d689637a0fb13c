from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.queue import continuous, standing
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.lanes import Due, lane_of
from flowactions_plugin.queue.worker import Worker
from flowactions_plugin.settings.model import read_settings
from tests.pausing import ACME, MAYA
from tests.queueing import Queue, an_executor, continuously, delivering, ok
from tests.recorder import recorder
from tests.sending import SlowAnswer
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS, until


async def test_destinations_are_claimed_in_turn(queue: Queue) -> None:
    """More destinations than a claim asks, each with more rows than its limit: all is delivered, within the limits."""
    for number in range(130):
        url = f"http://r{number}.example.com/"
        first = await queue.put(url=url, destination=url)
        if number % 10 == 0:
            await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = 1 WHERE id = '{first}'")  # noqa: S608
            for _ in range(9):
                await queue.put(url=url, destination=url)
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def answer(request: httpx.Request) -> httpx.Response:
        for key in (request.url.host, "all"):
            now[key] += 1
            most[key] = max(most[key], now[key])
        await asyncio.sleep(0.005)
        for key in (request.url.host, "all"):
            now[key] -= 1
        return httpx.Response(200)

    async with delivering(queue, continuously(queue, answer, 20, 2)):
        await until(lambda: _live(queue, 0))
    assert most.pop("all") <= 20
    assert len(most) == 130
    assert max(most.values()) <= 2


async def test_what_is_enqueued_here_is_sent_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit wakes the worker: one of the plugin's own transactions, and one of the host's."""
    monkeypatch.setattr(continuous, "LOOK_SECONDS", 3600)
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY="continuous"), database=engine)
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
        await asyncio.sleep(0.3)
        await actions.reach(a_walk(), node)
        await until(lambda: len(receiver.requests) == 1)
        await until(lambda: len(host.finished) == 1)
        async with engine.begin() as connection:
            await actions.reach(a_walk(), node, connection)
            await asyncio.sleep(0.1)
            assert len(receiver.requests) == 1
        await until(lambda: len(receiver.requests) == 2)
    await engine.dispose()


@pytest.mark.parametrize("kind", ["scan", "look"])
@pytest.mark.parametrize("fails", [False, True])
async def test_what_wakes_during_a_look_asks_for_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, kind: str, fails: bool
) -> None:
    """The look may have read before the row was committed."""
    monkeypatch.setattr(continuous, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(continuous, "SCAN_SHARE", 1e-9 if kind == "look" else math.inf)
    claims = continuously(queue, ok)
    if kind == "look":
        await claims.run_once()
    claims.wake()
    read = getattr(queue.store, kind)

    async def overtaken() -> list[Due]:
        found: list[Due] = await read()
        monkeypatch.setattr(queue.store, kind, read)
        await queue.put()
        if fails:
            raise StorageUnavailable("away")
        claims.wake()
        return found

    monkeypatch.setattr(queue.store, kind, overtaken)
    with pytest.raises(StorageUnavailable) if fails else nullcontext():
        await claims.run_once()
    before = claims._lanes.total.held
    await claims.run_once()
    assert (before, claims._lanes.total.held) == (0, 1)
    await claims.quiesce()


async def test_a_stop_finishes_what_is_in_flight(queue: Queue) -> None:
    """Cancelled, it claims no more, and writes what comes of what it has sent."""
    slow = SlowAnswer()
    # A lane that has not answered has one in flight.
    ids = [await queue.put(url=f"http://127.0.0.1/{number % 3}") for number in range(8)]
    async with delivering(queue, continuously(queue, slow, per_destination=3)):
        await slow.arrived.wait()
        asyncio.get_running_loop().call_later(0.05, slow.released.set)
    states = Counter([(await queue.row(row_id)).status for row_id in ids])
    assert states == {"delivered": 3, "pending": 5}
    assert await queue.store.claim(10) != []


@pytest.mark.parametrize("stall", [True, False])
async def test_after_a_stall_nothing_that_was_sent_is_sent_again(
    queue: Queue, stall: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases of what was sent may have expired, while answers wait to be read.

    A row that is claimed again is not sent again; its outcome is written under the new claim (§3.1).
    """
    now, arrived, answer = [0.0], list[str](), asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        arrived.append(str(request.url))
        await answer.wait()
        return httpx.Response(200)

    row_id = await queue.put()
    queue.store.contact.prefix = "00000001"
    with LagMeter(lambda: now[0]) as lag:
        executor = an_executor(queue, slow, lag=lag)
        claims = continuously(queue, executor)
        await claims.run_once()
        await until(lambda: len(arrived) == 1)
        now[0] += 20 if stall else 0
        await queue.expire_claims()
        claims.wake()
        await claims.run_once()
        assert executor.load.claimed == 1
        answer.set()
        await claims.quiesce()
        await executor.completer.flush()
    assert len(arrived) == 1
    assert (await queue.row(row_id)).status == "delivered"
    assert "reclaimed" not in caplog.text


async def test_a_second_cancellation_ends_what_does_not_end(queue: Queue) -> None:
    """A process that goes without its worker cancels it once more, in the middle of a claim that takes a while to be cancelled."""
    asked, held, cancelled = asyncio.Event(), asyncio.Event(), list[object]()

    async def claim(asks: Sequence[Due], *, probe: bool = False) -> list[ClaimedDelivery]:
        asked.set()
        try:
            await held.wait()
        except asyncio.CancelledError:
            cancelled.append(asks)
            await asyncio.sleep(0.05)
            raise
        return []

    await queue.put()
    claims = continuously(queue, ok)
    worker = Worker(queue.store, claims._executor, claims)
    worker._store.claim = claim  # type: ignore[method-assign]
    running = asyncio.create_task(worker.run())
    await asked.wait()
    running.cancel()
    await asyncio.sleep(0.02)
    assert not running.done()
    assert cancelled == []
    running.cancel()
    async with asyncio.timeout(SAFETY_SECONDS):
        await asyncio.wait({running})
    assert len(cancelled) == 1


async def test_an_unexpected_failure_affects_its_delivery_only(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in one is logged; its slot is free again, and the rest is delivered."""
    caplog.set_level(logging.ERROR)
    claims = continuously(queue, ok, 2, 1)
    for _ in range(4):
        await queue.put()
    send = claims._executor._sender.send
    failed: list[str] = []

    async def fail_once(delivery: Any, *others: Any, **named: Any) -> Any:
        if not failed:
            failed.append(delivery.id)
            raise LookupError
        return await send(delivery, *others, **named)

    monkeypatch.setattr(claims._executor._sender, "send", fail_once)
    async with delivering(queue, claims):
        await until(lambda: _live(queue, 1))
    assert f"{failed[0]} failed unexpectedly" in caplog.text


async def _live(queue: Queue, count: int) -> bool:
    return await queue.count("status IN ('pending', 'retrying')") == count


async def _is(queue: Queue, row_id: str, status: str) -> bool:
    return bool((await queue.row(row_id)).status == status)


async def test_scans_take_a_small_part_of_the_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long one takes; looks are between them, which read what has become due only."""
    done: list[str] = []
    scan, look = queue.store.scan, queue.store.look

    async def slow() -> list[Due]:
        done.append("scan")
        await asyncio.sleep(0.05)
        return await scan()

    async def counted() -> list[Due]:
        done.append("look")
        return await look()

    monkeypatch.setattr(queue.store, "scan", slow)
    monkeypatch.setattr(queue.store, "look", counted)
    claims = continuously(queue, ok, 2, 1)
    for _ in range(5):
        claims.wake()
        assert 0 < await claims.run_once() <= continuous.LOOK_SECONDS
    assert done == ["scan", *["look"] * 4]
    assert claims._scan_at - asyncio.get_running_loop().time() > 1


@pytest.mark.parametrize("found_by", ["look", "scan"])
async def test_rows_of_which_no_signal_tells_are_found(queue: Queue, found_by: str) -> None:
    """What has become due, also by a commit that came late, is found by a look; what is older, by a scan."""
    arrived: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        arrived.append(request.url.path)
        return httpx.Response(200)

    claims = continuously(queue, answer, 5)
    await claims.run_once()
    await queue.put(url="http://127.0.0.1/old")
    age = 1000 if found_by == "look" else 3_600_000
    await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - {age}")  # noqa: S608
    claims._scan_at = math.inf
    claims.wake()
    await claims.run_once()
    await claims.quiesce()
    assert arrived == (["/old"] if found_by == "look" else [])
    claims._scan_at = 0.0
    claims.wake()
    await claims.run_once()
    await claims.quiesce()
    assert arrived == ["/old"]


async def test_a_paused_lane_is_asked_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has heard of rows of a destination that is paused does not ask for them again and again."""
    place = "http://127.0.0.1:80"
    await queue.put(url=f"{place}/", destination=place)
    claims = continuously(queue, ok, 5)
    await Operations(queue.database).pause(ACME, place, MAYA)
    asked, claim = 0, queue.store.claim

    async def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        return await claim(*arguments, **named)

    monkeypatch.setattr(queue.store, "claim", counted)
    claims.enqueued(Due(lane_of("acme", place, f"{place}/"), "acme", place))
    for _ in range(5):
        claims.wake()
        await claims.run_once()
    assert asked == 1
    assert len(claims._lanes._lanes) == 0


async def test_a_retry_of_this_worker_is_found_when_it_is_due(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a look, within half a second: nobody tells of it."""
    times: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        times.append(asyncio.get_running_loop().time())
        return httpx.Response(503 if len(times) == 1 else 200)

    monkeypatch.setattr("flowactions_plugin.queue.rules.JITTER", 0.0)
    claims = continuously(queue, answer, 5, retry_schedule=(1,))
    row_id = await queue.put()
    async with delivering(queue, claims):
        await until(lambda: len(times) == 1)
        claims._scan_at = math.inf
        await until(lambda: _is(queue, row_id, "delivered"))
    assert times[1] - times[0] >= 1


async def test_what_waits_for_a_destination_that_becomes_slow_is_sent_all_the_same(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given back: what is in hand is not taken again, so no claim would find it here."""
    monkeypatch.setattr(standing, "SLOW_SECONDS", 0.05)
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2 if asked == 50 else 0)
        return httpx.Response(200)

    for _ in range(100):
        await queue.put()
    async with delivering(queue, continuously(queue, answer)):
        await until(lambda: _live(queue, 0))


async def test_a_worker_that_stops_gives_back_what_waits_for_a_slot(queue: Queue) -> None:
    """Rows that were claimed ahead are due at once for others, without an attempt or a reclaim."""
    hold, sent = asyncio.Event(), 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal sent
        sent += 1
        if sent > 10:
            await hold.wait()
        return httpx.Response(200)

    for _ in range(30):
        await queue.put()
    claims = continuously(queue, answer, 5)
    async with delivering(queue, claims):
        await until(lambda: sent == 15 and claims._lanes.total.waiting > 0)
        asyncio.get_running_loop().call_later(0.1, hold.set)
    statuses = Counter[tuple[str, bool, int]]()
    async with queue.database.read() as connection:
        query = "SELECT status, claimed_by, takeovers FROM flowactions_outbox"
        for row in await connection.exec_driver_sql(query):
            statuses[row.status, row.claimed_by is None, row.takeovers] += 1
    assert statuses == {("delivered", True, 0): 15, ("pending", True, 0): 15}
