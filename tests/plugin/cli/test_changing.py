from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, delete, func, select, update

from flowactions_plugin.insights.port import Insights
from flowactions_plugin.storage import schema
from tests.commanding import Ended, command, running
from tests.plugin.stored import a_dead_one
from tests.queueing import Queue
from tests.recorder import Recorder, recorder
from tests.waiting import SAFETY_SECONDS, until


class Site:
    """A database with dead deliveries, and the commands on it.

    Attributes:
        queue: the queue.
        receiver: where the deliveries go.
    """

    def __init__(self, queue: Queue, receiver: Recorder, cwd: Path, url: str) -> None:
        self.queue = queue
        self.receiver = receiver
        self.cwd = cwd
        self.settings = {
            "FLOWACTIONS_DATABASE_URL": url,
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DELIVERY": "continuous",
            "FLOWACTIONS_HOST_WORKER": "off",
        }

    async def run(self, *arguments: str) -> Ended:
        return await command(*arguments, cwd=self.cwd, **self.settings)

    async def put_dead(self, count: int, **changes: Any) -> list[str]:
        url = self.receiver.url
        to: dict[str, Any] = {"url": url, "destination": url.removesuffix("/hook")}
        return [await a_dead_one(self.queue, **to, **changes) for _ in range(count)]

    async def states(self) -> dict[str, int]:
        query = select(schema.outbox.c.status, func.count().label("number")).group_by(schema.outbox.c.status)
        return {row.status: row.number for row in await self.queue.database.rows(query)}

    async def actions(self) -> Sequence[Row[Any]]:
        return await self.queue.database.rows(select(schema.actions))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a worker, which is known as alive when the block begins; killed at the end if it still runs."""

        async def is_known() -> bool:
            return bool(await self.queue.database.rows(select(schema.workers)))

        async with self.started("worker", "--host", "tests.plugin.cli.host:make") as process:
            await until(is_known)
            yield process

    def started(self, *arguments: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """Run a command; killed at the end if it still runs."""
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        return running(*arguments, cwd=self.cwd, stdout=null, stderr=pipe, **self.settings)


@pytest.fixture
async def site(queue: Queue, database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A database without rows, and a receiver."""
    async with recorder() as receiver:
        yield Site(queue, receiver, tmp_path, database_url)


@pytest.mark.ci
async def test_a_retry_is_carried_out_by_workers_and_survives_its_command(site: Site) -> None:
    """Killed in the middle, the command takes nothing with it; another one shows that it has ended."""
    await site.put_dead(24)
    await site.put_dead(3, event_type="b")
    async with site.worker():
        retry = ("outbox", "retry", "--where", "type:t", "--yes", "--rate", "4")
        async with site.started(*retry) as process:
            await until(lambda: len(site.receiver.requests) >= 2)
            process.kill()
            await process.wait()
        (action,) = await site.actions()
        assert (action.state, action.counted) == ("running", 24)
        await until(lambda: len(site.receiver.requests) >= 24)

        async def is_done() -> bool:
            delivered = (await site.states()).get("delivered")
            return (delivered, [each.state for each in await site.actions()]) == (24, ["done"])

        await until(is_done)
    shown = await site.run("status")
    assert re.search(rf"^{action.id}  retry  done +24  24  ", shown.out, re.MULTILINE)
    assert await site.states() == {"delivered": 24, "dead": 3}
    assert len(site.receiver.requests) == 24


async def test_an_action_is_stopped_before_a_worker_takes_it_up(site: Site) -> None:
    """Nothing was changed then; a command that follows one which is stopped says so by its exit status."""
    await site.put_dead(5)
    begun = await site.run("outbox", "delete", "all", "--yes")
    (action,) = await site.actions()
    assert begun.code == 0
    assert f"to stop it: flowactions outbox stop {action.id}" in begun.err
    assert "no worker is alive: the action waits until one runs" in begun.err
    ended = await site.run("outbox", "stop", action.id)
    (stopped,) = await site.actions()
    assert (ended.code, stopped.state, stopped.done) == (0, "stopped", 0)
    assert "stopped: stopped by" in ended.err
    assert await site.states() == {"dead": 5}
    assert (await site.run("outbox", "stop", "nonsense")).code == 1


async def test_a_cancellation_needs_no_worker(site: Site) -> None:
    """The command itself does it."""
    for _ in range(3):
        await site.queue.put()
    done = await site.run("outbox", "cancel", "all", "--yes")
    (action,) = await site.actions()
    assert (done.code, action.state, action.done) == (0, "done", 3)
    assert "done; 3 of 3 cancelled" in done.err
    assert await site.states() == {"dead": 3}


