"""A host without an app, whose outbox is read: for what DBOS does by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOSConfig
from glue import ActionNodes
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import FlowActions, Node, Walk
from tests.conformance.hosts import small_host
from tests.conformance.hosts.small_host import WEBHOOK, walk

POLLING_SECONDS = 0.02


class SmallHost(small_host.SmallHost):
    """It has a database, which the plugin shares."""

    settings = {"FLOWACTIONS_HOST_WORKER": "off"}  # noqa: RUF012  as guides write it

    def __init__(self, database: AsyncEngine) -> None:
        self.database = database


@asynccontextmanager
async def opened_host(
    place: str, register: Callable[[ActionNodes], Any], kind: type[ActionNodes] = ActionNodes
) -> AsyncIterator[tuple[AsyncEngine, Any]]:
    """Have a host there, with its workflows.

    Args:
        place: a folder, or the URL of a PostgreSQL database.
        register: registers the workflows. What it returns is given.
        kind: of the action nodes.
    """
    if "://" in place:
        url = make_url(place).set(drivername="postgresql+asyncpg")
        system = url.set(drivername="postgresql").render_as_string(hide_password=False)
    else:
        url = make_url(f"sqlite+aiosqlite:///{Path(place) / 'host.db'}")
        system = f"sqlite:///{Path(place) / 'dbos.db'}"
    config: DBOSConfig = {
        "name": "small",
        "system_database_url": system,
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": POLLING_SECONDS,
    }
    engine = create_async_engine(url)
    nodes = kind(FlowActions.load(SmallHost(engine)))
    registered = register(nodes)
    async with nodes.opened(config, engine):
        yield engine, registered
    await engine.dispose()


def walk_of(run_id: str | None, content: str = "") -> Walk:
    """Make the walk of a workflow."""
    assert run_id is not None
    return walk(run_id, content)


def webhook(name: str) -> Node:
    """Make an action node."""
    return Node(id=name, type="webhook", config=WEBHOOK)


async def outbox(engine: AsyncEngine) -> list[tuple[str, str, str]]:
    """Read the node id, the event id and the body of each row, in the order in which they were written."""
    async with engine.connect() as connection:
        rows = await connection.execute(
            sa.text("SELECT node_id, event_id, body FROM flowactions_outbox ORDER BY id")
        )
        return [(node_id, event_id, bytes(body).decode()) for node_id, event_id, body in rows]
