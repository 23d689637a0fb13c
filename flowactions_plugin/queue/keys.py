"""Idempotency keys: each is used once per organization and caller within the dedupe window.

Callers are ``host``, ``plugin:<name>`` and ``api:<agent>``. A key is written in the transaction of the delivery that it
stands for: both are there or neither is.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from sqlalchemy import Executable, bindparam, select

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import enqueue_keys

KEY_SECONDS: Final = 10.0
"""How long a caller waits for another's transaction that has used the same key; as long as for SQLite's write lock."""

UNKNOWN: Final = ""
"""In place of the organization of a key that release 0.1.0 took, and whose delivery was gone at the upgrade. Nobody
writes such keys any more, so it is enough to look for them without a lock."""


class KeyOwner(NamedTuple):
    """Whose key it is: the same text is another key for another organization or caller."""

    organization_id: str
    caller: str


class FirstUse(NamedTuple):
    """The delivery that used a key first.

    Attributes:
        delivery_id: the outbox row's id; the row may have been deleted since.
        event_id: what receivers dedupe on; ``None`` for keys of release 0.1.0 whose delivery was gone at the upgrade.
    """

    delivery_id: str
    event_id: str | None


class IdempotencyKeys:
    """The keys of one database.

    Args:
        database: which.
        window_ms: how long a key is remembered.
    """

    def __init__(self, database: Database, window_ms: int) -> None:
        self._database = database
        self._window_ms = window_ms

    async def find(self, owner: KeyOwner, key: str, connection: Transaction) -> FirstUse | None:
        """Return what used a key within the window, without a lock; ``None``: nothing that has committed."""
        query = select(enqueue_keys.c.delivery_id, enqueue_keys.c.event_id).where(
            enqueue_keys.c.organization_id.in_((owner.organization_id, UNKNOWN)),
            enqueue_keys.c.caller == owner.caller,
            enqueue_keys.c.idempotency_key == key,
            enqueue_keys.c.created_at > self._database.now() - self._window_ms,
        )
        row = (await connection.execute(query)).first()
        return None if row is None else FirstUse(*row)

    async def use(
        self, owner: KeyOwner, key: str, delivery_id: str, event_id: str, connection: Transaction
    ) -> FirstUse | None:
        """Use a key, within the caller's transaction.

        Of any number of racing callers one uses it. The others wait until that one's transaction has ended: when it
        rolls back, the next one uses the key.

        Args:
            owner: whose key it is.
            key: the key.
            delivery_id: the row that it stands for. The same row may use its key again.
            event_id: of that row.
            connection: of the transaction that writes the row.

        Returns:
            ``None`` when the key was free; otherwise its first use.

        Raises:
            StorageUnavailable: another transaction that has used it did not end in time.
        """
        given = {
            "for_organization": owner.organization_id,
            "for_caller": owner.caller,
            "for_key": key,
            "for_delivery": delivery_id,
            "for_event": event_id,
        }
        try:
            async with asyncio.timeout(KEY_SECONDS):
                taken = await connection.execute(self._database.built(self._using), given)
        except TimeoutError:
            raise StorageUnavailable(
                f"another transaction has used this idempotency key and did not end within {KEY_SECONDS:g} s"
            ) from None
        if taken.first() is not None:
            return None
        # The statement above has locked the row, so it is there.
        row = (await connection.execute(self._database.built(_first_use), given)).one()
        return None if row.delivery_id == delivery_id else FirstUse(*row)

    def _using(self, sql: Dialect) -> Executable:
        """Build the statement that uses a key, which is built once: building costs more than running it."""
        now = sql.now()
        values = {
            "organization_id": bindparam("for_organization"),
            "caller": bindparam("for_caller"),
            "idempotency_key": bindparam("for_key"),
            "delivery_id": bindparam("for_delivery"),
            "event_id": bindparam("for_event"),
            "created_at": now,
        }
        used = sql.insert_or_replace(enqueue_keys, values, enqueue_keys.c.created_at <= now - self._window_ms)
        return used.returning(enqueue_keys.c.delivery_id)

    async def prune(self, limit: int) -> int:
        """Delete keys that are out of the window; return how many there were, about ``limit`` at the most."""
        return await self._database.prune(enqueue_keys.c.created_at, self._window_ms, limit)


def _first_use(_sql: Dialect) -> Executable:
    return select(enqueue_keys.c.delivery_id, enqueue_keys.c.event_id).where(
        enqueue_keys.c.organization_id == bindparam("for_organization"),
        enqueue_keys.c.caller == bindparam("for_caller"),
        enqueue_keys.c.idempotency_key == bindparam("for_key"),
    )


def api_caller(agent_id: str) -> str:
    """Return the caller that the keys of the logic-webhook endpoint belong to (§4.2)."""
    return f"api:{agent_id}"


def api_owner(organization_id: str, agent_id: str) -> KeyOwner:
    """Return the owner of the keys of the logic-webhook endpoint."""
    return KeyOwner(organization_id, api_caller(agent_id))
