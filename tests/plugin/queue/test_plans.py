"""What the statements of the queue cost when the table is large: plans and work, not seconds."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from flowactions_hookspecs import Node
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.nodes.store import DeferredStore, Step
from flowactions_plugin.operations.bulk import Selection
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.store import ActionStore
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import Completion, End, given_back
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import inbound_events, inbound_requests
from tests.bulk import copy, fill
from tests.costs import Watched
from tests.pausing import ACME, MAYA
from tests.queueing import Deliveries, OutboxStore, Queue
from tests.support import a_walk

ROW = "00000001-0000-7000-8000-000000000001"
EVERYTHING = Filter(
    ids=(ROW,), agent_id="agent-7", destination="d", event_type="t", finished_from=0, finished_before=10**12
)


async def complete_one(store: OutboxStore) -> None:
    (claimed,) = await store.claim(1)
    completion = Completion(claimed, Outcome(0, 0, status_code=500), Transition("retrying", 5))
    assert await store.complete([completion]) == {claimed.id: End("written", "retrying")}


def deferred(store: OutboxStore) -> DeferredStore:
    return DeferredStore(store._database, lambda: ("webhook", "chat_message"))


async def give_back_one(store: OutboxStore) -> None:
    (claimed,) = await store.claim(1)
    ends = await store.complete([given_back(claimed, waits_for="the host")])
    assert ends == {claimed.id: End("written", "pending")}


async def forget_one(store: OutboxStore) -> None:
    async with store._database.write() as connection:
        await deferred(store).halt(Step("acme", "run-8", "f", ""), connection)


async def resend(store: OutboxStore) -> None:
    """Look for the next rows that are sent again, of which a batch finds none."""
    wanted = Filter(created_from=1, destination="none")
    selection = Selection(kind="resend", organization_id="acme", filter=wanted, as_of=1 << 41)
    actions = ActionStore(store._database)
    async with store._database.write() as connection:
        batch = await connection.run_sync(actions.next_rows, selection, ROW, 500)
    assert (batch.ids, batch.more) == ([], True)


def queries(store: OutboxStore) -> Deliveries:
    return Deliveries(store._database)


# To find the first lane, SQLite begins a scan of the index, which ends after a row.
SCANNED = re.compile(
    r"(?:Seq Scan on|SCAN) (flowactions\w*)\b(?! USING INDEX ix_flowactions_outbox_lane$)", re.MULTILINE
)


def listed(
    store: OutboxStore, wanted: Filter, before: str | None = None, organization_id: str = "acme"
) -> Awaitable[Any]:
    return Insights(store._database).deliveries(Scope(organization_id), wanted, before, 50)


def pruning(moment: Any) -> Callable[[OutboxStore], Awaitable[Any]]:
    return lambda store: store._database.prune(moment, 0, 500)


STATEMENTS: dict[str, Callable[[OutboxStore], Awaitable[Any]]] = {
    "claim": lambda store: store.claim(50),
    "claim within limits": lambda store: store.claim(50, per_destination=2),
    "complete": complete_one,
    "give back": give_back_one,
    "search for quarantined rows": lambda store: store.any_quarantined(),
    "claim of a quarantined row": lambda store: store.claim_quarantined(),
    "scan of all lanes": lambda store: store.scan(),
    "look for what has become due": lambda store: store.look(),
    "retry": lambda store: queries(store).retry(ROW, "acme"),
    "cancel": lambda store: queries(store).cancel(ROW, "acme", "no"),
    "resend": resend,
    "list": lambda store: listed(store, Filter()),
    "list by status": lambda store: listed(store, Filter(status="dead"), ROW),
    "list by agent": lambda store: listed(store, Filter(agent_id="agent-7"), ROW),
    "list by what no index serves": lambda store: listed(store, Filter(event_type="none")),
    "list of a tenant without rows": lambda store: listed(store, Filter(), organization_id="globex"),
    "detail": lambda store: queries(store).stored(ROW, "acme"),
    "lease of a step": lambda store: deferred(store).lease(Step("acme", "run-7", "f", "")),
    "reach of a node": lambda store: deferred(store).record(
        a_walk(run_id="run-6", flow_id="f"), Node(id="n", type="webhook"), None, None
    ),
    "expired leases": lambda store: deferred(store).expired(20),
    "lease of a step that waits for another process": lambda store: deferred(store).lease(
        Step("acme", "run-5", "f", "")
    ),
    "release of a step": lambda store: deferred(store).release(Step("acme", "run-7", "f", "")),
    "end of a lease": lambda store: deferred(store).find(Step("acme", "run-9", "f", ""), None),
    "end of a run": forget_one,
    "prune of inbound events": pruning(inbound_events.c.received_at),
    "prune of delivered rows": lambda store: queries(store).prune("delivered", 0, 500),
    "prune of dead rows": lambda store: queries(store).prune("dead", 0, 500),
    "prune of halted runs": pruning(schema.halted_runs.c.halted_at),
    "prune of records": pruning(schema.deferred.c.created_at),
}


async def watched(url: str, rows: int) -> Watched:
    url = read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url
    database = Database(url, statement_seconds=None)  # filling takes long
    await database.__aenter__()
    await fill(database, rows=rows, live=1000)
    return Watched(database)


@pytest.mark.parametrize("rows", [50_000, pytest.param(200_000, marks=pytest.mark.ci)])
async def test_no_statement_reads_the_table(tmp_path: Path, database_url: str, rows: int) -> None:
    """Of many rows a thousand live: everything goes by an index; a claim costs what it does at 10,000."""
    large = await watched(database_url, rows)
    found = {name: await large.plans(call) for name, call in STATEMENTS.items()}
    for name, plans in found.items():
        few = {"flowactions_pauses", "flowactions_actions"}
        if name.startswith("prune of "):
            few.add(
                "flowactions_attempts"
            )  # before version 17, PostgreSQL reads some thousand rather than search for 500
        for plan in plans:
            scanned = set(SCANNED.findall(plan)) - few
            assert not scanned, (name, plan)
            assert "BLOOM" not in plan, (name, plan)  # made of all rows
    for plan in (*found["claim"], *found["scan of all lanes"]):
        assert "ix_flowactions_outbox_lane" in plan, plan
    assert "ix_flowactions_outbox_due" in found["look for what has become due"][0]
    for name in ("search for quarantined rows", "claim of a quarantined row"):
        assert "ix_flowactions_outbox_quarantined" in found[name][0], found[name]
    # By type and time: a process comes by no record that it cannot run.
    assert "ix_flowactions_deferred_held" in found["expired leases"][0]
    work = [await large.work(STATEMENTS["claim"]) for _ in range(5)]
    await large.database.__aexit__()

    small_url = f"sqlite:///{tmp_path / 'small.db'}"
    if large.database.dialect == "postgresql":
        await _emptied(database_url)
        small_url = database_url
    small = await watched(small_url, 10_000)
    compared = [await small.work(STATEMENTS["claim"]) for _ in range(5)]
    await small.database.__aexit__()
    assert min(compared) > 10
    assert sorted(work)[2] <= 2 * sorted(compared)[2], (work, compared)


@pytest.mark.ci
@pytest.mark.parametrize("paused", [False, True])
async def test_the_cost_of_a_claim_does_not_grow_with_another_destinations_backlog(
    database_url: str, paused: bool
) -> None:
    """A destination's hundred thousand due rows, paused or not, cost a claim and the scan before it what its thousand do."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url, statement_seconds=None) as database:
        queue = Queue(database)
        place = "http://slow.example.com:80"
        slow = await queue.put(destination=place)
        for number in range(60):
            await queue.put(destination=f"http://r{number}.example.com:80")
        if paused:
            await Operations(database).pause(ACME, place, MAYA)
        seen = Watched(database)

        async def claim(store: OutboxStore) -> None:
            found = await store.scan()
            assert len(found) == 61 - paused
            assert await store.claim(found[:20]) != []

        work = []
        for backlog in (1000, 100_000):
            await queue.run("DELETE FROM flowactions_outbox WHERE next_attempt_at <= 1000")
            await copy(database, slow, backlog)
            measured = []
            for _ in range(3):
                measured.append(await seen.work(claim))
                await queue.run("UPDATE flowactions_outbox SET claimed_by = NULL, claimed_until = NULL")
            work.append(sorted(measured)[1])
        assert work[0] > 5
        assert work[1] <= 2 * work[0], work


