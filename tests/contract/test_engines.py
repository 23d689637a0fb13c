"""What flow engines do that many hosts have in common: the section "Engines" of the contract, sentence by sentence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from flowactions_hookspecs import Advanced, Deferred, Node, NodeResult, TransactionInvalid, Walk
from flowactions_plugin.storage.schema import deferred
from tests.pacing import URL, Paced, paced, ran
from tests.support import a_walk

BODY = '{"content": {{content}}}'
THREADS = 4


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Paced]:
    async with paced(database_url) as made:
        yield made


def a_node(name: str = "n") -> Node:
    return Node(id=name, type="webhook", config={"webhookUrl": URL, "webhookBody": BODY})


async def events(run: Paced) -> list[str]:
    """Give the event id of each row of the outbox."""
    return [event for (event,) in await run.query("SELECT event_id FROM flowactions_outbox ORDER BY id")]


class TestOnceMore:
    """An engine that calls a node twice for one visit."""

    async def test_at_once_it_is_the_same_event(self, run: Paced) -> None:
        """Also when both calls are under way together; another visit is another event."""
        walk = a_walk()
        await asyncio.gather(*(run.actions.reach(walk, a_node()) for _ in range(3)))
        assert len(await events(run)) == 3
        assert len(set(await events(run))) == 1
        await run.actions.reach(replace(walk, visit="2"), a_node())
        assert len(set(await events(run))) == 2

    async def test_deferred_it_is_recorded_once(self, run: Paced) -> None:
        """Before its step and behind it."""
        walk = a_walk()
        await asyncio.gather(*(run.record(walk, "n") for _ in range(3)))
        assert ran(await run.actions.advance(walk, "s")) == ["n"]
        assert (await run.record(walk, "n")).reason == "already_run"
        assert ran(await run.actions.advance(walk, "s")) == []
        assert len(await events(run)) == 1


class TestTimeTravel:
    async def test_what_is_walked_again_is_the_same_event(self, run: Paced) -> None:
        """What ran at a step does not run again. With another content, and so another body, it is another event."""
        walk = a_walk(content="first")
        await run.actions.reach(walk, a_node("at-once"))
        await run.record(walk, "waits")
        await run.actions.advance(walk, "s")
        before = await events(run)
        await run.actions.reach(walk, a_node("at-once"))
        await run.record(walk, "waits")
        assert await run.actions.advance(walk, "s") == Advanced(state="done")
        assert await events(run) == [*before, before[0]]
        await run.actions.reach(replace(walk, content="another answer"), a_node("at-once"))
        assert (await events(run))[-1] not in before

    async def test_a_run_that_was_halted_stays_halted(self, run: Paced) -> None:
        """Going back undoes nothing: a new run begins anew."""
        walk = a_walk()
        await run.record(walk, "halts", halts=True)
        assert (await run.actions.advance(walk, "s")).state == "halted"
        assert (await run.record(walk, "earlier", step="r")).reason == "run_halted"
        assert (await run.actions.advance(walk, "r")).state == "halted"
        assert (await run.record(a_walk(), "earlier", step="r")).status == "recorded"


async def test_branches_side_by_side_are_recorded_against_the_step_where_they_join(run: Paced) -> None:
    """Each once, whatever their order; the passages of one node have visits of their own."""
    walk = a_walk()
    visits = [replace(walk, visit=f"branch:{number}") for number in range(5)]
    await asyncio.gather(
        *(run.record(each, "same") for each in visits), *(run.record(walk, f"n{number}") for number in range(5))
    )
    found = ran(await run.actions.advance(walk, "s"))
    assert sorted(found) == sorted(["same"] * 5 + [f"n{number}" for number in range(5)])
    assert len(set(await events(run))) == 10


async def test_a_run_goes_on_in_another_process(database_url: str) -> None:
    """What one has recorded, another one runs, with the walk's ids alone; the first need not be there any more."""
    walk = a_walk()
    async with paced(database_url) as first:
        await first.record(walk, "n")
    async with paced(database_url) as second:
        ids = Walk(
            organization_id=walk.organization_id, run_id=walk.run_id, flow_id=walk.flow_id, agent_id="another"
        )
        assert ran(await second.actions.advance(ids, "s")) == ["n"]
        assert (await second.record(walk, "n")).reason == "already_run"


async def test_a_node_runs_in_the_version_in_which_it_was_recorded(run: Paced) -> None:
    """A version that removes it, or changes it, changes nothing for a run that has come by."""
    walk = replace(a_walk(), pacing=Deferred("s"))
    await run.actions.reach(walk, a_node())
    changed = replace(a_node(), config={"webhookUrl": URL, "webhookBody": '"new"'})
    await run.actions.reach(walk, changed)
    assert await run.host.node(walk.organization_id, walk.flow_id, "n") is None
    assert ran(await run.actions.advance(walk, "s")) == ["n"]
    (body,) = await run.query("SELECT body FROM flowactions_outbox")
    assert bytes(body[0]) == b'{"content": "hello"}'


async def test_what_was_recorded_for_a_run_that_is_never_advanced_does_not_run(run: Paced) -> None:
    """Neither recovery nor another run runs it; it is deleted with the records of abandoned runs."""
    cancelled, other = a_walk(), a_walk()
    await run.record(cancelled, "n")
    await run.record(other, "o")
    assert ran(await run.actions.advance(other, "s")) == ["o"]
    assert await run.pacing.recover() == 0
    assert len(await events(run)) == 1
    await run.run("UPDATE flowactions_deferred SET created_at = 1")
    await run.database.prune(deferred.c.created_at, 1000, 10)
    assert ran(await run.actions.advance(cancelled, "s")) == []


class TestThreads:
    """Engines that are synchronous."""

    async def test_calls_of_threads_that_race_run_a_step_once(self, run: Paced) -> None:
        """As calls of tasks do: nobody is told that it is done before it is."""
        walk = a_walk()
        together = threading.Barrier(THREADS)

        def reach_and_advance() -> tuple[NodeResult, Advanced]:
            together.wait(300)
            reached = run.actions.call(run.record(walk, "n"))
            return reached, run.actions.call(run.actions.advance(walk, "s"))

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(THREADS) as threads:
            found = await asyncio.gather(
                *(loop.run_in_executor(threads, reach_and_advance) for _ in range(THREADS))
            )
        assert {reached.status for reached, _ in found} <= {"recorded", "skipped"}
        assert sum(len(advanced.results) for _, advanced in found) == 1
        assert {advanced.state for _, advanced in found} <= {"done", "running"}
        assert len(await events(run)) == 1

    async def test_the_transaction_of_a_sync_connection_is_refused(self, run: Paced) -> None:
        """Before any SQL: only a connection of the lifespan's event loop can be joined."""
        engine = sa.create_engine("sqlite://")
        walk = a_walk()

        def reach() -> NodeResult:
            with engine.begin() as connection:
                given: object = connection
                return run.actions.call(run.actions.reach(walk, a_node(), given))  # type: ignore[arg-type]

        with pytest.raises(TransactionInvalid):
            await asyncio.to_thread(reach)
        engine.dispose()
        assert await events(run) == []
