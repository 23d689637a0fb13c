"""An organization is purged while worker processes deliver for it: nothing of it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.commanding import command
from tests.crash.workers import CLAIM_LIMIT, field_on
from tests.recorder import status
from tests.waiting import until

TABLES = ("outbox", "statistics", "destinations", "pauses", "actions", "audit", "enqueue_keys", "deferred")


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_nothing_comes_back_from_two_workers(database_url: str, delivery: str, tmp_path: Path) -> None:
    """After they have written their statistics several times, its line of the audit is the only row."""
    async with field_on(database_url, tmp_path) as field:
        field.settings |= {"FLOWACTIONS_DELIVERY": delivery, "FLOWACTIONS_TICK_SECONDS": "0.2"}
        field.receiver.answer = lambda number: status(500 if number % 3 == 0 else 200)
        await field.enqueue(600, maxAttempts=3)
        for _ in range(2):
            await field.start()
        await until(lambda: len(field.receiver.requests) > 100)
        ended = await command("purge", "acme", "--yes", cwd=tmp_path, **field.settings)
        assert ended.code == 0, ended.err
        before = len(field.receiver.requests)
        (now,) = await field.query("SELECT max(last_seen_at) FROM flowactions_workers")
        # Each is seen every ten seconds, and writes its statistics every five.
        seen = f"SELECT 1 WHERE (SELECT min(last_seen_at) FROM flowactions_workers) > {now[0]} + 12000"  # noqa: S608
        await until(lambda: field.query(seen))
        async with field.engine.connect() as connection:
            left = {
                table: [
                    row._asdict()
                    for row in await connection.execute(
                        text(f"SELECT * FROM flowactions_{table} WHERE organization_id = 'acme'")  # noqa: S608
                    )
                ]
                for table in TABLES
            }
            attempts = (
                await connection.execute(text("SELECT count(*) FROM flowactions_attempts"))
            ).scalar_one()
        (line,) = left.pop("audit")
        assert (line["action"], attempts, line["number"] > 0) == ("purge", 0, True)
        assert not any(left.values()), left
        assert len(field.receiver.requests) - before <= 2 * CLAIM_LIMIT  # what had begun
