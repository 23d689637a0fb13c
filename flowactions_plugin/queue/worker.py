"""The delivery worker: one loop, whose claim strategy decides when to claim.

In each round, the worker writes what the database has not accepted before it claims anything: so it never claims what it has sent.
Then the strategy claims and begins deliveries: `ContinuousClaims` whenever slots are free, `ScheduledClaims` once a tick. An attempt
runs by itself, and its end is written together with others.

What may end its worker, a row whose leases have ended three times, is sent alone, with everything else written.

A worker that is stopped gives back what it has not begun, finishes what is in flight within its deadline, and writes the rest. A
worker that is killed does none of this: its leases end, and another worker claims its rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.continuous import until_set
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.probes import Probes
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.storage.outages import outage_delay, together

log = logging.getLogger("flowactions.outbox")

PART: Final = "deliveries"
"""Names the worker in the log of outages."""

T = TypeVar("T")


class ClaimStrategy(Protocol):
    """Decides when and how much to claim, and runs the attempts of the claimed rows."""

    async def run_once(self) -> float:
        """Write what has to be written before; then claim if it is time, and execute what was claimed, or begin to.

        Returns:
            The seconds until it may be time again.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until there is reason to claim earlier."""

    async def quiesce(self) -> None:
        """Give back deliveries that have not begun, and wait until nothing is in flight."""


class Worker:
    """Delivers the rows of the outbox (§8).

    Args:
        store: the queue.
        executor: executes what is claimed.
        strategy: claims.
        timing: when rows are sent in quarantine, and how often a database that is away is tried.
        tell: learns of each probe, as it begins.

    Attributes:
        probes: sends probes while the worker runs.
    """

    def __init__(
        self,
        store: ClaimStore,
        executor: Executor,
        strategy: ClaimStrategy,
        timing: Timing = Timing(),  # noqa: B008  immutable
        tell: Callable[[DeliveryAlert], None] = lambda _alert: None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._completer = executor.completer
        self._strategy = strategy
        self._timing = timing
        self.probes = Probes(store, executor, tell)
        self._quarantine_at = 0.0
        self._stop_now = asyncio.Event()

    async def run(self) -> None:
        """Deliver until cancelled.

        While the database is away, the worker tries again with backoff.

        However it ends, the attempts in flight are finished within their deadline and their outcomes are written;
        what was claimed and not begun is given back.
        """
        self._executor.stopping = False
        self._stop_now.clear()
        # A row that ends its worker at once must not keep it from delivering the others, however often it is restarted.
        self._quarantine_at = asyncio.get_running_loop().time() + self._timing.quarantine_seconds
        outage_log, failures = self._store.database.outage_log, 0
        try:
            while True:
                try:
                    pause = await self._shielded(self.run_once())
                except StorageUnavailable as exc:
                    failures += 1
                    self._store.contact.failed()
                    outage_log.failed(PART, exc)
                    await asyncio.sleep(self._outage_delay(failures))
                else:
                    failures = 0
                    outage_log.worked(PART)
                    await self._strategy.wait(together(pause))
        except asyncio.CancelledError:
            self._stop_now.set()
            raise
        finally:
            outage_log.ended(PART)
            await self._shielded(self._drain())

    def _outage_delay(self, failures: int) -> float:
        return outage_delay(failures, self._timing.wait_seconds, random.random())  # noqa: S311  no secret

    async def run_once(self) -> float:
        """Do what is due now.

        Returns:
            The seconds until something may be due again.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._quarantine()
        pause = await self._strategy.run_once()
        return min(pause, max(0.0, self._quarantine_at - asyncio.get_running_loop().time()))

    async def _quarantine(self) -> None:
        """Send a row in quarantine, if it is time and there is one: alone, with nothing else in flight."""
        clock = asyncio.get_running_loop().time
        began, pause = clock(), self._timing.quarantine_seconds
        if began < self._quarantine_at:
            return
        if await self._store.any_quarantined():
            await self._strategy.quiesce()
            await self._completer.flush()
            await self._executor.settle()
            with self._executor.hand.claiming():
                delivery = None if self._executor.stopping else await self._store.claim_quarantined()
                taken = [] if delivery is None else self._executor.take([delivery])
            for each in taken:
                async with self.probes.none():
                    await self._executor.execute_alone(each)
                    await self._completer.flush()
            # This process has survived the round, so the next one comes sooner: rounds take a tenth of the time.
            pause = min(pause, 9 * (clock() - began))
        self._quarantine_at = clock() + pause

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a piece of work to its end even when cancelled meanwhile, then raise the cancellation.

        A second cancellation, by a process that ends without it, cancels the work; it is never left behind unfinished.
        """
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._executor.stopping = True
            self._stop_now.set()
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:
                    task.cancel()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning(
                    "stopping although not all is done: %s",
                    printable(error, message=True),
                    extra={"event": "worker.stops_early"},
                )
            raise

    async def _drain(self) -> None:
        """Finish what is in flight and write the outcomes.

        A worker that ended by itself waits for a database that is away, until it is cancelled.
        """
        self._executor.stopping = True
        await self._strategy.quiesce()
        async with self.probes.none():
            pass
        for failures in count(1):
            try:
                await self._completer.flush()
                break
            except StorageUnavailable:
                await until_set(self._stop_now, self._outage_delay(failures))
                if self._stop_now.is_set():
                    break
            except Exception:
                log.exception(
                    "outcomes of deliveries could not be written", extra={"event": "outcomes.not_written"}
                )
                break
        if self._completer.unwritten:
            log.warning(
                "the outcomes of %s deliveries could not be written; they will be sent again under the same id",
                self._completer.unwritten,
                extra={"event": "outcomes.lost"},
            )
