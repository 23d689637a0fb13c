"""The engine's data: everything is an object of a tenant, with a number that is unique within tenant and kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

metadata = MetaData()
objects = Table(
    "engine_objects",
    metadata,
    Column("tenant", BigInteger, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("name", String),
    Column("data", Text),
    UniqueConstraint("kind", "name"),
)
runs = Table(
    "engine_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("session", String, unique=True),
    Column("cursor", Integer),
    Column("done", Boolean),
    Column("data", Text),
    sqlite_autoincrement=True,
)


class Found(NamedTuple):
    """An object: its tenant, its number there, the name under which it was made, and its data."""

    tenant: int
    id: int
    name: str
    data: Any


class Store:
    """The engine's database, opened in the app's lifespan.

    Args:
        url: in the form of SQLAlchemy's asyncio drivers.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self.engine: AsyncEngine

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Opens it."""
        self.engine = create_async_engine(self._url)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine.sync_engine, "connect", _prepare)
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        yield
        await self.engine.dispose()

    async def put(self, kind: str, name: str, tenant: int, data: object = None) -> int:
        """Makes an object, or replaces its data; returns its number."""
        text = msgspec.json.encode(data).decode()
        async with self._lock, self.engine.begin() as connection:
            of = (objects.c.kind == kind) & (objects.c.name == name)
            found = (await connection.execute(select(objects.c.id).where(of))).scalar()
            if found is not None:
                await connection.execute(update(objects).where(of).values(data=text))
                return int(found)
            newest = select(func.max(objects.c.id)).where(objects.c.tenant == tenant, objects.c.kind == kind)
            number = int((await connection.execute(newest)).scalar() or 0) + 1
            row = {"tenant": tenant, "kind": kind, "id": number, "name": name, "data": text}
            await connection.execute(insert(objects).values(row))
            return number

    async def find(self, kind: str, **equal: object) -> Sequence[Found]:
        """Returns the objects of a kind whose columns have these values."""
        query = select(objects).filter_by(kind=kind, **equal).order_by(objects.c.id)
        async with self.engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return [Found(row.tenant, row.id, row.name, msgspec.json.decode(row.data)) for row in rows]

    async def one(self, kind: str, **equal: object) -> Found | None:
        """Returns the first of them."""
        return next(iter(await self.find(kind, **equal)), None)

    async def start(self, session: str, data: object) -> int:
        """Makes a run; returns its number."""
        row = {"session": session, "cursor": -1, "done": False, "data": msgspec.json.encode(data).decode()}
        async with self.engine.begin() as connection:
            made = await connection.execute(insert(runs).values(row).returning(runs.c.id))
            return int(made.scalar_one())

    async def run(self, session: str) -> Row[Any] | None:
        """Returns a run."""
        async with self.engine.connect() as connection:
            return (await connection.execute(select(runs).where(runs.c.session == session))).first()

    async def move(self, run_id: int, at: int, **values: object) -> None:
        """Changes a run, unless somebody moved it from where it was."""
        changed = update(runs).where(runs.c.id == run_id, runs.c.cursor == at).values(values)
        async with self.engine.begin() as connection:
            await connection.execute(changed)


def _prepare(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 60000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()
