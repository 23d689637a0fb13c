"""A host's transaction is usable and whole after any call that joins it, whatever fails within."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from flowactions_hookspecs import AuthEvent, FlowActions
from flowactions_plugin.errors import TransactionEnded
from tests.auth_provider import NEW, Running
from tests.host_transactions import (
    CALLS,
    ENGINES,
    POSTGRES_ENGINES,
    SQLITE_ENGINES,
    Failing,
    SharingHost,
    a_host_engine,
    advance_in,
    chat,
    order,
    reach_in,
    record_three,
    sharing,
    transaction_of,
)
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, services_of

WRITTEN = ("outbox", "deferred")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a new database for the test's kind of engine."""
    given = request.node.callspec.params
    kind = given["failure"][0] if "failure" in given else given["kind"]
    return str(request.getfixturevalue("postgres_url" if kind in POSTGRES_ENGINES else "sqlite_url"))


async def rows(host: SharingHost) -> tuple[int, ...]:
    return tuple([await host.count(table) for table in WRITTEN])


async def statements_of(actions: FlowActions, host: SharingHost, failing: Failing, call: str) -> list[str]:
    walk = a_walk()
    await record_three(actions, walk)
    async with host.engine.connect() as connection:
        await order(connection, "probe")
        with failing.armed(None):
            await CALLS[call](actions, walk, connection)
        await connection.rollback()
    return list(failing.seen)


@sampled("call", CALLS, size=3)
@sampled("kind", ENGINES, size=3)
async def test_joined_writes_commit_and_roll_back_with_the_host(kind: str, call: str, url: str) -> None:
    """Whether the host or the plugin writes first, one commit stores both rows, one rollback neither (§3.2)."""
    async with sharing(kind, url) as (actions, host):
        for first in (True, False):
            for commits in (False, True):
                walk = a_walk()
                await record_three(actions, walk)
                kept = await rows(host)
                name = f"{first}{commits}"
                async with host.engine.connect() as connection:
                    if first:
                        await order(connection, name)
                    await CALLS[call](actions, walk, connection)
                    await order(connection, f"{name} after")
                    assert connection.in_transaction()
                    await (connection.commit() if commits else connection.rollback())
                    driver: Any = (await connection.get_raw_connection()).driver_connection
                    in_transaction = (
                        driver.in_transaction if kind in SQLITE_ENGINES else driver.is_in_transaction()
                    )
                    assert not in_transaction
                changed = await rows(host) != kept
                assert changed == commits
                autocommits = kind == "sqlite, driver in autocommit" and first
                wanted = ({name} if first else set()) | {f"{name} after"}
                there = await host.ids() & {name, f"{name} after"}
                assert there == (wanted if commits else {name} if autocommits else set())


@sampled("call", CALLS, size=3)
@sampled(
    "failure",
    [
        *((kind, "no such table") for kind in SQLITE_ENGINES),
        *(("sqlite", how) for how in ("raised", "constraint")),
        *(
            ("asyncpg", how)
            for how in ("division by zero", "no such table", "constraint", "too slow", "timed out")
        ),
    ],
    size=3,
)
async def test_a_failure_at_any_statement_leaves_the_hosts_transaction_usable(
    failure: tuple[str, str], call: str, url: str
) -> None:
    """Each of a call's statements fails in turn: the host's writes before and after are stored, and no partial write."""
    kind, how = failure
    slow = {"connect_args": {"server_settings": {"statement_timeout": "1000"}}}
    options: dict[str, Any] = slow if how == "too slow" else {}
    async with sharing(kind, url, SharingHost, **options) as (actions, host):
        async with host.engine.begin() as connection:
            await order(connection, "before")
        failing = Failing(host.engine, how)
        for index in range(len(await statements_of(actions, host, failing, call))):
            walk = a_walk()
            await record_three(actions, walk)
            kept = await rows(host)
            async with host.engine.connect() as connection:
                await order(connection, f"before {index}")
                with failing.armed(index):
                    result = await CALLS[call](actions, walk, connection)
                if kind == "asyncpg" and failing.failed.startswith("SAVEPOINT"):
                    # A server that fails at this leaves no transaction to go on with: the host must hear of it.
                    with pytest.raises(SQLAlchemyError):
                        await connection.commit()
                    await connection.rollback()
                    assert await rows(host) == kept
                    continue
                await order(connection, f"after {index}")
                await connection.commit()
            assert {f"before {index}", f"after {index}"} <= await host.ids(), failing.failed
            assert_no_half(call, result, kept, await rows(host))


