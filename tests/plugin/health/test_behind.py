"""A finding names the delivery behind which others wait in order, if it does not end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import insert

from flowactions_plugin.clock import new_id
from flowactions_plugin.insights.findings import LATE_MS
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Finding
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.schema import BEHIND_MS, pauses
from tests.plugin.stored import a_row
from tests.queueing import Queue

pytestmark = pytest.mark.usefixtures("queue")
ERROR = "it answered 500"


async def in_order(queue: Queue, sequence: int, behind: int, ago_ms: int = 3_600_000) -> str:
    """Write a delivery that is tried again later, and so many that wait behind it since then; give its id."""
    now = int(time.time() * 1000)
    head: dict[str, Any] = {
        "status": "retrying",
        "error_class": "http_5xx",
        "last_status_code": 500,
        "attempts": 3,
    }
    states = [{**head, "next_attempt_at": now + 600_000}, *[{"next_attempt_at": BEHIND_MS}] * behind]
    ids = [
        await queue.put(
            id=new_id(time.time()),
            state={**state, "sequence": sequence, "position": position, "created_at": now - ago_ms},
        )
        for position, state in enumerate(states)
    ]
    return ids[0]


async def found(queue: Queue, scope: Scope) -> list[Finding]:
    overview = await Insights(queue.database).overview(scope)
    return [each for each in overview.findings if each.about == "behind"]


async def test_the_head_is_named_with_its_reason(queue: Queue) -> None:
    """Those with the most behind them first; to its organization without a name of one; to another one, nothing."""
    few, many = await in_order(queue, 1, 2), await in_order(queue, 2, 4)
    await in_order(queue, 3, 5, ago_ms=LATE_MS // 2)
    told = await found(queue, Scope())
    assert [each.page for each in told] == [f"/deliveries/{many}", f"/deliveries/{few}"]
    assert told[0].level == "warning"
    assert told[0].words.startswith("4 deliveries wait in order for http://127.0.0.1")
    assert told[0].words.endswith(f"behind one that has not ended: {ERROR}")
    row = await queue.row(few)
    own = await found(queue, Scope(row.organization_id))
    assert [each.page for each in own] == [each.page for each in told]
    assert "organization" not in own[0].words
    assert await found(queue, Scope("nobody")) == []


async def test_what_is_told_otherwise_is_not_told_here(queue: Queue) -> None:
    """A head that waits for a pause, or for something here; one that ended."""
    head = await in_order(queue, 1, 2)
    assert len(await found(queue, Scope())) == 1
    for change, back in (
        ("waiting_since = 1", "waiting_since = NULL"),
        ("status = 'dead', finished_at = 1", "status = 'retrying', finished_at = NULL"),
    ):
        await queue.run(f"UPDATE flowactions_outbox SET {change} WHERE id = '{head}'")  # noqa: S608
        assert await found(queue, Scope()) == []
        await queue.run(f"UPDATE flowactions_outbox SET {back} WHERE id = '{head}'")  # noqa: S608
    row = await queue.row(head)
    place = {"organization_id": row.organization_id, "destination": row.destination}
    await queue.run(insert(pauses).values(a_row(pauses, "Ann", place)))
    assert await found(queue, Scope()) == []


async def test_a_channel_at_its_limit_is_named(queue: Queue) -> None:
    """No attempt of a queued message has failed: the provider takes one after another."""
    head = await in_order(queue, 1, 2)
    bare = "last_status_code = NULL, error_class = NULL, destination = 'chat://T0ACME'"
    await queue.run(f"UPDATE flowactions_outbox SET {bare} WHERE id = '{head}'")  # noqa: S608
    (told,) = await found(queue, Scope())
    assert told.words.endswith("behind one that has not ended: one channel takes about one message a second")
