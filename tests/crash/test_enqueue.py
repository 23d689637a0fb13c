"""Logic-webhook calls under real processes: they reach the limit, and are killed in between."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.crash.actors import AT_ONCE, Actor, actors, die_at_each
from tests.support import development

PATH = "/v1/agents/agent-{}/experiences/survey/logic-webhook"


def body(key: str) -> dict[str, Any]:
    return {"idempotencyKey": key, "source": "experience_trigger", "actionIndex": 0, "triggerRowId": "row"}


class Field:
    """A database that several processes take calls into."""

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self.settings = development(url)
        self._engine = engine

    async def query(self, statement: str) -> list[Any]:
        async with self._engine.connect() as connection:
            return [tuple(row) for row in (await connection.execute(text(statement))).all()]

    async def stop_the_minute(self) -> None:
        """Keep the minute of a first call from passing: a clock that was set back counts as standing still."""
        times = f"[{int(time.time() + 3600) * 1000}]"
        async with self._engine.begin() as connection:
            await connection.execute(text(f"UPDATE flowactions_enqueue_rates SET times = '{times}'"))  # noqa: S608

    async def keys_and_rows(self) -> tuple[set[Any], set[Any]]:
        keys = await self.query(
            "SELECT substr(caller, 5), idempotency_key, delivery_id FROM flowactions_enqueue_keys"
        )
        rows = await self.query("SELECT agent_id, idempotency_key, id FROM flowactions_outbox")
        return set(keys), set(rows)


@pytest.fixture
async def field(database_url: str) -> AsyncIterator[Field]:
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url):
        pass  # its tables are made before anybody races
    engine = create_async_engine(url)
    yield Field(database_url, engine)
    await engine.dispose()


async def post(actor: Actor, agent: int, keys: list[str]) -> list[int]:
    """Call with each key, several at once, and again as callers do while the database of a busy machine does not answer."""
    statuses: list[int] = []
    while keys:
        answered: list[int] = await actor.ask(
            do="post", path=PATH.format(agent), bodies=[body(key) for key in keys]
        )
        statuses += [status for status in answered if status != 503]
        keys = [key for key, status in zip(keys, answered, strict=True) if status == 503]
    return statuses


@pytest.mark.ci
async def test_sixty_in_a_minute_over_all_processes(field: Field) -> None:
    """Of 100 calls from four processes at once, exactly 60 are taken, and none later in the minute."""
    async with actors(field.settings, AT_ONCE) as processes:
        assert await post(processes[0], 1, ["first"]) == [202]
        await field.stop_the_minute()
        found = await asyncio.gather(
            *(
                post(actor, 1, [f"{number}-{call}" for call in range(25)])
                for number, actor in enumerate(processes)
            )
        )
        assert Counter(status for statuses in found for status in statuses) == {202: 59, 429: 41}
        assert await post(processes[0], 1, ["late"]) == [429]
        assert await post(processes[0], 2, ["late"]) == [202]
    keys, rows = await field.keys_and_rows()
    assert keys == rows
    assert len(rows) == 61


@pytest.mark.ci
async def test_killed_between_any_two_statements_key_and_row_stay_together(field: Field) -> None:
    """Never a key without its row, nor a row without its key; and the call made again ends as it should (kill -9) (§4.2)."""
    async with actors(field.settings, 1) as (actor,):
        points = await actor.points(do="post", path=PATH.format(1), bodies=[body("dry")])
    assert points >= 10
    await field.stop_the_minute()
    await die_at_each(
        field.settings,
        points,
        lambda point: {"do": "post", "path": PATH.format(1), "bodies": [body(f"key-{point}")]},
    )
    keys, rows = await field.keys_and_rows()
    assert keys == rows
    async with actors(field.settings, 1) as (actor,):
        statuses = await post(actor, 1, [f"key-{point}" for point in range(1, points + 1)])
    keys, rows = await field.keys_and_rows()
    assert keys == rows
    assert len(rows) == 1 + points
    assert set(statuses) <= {202, 204}
    counted = await field.query("SELECT times FROM flowactions_enqueue_rates WHERE agent_id = 'agent-1'")
    assert counted[0][0].count(",") + 1 == 1 + points
