"""Hosts with engines of every kind, calls that join their transactions, and statements that fail in the middle."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import event as events
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_hookspecs import (
    AuthEvent,
    Deferred,
    ExperienceTriggerRef,
    FlowActions,
    LogicAction,
    Node,
    NodeResult,
    Receipt,
    Walk,
)
from flowactions_plugin.logic.dispatch import LogicActions
from flowactions_plugin.settings.model import read_settings
from tests.support import SmallHost, a_walk, services_of

REF: Final = ExperienceTriggerRef(
    organization_id="acme", agent_id="a1", experience_id="e1", trigger_row_id="t1", action_index=2
)


async def reach_in(actions: FlowActions, walk: Walk, node: Node, transaction: Any) -> NodeResult:
    """Reach a node in a host's transaction."""
    return await actions.reach(walk, node, transaction)


async def advance_in(actions: FlowActions, walk: Walk, step_id: str | None, transaction: Any) -> Any:
    """Advance in a host's transaction; give the results."""
    return (await actions.advance(walk, step_id, transaction)).results


async def dispatch_in(actions: FlowActions, transaction: Any) -> Receipt:
    """Dispatch a logic action in a host's transaction."""
    return await actions.dispatch(
        REF, firing_id=uuid4().hex, occurred_at=datetime.now(UTC), transaction=transaction
    )


def enqueuer_of(actions: FlowActions) -> LogicActions:
    """Give what the logic-webhook route calls."""
    return services_of(actions.host)._logic


def transaction_of(event: AuthEvent) -> AsyncConnection:
    """Give the transaction that an auth event is handled in."""
    given: AsyncConnection | None = event.transaction
    assert given is not None
    return given


def before(walk: Walk, step_id: str | None) -> Walk:
    """Make the walk as it is when a node before this step is reached."""
    return a_walk(run_id=walk.run_id, pacing=Deferred(step_id))


def webhook(node_id: str = "n") -> Node:
    """Make a node that enqueues a webhook."""
    return Node(id=node_id, type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})


def chat(node_id: str = "c") -> Node:
    """Make a chat node, whose organization has no connection."""
    config = {"chatChannelId": "C1", "chatMessageText": "hi"}
    return Node(id=node_id, type="chat_message", config=config)


def begins_by_itself(engine: AsyncEngine) -> None:
    """Have the engine begin SQLite's transactions, as SQLAlchemy's documentation says."""

    @events.listens_for(engine.sync_engine, "connect")
    def quiet(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @events.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


SQLITE_ENGINES: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "sqlite": ({}, False),
    "sqlite with BEGIN by an event": ({}, True),
    "sqlite, immediate": ({"connect_args": {"isolation_level": "IMMEDIATE"}}, False),
    "sqlite, driver in autocommit": ({"connect_args": {"isolation_level": None}}, False),
    "sqlite, AUTOCOMMIT with BEGIN by an event": ({"isolation_level": "AUTOCOMMIT"}, True),
}
"""Name → arguments of the engine, and whether it begins transactions by an event."""

POSTGRES_ENGINES: Final[dict[str, dict[str, Any]]] = {
    "asyncpg": {},
    "asyncpg, serializable": {"isolation_level": "SERIALIZABLE"},
}

ENGINES: Final = [*SQLITE_ENGINES, *POSTGRES_ENGINES]


def a_host_engine(kind: str, url: str, **arguments: Any) -> AsyncEngine:
    """Make a host's engine of a kind."""
    parsed = read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url
    if kind in POSTGRES_ENGINES:
        return create_async_engine(parsed, **{**POSTGRES_ENGINES[kind], **arguments})
    options, by_event = SQLITE_ENGINES[kind]
    engine = create_async_engine(parsed, **{**options, **arguments})
    if by_event:
        begins_by_itself(engine)
    return engine


