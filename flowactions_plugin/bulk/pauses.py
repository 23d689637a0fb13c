"""Pauses: rows of a paused destination wait, use no attempt, and delay nobody (decision 39)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from flowactions_plugin.bulk.pause_store import TARGETS, PauseStore
from flowactions_plugin.deliveries.operator_views import pause_of
from flowactions_plugin.deliveries.results import Pause
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import ActionInvalid, EgressRefused
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import keep_on

POLL_SECONDS: Final = 0.5
"""Seconds between looks for rows to park, or to make due."""

RESUME_SECONDS: Final = 2.0
"""For how long `Pauses.resume` itself makes rows due; workers go on with what is left then."""


class Pauses:
    """The paused destinations of one database.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._store = PauseStore(database)

    async def pause(self, scope: Scope, destination: str, actor: Actor, reason: str = "") -> bool:
        """Pause a destination; requests that are on their way are finished.

        Args:
            scope: for whom; that of all organizations pauses it for each of them.
            destination: scheme, host and port as rows have it, or a URL.
            actor: who does it.
            reason: why.

        Returns:
            Whether that changed anything. What a person of the dashboard has paused, an operator takes over, and nobody the
            other way round.

        Raises:
            ActionInvalid: the destination is none.
            TooManyPauses: as many destinations are paused as may be.
            StorageUnavailable: the database failed.
        """
        return await self._store.pause(scope, _destination(destination), actor, reason)

    async def resume(self, scope: Scope, destination: str, actor: Actor, reason: str = "") -> bool:
        """Resume a destination: its rows are due at once, in their order.

        Args:
            scope: for whom; what is paused for all organizations, only the scope of all can resume.
            destination: as for `pause`.
            actor: who does it.
            reason: why.

        Returns:
            Whether it was paused.

        Raises:
            ActionForbidden: an operator has paused it, and the actor is a person of the dashboard.
            ActionInvalid: the destination is none.
            StorageUnavailable: the database failed.
        """
        target = _destination(destination)
        if not await self._store.resume(scope, target, actor, reason):
            return False
        end = time.monotonic() + RESUME_SECONDS
        while await self._store.make_due(scope.organization_id or "", target) and time.monotonic() < end:
            pass
        return True

    async def list(
        self, scope: Scope, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> Sequence[Pause]:
        """Return what is paused: of an organization with what is paused for all, or everything.

        Args:
            scope: whose.
            after: organization and destination of the last of the page before.
            limit: how many at the most.
        """
        return [pause_of(row, scope) for row in await self._store.paused(scope, after, limit)]


async def parking_loop(database: Database) -> None:
    """Park the rows of paused destinations, and make due those of resumed ones, until cancelled; the task of a worker.

    Claims leave paused rows out. A backlog of them is parked besides, so that no claim has to pass over it.

    Args:
        database: where they are.
    """
    store = PauseStore(database)
    last: tuple[str, str] | None = None

    async def park() -> float:
        nonlocal last
        paused = await store.paused_targets(last)
        more = await _share(partial(store.park, paused)) if paused else False
        # The others are next: rows that are not parked yet are not claimed either.
        last = paused[-1] if len(paused) == TARGETS else None
        for target in await store.resumed():
            more |= await _share(partial(store.make_due, *target))
        return 0.0 if more else POLL_SECONDS

    await keep_on(park, "pauses", database.outage_log)


async def _share(batch: Callable[[], Awaitable[bool]]) -> bool:
    """Do a batch, and pause for as long as it took: deliveries go on beside it."""
    begun = time.monotonic()
    more = await batch()
    if more:
        await asyncio.sleep(time.monotonic() - begun)
    return more


def _destination(text: str) -> str:
    try:
        return parse_destination(text).key
    except EgressRefused as exc:
        raise ActionInvalid(f"This is no destination: {exc}") from None
