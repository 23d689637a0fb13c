"""Which nodes the deliveries come from that have failed: right, each organization's own, and never more work."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowactions_hookspecs import FlowNodeOrigin, HostOrigin
from flowactions_plugin.clock import new_id
from flowactions_plugin.insights.failures import FAILED_READ, Origin, failing_nodes, failures, most_failing
from flowactions_plugin.insights.results import Failures
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.retention import HOUR_MS
from tests.bulk import copy
from tests.commanding import command
from tests.costs import Watched
from tests.queueing import Queue

EVERY, ACME = Scope(None), Scope("acme")


async def put(
    queue: Queue, flow: str | None, node: str = "n", organization_id: str = "acme", **changes: Any
) -> str:
    """Write a delivery of a node that is dead since now, or of the host's own code."""
    origin: Any = HostOrigin(organization_id=organization_id, name="x", id="1")
    if flow is not None:
        origin = FlowNodeOrigin(organization_id=organization_id, agent_id="a", flow_id=flow, node_id=node)
    now = queue.database.clock()
    state = {"status": "dead", "finished_at": int(now * 1000), "error_class": "http_5xx", **changes}
    return await queue.put(id=new_id(now), origin=origin, organization_id=organization_id, state=state)


async def found(database: Database, scope: Scope) -> Failures:
    async with database.read() as connection:
        return await connection.run_sync(
            lambda sync: failures(sync, scope, database.time_on(sync), 5),
        )


def shown(result: Failures) -> list[tuple[Any, ...]]:
    return [
        (each.organization_id, each.flow_id, each.node_id, each.dead, each.retrying) for each in result.nodes
    ]


RETRYING: dict[str, Any] = {"status": "retrying", "finished_at": None}


async def fill(queue: Queue) -> None:
    """Write deliveries that have failed, and others."""
    now = int(queue.database.clock() * 1000)
    for node in ("one", "one", "two"):
        await put(queue, "orders", node)
    await put(queue, "orders", "two", **RETRYING)
    await put(queue, "orders", "two", "globex")
    await put(queue, "survey")
    await put(queue, None)
    # These have not failed, or not lately, or wait for people.
    await put(queue, "cancelled", error_class="cancelled")
    await put(queue, "old", finished_at=now - HOUR_MS - 1)
    await put(queue, "delivered", status="delivered", error_class=None)
    await put(queue, "pending", status="pending", finished_at=None, error_class=None)


async def test_failures_are_counted_by_node(queue: Queue) -> None:
    """Dead within the hour, or tried again; of an organization its own, under the same flow's id, too."""
    await fill(queue)
    mine = await found(queue.database, ACME)
    assert (mine.dead, mine.retrying, mine.exact) == (5, 1, True)
    own = [
        ("acme", "orders", "one", 2, 0),
        ("acme", "orders", "two", 1, 1),
        ("acme", "survey", "n", 1, 0),
    ]
    assert shown(mine) == own
    every = await found(queue.database, EVERY)
    assert (every.dead, every.retrying, every.exact) == (6, 1, True)
    assert set(shown(every)) == {*own, ("globex", "orders", "two", 1, 0)}


async def test_a_node_fails_when_most_of_its_last_deliveries_have_failed(queue: Queue) -> None:
    """Of those that arrived or failed at an attempt; what fails at a destination says nothing of a node."""
    for node in ("bad", "good", "few", "waits"):
        for _ in range(2 if node == "few" else 3):
            error = "waits" if node == "waits" else "http_5xx"
            row_id = await put(queue, "orders", node, last_error="it answered 500", error_class=error)
    for _ in range(3):
        await put(queue, "orders", "good", status="delivered", error_class=None)
        await put(queue, "orders", "good", status="pending", finished_at=None, error_class=None)
    destination = (await queue.row(row_id)).destination

    async def named(places: set[str]) -> list[tuple[Any, ...]]:
        nodes = (await found(queue.database, ACME)).nodes
        async with queue.database.read() as connection:
            judged = await connection.run_sync(failing_nodes, ACME, nodes, places)
        return [(each.node_id, each.failed, each.ended, each.reason) for each in judged]

    assert await named(set()) == [("bad", 3, 3, "it answered 500")]
    assert await named({destination}) == []


def test_the_most_failures_come_first() -> None:
    """By both kinds together; equal ones by name."""
    numbers = {"b": (2, 0), "a": (1, 2), "": (3, 0), "c": (1, 0), "d": (0, 9), "e": (0, 0)}
    origins: dict[Origin, Counter[str]] = {
        ("o", flow, "n"): Counter(dead=dead, retrying=retrying) for flow, (dead, retrying) in numbers.items()
    }
    assert [each.flow_id for each in most_failing(origins, 4)] == ["d", "", "a", "b"]


async def test_the_command_names_nodes(queue: Queue, database_url: str, tmp_path: Path) -> None:
    """In the table and in JSON, with counts and shares."""
    await fill(queue)
    of_acme = ("status", "--organization", "acme")
    asked = partial(command, *of_acme, cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database_url)
    ended = await asked()
    words = [each.split() for each in ended.out.splitlines()]
    assert ["two", "orders", "acme", "1", "1", "33.3%"] in words
    ended = await asked("--json")
    first = {"organizationId": "acme", "flowId": "orders", "nodeId": "one", "dead": 2, "retrying": 0}
    assert ended.document["failures"]["nodes"][0] == first


DEAD = "status = 'dead', finished_at = {now} - next_attempt_at, error_class = 'timeout', flow_id = 'f'"
TRIED = "status = 'retrying', finished_at = NULL, error_class = 'timeout', next_attempt_at = {now} + next_attempt_at"


MOST_WORK = {"postgresql": 3 * FAILED_READ, "sqlite": 2 * FAILED_READ}
"""Pages, or hundreds of steps: to read the table takes several times as much."""


@pytest.mark.ci
async def test_failures_cost_no_more_among_100_000(database_url: str) -> None:
    """No statement reads the table, only the rows that are counted; it is said that there are more."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url, statement_seconds=None) as database:
        queue = Queue(database)
        await copy(database, await queue.put(), 100_000)
        seen = Watched(database)
        now = int(database.clock() * 1000)
        for state, rows in ((DEAD, 100_000), (TRIED, 10_000)):
            changed = f"UPDATE flowactions_outbox SET {state.format(now=now)} WHERE next_attempt_at <= {rows}"  # noqa: S608  numbers
            await queue.run(changed)
            await queue.run("ANALYZE")
            for scope in (EVERY, ACME, Scope("globex")):

                def ask(_: Any, scope: Scope = scope) -> Any:
                    return found(database, scope)

                result = await found(database, scope)
                retrying = FAILED_READ if state == TRIED else 0
                mine = (FAILED_READ, retrying, False) if scope != Scope("globex") else (0, 0, True)
                assert (result.dead, result.retrying, result.exact) == mine
                plans = "\n".join(await seen.plans(ask))
                assert not re.search(r"Seq Scan|SCAN flowactions_outbox$", plans, re.MULTILINE), plans
                assert await seen.work(ask) <= MOST_WORK[database.dialect], (state, scope)
