"""Inbound events: each event of a provider is recorded once, by its id."""

from __future__ import annotations

from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.schema import inbound_events


async def record(database: Database, transaction: Transaction, provider: str, event_id: str) -> bool:
    """Record an event, in the transaction that processes it (§5.4).

    Args:
        database: the database.
        transaction: the caller's.
        provider: the sender.
        event_id: the provider's id of the event, the same when it is sent again.

    Returns:
        Whether it was not recorded before; of any number of concurrent callers, one gets ``True``.
    """
    row = {"provider": provider, "event_id": event_id, "received_at": database.now()}
    added = await transaction.execute(database.sql.insert_unless_there(inbound_events).values(row))
    return added.rowcount == 1


async def prune(database: Database, older_than_ms: int, limit: int) -> int:
    """Delete events that were received so long ago that no provider sends them again; returns their number."""
    return await database.prune(inbound_events.c.received_at, older_than_ms, limit)
