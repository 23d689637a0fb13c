from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Float, Integer, LargeBinary, MetaData, insert, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node, NodeDraft
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.migrations import head
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk, development, services_of
from tests.upgrades.before import ARCHIVE, Release
from tests.upgrades.released import connected, every_row, run
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
    """The test runs the revision that hosts upgrade from, and the present one."""
    assert (await rolling.before.version(), await rolling.present.version()) == ("0004", head())


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


@pytest.mark.full
async def test_unsigned_tests_wait_for_a_worker_of_the_present(rolling: Rolling) -> None:
    """A worker of the release before signs no unsigned test: it cannot read where it comes from, and gives it back."""
    await rolling.present.migrate()
    await rolling.before.start()
    host = SmallHost(development(rolling.url, FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    services_of(host).tests._wait_seconds = 0
    node = Node(id="n", type="webhook", config={"webhookUrl": rolling.receiver.url})
    async with actions.lifespan():
        draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
        assert (await actions.test(draft, a_walk())).status == "pending"
    waits = "SELECT last_error, attempts FROM flowactions_outbox WHERE waiting_since IS NOT NULL"
    await until(partial(rolling.query, waits), seconds=60)
    ((why, attempts),) = await rolling.query(waits)
    assert (attempts, "'unsigned_test'" in str(why)) == (0, True)
    await rolling.before.stop()
    assert rolling.receiver.requests == []
    async with connected(rolling.url) as connection:
        await connection.execute(text("UPDATE flowactions_outbox SET next_attempt_at = 0"))
    await rolling.present.start()
    await rolling.delivered(1)
    assert "x-service-webhook-signature" not in dict(rolling.receiver.requests[0].headers)


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


async def fill(url: str) -> None:
    """Write two rows into each table as it is, one with every column and one with those only that need a value."""
    now = int(time.time() * 1000)
    metadata = MetaData()
    async with connected(url) as connection:
        await connection.run_sync(metadata.reflect)
        for table in metadata.sorted_tables:
            if not table.name.startswith("flowactions") or "version" in table.name:
                continue
            for whole in (True, False):
                values: dict[str, Any] = {}
                for column in table.c:
                    if column.nullable and not whole:
                        continue
                    binary, number = (isinstance(column.type, kind) for kind in (LargeBinary, (Integer, Float)))
                    words = f"{column.name[:8]}-{whole}"
                    values[column.name] = (
                        now if number and column.name.endswith("_at") else int(whole) if number else words
                    )
                    values[column.name] = words.encode() if binary else values[column.name]
                if "status" in values:
                    values["status"] = ("delivered" if whole else "dead") if "url" in values else "active"
                if "finished_at" in table.c:
                    values["finished_at"] = now
                if table.name == "flowactions_deferred":
                    values |= {"id": 1000 + whole, "token": None, "held_until": None}
                await connection.execute(insert(table).values(values))


async def test_filled_tables_are_carried_on(rolling: Rolling) -> None:
    """Every row of every table is as it was, new columns and tables are empty, and what waited goes on (§9)."""
    before, present, url = rolling.before, rolling.present, rolling.receiver.url
    await before.migrate()
    await before.call(["enqueue", "queued", 4, url], ["record", "waits", url], ["record", "begun", url])
    await fill(rolling.url)
    await run(
        rolling.url,
        "UPDATE flowactions_deferred SET token = 'gone', held_until = 1, holds = 1 WHERE run_id = 'begun'",
        "UPDATE flowactions_outbox SET status = 'retrying', attempts = 1 WHERE id IN"
        " (SELECT max(id) FROM flowactions_outbox WHERE status = 'pending')",
    )
    filled = await every_row(rolling.url)
    assert len(filled) >= 16
    await present.migrate()
    for name, rows in (await every_row(rolling.url)).items():
        if "version" in name:
            continue
        if name not in filled:
            assert rows == [], name
            continue
        known = filled[name][0].keys()
        assert [{column: row[column] for column in known} for row in rows] == filled[name], name
        assert {row[column] for row in rows for column in row.keys() - known} <= {None, 0, ""}, name
    await present.start()
    assert await present.call(["advance", "waits"], ["record", "waits", url]) == [["done", 1], "skipped"]

    async def arrived() -> bool:
        return len({request.header("x-service-webhook-id") for request in rolling.receiver.requests}) == 6

    await until(arrived, seconds=60)