WHOLE_TABLE = re.compile(r"Seq Scan on flowactions|SCAN flowactions_\w+$", re.MULTILINE)


async def _asked(queries: Insights, call: Callable[[Insights], Awaitable[Any]], _: OutboxStore) -> None:
    await call(queries)


WATCHED: dict[str, Callable[[Insights], Awaitable[Any]]] = {
    "events": lambda queries: queries.inbound(Scope(), None, None, 50),
    "later events": lambda queries: queries.inbound(Scope(), None, "500.auth.e7", 50),
    "prune": lambda queries: queries._database.prune(inbound_requests.c.last_at, 10**9, 500),
}


@pytest.mark.ci
async def test_inbound_events_are_looked_up_by_an_index(database_url: str) -> None:
    """Of 30,000 rows each; no statement reads a table, but in the order of an index, from which a page is taken."""
    database = Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    each = range(30_000)
    async with database:
        async with database.write() as connection:
            events = [
                {"provider": "auth", "event_id": f"e{i}", "received_at": i, "repeats": i % 2} for i in each
            ]
            await connection.execute(insert(inbound_events), events)
            request = {"provider": "chat", "status_code": 500, "result": "failed", "requests": 1}
            requests = [{**request, "cause": f"r{i}", "first_at": i, "last_at": i} for i in each]
            await connection.execute(insert(inbound_requests), requests)
        async with database.write() as connection:
            await connection.exec_driver_sql("ANALYZE")
        watched, queries = Watched(database), Insights(database)
        for name, call in WATCHED.items():
            for plan in await watched.plans(partial(_asked, queries, call)):
                assert not WHOLE_TABLE.search(plan), (name, plan)


async def _emptied(url: str) -> None:
    database = Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
    async with database, database.write() as connection:
        await connection.exec_driver_sql(
            "TRUNCATE flowactions_outbox, flowactions_attempts, flowactions_deferred, flowactions_halted_runs,"
            " flowactions_inbound_events"
        )
