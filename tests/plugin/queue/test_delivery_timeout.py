"""`FLOWACTIONS_DELIVERY_TIMEOUT`: how long an attempt may take, and what a process does by it (§8)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from flowactions_hookspecs import Node
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.queue.claims import Contact
from flowactions_plugin.queue.rules import timing_of
from flowactions_plugin.storage.schema import workers
from tests.commanding import command
from tests.plugin.nodes.running import running
from tests.queueing import Queue, a_schedule, an_executor, continuously, ok
from tests.recorder import recorder
from tests.sending import Deadlines
from tests.support import SmallHost, development, services_of

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


def _ahead(seconds: float) -> float:
    return lease_clock() + seconds


@pytest.mark.parametrize("seconds", [1, 10, 60])
class TestSpareTime:
    """What a lease has beside the attempt does not depend on the setting, nor does what it is used for."""

    def test_an_outage_is_one_after_five_seconds(self, seconds: int) -> None:
        """Leases of others that ended meanwhile are left to them for as long as a lease."""
        now = 0.0
        contact = Contact(timing_of(seconds), lambda: now)
        contact.succeeded(0.0)
        now = 4.9
        assert contact.grace() == 0
        now = 5.1
        assert contact.grace() > 0
        contact.succeeded(now)
        now += seconds + 19.9
        contact._last = now
        assert contact.grace() > 0
        now += 0.2
        contact._last = now
        assert contact.grace() == 0

    async def test_a_stall_of_eight_seconds_is_settled_first(self, queue: Queue, seconds: int) -> None:
        """One of seven is shorter than what a lease has left."""
        executor = an_executor(queue, ok, timing=timing_of(seconds))
        for lost, behind in ((7.0, False), (8.0, True)):
            executor.lag._longest = lost
            assert executor.behind is behind

    async def test_what_waits_for_a_slot_is_given_back_after_ten_seconds(
        self, queue: Queue, seconds: int
    ) -> None:
        """Another worker may have a slot."""
        queue = Queue(queue.database, timing_of(seconds))
        answers = asyncio.Event()

        async def answer(_request: httpx.Request) -> httpx.Response:
            await answers.wait()
            return httpx.Response(200)

        for name in "abcdefgh":
            await queue.put(url=f"http://{name}.example/", destination=f"http://{name}.example:80")
        claims = continuously(queue, answer, 4, 1, timing=timing_of(seconds))
        contact = queue.store.contact
        await claims.run_once()
        for later, waits in ((0, True), (9, True), (11, False)):
            contact.clock = partial(_ahead, later)
            await claims._return_waiting()
            assert any(claims._lanes.waiting_rows()) is waits
        answers.set()
        await claims.quiesce()
        await claims._executor.completer.flush()

    async def test_a_tick_begins_what_waits_for_others_within_ten_seconds(
        self, queue: Queue, seconds: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Large rows of which the first take as long are given back."""
        queue = Queue(queue.database, timing_of(seconds))
        monkeypatch.setattr("flowactions_plugin.queue.scheduled.MOST_BYTES", 1)
        for later, sent in ((9.0, 3), (11.0, 1)):
            now = [0.0]

            async def answer(_request: httpx.Request, now: list[float] = now, later: float = later) -> Any:
                now[0] = later
                return httpx.Response(200)

            rows = [await queue.put(body=b"x" * (1 << 20), max_attempts=1) for _ in range(3)]
            clock = partial(now.__getitem__, 0)
            schedule = a_schedule(queue, answer, timing=timing_of(seconds), clock=clock, lag=Deadlines())
            assert await schedule.tick() == sent
            ended = [(await queue.row(each)).status for each in rows]
            assert ended.count("delivered") == sent


async def test_a_test_event_ends_after_the_time_of_the_setting(tmp_path: Path) -> None:
    """Of the command, too."""
    async with recorder() as receiver:
        receiver.held = asyncio.Event()
        settings = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_DELIVERY_TIMEOUT": "1"}
        sent = await command("send-test", receiver.url, cwd=tmp_path, **settings)
        receiver.held.set()
    assert "not delivered: timed out after 1 s while waiting for the answer" in sent.out
