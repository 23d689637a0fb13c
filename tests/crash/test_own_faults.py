"""Faults of a worker's own process, made for real: stopped, and with large bodies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.crash.workers import Field
from tests.recorder import OK
from tests.waiting import until

pytestmark = pytest.mark.ci

LARGE = 10_000_000
GROWTH_MIB = 330
"""What is left of 400 MB beside an idle worker; all the bodies together are 500 MB."""


@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
async def test_a_suspended_worker_reads_its_answers_late(field: Field, delivery: str) -> None:
    """SIGSTOP for longer than deadline and lease while the receiver answers 200: delivered at the first attempt, once."""
    field.settings.update(FLOWACTIONS_DELIVERY=delivery, FLOWACTIONS_DESTINATION_LIMIT="20")
    await field.enqueue(10)
    stopped = asyncio.Event()

    def answer(number: int) -> bytes:
        if not stopped.is_set():
            os.kill(process.pid, signal.SIGSTOP)
            stopped.set()
        return OK

    field.receiver.answer = answer
    process = await field.start(FLOWACTIONS_TEST_TIMING="4 1 10")
    async with asyncio.timeout(300):
        await stopped.wait()
    await asyncio.sleep(6)
    process.send_signal(signal.SIGCONT)
    await until(field.drained)
    rows = await field.query("SELECT DISTINCT status, attempts, last_error FROM flowactions_outbox")
    assert [tuple(row) for row in rows] == [("delivered", 1, None)]
    assert len(field.receiver.requests) == len(field.arrivals()) == 10
    assert "reclaimed" not in field.logs()


@pytest.mark.parametrize(
    ("database_url", "delivery"),
    [
        pytest.param("sqlite", "scheduled", marks=pytest.mark.long),
        ("postgresql", "continuous"),
    ],
    indirect=["database_url"],
)
async def test_large_bodies_are_claimed_a_few_at_a_time(field: Field, delivery: str) -> None:
    """Fifty bodies of 10 MB: a worker has no more of them in memory than it may hold, and delivers them all."""
    field.settings.update(
        FLOWACTIONS_DELIVERY=delivery,
        FLOWACTIONS_CLAIM_LIMIT="50",
        FLOWACTIONS_CONCURRENCY="100",
        FLOWACTIONS_DESTINATION_LIMIT="100",
    )
    peaks = []
    for count, size in ((1, 2), (50, LARGE)):
        await field.enqueue(count)
        async with field.engine.begin() as connection:
            await connection.execute(
                text("UPDATE flowactions_outbox SET body = :body WHERE status = 'pending'"),
                {"body": b"x" * size},
            )
        process = await field.start()
        await until(field.drained, 300)
        peaks.append(_peak_mib(process.pid))
        process.terminate()
        await process.wait()
    assert await field.states() == {"delivered": 51}
    rows = await field.query(
        "SELECT max(attempts) AS attempts, max(takeovers) AS takeovers FROM flowactions_outbox"
    )
    assert tuple(rows[0]) == (1, 0)
    assert peaks[1] - peaks[0] < GROWTH_MIB, peaks


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
