from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import Advanced, Deferred, FlowActions, Node, NodeResult, Walk
from flowactions_plugin.errors import LeaseLost
from flowactions_plugin.nodes.pacing import Pacing
from flowactions_plugin.nodes.store import step_of
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.pacing import another
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk, development, hurry, services_of
from tests.waiting import until


@asynccontextmanager
async def running(database_url: str, **settings: str) -> AsyncIterator[FlowActions]:
    actions = FlowActions.load(SmallHost(development(database_url, **settings)))
    async with actions.lifespan():
        yield actions


@pytest.fixture
async def actions(database_url: str) -> AsyncIterator[FlowActions]:
    async with running(database_url) as started:
        yield started


@pytest.fixture
async def receiver() -> AsyncIterator[Recorder]:
    async with recorder() as started:
        yield started


def node(node_id: str, url: str, **config: Any) -> Node:
    body = '{"node": "' + node_id + '", "said": {{content}}}'
    return Node(id=node_id, type="webhook", config={"webhookUrl": url, "webhookBody": body, **config})


def before(walk: Walk, step_id: str | None) -> Walk:
    """Make the walk as it is when a node before this step is reached."""
    return a_walk(run_id=walk.run_id, pacing=Deferred(step_id))


async def nothing_but(actions: FlowActions, receiver: Recorder, *names: str) -> None:
    """Check what has been sent, by sending something behind it."""
    await actions.reach(a_walk(), node("behind", receiver.url))

    def sent() -> list[str]:
        return [json.loads(request.body)["node"] for request in receiver.requests]

    await until(lambda: "behind" in sent())
    assert sent() == [*names, "behind"]


def ids(*advanced: Advanced) -> list[str]:
    return [result.node_id for each in advanced for result in each.results]


async def test_nothing_fires_until_its_step(actions: FlowActions, receiver: Recorder) -> None:
    """A recorded node fires on its own step, once, and the end of the flow is a step, too (§3.2)."""
    walk = a_walk()
    for name, step in (("a", "s2"), ("b", "s2"), ("c", "s3"), ("d", None)):
        result = await actions.reach(before(walk, step), node(name, receiver.url))
        assert result == NodeResult(node_id=name, status="recorded")
    await nothing_but(actions, receiver)
    assert ids(await actions.advance(walk, "s1")) == []
    assert ids(await actions.advance(walk, "s2")) == ["a", "b"]
    assert ids(await actions.advance(walk, "s2")) == []
    assert ids(await actions.advance(walk, "s3")) == ["c"]
    assert ids(await actions.advance(walk, None)) == ["d"]
    assert ids(await actions.advance(walk, None)) == []
    await until(lambda: len(receiver.requests) == 5)


async def test_other_runs_and_organizations_are_not_touched(actions: FlowActions, receiver: Recorder) -> None:
    """A step of one run fires nothing of another, not even with the same run id in another organization."""
    walk = a_walk()
    await actions.reach(before(walk, "s"), node("a", receiver.url))
    assert ids(await actions.advance(a_walk(), "s")) == []
    assert ids(await actions.advance(a_walk(run_id=walk.run_id, organization_id="globex"), "s")) == []
    assert ids(await actions.advance(walk, "s")) == ["a"]


async def test_racing_advances_fire_once(actions: FlowActions, receiver: Recorder) -> None:
    """However many calls race, each record fires once, in all."""
    walk = a_walk()
    for name in ("a", "b", "c"):
        await actions.reach(before(walk, "s"), node(name, receiver.url))
    processes = (pacing_of(actions), another(pacing_of(actions))) * 10
    results = await asyncio.gather(*(each.advance(walk, "s") for each in processes))
    assert sorted(ids(*results)) == ["a", "b", "c"]
    assert {result.status for each in results for result in each.results} == {"queued"}
    assert {each.state for each in results} <= {"done", "running"}


