"""Webhooks of a host's or plugin's own, for tests of `FlowActions.enqueue`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event as events
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import FlowActions, HostOrigin, OutboundWebhook, PluginOrigin, hookimpl
from flowactions_plugin.settings.model import read_settings
from tests.support import SmallHost

SINK = "http://127.0.0.1:9/"
HOST_ORIGIN = HostOrigin(organization_id="acme", name="order-placed", id="subscription-1")


def own_webhook(**changes: Any) -> OutboundWebhook:
    """Make a webhook of the host's."""
    values: dict[str, Any] = {
        "organization_id": "acme",
        "event_type": "order.placed",
        "entity": "order-1",
        "url": SINK,
        "origin": HOST_ORIGIN,
        "body": b'{"total": 1.10}',
    }
    return OutboundWebhook(**{**values, **changes})


def plugin_origin(name: str = "sync", *, plugin: str = "crm", id: str = "1") -> PluginOrigin:  # noqa: A002  its name
    """Make an origin of a plugin's."""
    return PluginOrigin(organization_id="acme", plugin=plugin, name=name, id=id)


class CrmPlugin:
    """A plugin that keeps its facade, and whose signing secrets a test sets."""

    __name__ = "crm"

    def __init__(self, **resolvers: Any) -> None:
        self.actions: FlowActions | None = None
        self.resolvers = resolvers or {"sync": self.secret}
        self.answer: Any = "crm-secret"
        self.error: Exception | None = None

    async def secret(self, origin: PluginOrigin) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer

    @hookimpl
    def flowactions_signing_secrets(self, actions: FlowActions) -> Any:
        self.actions = actions
        return self.resolvers


class OwningHost(SmallHost):
    """A host that shares its engine, and leaves deliveries to workers unless said."""

    def __init__(self, engine: AsyncEngine, **settings: str) -> None:
        given = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_HOST_WORKER": "off", **settings}
        super().__init__(given, database=engine)
        self.engine = engine


def engine_of(database_url: str) -> AsyncEngine:
    """Make a host's engine."""
    return create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)


@asynccontextmanager
async def owning(
    database_url: str, *plugins: object, tasks: bool = True, **settings: Any
) -> AsyncIterator[tuple[FlowActions, OwningHost]]:
    """Run a host that has a table of orders beside the plugin's tables."""
    engine = engine_of(database_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)"))
        host = OwningHost(engine, **settings)
        actions = FlowActions.load(host, plugins=plugins)
        async with actions.lifespan(tasks=tasks):
            yield actions, host
    finally:
        await engine.dispose()


async def orders(host: OwningHost) -> set[str]:
    """Give the host's own rows."""
    async with host.engine.connect() as connection:
        return set((await connection.execute(text("SELECT id FROM orders"))).scalars())


async def keys_and_rows(host: OwningHost) -> tuple[list[Any], list[Any]]:
    """Give the idempotency keys and the outbox's rows."""
    async with host.engine.connect() as connection:
        keys = await connection.execute(
            text("SELECT organization_id, caller, idempotency_key, delivery_id FROM flowactions_enqueue_keys")
        )
        rows = await connection.execute(text("SELECT * FROM flowactions_outbox ORDER BY id"))
        return [tuple(each) for each in keys.all()], list(rows.all())


@asynccontextmanager
async def statements(host: OwningHost) -> AsyncIterator[list[str]]:
    """Collect the statements that are executed."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    events.listen(host.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        events.remove(host.engine.sync_engine, "before_cursor_execute", note)
