"""`FLOWACTIONS_DELIVERY_TIMEOUT`: how long an attempt may take, and what a process does by it (§8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.storage.schema import outbox, workers
from tests.commanding import command
from tests.plugin.nodes.running import running
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until

ANSWERS_AFTER = 1.5


@pytest.mark.parametrize(("seconds", "arrives"), [("1", False), ("3", True)])
async def test_an_attempt_ends_after_the_time_of_the_setting(
    database_url: str, seconds: str, arrives: bool
) -> None:
    """A receiver that answers after 1.5 s has not answered within one; the error and the worker's row have the time.

    Where it is too late, it answers once the delivery has ended: time in which this process stood still is no attempt's.
    """
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY_TIMEOUT=seconds))
    async with running(host) as run:
        run.receiver.held = held = asyncio.Event()
        if arrives:
            asyncio.get_running_loop().call_later(ANSWERS_AFTER, held.set)
        node = Node(id="n", type="webhook", config={"webhookUrl": run.receiver.url})
        row = await run.ended(await run.reach(node))
        held.set()
        (told,) = await services_of(host)._database.rows(select(workers.c.delivery_timeout))
    assert told.delivery_timeout == int(seconds)
    assert (row["status"], row["lastStatusCode"]) == (("delivered", 200) if arrives else ("dead", None))
    if not arrives:
        assert row["lastError"] == "timed out after 1 s while waiting for the answer"


async def test_a_stop_waits_for_attempts_as_long_as_they_may_take(database_url: str) -> None:
    """The outcome is written before the process has stopped."""
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY_TIMEOUT="3"))
    actions = FlowActions.load(host)
    async with recorder() as receiver:
        receiver.held = asyncio.Event()
        async with actions.lifespan():
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
            assert (await actions.reach(a_walk(), node)).status == "queued"
            await until(lambda: receiver.requests)
            asyncio.get_running_loop().call_later(ANSWERS_AFTER, receiver.held.set)
        async with services_of(host)._database as database:
            (row,) = await database.rows(select(outbox))
    assert (row.status, row.attempts, len(receiver.requests)) == ("delivered", 1, 1)


@pytest.mark.parametrize("seconds", ["", "1", "60"])
def test_what_follows_from_the_setting(database_url: str, seconds: str) -> None:
    """Lease, drain, contact with the queue, and for how long a draft's test waits."""
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY_TIMEOUT=seconds))
    made, number = services_of(host), int(seconds or 10)
    (delivery, _) = made._delivery_tasks()
    assert delivery.drain_seconds == number + 8
    assert made._delivery.claims.contact.lease_seconds == number + 20
    assert made.tests._wait_seconds == number + 2
    (contact,) = [each for each in made.housekeeping() if each.name == "contact with the queue"]
    assert contact.seconds == 2


async def test_a_test_event_ends_after_the_time_of_the_setting(tmp_path: Path) -> None:
    """Of the command, too."""
    async with recorder() as receiver:
        receiver.held = asyncio.Event()
        settings = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_DELIVERY_TIMEOUT": "1"}
        sent = await command("send-test", receiver.url, cwd=tmp_path, **settings)
        receiver.held.set()
    assert "not delivered: timed out after 1 s while waiting for the answer" in sent.out
