"""What flow engines do that many hosts have in common: the section "Engines" of the contract, sentence by sentence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from flowactions_hookspecs import Advanced, Node, NodeResult, TransactionInvalid
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
