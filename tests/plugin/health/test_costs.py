"""An overview costs no more, however many there are of anything."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import insert

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.standing import COUNT_LIMIT
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import Attempted
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.schema import BEHIND_MS, chat_connections, destinations, statistics, workers
from flowactions_plugin.watch.fleet import Fleet
from flowactions_plugin.watch.monitor import Monitor
from tests.bulk import copy, failing
from tests.costs import Watched
from tests.pausing import ACME, MAYA
from tests.plugin.stored import a_connection, a_worker
from tests.queueing import Queue, claimed
from tests.rings import sampled


@pytest.mark.parametrize(
    ("organization", "status"), [("acme", "pending"), ("globex", "pending"), ("acme", "delivered")]
)
async def test_an_overview_costs_no_more_with_more_rows(queue: Queue, organization: str, status: str) -> None:
    """Four times the rows are the same work for the database: due rows beyond a limit, another's, and those that have arrived."""
    queries, scope, work = Insights(queue.database), Scope(organization), []
    row = await queue.put()
    await queue.run(f"UPDATE flowactions_outbox SET status = '{status}'")  # noqa: S608
    for already, more in ((0, 12_000), (12_000, 36_000)):
        await copy(queue.database, row, more, already=already)
        overview = await queries.overview(scope)
        number = f"{COUNT_LIMIT:,}+" if (organization, status) == ("acme", "pending") else "0"
        assert [str(overview.due), str(overview.waiting)] == [number] * 2
        seen = Watched(queue.database)
        work.append(sorted([await seen.work(lambda _: queries.overview(scope)) for _ in range(3)])[1])
    assert work[0] > 5
    assert work[1] <= 1.5 * work[0], work


async def test_a_chat_connection_is_counted_for_its_organization_only(queue: Queue) -> None:
    """One that is revoked, or cannot send, is another organization's: it has no finding."""
    now = int(time.time() * 1000)
    for name, changes in (("o1", {"status": "revoked"}), ("o2", {"last_error_at": now}), ("o3", {})):
        await queue.run(insert(chat_connections).values(a_connection(name, **changes)))
    insights = Insights(queue.database)
    counted = [str((await insights.facts(Scope(each))).chat) for each in ("o1", "o2", "o3", "x", None)]
    assert counted == ["1", "1", "0", "0", "2"]


async def _grow(queue: Queue, row_id: str, what: str, numbers: range, now: int) -> None:
    """Write what there may be many of: destinations and nodes that fail, of an organization each; workers; pauses.

    What is written later is older than what was written before: only with the same ``now`` do their times not overlap,
    and an index finds the newest on the same pages.
    """
    if what == "behind":
        await copy(queue.database, row_id, len(numbers), already=numbers.start)
        behind = f"next_attempt_at = {BEHIND_MS}, sequence = 7, position = attempts"
        await queue.run(f"UPDATE flowactions_outbox SET {behind} WHERE id <> '{row_id}' AND position IS NULL")  # noqa: S608
        return
    if what == "nodes":
        await copy(queue.database, row_id, len(numbers), already=numbers.start)
        changed = "status = 'dead', error_class = 'not_sent', last_error = 'x'"
        await queue.run(
            f"UPDATE flowactions_outbox SET flow_id = id, node_id = id, organization_id = id, {changed}, "  # noqa: S608
            f"finished_at = {now} WHERE id <> '{row_id}'"
        )
        return
    table, rows = {
        "destinations": (destinations, [failing(number, now - number) for number in numbers]),
        "old failures": (destinations, [failing(number, number) for number in numbers]),
        "connections": (chat_connections, [a_connection(f"o{number:05}") for number in numbers]),
        "working": (destinations, [{**failing(number, now), "failing_since": None} for number in numbers]),
        "workers": (workers, [a_worker(now, id=f"{n:036}", last_seen_at=now - n) for n in numbers]),
        "statistics": (
            statistics,
            [
                {
                    "bucket": now - now % 300_000,
                    "organization_id": f"o{number:05}",
                    "destination": f"https://d{number}.example:443",
                    **dict.fromkeys(("delivered", "failed", "dead", "duration_ms"), 30),
                }
                for number in numbers
            ],
        ),
    }[what]
    async with queue.database.write() as connection:
        await connection.execute(insert(table), rows)
    await queue.run("ANALYZE")


@sampled("organization", [None, "o00007"], size=1)
@pytest.mark.parametrize(
    "grows",
    ["destinations", "old failures", "working", "nodes", "behind", "workers", "statistics", "connections"],
)
async def test_an_overview_costs_no_more_with_more_of_anything(
    queue: Queue, organization: str | None, grows: str
) -> None:
    """Of destinations, organizations, nodes and workers, too, four times as many are the same work."""
    insights, scope, work = Insights(queue.database), Scope(organization), []
    now = int(time.time() * 1000)
    row_id = await queue.put()
    await _grow(queue, row_id, "statistics", range(300), now)
    few = 12_000 if grows == "behind" else 6000  # what waits is counted up to a limit
    for numbers in (range(few), range(few, 4 * few)):
        await _grow(queue, row_id, grows, range(300 + numbers.start, 300 + numbers.stop), now)
        seen = Watched(queue.database, "flowactions_")
        work.append(sorted([await seen.work(lambda _: insights.overview(scope)) for _ in range(3)])[1])
    assert work[0] > 5
    # For failing nodes, the server's planner has several ways: one reads some 250 blocks, others up to 3,200.
    most = 3200 if grows == "nodes" and queue.database.sql.is_server else 0
    assert work[1] <= max(1.5 * work[0], most), work


async def test_an_overview_reads_the_hour_of_the_destinations_that_it_names_only(queue: Queue) -> None:
    """With many that fail, it looked through the statistics of all."""
    row_id = await queue.put()
    for grows in ("destinations", "statistics"):
        await _grow(queue, row_id, grows, range(6000), int(time.time() * 1000))
    insights, seen = Insights(queue.database), Watched(queue.database)
    plans = await seen.plans(lambda _: insights.overview(Scope(None)))
    assert [plan for plan in plans if re.search("(?i)(Seq Scan on|^SCAN) flowactions_statistics", plan)] == []
    overview = await insights.overview(Scope(None))
    assert {each.delivered for each in overview.failing} == {30}


@pytest.mark.parametrize("scope", [Scope(None), Scope("acme")])
async def test_an_overview_takes_fifteen_statements_at_the_most(queue: Queue, scope: Scope) -> None:
    """Also when everything is wrong: attempts fail, destinations are limited and paused, and alerts do not arrive."""
    database, place = queue.database, "https://example.com:443"
    row_id = await queue.put(destination=place)
    await Operations(database).pause(ACME, place, MAYA)
    monitor = Monitor(database, "continuous", 10, None)
    failed = Transition("retrying")
    for organization in ("acme", ""):
        row = claimed(organization_id=organization, destination=place)
        monitor.record([Attempted(row, Outcome(0, 1, status_code=500), failed) for _ in range(20)])
    await monitor.write()
    await Fleet(database, "continuous", 10).beat(0, 0, {"acme": {place: 1}})
    await queue.run("UPDATE flowactions_outbox SET takeovers = 3, waiting_since = 1, last_error = 'x'")
    insights = Insights(database, Settings(alerts_url=place))
    about = {each.about for each in (await insights.overview(scope)).findings}
    assert {"waiting", "quarantine", "destination", "limited", "paused"} <= about, row_id
    assert ("alerts" in about) == (scope.organization_id is None)
    seen = Watched(database)
    await insights.overview(scope)
    assert len(seen.statements) <= 15, seen.statements
