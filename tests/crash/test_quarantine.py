"""Deliveries whose workers die: what kills them ends dead, and nothing else does. Real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from itertools import product
from typing import Any

import pytest

from flowactions_plugin.queue.rules import QUARANTINE_ROUNDS
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from tests.crash.workers import Field
from tests.recorder import OK
from tests.waiting import until

pytestmark = pytest.mark.ci

SOON = "5 4 0.3"
"""A lease of five seconds, a deadline of four, and rounds in quarantine 0.3 seconds apart. Within the deadline, the receiver answers
fifty requests on a busy machine, too: if a row times out, its worker's ends are counted from zero again."""


@pytest.fixture
def field(field: Field) -> Field:
    field.settings.update(FLOWACTIONS_CLAIM_LIMIT="25", FLOWACTIONS_CONCURRENCY="50")
    return field


async def until_drained(field: Field, timing: str, seconds: float) -> int:
    """Start a worker again whenever one has died, until nothing is left to deliver; tell how many died."""
    died = 0
    async with asyncio.timeout(seconds):
        while True:
            process = await field.start(FLOWACTIONS_TEST_TIMING=timing)
            field.receiver.worker = process.pid  # type: ignore[attr-defined]
            ended = asyncio.create_task(process.wait())
            drained = asyncio.create_task(until(field.drained, seconds))
            await asyncio.wait({ended, drained}, return_when=asyncio.FIRST_COMPLETED)
            if drained.done() and not ended.done():
                await drained
                process.terminate()
                await ended
                return died
            drained.cancel()
            assert process.returncode == -signal.SIGKILL, field.logs()
            died += 1


@pytest.mark.parametrize(
    ("database_url", "delivery", "timing"),
    [
        pytest.param("sqlite", "scheduled", SOON),
        pytest.param("postgresql", "continuous", SOON),
        *(
            pytest.param(database, delivery, timing, marks=pytest.mark.long)
            for database, delivery, timing in (
                ("sqlite", "continuous", SOON),
                ("postgresql", "scheduled", SOON),
                *product(("sqlite", "postgresql"), ("scheduled", "continuous"), ("",)),
            )
        ),
    ],
    indirect=["database_url"],
)
async def test_a_row_that_ends_its_worker_is_dead_and_the_others_are_delivered(
    field: Field, delivery: str, timing: str
) -> None:
    """One row in 75 kills the worker that sends it, each time: it is dead in the end, and 74 are delivered (§3.1)."""
    field.settings.update(FLOWACTIONS_DELIVERY=delivery, FLOWACTIONS_DESTINATION_LIMIT="50")
    # A busy machine may not answer fifty requests within a deadline.
    again: dict[str, Any] = {"webhookRetryOnFailure": True}
    field.settings["FLOWACTIONS_RETRY_SCHEDULE"] = "1s,1s,1s,1s"
    await field.enqueue(37, **again)
    await field.enqueue(1, webhookBody='{"poison": true}', **again)
    await field.enqueue(37, **again)
    killed = 0

    def answer(number: int) -> bytes:
        nonlocal killed
        if b"poison" in field.receiver.requests[-1].body:
            killed += 1
            os.kill(field.receiver.worker, signal.SIGKILL)  # type: ignore[attr-defined]
        return OK

    field.receiver.answer = answer
    died = await until_drained(field, timing, 900)
    rows = await field.query("SELECT status, last_error, takeovers, body FROM flowactions_outbox")
    alone = f"its worker ended each of the {QUARANTINE_ROUNDS} times that it was sent alone"
    ends = Counter("" if row.status == "delivered" else row.last_error.partition(":")[0] for row in rows)
    assert ends == {"": 74, alone: 1}
    (dead,) = [row for row in rows if row.status == "dead"]
    assert b"poison" in bytes(dead.body)
    assert dead.takeovers == 0
    # Once, three times as it was reclaimed, and three rounds alone.
    assert killed == died == 1 + QUARANTINE_AFTER + QUARANTINE_ROUNDS
    said = [line for line in field.logs().splitlines() if "is dead" in line]
    assert len(said) == 1
    assert "127.0.0.1" in said[0]