class SharingHost(SmallHost):
    """A host with rows of its own, in the database that it shares."""

    def __init__(self, engine: AsyncEngine, **settings: str) -> None:
        given = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_HOST_WORKER": "off", **settings}
        super().__init__(given, database=engine)
        self.engine = engine
        self.action = LogicAction(url="http://127.0.0.1:9/")

    # Public async methods of a host are the contract's, so these only give coroutines.

    def make_table(self) -> Awaitable[None]:
        return _make_table(self.engine)

    def ids(self) -> Awaitable[set[str]]:
        return _ids(self.engine)

    def count(self, table: str) -> Awaitable[int]:
        return _count(self.engine, table)


async def _make_table(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (id TEXT PRIMARY KEY)"))


async def _ids(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(text("SELECT id FROM orders"))).scalars())


async def _count(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        # A record that ran stays, of no flow.
        waiting = " WHERE ran_at IS NULL" if table == "deferred" else ""
        query = text(f"SELECT count(*) FROM flowactions_{table}{waiting}")  # noqa: S608  a test's own words
        return int((await connection.execute(query)).scalar_one())


async def order(connection: AsyncConnection, order_id: str) -> None:
    """Write a row of the host's."""
    await connection.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": order_id})


@asynccontextmanager
async def sharing(
    kind: str, url: str, host_type: type[SharingHost] = SharingHost, **arguments: Any
) -> AsyncIterator[tuple[FlowActions, SharingHost]]:
    """Run a host with an engine of a kind."""
    engine = a_host_engine(kind, url, **arguments)
    try:
        host = host_type(engine)
        await host.make_table()
        actions = FlowActions.load(host)
        async with actions.lifespan():
            yield actions, host
    finally:
        await engine.dispose()


class Failing:
    """Lets the n-th statement of an engine fail, counted from when it is armed.

    Args:
        engine: whose.
        how: one of `FAILURES`, or "raised" by the driver.
        also: the start of statements that fail in any case.

    Attributes:
        seen: the statements since then.
        failed: the one that failed last.
    """

    def __init__(self, engine: AsyncEngine, how: str, also: str | None = None) -> None:
        self.seen: list[str] = []
        self.failed = ""
        self._how = how
        self._also = also
        self._at: int | None = -1
        events.listen(engine.sync_engine, "before_cursor_execute", self._execute, retval=True)

    @contextmanager
    def armed(self, at: int | None) -> Iterator[None]:
        self.seen, self._at = [], at
        try:
            yield
        finally:
            self._at = -1

    def _execute(
        self, _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
    ) -> tuple[str, Any]:
        if self._at == -1:
            return statement, parameters
        self.seen.append(statement)
        by_start = self._also is not None and statement.startswith(self._also)
        if len(self.seen) - 1 != self._at and not by_start:
            return statement, parameters
        self.failed = statement
        if self._how == "raised":
            raise sqlite3.OperationalError("disk I/O error")
        return FAILURES[self._how], ()


FAILURES: Final = {
    "division by zero": "SELECT 1/0",
    "too slow": "SELECT pg_sleep(20)",
    "timed out": "DO $$ BEGIN RAISE EXCEPTION 'statement timeout' USING ERRCODE = 'query_canceled'; END $$",
    "no such table": "SELECT * FROM nowhere",
    "constraint": "INSERT INTO orders (id) VALUES ('before')",
}

Call = Callable[[FlowActions, Walk, AsyncConnection], Awaitable[Any]]

CALLS: Final[dict[str, Call]] = {
    "reach webhook": lambda actions, walk, given: reach_in(actions, walk, webhook(), given),
    "reach webhook, deferred": lambda actions, walk, given: reach_in(
        actions, before(walk, "later"), webhook(), given
    ),
    "reach chat, deferred": lambda actions, walk, given: reach_in(
        actions, before(walk, "later"), chat(), given
    ),
    "advance": lambda actions, walk, given: advance_in(actions, walk, "now", given),
    "dispatch": lambda actions, _, given: dispatch_in(actions, given),
}
"""Every call that writes in a transaction that it is given."""


async def record_three(actions: FlowActions, walk: Walk) -> None:
    """Record nodes of both types before the step that "advance" advances to."""
    for node in (webhook("a"), chat("b"), webhook("c")):
        await actions.reach(before(walk, "now"), node)
