"""Logic-webhook calls: which keys were used, and how many calls there were; so many in any minute, counted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.engine import Connection

from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import enqueue_rates
from flowactions_plugin.storage.waiting import repeated

LIMIT: Final = 60
WINDOW_MS: Final = 60_000

TESTS: Final = ""
"""In place of the agent, for an organization's tests of nodes: no agent has an empty id."""


def admit(times: Sequence[int], now: int, limit: int = LIMIT) -> tuple[Sequence[int], int]:
    """Decide on a call: in no stretch of a minute are more than ``limit`` admitted (§8).

    Args:
        times: of the calls that were admitted, oldest first; Unix milliseconds.
        now: Unix milliseconds. A clock that was set back counts as standing still.
        limit: how many a minute admits.

    Returns:
        The times that count from now on, this call's among them when it is admitted; and how many milliseconds it has to wait, 0
        when it is admitted.
    """
    now = max(now, times[-1]) if times else now
    recent = [time for time in times if time > now - WINDOW_MS]
    if len(recent) >= limit:
        return recent, recent[-limit] + WINDOW_MS - now
    return [*recent, now], 0


class CallStore:
    """The rates of one database (§4.2, §8)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look_up(self, use: KeyUse, agent_id: str) -> int | None:
        """Look a call up without a lock; the answer may be different when the call is counted.

        Returns:
            How many milliseconds the agent has to wait before another call is admitted; ``None`` when the key was used
            within the window.
        """
        rate = select(enqueue_rates.c.times, self._database.now()).where(
            enqueue_rates.c.organization_id == use.organization_id, enqueue_rates.c.agent_id == agent_id
        )
        async with self._database.read() as connection:
            first = await use.keys.find(use, connection)
            row = (await connection.execute(rate)).first()
        if first is not None:
            return None
        return 0 if row is None else admit(_times(row[0]), row[1])[1]

    @repeated
    async def count_test(self, organization_id: str, limit: int) -> int:
        """Count a test of a node, as `count`: an organization's tests have a rate of their own, across all processes."""
        async with self._database.write() as connection:
            return await connection.run_sync(self.count, organization_id, TESTS, limit)

    def count(self, connection: Connection, organization_id: str, agent_id: str, limit: int = LIMIT) -> int:
        """Count a call, within the caller's transaction; until that ends, other calls of the agent wait.

        Returns:
            0 when it is within the rate; otherwise nothing is counted, and it is how many milliseconds to wait.
        """
        given = {"organization_id": organization_id, "agent_id": agent_id}
        database = self._database
        times = _times(connection.execute(database.built(statement, "lock_rate"), given).scalar_one())
        # The time is taken with the lock in hand: who has waited for it is admitted now, not when it came.
        now = database.time_on(connection)
        counting, wait_ms = admit(times, now, limit)
        if wait_ms == 0:
            counted = {**given, "times": msgspec.json.encode(counting).decode(), "at": now}
            connection.execute(database.built(statement, "count_call"), counted)
        return wait_ms


def _times(text: str) -> Sequence[int]:
    """Read the times of an agent's calls."""
    try:
        return msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError:
        return []  # somebody has spoilt it: counting begins anew
