"""What is stored of inbound requests: each event of a provider once, by its id, and requests that processed no event."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from sqlalchemy.engine import Connection

from flowactions_plugin.log_text import storable
from flowactions_plugin.storage import waiting
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.schema import inbound_events, inbound_requests
from flowactions_plugin.storage.sqlite import Deadline

RECORD_SECONDS: Final = 1.0
"""How long the record of a request that processed no event may take: the provider waits for its answer meanwhile."""

Unprocessed: TypeAlias = Literal["acknowledged", "refused", "invalid", "failed"]
"""What became of a request that processed no event."""


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
        "event_type": _short(event_type),
    }
    again = {"repeats": inbound_events.c.repeats + 1, "repeated_at": database.now()}
    added = database.sql.insert(inbound_events).values(row)
    counted = added.on_conflict_do_update(index_elements=list(inbound_events.primary_key), set_=again)
    repeats: int = (await transaction.execute(counted.returning(inbound_events.c.repeats))).scalar_one()
    return repeats == 0


async def record_unprocessed(
    database: Database,
    provider: str,
    result: Unprocessed,
    status_code: int,
    cause: str,
    *,
    event_id: str | None = None,
    event_type: str | None = None,
    reason: str | None = None,
    requests: int,
) -> None:
    """Count requests that processed no event with the others of their provider and reason.

    Args:
        database: the database.
        provider: ``auth`` or ``chat``.
        result: what became of the request.
        status_code: the HTTP status of the answer.
        cause: a short text, the same for all requests of one reason.
        event_id: the event that it names; ``None``: none that can be read.
        event_type: the event's type; ``None``: not known.
        reason: why, for operators.
        requests: how many of this kind there were, with those that were not recorded since the last one.

    Raises:
        StorageUnavailable: the database failed.
    """
    now, table = database.now(), inbound_requests.c
    row = {
        "provider": provider,
        "result": result,
        "cause": _short(cause),
        "first_at": now,
        "requests": requests,
    }
    last = {
        "last_at": now,
        "event_id": event_id,
        "event_type": None if event_type is None else _short(event_type),
        "status_code": status_code,
        "reason": storable(reason),
    }
    added = database.sql.insert(inbound_requests).values(row | last)
    counted = added.on_conflict_do_update(
        index_elements=list(inbound_requests.primary_key),
        set_={"requests": table.requests + added.excluded.requests}
        | {name: added.excluded[name] for name in last},
    )

    def write(connection: Connection) -> None:
        connection.execute(counted)

    async with database.answering(RECORD_SECONDS - waiting.ANSWER_SECONDS):
        await database.in_transaction(write, Deadline(RECORD_SECONDS))


def _short(text: str) -> str | None:
    """Return the type of an event, or a cause, in a form that can be stored."""
    return storable(text[:200])
