"""Deliveries that are sent one after another, while workers are killed and people cancel and retry."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import defaultdict
from contextlib import AsyncExitStack

import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.operations.changes import change_one
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import BEHIND_MS
from tests.crash.workers import Field
from tests.queueing import SOMEBODY
from tests.recorder import OK, status
from tests.support import SmallHost, a_walk
from tests.waiting import until


@pytest.mark.parametrize(
    ("users", "count", "kills"),
    [pytest.param(6, 8, 3, id="some"), pytest.param(50, 40, 10, id="many", marks=pytest.mark.long)],
)
async def test_each_sequence_arrives_in_its_order(field: Field, users: int, count: int, kills: int) -> None:
    """Receivers fail at random, workers are killed, people cancel and retry: nothing is lost, and nothing stays behind.

    What a person has retried is left out: it was given up before what came after it.
    """
    field.settings |= {"FLOWACTIONS_DELIVERY": "continuous", "FLOWACTIONS_RETRY_SCHEDULE": "1s,1s,1s"}
    chance = random.Random(users)  # noqa: S311  the same in each run
    field.receiver.answer = lambda _: OK if chance.random() < 0.8 else status(500)
    actions = FlowActions.load(SmallHost(field.settings))
    url = field.receiver.url
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(actions.lifespan())
        database = await stack.enter_async_context(
            Database(read_settings({"FLOWACTIONS_DATABASE_URL": field.url}).database_url)
        )
        doomed = [await field.start(), await field.start()]
        for number in range(count):
            for user in range(users):
                body = json.dumps({"user": user, "number": number})
                config = {
                    "webhookUrl": url,
                    "webhookBody": body,
                    "webhookInOrder": True,
                    "webhookRetryOnFailure": True,
                }
                walk = a_walk(user_id=str(user), run_id=f"{user}-{number}")
                assert (
                    await actions.reach(walk, Node(id="n", type="webhook", config=config))
                ).status == "queued"
            if number % (count // kills) == 1 and kills:
                await until(lambda: len(field.receiver.requests) > users)
                worker = doomed.pop(0)
                worker.send_signal(signal.SIGKILL)
                await worker.wait()
                await field.end_leases(worker)
                doomed.append(await field.start())
                await self_service(field, database, chance)
        retried = set[str]()

        async def is_over() -> bool:
            retried.update(await retry_dead(field, database))
            return await field.drained()

        await until(is_over)
    rows = await field.query("SELECT body, status, error_class, next_attempt_at FROM flowactions_outbox")
    assert {row.status for row in rows if row.error_class != "cancelled"} == {"delivered"}
    assert not [row for row in rows if row.next_attempt_at == BEHIND_MS]
    arrived: defaultdict[int, list[int]] = defaultdict(list)
    for request in field.receiver.requests:
        body = json.loads(request.body)
        if request.body.decode() not in retried and body["number"] not in arrived[body["user"]]:
            arrived[body["user"]].append(body["number"])
    assert set(arrived) == set(range(users))
    assert all(numbers == sorted(numbers) for numbers in arrived.values()), arrived
    wanted = {bytes(row.body) for row in rows if row.status == "delivered"}
    assert wanted <= {request.body for request in field.receiver.requests}


async def self_service(field: Field, database: Database, chance: random.Random) -> None:
    """Cancel some of the rows that wait, as people do."""
    waiting = await field.query(
        "SELECT id FROM flowactions_outbox WHERE status IN ('pending', 'retrying') ORDER BY id"
    )
    for (row_id,) in chance.sample(waiting, min(3, len(waiting))):
        await change_one(database, "cancel", row_id, Scope("acme"), SOMEBODY, "no")


async def retry_dead(field: Field, database: Database) -> list[str]:
    """Retry the rows that were given up; return their bodies."""
    query = "SELECT id, body FROM flowactions_outbox WHERE status = 'dead' AND error_class <> 'cancelled'"
    dead = await field.query(query)
    await asyncio.gather(*(change_one(database, "retry", row.id, Scope("acme"), SOMEBODY) for row in dead))
    return [bytes(row.body).decode() for row in dead]
