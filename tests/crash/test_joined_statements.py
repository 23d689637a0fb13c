"""Webhooks written by statements, in transactions of drivers that are not async: a process is killed at each point."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions
from tests.crash.joining import STYLES, packed
from tests.owning import keys_and_rows, orders, own_webhook, owning
from tests.recorder import recorder
from tests.waiting import until

ROOT = Path(__file__).parents[2]
KILLS = 50
"""For each driver and database: two hundred in all."""

DRIVERS = [("sqlite", "sqlite3"), ("sqlite", "django"), ("postgresql", "psycopg"), ("postgresql", "django")]
YEAR_HOURS = "8760"


def plain(database_url: str) -> str:
    """Return a URL without a driver's name."""
    url = make_url(database_url)
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)


@pytest.fixture(params=DRIVERS, ids=" ".join)
def at(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A database's URL, and a driver of it."""
    database, driver = request.param
    fixture = "sqlite_url" if database == "sqlite" else "postgres_url"
    return request.getfixturevalue(fixture), driver


async def test_killed_before_the_commit_neither_is_there_and_after_it_both(at: tuple[str, str]) -> None:
    """The host's row, the key and the webhook's row: killed between the host's write and the commit, and right after."""
    database_url, driver = at
    async with owning(database_url, tasks=False, FLOWACTIONS_IDEMPOTENCY_HOURS=YEAR_HOURS) as (actions, host):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.joining", plain(database_url), cwd=ROOT, stdin=-1, stdout=-1
        )
        lines = []
        for number in range(KILLS):
            prepared = await actions.prepare(own_webhook(entity=f"o-{number}", idempotency_key=f"o-{number}"))
            statements = prepared.statements(STYLES[driver])
            assert len(statements) == 2
            lines.append(packed(driver, f"o-{number}", statements, die_after=number % 4 + 1))
        answers, _ = await process.communicate(b"".join(lines))
        assert answers.split() == [b"-9"] * KILLS
        committed = {f"o-{number}" for number in range(KILLS) if number % 4 == 3}
        keys, rows = await keys_and_rows(host)
        assert await orders(host) == committed
        assert {row.idempotency_key for row in rows} == committed
        assert {key[2:] for key in keys} == {(row.idempotency_key, row.id) for row in rows}
        again = [await actions.enqueue(own_webhook(idempotency_key=each)) for each in sorted(committed)]
        assert {each.status for each in again} == {"duplicate"}


def connected(database_url: str) -> Any:
    """Connect with a driver of the DB-API."""
    url = make_url(plain(database_url))
    if url.get_backend_name() == "sqlite":
        return closing(sqlite3.connect(str(url.database)))
    return psycopg.connect(url.render_as_string(hide_password=False))


def style_of(database_url: str) -> str:
    """Return the paramstyle of that driver."""
    return "qmark" if database_url.startswith("sqlite") else "format"


async def written(actions: FlowActions, cursor: Any, style: str, **webhook: Any) -> int:
    """Execute a webhook's statements, and return how many rows the last one has written."""
    for each in (await actions.prepare(own_webhook(**webhook))).statements(style):
        cursor.execute(*each)
    return int(cursor.rowcount)


async def test_no_row_written_tells_a_duplicate(database_url: str) -> None:
    """Also within a transaction, and of a key that `enqueue` has used; a savepoint that is rolled back leaves the key free."""
    style = style_of(database_url)
    async with owning(database_url, tasks=False) as (actions, host):
        await actions.enqueue(own_webhook(idempotency_key="theirs"))
        with connected(database_url) as connection:
            cursor = connection.cursor()
            cursor.execute("INSERT INTO orders (id) VALUES ('o')")
            assert await written(actions, cursor, style, idempotency_key="theirs") == 0
            cursor.execute("SAVEPOINT s")
            assert await written(actions, cursor, style, idempotency_key="k") == 1
            cursor.execute("ROLLBACK TO s")
            assert await written(actions, cursor, style, idempotency_key="k", body=b"\x00\xff") == 1
            assert await written(actions, cursor, style, idempotency_key="k") == 0
            assert await written(actions, cursor, style, method="GET") == 1
            assert await written(actions, cursor, style) == 1
            connection.commit()
        _, rows = await keys_and_rows(host)
        assert sorted(row.idempotency_key or "" for row in rows) == ["", "", "k", "theirs"]
        bodies = {(row.idempotency_key, row.method): row.body and bytes(row.body) for row in rows}
        assert (bodies["k", "POST"], bodies[None, "GET"]) == (b"\x00\xff", None)


async def test_they_write_what_write_writes(database_url: str) -> None:
    """Every column of the row is the same, but ids and times."""
    style = style_of(database_url)
    async with owning(database_url, tasks=False) as (actions, host):
        await actions.enqueue(own_webhook())
        with connected(database_url) as connection:
            await written(actions, connection.cursor(), style)
            connection.commit()
        _, rows = await keys_and_rows(host)
        first, second = (
            {name: value for name, value in row._mapping.items() if name != "id" and not name.endswith("_at")}
            for row in rows
        )
        assert first == second


MARKS = {"qmark": "?, ?", "numeric": ":1, :2", "named": ":id", "format": "%s", "pyformat": "%(id)s"}


async def test_every_paramstyle_has_its_marks(database_url: str) -> None:
    """Sequences for those with marks in order, dictionaries for those with names; another one is refused."""
    async with owning(database_url, tasks=False) as (actions, _):
        prepared = await actions.prepare(own_webhook(idempotency_key="k"))
        for style, marks in MARKS.items():
            _, (row, given) = prepared.statements(style)
            assert marks.partition(",")[0] in row
            assert isinstance(given, dict if "named" in style or style == "pyformat" else tuple)
        with pytest.raises(ValueError, match="give one of qmark"):
            prepared.statements("dollar")
        refused = await actions.prepare(own_webhook(url="http://169.254.169.254/"))
        assert refused.refused is not None
        assert refused.statements("qmark") == []


@pytest.mark.parametrize("woken", [True, False])
async def test_a_worker_sends_what_was_committed(database_url: str, woken: bool) -> None:
    """It is woken by `committed`, from a thread, or looks itself; before the commit nothing is sent."""
    async with recorder() as receiver, owning(database_url, FLOWACTIONS_HOST_WORKER="on") as (actions, _):
        prepared = await actions.prepare(own_webhook(url=receiver.url))
        with connected(database_url) as connection:
            for each in prepared.statements(style_of(database_url)):
                connection.cursor().execute(*each)
            assert receiver.requests == []
            connection.commit()
        if woken:
            await asyncio.to_thread(prepared.committed)
        await until(lambda: receiver.requests)
