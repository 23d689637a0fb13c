"""What a failing database is called, what its message says, and how often it is told."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from flowactions_hookspecs import FlowActions, HostInvalid, Node, SettingsInvalid, StartFailed
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import OutageLog, is_outage, outage_delay, together
from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.watch.fleet import Fleet
from tests.outages import a_database, a_role, execute, parsed
from tests.recorder import recorder
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, hurry, services_of
from tests.waiting import until, within

ROW = "INSERT INTO flowactions_oauth_states (id, expires_at) VALUES ('{}', 1)"
OUTAGES = [
    "0A000",
    "25006",
    "28000",
    "3D000",
    "40001",
    "53100",
    "53300",
    "54001",
    "55P03",
    "57014",
    "58030",
    "XX000",
]
AT_FAULT = ["08006", "25006", "28000", "3D000", "40001", "40P01", "53100", "53300", "55P03", "57P01", "58030"]
NOT_AT_FAULT = ["0A000", "22012", "23505", "25P02", "42P01", "57014", "P0001"]
PASSWORD = "Pa5s/w@rd:?#"
RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",
    "USAGE ON ALL SEQUENCES IN SCHEMA public",
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with a_database(database_url) as opened:
        yield opened


async def spoil(url: str, how: str, used: str) -> None:
    """Take the tables away, or the rights of who uses the database on them."""
    tables = ("outbox", "deferred", "inbound_events", "enqueue_keys", "enqueue_rates")
    role = make_url(used).username
    verb = f'REVOKE ALL ON {{}} FROM "{role}"' if how == "rights" else "ALTER TABLE {} RENAME TO {}_gone"
    # In one transaction: a part that finds one table gone, and then another one present, would end the outage.
    changes = [verb.replace("{}", f"flowactions_{table}") for table in tables]
    await execute(url, "BEGIN", *changes, "COMMIT")


class TestTranslation:
    async def test_a_missing_table_is_an_outage_that_names_the_command(self, database: Database) -> None:
        """The message says how to create the tables."""
        with pytest.raises(StorageUnavailable, match=r"nowhere.*flowactions migrate"):
            async with database.read() as connection:
                await connection.execute(text("SELECT * FROM nowhere"))

    @sampled(
        "statement",
        [
            "SELECT nothing FROM flowactions_outbox",
            "SELECT nothing(1)",
            "SELECT 1 FROM flowactions_outbox WHERE id = 1",
            *(f"DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END$$" for code in OUTAGES),
        ],
        size=6,
    )
    async def test_errors_that_an_operator_can_repair_are_outages(
        self, postgres_url: str, statement: str
    ) -> None:
        """Classes of SQLSTATE other than those of wrong values."""
        async with a_database(postgres_url) as database:
            with pytest.raises(StorageUnavailable) as raised:
                async with database.read() as connection:
                    await connection.exec_driver_sql(statement)
            assert raised.value.code is not None
            assert "\n" not in str(raised.value)

    async def test_a_plugins_statement_failed_by_itself_or_because_of_the_database(
        self, postgres_url: str
    ) -> None:
        """Because of the database, its node is run again; a statement that failed by itself fails the same way again (§3.2)."""
        engine = create_async_engine(parsed(postgres_url))
        async with engine.connect() as connection:
            for code in (*AT_FAULT, *NOT_AT_FAULT):
                with pytest.raises(DBAPIError) as raised:
                    await connection.exec_driver_sql(
                        f"DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END$$"
                    )
                await connection.rollback()
                assert is_outage(raised.value) is (code in AT_FAULT), code
        await engine.dispose()

    @pytest.mark.parametrize(
        ("error", "expected"),
        [(PoolTimeoutError(), True), (LookupError(), False), (ConnectionError(), False)],
    )
    def test_an_error_of_something_else_is_the_plugins_own(self, error: Exception, *, expected: bool) -> None:
        """A full pool is the database's; a plugin's other connections are not."""
        assert is_outage(error) is expected

    async def test_a_connection_that_is_lost_in_use_is_an_outage(self, postgres_url: str) -> None:
        """Not a mistake of the statement, as the driver has it."""

        async def use_a_closed_one(connection: AsyncConnection) -> None:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await driver.close()
            await connection.execute(text("SELECT 1"))

        async with a_database(postgres_url) as database:
            with pytest.raises(StorageUnavailable, match="failed: the connection was lost while it was used"):
                async with database.read() as connection:
                    await use_a_closed_one(connection)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (asyncpg.InterfaceError("connection is closed"), "the connection was lost while it was used"),
            (
                asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
                "the connection was lost while it was used",
            ),
            (TimeoutError(), "it did not answer in time"),
        ],
    )
    async def test_an_error_of_the_drivers_own_state_is_put_in_our_words(
        self, error: Exception, message: str
    ) -> None:
        """Without the name of a class."""
        with pytest.raises(StorageUnavailable) as raised:
            async with a_database("postgresql://x")._outages.translated():
                raise error
        assert str(raised.value) == f"the database failed: {message}"

    async def test_a_wrong_value_is_not_an_outage(self, database: Database) -> None:
        """A retry would fail again, so the error is raised as it is."""
        row = ROW.format("a")
        with pytest.raises(IntegrityError):
            async with database.write() as connection:
                await connection.execute(text(f"{row}, ('a', 1)"))
        if database.dialect == "postgresql":
            with pytest.raises(DBAPIError):
                async with database.write() as connection:
                    await connection.execute(text("SELECT 1/0"))

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            ("SQLITE_FULL", "the disk is full"),
            ("SQLITE_READONLY", "may write the file"),
            ("SQLITE_IOERR", "disk is full or unsound"),
            ("SQLITE_BUSY_SNAPSHOT", "end its transaction"),
            ("SQLITE_NOTADB", "name another file"),
        ],
    )
    async def test_an_sqlite_error_is_named(self, code: str, advice: str) -> None:
        """With SQLite's message, on one line, and what to do."""
        error = sqlite3.OperationalError("it is\nso")
        error.sqlite_errorname = code
        with pytest.raises(StorageUnavailable, match=f"it is so.*{advice}") as raised:
            async with a_database("sqlite:///x")._outages.translated():
                raise error
        assert raised.value.code == code

    @pytest.mark.parametrize("secret", [PASSWORD, "hunter2", "x"])
    async def test_no_message_holds_a_secret_part_of_the_url(self, secret: str) -> None:
        """Neither password, user name nor query, in any quoted form, nor in the chain of causes."""
        url = URL.create(
            "postgresql", secret, f"{secret}-2", "db.example", database="d", query={"options": f"{secret}-3"}
        )
        error = OSError(f"{url.render_as_string(hide_password=False)} {secret!r} '{secret}-2' {secret}-3")
        with pytest.raises(StorageUnavailable) as raised:
            async with Database(url.render_as_string(hide_password=False))._outages.translated():
                raise error
        shown = str(raised.value).replace("example", "").replace("fix", "")
        assert secret not in shown
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__

    async def test_a_refused_login_does_not_show_the_user_name(
        self, postgres_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server's own message holds it."""
        url = make_url(postgres_url).set(username="mallory7", password="opensesame")
        async with a_database(url.render_as_string(hide_password=False)) as database:
            with pytest.raises(StorageUnavailable) as raised:
                async with database.read():
                    pass
        assert "mallory7" not in caplog.text + str(raised.value)
        assert "opensesame" not in caplog.text + str(raised.value)


class TestStart:
    async def test_a_missing_directory_is_named(self, tmp_path: Path) -> None:
        """A host does not start when its database file cannot be created."""
        path = tmp_path / "no" / "where" / "f.db"
        with pytest.raises(SettingsInvalid, match=str(path.parent)):
            async with a_database(f"sqlite:///{path}"):
                pass
        actions = FlowActions.load(SmallHost(development(f"sqlite:///{path}")))
        with pytest.raises(StartFailed, match=str(path.parent)):
            async with actions.lifespan():
                pass

    async def test_a_file_that_is_not_a_database_is_named(self, tmp_path: Path) -> None:
        """A host does not start with another file in its place."""
        (tmp_path / "f.db").write_text("not a database, but quite a long text of some other kind " * 20)
        with pytest.raises(StorageUnavailable, match="not a database"):
            async with a_database(f"sqlite:///{tmp_path / 'f.db'}"):
                pass

    async def test_a_role_without_rights_gets_the_command(self, postgres_url: str) -> None:
        """Whether it may not create the tables or not read them: the message names the command and the rights."""
        async with a_role(postgres_url, *RIGHTS, password=PASSWORD) as url:
            with pytest.raises(SchemaOutdated, match=r"flowactions migrate.*rights"):
                async with a_database(url):
                    pass
            await a_database(postgres_url).migrate()
            with pytest.raises(SchemaOutdated, match="rights"):
                async with a_database(url):
                    pass

    async def test_an_in_memory_database_is_refused(self) -> None:
        """All users would have to share its only connection."""
        engine = create_async_engine("sqlite+aiosqlite://")
        with pytest.raises(HostInvalid, match="in memory"):
            FlowActions.load(SmallHost({}, database=engine))
        await engine.dispose()


@pytest.fixture(params=["sqlite tables", "postgresql tables", "rights"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """What is taken away, and the URL of an empty database."""
    if request.param == "sqlite tables":
        return request.param, f"sqlite:///{tmp_path / 'f.db'}"
    return request.param, request.getfixturevalue("postgres_url")


async def test_a_host_logs_an_outage_once(
    spoilt: tuple[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running host whose tables or rights are removed logs one line, whichever tasks notice, and continues."""
    hurry(monkeypatch, "deferred nodes")
    how, url = spoilt
    await a_database(url).migrate()
    async with AsyncExitStack() as stack:
        given = a_role(url, *RIGHTS, password=PASSWORD)
        used = url if how != "rights" else await stack.enter_async_context(given)
        host = SmallHost(development(used, FLOWACTIONS_TICK_SECONDS="0.05"))
        actions = FlowActions.load(host)
        await stack.enter_async_context(actions.lifespan())
        outage_log = services_of(host)._database.outage_log
        caplog.clear()
        await spoil(url, how, used)
        await until(lambda: "deliveries" in outage_log._failing and len(outage_log._failing) > 1)
        lines = [record for record in caplog.records if record.name.startswith("flowactions")]
        assert len(lines) == 1
        assert not lines[0].exc_info
        assert ("rights" if how == "rights" else "flowactions migrate") in lines[0].getMessage()


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
async def test_an_outage_is_not_over_before_what_failed_has_worked(
    database_url: str, mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot write that it is alive tries again soon, and does not say in between that all is well."""
    monkeypatch.setattr("flowactions_plugin.housekeeper.FAILURE_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    beats = 0
    hurry(monkeypatch, "statistics", seconds=0.3)
    monkeypatch.setattr("flowactions_plugin.watch.monitor.BEAT_SECONDS", 0.0)
    usual = Fleet.beat

    async def counted(*given: Any) -> bool:
        nonlocal beats
        beats += 1
        return await usual(*given)

    monkeypatch.setattr(Fleet, "beat", counted)
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY=mode))
    async with FlowActions.load(host).lifespan():
        await until(lambda: beats > 1)
        await execute(database_url, "ALTER TABLE flowactions_workers RENAME TO gone")
        await until(lambda: "statistics" in services_of(host)._database.outage_log._failing)
        monkeypatch.setattr("flowactions_plugin.watch.monitor.BEAT_SECONDS", 300.0)
        caplog.clear()
        beats = 0
        await until(lambda: beats >= 3 or "reachable again" in caplog.text)
        assert "reachable again" not in caplog.text
        await execute(database_url, "ALTER TABLE gone RENAME TO flowactions_workers")
        await until(lambda: "reachable again" in caplog.text)


@pytest.mark.parametrize(
    ("failures", "cap", "chance", "seconds"),
    [
        (1, 5.0, 1.0, 0.5),
        (1, 5.0, 0.0, 0.25),
        (2, 5.0, 1.0, 1.0),
        (4, 5.0, 0.5, 3.0),
        (5, 5.0, 1.0, 5.0),
        (5, 5.0, 0.0, 2.5),
        (10**6, 1000.0, 1.0, 512.0),
    ],
)
def test_the_wait_for_a_database_doubles_up_to_its_cap(
    failures: int, cap: float, chance: float, seconds: float
) -> None:
    """And is between half of that and all of it."""
    assert outage_delay(failures, cap, chance) == seconds


async def test_parts_of_a_process_wake_together() -> None:
    """All but those that wake often, a quarter of a second off their time at the most."""
    assert together(0.4) == 0.4
    now = asyncio.get_running_loop().time
    for seconds in (0.5, 0.7, 60.0, 60.1):
        ahead = (now() + together(seconds) - now() - together(0.5)) / 0.5
        assert ahead == pytest.approx(round(ahead), abs=0.01)
        assert abs(together(seconds) - seconds) <= 0.25


def test_an_outage_is_logged_once_by_whoever_notices_first(caplog: pytest.LogCaptureFixture) -> None:
    """However long it lasts; it is over when all parts that noticed it work again. Another kind of failure is another one."""
    caplog.set_level(logging.INFO)
    outages = OutageLog()

    def said() -> list[str]:
        lines = [record.getMessage().split(":")[0] for record in caplog.records]
        caplog.clear()
        return lines

    begins, ends = "the database is out of reach, trying again with backoff", "the database is reachable again"
    for code in (None, "08001", "08006", "57P03", "55000", "55P03", "53300", "3D000", None):
        for part in ("deliveries", "pauses"):
            outages.failed(part, StorageUnavailable("away", code=code))
    assert said() == [begins]
    outages.worked("pauses")
    outages.worked("statistics")
    outages.failed("pauses", StorageUnavailable("away"))
    assert said() == []
    outages.worked("pauses")
    outages.worked("deliveries")
    assert said() == [ends]
    for _ in range(2):
        outages.failed("retention", StorageUnavailable("no rights", code="42501"))
    assert said() == [begins]
    for _ in range(2):
        outages.failed("deliveries", StorageUnavailable("away"))
        outages.failed("retention", StorageUnavailable("no rights", code="42501"))
    assert said() == [begins]
    outages.worked("deliveries")
    outages.ended("retention")
    outages.failed("deliveries", StorageUnavailable("away"))
    outages.worked("deliveries")
    assert said() == [begins, ends]


class TestMovedFile:
    """An SQLite file that is moved away or replaced under a running process is an outage, and nothing is written to another."""

    @pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=pytest.mark.ci)])
    @pytest.mark.parametrize(
        ("mode", "is_replaced"),
        [("scheduled", False), ("continuous", True), pytest.param("continuous", False, marks=pytest.mark.ci)],
    )
    async def test_a_host_fails_its_nodes_until_the_file_is_back_or_it_starts_again(
        self,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        mode: str,
        *,
        is_replaced: bool,
        is_shared: bool,
    ) -> None:
        """It says so once, and makes no new file; the engine may be the host's, and so may the transaction."""
        monkeypatch.setattr("flowactions_plugin.housekeeper.FAILURE_SECONDS", 0.05)
        caplog.set_level(logging.INFO)
        file, away, other = (tmp_path / name for name in ("f.db", "away.db", "other.db"))
        settings = development(f"sqlite:///{file}", FLOWACTIONS_DELIVERY=mode, FLOWACTIONS_TICK_SECONDS="0.05")
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        host = SmallHost(settings, database=engine if is_shared else None)
        actions = FlowActions.load(host)

        async def reached(**given: Any) -> str:
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
            return (await actions.reach(a_walk(), node, **given)).status

        def lines(event: str) -> int:
            return sum(getattr(record, "event", "") == event for record in caplog.records)

        async with recorder() as receiver:
            async with actions.lifespan():
                assert await reached() == "queued"
                await until(lambda: host.finished)
                with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(other)) as copy:
                    source.backup(copy)
                file.rename(away)
                if is_replaced:
                    shutil.copy(other, file)
                assert await reached() == "failed"
                if is_shared:
                    async with engine.begin() as transaction:
                        assert await reached(transaction=transaction) == "failed"
                failing = services_of(host)._database.outage_log._failing
                await until(lambda: "deliveries" in failing and len(failing) > 1)
                assert lines("outbox.unreachable") == 1
                assert "moved away or replaced" in caplog.text
                assert file.exists() == is_replaced
                if not is_replaced:
                    away.rename(file)
                    await until(lambda: lines("outbox.reachable") == 1)
                    assert await reached() == "queued"
                    await until(lambda: len(host.finished) == 2)
            if is_replaced:
                assert file.read_bytes() == other.read_bytes()
                await engine.dispose()
                async with actions.lifespan():
                    assert await reached() == "queued"
                    await until(lambda: len(host.finished) == 2)
        await engine.dispose()


