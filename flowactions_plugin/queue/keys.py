"""Idempotency keys: each is used once per organization and caller within the dedupe window.

Callers are ``host``, ``plugin:<name>`` and ``api:<agent>``. A key is written in the transaction of its
delivery: both are committed, or neither is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Executable, Insert, Text, case, func, select
from sqlalchemy.engine import Connection

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import enqueue_keys

T = TypeVar("T")

KEY_SECONDS: Final = 10.0
"""How long a caller waits for another's transaction that has used the same key; as long as for SQLite's write lock."""

_PLACE: Final = ("organization_id", "caller", "idempotency_key")
_USE: Final = ("delivery_id", "event_id")
KEY_COLUMNS: Final = tuple(enqueue_keys.c[*_PLACE, *_USE])
"""A key, and the first use of it."""


class FirstUse(NamedTuple):
    """The delivery that used a key first.

    Attributes:
        delivery_id: the outbox row's id; the row may have been deleted since.
        event_id: what receivers dedupe on.
    """

    delivery_id: str
    event_id: str


class KeyUse(NamedTuple):
    """An idempotency key that something is written with: for another organization or caller, the same text is another key.

    Attributes:
        keys: of the database that it is written to.
        organization_id: whose it is.
        caller: who uses it.
        key: the key.
    """

    keys: IdempotencyKeys
    organization_id: str
    caller: str
    key: str


class IdempotencyKeys:
    """The keys of one database.

    Args:
        database: which.
        window_ms: how long a key is remembered.
    """

    def __init__(self, database: Database, window_ms: int) -> None:
        self._database = database
        self._window_ms = window_ms

    async def find(self, use: KeyUse, connection: Transaction) -> FirstUse | None:
        """Return what used a key within the window, without a lock; ``None``: nothing that has committed."""
        query = select(enqueue_keys.c.delivery_id, enqueue_keys.c.event_id).where(
            enqueue_keys.c.organization_id == use.organization_id,
            enqueue_keys.c.caller == use.caller,
            enqueue_keys.c.idempotency_key == use.key,
            enqueue_keys.c.created_at > self._database.now() - self._window_ms,
        )
        row = (await connection.execute(query)).first()
        return None if row is None else FirstUse(*row)

    def use_all(self, connection: Connection, uses: Sequence[tuple[KeyUse, FirstUse]]) -> list[FirstUse | None]:
        """Use the keys of several rows in one statement, within the caller's transaction.

        Of any number of racing callers one uses a key. The others wait until that one's transaction has ended: when it rolls
        back, the next one uses the key. Keys are locked in their order, so that two such statements do not wait for each other.

        Args:
            connection: of the transaction that writes the rows.
            uses: the key of each row, and the row. The same row may use its key again.

        Returns:
            For each row ``None`` when its key was free; otherwise the first use of its key.
        """
        found = connection.execute(self._database.built(self._using_all), self.given(uses))
        firsts = {tuple(row[:3]): FirstUse(*row[3:]) for row in found}
        return [
            None if firsts[use[1:]].delivery_id == wanted.delivery_id else firsts[use[1:]]
            for use, wanted in uses
        ]

    def given(self, uses: Sequence[tuple[KeyUse, FirstUse]]) -> dict[str, Any]:
        """Return the parameters of the statements that use keys: of the same key, the first."""
        rows: dict[tuple[str, ...], dict[str, str]] = {}
        for use, wanted in uses:
            values = {**use._asdict(), **wanted._asdict()}
            del values["keys"]
            rows.setdefault(use[1:], values)
        return {"uses": self._database.sql.json_rows([*rows.values()])}

    def _using_all(self, sql: Dialect) -> Executable:
        """Build the same statement as `using`. It returns the first use of each key."""
        return self.using(sql).returning(*KEY_COLUMNS)

    def using(self, sql: Dialect, lock_ms: int = 0) -> Insert:
        """Build the statement that uses the keys of the parameter ``uses``.

        Args:
            sql: of the database.
            lock_ms: milliseconds that it, and then its transaction, waits for a lock on PostgreSQL; 0: no limit.
        """
        now = sql.now()
        given = sql.values_table(
            "uses", organization_id=Text, caller=Text, key=Text, delivery_id=Text, event_id=Text
        )
        # SQLite would read ON CONFLICT as the condition of a join without a WHERE.
        rows = select(*given.c, now).where(given.c.key.is_not(None)).order_by(*given.c)
        if lock_ms:
            # It takes effect within the statement: all rows are read, and sorted, before the first is inserted.
            rows = rows.where(func.set_config("lock_timeout", str(lock_ms), True).is_not(None))
        inserted = sql.insert(enqueue_keys).from_select([*_PLACE, *_USE, "created_at"], rows)
        is_old = enqueue_keys.c.created_at <= now - self._window_ms
        kept = {
            name: case((is_old, inserted.excluded[name]), else_=enqueue_keys.c[name])
            for name in (*_USE, "created_at")
        }
        return inserted.on_conflict_do_update(index_elements=_PLACE, set_=kept)

    async def prune(self, limit: int) -> int:
        """Delete keys that are out of the window; return how many there were, about ``limit`` at the most."""
        return await self._database.prune(enqueue_keys.c.created_at, self._window_ms, limit)


async def waiting_for_keys(writing: Awaitable[T]) -> T:
    """Write what has to wait for other transactions that have used its keys.

    Raises:
        StorageUnavailable: one of them did not end in time.
    """
    try:
        async with asyncio.timeout(KEY_SECONDS):
            return await writing
    except TimeoutError:
        raise StorageUnavailable(
            f"another transaction has used this idempotency key and did not end within {KEY_SECONDS:g} s"
        ) from None


def api_key(keys: IdempotencyKeys, organization_id: str, agent_id: str, key: str) -> KeyUse:
    """Return a key of a call of the logic-webhook endpoint (§4.2)."""
    return KeyUse(keys, organization_id, f"api:{agent_id}", key)
