"""A worker beside receivers that hang, over real connections: what it holds, and what operators read of it (decision 76)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operations.purge import Purge
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.lanes import lane_of
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.watch.fleet import Fleet
from flowactions_plugin.watch.monitor import Monitor
from tests.loopback import listening
from tests.queueing import PATIENT, SOMEBODY, Queue, an_executor, continuously, delivering, ok
from tests.recorder import OK, recorder
from tests.sending import own_transport
from tests.waiting import until

HANGING = 24
SLOTS = 20


class Hanging:
    """A receiver that takes requests and answers none, until it is healed."""

    def __init__(self) -> None:
        self.url = ""
        self.open = self.most = self.requests = self.given_up = 0
        self.healed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                self.requests += 1
                waits = asyncio.ensure_future(self.healed.wait())
                leaves = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({waits, leaves}, return_when=asyncio.FIRST_COMPLETED)
                if not self.healed.is_set():
                    waits.cancel()
                    self.given_up += 1
                    return
                leaves.cancel()
                await asyncio.wait({leaves})
                writer.write(OK)
        finally:
            self.open -= 1


@asynccontextmanager
async def hanging(number: int) -> AsyncIterator[Sequence[Hanging]]:
    async with AsyncExitStack() as stack:
        made = [Hanging() for _ in range(number)]
        for each in made:
            port = await stack.enter_async_context(listening(each.serve))
            each.url = f"http://127.0.0.1:{port}"
        yield made


@asynccontextmanager
async def beside(
    executor: Executor, queue: Queue, timing: Timing, receivers: Sequence[Hanging]
) -> AsyncIterator[ContinuousClaims]:
    claims = continuously(queue, executor, SLOTS, 10)
    async with delivering(queue, claims, timing):
        try:
            yield claims
        finally:
            for each in receivers:
                each.healed.set()  # what is in flight ends


async def put(queue: Queue, url: str, organization_id: str, rows: int = 1) -> None:
    for _ in range(rows):
        await queue.put(organization_id=organization_id, url=f"{url}/", destination=url, body=b"{}")


@pytest.mark.parametrize(
    ("known", "share"), [(False, SLOTS * 9 // 10), (True, SLOTS * 3 // 4)], ids=["new", "timed out before"]
)
async def test_a_healthy_receiver_waits_for_none_that_hangs(queue: Queue, known: bool, share: int) -> None:
    """Its deliveries arrive while as many requests to others of one organization are open as may be, and none has ended."""
    queue = Queue(queue.database, PATIENT.lease_seconds)
    async with hanging(HANGING) as silent, recorder() as healthy, own_transport() as transport:
        for each in silent:
            await put(queue, each.url, "hung", rows=15)
        executor = an_executor(queue, transport, timing=PATIENT)
        if known:
            for each in silent:
                time_out(executor, "hung", each.url)

        def held() -> int:
            return sum(each.open for each in silent)

        answer_quickly(executor, "fine", healthy.url.rstrip("/"))
        async with beside(executor, queue, PATIENT, silent) as claims:
            await until(lambda: held() == share, seconds=300)
            for number in range(1, 6):
                await put(queue, healthy.url.rstrip("/"), "fine")
                claims.wake()
                await until(lambda number=number: len(healthy.requests) == number, seconds=300)  # type: ignore[misc]
            assert (held(), sum(each.given_up for each in silent)) == (share, 0)
            assert max(each.most for each in silent) == 1


def answer_quickly(executor: Executor, organization_id: str, destination: str) -> None:
    lane = lane_of(organization_id, destination, f"{destination}/")
    executor.load.limits.record(lane, (organization_id, destination), Outcome(0, 0, status_code=200))


def time_out(executor: Executor, organization_id: str, destination: str) -> None:
    lane = lane_of(organization_id, destination, f"{destination}/")
    outcome = Outcome(0, 0, error="timed out after 10 s while connecting")
    executor.load.limits.record(lane, (organization_id, destination), outcome)


@pytest.mark.ci
async def test_what_a_worker_limits_is_read_in_other_processes(queue: Queue) -> None:
    """Within seconds, by organizations that are concerned; and when the worker stops, it limits nothing."""
    executor = an_executor(queue, ok)
    queries = Insights(queue.database)
    monitor = Monitor(queue.database, "continuous", SLOTS, None)
    place = "http://hung.example.com:80"
    row_id = await queue.put(destination=place)

    async def limited(organization_id: str | None) -> int:
        overview = await queries.overview(Scope(organization_id))
        return sum(each.words.startswith("1 destination is limited") for each in overview.findings)

    async with monitor.watching(executor.load):
        await monitor.report()
        time_out(executor, "acme", place)
        await monitor.report()
        assert (await limited(None), await limited("acme"), await limited("globex")) == (1, 1, 0)
        found = await queries.delivery(Scope("acme"), row_id)
        assert found is not None
        assert "limited to one delivery at a time since 1970-01-01T00:00:00Z, because attempts" in found.why
    assert await limited(None) == 0


async def test_a_worker_begins_with_what_the_others_limit(queue: Queue) -> None:
    """With what those limit that are alive, and what the last ones did, however they ended; not with what is older or purged."""

    async def limiting(place: str, seen_ms_ago: int, *, stops: bool = False) -> None:
        fleet = Fleet(queue.database, "continuous", SLOTS)
        worker_id = fleet.begin()
        await fleet.beat(0, 0, {"acme": {place: 1}})
        if stops:
            await fleet.stop()
        await queue.run(
            f"UPDATE flowactions_workers SET last_seen_at = last_seen_at - {seen_ms_ago} WHERE id = '{worker_id}'"  # noqa: S608
        )

    async def slow() -> set[str]:
        executor = an_executor(queue, ok)
        async with Monitor(queue.database, "continuous", SLOTS, None).watching(executor.load):
            await queue.run("DELETE FROM flowactions_workers WHERE limited IS NULL")
        limits = executor.load.limits
        assert limits.limited() == {}
        return {place for place in ("a", "b", "c") if limits.is_slow_host(("acme", place))}

    await limiting("a", 3_600_000, stops=True)
    await limiting("b", 3_610_000)
    await limiting("c", 3_700_000)
    assert await slow() == {"a", "b"}
    await limiting("c", 0)
    assert await slow() == {"c"}
    await Purge(queue.database, "acme").run(SOMEBODY)
    assert await slow() == set()
