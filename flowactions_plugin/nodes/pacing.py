"""Pacing: run a node at once in an eager walk, at its content step in a deferred one (§3.2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from flowactions_hookspecs import Node, NodeResult, Walk
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes.action import Action, Runner
from flowactions_plugin.nodes.store import DeferredStore, Record
from flowactions_plugin.nodes.webhook import SECRET_FIELD
from flowactions_plugin.storage.database import Database

log = logging.getLogger("flowactions")


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

    async def reach(self, walk: Walk, node: Node) -> NodeResult:
        """Run the node, or record it against the content step that it precedes."""
        try:
            if walk.pacing == "deferred":
                # The secret stays on the action's config (§5.3.6).
                config = {name: value for name, value in node.config.items() if name != SECRET_FIELD}
                await self._store.record(walk, replace(node, config=config))
                return NodeResult(node_id=node.id, status="recorded")
            return await self._run(walk, node)
        except StorageUnavailable as exc:
            return _not_stored(node, exc)

    async def advance(self, walk: Walk, step_id: str | None) -> Sequence[NodeResult]:
        """Run what waits for this step, in walk order; a halt ends the whole run.

        However many calls race, each node runs once. Only a process that was killed while it sent a
        message leaves the record, and a later call sends again.
        """
        results: list[NodeResult] = []
        for record in await self._store.waiting(walk, step_id):
            then = replace(record.walk, connection=walk.connection)
            try:
                result = await self._run(then, record.node, record)
            except StorageUnavailable as exc:
                result = _not_stored(record.node, exc)
            except _AlreadyRun:
                continue
            results.append(result)
            if result.halt:
                await self._store.forget(walk)
                break
        return results

    async def _run(self, walk: Walk, node: Node, record: Record | None = None) -> NodeResult:
        action = await self._runners[node.type].prepare(walk, node)
        sends = not isinstance(action.outcome, NodeResult)
        if record is not None and sends and walk.connection is None:
            return await self._send_held(record, action)
        if record is None and walk.connection is None:
            if action.write is not None:
                await action.write(None)
        elif action.write is not None or record is not None:
            async with self._database.write(walk.connection) as connection:
                if record is not None and not await self._store.take(record, connection):
                    raise _AlreadyRun
                if action.write is not None:
                    await action.write(connection)
        return await action.result()

    async def _send_held(self, record: Record, action: Action) -> NodeResult:
        """Send first and remove the record then: a process that is killed in between loses nothing."""
        if not await self._store.hold(record):
            raise _AlreadyRun
        result = await action.result()
        try:
            await self._store.drop(record)
        except StorageUnavailable as exc:
            log.warning("%s node %s has run, but its record stays: %s", record.node.type, record.node.id, exc)
        return result


class _AlreadyRun(Exception):
    """Another caller took the record first."""


def _not_stored(node: Node, exc: StorageUnavailable) -> NodeResult:
    log.error("%s node %s could not be stored: %s", node.type, node.id, exc)
    message = "The database did not answer, so nothing was queued or recorded."
    return NodeResult(node_id=node.id, status="failed", reason="storage_unavailable", message=message)
