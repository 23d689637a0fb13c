"""Outages that last longer than a lease, with several real workers that each keep outcomes in memory (§3.1)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from sqlite3 import connect
from typing import Any, NamedTuple

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.crash.test_kill import own_server
from tests.crash.workers import Field, field_on
from tests.outages import Outage
from tests.own_server import pg_ctl
from tests.waiting import until

__all__ = ["own_server"]

KINDS = {"stopped": 60, "read-only server": 75, "locked table": 60, "locked": 60}
"""How the database is taken away, and for how many seconds; the last one is of SQLite."""

ROWS_A_WORKER = 10
USUAL = "30 10 10"


@asynccontextmanager
async def lasting(kind: str, url: str, server: Any) -> AsyncIterator[None]:
    """Take the database away while the block runs."""
    if kind == "stopped":
        await asyncio.to_thread(pg_ctl, server, "-m", "immediate", "stop")
        yield
        await asyncio.to_thread(pg_ctl, server, "restart")
    elif kind == "locked table":
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = await asyncpg.connect(plain)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("LOCK TABLE flowactions_outbox")
        yield
        await transaction.rollback()
        await connection.close()
    elif kind == "locked":
        with closing(connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
    else:
        async with Outage(url, kind).lasting():
            yield


async def holders(field: Field) -> dict[str, int]:
    """Give the pid of the worker that holds each row that is in flight."""
    rows = await field.query(
        "SELECT event_id, pid FROM flowactions_outbox JOIN flowactions_workers"
        " ON substr(flowactions_workers.id, 29) = substr(claimed_by, 1, 8)"
    )
    return {row.event_id: row.pid for row in rows}


class Place(NamedTuple):
    """A database that is taken away: how, its URL, and its server where it is a test's own."""

    kind: str
    url: str
    server: Any


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    """A new database, to be taken away in each way."""
    if request.param == "stopped":
        server = request.getfixturevalue("own_server")
        return Place(request.param, server.get_uri(), server)
    name = "sqlite_url" if request.param == "locked" else "postgres_url"
    return Place(request.param, request.getfixturevalue(name), None)


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["all live", "one killed"])
@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
@pytest.mark.parametrize("count", [2, 4])
async def test_an_outage_of_the_database_repeats_nothing(
    place: Place, tmp_path: Path, count: int, delivery: str, killed: bool
) -> None:
    """What is in flight when it begins is answered while it lasts, and arrives once.

    Rows of a worker that was killed meanwhile are sent soon after its end.
    """
    async with field_on(place.url, tmp_path) as field:
        field.settings.update(
            FLOWACTIONS_DELIVERY=delivery,
            FLOWACTIONS_CLAIM_LIMIT=str(ROWS_A_WORKER),
            # Lanes that have not answered get one slot each, and half of the slots.
            FLOWACTIONS_CONCURRENCY=str(2 * ROWS_A_WORKER),
        )
        field.receiver.held = asyncio.Event()
        rows = count * ROWS_A_WORKER
        await field.enqueue(rows, lanes=rows)
        workers = [await field.start(FLOWACTIONS_TEST_TIMING=USUAL) for _ in range(count)]
        await until(lambda: len(field.receiver.requests) == rows)
        held_by = await holders(field)
        assert len(held_by) == rows
        lost: set[str] = set()
        async with lasting(*place):
            field.receiver.held.set()
            if killed:
                workers[0].send_signal(signal.SIGKILL)
                lost = {event for event, pid in held_by.items() if pid == workers[0].pid}
                assert lost
            await asyncio.sleep(KINDS[place.kind])  # its length is what this is about
        await field.engine.dispose()  # its connections were cut
        await field.enqueue(1)
        await until(lambda: len(field.receiver.requests) == rows + len(lost) + 1)
        await until(field.drained)
        arrivals = field.arrivals()
        assert arrivals - Counter(set(arrivals)) == Counter(lost)
        assert await field.states() == {"delivered": rows + 1}
        assert "reclaimed" not in field.logs()
