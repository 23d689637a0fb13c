"""Nodes that are reached again after their step was advanced, and what becomes of nodes that change meanwhile (§3.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Advanced, Deferred, Node, NodeResult, NodeType, Walk
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes.store import MAX_LEASES, DeferredStore, step_of
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.pacing import Paced, Telling, paced, ran
from tests.support import a_walk
from tests.waiting import until

WAITING = "SELECT node_id FROM flowactions_deferred WHERE ran_at IS NULL"


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Paced]:
    async with paced(database_url) as made:
        yield made


async def sent(run: Paced) -> int:
    return len(await run.query("SELECT id FROM flowactions_outbox"))


@pytest.mark.parametrize("step", ["s", None])
async def test_a_node_whose_step_was_advanced_does_not_run_again(run: Paced, step: str | None) -> None:
    """It is skipped as already run, without a halt, and neither waits nor runs; its visit, run and flow decide."""
    walk = a_walk(user_id="ada@example.com", content="private words")
    for name in ("a", "b"):
        assert (await run.record(walk, name, step=step)).status == "recorded"
    assert ran(await run.actions.advance(walk, step)) == ["a", "b"]
    for _ in range(2):
        again = await run.record(walk, "a", step=step)
        assert (again.status, again.reason, again.halt) == ("skipped", "already_run", False)
        assert again.message is not None
        assert await run.actions.advance(walk, step) == Advanced(state="done")
        assert await run.pacing.recover() == 0
    assert await sent(run) == 2
    assert await run.query(WAITING) == []
    others = {"organization_id": "globex", "run_id": "another", "flow_id": "another", "visit": "2"}
    for name, value in others.items():
        assert (await run.record(replace(walk, **{name: value}), "a", step=step)).status == "recorded"
    assert (await run.record(walk, "a", step="later")).status == "recorded"
    assert (await run.record(walk, "c", step=step)).status == "recorded"
    assert ran(await run.actions.advance(walk, step)) == ["a", "c"]  # the second visit's


async def test_what_stays_of_a_record_holds_nothing_of_the_run(run: Paced) -> None:
    """Only ids stay: no configuration, no user, no content, no lease."""
    walk = a_walk(user_id="ada@example.com", content="private words")
    await run.record(walk, "a")
    assert await run.query("SELECT id FROM flowactions_deferred WHERE walk LIKE '%private%'") != []
    await run.actions.advance(walk, "s")
    kept = "run_id, node_id, visit, walk, node, token, held_until, holds"
    assert await run.query(f"SELECT {kept} FROM flowactions_deferred") == [  # noqa: S608
        (walk.run_id, "a", "1", "", "", None, None, 0)
    ]
    ((ran_at, created_at),) = await run.query("SELECT ran_at, created_at FROM flowactions_deferred")
    assert ran_at >= created_at


async def test_a_node_that_was_dropped_does_not_run_again(run: Paced) -> None:
    """Its step was advanced: a node that ended its processes gets no further five of them."""
    walk = a_walk()
    for name in ("poison", "fine"):
        await run.record(walk, name)
    for _ in range(MAX_LEASES):
        await run.killed().lease(step_of(walk, "s"))
        await run.expire()
    assert ran(await run.actions.advance(walk, "s")) == ["fine"]
    assert (await run.record(walk, "poison")).reason == "already_run"


@pytest.mark.parametrize("commits", [True, False])
async def test_a_reach_beside_an_advance_whose_transaction_is_open(database_url: str, commits: bool) -> None:
    """It waits for the transaction. Committed, the node has run and does not run again; rolled back, it waits and runs."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url):
        pass
    async with paced(database_url, database=engine) as run:
        walk = a_walk()
        await run.record(walk, "a")
        async with engine.connect() as connection:
            assert ran(await run.actions.advance(walk, "s", connection)) == ["a"]
            reached = asyncio.create_task(run.record(walk, "a"))
            if run.database.dialect == "postgresql":
                blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                await until(lambda: run.query(blocked))
            await (connection.commit() if commits else connection.rollback())
        result = await reached
        expected = {("recorded", None), ("skipped", "already_run")} if commits else {("recorded", None)}
        assert (result.status, result.reason) in expected
        assert ran(await run.actions.advance(walk, "s")) == ([] if commits else ["a"])
        assert await run.actions.advance(walk, "s") == Advanced(state="done")
        assert await sent(run) == 1
        assert await run.query(WAITING) == []
        assert (await run.record(walk, "a")).reason == "already_run"
    await engine.dispose()


