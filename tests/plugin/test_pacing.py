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

from flowactions_hookspecs import FlowActions, Node, NodeResult, Walk
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk, development, until


@asynccontextmanager
async def running(database_url: str) -> AsyncIterator[FlowActions]:
    actions = FlowActions.load(SmallHost(development(database_url)))
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
    return a_walk(run_id=walk.run_id, pacing="deferred", next_step_id=step_id)


def ids(results: Any) -> list[str]:
    return [result.node_id for result in results]


async def test_nothing_fires_until_its_step(actions: FlowActions, receiver: Recorder) -> None:
    """A recorded node fires on its own step, once, and the end of the flow is a step, too (§3.2)."""
    walk = a_walk()
    for name, step in (("a", "s2"), ("b", "s2"), ("c", "s3"), ("d", None)):
        result = await actions.reach(before(walk, step), node(name, receiver.url))
        assert result == NodeResult(node_id=name, status="recorded")
    await asyncio.sleep(0.2)
    assert receiver.requests == []
    assert ids(await actions.advance(walk, "s1")) == []
    assert ids(await actions.advance(walk, "s2")) == ["a", "b"]
    assert ids(await actions.advance(walk, "s2")) == []
    assert ids(await actions.advance(walk, "s3")) == ["c"]
    assert ids(await actions.advance(walk, None)) == ["d"]
    assert ids(await actions.advance(walk, None)) == []
    await until(lambda: len(receiver.requests) == 4)


async def test_what_fires_is_the_walk_as_it_was_recorded(actions: FlowActions, receiver: Recorder) -> None:
    """userId and content are those of the moment of recording."""
    walk = before(a_walk(content="then"), "s")
    walk = a_walk(run_id=walk.run_id, pacing="deferred", next_step_id="s", content="then \ud800")
    await actions.reach(walk, node("a", receiver.url))
    await actions.advance(a_walk(run_id=walk.run_id, content="now"), "s")
    await until(lambda: receiver.requests)
    assert json.loads(receiver.requests[0].body)["said"] == "then \ufffd"


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
    results = await asyncio.gather(*(actions.advance(walk, "s") for _ in range(20)))
    assert sorted(ids([result for found in results for result in found])) == ["a", "b", "c"]
    assert {result.status for found in results for result in found} == {"queued"}


async def test_a_node_that_is_reached_twice_is_recorded_once(actions: FlowActions, receiver: Recorder) -> None:
    """A walk that is repeated after a crash does not double its nodes."""
    walk = a_walk()
    for _ in range(2):
        await actions.reach(before(walk, "s"), node("a", receiver.url))
    assert ids(await actions.advance(walk, "s")) == ["a"]


async def test_a_halt_ends_the_run(actions: FlowActions, receiver: Recorder) -> None:
    """After a node that halts, nothing that was recorded later in the run fires any more (§7.2)."""
    walk = a_walk()
    await actions.reach(before(walk, "s"), node("a", receiver.url))
    await actions.reach(before(walk, "s"), node("b", "ftp://x", webhookContinueOnFailure=False))
    await actions.reach(before(walk, "s"), node("c", receiver.url))
    await actions.reach(before(walk, None), node("d", receiver.url))
    results = await actions.advance(walk, "s")
    assert [(result.node_id, result.halt) for result in results] == [("a", False), ("b", True)]
    assert ids(await actions.advance(walk, "s")) == []
    assert ids(await actions.advance(walk, None)) == []


async def test_a_record_survives_a_restart(database_url: str, receiver: Recorder) -> None:
    """What was recorded fires after the host has stopped and started again."""
    walk = a_walk()
    async with running(database_url) as first:
        await first.reach(before(walk, "s"), node("a", receiver.url))
    async with running(database_url) as second:
        assert ids(await second.advance(walk, "s")) == ["a"]
        await until(lambda: receiver.requests)


async def test_a_failed_message_is_told_at_its_step(
    actions: FlowActions, caplog: pytest.LogCaptureFixture
) -> None:
    """A deferred chat message runs at its step, with its own result and log line (§6.3)."""
    caplog.set_level(logging.WARNING)
    walk = a_walk()
    config = {"chatMessageText": "hi", "chatContinueOnFailure": False}
    await actions.reach(before(walk, "s"), Node(id="m", type="chat_message", config=config))
    assert "not sent" not in caplog.text
    (result,) = await actions.advance(walk, "s")
    assert (result.reason, result.halt) == ("not_connected", True)
    assert "chat_message node m not sent: not_connected" in caplog.text


async def test_the_signing_secret_is_not_recorded(tmp_path: Path) -> None:
    """The database file holds no byte of a webhook's secret (§5.3.6)."""
    path = tmp_path / "f.db"
    async with running(f"sqlite:///{path}") as actions:
        await actions.reach(before(a_walk(), "s"), node("a", "http://127.0.0.1:1/", webhookSecret="hush-hush"))
    rows = sqlite3.connect(path).execute("SELECT walk, node FROM flowactions_deferred").fetchall()
    assert len(rows) == 1
    assert b"hush-hush" not in path.read_bytes()