class TestWaiting:
    """Callers of a locked SQLite wait for `WAIT_SECONDS` each, and all at the same time."""

    @pytest.fixture
    def seconds(self, monkeypatch: pytest.MonkeyPatch) -> float:
        monkeypatch.setattr("flowactions_plugin.storage.sqlite.WAIT_SECONDS", 1.5)
        return 1.5

    async def calls(self, database: Database, count: int, how: str) -> list[Any]:
        async def write() -> None:
            async with database.write() as connection:
                await connection.execute(text(ROW.format("x")))

        async def in_transaction() -> Any:
            return await database.in_transaction(lambda connection: connection.execute(text(ROW.format("x"))))

        kind = {"write": write, "in_transaction": in_transaction}[how]
        return await asyncio.gather(*(kind() for _ in range(count)), return_exceptions=True)

    @sampled("how", ["write", "in_transaction"], size=1)
    @sampled("shared", [False, True], size=1)
    async def test_concurrent_callers_time_out_together(
        self, tmp_path: Path, seconds: float, how: str, shared: bool
    ) -> None:
        """Ten take no longer than one, and none succeeds; reads are not blocked, and the next caller succeeds."""
        path = tmp_path / "f.db"
        engine = (
            create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 3000})
            if shared
            else None
        )
        await a_database(f"sqlite:///{path}").migrate()
        async with a_database(f"sqlite:///{path}", engine=engine) as database:
            with closing(sqlite3.connect(path)) as other:
                other.execute("BEGIN IMMEDIATE")
                started = monotonic()
                (single,) = await self.calls(database, 1, how)
                alone = monotonic() - started
                async with within(2 * seconds):
                    waiting = asyncio.create_task(self.calls(database, 10, how))
                    async with within(seconds), database.read() as connection:
                        await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))
                    results = await waiting
            assert {type(each) for each in [single, *results]} == {StorageUnavailable}
            assert all("locked" in str(each) for each in results)
            assert alone >= seconds * 0.9
            assert await self.calls(database, 1, how) == [None] or how == "in_transaction"
            if engine is not None:
                async with engine.connect() as connection:
                    assert (await connection.execute(text("PRAGMA busy_timeout"))).scalar_one() == 3_000_000
        if engine is not None:
            await engine.dispose()

    async def test_a_hosts_longer_timeout_is_limited_in_a_call(self, tmp_path: Path, seconds: float) -> None:
        """In a host's transaction, too; the host's own statements keep its timeout."""
        path = tmp_path / "f.db"
        await a_database(f"sqlite:///{path}").migrate()
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 3000})
        async with a_database(f"sqlite:///{path}", engine=engine) as database:
            with closing(sqlite3.connect(path)) as other:
                other.execute("BEGIN IMMEDIATE")
                async with engine.connect() as connection:
                    async with asyncio.timeout(300):
                        with pytest.raises(StorageUnavailable, match="locked"):
                            async with database.write(connection):
                                pass
                    assert not connection.in_transaction()
                    assert (await connection.execute(text("PRAGMA busy_timeout"))).scalar_one() == 3_000_000
        await engine.dispose()

    @pytest.mark.parametrize("how", ["in_transaction", "write", "joined", "cancelled"])
    async def test_a_connection_has_its_usual_timeout_after_any_error(
        self, tmp_path: Path, seconds: float, how: str
    ) -> None:
        """Also after an error that is not the database's, raised when the timeout was shortened."""
        path = tmp_path / "f.db"
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 3000}, pool_size=1)
        shared = None if how == "in_transaction" else engine
        async with a_database(f"sqlite:///{path}", engine=shared) as database:

            def fail(_: object = None) -> None:
                raise LookupError

            async def use() -> None:
                if how == "in_transaction":
                    await database.in_transaction(fail, Deadline(seconds / 2))
                elif how == "joined":
                    async with engine.begin() as transaction, database.write(transaction):
                        fail()
                else:
                    async with database.write():
                        fail()

            if how == "cancelled":
                for turns in range(12):
                    task = asyncio.create_task(use())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait({task})
            else:
                with pytest.raises(LookupError):
                    await use()
            if how == "in_transaction":
                thread = database._engines.thread
                assert thread is not None
                left = await thread.run(
                    lambda opened: opened.execute(text("PRAGMA busy_timeout")).scalar_one(), None
                )
            else:
                async with engine.connect() as connection:
                    left = (await connection.execute(text("PRAGMA busy_timeout"))).scalar_one()
            assert left == (seconds * 1000 if how == "in_transaction" else 3_000_000)
        await engine.dispose()

    @sampled("how", ["write", "in_transaction"], size=1)
    async def test_a_cancelled_caller_releases_the_lock(self, tmp_path: Path, seconds: float, how: str) -> None:
        """Whether it waited for this process's writers or for the database's lock."""
        path = tmp_path / "f.db"
        async with a_database(f"sqlite:///{path}") as database:
            with closing(sqlite3.connect(path)) as other:
                other.execute("BEGIN IMMEDIATE")
                tasks = [asyncio.create_task(self.calls(database, 2, how)) for _ in range(2)]
                await asyncio.sleep(0.2)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            async with asyncio.timeout(300), database.write() as connection:
                await connection.execute(text(ROW.format("y")))

    async def test_both_waits_share_one_timeout(self, tmp_path: Path, seconds: float) -> None:
        """Waiting in this process and waiting for another one count together."""
        path = tmp_path / "f.db"
        async with a_database(f"sqlite:///{path}") as database, AsyncExitStack() as stack:
            await stack.enter_async_context(database.write())
            async with within(seconds * 1.5):  # one after the other they would be 1.6 times as long
                waiting = asyncio.create_task(self.calls(database, 3, "write"))
                await asyncio.sleep(seconds * 0.6)
                await stack.aclose()
                with closing(sqlite3.connect(path)) as other:
                    other.execute("BEGIN IMMEDIATE")
                    results = await waiting
            assert StorageUnavailable in {type(each) for each in results}
