"""Deferred nodes under real processes: they race, and they are killed between any two statements."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Deferred, FlowActions, Node
from flowactions_plugin.settings.model import read_settings
from tests.chatting import adopt, adopting_settings
from tests.crash.actors import AT_ONCE, actors, advance, advance_and_die
from tests.support import SmallHost, a_walk
from tests.waiting import until


class Field:
    """A host whose flows are client-paced, its database, and its chat workspace."""

    def __init__(self, actions: FlowActions, provider: FakeChatProvider, engine: AsyncEngine) -> None:
        self.actions = actions
        self.provider = provider
        self.settings = dict(actions.host.settings)
        self.engine = engine

    async def record(self, *kinds: str) -> dict[str, str]:
        """Let a new run reach nodes of these kinds before step s; give what names the run.

        A ``webhook_halt`` has no URL that may be used, and halts.
        """
        walk = a_walk(pacing=Deferred("s"))
        for number, kind in enumerate(kinds):
            config: dict[str, Any] = (
                {"webhookUrl": "http://127.0.0.1:9/", "webhookBody": '{"run": "' + walk.run_id + '"}'}
                if kind == "webhook"
                else {"chatChannelId": "C00ORDERS", "chatMessageText": f"run {walk.run_id}"}
            )
            if kind == "webhook_halt":
                config = {"webhookUrl": "ftp://x", "webhookContinueOnFailure": False}
            name = kind.removesuffix("_halt")
            result = await self.actions.reach(walk, Node(id=f"{kind}-{number}", type=name, config=config))
            assert result.status == "recorded"
        return {"run_id": walk.run_id}

    async def query(self, statement: str) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(statement))).all())

    async def enqueued(self) -> Counter[str]:
        """Count the outbox's rows by run."""
        rows = await self.query("SELECT body FROM flowactions_outbox")
        return Counter(bytes(row.body).decode().split('"')[3] for row in rows)

    def sent(self) -> Counter[str]:
        """Count the messages by run."""
        return Counter(message.text.split()[1] for message in self.provider.messages)

    async def abandon(self) -> None:
        """Let every lease expire."""
        async with self.engine.begin() as connection:
            await connection.execute(
                text("UPDATE flowactions_deferred SET held_until = 0 WHERE held_until IS NOT NULL")
            )


@asynccontextmanager
async def field_on(url: str) -> AsyncIterator[Field]:
    provider = FakeChatProvider()
    token = provider.state.add_token(provider.state.workspaces[0])
    async with serve(provider.app) as provider_url:
        settings = adopting_settings(url, provider_url, token.value)
        # The same in every process, wherever it runs.
        settings["FLOWACTIONS_ENCRYPTION_KEYS"] = base64.b64encode(b"k" * 32).decode()
        actions = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
        engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
        async with actions.lifespan():
            await adopt(actions)
            yield Field(actions, provider, engine)
        await engine.dispose()


@pytest.fixture
async def field(database_url: str) -> AsyncIterator[Field]:
    async with field_on(database_url) as made:
        yield made


async def test_racing_processes_fire_once_and_in_order(field: Field) -> None:
    """Fifty-two advances from four processes: each node runs once, and one caller reports all of them in walk order (§3.2)."""
    async with actors(field.settings, AT_ONCE) as processes:
        for _ in range(5):
            walk = await field.record("webhook", "chat_message", "webhook", "chat_message")
            found = await asyncio.gather(*(advance(actor, walk, "s", times=13) for actor in processes))
            assert [result for one in found for result in one["ran"]] == [
                "webhook-0:queued",
                "chat_message-1:sent",
                "webhook-2:queued",
                "chat_message-3:sent",
            ]
            assert {state for one in found for state in one["states"]} <= {"running", "done"}
            assert (await field.enqueued())[walk["run_id"]] == 2
            assert field.sent()[walk["run_id"]] == 2
    assert await field.query("SELECT * FROM flowactions_deferred WHERE ran_at IS NULL") == []


async def test_killed_between_any_two_statements_nothing_is_lost(field: Field) -> None:
    """A webhook is enqueued exactly once; a message is sent, and twice at the most (kill -9)."""
    kinds = ("webhook", "chat_message", "webhook")
    async with actors(field.settings, 1) as (actor,):
        points = await actor.points(do="advance", walk=await field.record(*kinds), step="s")
    assert points >= 8
    runs = [await field.record(*kinds) for _ in range(points)]
    await advance_and_die(field.settings, runs)
    await field.abandon()

    # The step is reached once more, or the run is taken over by whoever looks after what was abandoned.
    for number, walk in enumerate(runs):
        if number % 2:
            await field.actions.advance(a_walk(**walk), "s")
    worker = FlowActions.load(SmallHost({**field.settings, "FLOWACTIONS_HOST_WORKER": "on"}))
    async with worker.lifespan():

        async def nothing_is_abandoned() -> bool:
            leased = "SELECT 1 FROM flowactions_deferred WHERE held_until IS NOT NULL"
            return not await field.query(leased)

        await until(nothing_is_abandoned)
    for walk in runs:  # those that died before they leased anything
        await field.actions.advance(a_walk(**walk), "s")
    assert await field.query("SELECT * FROM flowactions_deferred WHERE ran_at IS NULL") == []
    enqueued, sent = await field.enqueued(), field.sent()
    for walk in runs:
        assert enqueued[walk["run_id"]] == 2
        assert 1 <= sent[walk["run_id"]] <= 2
    assert (
        sum(sent.values()) < points + points / 2
    )  # few points lie between the message and the removal of its record


async def test_killed_at_a_halt_no_later_node_runs(field: Field) -> None:
    """Killed between any two statements of a step that halts: whoever asks afterwards is told running, then halted."""
    kinds = ("webhook", "webhook_halt", "webhook")
    async with actors(field.settings, 1) as (actor,):
        points = await actor.points(do="advance", walk=await field.record(*kinds), step="s")
    runs = [await field.record(*kinds) for _ in range(points)]
    await advance_and_die(field.settings, runs)
    for walk in runs:
        assert (await field.actions.advance(a_walk(**walk), "s")).state in {"running", "halted"}
    await field.abandon()
    for walk in runs:
        assert (await field.actions.advance(a_walk(**walk), "s")).state == "halted"
        assert (await field.actions.advance(a_walk(**walk), None)).state == "halted"
        assert (await field.enqueued())[walk["run_id"]] == 1
    assert await field.query("SELECT * FROM flowactions_deferred WHERE ran_at IS NULL") == []
