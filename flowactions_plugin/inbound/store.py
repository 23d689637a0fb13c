"""What is stored of inbound requests: each event of a provider once, by its id, and requests that processed no event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import update
from sqlalchemy.engine import Connection

from flowactions_plugin.log_text import storable
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.schema import inbound_events, inbound_requests
from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.storage.waiting import ANSWER_SECONDS

Unprocessed: TypeAlias = Literal["acknowledged", "refused", "invalid", "failed"]
"""What became of a request that processed no event."""


class Answered(NamedTuple):
    """A request that processed no event.

    Attributes:
        provider: ``auth`` or ``chat``.
        result: what became of it.
        cause: a short text, the same for all requests of one reason.
        status_code: the HTTP status of the answer.
        event_id: the event that it names; ``None``: none that can be read.
        event_type: the event's type; ``None``: not known.
        reason: why, for operators.
        requests: how many of this kind there were, with those that were not recorded since the last one.
    """

    provider: str
    result: Unprocessed
    cause: str
    status_code: int
    event_id: str | None = None
    event_type: str | None = None
    reason: str | None = None
    requests: int = 1


async def record(
    database: Database, transaction: Transaction, provider: str, event_id: str, event_type: str
) -> bool:
    """Record an event, in the transaction that processes it (§5.4); count it when it was recorded before.

    Args:
        database: the database.
        transaction: the caller's.
        provider: the sender.
        event_id: the provider's id of the event, the same when it is sent again.
        event_type: the provider's name of its type.

    Returns:
        Whether it was not recorded before; of any number of concurrent callers, one gets ``True``.
    """
    row = {
        "provider": provider,
        "event_id": event_id,
        "received_at": database.now(),
        "event_type": _type(event_type),
    }
    added = await transaction.execute(database.sql.insert_unless_there(inbound_events).values(row))
    if added.rowcount == 1:
        return True
    there = (inbound_events.c.provider == provider, inbound_events.c.event_id == event_id)
    again: Mapping[str, Any] = {"repeats": inbound_events.c.repeats + 1, "repeated_at": database.now()}
    await transaction.execute(update(inbound_events).where(*there).values(again))
    return False


async def record_unprocessed(database: Database, answered: Answered) -> None:
    """Count a request that processed no event with the others of its provider and reason.

    Raises:
        StorageUnavailable: the database failed.
    """
    now, table = database.now(), inbound_requests.c
    row = {
        **answered._asdict(),
        "cause": _type(answered.cause),
        "first_at": now,
        "last_at": now,
        "event_type": None if answered.event_type is None else _type(answered.event_type),
        "reason": storable(answered.reason),
    }
    added = database.sql.insert(inbound_requests).values(row)
    last = ("last_at", "event_id", "event_type", "status_code", "reason")
    counted = added.on_conflict_do_update(
        index_elements=list(inbound_requests.primary_key),
        set_={
            "requests": table.requests + added.excluded.requests,
            **{name: added.excluded[name] for name in last},
        },
    )

    def write(connection: Connection) -> None:
        connection.execute(counted)

    # The provider waits for its answer meanwhile.
    async with database.answering(1.0 - ANSWER_SECONDS):
        await database.in_transaction(write, Deadline(1.0))


def _type(text: str) -> str | None:
    """Return the type of an event, or a cause, in a form that can be stored."""
    return storable(text[:200])