async def test_a_failed_message_is_told_at_its_step(
    actions: FlowActions, caplog: pytest.LogCaptureFixture
) -> None:
    """A deferred chat message runs at its step, once, with its own result and log line (§6.3)."""
    caplog.set_level(logging.WARNING)
    walk = a_walk()
    config = {"chatMessageText": "hi", "chatContinueOnFailure": False}
    await actions.reach(before(walk, "s"), Node(id="m", type="chat_message", config=config))
    assert "not sent" not in caplog.text
    (result,) = (await actions.advance(walk, "s")).results
    assert (result.reason, result.halt) == ("not_connected", True)
    assert "chat_message node m not sent: not_connected" in caplog.text
    assert (await actions.advance(walk, "s")).results == ()


async def test_the_signing_secret_is_not_recorded(tmp_path: Path) -> None:
    """The database file holds no byte of a webhook's secret (§5.3.6)."""
    path = tmp_path / "f.db"
    async with running(f"sqlite:///{path}") as actions:
        await actions.reach(before(a_walk(), "s"), node("a", "http://127.0.0.1:1/", webhookSecret="hush-hush"))
    rows = sqlite3.connect(path).execute("SELECT walk, node FROM flowactions_deferred").fetchall()
    assert len(rows) == 1
    assert b"hush-hush" not in path.read_bytes()


async def test_a_halt_stops_those_that_race(actions: FlowActions, receiver: Recorder) -> None:
    """Nobody gets past a node that halts, however many call at once."""
    processes = (pacing_of(actions), another(pacing_of(actions))) * 5
    for _ in range(10):
        walk = a_walk()
        await actions.reach(before(walk, "s"), node("stop", "ftp://x", webhookContinueOnFailure=False))
        await actions.reach(before(walk, "s"), node("late", receiver.url))
        found = await asyncio.gather(*(each.advance(walk, "s") for each in processes))
        assert ids(*found) == ["stop"]
        assert ids(await actions.advance(walk, "s")) == []
    await nothing_but(actions, receiver)


async def test_what_a_process_left_behind_is_taken_over(
    database_url: str, receiver: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without any further call: another process goes on where the first one stopped, and in order."""
    hurry(monkeypatch, "deferred nodes", seconds=0.1)
    walk = a_walk()
    async with running(database_url, FLOWACTIONS_HOST_WORKER="off") as first:
        for name in ("a", "b"):
            await first.reach(before(walk, "s"), node(name, receiver.url))
        await first.reach(before(walk, "t"), node("later", receiver.url))
        with monkeypatch.context() as patched:
            begun = asyncio.Event()

            async def never(*_: Any) -> None:
                begun.set()
                await asyncio.Event().wait()

            patched.setattr(Outbox, "new_delivery", never)
            killed = asyncio.create_task(first.advance(walk, "s"))
            await begun.wait()
            killed.cancel()
            await asyncio.wait({killed})
    await expire(database_url)
    async with running(database_url) as second:
        await until(lambda: len(receiver.requests) == 2)
        await nothing_but(second, receiver, "a", "b")
    assert "2 deferred nodes run without their user" in caplog.text


async def test_a_process_that_was_too_slow_changes_nothing(database_url: str, receiver: Recorder) -> None:
    """Who wakes up after its lease was reclaimed neither runs nor removes anything."""
    async with running(database_url, FLOWACTIONS_HOST_WORKER="off") as made:
        pacing = pacing_of(made)
        walk = a_walk()
        for name in ("a", "b"):
            await made.reach(before(walk, "s"), node(name, receiver.url))
        step = step_of(walk, "s")
        slow = await pacing._store.lease(step)
        other = another(pacing)
        assert (await other._store.lease(step)).state == "running"
        await expire(database_url)
        taken = await other._store.lease(step)
        assert [record.node.id for record in taken.records] == ["a", "b"]
        with pytest.raises(LeaseLost):
            await pacing._store.renew(step)
        assert await pacing._run_all(step, slow, None) == Advanced(state="running")
        assert ids(await other._run_all(step, taken, None)) == ["a", "b"]


def pacing_of(actions: FlowActions) -> Pacing:
    return services_of(actions.host)._pacing


async def expire(database_url: str) -> None:
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url) as database, database.write() as connection:
        await connection.execute(text("UPDATE flowactions_deferred SET held_until = 0 WHERE held_until > 0"))
