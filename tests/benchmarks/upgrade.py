"""How long the upgrade of a filled database takes, and what it locks meanwhile.

    python -m tests.benchmarks.upgrade [--database sqlite postgres] [--rows 200000] [--json]

The database has the tables of release 0.1.0, with so many deliveries, one of ten of them live; a fourth as many nodes
that wait for their step, and a tenth as many idempotency keys, of which every second one's delivery is gone.
"""

from __future__ import annotations

import time
from typing import Any

from alembic import command
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.database import Database
from tests.benchmarks.field import on_each_database
from tests.bulk import NODE, SERIES, WALK
from tests.upgrades.released import connected

FIRST = "0001"

LOCKS = """SELECT DISTINCT relation::regclass::text || ': ' || mode FROM pg_locks
WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'flowactions%' AND mode LIKE '%Exclusive%'"""


def _first(connection: Connection) -> None:
    config = migrations._config()
    config.attributes["connection"] = connection
    command.upgrade(config, FIRST)


async def fill(connection: AsyncConnection, rows: int) -> None:
    """Make the first release's tables and fill them."""
    await connection.run_sync(_first)
    before, row_id, source = SERIES[connection.dialect.name]

    def series(count: int) -> tuple[str, str]:
        return before.format(rows=count), source.format(rows=count)

    named, each = series(rows)
    deliveries = f"""
        INSERT INTO flowactions_outbox (id, organization_id, agent_id, origin, event_id, event_type, url, destination,
            method, headers, body, status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers,
            created_at, updated_at, finished_at)
        {named}
        SELECT {row_id}, 'acme', 'agent-' || (i % 100), '{{}}', 'evt_' || i, 't', 'https://example.com/hook',
            'https://example.com:443', 'POST', '[]', NULL, CASE WHEN i % 10 = 0 THEN 'pending' ELSE 'delivered' END,
            1, 0, 5, 1000000 + i, 0, 1000000 + i, 1000000 + i, CASE WHEN i % 10 = 0 THEN NULL ELSE 1000000 + i END
        FROM {each}"""  # noqa: S608  numbers only
    named, each = series(rows // 4)
    waiting = f"""
        INSERT INTO flowactions_deferred (organization_id, run_id, step_id, node_id, walk, node, created_at, holds)
        {named}
        SELECT 'acme', 'run-' || i, 's', 'n', '{WALK}', '{NODE}', 1000000 + i, 0 FROM {each}"""  # noqa: S608
    named, each = series(rows // 10)
    keys = f"""
        INSERT INTO flowactions_idempotency_keys (agent_id, idempotency_key, delivery_id, created_at)
        {named}
        SELECT 'agent-' || (i % 100), 'key-' || i, CASE WHEN i % 2 = 0 THEN {row_id} ELSE 'gone' END, 1000000 + i
        FROM {each}"""  # noqa: S608
    named, each = series(100)
    rates = f"""
        INSERT INTO flowactions_call_rates (agent_id, times, updated_at)
        {named}
        SELECT 'agent-' || (i - 1), '[1000000]', 1000000 FROM {each}"""  # noqa: S608
    for statement in (deliveries, waiting, keys, rates):
        await connection.execute(text(statement))


async def measure(url: str, rows: int) -> dict[str, Any]:
    """Fill, upgrade, and give the seconds and PostgreSQL's locks."""
    async with connected(url) as connection:
        await fill(connection, rows)
        await connection.execute(text("ANALYZE"))
    found: dict[str, Any] = {}
    if url.startswith("postgres"):
        # Given up, so that the measured one finds everything as it was.
        async with connected(url) as connection:
            await connection.run_sync(migrations.upgrade)
            found["locks"] = sorted((await connection.execute(text(LOCKS))).scalars())
            await connection.rollback()
    started = time.perf_counter()
    await Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url).migrate()
    return {"seconds": round(time.perf_counter() - started, 2), **found}


def main() -> None:
    """Measure and print."""
    on_each_database(__doc__, measure, rows=200_000)


if __name__ == "__main__":
    main()
