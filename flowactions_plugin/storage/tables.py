"""Creates, checks and upgrades the tables when a database is opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.errors import SchemaOutdated
from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.outages import code_of

SCHEMA_LOCK: Final = int.from_bytes(b"flowact", "big")
"""Key of PostgreSQL's advisory lock for creating and changing tables."""

INSUFFICIENT_PRIVILEGE: Final = "42501"
"""SQLSTATE."""

_ALEMBIC: Final = threading.Lock()
"""Alembic keeps the database that it works on in globals: hosts whose tables change at once, in threads too, take turns."""
_TURN_SECONDS: Final = 0.02


@asynccontextmanager
async def _alone_in_process() -> AsyncIterator[None]:
    # Not a lock of asyncio's, which belongs to one event loop.
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110  an Event would belong to one event loop, too
        await asyncio.sleep(_TURN_SECONDS)
    try:
        yield
    finally:
        _ALEMBIC.release()


async def _upgrade(transaction: AsyncConnection, outdated: migrations.Outdated) -> None:
    """Create or upgrade tables that need it; a host whose tables are there waits for no other one."""
    if await transaction.run_sync(migrations.must_upgrade, outdated):
        async with _alone_in_process():
            await transaction.run_sync(migrations.upgrade)


async def lock_schema(transaction: AsyncConnection) -> None:
    """Wait until no other process creates or changes tables, until the transaction ends."""
    if transaction.dialect.name == "postgresql":
        await transaction.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))


async def prepare_tables(transaction: AsyncConnection) -> None:
    """Create missing tables; upgrade outdated ones on SQLite, where no other process is expected to use them.

    Raises:
        SchemaOutdated: PostgreSQL's tables are of an earlier release, or this role may not create or read them.
    """
    outdated: migrations.Outdated = "upgrade" if transaction.dialect.name == "sqlite" else "refuse"
    try:
        await _upgrade(transaction, outdated)
    except DBAPIError as exc:
        if code_of(exc) != INSUFFICIENT_PRIVILEGE:
            raise
        raise SchemaOutdated(
            "the tables cannot be made or read by this database role: run 'flowactions migrate' as one that "
            "may make them, and give this one the rights on them",
            code=INSUFFICIENT_PRIVILEGE,
        ) from exc


async def upgrade_tables(transaction: AsyncConnection, *, dry: bool) -> tuple[str | None, str]:
    """Bring the tables to this release's revision.

    Args:
        transaction: committed by the caller.
        dry: change nothing.

    Returns:
        The revision before, ``None`` for a database without tables, and this release's.

    Raises:
        SchemaNewer: the tables are of a later release.
    """
    before = await transaction.run_sync(migrations.known)
    if not dry:
        await _upgrade(transaction, "upgrade")
    return before, migrations.head()