async def test_of_reaches_that_race_with_advances_one_runs(run: Paced) -> None:
    """However they meet, the node runs once; who comes too late is told."""
    for number in range(15):
        walk = a_walk(run_id=f"race-{number}")
        await run.record(walk, "a")
        calls = [run.actions.advance(walk, "s"), *(run.record(walk, "a") for _ in range(4))]
        for answer in (await asyncio.gather(*calls))[1:]:
            assert isinstance(answer, NodeResult)
            assert (answer.status, answer.reason) in {("recorded", None), ("skipped", "already_run")}
        await run.actions.advance(walk, "s")
        assert (await run.record(walk, "a")).reason == "already_run"
        assert await run.query(WAITING) == []
        assert await sent(run) == number + 1


async def test_a_call_that_looked_before_the_first_node_ran_is_told_running(
    run: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call leases the second node still: nobody is told done meanwhile, and gets past a node that halts."""
    walk = a_walk()
    for name in ("a", "b"):
        await run.record(walk, name)
    step, other = step_of(walk, "s"), run.killed()
    find = run.store.find

    async def find_and_wait(*given: Any) -> Any:
        found = await find(*given)
        monkeypatch.undo()
        leased = await other.lease(step)
        async with run.database.write() as connection:
            assert await other.pop(leased.records[0], connection)
        return found

    monkeypatch.setattr(run.store, "find", find_and_wait)
    assert (await run.store.lease(step)).state == "running"


class TestNodesThatChange:
    """A recorded node runs as it was recorded."""

    async def test_of_two_records_before_the_step_the_first_config_wins(self, run: Paced) -> None:
        """An author who edits a flow changes no run that came by before; a change of the type changes nothing either."""
        walk = replace(a_walk(), pacing=Deferred("s"))
        for kind, body in (("webhook", "first"), ("webhook", "second"), ("chat_message", "third")):
            config = {"webhookUrl": "http://127.0.0.1:9/", "webhookBody": f'"{body}"'}
            result = await run.actions.reach(walk, Node(id="n", type=kind, config=config))
            assert result.status == "recorded"
        assert ran(await run.actions.advance(walk, "s")) == ["n"]
        assert await run.query("SELECT body FROM flowactions_outbox") == [(b'"first"',)]

    @pytest.mark.parametrize("now", ["deleted", "of another type"])
    async def test_a_node_that_was_deleted_or_changed_its_type(self, database_url: str, now: str) -> None:
        """It runs with its recorded type and config, and gets no secret of what has its place."""

        class Editing(Telling):
            async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
                return None if now == "deleted" else Node(id=node_id, type="mail", config={"token": "of mail"})

        seen: list[Any] = []

        async def fax(walk: Walk, node: Node) -> NodeResult:
            seen.append((node.type, node.config))
            return NodeResult(status="sent")

        async with paced(database_url, host_type=Editing) as run:
            of_fax = NodeType(
                name="fax", title="Fax", description="Faxes.", reach=fax, secret_fields=("token",)
            )
            pacing = run.offering("fax")
            pacing._node_types = lambda: {"fax": of_fax}
            walk = replace(a_walk(), pacing=Deferred("s"))
            await pacing.reach(walk, Node(id="n", type="fax", config={"to": "42", "token": "of fax"}))
            assert (await pacing.advance(walk, "s")).state == "done"
            assert seen == [("fax", {"to": "42"})]


async def test_a_transaction_of_the_hosts_locks_no_rows_of_other_runs(database_url: str) -> None:
    """An advance in it gives back leases of its own run only: those of others would wait until it ends."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url):
        pass
    async with paced(database_url, database=engine) as run:
        mine, other = a_walk(run_id="mine"), a_walk(run_id="other")
        for walk in (mine, other):
            await run.record(walk, "n")
        assert (await run.store.lease(step_of(other, "s"))).records
        run.pacing._pending[step_of(other, "s")] = 0
        async with engine.connect() as connection:
            assert ran(await run.actions.advance(mine, "s", connection)) == ["n"]
            free = text("SELECT token FROM flowactions_deferred WHERE run_id = 'other' AND token IS NOT NULL")
            if run.database.dialect == "postgresql":
                free = text(f"{free} FOR UPDATE NOWAIT")
                async with engine.connect() as beside:
                    assert len((await beside.execute(free)).all()) == 1
            assert len((await connection.execute(free)).all()) == 1
            await connection.rollback()
        assert ran(await run.actions.advance(other, "s")) == ["n"]
    await engine.dispose()


async def test_steps_that_are_forgotten_are_told_once_an_episode(
    run: Paced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond what is kept of steps that the database did not let run, one line says that nodes of the oldest do not run."""
    monkeypatch.setattr("flowactions_plugin.nodes.pacing.MOST_PENDING", 2)
    monkeypatch.setattr("flowactions_plugin.nodes.pacing.REPEAT_SECONDS", 0.01)
    walks = [a_walk(run_id=f"r{number}") for number in range(8)]
    for walk in walks:
        await run.record(walk, "n")
    lease = DeferredStore.lease
    for episode in (1, 2):
        with monkeypatch.context() as patched:

            async def away(self: DeferredStore, *given: Any) -> Any:
                raise StorageUnavailable("away")

            patched.setattr(DeferredStore, "lease", away)
            for walk in walks[4 * episode - 4 : 4 * episode]:
                assert (await run.actions.advance(walk, "s")).state == "done"
                await run.actions.advance(walk, "s")
        assert DeferredStore.lease is lease
        assert caplog.text.count("more than 2 steps wait for the database") == episode
        await until(lambda: not run.pacing._pending)
        await until(lambda: run.pacing._repeating is None or run.pacing._repeating.done())
    # The oldest of each episode do not run.
    left = await run.query("SELECT run_id FROM flowactions_deferred WHERE ran_at IS NULL")
    assert sorted(left) == [("r0",), ("r1",), ("r4",), ("r5",)]


async def test_a_step_that_was_tried_once_more_is_the_oldest_all_the_same(
    run: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first one that is forgotten."""
    monkeypatch.setattr("flowactions_plugin.nodes.pacing.MOST_PENDING", 2)
    walks = [a_walk(run_id=f"r{number}") for number in range(3)]
    for walk in walks:
        await run.record(walk, "n")

    async def away(self: DeferredStore, *given: Any) -> Any:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(DeferredStore, "pop", away)
        for number in (0, 1, 0, 2):
            assert (await run.actions.advance(walks[number], "s")).state == "done"
    assert {step.run_id for step in run.pacing._pending} == {"r1", "r2"}


async def test_what_another_run_could_not_run_does_not_run_with_this_ones_step(
    run: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that the database did not let run are caught up by their own run's user, or by the repeating: not by other users."""
    monkeypatch.setattr("flowactions_plugin.nodes.pacing.REPEAT_SECONDS", 60.0)
    mine, other = a_walk(run_id="mine"), a_walk(run_id="other")
    await run.record(mine, "of mine")
    await run.record(other, "of the other")
    with monkeypatch.context() as patched:

        async def away(self: DeferredStore, *given: Any) -> Any:
            raise StorageUnavailable("away")

        patched.setattr(DeferredStore, "lease", away)
        assert await run.actions.advance(other, "s") == Advanced(state="done")
    assert ran(await run.actions.advance(mine, "s")) == ["of mine"]
    assert ran(await run.actions.advance(other, "later")) == ["of the other"]
