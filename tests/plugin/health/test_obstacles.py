"""Rights that are missing and locks of others are named by all that tell how things stand: on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions
from flowactions_plugin import housekeeper
from flowactions_plugin.cli.diagnosis import _writing, check_deliveries
from flowactions_plugin.insights import port
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage import postgresql, schema, waiting
from flowactions_plugin.storage.database import Database
from flowactions_plugin.watch import monitor, readiness
from tests.outages import a_database, a_role, execute
from tests.plugin.cli.test_doctor import made
from tests.plugin.pages.conftest import KEY, OperatedHost, a_site
from tests.rings import sampled
from tests.support import development, services_of
from tests.waiting import until

ALL_RIGHTS = (
    "USAGE ON SCHEMA public",
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",
    "USAGE ON ALL SEQUENCES IN SCHEMA public",
)
"""Those of production.md."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say at once what is otherwise said after seconds."""
    monkeypatch.setattr(postgresql, "BLOCKING_SECONDS", 0)
    monkeypatch.setattr(readiness, "LOCK_SECONDS", 0.2)


@asynccontextmanager
async def of_a_role(url: str) -> AsyncIterator[tuple[Database, str]]:
    """Open the database as a role; give it and the role."""
    async with a_role(url, *ALL_RIGHTS) as own, a_database(own) as database:
        yield database, str(make_url(own).username)


@asynccontextmanager
async def holding(url: str, *statements: str) -> AsyncIterator[int]:
    """Keep a transaction with these statements open during the block; give its process."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    other = await asyncpg.connect(plain, server_settings={"application_name": "psql"})
    try:
        await other.execute("BEGIN")
        for each in statements:
            await other.execute(each)
        yield other.get_server_pid()
    finally:
        await other.close()


async def state_of(database: Database) -> Any:
    return await Insights(database).overview(Scope())


async def test_each_table_is_really_written(postgres_url: str) -> None:
    """By whom has all rights. Without one of them, check and findings name it, and the verdict where nothing can be queued."""
    rights = [("flowactions_outbox", each) for each in ("SELECT", "INSERT", "UPDATE", "DELETE")]
    rights += zip(schema.metadata.tables, cycle(["INSERT", "UPDATE", "DELETE"]), strict=False)
    async with of_a_role(postgres_url) as (database, role):
        assert [(each.result, each.message) for each in await made(_writing, database)] == [
            ("ok", "a row of each table was written, changed and removed")
        ]
        for name, right in rights:
            await execute(postgres_url, f'REVOKE {right} ON {name} FROM "{role}"')
            (check,) = await made(_writing, database)
            assert (check.result, f"lacks {right} on {name}" in check.message) == ("failed", True), (
                check.message
            )
            if right != "SELECT":
                told, words = await state_of(database), f"this process's role lacks {right} on {name}"
                found = [(each.level, each.about, each.words) for each in told.findings]
                assert ("failed", "rights", words) in found
                assert name != "flowactions_outbox" or words in told.verdict.reason
            await execute(postgres_url, f'GRANT {right} ON {name} TO "{role}"')
        assert (await made(_writing, database))[0].result == "ok"
        async with database.read() as connection:
            for name in schema.metadata.tables:
                left = await connection.exec_driver_sql(f"SELECT count(*) FROM {name}")  # noqa: S608
                assert left.scalar_one() == (name == "flowactions_installation")


async def test_a_sequence_needs_its_right(postgres_url: str) -> None:
    """Nodes that wait for their step are numbered by one."""
    async with of_a_role(postgres_url) as (database, role):
        await execute(postgres_url, f'REVOKE USAGE ON flowactions_deferred_id_seq FROM "{role}"')
        (check,) = await made(_writing, database)
        assert (check.result, "USAGE on flowactions_deferred_id_seq" in check.message) == ("failed", True)


@pytest.mark.parametrize("mode", ["SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"])
async def test_who_holds_a_lock_is_named(postgres_url: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what, and since when: by the check, the verdict, and the pages, which wait for a few seconds at the most."""
    async with a_database(postgres_url) as database:
        async with holding(postgres_url, f"LOCK TABLE flowactions_outbox IN {mode} MODE") as pid:
            (check,) = await made(_writing, database)
            says = f"process {pid} (psql of postgres) holds a lock on flowactions_outbox for "
            assert (check.result, says in check.message) == ("failed", True), check.message
            if mode == "ACCESS EXCLUSIVE":  # nothing is read
                with monkeypatch.context() as patched:
                    patched.setattr(waiting, "ANSWER_SECONDS", 1.0)
                    (check,) = await made(check_deliveries, database)
                assert (check.result, says in check.message) == ("failed", True), check.message
            else:
                told = await state_of(database)
                assert (told.verdict.state, says in told.verdict.reason) == ("unwritable", True)
        assert (await made(_writing, database))[0].result == "ok"
        assert (await state_of(database)).verdict.state == "no_worker"


