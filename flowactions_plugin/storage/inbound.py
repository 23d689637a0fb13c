"""Events that came in from elsewhere, each noted once by who sent it and its id (§5.4)."""

from __future__ import annotations

from sqlalchemy import delete, select

from flowactions_plugin.storage.database import Connection, Database
from flowactions_plugin.storage.schema import inbound_events


async def note(database: Database, connection: Connection, provider: str, event_id: str) -> bool:
    """Note an event, in the transaction that does what it asks for.

    Args:
        database: which.
        connection: the transaction's.
        provider: who sent it.
        event_id: the provider's id of it, the same when it is sent again.

    Returns:
        Whether it is the first time; of any number of racing callers, one is told so.
    """
    row = {"provider": provider, "event_id": event_id, "received_at": database.now()}
    noted = await connection.execute(database.insert_unless_there(inbound_events).values(row))
    return noted.rowcount == 1


async def prune(database: Database, older_than_ms: int, limit: int) -> int:
    """Forget events that were received longer ago than this, oldest first.

    Args:
        database: which.
        older_than_ms: longer than any provider sends an event again.
        limit: about how many at the most; those of one millisecond go together.

    Returns:
        How many there were.
    """
    received = inbound_events.c.received_at
    old = select(received).where(received < database.now() - older_than_ms).order_by(received).limit(limit)
    async with database.read() as connection:
        times = (await connection.execute(old)).scalars().all()
    if not times:
        return 0
    async with database.write() as connection:
        return (await connection.execute(delete(inbound_events).where(received <= times[-1]))).rowcount
