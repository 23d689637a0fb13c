"""The host's own data, on SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Insert,
    Integer,
    MetaData,
    String,
    Table,
    Update,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

metadata = MetaData()

TABLES_LOCK: Final = 0x666C6F7773
"""Of PostgreSQL: who has it makes the tables."""

ANY_VERSION: Final = "*"
"""Whatever version of a flow is there, or none."""


def _table(name: str, *columns: str | Column[Any]) -> Table:
    """Make a table; a column that is named only is a text."""
    made = (Column(each, String) if isinstance(each, str) else each for each in columns)
    return Table(name, metadata, Column("id", String, primary_key=True), *made)


organizations = _table("organizations", "name")
people = _table("people", "name", "organization_id", Column("may_change", Boolean, default=True))
# Those of them who operate the host.
operators = _table("operators")
agents = _table("agents", "name", "organization_id")
tokens = _table(
    "tokens", "kind", "organization_id", "person_id", Column("agent_ids", JSON), Column("expires_at", Float)
)
flows = _table(
    "flows",
    Column("organization_id", String, index=True),
    Column("items", JSON),
    *("agent_id", "name", "kind", "version", "saved_by"),
)
experiences = _table(
    "experiences", "organization_id", "agent_id", Column("triggers", JSON), Column("node_triggers", JSON)
)
runs = _table(
    "runs",
    Column("session", String, unique=True),
    Column("flow", JSON),
    Column("flow_id", String, index=True),
    *("user_id", "content"),
    Column("opened_at", Float),
    Column("position", Integer),
    Column("done", Boolean),
)
results = Table(
    "results",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", String, index=True),
    Column("result", JSON),
)
auth_events = _table("auth_events", Column("event", JSON))


class Flow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A flow: content steps and action nodes, in the order in which the walk meets them.

    Args:
        kind: ``single_shot`` shows everything at once, ``client_paced`` a step at a time.
        items: ``{"id", "kind": "step", "title", "text"}`` or ``{"id", "kind": "action", "type", "config", "name"?}``.
        version: another one for each save; the flow's ETag is made of it.
        saved_by: the person who saved this version.
    """

    id: str
    organization_id: str
    agent_id: str
    name: str
    kind: Literal["single_shot", "client_paced"]
    items: list[dict[str, Any]]
    version: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    saved_by: str | None = None

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The content steps."""
        return [item for item in self.items if item["kind"] == "step"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a flow by one end user. ``position`` is the step shown, -1 before the first one."""

    id: str
    session: str
    flow: Flow
    user_id: str
    content: str
    opened_at: float
    position: int
    done: bool


