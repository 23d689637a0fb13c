"""Each search that operators make reads a page of an index, as decision 33 says which."""

from __future__ import annotations

from sqlalchemy import inspect

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.bulk import fill
from tests.costs import Watched
from tests.queueing import Queue

ROWS = 20_000
LAST = "00003000-0000-7000-8000-000000003000"
"""The cursor: the id of the last row of the page before."""

FAILED = "error_class IS NOT NULL"
SEARCHES = {
    "id": (f"id = '{LAST}'", "pk_flowactions_outbox"),
    "all organizations": (f"id < '{LAST}'", "pk_flowactions_outbox"),
    "organization and time": (f"organization_id = 'globex' AND id < '{LAST}'", "organization"),
    "dead": (
        f"organization_id = 'acme' AND status = 'dead' AND status <> 'delivered' AND id < '{LAST}'",
        "undelivered",
    ),
    "retrying": (
        f"organization_id = 'acme' AND status = 'retrying' AND status <> 'delivered' AND id < '{LAST}'",
        "undelivered",
    ),
    "error class": (
        f"organization_id = 'globex' AND error_class = 'timeout' AND {FAILED} AND id < '{LAST.replace('3', '9')}'",
        "failed",
    ),
    "dead of all": (f"{FAILED} AND status = 'dead' AND id < '{LAST}'", "failed_id"),
    "key": (
        f"idempotency_key = 'k-7' AND idempotency_key IS NOT NULL AND id < '{LAST}'",
        "key",
    ),
    "event": ("event_id = 'evt_101'", "event"),
    "destination": (
        f"destination = 'https://d3.example.com:443' AND {FAILED} AND id < '{LAST}'",
        "failed_destination",
    ),
    "flow": (f"organization_id = 'acme' AND flow_id = 'f-3' AND {FAILED}", "failed_node"),
    "node": (
        f"organization_id = 'acme' AND flow_id = 'f-3' AND node_id = 'n-3' AND {FAILED} AND id < '{LAST}'",
        "failed_node",
    ),
}

SPREAD = """UPDATE flowactions_outbox SET
    error_class = CASE WHEN status = 'dead' THEN CASE WHEN attempts = 1 THEN 'timeout' ELSE 'http_5xx' END END,
    flow_id = 'f-' || (updated_at % 50), node_id = 'n-' || (updated_at % 50),
    destination = 'https://d' || (updated_at % 50) || '.example.com:443',
    organization_id = CASE WHEN updated_at % 37 = 0 THEN 'globex' ELSE 'acme' END,
    idempotency_key = CASE WHEN updated_at % 10 = 0 THEN 'k-' || updated_at END"""


async def test_each_search_reads_a_page_of_an_index(database_url: str) -> None:
    """Each goes by the index that is there for it; where PostgreSQL expects a few rows only, it may sort them."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url, statement_seconds=None) as database:
        await fill(database, rows=ROWS, live=1000)
        await Queue(database).run(SPREAD)
        await Queue(database).run("ANALYZE")
        seen = Watched(database)
        for name, (where, index) in SEARCHES.items():
            order = "" if name in {"id", "event", "flow"} else " ORDER BY id DESC"
            query = f"SELECT id FROM flowactions_outbox WHERE {where}{order} LIMIT 20"  # noqa: S608
            (plan, *_) = await seen._explained(query, None if seen.database.dialect == "postgresql" else ())
            assert "Seq Scan" not in plan, (name, plan)
            assert "TEMP B-TREE" not in plan, (name, plan)
            wanted = index if index.startswith("pk_") else f"ix_flowactions_outbox_{index}"
            sqlite_key = index.startswith("pk_") and "sqlite_autoindex_flowactions_outbox_1" in plan
            assert f"{wanted} " in f"{plan} " or sqlite_key, (name, plan)


async def test_the_indexes_cost_a_delivery_that_succeeds_little(database_url: str) -> None:
    """What is indexed for all rows is written at each enqueue and each outcome: so these are all there are."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url) as database, database.read() as connection:
        found = await connection.run_sync(lambda opened: inspect(opened).get_indexes("flowactions_outbox"))
    full = [
        each["name"] for each in found if f"{database.dialect}_where" not in each.get("dialect_options", {})
    ]
    names = {str(name).removeprefix("ix_flowactions_outbox_") for name in full}
    assert names == {"organization", "event"}
