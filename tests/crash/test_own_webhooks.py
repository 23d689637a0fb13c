"""A process that enqueues a webhook of its host's is killed at each point, and others carry on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from tests.crash.actors import Actor, actors, die_at_each
from tests.crash.workers import Field
from tests.owning import OwningHost, engine_of, keys_and_rows, orders, owning
from tests.support import development
from tests.waiting import until


@pytest.fixture
async def host(database_url: str) -> AsyncIterator[OwningHost]:
    """What the test itself looks at the database with."""
    async with owning(database_url):
        pass  # its tables are made before anybody dies
    looking = OwningHost(engine_of(database_url))
    yield looking
    await looking.engine.dispose()


def settings_of(database_url: str, *, shared: bool) -> dict[str, str]:
    # Without tasks, every statement is of what is asked.
    shares = {"FLOWACTIONS_TEST_SHARED": "1"} if shared else {}
    return development(database_url, FLOWACTIONS_TEST_NO_TASKS="1", **shares)


async def ask(actor: Actor, how: str, key: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await actor.ask(do="enqueue", how=how, key=key, **more)
    return answer


@pytest.mark.parametrize("how", ["alone", "transaction"])
async def test_killed_at_any_point_it_is_there_once_or_not_at_all(
    database_url: str, host: OwningHost, how: str
) -> None:
    """Row, key and the host's own row stand or fall together; the call repeated ends with one row (kill -9)."""
    settings = settings_of(database_url, shared=how == "transaction")
    async with actors(settings, 1) as (actor,):
        points = await actor.points(do="enqueue", how=how, key="dry")
    assert points > 2
    await die_at_each(settings, points, lambda point: {"do": "enqueue", "how": how, "key": f"k-{point}"})
    keys, rows = await keys_and_rows(host)
    assert {key[2:] for key in keys} == {(row.idempotency_key, row.id) for row in rows}
    there = {row.idempotency_key for row in rows if row.idempotency_key.startswith("k-")}
    if how == "transaction":
        assert {each for each in await orders(host) if each.startswith("k-")} == there
    # Killed before anything is nothing; killed when it is done is there.
    assert "k-1" not in there
    assert f"k-{points}" in there
    async with actors(settings, 1) as (actor,):
        for point in range(1, points + 1):
            # The host's own row is there already where the first try has committed.
            again = await ask(actor, "alone" if how == "transaction" else how, f"k-{point}")
            assert again["status"] == ("duplicate" if f"k-{point}" in there else "queued"), point
    keys, rows = await keys_and_rows(host)
    assert {key[2:] for key in keys} == {(row.idempotency_key, row.id) for row in rows}
    assert set(Counter(row.idempotency_key for row in rows).values()) == {1}
    assert {f"k-{point}" for point in range(1, points + 1)} < {row.idempotency_key for row in rows}


async def test_racing_processes_queue_once(database_url: str, host: OwningHost) -> None:
    """Of four processes with one key, alone and in transactions of theirs, one queues; the others know its ids."""
    async with actors(settings_of(database_url, shared=True), 4) as processes:
        for key in (f"race-{number}" for number in range(5)):
            receipts = await asyncio.gather(*(ask(actor, "alone", key) for actor in processes))
            assert Counter(each["status"] for each in receipts) == {"queued": 1, "duplicate": 3}
            assert len({each["deliveryId"] for each in receipts}) == 1
        await ask(processes[0], "rolled back", "back")
        assert (await ask(processes[1], "alone", "back"))["status"] == "queued"
    assert await orders(host) == set()
    keys, rows = await keys_and_rows(host)
    assert len(keys) == len(rows) == 6


async def test_what_a_process_without_tasks_enqueues_a_worker_sends(
    field: Field, database_url: str, host: OwningHost
) -> None:
    """Alone, from a thread and in a transaction; what was rolled back is not sent."""
    async with actors(settings_of(database_url, shared=True), 1) as (actor,):
        for how in ("alone", "thread", "transaction", "rolled back"):
            assert (await ask(actor, how, how, url=field.receiver.url))["status"] == "queued"
    async with host.engine.connect() as connection:
        pending = (await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))).scalar_one()
    assert (pending, field.receiver.requests) == (3, [])
    await field.start()
    await until(field.drained)
    await field.stop()
    await field.check_nothing_lost(3)
