"""Bulk actions that take long: retention leaves them their rows."""

from __future__ import annotations

import pytest

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.operations import engine
from flowactions_plugin.operations.engine import POLL_SECONDS, Engine, acting
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.outages import FAILURE_SECONDS
from tests.plugin.bulk.test_actions import ACME, EVERYTHING, MAYA, OPERATOR, begun, put_dead, states
from tests.queueing import Queue

OLD = 90 * 24 * 3600 * 1000


async def put_old(queue: Queue, count: int, organization_id: str = "acme") -> list[str]:
    """Write rows that died longer ago than dead rows are kept, each at a time of its own."""
    died = int(queue.database.clock() * 1000) - 2 * OLD
    return [
        (await put_dead(queue, 1, died + number, organization_id=organization_id))[0] for number in range(count)
    ]


async def prune_all(queue: Queue, limit: int = 2) -> int:
    """Remove what is old enough, as a run of retention does."""
    total = removed = await queue.queries.prune("dead", OLD, limit)
    while removed >= limit:
        removed = await queue.queries.prune("dead", OLD, limit)
        total += removed
    return total


@pytest.mark.parametrize("scope", [ACME, Scope(None)])
async def test_retention_passes_over_what_an_unfinished_action_is_for(queue: Queue, scope: Scope) -> None:
    """Of its organization, or of all; rows of others behind them are removed, and its own once it has finished."""
    mine = await put_old(queue, 5)
    await put_old(queue, 3, "globex")
    actions = Operations(queue.database)
    wanted = Filter.of(organization="acme", id=tuple(mine[:3]))
    action = await begun(actions, "retry", scope=scope, wanted=wanted, rate=0.01)
    await Engine(queue.database, "me").run_step(action.id)
    assert await prune_all(queue) == 3
    assert (await states(queue)).count("dead") == 5
    await actions.stop(scope, action.id, MAYA)
    assert await prune_all(queue) == 5
    everything = await put_old(queue, 2) + await put_old(queue, 2, "globex")
    preview = await actions.preview(Scope(None), "delete", EVERYTHING)
    assert await actions.change(Scope(None), preview.chosen, OPERATOR, "")
    assert await prune_all(queue) == 0
    # What died later is not in its set.
    await queue.run("UPDATE flowactions_actions SET as_of = 1")
    assert await prune_all(queue) == len(everything)


async def test_retention_finds_old_rows_behind_those_of_another_state(queue: Queue) -> None:
    """As many as it may remove at once, however many of the others are older."""
    await put_old(queue, 3)
    delivered = ", ".join(map(repr, await put_old(queue, 3)))
    await queue.run(f"UPDATE flowactions_outbox SET status = 'delivered' WHERE id IN ({delivered})")  # noqa: S608
    assert await queue.queries.prune("delivered", OLD, 2) == 2
    assert sorted(await states(queue)) == ["dead", "dead", "dead", "delivered"]


async def test_bulk_actions_are_looked_for_less_often_while_there_is_none(queue: Queue) -> None:
    """A look costs an idle worker more than it finds; an action that is open is looked at soon, and not at once."""
    act = acting(queue.database)
    assert await act() is None
    await put_dead(queue, 2)
    await begun(Operations(queue.database), "retry", rate=0.01)
    assert await act() == POLL_SECONDS


async def test_deliveries_go_on_beside_an_action(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rate, the next batch begins as long after a batch as that took."""
    monkeypatch.setattr(engine, "BATCH", 1)
    await put_dead(queue, 2)
    action = await begun(Operations(queue.database), "retry")
    times = iter([100.0, 103.0])
    assert await engine._wait_after(Engine(queue.database), action.id, lambda: next(times)) == 6.0


async def test_an_action_that_fails_unexpectedly_is_tried_again_later(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps no other one back; while the database fails, none is tried."""
    errors: list[Exception] = [StorageUnavailable("it is away"), LookupError("a defect")]

    class Failing(Engine):
        async def run_step(self, action_id: str) -> float | None:
            raise errors.pop()

    failing = Failing(queue.database)
    assert await engine._wait_after(failing, "a", lambda: 0.0) == FAILURE_SECONDS
    assert [record.getMessage() for record in caplog.records] == [
        "bulk action a failed unexpectedly; it is tried again"
    ]
    with pytest.raises(StorageUnavailable):
        await engine._wait_after(failing, "a", lambda: 0.0)