def assert_no_half(call: str, result: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    added = after[0] - before[0], after[1] - before[1]
    if call == "advance":
        # One record goes with each webhook that is queued, and one with the message that has nowhere to go.
        queued = [each for each in result if each.status == "queued"]
        assert added[0] == len(queued)
        assert -added[1] - added[0] in {0, 1}
    else:
        assert result.status == "failed"
        assert added == (0, 0)


@sampled("call", CALLS, size=1)
async def test_a_statement_timeout_leaves_the_hosts_transaction_usable(call: str, postgres_url: str) -> None:
    """Also the host's own timeout (asyncpg's command_timeout), which SQLAlchemy treats as a lost connection."""
    async with sharing("asyncpg", postgres_url, connect_args={"command_timeout": 2.0}) as (actions, host):
        failing = Failing(host.engine, "too slow")
        statements = await statements_of(actions, host, failing, call)
        slow = next(number for number, each in enumerate(statements) if not each.startswith("SAVEPOINT"))
        async with host.engine.connect() as connection:
            await order(connection, "before")
            with failing.armed(slow):
                await CALLS[call](actions, a_walk(), connection)
            await order(connection, "after")
            await connection.commit()
        assert {"before", "after"} <= await host.ids()


@pytest.mark.parametrize("call", CALLS)
@sampled("kind", ENGINES, size=2)
async def test_a_cancelled_call_leaves_the_hosts_transaction_usable(kind: str, call: str, url: str) -> None:
    """At whichever statement it is cancelled, the host's rows are stored, and nothing of the call's last write."""
    async with sharing(kind, url) as (actions, host):
        cancelling = Cancelling(host)
        walk = a_walk()
        await record_three(actions, walk)
        async with host.engine.connect() as connection:
            await order(connection, "probe")
            await cancelling.run(CALLS[call](actions, walk, connection), None)
            await connection.rollback()
        for index in range(cancelling.count):
            walk = a_walk()
            await record_three(actions, walk)
            kept = await rows(host)
            async with host.engine.connect() as connection:
                await order(connection, f"before {index}")
                with pytest.raises(asyncio.CancelledError):
                    await cancelling.run(CALLS[call](actions, walk, connection), index)
                await order(connection, f"after {index}")
                await connection.commit()
            assert {f"before {index}", f"after {index}"} <= await host.ids(), index
            added = [now - then for now, then in zip(await rows(host), kept, strict=True)]
            if call == "advance":
                assert -added[1] - added[0] in {0, 1}
            elif not cancelling.statement.startswith("RELEASE"):  # then the write was whole
                assert added == [0, 0]


@sampled("kind", ENGINES, size=2)
async def test_a_call_that_is_cancelled_at_its_savepoint_leaves_none_open(kind: str, url: str) -> None:
    """What the host does then is in its own transaction, and not in a SAVEPOINT that nobody ends."""
    begins = kind == "sqlite, driver in autocommit"  # there the first statement of a call is BEGIN
    async with sharing(kind, url) as (actions, host):
        cancelling = Cancelling(host)
        async with host.engine.connect() as connection:
            await order(connection, "before")
            with pytest.raises(asyncio.CancelledError):
                await cancelling.run(CALLS["advance"](actions, a_walk(), connection), int(begins))
            assert cancelling.statement.startswith("SAVEPOINT")
            with pytest.raises(DBAPIError):
                await connection.exec_driver_sql(f"RELEASE {cancelling.statement}")


@pytest.mark.parametrize("kind", ["sqlite", "asyncpg"])
@pytest.mark.parametrize("fails", [True, False])
async def test_savepoints_that_borrowed_code_leaves_open_are_closed(kind: str, url: str, fails: bool) -> None:
    """All of them, with what was done in them. A SAVEPOINT of the host's around the call stays, and so does its transaction."""
    async with sharing(kind, url) as (_, host), host.engine.connect() as connection:
        database = services_of(host)._database
        await order(connection, "before")
        own = await connection.begin_nested()

        async def borrow() -> None:
            async with database.write(connection) as joined, database.transactions.lent(joined) as lent:
                for number in range(2):
                    await lent.begin_nested()
                    await order(lent, f"within {number}")
                if fails:
                    raise LookupError

        with pytest.raises(LookupError if fails else TransactionEnded):
            await borrow()
        assert connection.get_nested_transaction() == own
        await order(connection, "after")
        await own.commit()
        await connection.commit()
        assert await host.ids() == {"before", "after"}


class Cancelling:
    """Cancels a call when its n-th statement is on its way."""

    def __init__(self, host: SharingHost) -> None:
        self.count = 0
        self.statement = ""
        self._at: int | None = None
        self._task: asyncio.Task[Any] | None = None
        event.listen(host.engine.sync_engine, "before_cursor_execute", self._executing)

    async def run(self, call: Any, at: int | None) -> Any:
        self.count, self._at = 0, at
        self._task = asyncio.ensure_future(call)
        try:
            return await self._task
        finally:
            self._task = None

    def _executing(self, _connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if self._task is None:
            return
        if self.count == self._at:
            self.statement = statement
            self._task.cancel()
        self.count += 1


async def test_a_cancelled_call_stops_waiting_for_a_lock(postgres_url: str) -> None:
    """The statement is cancelled on the server."""
    async with sharing("asyncpg", postgres_url) as (actions, host):
        walk = a_walk()
        async with host.engine.connect() as other, host.engine.connect() as connection:
            await CALLS["reach webhook, deferred"](actions, walk, other)
            await order(connection, "before")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    # The same record, and whether it is there is known when the other transaction ends.
                    await CALLS["reach webhook, deferred"](actions, walk, connection)
            await order(connection, "after")
            await connection.commit()
            await other.commit()
        assert await host.ids() == {"before", "after"}
        assert await host.count("deferred") == 1


async def test_nul_in_an_id_leaves_the_hosts_transaction_usable(postgres_url: str) -> None:
    """A value that PostgreSQL cannot store fails at most the call."""
    async with sharing("asyncpg", postgres_url) as (actions, host):
        async with host.engine.connect() as connection:
            await order(connection, "before")
            for call in CALLS.values():
                with suppress(ValueError):
                    await call(actions, a_walk(run_id="a\x00b", agent_id="a\x00b"), connection)
            await order(connection, "after")
            await connection.commit()
        assert await host.ids() == {"before", "after"}


@pytest.mark.parametrize("kind", ["sqlite", "asyncpg"])
async def test_a_transaction_that_cannot_be_repaired_fails_at_the_hosts_commit(kind: str, url: str) -> None:
    """When the rollback to the SAVEPOINT fails too, the host's commit raises instead of storing a part."""
    async with sharing(kind, url) as (actions, host):
        async with host.engine.connect() as connection:
            await order(connection, "before")

            failing = Failing(host.engine, "no such table", also="ROLLBACK TO")
            with failing.armed(2 if kind == "sqlite" else 1):
                assert (await CALLS["reach webhook"](actions, a_walk(), connection)).status == "failed"
            with pytest.raises(SQLAlchemyError):
                await connection.commit()
        assert await host.ids() == set()


async def test_a_read_in_a_transaction_sees_its_writes(database_url: str) -> None:
    """A node that was recorded in the transaction runs in it."""
    kind = "asyncpg" if database_url.startswith("postgresql") else "sqlite"
    async with sharing(kind, database_url) as (actions, host), host.engine.connect() as connection:
        walk = a_walk()
        await CALLS["reach webhook, deferred"](actions, walk, connection)
        results = await advance_in(actions, walk, "later", connection)
        assert [result.status for result in results] == ["queued"]
        await connection.execute(text("SELECT 1"))
        await connection.commit()
        assert await rows(host) == (1, 0)


class TestWhatCannotBeJoined:
    async def told(self, actions: FlowActions, transaction: Any) -> str:
        """Give what every call says of a transaction, and see that it is a ValueError."""
        told = set()
        calls: list[Any] = [
            *CALLS.values(),
            lambda actions, walk, given: reach_in(actions, walk, chat(), given),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"a transaction|this transaction") as raised:
                await call(actions, a_walk(), transaction)
            told.add(str(raised.value))
        assert len(told) == 1
        return told.pop()

    async def test_an_unusable_transaction_is_refused_before_any_sql(
        self, database_url: str, tmp_path: Path
    ) -> None:
        """Closed, lost, of a wrong type, or of another database."""
        kind = "asyncpg" if database_url.startswith("postgresql") else "sqlite"
        async with sharing(kind, database_url) as (actions, host):
            failing = Failing(host.engine, "no such table")
            with failing.armed(None):
                assert "not str" in await self.told(actions, "a connection")
                assert "not AsyncEngine" in await self.told(actions, host.engine)
                async with AsyncSession(host.engine) as session:
                    assert "session.connection()" in await self.told(actions, session)
                    await reach_in(actions, a_walk(), chat(), await session.connection())
                assert "closed" in await self.told(actions, host.engine.connect())
                async with host.engine.connect() as connection:
                    pass
                assert "closed" in await self.told(actions, connection)
                async with host.engine.connect() as connection:
                    await connection.invalidate()
                    assert "was lost" in await self.told(actions, connection)
                other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}")
                async with other.connect() as connection:
                    assert "of another" in await self.told(actions, connection)
                await other.dispose()
            assert failing.seen == []

    async def test_a_transaction_without_a_shared_database_is_refused(self, tmp_path: Path) -> None:
        """Without Host.database, the plugin's rows are in another database, and the message says what to set."""
        url = f"sqlite:///{tmp_path / 'f.db'}"
        actions = FlowActions.load(SmallHost(development(url)))
        engine = create_async_engine(url.replace("sqlite", "sqlite+aiosqlite"))
        async with actions.lifespan(), engine.connect() as connection:
            assert "set Host.database" in await self.told(actions, connection)
        await engine.dispose()

    @pytest.mark.parametrize("kind", ["sqlite", "asyncpg"])
    async def test_a_connection_in_autocommit_mode_is_refused(self, kind: str, url: str) -> None:
        """Nothing could be rolled back."""
        async with sharing(kind, url) as (actions, host), host.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            for name, call in CALLS.items():
                with pytest.raises(ValueError, match="AUTOCOMMIT"):
                    await call(actions, a_walk(), connection)
                assert not connection.in_nested_transaction(), name
            assert await rows(host) == (0, 0)

    @pytest.mark.parametrize("kind", ["sqlite", "asyncpg"])
    async def test_a_transaction_is_reserved_between_the_statements_of_a_call(
        self, kind: str, url: str
    ) -> None:
        """Also while the call waits for a method of the host."""
        async with sharing(kind, url) as (actions, host), host.engine.connect() as connection:
            asked, go = asyncio.Event(), asyncio.Event()
            resolve = host.logic_action

            async def slow(ref: Any) -> Any:
                asked.set()
                await go.wait()
                return await resolve(ref)

            host.logic_action = slow  # type: ignore[method-assign]
            first = asyncio.ensure_future(CALLS["dispatch"](actions, a_walk(), connection))
            await asked.wait()
            for call in CALLS.values():
                with pytest.raises(ValueError, match="another call"):
                    await call(actions, a_walk(), connection)
            go.set()
            assert (await first).status == "queued"
            await connection.commit()
            assert (await rows(host))[0] == 1
            assert (await CALLS["dispatch"](actions, a_walk(), connection)).status == "queued"

    async def test_another_engine_of_the_same_database_is_accepted(self, database_url: str) -> None:
        """A host may have several engines."""
        kind = "asyncpg" if database_url.startswith("postgresql") else "sqlite"
        async with sharing(kind, database_url) as (actions, host):
            other = a_host_engine(kind, database_url)
            async with other.connect() as connection:
                assert (await CALLS["dispatch"](actions, a_walk(), connection)).status == "queued"
                await connection.commit()
            await other.dispose()
            assert (await rows(host))[0] == 1


class TestAuthEvents:
    @pytest.mark.parametrize("kind", ["sqlite", "sqlite with BEGIN by an event", "asyncpg"])
    async def test_an_auth_event_handler_may_use_its_transaction(self, kind: str, url: str) -> None:
        """A call that fails in the handler rolls back neither the handler's writes nor the record of the event."""
        async with handling(kind, url) as run:
            run.host.failing = Failing(run.host.engine, "no such table")
            for index in range(4):
                run.host.at = index
                answer = await run.send(event_id=f"msg_{index}")
                written = {f"before {index}", f"after {index}"}
                if kind == "asyncpg" and run.host.failing.failed == "SAVEPOINT flowactions":
                    assert answer.status_code == 500
                    assert not written & await run.host.ids()
                    continue
                assert answer.status_code == 200
                assert written <= await run.host.ids()
                assert (await run.send(event_id=f"msg_{index}")).json()["data"]["duplicate"] is True
            assert await run.host.count("outbox") == 1

    @pytest.mark.parametrize("kind", ["sqlite", "asyncpg"])
    @pytest.mark.parametrize("how", ["swallows", "rolls back", "raises"])
    async def test_an_event_whose_handler_aborts_the_transaction_is_not_recorded(
        self, kind: str, url: str, how: str
    ) -> None:
        """The event is not recorded when the handler's writes cannot be committed."""
        async with handling(kind, url) as run:
            run.host.spoils = how
            answer = await run.send()
            if (kind, how) == ("sqlite", "swallows"):  # a statement that failed costs SQLite nothing else
                assert answer.status_code == 200
                assert await run.host.ids() == {"before"}
                return
            assert answer.status_code == 500
            assert await run.host.ids() == set()
            run.host.spoils = ""
            assert (await run.send()).json()["data"]["duplicate"] is False


class HandlingHost(SharingHost):
    """A host whose handler of auth events writes, reaches a node, and writes again."""

    def __init__(self, engine: AsyncEngine, **settings: str) -> None:
        super().__init__(engine, AUTH_WEBHOOK_SIGNING_SECRET=NEW, **settings)
        self.failing: Failing | None = None
        self.at: int = -1
        self.spoils = ""
        self.actions: FlowActions

    async def auth_event(self, event: AuthEvent) -> None:
        given = transaction_of(event)
        name = f" {self.at}" if self.failing else ""
        await order(given, f"before{name}")
        if self.spoils == "raises":
            raise LookupError
        if self.spoils == "rolls back":
            await given.rollback()
        if self.spoils == "swallows":
            with suppress(SQLAlchemyError):
                await given.execute(text("SELECT * FROM nowhere"))
        if self.failing:
            with self.failing.armed(self.at):
                await CALLS["reach webhook"](self.actions, a_walk(), given)
            await order(given, f"after{name}")


@asynccontextmanager
async def handling(kind: str, url: str) -> AsyncIterator[Any]:
    async with sharing(kind, url, host_type=HandlingHost) as (actions, host):
        assert isinstance(host, HandlingHost)
        host.actions = actions
        run = Running(host, actions)
        async with run.client:
            yield run
