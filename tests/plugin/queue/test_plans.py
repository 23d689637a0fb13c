"""What the statements of the queue cost when the table is large: plans and work, not seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.nodes.store import DeferredStore, Step
from flowactions_plugin.operations.bulk import Selection
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.store import ActionStore
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue import claims, items, keys, outcomes, probes
from flowactions_plugin.queue.claimed import Attempted, End, Returned
from flowactions_plugin.queue.enqueue import row_of
from flowactions_plugin.queue.items import Item, statements_of, write_items
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.probes import Probes
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import inbound_events, inbound_requests, metadata
from tests.bulk import copy, fill
from tests.costs import Watched
from tests.outages import parsed
from tests.pausing import ACME, MAYA
from tests.queueing import Deliveries, OutboxStore, Queue, a_delivery, an_executor, claimed, ok
from tests.support import SmallHost, a_walk, development, services_of

ROW = "00000001-0000-7000-8000-000000000001"


async def complete_one(store: OutboxStore) -> None:
    for one in await store.claim(1):
        completion = Attempted(one, Outcome(0, 0, status_code=500), Transition("retrying", 5))
        assert await store.complete([completion]) == {one.id: End("written", "retrying")}


def deferred(store: OutboxStore) -> DeferredStore:
    return DeferredStore(store._database, lambda: ("webhook", "chat_message"))


async def give_back_one(store: OutboxStore) -> None:
    for one in await store.claim(1):
        ends = await store.complete([Returned(one, waits_for="the host")])
        assert ends == {one.id: End("written", "pending")}


async def forget_one(store: OutboxStore) -> None:
    async with store._database.write() as connection:
        await deferred(store).halt(Step("acme", "run-8", "f", ""), connection)


async def resend(store: OutboxStore) -> None:
    """Look for the next rows that are sent again, of which a batch finds none."""
    wanted = Filter.of(since=1, destination="none")
    selection = Selection("resend", wanted, 1 << 41, "acme")
    actions = ActionStore(store._database)
    async with store._database.write() as connection:
        batch = await connection.run_sync(actions.next_rows, selection, ROW, 500)
    assert batch.ids == []


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
    "list by status": lambda store: listed(store, Filter.of(status="dead"), ROW),
    "list by agent": lambda store: listed(store, Filter.of(agent="agent-7"), ROW),
    "list by what no index serves": lambda store: listed(store, Filter.of(type="none")),
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


async def enqueue(store: OutboxStore) -> None:
    """Write rows in each of the ways, with an idempotency key and without."""
    database, keys = store._database, store._outbox.keys
    for key in (None, KeyUse(keys, "acme", "host", new_id(database.clock()))):
        for is_claimed in (False, True):
            item = Item(row_of(a_delivery()), key)
            item.claim = store.claim_with_enqueue(item.row) if is_claimed else None
            await database.in_transaction(partial(write_items, database, items=[item], lease_seconds=30.0))
        async with database.write() as connection:
            for statement, parameters in statements_of(database, Item(row_of(a_delivery()), key), "named"):
                await connection.execute(text(statement), parameters)


async def probe(store: OutboxStore) -> None:
    probes = Probes(store, an_executor(Queue(store._database), ok))
    assert await probes.claim(10) == []
    await probes._with_attempt(claimed())


BESIDE: dict[str, Callable[[OutboxStore], Awaitable[Any]]] = {
    "withdrawn rows": lambda store: store.withdrawn([claimed()]),
    "large body": lambda store: store.whole(claimed()),
    "touch": lambda store: store.touch(),
    "round in quarantine": lambda store: store.begin_quarantined(claimed()),
    "end of a claim that another has": lambda store: store.complete([Returned(claimed())]),
    "outcome": lambda store: store.complete(
        [Attempted(claimed(), Outcome(0, 0, status_code=500), Transition("dead"))]
    ),
    "enqueue": enqueue,
    "probe of a paused destination": probe,
}
"""What a worker and its host say to the database beside `STATEMENTS`."""


SEARCHED = (
    Filter(),
    Filter.of(flow="f"),
    Filter.of(flow="f", node="n"),
    Filter.of(destination="https://example.com:443"),
    Filter.of(status="delivered"),
    Filter.of(status="dead"),
    Filter.of(error="timeout"),
    Filter.of(key="k"),
    Filter.of(agent="agent-7", type="t"),
    Filter.of(since=10**12),
)


async def _searched(insights: Insights, scope: Scope) -> None:
    for wanted in SEARCHED:
        await insights.deliveries(scope, wanted, None, 50)
        await insights.count(scope, wanted)


def shown(scope: Scope) -> dict[str, Callable[[Insights], Awaitable[Any]]]:
    """Give what people ask for, beside searches."""
    return {
        "overview": lambda insights: insights.overview(scope),
        "destinations": lambda insights: insights.destinations(scope, 50),
        "searches": lambda insights: _searched(insights, scope),
        "delivery": lambda insights: insights.delivery(scope, ROW),
        "connections": lambda insights: insights.connections(scope, {}),
        "events": lambda insights: insights.inbound(scope, None, None, 50),
        "later events": lambda insights: insights.inbound(scope, None, "500.auth.e7", 50),
        "action": lambda insights: insights.action(scope, ROW),
        "pauses": lambda insights: insights.pauses(scope),
        "audit": lambda insights: insights.audit(scope, None, 50),
    }


async def watched(url: str, rows: int) -> Watched:
    url = read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url
    database = Database(url, statement_seconds=None)  # filling takes long
    await database.__aenter__()
    await fill(database, rows=rows, live=1000)
    seen = Watched(database)
    await seen.store.touch()  # a worker does so once
    return seen


@pytest.mark.parametrize("rows", [50_000, pytest.param(200_000, marks=pytest.mark.ci)])
async def test_no_statement_reads_the_table(tmp_path: Path, database_url: str, rows: int) -> None:
    """Of many rows a thousand live: everything goes by an index; a claim costs what it does at 10,000."""
    large = await watched(database_url, rows)
    found = {name: await large.plans(call) for name, call in STATEMENTS.items()}
    for name, plans in found.items():
        assert plans, name
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


MOST = 50_000.0
"""What PostgreSQL may expect a statement to cost: from twice as much on, it compiles it (``jit_above_cost``), for longer than it runs."""

COST = re.compile(r"cost=[0-9.]+\.\.([0-9.]+)")

SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|WITH)\b")

OF_SQLITE = {"CLAIM_EACH", "FIRST_USES", "LOG"}

HOT = ("claim", "complete", "enqueue", "scan of all lanes", "look for what has become due", "withdrawn rows")


@pytest.mark.parametrize(
    "rows", [40_000, *(pytest.param(rows, marks=pytest.mark.ci) for rows in (0, 1000, 1_000_000))]
)
async def test_no_statement_is_expected_to_cost_much(postgres_url: str, rows: int) -> None:
    """However many rows wait for a thousand destinations, analyzed or not, whatever the plan; a host's connections have JIT.

    Only people's searches are not tried where nothing was analyzed: what they may cost grows with the table then.
    """
    engine = create_async_engine(parsed(postgres_url))
    host = SmallHost(development("sqlite:///never.db"), database=engine)
    async with FlowActions.load(host).lifespan(tasks=False):
        services = services_of(host)
        database, insights = services._database, services._insights
        async with database.write() as connection:
            for table in metadata.tables:
                await connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
        if rows:
            async with Database(parsed(postgres_url), statement_seconds=None) as own:
                await fill(own, rows=rows, live=rows, lanes=1000, analyzed=False)
        seen = Watched(database)
        calls = {**STATEMENTS, **BESIDE}
        calls |= {each.name: partial(_done, each.work) for each in services.housekeeping()}
        for whose in (None, "acme"):
            asked = shown(Scope(whose)).items()
            calls |= {f"{name} of {whose}": partial(_done, partial(ask, insights)) for name, ask in asked}
        for analyzed in (False, True):
            if analyzed:
                async with database.write() as connection:
                    await connection.execute(text("ANALYZE"))
            for name, call in calls.items():
                for plan in await seen.plans(call) if analyzed or not name.startswith("searches") else ():
                    cost = COST.search(plan)
                    assert cost is not None, (name, plan)
                    assert float(cost[1]) < MOST, (analyzed, name, plan)
            if rows >= 1_000_000:
                control = await _seconds(partial(_read_all, database), seen.store)
                for name in HOT:
                    assert await _seconds(calls[name], seen.store) < control, (analyzed, name)
        assert written_in(claims, items, keys, outcomes, probes) <= {
            part for made in database._built for part in made if isinstance(part, str)
        }
    await engine.dispose()


def written_in(*modules: Any) -> set[str]:
    """Give the statements of modules, but for those of SQLite alone."""
    named = [each for module in modules for each in vars(module).items() if each[0] not in OF_SQLITE]
    return {sql for name, sql in named if isinstance(sql, str) and SQL.match(sql) and name[0] != "_"}


async def _read_all(database: Database, _: OutboxStore) -> None:
    async with database.read() as connection:
        await connection.execute(text("SET LOCAL max_parallel_workers_per_gather = 0"))
        await connection.execute(text("SELECT count(body), count(headers) FROM flowactions_outbox"))


async def _seconds(call: Callable[[OutboxStore], Awaitable[Any]], store: OutboxStore) -> float:
    """Give the shortest of three times that a call takes."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        await call(store)
        took.append(time.perf_counter() - began)
    return min(took)


async def _done(work: Callable[[], Awaitable[Any]], _: OutboxStore) -> None:
    await work()


async def _emptied(url: str) -> None:
    database = Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
    async with database, database.write() as connection:
        await connection.exec_driver_sql(
            "TRUNCATE flowactions_outbox, flowactions_attempts, flowactions_deferred, flowactions_halted_runs,"
            " flowactions_inbound_events"
        )
