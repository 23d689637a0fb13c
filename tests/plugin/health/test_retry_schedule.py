"""What operators and hosts see where rows wait for hours, and where receivers end them."""

from __future__ import annotations

import asyncio

import pytest

from flowactions_hookspecs import DeliveryAlert, FlowNodeOrigin
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.findings import findings_of, verdict_of
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.queue.claimed import Attempted, Completion
from flowactions_plugin.queue.rules import DEAD, GONE, Transition
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.watch.monitor import Monitor
from flowactions_plugin.watch.statistics import Counts
from tests.queueing import ORIGIN, Queue, claimed

HOUR_MS = 3600 * 1000


async def test_a_row_that_waits_for_hours_is_no_stall(queue: Queue) -> None:
    """Nothing is due, although nothing was claimed for hours; nor is a worker missing then that claims it."""
    now = int(queue.database.clock() * 1000)
    failed = {"status": "retrying", "attempts": 6, "updated_at": now - 9 * HOUR_MS}
    await queue.put(state={**failed, "created_at": now - 9 * HOUR_MS, "next_attempt_at": now + HOUR_MS})
    facts = await Insights(queue.database, Settings(delivery="continuous"), lambda: 0).facts()
    assert verdict_of(facts, findings_of(facts)).state == "idle"
    assert (facts.due.number, facts.due.exact, facts.oldest_due_ms) == (0, True, None)


def ended(change: Transition = GONE, node_id: str = "n") -> Completion:
    origin = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id=node_id)
    return Attempted(claimed(origin=origin), Outcome(0, 5, status_code=410), change)


def test_what_a_receiver_ended_is_counted_by_origin() -> None:
    """A row that ends for want of attempts is not, whatever was answered; what could not be written is counted on."""
    first, second = Counts(), Counts()
    for each in (ended(), ended(DEAD), ended(node_id="m")):
        first.add(each)
    second.add(ended())
    first.follow(second)
    assert first.gone == {ORIGIN: 2, ended(node_id="m").delivery.origin: 1}
    assert (first.dead, first.failed) == (4, 4)


async def test_the_host_is_told_what_a_receiver_ended(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """One alert for each origin of what was counted together; a destination that ended twenty rows in a row fails, too."""
    alerts: list[DeliveryAlert] = []

    async def alerted(alert: DeliveryAlert) -> None:
        alerts.append(alert)

    monitor = Monitor(queue.database, "continuous", 10, alerted)
    monitor.record([*(ended() for _ in range(19)), ended(node_id="m")])
    await monitor.write()
    await asyncio.wait(monitor._telling)
    assert [(each.kind, each.failures) for each in alerts] == [("failing", 20), ("gone", 19), ("gone", 1)]
    assert [each.origin for each in alerts] == [None, ORIGIN, ended(node_id="m").delivery.origin]
    assert alerts[1].destination == ended().delivery.destination
    assert (
        "destination http://127.0.0.1:80 of organization acme answers 410 Gone; dead deliveries: 19"
        in caplog.text
    )
    monitor.record([ended(DEAD)])
    await monitor.write()
    assert len(alerts) == 3
