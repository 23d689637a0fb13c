"""Real worker processes are killed, stopped, and left without their database; a receiver counts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowactions_plugin.queue.lanes import AHEAD
from tests.crash.hosts import WORKER
from tests.crash.workers import CLAIM_LIMIT, Field, field_on
from tests.own_server import own_postgresql, pg_ctl
from tests.recorder import OK
from tests.waiting import until

POINTS = ["claimed", "sent", "answered", "writing", "written"]


@pytest.mark.parametrize(
    ("delivery", "count", "points", "leases_end"),
    [
        pytest.param("scheduled", 300, POINTS, "at once", id="scheduled"),
        pytest.param("continuous", 300, POINTS, "in time", id="continuous"),
        pytest.param("scheduled", 1000, POINTS * 8, "in time", id="scheduled-soak", marks=pytest.mark.long),
        pytest.param("continuous", 1000, POINTS * 8, "in time", id="continuous-soak", marks=pytest.mark.long),
    ],
)
async def test_killing_workers_loses_nothing(
    field: Field, delivery: str, count: int, points: list[str], leases_end: str
) -> None:
    """Two workers drain the queue and die at every point of a delivery, again and again (kill -9) (§3.1, §6.1).

    Zero lost; every row ends delivered, without using up an attempt; what arrives twice was in flight at a kill,
    and has the same id and the same bytes.
    """
    field.settings["FLOWACTIONS_DELIVERY"] = delivery
    if delivery == "continuous":
        field.settings["FLOWACTIONS_DESTINATION_LIMIT"] = str(CLAIM_LIMIT)
    await field.enqueue(count)
    doomed: dict[str, int] = {}
    may_repeat: Counter[str] = Counter()

    def answer(number: int) -> bytes:
        worker = dict(field.receiver.requests[-1].headers).get(WORKER, b"").decode()
        if worker in doomed:
            doomed[worker] -= 1
            if doomed[worker] == 0:
                os.kill(int(worker), signal.SIGKILL)
        return OK

    field.receiver.answer = answer
    # Outcomes are written many at a time, so there are fewer times to choose from.
    waiting = [
        (point, 1 + number % 2 if point in {"writing", "written"} else 1 + 7 * number % 15)
        for number, point in enumerate(points)
    ]

    async def keep_one_running() -> None:
        while waiting:
            point, nth = waiting.pop(0)
            process = await field.start(f"{point}:{nth}")
            if point == "sent":
                doomed[str(process.pid)] = nth
            async with asyncio.timeout(300):
                assert await process.wait() == -signal.SIGKILL, field.logs()
            held = await field.held()
            # A slot is free before the outcome is written. So, on a busy machine, more rows are claimed than there are slots.
            arrived = field.arrivals()
            of_worker = Counter(worker for event, worker in held if event not in arrived)
            assert max(of_worker.values(), default=0) <= AHEAD * CLAIM_LIMIT
            if leases_end == "at once":  # otherwise workers that were killed before still hold theirs
                assert len(held) <= 2 * (1 + AHEAD) * CLAIM_LIMIT
            may_repeat.update(event for event, _ in held)
            if leases_end == "at once":
                await field.end_leases(process)

    await asyncio.gather(keep_one_running(), keep_one_running())
    await field.start()
    await field.start()
    await until(field.drained, seconds=300)
    await field.check_nothing_lost(count)
    repeated = field.arrivals() - Counter(list(field.arrivals()))
    assert not repeated - may_repeat
    assert repeated.total() <= CLAIM_LIMIT * len(points)
    assert repeated.total() > 0  # the kills did hit what they were meant to hit


@pytest.fixture
def own_server() -> Iterator[Any]:
    with own_postgresql() as server:
        yield server


async def test_a_restarted_postgresql_loses_nothing(own_server: Any, tmp_path: Path) -> None:
    """`pg_ctl restart -m immediate`, twice in the middle of a drain: the same two workers go on by themselves."""
    async with field_on(own_server.get_uri(), tmp_path) as field:
        await field.enqueue(300)
        workers = [await field.start(), await field.start()]
        for arrived in (60, 160):
            await until(lambda arrived=arrived: len(field.receiver.requests) >= arrived)  # type: ignore[misc]
            await asyncio.to_thread(pg_ctl, own_server, "-m", "immediate", "restart")
        await until(field.drained, seconds=300)
        assert [worker.returncode for worker in workers] == [None, None]
        assert "the database is out of reach" in field.logs()
        await field.check_nothing_lost(300)
