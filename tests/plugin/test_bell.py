from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox import bell, continuous
from flowactions_plugin.outbox.bell import DEBOUNCE_SECONDS, Bell, keep_listening
from flowactions_plugin.services import Services
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, until


async def test_many_rings_are_few_notifications() -> None:
    """The first goes out at once; those of a moment go together; the last is never swallowed."""
    times: list[float] = []

    async def notify() -> None:
        times.append(time.monotonic())

    ringing = Bell(notify)
    async with ringing:
        started = time.monotonic()
        for _ in range(100):
            ringing.ring()
            await asyncio.sleep(0.001)
        rang = time.monotonic()
        await asyncio.sleep(3 * DEBOUNCE_SECONDS)
    assert times[0] - started < DEBOUNCE_SECONDS
    assert 2 <= len(times) <= (rang - started) / DEBOUNCE_SECONDS + 2
    assert times[-1] > rang - DEBOUNCE_SECONDS


async def test_a_notification_that_fails_harms_nobody() -> None:
    """The next one is sent all the same."""
    tried = 0

    async def notify() -> None:
        nonlocal tried
        tried += 1
        raise StorageUnavailable("away")

    ringing = Bell(notify)
    async with ringing:
        for expected in (1, 2):
            ringing.ring()
            await until(lambda expected=expected: tried == expected)  # type: ignore[misc]
            await asyncio.sleep(2 * DEBOUNCE_SECONDS)


async def test_after_its_end_it_does_not_ring() -> None:
    """A commit that is heard of too late opens no connection that nobody would close."""
    times: list[float] = []

    async def notify() -> None:
        times.append(time.monotonic())

    ringing = Bell(notify)
    ringing.ring()
    async with ringing:
        pass
    ringing.ring()
    await asyncio.sleep(2 * DEBOUNCE_SECONDS)
    assert times == []
    async with ringing:
        ringing.ring()
        await until(lambda: times)


async def test_listening_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lost connection the worker looks once, for it may have missed something, and listens again."""
    monkeypatch.setattr(bell, "RELISTEN_SECONDS", 0.01)
    listened, heard = 0, 0

    async def listen() -> None:
        nonlocal listened
        listened += 1
        if listened % 2:
            raise StorageUnavailable("away")

    def hear() -> None:
        nonlocal heard
        heard += 1

    task = asyncio.create_task(keep_listening(listen, hear))
    await until(lambda: heard >= 3)
    task.cancel()
    assert listened >= 3


async def test_a_worker_elsewhere_is_woken(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL, a row of one host is delivered by another at once, and again after its connection was cut."""
    monkeypatch.setattr(continuous, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(bell, "RELISTEN_SECONDS", 0.2)
    settings = development(postgres_url, FLOWACTIONS_DELIVERY="continuous")
    sending = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
    delivering = FlowActions.load(SmallHost(settings))
    async with recorder() as receiver, sending.lifespan(), delivering.lifespan():
        database = sending.host.plugin_state(Services)._database
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})

        async def listeners() -> int:
            query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            async with database.read() as connection:
                return int((await connection.execute(text(query))).scalar_one())

        await until(listeners)
        assert (await sending.reach(a_walk(), node)).status == "queued"
        await until(lambda: len(receiver.requests) == 1, seconds=2)
        async with database.read() as connection:
            await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                )
            )
        assert (await sending.reach(a_walk(), node)).status == "queued"  # nobody listens, perhaps
        await until(lambda: len(receiver.requests) == 2, seconds=5)
        await until(listeners)
