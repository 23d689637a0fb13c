"""Deliveries that end without an attempt: the host does not know their node, and their receivers have done nothing."""

from __future__ import annotations

import time

import pytest

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights import standing
from flowactions_plugin.insights.filters import parse
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import Attempted, Ended
from flowactions_plugin.queue.rules import UNKNOWN, Transition
from flowactions_plugin.watch.monitor import Monitor
from tests.plugin.stored import a_dead_one
from tests.queueing import Queue, claimed

NODES = 6
REASON = "the host does not know its node: it was deleted"


async def ended(queue: Queue, nodes: int, organizations: int = 3) -> list[str]:
    """End deliveries of so many nodes without an attempt, as a worker does, and count what it counts."""
    monitor = Monitor(queue.database, "continuous", 10, None)
    ids = []
    for number in range(nodes):
        whose = f"o{number % organizations}"
        row_id = new_id(time.time())
        await queue.put(
            id=row_id,
            organization_id=whose,
            destination="https://well.example:443",
            origin=FlowNodeOrigin(organization_id=whose, agent_id="a", flow_id="f", node_id=f"n{number}"),
        )
        (claim,) = await queue.store.claim(10)
        assert await queue.mark_dead(claim, REASON)
        row = claimed(organization_id=whose, destination="https://well.example:443")
        monitor.record([Ended(row, REASON)])
        monitor.record([Attempted(row, Outcome(0, 5, status_code=200), Transition("delivered"))])
        ids.append(row_id)
    await monitor.write()
    return ids


async def test_they_are_found_and_not_blamed_on_their_receiver(queue: Queue) -> None:
    """Red from some nodes on, for a day, with the filter that shows them and no others; each organization sees its own."""
    insights = Insights(queue.database)
    other = await a_dead_one(queue)
    ids = await ended(queue, NODES)
    overview = await insights.overview(Scope())
    (found,) = (each for each in overview.findings if each.about == "unsent")
    assert (found.level, overview.level, found.act) == ("failed", "failed", "retry")
    assert found.words.startswith(
        "6 deliveries of 6 nodes and 3 organizations ended without an attempt, the first at 20"
    )
    assert found.words.endswith(REASON)
    page = await insights.deliveries(Scope(), parse(found.where), None, 50)
    assert [each.id for each in page.rows] == ids[::-1]
    assert other not in ids
    assert [each.about for each in overview.findings if each.about in {"destination", "destinations"}] == []
    listed, _ = await insights.destinations(Scope(), 50)
    assert {(each.dead, each.failures_in_row, each.failing_since) for each in listed} == {(0, 0, None)}
    assert sum(each.dead for each in overview.hour) == NODES
    (own,) = (each for each in (await insights.overview(Scope("o1"))).findings if each.about == "unsent")
    assert own.words.startswith("2 deliveries of 2 nodes ended")
    assert "organization" not in own.words + own.where
    await queue.run("UPDATE flowactions_outbox SET finished_at = finished_at - 86460000")
    assert [each for each in (await insights.overview(Scope())).findings if each.about == "unsent"] == []


async def test_before_that_they_wait_and_one_line_says_so(queue: Queue) -> None:
    """However often the host was asked for each of them, and what has to be done before they are dead."""
    for number, reason in enumerate(UNKNOWN[:3]):
        waits = {"waiting_since": 1, "last_error": reason, "error_class": "waits"}
        await queue.put(id=new_id(time.time() + number), organization_id=f"o{number}", state=waits)
    overview = await Insights(queue.database).overview(Scope())
    (found,) = (each for each in overview.findings if each.about == "waiting")
    assert (found.level, found.words[:15]) == ("failed", "3 deliveries wa")
    assert found.words.endswith("the host does not know this node or action")
    assert "they are dead" in found.advice


async def test_what_was_retried_is_not_found_any_more(queue: Queue) -> None:
    """At the next look."""
    await ended(queue, NODES)
    await queue.run("UPDATE flowactions_outbox SET status = 'pending', error_class = NULL, finished_at = NULL")
    overview = await Insights(queue.database).overview(Scope())
    assert [each.about for each in overview.findings if each.about == "unsent"] == []


async def test_of_more_than_are_read_the_latest_are_told(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """To operators as to the organization; of the last day."""
    monkeypatch.setattr(standing, "UNSENT_READ", 2)
    now = int(queue.database.clock() * 1000)
    for number, row_id in enumerate(await ended(queue, 4, 1)):
        at = 1 if number == 3 else now + number - 1000
        await queue.run(f"UPDATE flowactions_outbox SET finished_at = {at} WHERE id = '{row_id}'")  # noqa: S608
    facts = await Insights(queue.database).facts()
    assert [each.node_id for each in facts.unsent] == ["n2", "n1"]
