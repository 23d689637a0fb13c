from __future__ import annotations

import asyncio
import time

import pytest

from flowactions_plugin.egress.deadline import (
    GRACE_SECONDS,
    IDLE_TICK_SECONDS,
    TICK_SECONDS,
    Deadline,
    StallMonitor,
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_monitor_counts_stalls_only() -> None:
    """The monitor counts stalls, not the loop's ordinary work; without a stall nothing moves."""
    clock = FakeClock()
    monitor = StallMonitor(clock)
    with monitor, Deadline(monitor, 100, float("inf"), lambda: None):
        clock.now += 0.3  # 0.05 late
        assert monitor.lost() == 0
        clock.now += 5
        assert monitor.lost() == pytest.approx(5.05)
        assert monitor.lost() == pytest.approx(5.05)
        assert monitor.ended() == clock.now
    clock.now += 100
    assert monitor.lost() == pytest.approx(5.05)


async def test_without_a_deadline_the_monitor_looks_seldom() -> None:
    """An idle process wakes for little; from the first deadline on, it is measured as closely as ever."""
    clock = FakeClock()
    monitor = StallMonitor(clock)
    with monitor:
        clock.now += IDLE_TICK_SECONDS
        assert monitor.lost() == 0
        with Deadline(monitor, 100, float("inf"), lambda: None):
            clock.now += TICK_SECONDS + 1
            assert monitor.lost() == pytest.approx(1)


async def test_a_deadline_interrupts_its_own_block_only() -> None:
    """Expired, it raises TimeoutError once; a cancellation from outside stays one."""
    ended: list[int] = []
    monitor = StallMonitor(time.monotonic)
    with pytest.raises(TimeoutError), Deadline(monitor, 0.01, float("inf"), lambda: ended.append(1)):
        await asyncio.sleep(10)
    assert ended == [1]
    with Deadline(monitor, 0.01, float("inf"), lambda: ended.append(2)) as unused:
        pass
    await asyncio.sleep(GRACE_SECONDS / 10)
    assert not unused.expired

    async def block() -> None:
        with Deadline(monitor, 10, float("inf"), lambda: ended.append(3)):
            await asyncio.sleep(10)

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]


async def test_time_that_was_lost_before_a_block_does_not_extend_it() -> None:
    """A deadline is extended by what is lost while its block runs, and by nothing else."""
    stopped = 0.0
    monitor = StallMonitor(lambda: time.monotonic() + stopped)
    with monitor:
        stopped = 1000.0
        assert monitor.lost() >= 999
    with pytest.raises(TimeoutError), Deadline(monitor, 0.01, float("inf"), lambda: None):
        await asyncio.sleep(60)
