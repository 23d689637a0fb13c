"""Events that came in from elsewhere, each noted once by who sent it and its id (§5.4)."""

from __future__ import annotations

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
    """Forget events that were received longer ago than any provider sends them again; give how many there were."""
    return await database.prune(inbound_events.c.received_at, older_than_ms, limit)
