from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import Deferred, Node
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.services import Services
from flowactions_plugin.storage.retention import (
    BATCH,
    DAY_MS,
    DOUBLING_SECONDS,
    Prune,
    Pruning,
    pause_after,
)
from tests.queueing import Queue
from tests.support import SmallHost, a_walk, development, services_of


@pytest.fixture
async def services(database_url: str) -> AsyncIterator[Services]:
    made = services_of(SmallHost(development(database_url)))
    async with made:
        yield made


async def plant(services: Services, row_id: str, status: str, days: int) -> None:
    """Write a row with an attempt, that finished so many days ago, or has waited since then."""
    queue = Queue(services._database)
    began = int(services._database.clock() * 1000) - days * DAY_MS
    finished = began if status in {"delivered", "dead"} else "NULL"
    made = await queue.put()
    await queue.run(
        f"UPDATE flowactions_outbox SET id = '{row_id}', status = '{status}', created_at = {began},"  # noqa: S608
        f" finished_at = {finished} WHERE id = '{made}'"
    )
    logged = f"INSERT INTO flowactions_attempts (delivery_id, number, started_at, duration_ms) VALUES ('{row_id}', 1, 0, 0)"  # noqa: S608
    await queue.run(logged)


async def prune_all(prunes: Sequence[Prune], pauses: list[float] | None = None) -> int:
    """Delete all that is old enough, without pausing; return how much it was."""
    numbers: list[int] = []

    async def counted(prune: Prune, limit: int) -> int:
        numbers.append(await prune(limit))
        return numbers[-1]

    pruning = Pruning([partial(counted, each) for each in prunes])
    while (pause := await pruning.prune()) is not None:
        if pauses is not None:
            pauses.append(pause)
    return sum(numbers)


async def remaining(services: Services, table: str, column: str) -> list[str]:
    async with services._database.read() as connection:
        rows = await connection.execute(text(f"SELECT {column} FROM {table} ORDER BY {column}"))  # noqa: S608
        return [str(row[0]) for row in rows]


async def test_old_rows_are_deleted_with_their_attempts(services: Services) -> None:
    """Delivered rows after 30 days, dead ones after 90; live rows are kept at any age (§2.5)."""
    ages = [("delivered", 29), ("delivered", 31), ("dead", 89), ("dead", 91), ("retrying", 400)]
    for status, days in ages:
        await plant(services, f"{status}-{days}", status, days)
    assert await prune_all(services._prunes()) == 2
    left = ["dead-89", "delivered-29", "retrying-400"]
    assert await remaining(services, "flowactions_outbox", "id") == left
    assert await remaining(services, "flowactions_attempts", "delivery_id") == left


async def test_a_row_that_is_retried_during_a_prune_is_kept(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its attempts."""
    await plant(services, "dead-1", "dead", 91)
    await plant(services, "dead-2", "dead", 92)
    write = services._database.write

    def retry_first(*arguments: Any) -> Any:
        @asynccontextmanager
        async def meanwhile() -> AsyncIterator[Any]:
            async with write() as connection:
                await connection.execute(
                    text(
                        "UPDATE flowactions_outbox SET status = 'pending', finished_at = NULL WHERE id = 'dead-1'"
                    )
                )
            async with write(*arguments) as connection:
                yield connection

        return meanwhile()

    monkeypatch.setattr(services._database, "write", retry_first)
    await services._retention.prune("dead", 90 * DAY_MS, 10)
    monkeypatch.undo()
    assert await remaining(services, "flowactions_outbox", "id") == ["dead-1"]
    assert await remaining(services, "flowactions_attempts", "delivery_id") == ["dead-1"]


async def test_records_of_abandoned_runs_are_deleted(services: Services) -> None:
    """A deferred node is deleted after 30 days."""
    for name in ("old", "new"):
        walk = a_walk(pacing=Deferred(None))
        assert (await services.runtime.reach(walk, Node(id=name, type="webhook"), None)).status == "recorded"
    async with services._database.write() as connection:
        await connection.execute(text("UPDATE flowactions_deferred SET created_at = 0 WHERE node_id = 'old'"))
    assert await prune_all(services._prunes()) == 1
    assert await remaining(services, "flowactions_deferred", "node_id") == ["new"]


async def test_a_longer_retention_applies_to_dead_rows(database_url: str) -> None:
    """When delivered rows are kept for a year, dead ones are, too."""
    settings = development(database_url, FLOWACTIONS_RETENTION_DAYS="365")
    services = services_of(SmallHost(settings))
    async with services:
        await plant(services, "dead", "dead", 200)
        assert await prune_all(services._prunes()) == 0


async def test_pruning_runs_in_batches() -> None:
    """A full batch is followed by another; the first that is not full is the last."""
    left = [BATCH, BATCH, 7]
    asked: list[int] = []

    async def prune(limit: int) -> int:
        asked.append(limit)
        return left.pop(0)

    assert await prune_all([prune]) == 2 * BATCH + 7
    assert asked == [BATCH] * 3


def test_retention_takes_a_share_of_the_time() -> None:
    """A tenth at first, however long a batch takes; a run that lasts takes more, up to half."""
    assert pause_after(0.1, 0) == pytest.approx(0.9)
    assert pause_after(1.0, DOUBLING_SECONDS) == pytest.approx(4.0)
    assert pause_after(1.0, 10**6) == pytest.approx(1.0)
    assert pause_after(0.0, 10**6) == 0.02


async def test_the_pause_after_a_batch_is_by_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the database takes long for is followed by a long pause."""
    pauses: list[float] = []
    monkeypatch.setattr("flowactions_plugin.storage.retention.time.monotonic", iter(range(900, 1000)).__next__)

    left = [BATCH, 0]

    async def prune(limit: int) -> int:
        return left.pop(0)

    assert await prune_all([prune], pauses) == BATCH
    assert pauses == [pytest.approx(pause_after(1, 2))]


async def test_pruning_continues_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on where the database failed, and says once how much it has removed."""
    caplog.set_level(logging.INFO)
    answers: list[int | Exception] = [BATCH, 1, StorageUnavailable(), 3, 0, 0]

    async def prune(limit: int) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pruning = Pruning([prune, prune])
    assert await pruning.prune() is not None
    with pytest.raises(StorageUnavailable):
        await pruning.prune()
    for _ in range(2):
        assert await pruning.prune() is None
    assert caplog.messages == [f"retention: {BATCH + 4} old rows removed"]