class Store:
    """The host's database.

    Args:
        url: of the database, in the form of SQLAlchemy's asyncio drivers.
    """

    def __init__(self, url: str) -> None:
        self.engine: AsyncEngine = create_async_engine(url)
        self._turns: AbstractAsyncContextManager[Any] = nullcontext()
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine.sync_engine, "connect", _prepare)
            # SQLite gives its lock to any of those who wait. So one of many writers could wait until its time is over.
            self._turns = asyncio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Make the tables that are missing, and close the engine in the end."""
        async with self.engine.begin() as connection:
            # Two processes that start at once would both make them.
            if self.engine.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                await connection.execute(select(func.pg_advisory_xact_lock(TABLES_LOCK)))
            await connection.run_sync(metadata.create_all)
        try:
            yield
        finally:
            await self.engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Begin a transaction, which commits when its block ends."""
        async with self._turns, self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def _within(self, connection: AsyncConnection | None) -> AsyncIterator[AsyncConnection]:
        """Join somebody's transaction, or make one."""
        if connection is not None:
            yield connection
            return
        async with self.transaction() as own:
            yield own

    async def put(self, table: Table, connection: AsyncConnection | None = None, **values: Any) -> None:
        """Insert a row, or replace the one with its id; within somebody's transaction when its connection is given."""
        statement = self._insert(table).values(values).on_conflict_do_update(index_elements=["id"], set_=values)
        async with self._within(connection) as within:
            await within.execute(statement)

    def _insert(self, table: Table) -> Any:
        return (sqlite if self.engine.dialect.name == "sqlite" else postgresql).insert(table)

    async def find(self, table: Table, **equal: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows whose columns have these values."""
        query = select(table).filter_by(**equal).order_by(table.c.id)
        async with self.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def one(self, table: Table, **equal: Any) -> Mapping[str, Any] | None:
        """Return the first of those rows."""
        return next(iter(await self.find(table, **equal)), None)

    async def issue_token(
        self, kind: str, organization_id: str, *, token: str | None = None, **values: Any
    ) -> str:
        """Make a bearer token. Only its digest is stored."""
        token = token or secrets.token_urlsafe(24)
        expires_at = time.time() + 7 * 86400
        row = {"kind": kind, "organization_id": organization_id, "expires_at": expires_at, **values}
        await self.put(tokens, id=_digest(token), **row)
        return token

    async def token(self, kind: str, token: str | None) -> Mapping[str, Any] | None:
        """Look a token up; ``None`` when it is not there, of another kind, or expired."""
        found = await self.one(tokens, id=_digest(token), kind=kind) if token else None
        return found if found is not None and found["expires_at"] > time.time() else None

    async def flow(self, flow_id: str) -> Flow | None:
        """Return a flow."""
        row = await self.one(flows, id=flow_id)
        return None if row is None else Flow(**row)

    async def save_flow(self, flow: Flow, over: str | None = ANY_VERSION) -> bool:
        """Store a flow, in one statement: of two authors who save at once, one is refused.

        Args:
            flow: with a version of its own.
            over: the version that it replaces; ``None``: the flow is new.

        Returns:
            Whether it was stored: not when another version is there, or none.
        """
        values = msgspec.structs.asdict(flow)
        if over == ANY_VERSION:
            await self.put(flows, **values)
            return True
        if over is None:
            statement: Insert | Update = self._insert(flows).values(values).on_conflict_do_nothing()
        else:
            statement = update(flows).where(flows.c.id == flow.id, flows.c.version == over).values(values)
        async with self.transaction() as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def delete_flow(self, flow_id: str, version: str) -> bool:
        """Delete a flow with its runs, so that a session that is under way ends; return whether it had this version."""
        own = select(runs.c.id).where(runs.c.flow_id == flow_id)
        async with self.transaction() as connection:
            deleted = delete(flows).where(flows.c.id == flow_id, flows.c.version == version)
            if (await connection.execute(deleted)).rowcount != 1:
                return False
            await connection.execute(delete(results).where(results.c.run_id.in_(own)))
            await connection.execute(delete(runs).where(runs.c.flow_id == flow_id))
        return True

    async def start_run(self, run: Run, connection: AsyncConnection) -> None:
        """Store a run that was just opened."""
        values = {**msgspec.structs.asdict(run), "flow": msgspec.to_builtins(run.flow), "flow_id": run.flow.id}
        await connection.execute(insert(runs).values(values))

    async def run(self, session: str) -> Run | None:
        """Return the run of a widget's session."""
        row = await self.one(runs, session=session)
        return None if row is None else _run(row)

    async def move(
        self,
        run: Run,
        connection: AsyncConnection | None = None,
        *,
        position: int,
        done: bool,
        halted: bool,
    ) -> None:
        """Move a run on, unless another request moved it first; a halt ends it in any case."""
        moved = update(runs).where(runs.c.id == run.id)
        if not halted:
            moved = moved.where(runs.c.position == run.position, runs.c.done.is_(False))
        async with self._within(connection) as within:
            await within.execute(moved.values(position=position, done=done or halted))

    async def add_results(
        self, run_id: str, found: Sequence[Any], connection: AsyncConnection | None = None
    ) -> None:
        """Keep the results of nodes, for the flow's author."""
        if found:
            rows = [{"run_id": run_id, "result": msgspec.to_builtins(result)} for result in found]
            async with self._within(connection) as within:
                await within.execute(insert(results), rows)

    async def recent_runs(self, flow_id: str, session: str) -> list[tuple[Run, list[dict[str, Any]]]]:
        """Return a flow's newest runs, or the one of a session, with the results of their nodes."""
        query = select(runs).where(runs.c.flow_id == flow_id).order_by(runs.c.opened_at.desc()).limit(20)
        if session:
            query = query.where(runs.c.session == session)
        async with self.engine.connect() as connection:
            found = [_run(dict(row)) for row in (await connection.execute(query)).mappings()]
        return [(run, [row["result"] for row in await self.find(results, run_id=run.id)]) for run in found]


def _run(row: Mapping[str, Any]) -> Run:
    values = {name: row[name] for name in Run.__struct_fields__}
    return Run(**{**values, "flow": msgspec.convert(row["flow"], Flow)})


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _prepare(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # First, because processes that start together all turn on the write-ahead log.
    cursor.execute("PRAGMA busy_timeout = 60000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()