async def test_an_interrupted_command_says_how_it_goes_on(site: Site) -> None:
    """Ctrl+C ends the command with 130, and not the action."""
    await site.put_dead(1)

    async def is_alive() -> bool:
        return any(each.state == "alive" for each in await Insights(site.queue.database).workers())

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(site.worker())
        await until(is_alive)
        process = await stack.enter_async_context(
            site.started("outbox", "retry", "all", "--rate", "0.1", "--yes")
        )
        assert process.stderr is not None
        said = b""
        async with asyncio.timeout(SAFETY_SECONDS):
            while b"running" not in said:
                said += await process.stderr.readline()
            process.send_signal(signal.SIGINT)
            said += await process.stderr.read()
            assert await process.wait() == 130
    shown = said.decode()
    assert "the action continues; to see how far it is: flowactions status" in shown
    assert "to stop it: flowactions outbox stop " in shown
    assert "Traceback" not in shown
    (action,) = await site.actions()
    assert action.state != "stopped"


async def test_what_would_be_changed_is_shown_first(site: Site) -> None:
    """A question that nobody can answer changes nothing."""
    ids = await site.put_dead(4)
    asked = await site.run("outbox", "retry", "--where", "error:http_5xx status:dead", "--rate", "2")
    assert (asked.code, "Nobody can be asked here: add --yes" in asked.err) == (2, True)
    head, pace, *shares = asked.out.splitlines()
    assert (head.startswith("4 deliveries at "), pace) == (True, "at this rate, they take 2.0 s")
    assert shares[-1].split() == [site.receiver.url.removesuffix("/hook"), "4"]
    for arguments, code, told in (
        (("retry", "all"), 2, "Nobody can be asked here: add --yes"),
        (("retry",), 2, "which ones?"),
        (("retry", ids[0], "--where", "type:a"), 2, "give ids, or a filter, and not both"),
        (("retry", "nonsense"), 2, "one of the ids is none"),
        (("retry", "--where", "stauts:dead", "--yes"), 2, "did you mean status:?"),
        (("cancel", "--where", "status:dead", "--yes"), 2, "Cancel changes what is pending or retrying only"),
        (("delete", ids[0]), 2, "Nobody can be asked here"),
        (("resend", ids[0], "--rate", "1"), 2, "--rate is for a filter"),
    ):
        ended = await site.run("outbox", *arguments)
        assert ended.code == code, arguments
        assert told in ended.err
        assert ended.err.count("\n") == 1
    assert await site.states() == {"dead": 4}
    none = await site.run("outbox", "cancel", "all", "--yes")
    assert (none.code, none.out.startswith("0 deliveries at ")) == (0, True)


async def test_single_deliveries_are_changed_at_once(site: Site) -> None:
    """Each says whether it was changed; the audit says who did it and why."""
    first, second, third = await site.put_dead(3)
    retried = await site.run("outbox", "retry", first, "--reason", "mended")
    assert (retried.code, retried.out) == (0, "1 of 1 due now\n")
    again = await site.run("outbox", "retry", first, second)
    assert again.code == 1
    assert f"{first}: no delivery has this id, or its state does not allow this" in again.err
    assert "1 of 2 due now" in again.out
    cancelled = await site.run("outbox", "cancel", first)
    assert (cancelled.code, cancelled.out) == (0, "1 of 1 cancelled\n")
    claimed = await site.queue.put()
    assert claimed in {each.id for each in await site.queue.store.claim(10)}
    sent = await site.run("outbox", "cancel", claimed)
    assert (sent.code, sent.out) == (0, "0 of 1 cancelled, 1 was being sent\n")
    await site.queue.run(delete(schema.outbox).where(schema.outbox.c.id == claimed))
    deleted = await site.run("outbox", "delete", third, "--yes")
    assert deleted.code == 0
    assert await site.states() == {"pending": 1, "dead": 1}
    shown = await site.run("outbox", "show", first, "--json")
    assert [each["action"] for each in shown.document["audit"]] == ["cancel", "retry"]
    assert shown.document["audit"][1]["reason"] == "mended"
    assert shown.document["audit"][1]["actorRole"] == "command"
    assert (await site.run("outbox", "show", third)).code == 1


@pytest.mark.ci
async def test_delivered_webhooks_are_sent_again_by_id_and_by_filter(site: Site) -> None:
    """Each new delivery is named; a dead one is not sent, a retry says what it leaves out, and a filter needs a bound."""
    first, second = await site.put_dead(2)
    await site.queue.run(
        update(schema.outbox).where(schema.outbox.c.id == first).values(status="delivered", error_class=None)
    )
    resent = await site.run("outbox", "resend", first, second, "--reason", "lost")
    said, number = resent.out.splitlines()
    assert (resent.code, number) == (1, "1 of 2 queued again")
    made = said.removeprefix(f"{first}: sent again as ")
    assert await site.states() == {"delivered": 1, "dead": 1, "pending": 1}
    shown = await site.run("outbox", "show", first)
    assert f"resent as     {made}" in shown.out
    assert f"resent from   {first}" in (await site.run("outbox", "show", made)).out
    told = await site.run("outbox", "resend", second)
    assert "not delivered, or retention or a purge has removed it" in told.err
    unbounded = await site.run("outbox", "resend", "--where", "type:t", "--yes")
    assert (unbounded.code, "time from which they were enqueued" in unbounded.err) == (2, True)
    assert (await site.run("outbox", "resend", "--where", "since:1d")).out.startswith("1 delivery at ")
    assert "left out: 1 that are delivered" in (await site.run("outbox", "retry", "all")).out
