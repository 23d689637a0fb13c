"""Idempotency keys: each is used once per organization and caller within the dedupe window.

Callers are ``host``, ``plugin:<name>`` and ``api:<agent>``. A key is written in the transaction of its
delivery: both are committed, or neither is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import TextClause, select
from sqlalchemy.engine import Connection

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.statements import written as made_of
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import enqueue_keys
from flowactions_plugin.storage.waiting import is_unconfirmed

T = TypeVar("T")

KEY_SECONDS: Final = 10.0
"""How long a caller waits for another's transaction that has used the same key; as long as for SQLite's write lock."""

USE: Final = """
INSERT INTO flowactions_enqueue_keys AS kept
    (organization_id, caller, idempotency_key, delivery_id, event_id, created_at)
SELECT organization_id, caller, key, delivery_id, event_id, {now} FROM ({uses}) AS uses
WHERE key IS NOT NULL{limit} ORDER BY organization_id, caller, key
ON CONFLICT (organization_id, caller, idempotency_key) DO UPDATE SET
    delivery_id = CASE WHEN {old} THEN excluded.delivery_id ELSE kept.delivery_id END,
    event_id = CASE WHEN {old} THEN excluded.event_id ELSE kept.event_id END,
    created_at = CASE WHEN {old} THEN excluded.created_at ELSE kept.created_at END"""
"""Use the keys of ``uses``; one that was used within the window stays as it is."""

FIRST_USES: Final = f"{USE} RETURNING organization_id, caller, idempotency_key, delivery_id, event_id"
"""The same, and return the first use of each key."""

_USES: Final = dict.fromkeys(("organization_id", "caller", "key", "delivery_id", "event_id"), "text")


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
        found = connection.execute(self._database.built(self.using, FIRST_USES), self.given(uses))
        firsts = {tuple(row[:3]): FirstUse(*row[3:]) for row in found}
        return [
            None if firsts[use[1:]].delivery_id == wanted.delivery_id else firsts[use[1:]]
            for use, wanted in uses
        ]

    def given(self, uses: Sequence[tuple[KeyUse, FirstUse]]) -> dict[str, str]:
        """Return the parameter of the statements that use keys: of the same key, the first."""
        rows: dict[tuple[Any, ...], dict[str, str]] = {}
        for use, wanted in uses:
            rows.setdefault(use, dict(zip(_USES, (*use[1:], *wanted), strict=True)))
        return {"uses": self._database.sql.json_rows([*rows.values()])}

    def using(self, sql: Dialect, written: str, lock_ms: int = 0, **parts: str) -> TextClause:
        """Build a statement that uses the keys of the parameter ``uses``.

        Args:
            sql: of the database.
            written: `USE`, or what it is part of.
            lock_ms: milliseconds that it, and then its transaction, waits for a lock on PostgreSQL; 0: no limit.
            parts: what else is written into it.
        """
        # It takes effect within the statement: all rows are read, and sorted, before the first is inserted.
        limit = f" AND set_config('lock_timeout', '{lock_ms}', true) IS NOT NULL" if lock_ms else ""
        old = f"kept.created_at <= {sql.now_text} - {self._window_ms}"
        uses = sql.rows_text("uses", _USES)
        return made_of(sql, written, {**parts, "uses": uses, "limit": limit, "old": old})

    async def prune(self, limit: int) -> int:
        """Delete keys that are out of the window; return how many there were, about ``limit`` at the most."""
        return await self._database.prune(enqueue_keys.c.created_at, self._window_ms, limit)


async def waiting_for_keys(writing: Awaitable[T]) -> T:
    """Write what has to wait for other transactions that have used its keys.

    Raises:
        StorageUnavailable: one of them did not end in time, or the database did not say that what was written is committed.
    """
    try:
        async with asyncio.timeout(KEY_SECONDS):
            return await writing
    except TimeoutError as exc:
        unavailable = StorageUnavailable(
            f"another transaction has used this idempotency key and did not end within {KEY_SECONDS:g} s"
        )
        unavailable.may_be_written = is_unconfirmed(exc.__cause__ or exc)
        raise unavailable from None
