from __future__ import annotations

import asyncio
import logging

import pytest

from flowactions_hookspecs.tasks import BackgroundTask, Supervisor, restart_delay
from tests.waiting import until


def supervised(run: object, *, drain_seconds: float = 5.0) -> Supervisor:
    task = BackgroundTask(name="work", run=run, drain_seconds=drain_seconds)  # type: ignore[arg-type]
    return Supervisor([task], delay=lambda crashes: 0.0)


@pytest.mark.parametrize("end", ["raises", "returns", "cancels itself"])
async def test_a_task_that_ends_by_itself_is_restarted(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task that crashes, returns or is cancelled from within runs again, and the log says so."""
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            await asyncio.Event().wait()
        if end == "raises":
            raise RuntimeError("boom")
        if end == "cancels itself":
            raise asyncio.CancelledError

    async with supervised(run):
        await until(lambda: runs == 3)
    assert runs == 3
    assert sum("work restarts in" in record.message for record in caplog.records) == 2


async def test_a_task_may_finish_what_is_in_flight_when_it_is_cancelled() -> None:
    """Leaving the context waits for a task that is still finishing."""
    finished = False

    async def run() -> None:
        nonlocal finished
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            finished = True
            raise

    async with supervised(run):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert finished


async def test_a_task_that_does_not_stop_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """A task that ignores its cancellation holds the shutdown only for its drain time."""
    caplog.set_level(logging.ERROR)
    release = asyncio.Event()

    async def run() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with supervised(run, drain_seconds=0.05):
        await asyncio.sleep(0.01)
    assert "work did not stop within 0.05 s" in caplog.text
    release.set()
    await asyncio.sleep(0.01)


def test_restarts_slow_down_to_once_a_minute() -> None:
    """The delay doubles from one second and never passes a minute."""
    assert [restart_delay(crashes) for crashes in (1, 2, 3, 6, 7, 5000)] == [1, 2, 4, 32, 60, 60]
