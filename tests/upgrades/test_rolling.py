from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.migrations import head, revisions
from tests.recorder import Recorder, recorder
from tests.support import development
from tests.upgrades.before import ARCHIVE, Release
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Rolling(NamedTuple):
    """A database, a receiver, and the two releases."""

    url: str
    receiver: Recorder
    before: Release
    present: Release

    async def query(self, statement: str) -> list[tuple[object, ...]]:
        engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": self.url}).database_url)
        try:
            async with engine.connect() as connection:
                return [tuple(row) for row in await connection.execute(text(statement))]
        finally:
            await engine.dispose()

    async def delivered(self, count: int) -> None:
        """Wait until so many webhooks are delivered, and check that each was sent once."""

        async def done() -> bool:
            rows = await self.query("SELECT count(*) FROM flowactions_outbox WHERE status = 'delivered'")
            return rows == [(count,)]

        await until(done, seconds=60)
        arrived = Counter(request.header("x-service-webhook-id") for request in self.receiver.requests)
        assert len(arrived) == count
        assert set(arrived.values()) == {1}
        assert await self.query("SELECT DISTINCT status, attempts FROM flowactions_outbox") == [
            ("delivered", 1)
        ]


@pytest.fixture
async def rolling(database_url: str, tmp_path: Path) -> AsyncIterator[Rolling]:
    settings = development(database_url, FLOWACTIONS_DELIVERY="continuous", FLOWACTIONS_HOST_WORKER="off")
    before = Release(tmp_path / "before", settings, ARCHIVE)
    present = Release(tmp_path / "present", settings, None)
    async with recorder() as receiver:
        try:
            yield Rolling(database_url, receiver, before, present)
        finally:
            await before.stop()
            await present.stop()


async def test_two_revisions(rolling: Rolling) -> None:
    """The test runs two revisions, one behind the other."""
    assert (await rolling.before.version(), await rolling.present.version()) == revisions()[-2:]


async def test_upgrade_while_workers_of_the_release_before_deliver(rolling: Rolling) -> None:
    """Workers and hosts of the release before go on while the tables are migrated, and beside new ones."""
    before, present, url = rolling.before, rolling.present, rolling.receiver.url
    await before.migrate()
    await before.start()
    await before.enqueue("first", 30, url)
    assert f"to {head()}" in await present.migrate()
    await before.enqueue("second", 30, url)
    await rolling.delivered(60)  # by the old worker alone
    await present.start()
    await before.enqueue("third", 30, url)
    await present.enqueue("fourth", 30, url)
    await rolling.delivered(120)
    await before.stop()
    await present.enqueue("fifth", 30, url)
    await rolling.delivered(150)


async def test_start_of_the_release_before_after_the_upgrade(rolling: Rolling) -> None:
    """A worker of the release before that restarts while an upgrade rolls delivers, and says what it found."""
    await rolling.present.migrate()
    await rolling.before.start()
    await rolling.present.enqueue("new", 10, rolling.receiver.url)
    await rolling.delivered(10)
    assert f"the tables are at revision {head()}, which is newer" in rolling.before.logs()


async def test_deferred_nodes_beside_the_release_before(rolling: Rolling) -> None:
    """It runs no node that this release has run, and what it records a second time is not run by this one (§3.2)."""
    before, present, url = rolling.before, rolling.present, rolling.receiver.url
    await present.migrate()
    assert await present.call(["record", "one", url], ["record", "two", url], ["advance", "one"]) == [
        "recorded",
        "recorded",
        ["done", 1],
    ]
    assert await before.call(["advance", "one"], ["advance", "two"], ["record", "one", url]) == [
        ["done", 0],
        ["done", 1],
        "recorded",
    ]
    assert await present.call(["advance", "one"], ["record", "one", url]) == [["done", 0], "skipped"]
    assert await rolling.query("SELECT count(*) FROM flowactions_outbox") == [(2,)]
