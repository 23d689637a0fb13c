"""The plugin's own engine for PostgreSQL, and listening to it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.urls import asyncpg_arguments

IDLE_SECONDS: Final = 1
"""How long a connection may lie idle and be used again without a look."""


def own_engine(url: URL, statement_seconds: float | None) -> AsyncEngine:
    """Make an engine that connects as a URL says.

    Args:
        url: parsed by `parse_database_url`.
        statement_seconds: how long a statement may take; ``None``: as long as it takes.

    Raises:
        OSError: a file that the URL names cannot be read.
    """
    arguments = {**asyncpg_arguments(url), "command_timeout": statement_seconds}
    # Errors of statements are logged, and what is in rows belongs to others.
    engine = create_async_engine(URL.create("postgresql+asyncpg"), connect_args=arguments, hide_parameters=True)
    event.listen(engine.sync_engine, "checkin", _mark_used)
    event.listen(engine.sync_engine, "checkout", partial(_pre_ping, engine.sync_engine.dialect))
    return engine


async def listen(connection: AsyncConnection, channel: str, on_notify: Callable[[], None]) -> None:
    """Listen on a channel until the connection is lost.

    Args:
        connection: for nothing else; it is closed in the end.
        channel: which.
        on_notify: called at each notification.

    Raises:
        StorageUnavailable: the driver cannot.
    """
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if not hasattr(driver, "add_termination_listener"):
        raise StorageUnavailable("the host's database driver cannot listen")
    lost = asyncio.Event()

    def notified(*_: object) -> None:
        on_notify()

    def end(*_: object) -> None:
        lost.set()

    driver.add_termination_listener(end)
    await driver.add_listener(channel, notified)
    try:
        await lost.wait()
    finally:
        # Not to be given to others as it is: it would go on listening.
        await connection.invalidate()


def _mark_used(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _pre_ping(dialect: Any, connection: Any, record: Any, _proxy: object) -> None:
    """Replace a connection that a restart of the server has cut before a caller meets it.

    A connection that was closed knows it by itself. Only one that was idle for a while is asked, for that takes round
    trips.
    """
    if connection.driver_connection.is_closed():
        raise DisconnectionError
    if time.monotonic() - record.info.get("used_at", math.inf) > IDLE_SECONDS:
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as exc:
            raise DisconnectionError from exc
