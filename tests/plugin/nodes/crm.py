"""A plugin with a node type that writes rows of its own beside the plugin's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flowactions_hookspecs import (
    Advanced,
    Deferred,
    FlowActions,
    Node,
    NodeType,
    Walk,
    hookimpl,
)
from flowactions_plugin.settings.model import read_settings
from tests.support import SmallHost, a_walk, services_of

Act = Callable[[Walk, Node], Awaitable[Any]]


class Base(DeclarativeBase):
    """Of the plugin's own tables."""


class Contact(Base):
    """The plugin's own table, in the host's database."""

    __tablename__ = "crm_contacts"
    id: Mapped[str] = mapped_column(primary_key=True)


class Plugin:
    """A plugin with one type, whose nodes do what a test says."""

    __name__ = "crm"

    def __init__(self, act: Act) -> None:
        self.act = act
        self.runs = 0

    async def reach(self, walk: Walk, node: Node) -> Any:
        self.runs += 1
        return await self.act(walk, node)

    @hookimpl
    def flowactions_node_types(self) -> list[NodeType]:
        return [NodeType(name="crm", title="CRM", description="Upserts.", reach=self.reach)]


class Crm:
    """A host with such a plugin."""

    def __init__(self, actions: FlowActions, engine: AsyncEngine, plugin: Plugin) -> None:
        self.actions = actions
        self.engine = engine
        self.plugin = plugin
        self.pacing = services_of(actions.host)._pacing

    async def ids(self, table: str = "crm_contacts", column: str = "id") -> list[Any]:
        async with self.engine.connect() as connection:
            query = text(f"SELECT {column} FROM {table} ORDER BY {column}")  # noqa: S608  a test's own words
            return list((await connection.execute(query)).scalars())

    async def record(self, *names: str, walk: Walk | None = None) -> Walk:
        """Let a run reach nodes before step s; ``b…`` are webhooks."""
        walk = replace(walk or a_walk(), pacing=Deferred("s"))
        for name in names:
            config = {"webhookUrl": "http://127.0.0.1:9/"} if name.startswith("b") else {}
            kind = "webhook" if name.startswith("b") else "crm"
            assert (
                await self.actions.reach(walk, Node(id=name, type=kind, config=config))
            ).status == "recorded"
        return walk

    async def pass_time(self) -> None:
        """Let every lease and every wait be over."""
        async with self.engine.begin() as connection:
            await connection.execute(
                text("UPDATE flowactions_deferred SET held_until = 1 WHERE held_until IS NOT NULL")
            )

    async def age(self, seconds: float) -> None:
        """Let that much of every lease be over."""
        async with self.engine.begin() as connection:
            query = (
                "UPDATE flowactions_deferred SET held_until = held_until - :passed WHERE held_until IS NOT NULL"
            )
            await connection.execute(text(query), {"passed": int(seconds * 1000)})


@asynccontextmanager
async def crm(database_url: str, act: Act, host_type: type[SmallHost] = SmallHost) -> AsyncIterator[Crm]:
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        settings = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_HOST_WORKER": "off"}
        plugin = Plugin(act)
        actions = FlowActions.load(host_type(settings, database=engine), plugins=[plugin])
        async with actions.lifespan():
            yield Crm(actions, engine, plugin)
    finally:
        await engine.dispose()


def ran(advanced: Advanced) -> list[tuple[str, str]]:
    return [(result.node_id, result.status) for result in advanced.results]
