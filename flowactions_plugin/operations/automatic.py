"""Pauses destinations that fail, by an operator's setting, and resumes them when a delivery arrives (decision 70).

In between, workers probe them: see `queue.probes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from sqlalchemy import Row, Select, and_, func, or_, select

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.clock import to_utc
from flowactions_plugin.errors import ActionInvalid, TooManyPauses
from flowactions_plugin.insights.search import is_paused
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.queue.probes import BY_ITSELF
from flowactions_plugin.settings.readers import AutoPause
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, FAILING, destinations, pauses
from flowactions_plugin.watch.statistics_store import origin_of

AT_ONCE: Final = 50
"""How many destinations a look pauses or resumes at the most."""


class AutomaticPauses:
    """Pauses and resumes destinations of one database. One worker does each, with any number of workers.

    Args:
        database: where they are.
        rule: when a destination is paused; ``None``: never. Those that are paused are resumed all the same.
        tell: learns of each step.
    """

    def __init__(
        self, database: Database, rule: AutoPause | None, tell: Callable[[DeliveryAlert], None]
    ) -> None:
        self._database = database
        self._operations = Operations(database)
        self._rule = rule
        self._tell = tell

    async def look(self) -> float | None:
        """Resume what has arrived, and pause what fails; return 0 when there may be more.

        Raises:
            StorageUnavailable: the database failed.
        """
        done = [await self._resume(row) for row in await self._database.rows(self._database.built(_recovered))]
        if self._rule is not None:
            failing = self._database.built(_failing, self._rule)
            done += [await self._pause(row) for row in await self._database.rows(failing)]
        return 0.0 if sum(done) >= AT_ONCE else None

    async def _pause(self, row: Row[Any]) -> bool:
        since = to_utc(row.failing_since)
        reason = f"{row.failures_in_row} failures in a row since {since:%Y-%m-%d %H:%M:%S}Z, the last one: {row.last_error}"
        try:
            paused = await self._operations.pause(
                Scope(row.organization_id), row.destination, AUTOMATIC, reason, only=row.failures_in_row
            )
        except (TooManyPauses, ActionInvalid):
            return False
        if paused:
            failures, error = row.failures_in_row, row.last_error
            self._tell(_alert(row, "paused", failing_since=since, failures=failures, last_error=error))
        return paused

    async def _resume(self, row: Row[Any]) -> bool:
        reason = "a delivery has arrived"
        scope = Scope(row.organization_id)
        try:
            resumed = await self._operations.resume(
                scope, row.destination, AUTOMATIC, reason, only=row.paused_at
            )
        except ActionInvalid:
            return False
        if resumed:
            self._tell(_alert(row, "resumed"))
        return resumed


def _alert(row: Row[Any], kind: Literal["paused", "resumed"], **more: Any) -> DeliveryAlert:
    place = {"organization_id": row.organization_id, "destination": row.destination}
    return DeliveryAlert(**place, kind=kind, origin=origin_of(row.failing_origin), **more)


def _failing(_sql: Dialect, rule: AutoPause) -> Select[Any]:
    """Select destinations that have failed as often and for as long as the rule says, and are not paused."""
    health = destinations.c
    return (
        select(
            health.organization_id,
            health.destination,
            health.failing_since,
            health.failures_in_row,
            health.last_error,
            health.failing_origin,
        )
        .where(
            FAILING,
            # A pause of alerts would be one for all organizations.
            health.organization_id != inline(EVERY_ORGANIZATION),
            health.failures_in_row >= inline(rule.failures),
            health.last_failure_at - health.failing_since >= inline(rule.seconds * 1000),
            ~is_paused(health.organization_id, health.destination),
        )
        # Some may be of organizations that have too many pauses: these keep no others from their turn.
        .order_by(func.random())
        .limit(inline(AT_ONCE))
    )


def _recovered(_sql: Dialect) -> Select[Any]:
    """Select what is paused automatically and has not failed since, or of which no health is kept any more."""
    health = destinations.c
    same = and_(health.organization_id == pauses.c.organization_id, health.destination == pauses.c.destination)
    return (
        select(pauses.c.organization_id, pauses.c.destination, pauses.c.paused_at, health.failing_origin)
        .join_from(pauses, destinations, same, isouter=True)
        .where(BY_ITSELF, or_(health.failing_since.is_(None), health.last_success_at >= pauses.c.paused_at))
        .limit(inline(AT_ONCE))
    )
