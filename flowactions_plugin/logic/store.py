"""All SQL of logic-webhook calls: which keys were used, and how many calls there were (§4.2, §8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import select, update

from flowactions_plugin.logic.rate import LIMIT, admit
from flowactions_plugin.storage.database import Connection, Database
from flowactions_plugin.storage.schema import enqueue_keys, enqueue_rates

IDLE_MS: Final = 3600 * 1000

TESTS: Final = ""
"""In place of the agent, for an organization's tests of nodes: no agent has an empty id."""

UNKNOWN: Final = ""
"""In place of the organization of a key that release 0.1.0 took, and whose delivery was gone at the upgrade. Nobody
writes such keys any more, so it is enough to look for them without a lock."""


class Seen(NamedTuple):
    """What is known of a call before it is looked into.

    Attributes:
        is_duplicate: whether its key was used within the window.
        wait_ms: how long the agent has to wait before another call is admitted.
    """

    is_duplicate: bool
    wait_ms: int


class CallStore:
    """The keys and rates of one database.

    Args:
        database: which.
        window_ms: how long a key is remembered.
    """

    def __init__(self, database: Database, window_ms: int) -> None:
        self._database = database
        self._window_ms = window_ms

    async def seen(self, organization_id: str, agent_id: str, key: str) -> Seen:
        """Look without a lock; what it says may be different when the call is counted."""
        now = self._database.now()
        used = select(enqueue_keys.c.delivery_id).where(
            enqueue_keys.c.organization_id.in_((organization_id, UNKNOWN)),
            enqueue_keys.c.caller == _caller(agent_id),
            enqueue_keys.c.idempotency_key == key,
            enqueue_keys.c.created_at > now - self._window_ms,
        )
        rate = select(enqueue_rates.c.times, now).where(
            enqueue_rates.c.organization_id == organization_id, enqueue_rates.c.agent_id == agent_id
        )
        async with self._database.read() as connection:
            is_duplicate = (await connection.execute(used)).first() is not None
            row = (await connection.execute(rate)).first()
        return Seen(is_duplicate, 0 if row is None else admit(_times(row[0]), row[1]).wait_ms)

    async def use_key(
        self, organization_id: str, agent_id: str, key: str, delivery_id: str, connection: Connection
    ) -> bool:
        """Use an idempotency key, within the caller's transaction.

        Returns:
            Whether it was free; of any number of racing callers, one is told so. Those behind wait for the
            first one's transaction.
        """
        now = self._database.now()
        values = {
            "organization_id": organization_id,
            "caller": _caller(agent_id),
            "idempotency_key": key,
            "delivery_id": delivery_id,
            "created_at": now,
        }
        used = self._database.insert_or_replace(
            enqueue_keys, values, enqueue_keys.c.created_at <= now - self._window_ms
        )
        taken = await connection.execute(used.returning(enqueue_keys.c.delivery_id))
        return taken.first() is not None

    async def count_test(self, organization_id: str, limit: int) -> int:
        """Count a test of a node; an organization's tests have a rate of their own, across all processes.

        Returns:
            As `count`.
        """
        async with self._database.write() as connection:
            return await self.count(organization_id, TESTS, connection, limit)

    async def count(
        self, organization_id: str, agent_id: str, connection: Connection, limit: int = LIMIT
    ) -> int:
        """Count a call, within the caller's transaction; until that ends, other calls of the agent wait.

        Args:
            organization_id: the tenant.
            agent_id: the agent.
            connection: the transaction's.
            limit: how many calls a minute admits.

        Returns:
            0 when it is within the rate; otherwise nothing is counted, and it is how many milliseconds to wait.
        """
        values = {
            "organization_id": organization_id,
            "agent_id": agent_id,
            "times": "[]",
            "updated_at": self._database.now(),
        }
        locked = self._database.insert_or_replace(enqueue_rates, values, keep=("times",)).returning(
            enqueue_rates.c.times
        )
        times = _times((await connection.execute(locked)).scalar_one())
        # The time is taken with the lock in hand: who has waited for it is admitted now, not when it came.
        now = (await connection.execute(select(self._database.now()))).scalar_one()
        verdict = admit(times, now, limit)
        if verdict.wait_ms == 0:
            await connection.execute(
                update(enqueue_rates)
                .where(enqueue_rates.c.organization_id == organization_id, enqueue_rates.c.agent_id == agent_id)
                .values(times=msgspec.json.encode(verdict.times).decode(), updated_at=now)
            )
        return verdict.wait_ms

    async def prune_keys(self, limit: int) -> int:
        """Forget keys that are out of the window; give how many there were, about ``limit`` at the most."""
        return await self._database.prune(enqueue_keys.c.created_at, self._window_ms, limit)

    async def prune_rates(self, limit: int) -> int:
        """Forget agents that have not called for a while; give how many there were, about ``limit`` at the most."""
        return await self._database.prune(enqueue_rates.c.updated_at, IDLE_MS, limit)


def _caller(agent_id: str) -> str:
    """Name the user of a key: keys are unique in an organization and caller."""
    return f"api:{agent_id}"


def _times(text: str) -> Sequence[int]:
    try:
        return msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError:
        return []  # somebody has spoilt it: counting begins anew
