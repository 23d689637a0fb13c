"""Whose claim holds a delivery."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claims import is_token_of, new_token, token_prefix
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.watch.fleet import Fleet
from tests.queueing import Queue


async def test_the_worker_that_holds_a_delivery_is_named(queue: Queue) -> None:
    """Among several, also one that was killed since; and nobody when nobody knows."""
    fleets = [Fleet(queue.database, "continuous", 10) for _ in range(3)]
    ids = [each.begin() for each in fleets]
    for number, fleet in enumerate(fleets):
        await fleet.beat(1, 1)
        await queue.run(f"UPDATE flowactions_workers SET name = 'w{number}' WHERE id = '{ids[number]}'")  # noqa: S608
    queries = Insights(queue.database)

    async def why(prefix: str, scope: Scope = Scope(None)) -> str:  # noqa: B008  immutable
        row_id = await queue.put()
        queue.store.contact.prefix = prefix
        assert [each.id for each in await queue.store.claim(10)] == [row_id]
        found = await queries.delivery(scope, row_id)
        assert found is not None
        return found.why

    claimed = "It is claimed by worker w1 for attempt 1 since "
    assert (await why(token_prefix(ids[1]))).startswith(claimed)
    assert (await why("")).startswith("It is claimed by a worker for attempt 1 since ")
    # Names of machines are the operators'.
    for scope in (Scope("acme"), Scope(None, hides_operators=True)):
        assert (await why(token_prefix(ids[1]), scope)).startswith("It is claimed by a worker for attempt 1")
    await queue.run(f"UPDATE flowactions_workers SET last_seen_at = 1 WHERE id = '{ids[2]}'")  # noqa: S608
    assert (await why(token_prefix(ids[2]))).startswith(
        "It is claimed by worker w2, which does not answer since 1970-01-01T00:00:00Z, for attempt 1 since "
    )


@pytest.mark.parametrize("status", ["delivered", "retrying"])
async def test_the_worker_that_made_an_attempt_stands_with_it(queue: Queue, status: str) -> None:
    """Failed or not: its name, or its mark once it is no longer in the fleet; an organization reads neither."""
    fleet = Fleet(queue.database, "continuous", 10)
    mark = token_prefix(fleet.begin())
    await fleet.beat(1, 1)
    row_id = await queue.put()
    queue.store.contact.prefix = mark
    (one,) = await queue.store.claim(1)
    outcome = Outcome(1000, 5, status_code=200 if status == "delivered" else 500)
    await queue.complete(one, outcome, Transition("delivered" if status == "delivered" else "retrying", 60))
    queries = Insights(queue.database)

    async def worker(scope: Scope) -> str | None:
        found = await queries.delivery(scope, row_id)
        assert found is not None
        return found.row.attempt_log[0].worker

    assert await worker(Scope()) == f"{socket.gethostname()}:{os.getpid()}"
    assert await worker(Scope("acme")) is None
    await queue.run("DELETE FROM flowactions_workers")
    assert await worker(Scope()) == mark


@pytest.mark.parametrize(("ahead", "said"), [(-5, False), (600, True), (0, False)])
async def test_an_attempt_after_the_end_of_its_delivery_is_remarked_on(
    queue: Queue, ahead: int, said: bool
) -> None:
    """Attempts have the time of their worker's machine, ends have the database's."""
    row_id = await queue.put()
    (one,) = await queue.store.claim(1)
    began = int((await queue.database.time() + ahead) * 1000)
    await queue.complete(one, Outcome(began, 5, status_code=200), Transition("delivered"))
    found = await Insights(queue.database).delivery(Scope(), row_id)
    assert found is not None
    (attempt,) = found.row.attempt_log
    assert (attempt.remark is not None) == said
    if attempt.remark is not None:
        assert attempt.remark.startswith("began 10 min after the delivery ended, by the database's clock: ")


def test_tokens_are_different_and_of_their_worker() -> None:
    """However many a worker makes; and workers that begin in the same moment have prefixes of their own."""
    workers = [new_id(1000.0) for _ in range(100)]
    assert len({token_prefix(each) for each in workers}) == 100
    tokens = {new_token(token_prefix(workers[0])) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(each) for each in (*tokens, new_token(""))} == {32}  # the column has room for no more
    assert all(is_token_of(each, workers[0]) for each in tokens)
    assert not any(is_token_of(each, workers[1]) for each in tokens)


@given(st.none() | st.text(max_size=40) | st.binary(max_size=40) | st.integers())
def test_whatever_is_stored_is_nobodys(token: object) -> None:
    """A row may hold anything."""
    assert not is_token_of(token, new_id(1000.0))
