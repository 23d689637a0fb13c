"""Whose claim holds a delivery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.clock import new_id
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.health.fleet import Fleet
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.contact import is_token_of, new_token, token_prefix
from tests.queueing import Queue


async def test_the_worker_that_holds_a_delivery_is_named(queue: Queue) -> None:
    """Among several, also one that was killed since; and nobody when nobody knows."""
    fleets = [Fleet(queue.database, "continuous", 10) for _ in range(3)]
    ids = [each.begin() for each in fleets]
    for number, fleet in enumerate(fleets):
        await fleet.beat(1, 1)
        await queue.run(f"UPDATE flowactions_workers SET name = 'w{number}' WHERE id = '{ids[number]}'")  # noqa: S608
    queries = OperatorQueries(queue.database)

    async def why(prefix: str) -> str:
        row_id = await queue.put()
        queue.store.contact.token_prefix = prefix
        assert [each.id for each in await queue.store.claim(10)] == [row_id]
        found = await queries.delivery(Scope(None), row_id)
        assert found is not None
        return found.why

    assert (await why(token_prefix(ids[1]))).startswith("Worker w1 holds it for attempt 1 since ")
    assert (await why("")).startswith("A worker holds it")
    await queue.run(f"UPDATE flowactions_workers SET last_seen_at = 1 WHERE id = '{ids[2]}'")  # noqa: S608
    assert (await why(token_prefix(ids[2]))).startswith(
        "Worker w2, of which nothing was heard since 1970-01-01T00:00:00Z, "
    )


def test_tokens_are_different_and_of_their_worker() -> None:
    """However many a worker makes; and workers that begin in the same moment have prefixes of their own."""
    workers = [new_id(1000.0) for _ in range(100)]
    assert len({token_prefix(each) for each in workers}) == 100
    tokens = {new_token(token_prefix(workers[0])) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(each) for each in tokens} == {32}
    assert all(is_token_of(each, workers[0]) for each in tokens)
    assert not any(is_token_of(each, workers[1]) for each in tokens)


@given(st.none() | st.text(max_size=40) | st.binary(max_size=40) | st.integers())
def test_whatever_is_stored_is_nobodys(token: object) -> None:
    """A row may hold anything."""
    assert not is_token_of(token, new_id(1000.0))


@pytest.mark.parametrize("prefix", ["", "0123abcd"])
def test_a_token_keeps_its_length(prefix: str) -> None:
    """The column has room for 32."""
    assert len(new_token(prefix)) == 32
