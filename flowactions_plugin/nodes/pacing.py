"""Pacing: run a node at once in an eager walk, at its content step in a deferred one (§3.2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from flowactions_hookspecs import Node, NodeResult, Walk
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes.action import Runner, Write
from flowactions_plugin.nodes.store import DeferredStore, Record, step_of
from flowactions_plugin.nodes.webhook import SECRET_FIELD
from flowactions_plugin.storage.database import Connection, Database

log = logging.getLogger("flowactions")

HELD_ENOUGH_SECONDS: Final = 3.0
"""A step is held anew before a node that may begin later than this: the rest of the hold is enough for one node."""

RECOVER_SECONDS: Final = 5.0
RECOVERED_AT_ONCE: Final = 20


class Pacing:
    """Runs nodes, or records them in deferred walks and runs them when the user gets there.

    Args:
        database: where records and outbox share transactions.
        store: the records.
        runners: node type name → its behaviour.
    """

    def __init__(self, database: Database, store: DeferredStore, runners: Mapping[str, Runner]) -> None:
        self._database = database
        self._store = store
        self._runners = runners

    async def reach(self, walk: Walk, node: Node, transaction: Connection | None = None) -> NodeResult:
        """Run the node, or record it against the content step that it precedes."""
        self._database.check_transaction(walk.connection)
        try:
            if walk.pacing == "deferred":
                # The secret stays on the action's config (§5.3.6).
                config = {name: value for name, value in node.config.items() if name != SECRET_FIELD}
                await self._store.record(walk, replace(node, config=config), transaction)
                return NodeResult(node_id=node.id, status="recorded")
            return await self._run(walk, node, transaction)
        except StorageUnavailable as exc:
            return _not_stored(node, exc)

    async def advance(
        self, walk: Walk, step_id: str | None, transaction: Connection | None = None
    ) -> Sequence[NodeResult]:
        """Run what waits for this step, in walk order; a halt ends the whole run.

        However many calls race, one of them runs the step's nodes, and the others have nothing to report.
        When its process is killed, `recover` goes on where it stopped.
        """
        try:
            records = await self._store.hold(step_of(walk, step_id), transaction)
        except StorageUnavailable as exc:
            log.error("run %s: what waits for step %s could not be looked up: %s", walk.run_id, step_id, exc)  # noqa: TRY400
            message = "The database did not answer, so nothing was run. Advance to the step once more."
            return [NodeResult(node_id="", status="failed", reason="storage_unavailable", message=message)]
        return await self._run_all(records, transaction)

    async def recover(self) -> int:
        """Run what users have got to and whose processes are gone.

        Returns:
            How many steps there were.

        Raises:
            StorageUnavailable: the database failed; what is left is there for the next time.
        """
        steps = await self._store.abandoned(RECOVERED_AT_ONCE)
        for step in steps:
            node_id = await self._store.give_up(step)
            if node_id is not None:
                log.error(
                    "node %s of run %s is given up: each process that ran it was gone", node_id, step.run_id
                )
            records = await self._store.hold(step)
            if records:
                log.warning("run %s: %s deferred nodes are taken over", step.run_id, len(records))
            await self._run_all(records, None)
        return len(steps)

    async def _run_all(self, records: Sequence[Record], transaction: Connection | None) -> list[NodeResult]:
        results: list[NodeResult] = []
        held_at = time.monotonic()
        for record in records:
            try:
                if transaction is None and time.monotonic() - held_at > HELD_ENOUGH_SECONDS:
                    if not await self._store.go_on_holding(record):
                        break
                    held_at = time.monotonic()
                result = await self._run_record(record, transaction)
            except StorageUnavailable as exc:
                result = _not_stored(record.node, exc)
            except _TakenOver:
                break
            except Exception:
                # It holds up nobody behind it. Its record stays, is tried again, and is given up in the end.
                log.exception("deferred node %s failed unexpectedly", record.node.id)
                result = NodeResult(node_id=record.node.id, status="failed", reason="plugin_error")
            results.append(result)
            if result.halt:
                break
        return results

    async def _run(self, walk: Walk, node: Node, transaction: Connection | None) -> NodeResult:
        action = await self._runners[node.type].prepare(walk, node)
        if action.write is not None:
            await action.write(transaction)
        return await action.result()

    async def _run_record(self, record: Record, transaction: Connection | None) -> NodeResult:
        """Run a node and remove its record.

        What a transaction can hold is one with the removal. A message is sent first and the record removed
        then, so that a process that is killed in between loses nothing.
        """
        action = await self._runners[record.node.type].prepare(record.walk, record.node)
        if not isinstance(action.outcome, NodeResult) and transaction is None:
            result = await action.result()
            try:
                await self._finish(record, transaction, result.halt)
            except (StorageUnavailable, _TakenOver) as exc:
                log.warning(
                    "%s node %s has run, but its record stays: %s", record.node.type, record.node.id, exc
                )
            return result
        known = action.outcome if isinstance(action.outcome, NodeResult) else None
        await self._finish(record, transaction, known is not None and known.halt, action.write)
        result = known or await action.result()
        if known is None and result.halt:
            async with self._database.write(transaction) as connection:
                await self._store.forget(record.walk, connection)
        return result

    async def _finish(
        self, record: Record, transaction: Connection | None, halts: bool, write: Write | None = None
    ) -> None:
        async with self._database.write(transaction) as connection:
            if not await self._store.take(record, connection):
                raise _TakenOver
            if write is not None:
                await write(connection)
            if halts:
                await self._store.forget(record.walk, connection)


async def keep_recovering(pacing: Pacing) -> None:
    """Recover at once and then every few seconds, until cancelled."""
    away = False
    while True:
        try:
            while await pacing.recover() == RECOVERED_AT_ONCE:
                pass
            away = False
        except StorageUnavailable as exc:
            if not away:
                log.warning("deferred nodes wait for the database: %s", exc)
            away = True
        await asyncio.sleep(RECOVER_SECONDS)


class _TakenOver(Exception):
    """This process was too slow, and another one has taken the record over."""


def _not_stored(node: Node, exc: StorageUnavailable) -> NodeResult:
    log.error("%s node %s could not be stored: %s", node.type, node.id, exc)
    message = "The database did not answer, so nothing was queued or recorded."
    return NodeResult(node_id=node.id, status="failed", reason="storage_unavailable", message=message)
