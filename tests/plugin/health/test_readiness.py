"""One word about this process, for anybody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from flowactions_hookspecs import FlowActions
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.urls import parse_database_url
from flowactions_plugin.watch.readiness import Health
from tests.queueing import Queue
from tests.support import SmallHost, development, services_of, transport_of

LIVE, READY = "/integrations/health/live", "/integrations/health/ready"


def client(actions: FlowActions) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")


async def test_a_process_is_ready_while_its_lifespan_is_open(database_url: str) -> None:
    """Before and after it is alive, and starting. Nobody has to sign in, and no answer is kept by a cache."""
    host = SmallHost(development(database_url))
    host.principal = None
    actions = FlowActions.load(host)
    async with client(actions) as http:
        before = await http.get(READY)
        assert (before.status_code, before.text) == (503, "starting")
        async with actions.lifespan():
            ready = await http.get(READY)
            assert (ready.status_code, ready.text) == (200, "ready")
            assert ready.headers["content-type"].startswith("text/plain")
            assert ready.headers["cache-control"] == "no-store"
        after = await http.get(READY)
        assert (after.status_code, after.text) == (503, "starting")
        live = await http.get(LIVE)
        assert (live.status_code, live.text) == (200, "live")


async def test_a_database_that_is_away_is_named(tmp_path: Path) -> None:
    """The process is alive, and not ready; when the database is back, it is."""
    path = tmp_path / "f.db"
    host = SmallHost(development(f"sqlite:///{path}", FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    async with actions.lifespan(), client(actions) as http:
        await Queue(services_of(host)._database).run("ALTER TABLE flowactions_outbox RENAME TO elsewhere")
        away = await http.get(READY)
        assert (away.status_code, away.text) == (503, "database")
        assert (await http.get(LIVE)).text == "live"


async def test_the_database_is_asked_once_a_second(sqlite_url: str) -> None:
    """However many ask: those of one moment share an answer, and it is kept for a second."""
    now = [100.0]
    async with Database(parse_database_url(sqlite_url)) as database:
        health = Health(database, lambda: True, lambda: now[0])
        assert set(await asyncio.gather(*(health.readiness() for _ in range(50)))) == {"ready"}
        await Queue(database).run("ALTER TABLE flowactions_outbox RENAME TO elsewhere")
        now[0] += 0.9
        assert await health.readiness() == "ready"
        now[0] += 0.2
        assert await health.readiness() == "database"
        await Queue(database).run("ALTER TABLE elsewhere RENAME TO flowactions_outbox")
        assert await health.readiness() == "database"
        now[0] += 1.1
        assert await health.readiness() == "ready"


async def test_a_caller_that_leaves_takes_the_answer_from_nobody(sqlite_url: str) -> None:
    """The others that wait for the same look get it."""
    async with Database(parse_database_url(sqlite_url)) as database:
        health = Health(database, lambda: True)
        first = asyncio.create_task(health.readiness())
        second = asyncio.create_task(health.readiness())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "ready"
        with pytest.raises(asyncio.CancelledError):
            await first
