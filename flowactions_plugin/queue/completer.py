"""Writes the outcomes of claimed deliveries, many in one statement, and notifies the host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.queue.claimed import Attempted, ClaimedDelivery, Completion, End, Ended, Returned
from flowactions_plugin.queue.delivery_telemetry import Load, log_dead, log_lost
from flowactions_plugin.queue.hand import Hand
from flowactions_plugin.queue.host_calls import DeliveryFinished, tell_host
from flowactions_plugin.queue.outcomes import OutcomeStore
from flowactions_plugin.queue.rules import DEAD, FINISHED
from flowactions_plugin.queue.sequences import Sequences

log = logging.getLogger("flowactions.outbox")

LINGER_SECONDS: Final = 0.005
"""How long an outcome waits for others, so that one statement writes them all."""

BATCH: Final = 500

MOST_TELLING: Final = 10
"""How many batches of ends the host may be told of at once, before the next batch of outcomes is written."""

LIVE_STATES: Final = ("pending", "retrying")

PURGED: Final = "purged"
"""The reason of a delivery whose organization was purged while it was claimed."""

Observe: TypeAlias = Callable[[Sequence[Completion]], None]
"""Is told of ends of claims that were written: quick, and raises nothing."""


class Completer:
    """Owns the outcomes that wait to be written.

    What the database did not accept is kept, and is written before the worker claims anything else: however long the
    database is away, this worker sends nothing again that it has sent. What writes raises `StorageUnavailable` then.

    Args:
        store: the queue.
        delivery_finished: notifies the host of a delivery that has ended; ``None`` when it does not want to know.
        observers: are told of each end that was written, with an attempt or without one.
        sequences: releases what waited for a delivery that has ended; ``None``: a look does.

    Attributes:
        hand: what the worker has in hand: what ends there is written here.
        load: of the worker; what hangs is forgotten when an organization was purged.
    """

    def __init__(
        self,
        store: OutcomeStore,
        delivery_finished: DeliveryFinished | None,
        observers: Sequence[Observe] = (),
        sequences: Sequences | None = None,
    ) -> None:
        self._store = store
        self._observers = observers
        self._sequences = sequences
        self._delivery_finished = delivery_finished
        self._telling: set[asyncio.Future[Any]] = set()
        self._waiting: list[Completion] = []
        self._writing = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._failed = False
        self.hand = Hand()
        self.load = Load()

    @property
    def unwritten(self) -> int:
        """How many outcomes of attempts wait to be written."""
        return sum(isinstance(each, Attempted) for each in self._waiting)

    @property
    def behind(self) -> bool:
        """Whether something has to be written before anything else is claimed."""
        return self._failed or len(self._waiting) > BATCH

    def complete(self, *completions: Completion) -> None:
        """Accept ends of claims; they are written a moment later, together with others. `flush` waits for them."""
        for each in completions:
            self.hand.end(each.delivery)
            self._waiting.append(each)
            if (
                isinstance(each, Attempted)
                and self._sequences is not None
                and kind_of(each.delivery.destination) == CHAT
            ):
                # Before it is written, so that no release is earlier.
                self._sequences.posted(each.delivery.sequence)
        if self._lingering is None:
            self._lingering = asyncio.create_task(self._write_soon())

    async def disclaim(self, claimed: Sequence[ClaimedDelivery]) -> None:
        """Give back claims that the database may or may not have written, and leave alone what was claimed since."""
        with suppress(StorageUnavailable):  # then they are due when their leases have ended
            await self._store.complete([*map(Returned, claimed)])

    async def flush(self) -> None:
        """Write everything that waits, and wait until the next ones were released and the host was notified."""
        await self.write()
        if self._sequences is not None:
            await self._sequences.settled()
        if self._telling:
            await asyncio.wait(self._telling)

    async def write(self) -> None:
        """Write everything that waits."""
        async with self._writing:
            while self._waiting:
                batch = self._waiting[:BATCH]
                try:
                    ends = await self._store.complete(batch)
                except BaseException:
                    self._failed = True
                    raise
                del self._waiting[: len(batch)]
                await self._settle(batch, ends)
            self._failed = False

    async def _settle(self, batch: Sequence[Completion], ends: Mapping[str, End]) -> None:
        """Tell the log, the observers and the host what has become of a batch.

        What this worker has claimed again meanwhile is written again, under its later claim.
        """
        written: list[Completion] = []
        ended: list[Completion] = []
        if self._sequences is not None:
            # A row that is given back, and was cancelled meanwhile, has ended, too.
            self._sequences.ended(
                sequence
                for each in batch
                if (sequence := each.delivery.sequence) is not None
                and ends[each.delivery.id].detail not in LIVE_STATES
            )
        for each in batch:
            delivery, end = each.delivery, ends[each.delivery.id]
            if end.kind == "again":
                self.hand.again(delivery, end.detail)
                later = msgspec.structs.replace(delivery, token=end.detail)
                self._waiting.append(msgspec.structs.replace(each, delivery=later))
                continue
            self.hand.written(delivery)
            if end.kind == "purged":
                self.load.limits.forget()
                ended.append(_purged(each))
            if isinstance(each, Returned):
                continue
            if end.kind == "written":
                written.append(each)
            else:
                log_lost(delivery.id, end)
        for done in written:
            if done.status == "dead":
                log_dead(done.delivery.id, done.delivery.destination, done.reason or "")
        for observe in self._observers if written else ():
            observe(written)
        await self._tell([*ended, *(each for each in written if each.status in FINISHED)])

    async def _tell(self, ended: Sequence[Completion]) -> None:
        """Begin to notify the host; wait only while too many batches are pending."""
        if self._delivery_finished is None or not ended:
            return
        while len(self._telling) >= MOST_TELLING:
            await asyncio.wait(self._telling, return_when=asyncio.FIRST_COMPLETED)
        calls = asyncio.gather(*(tell_host(self._delivery_finished, each) for each in ended))
        self._telling.add(calls)
        calls.add_done_callback(self._telling.discard)

    async def _write_soon(self) -> None:
        """Write while there is anything; after a failure the worker decides when to try again."""
        try:
            while self._waiting and not self._failed:
                await asyncio.sleep(LINGER_SECONDS)
                with suppress(StorageUnavailable):
                    await self.write()
        except Exception:
            log.exception(
                "outcomes of deliveries could not be written; it is tried again",
                extra={"event": "outcomes.not_written"},
            )
        finally:
            self._lingering = None


def _purged(completion: Completion) -> Completion:
    """Return what the host is told of a delivery whose row was removed by a purge."""
    if isinstance(completion, Attempted):
        outcome = msgspec.structs.replace(completion.outcome, error=PURGED)
        return Attempted(completion.delivery, outcome, DEAD)
    return Ended(completion.delivery, PURGED)
