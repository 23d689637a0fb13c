"""Pacing: runs a node at once in an eager walk, at its content step in a deferred one.

In a deferred walk, `reach` writes a record of the node. When the user gets to the step, `advance` leases the step's
records and runs their nodes in order. What a node writes is committed with the end of its record. A node that acts
outside the database acts first, so it runs again if its process ends in between.

Three things may come in between, and the records decide each time who goes on:

- Another call: one has the lease, and the others are told `running`.
- The end of the process: the lease ends, and `recover`, which each worker calls every few seconds, leases the step.
- An outage: this process keeps the step in memory, and tries again every two seconds. The host moves on meanwhile. In
  the host's own transaction nothing is kept: the host is told `unavailable`, and calls again.

The lease is renewed while nodes run. Whoever has lost it stops, and asks the records how the step stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count, takewhile
from typing import Final

from msgspec.structs import replace

from flowactions_hookspecs import Advanced, Deferred, Host, Node, NodeResult, NodeType, Walk, provides
from flowactions_hookspecs.nodes import AdvancedState, plugin_failed
from flowactions_plugin.errors import HostFailed, LeaseLost, StorageUnavailable
from flowactions_plugin.host_answers import ask
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.running import NodeRunner
from flowactions_plugin.nodes.store import LEASE_SECONDS, RENEW_SECONDS, DeferredStore, Lease, Step, step_of
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.leases import renewing
from flowactions_plugin.storage.outages import answer_to, reason_of
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.spans import note_result
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions")

RECOVERED_AT_ONCE: Final = 20

HOST_SECONDS: Final = 5.0
"""How long `Host.nodes_recovered` may take."""

REPEAT_SECONDS: Final = 2.0
"""After which steps are tried again that the database did not let this process read, run or release."""

MOST_PENDING: Final = 100_000
"""How many steps are kept: an hour without the database and thirty users a second are as many. Then the oldest is forgotten."""


class Pacing:
    """Runs nodes, or records them in deferred walks and runs them when the user gets there (§3.2).

    Args:
        database: where records and outbox share transactions.
        store: the records.
        node_types: returns name → node type; of all plugins.
        host: learns what `recover` ran, and has the secret fields of deferred nodes.
        telemetry: traces nodes; ``None``: nothing does.
    """

    def __init__(
        self,
        database: Database,
        store: DeferredStore,
        node_types: Callable[[], Mapping[str, NodeType]],
        host: Host,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.database = database
        self._store = store
        self._node_types = node_types
        self._host = host
        self._runner = NodeRunner(database, store, host)
        telemetry = telemetry or Telemetry()
        self._spans, self._meters = telemetry.spans, telemetry.meters
        self._pending: dict[Step, int] = {}  # with numbers, in whose order users got to them
        self._running: dict[Step, int] = {}
        self._numbers = count()
        self._repeating: asyncio.Task[None] | None = None
        self._forgets = False  # until no step is pending

    async def reach(self, walk: Walk, node: Node, transaction: Transaction | None = None) -> NodeResult:
        """Run the node, or record it against the content step that it precedes."""
        with self.database.transactions.using(transaction):
            try:
                if isinstance(walk.pacing, Deferred):
                    return await self._record(walk, node, walk.pacing.next_step_id, transaction)
                with self._spans.node(walk, node) as span:
                    result = await self._runner.run(self._node_types()[node.type], walk, node, transaction)
                    note_result(span, result)
                    return result
            except StorageUnavailable as exc:
                self._meters.count(names.REFUSED, reason=reason_of(exc))
                log.error(  # noqa: TRY400
                    "%s node %s could not be stored: %s",
                    node.type,
                    printable(node.id),
                    exc,
                    extra={"event": "node.not_stored"},
                )
                reason, message = "storage_unavailable", answer_to(exc)
                return NodeResult(node_id=node.id, status="failed", reason=reason, message=message)

    async def _record(
        self, walk: Walk, node: Node, step_id: str | None, transaction: Transaction | None
    ) -> NodeResult:
        """Record a node without its secrets, which stay on the action's config (§5.3.6)."""
        secret = self._node_types()[node.type].secret_fields
        config = {name: value for name, value in node.config.items() if name not in secret}
        async with self.database.answering():
            answer = await self._store.record(walk, replace(node, config=config), step_id, transaction)
        if answer == "recorded":
            return NodeResult(node_id=node.id, status="recorded")
        message = "This node has already run at this step of the run. It does not run again."
        if halted := answer == "run_halted":
            message = "A node before this one has halted the run, so nothing more of it runs."
        return NodeResult(node_id=node.id, status="skipped", reason=answer, message=message, halt=halted)

    async def advance(
        self, walk: Walk, step_id: str | None, transaction: Transaction | None = None
    ) -> Advanced:
        """Run what waits for this step, in walk order; a halt ends the whole run.

        However many calls race, one of them runs the step's nodes. The others get ``running`` while it does, and
        then how that ended. Without the host's transaction, what could not be read or run is repeated here, and the
        host moves on.
        """
        with self.database.transactions.using(transaction):
            wanted = step_of(walk, step_id)
            steps = [wanted]
            if transaction is None:
                # Steps of the run that are running or pending come first, in the order in which the user got to them.
                before = takewhile(wanted.__ne__, self._in_order())
                steps[:0] = [step for step in before if step[:-1] == wanted[:-1]]
            results: list[NodeResult] = []
            for index, step in enumerate(steps):
                try:
                    async with self._leased(step, transaction) as lease:
                        advanced = await self._run_all(step, lease, transaction)
                except StorageUnavailable as exc:
                    log.error(  # noqa: TRY400
                        "run %s: the records of step %s could not be read: %s",
                        printable(step.run_id),
                        printable(step.step_id or None),
                        exc,
                        extra={"event": "deferred.unreadable_now"},
                    )
                    if transaction is not None:
                        return Advanced(state="unavailable")
                    for later in steps[index:]:
                        self._repeat_later(later)
                    break
                results.extend(advanced.results)
                if transaction is not None or advanced.state in {"halted", "running"}:
                    return replace(advanced, results=tuple(results))
                if step in self._pending:  # the database did not let it run: what is behind it waits, too
                    for later in steps[index + 1 :]:
                        self._repeat_later(later)
                    break
            return Advanced(state="done", results=tuple(results))

    @asynccontextmanager
    async def _leased(self, step: Step, transaction: Transaction | None = None) -> AsyncIterator[Lease]:
        """Lease a step for one call of this process at a time; then it is no longer pending."""
        if step in self._running:
            yield Lease("running")
            return
        self._running[step] = self._pending.get(step, next(self._numbers))
        try:
            try:
                async with self.database.answering():
                    lease = await self._store.lease(step, transaction)
            except BaseException:
                # It may be leased all the same: the answer was lost. In a host's transaction, the host decides.
                if transaction is None:
                    self._repeat_later(step)
                raise
            self._pending.pop(step, None)
            yield lease
        finally:
            del self._running[step]

    def _repeat_later(self, step: Step) -> None:
        """Keep a step that could not be read, run or released, in its place; begin to repeat."""
        self._pending.setdefault(step, self._running.get(step, next(self._numbers)))
        if len(self._pending) > MOST_PENDING:
            del self._pending[min(self._pending, key=self._pending.__getitem__)]
            if not self._forgets:
                self._forgets = True
                log.error(
                    "more than %s steps wait for the database: nodes of the oldest do not run",
                    MOST_PENDING,
                    extra={"event": "deferred.forgotten"},
                )
        if self._repeating is None or self._repeating.done():
            self._repeating = asyncio.create_task(self._keep_repeating())

    async def _keep_repeating(self) -> None:
        """Repeat steps until none is pending."""
        while self._pending:
            await asyncio.sleep(REPEAT_SECONDS)
            await self._repeat()
        self._forgets = False

    async def _repeat(self) -> None:
        """Run what is pending, as far as the database answers: of a run, nothing behind a step that is running or still pending."""
        waiting: set[tuple[str, ...]] = set()
        with suppress(StorageUnavailable):
            for step in self._in_order():
                if step[:-1] in waiting:
                    continue
                if step in self._pending:  # unless a call of the host has run it meanwhile
                    await self._recover(step)
                if step in self._pending or step in self._running:
                    waiting.add(step[:-1])

    def _in_order(self) -> list[Step]:
        """Return what is running or pending, in the order in which users got to it."""
        numbers = self._running | self._pending
        return sorted(numbers, key=numbers.__getitem__)

    async def aclose(self) -> None:
        """End the repeating, with a last attempt."""
        # This task stands for the one that repeats, so that no other begins to.
        repeating, self._repeating = self._repeating, asyncio.current_task()
        if repeating is not None:
            repeating.cancel()
            await asyncio.wait({repeating})
        await self._repeat()
        self._repeating = None
        if self._pending:
            log.error(
                "%s steps could not be read until the end of this process: their nodes do not run",
                len(self._pending),
                extra={"event": "deferred.never_read"},
            )
            self._pending.clear()

    async def recover(self) -> int:
        """Run steps whose processes have ended, and notify the host; return how many there were.

        Raises:
            StorageUnavailable: the database failed; what is left is there for the next time.
        """
        return sum([await self._recover(step) for step in await self._store.expired(RECOVERED_AT_ONCE)])

    async def recover_more(self) -> float | None:
        """Recover as `recover`; return 0 when there may be more."""
        return 0.0 if await self.recover() >= RECOVERED_AT_ONCE else None

    async def _recover(self, step: Step) -> bool:
        """Run a step without its user, and notify the host; return whether anything was there to run."""
        run = printable(step.run_id)
        async with self._leased(step) as lease:
            if not lease.records:
                return False
            log.warning(
                "run %s: %s deferred nodes run without their user",
                run,
                len(lease.records),
                extra={"event": "deferred.reclaimed"},
            )
            advanced = await self._run_all(step, lease)
        if advanced.results and provides(self._host, "nodes_recovered"):
            try:
                async with asyncio.timeout(HOST_SECONDS):
                    walk = lease.records[0].walk
                    await ask(self._host, "nodes_recovered", walk, step.step_id or None, advanced)
            except Exception:
                method = f"{type(self._host).__name__}.nodes_recovered"
                log.exception("%s failed for run %s", method, run, extra={"event": "host.method_failed"})
        return True

    async def _run_all(self, step: Step, lease: Lease, transaction: Transaction | None = None) -> Advanced:
        """Run what was leased; where that ends early, the state says so and the results hold what has run."""
        if not lease.records:
            return Advanced(state=lease.state)
        results: list[NodeResult] = []
        state: AdvancedState = "unavailable"
        retries = counts = False
        try:
            try:
                renews = renewing(lambda: self._store.renew(step), LEASE_SECONDS, RENEW_SECONDS)
                # A host's transaction keeps the lease by itself.
                async with renews if transaction is None else nullcontext():
                    complete = await self._run_in_order(lease, transaction, results)
                counts = retries = not complete
                if complete:
                    state = lease.state
            except LeaseLost:
                # Another process runs them now, has run them, or has removed them.
                state = await self._store.state(step, transaction)
        except (StorageUnavailable, HostFailed) as exc:
            run = printable(step.run_id)
            log.error("run %s: deferred nodes wait: %s", run, exc, extra={"event": "deferred.waits"})  # noqa: TRY400
            retries = isinstance(exc, HostFailed)
            if not retries and transaction is None:
                self._repeat_later(step)
        except asyncio.CancelledError:
            if transaction is None:
                self._repeat_later(step)
            raise
        if results and results[-1].halt:
            state = "halted"
        elif retries:
            # Otherwise the lease expires. What has run is reported in any case.
            with suppress(Exception):
                async with self.database.answering():
                    await self._store.release(step, transaction, counts=counts)
        return Advanced(state=state, results=tuple(results))

    async def _run_in_order(
        self, lease: Lease, transaction: Transaction | None, results: list[NodeResult]
    ) -> bool:
        """Run the records one after the other, up to one that halts; return whether none is left to be run again."""
        complete = True
        for record in lease.records:
            try:
                node_type = self._node_types()[record.node_type]
                with self._spans.node(record.walk, record.node) as span:
                    await self._runner.run_record(node_type, record, transaction, results)
                    note_result(span, results[-1])
            except (StorageUnavailable, HostFailed, LeaseLost):
                raise
            except Exception:
                # It does not keep those behind it. Its record stays, is tried again, and is dropped in the end.
                said = printable(record.node_id)
                log.exception("deferred node %s failed unexpectedly", said, extra={"event": "deferred.failed"})
                results.append(plugin_failed(record.node_id))
                complete = False
            if results[-1].halt:
                break
        return complete
