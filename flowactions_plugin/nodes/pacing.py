"""Pacing: run a node at once in an eager walk, at its content step in a deferred one (§3.2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from flowactions_hookspecs import Advanced, Node, NodeResult, Walk
from flowactions_hookspecs.nodes import AdvancedState
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.action import Runner, Write
from flowactions_plugin.nodes.records import Lease, Record, Step, step_of
from flowactions_plugin.nodes.store import DeferredStore
from flowactions_plugin.nodes.webhook import SECRET_FIELD
from flowactions_plugin.storage.database import Connection, Database

log = logging.getLogger("flowactions")

HELD_ENOUGH_SECONDS: Final = 3.0
"""A step is held anew before a node that may begin later than this: the rest of the hold is enough for one node."""

RECOVER_SECONDS: Final = 5.0
RECOVERED_AT_ONCE: Final = 20


HOST_SECONDS: Final = 5.0
"""How long the host may take over taking note of nodes that were recovered."""

INTERRUPTED_KEPT: Final = 1000

Recovered: TypeAlias = Callable[[Walk, str | None, Advanced], Awaitable[None]]


class Pacing:
    """Runs nodes, or records them in deferred walks and runs them when the user gets there.

    Args:
        database: where records and outbox share transactions.
        store: the records.
        runners: node type name → its behaviour.
        recovered: tells the host what `recover` ran; ``None`` when it does not want to know.
    """

    def __init__(
        self,
        database: Database,
        store: DeferredStore,
        runners: Mapping[str, Runner],
        recovered: Recovered | None = None,
    ) -> None:
        self._database = database
        self._store = store
        self._runners = runners
        self._recovered = recovered
        self._interrupted: deque[tuple[Step, str]] = deque(maxlen=INTERRUPTED_KEPT)

    async def reach(self, walk: Walk, node: Node, transaction: Connection | None = None) -> NodeResult:
        """Run the node, or record it against the content step that it precedes."""
        with self._database.using(transaction):
            return await self._reach(walk, node, transaction)

    async def _reach(self, walk: Walk, node: Node, transaction: Connection | None) -> NodeResult:
        try:
            if walk.pacing != "deferred":
                return await self._run(walk, node, transaction)
            # The secret stays on the action's config (§5.3.6).
            config = {name: value for name, value in node.config.items() if name != SECRET_FIELD}
            if await self._store.record(walk, replace(node, config=config), transaction):
                return NodeResult(node_id=node.id, status="recorded")
        except StorageUnavailable as exc:
            return _not_stored(node, exc)
        message = "A node before this one has halted the run, so nothing more of it runs."
        return NodeResult(node_id=node.id, status="skipped", reason="run_halted", message=message, halt=True)

    async def advance(self, walk: Walk, step_id: str | None, transaction: Connection | None = None) -> Advanced:
        """Run what waits for this step, in walk order; a halt ends the whole run.

        However many calls race, one of them runs the step's nodes. The others are told ``running`` while it does, and
        then how that ended. When its process is killed, `recover` goes on where it stopped.
        """
        with self._database.using(transaction):
            return await self._advance(walk, step_id, transaction)

    async def _advance(self, walk: Walk, step_id: str | None, transaction: Connection | None) -> Advanced:
        step = step_of(walk, step_id)
        try:
            lease = await self._hold(step, transaction)
        except StorageUnavailable as exc:
            run, at = printable(walk.run_id), printable(step_id)
            log.error("run %s: what waits for step %s could not be looked up: %s", run, at, exc)  # noqa: TRY400
            return Advanced(state="unavailable")
        if lease.state != "held":
            return Advanced(state=lease.state)
        return await self._run_all(step, lease, transaction)

    async def recover(self) -> int:
        """Run what users have got to and whose processes are gone, and tell the host.

        Returns:
            How many steps there were.

        Raises:
            StorageUnavailable: the database failed; what is left is there for the next time.
        """
        await self._release(None)
        ran = 0
        for step in await self._store.abandoned(RECOVERED_AT_ONCE):
            lease = await self._hold(step, None)
            if lease.state != "held":
                continue
            ran += 1
            log.warning("run %s: %s deferred nodes are taken over", printable(step.run_id), len(lease.records))
            advanced = await self._run_all(step, lease, None)
            await self._tell(lease.records[0].walk, step, advanced)
        return ran

    async def _tell(self, walk: Walk, step: Step, advanced: Advanced) -> None:
        if self._recovered is None or not advanced.results:
            return
        try:
            async with asyncio.timeout(HOST_SECONDS):
                await self._recovered(walk, step.step_id or None, advanced)
        except Exception:
            log.exception("the host failed to take note of recovered nodes of run %s", printable(step.run_id))

    async def _release(self, transaction: Connection | None) -> None:
        """Let go of what this process holds and could not go on with."""
        while self._interrupted:
            await self._store.release(*self._interrupted[0], transaction)
            self._interrupted.popleft()

    async def _hold(self, step: Step, transaction: Connection | None) -> Lease:
        await self._release(transaction)
        token = uuid4().hex
        try:
            return await self._store.hold(step, transaction, token)
        except BaseException:
            # It may be held all the same: the answer was lost.
            self._interrupted.append((step, token))
            raise

    async def _run_all(self, step: Step, lease: Lease, transaction: Connection | None) -> Advanced:
        """Run what was held; where that ends early, the state says so and the results hold what has run."""
        results: list[NodeResult] = []
        try:
            state = await self._run_in_order(lease, transaction, results)
        except StorageUnavailable as exc:
            log.error("run %s: deferred nodes wait for the database: %s", printable(step.run_id), exc)  # noqa: TRY400
            self._interrupted.append((step, lease.records[0].token))
            state = "unavailable"
        except _TakenOver:
            state = await self._state(step, transaction)
        if results and results[-1].halt:
            state = "halted"
        return Advanced(state=state, results=tuple(results))

    async def _run_in_order(
        self, lease: Lease, transaction: Connection | None, results: list[NodeResult]
    ) -> AdvancedState:
        complete = not lease.blocked
        held_at = time.monotonic()
        for record in lease.records:
            if transaction is None and time.monotonic() - held_at > HELD_ENOUGH_SECONDS:
                if not await self._store.go_on_holding(record):
                    raise _TakenOver
                held_at = time.monotonic()
            try:
                await self._run_record(record, transaction, results)
            except (StorageUnavailable, _TakenOver):
                raise
            except Exception:
                # It holds up nobody behind it. Its record stays, is tried again, and is given up in the end.
                log.exception("deferred node %s failed unexpectedly", printable(record.node.id))
                failed = NodeResult(node_id=record.node.id, status="failed", reason="plugin_error")
                results.append(failed)
                complete = False
            if results[-1].halt:
                return "halted"
        return "done" if complete else "unavailable"

    async def _state(self, step: Step, transaction: Connection | None) -> AdvancedState:
        try:
            return await self._store.state(step, transaction)
        except StorageUnavailable:
            return "unavailable"

    async def _run(self, walk: Walk, node: Node, transaction: Connection | None) -> NodeResult:
        action = await self._runners[node.type].prepare(walk, node)
        if action.write is not None:
            await action.write(transaction)
        return await action.result()

    async def _run_record(
        self, record: Record, transaction: Connection | None, results: list[NodeResult]
    ) -> None:
        """Run a node, remove its record, and add its result, also when it has run and its record could not be removed.

        What a transaction can hold is one with the removal. A message is sent first and the record removed
        then, so that a process that is killed in between loses nothing.
        """
        action = await self._runners[record.node.type].prepare(record.walk, record.node)
        if isinstance(action.outcome, NodeResult):
            await self._finish(record, transaction, action.outcome.halt, action.write)
            results.append(action.outcome)
            return
        if transaction is None:
            results.append(await action.result())
            try:
                await self._finish(record, None, results[-1].halt)
            except (StorageUnavailable, _TakenOver) as exc:
                log.warning(
                    "%s node %s has run, but its record stays: %s",
                    record.node.type,
                    printable(record.node.id),
                    exc,
                )
                raise
            return
        await self._finish(record, transaction, halts=False, write=action.write)
        results.append(await action.result())
        if results[-1].halt:
            async with self._database.write(transaction) as connection:
                await self._store.halt(record.walk, connection)

    async def _finish(
        self, record: Record, transaction: Connection | None, halts: bool, write: Write | None = None
    ) -> None:
        async with self._database.write(transaction) as connection:
            if not await self._store.take(record, connection):
                raise _TakenOver
            if write is not None:
                await write(connection)
            if halts:
                await self._store.halt(record.walk, connection)


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
    log.error("%s node %s could not be stored: %s", node.type, printable(node.id), exc)
    message = "The database did not answer, so nothing was queued or recorded."
    return NodeResult(node_id=node.id, status="failed", reason="storage_unavailable", message=message)