async def test_rows_for_which_others_wait_are_named(postgres_url: str) -> None:
    """A forgotten transaction that holds rows keeps no table from being written, and is a warning while somebody waits."""
    async with a_database(postgres_url) as database:
        change = "UPDATE flowactions_installation SET outages = outages"
        async with holding(postgres_url, change) as pid:
            assert [each.about for each in (await state_of(database)).findings if each.about == "locks"] == []
            waits = asyncio.create_task(execute(postgres_url, change))

            async def is_told() -> bool:
                found = [each for each in (await state_of(database)).findings if each.about == "locks"]
                return bool(found) and f"process {pid} " in found[0].words and found[0].level == "warning"

            await until(is_told)
        await waits
        assert (await state_of(database)).verdict.state != "unwritable"


@sampled("mode", ["ACCESS EXCLUSIVE", "EXCLUSIVE"], size=1)
async def test_pages_of_a_locked_table_say_so(
    postgres_url: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To operators with the process; to an organization without it. Nobody waits for the statement's own limit."""
    monkeypatch.chdir(tmp_path)
    settings = development(postgres_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_ENCRYPTION_KEYS=KEY)
    async with a_site(settings) as site:
        if mode == "ACCESS EXCLUSIVE":  # nothing is read
            monkeypatch.setattr(waiting, "ANSWER_SECONDS", 1.0)
            monkeypatch.setattr(port, "READ_MORE_SECONDS", -0.5)
        async with holding(postgres_url, f"LOCK TABLE flowactions_outbox IN {mode} MODE") as pid:
            for role in ("operator", "changer"):
                site.sign_in(role)
                answers = [await site.get(path) for path in ("", "/deliveries")]
                names = [f"process {pid} " in each.text for each in answers]
                if mode == "EXCLUSIVE":
                    assert ([each.status_code for each in answers], names[0]) == (
                        [200, 200],
                        role == "operator",
                    )
                else:
                    assert [each.status_code for each in answers] == [503, 503]
                    assert names == [role == "operator"] * 2


async def test_a_worker_that_cannot_use_the_queue_is_alive(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so while it backs off: a right on one table, or a lock, ends no process."""
    monkeypatch.setattr(housekeeper, "FAILURE_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.0)
    async with a_role(postgres_url, *ALL_RIGHTS) as own, a_database(postgres_url) as database:
        host = OperatedHost(development(own, FLOWACTIONS_DELIVERY="continuous"))
        actions, role = FlowActions.load(host), make_url(own).username
        async with actions.lifespan():
            failing = services_of(host)._database.outage_log._failing
            await execute(postgres_url, f'REVOKE SELECT, INSERT, UPDATE ON flowactions_outbox FROM "{role}"')
            # One of the housekeeper's entries fails first, any of them: the others wait with it.
            await until(lambda: "deliveries" in failing and len(failing) > 1)
            await execute(postgres_url, "UPDATE flowactions_workers SET last_seen_at = 1")

            async def is_seen() -> bool:
                return [each.state for each in await Insights(database).workers()] == ["alive"]

            await until(is_seen)
            assert failing


async def test_a_role_that_was_made_to_read_is_no_obstacle(postgres_url: str) -> None:
    """It says so, and not that the database is broken. With one more right it is a role that lacks the others."""
    reads = ("USAGE ON SCHEMA public", "SELECT ON ALL TABLES IN SCHEMA public")
    async with a_database(postgres_url), a_role(postgres_url, *reads) as own, a_database(own) as database:
        told = await state_of(database)
        assert [(each.level, each.about) for each in told.findings if each.about in {"rights", "writing"}] == [
            ("note", "rights")
        ]
        assert told.verdict.state != "unwritable"
        (check,) = await made(_writing, database)
        assert (check.result, check.message) == ("skipped", "this process's role may only read")
        await execute(postgres_url, f'GRANT INSERT ON flowactions_outbox TO "{make_url(own).username}"')
        assert (await state_of(database)).verdict.state == "unwritable"
        assert (await made(_writing, database))[0].result == "failed"


async def test_a_server_that_is_read_only_is_told_by_who_only_reads(postgres_url: str) -> None:
    """Nothing of this process was refused: the server says it."""
    async with a_database(postgres_url):
        name = make_url(postgres_url).database
        await execute(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        async with a_database(postgres_url) as database:
            verdict = (await state_of(database)).verdict
            assert (verdict.state, "it is read-only" in verdict.reason) == ("unwritable", True)
