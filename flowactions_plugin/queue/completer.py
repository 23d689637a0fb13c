"""Writes the outcomes of claimed deliveries, many in one statement, and notifies the host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.errors import RowInvalid, StorageUnavailable
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.queue.host_calls import DeliveryFinished, HostNotifier
from flowactions_plugin.queue.limits import Standing
from flowactions_plugin.queue.log_lines import log_dead, log_lost
from flowactions_plugin.queue.outcome_store import OutcomeStore
from flowactions_plugin.queue.rules import DEAD, FINISHED, failure_reason

log = logging.getLogger("flowactions.outbox")

LINGER_SECONDS: Final = 0.005
"""How long an outcome waits for others, so that one statement writes them all."""

BATCH: Final = 500

PURGED: Final = "purged"
"""The reason of a delivery whose organization was purged while it was claimed."""

Observe: TypeAlias = Callable[[Sequence[Completion]], None]
"""Is told of ends of claims that were written: quick, and raises nothing."""


class Completer:
    """Owns the outcomes that wait to be written.

    What the database did not accept is kept, and is written before the worker claims anything else: however long the
    database is away, this worker sends nothing again that it has sent.

    Args:
        store: the queue.
        delivery_finished: notifies the host of a delivery that has ended; ``None`` when it does not want to know.
        observers: are told of each end that was written, with an attempt or without one.
        limits: of the worker; ``None``: new ones.

    Attributes:
        limits: the same; what they know is forgotten when an organization was purged.
    """

    def __init__(
        self,
        store: OutcomeStore,
        delivery_finished: DeliveryFinished | None,
        observers: Sequence[Observe] = (),
        limits: Standing | None = None,
    ) -> None:
        self._store = store
        self._observers = observers
        self._host = HostNotifier(delivery_finished)
        self._completions: list[Completion] = []
        self._returns: list[Return] = []
        self._writing = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._failed = False
        self._in_hand: set[str] = set()
        self._written_ahead: set[tuple[str, str]] = set()
        self.limits = limits or Standing()

    @property
    def unwritten(self) -> int:
        """How many outcomes of attempts wait to be written."""
        return sum(each.attempted for each in self._completions)

    @property
    def behind(self) -> bool:
        """Whether something has to be written before anything else is claimed."""
        return self._failed or len(self._completions) + len(self._returns) > BATCH

    def begin(self, delivery: ClaimedDelivery) -> None:
        """Record that a delivery will be executed; it is in hand until its outcome was written."""
        self._in_hand.add(delivery.id)

    def forget(self, delivery: ClaimedDelivery) -> None:
        """Record that a delivery ended without an outcome: when it is claimed again, it is executed again."""
        self._in_hand.discard(delivery.id)

    def not_in_hand(self, claimed: Sequence[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Return what of a claim this process does not have in hand already.

        It has the rest when it stood still between a look at its leases and the claim. What comes of these is written
        under the new claim, and may have been before the claim's answer came.
        """
        ahead = self._written_ahead
        if ahead:
            written = {(each.id, each.token) for each in claimed} & ahead
            ahead -= written
            claimed = [each for each in claimed if (each.id, each.token) not in written]
        return [each for each in claimed if each.id not in self._in_hand]

    def complete(self, completion: Completion) -> None:
        """Accept an outcome; it is written a moment later, together with others. `flush` waits for it."""
        self._completions.append(completion)
        self._linger()

    def give_back(self, *returns: Return) -> None:
        """Accept claims that are given back without an attempt; they are written a moment later."""
        self._returns += returns
        self._linger()

    async def disclaim(self, claimed: Sequence[ClaimedDelivery]) -> None:
        """Give back claims that the database may or may not have written.

        Unlike `give_back`, it leaves alone what this worker has claimed since.

        Raises:
            StorageUnavailable: the database failed.
        """
        await self._store.release(claimed)

    async def flush(self) -> None:
        """Write everything that waits, and wait until the host was notified.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        await self.write()
        await self._host.drain()

    async def write(self) -> None:
        """Write everything that waits.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        async with self._writing:
            while self._returns:
                returns, self._returns = self._returns[:BATCH], self._returns[BATCH:]
                try:
                    states = await self._store.give_back(returns)
                    again, purged = await self._lost(
                        [each.delivery for each in returns if each.delivery.id not in states]
                    )
                except BaseException:
                    self._returns = returns + self._returns
                    self._failed = True
                    raise
                self._returns += [
                    each._replace(delivery=again[each.delivery.id])
                    for each in returns
                    if each.delivery.id in again
                ]
                await self._returned(
                    [each for each in returns if each.delivery.id not in again], states, purged
                )
            while self._completions:
                batch, self._completions = self._completions[:BATCH], self._completions[BATCH:]
                try:
                    held = await self._store_outcomes(batch)
                    lost = [each.delivery for each in batch if each.delivery.id not in held]
                    again, purged = await self._lost(lost, log_others=True)
                except BaseException:
                    self._completions = batch + self._completions
                    self._failed = True
                    raise
                self._completions += [
                    msgspec.structs.replace(each, delivery=again[each.delivery.id])
                    for each in batch
                    if each.delivery.id in again
                ]
                await self._completed([each for each in batch if each.delivery.id not in again], held, purged)
            self._failed = False

    def _linger(self) -> None:
        if self._lingering is None:
            self._lingering = asyncio.create_task(self._write_soon())

    async def _write_soon(self) -> None:
        """Write while there is anything; after a failure the worker decides when to try again."""
        try:
            while (self._completions or self._returns) and not self._failed:
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

    async def _store_outcomes(self, batch: list[Completion]) -> set[str]:
        """Store a batch. A row whose outcome cannot be stored is found by halving the batch, and is ended instead."""
        try:
            return await self._store.complete(batch)
        except RowInvalid as exc:
            if len(batch) == 1:
                outcome = Outcome(0, 0, error=str(exc))
                batch[0] = Completion(batch[0].delivery, outcome, DEAD, attempted=False)
                return await self._store.complete(batch)
            middle = len(batch) // 2
            first, second = batch[:middle], batch[middle:]
            held = await self._store_outcomes(first)
            held |= await self._store_outcomes(second)
            batch[:] = first + second
            return held

    async def _lost(
        self, lost: Sequence[ClaimedDelivery], *, log_others: bool = False
    ) -> tuple[dict[str, ClaimedDelivery], set[str]]:
        """Find what has ended the claims of deliveries that do not hold.

        Args:
            lost: which.
            log_others: whether the end of each claim is logged that this worker has not claimed again itself.

        Returns:
            Those that this worker itself has claimed again, under the new claim; and the ids of those that were purged.
        """
        own: dict[str, ClaimedDelivery] = {}
        purged: set[str] = set()
        ends = await self._store.ends(lost) if lost else {}
        for each in lost:
            end = ends[each.id]
            if end.own_token is not None:
                own[each.id] = msgspec.structs.replace(each, token=end.own_token)
                self._written_ahead.add((each.id, end.own_token))
                continue
            if end.kind == "purged":
                purged.add(each.id)
                self.limits.forget()
            if log_others:
                log_lost(each.id, end)
        return own, purged

    async def _completed(self, batch: Sequence[Completion], held: set[str], purged: set[str]) -> None:
        ended = []
        for each in batch:
            self._settle(each.delivery)
            if each.delivery.id in purged:
                outcome = msgspec.structs.replace(each.outcome, error=PURGED)
                ended.append(Completion(each.delivery, outcome, DEAD, attempted=each.attempted))
            elif each.delivery.id in held and each.change.status in FINISHED:
                ended.append(each)
                if each.change.status == "dead":
                    log_dead(each.delivery.id, each.delivery.destination, failure_reason(each.outcome))
        written = [each for each in batch if each.delivery.id in held]
        for observe in self._observers:
            observe(written)
        await self._host.notify(ended)

    async def _returned(self, returns: Sequence[Return], states: Mapping[str, str], purged: set[str]) -> None:
        removed, ended = [], []
        for each in returns:
            self._settle(each.delivery)
            if each.delivery.id in purged:
                outcome = Outcome(0, 0, error=PURGED)
                removed.append(Completion(each.delivery, outcome, DEAD, attempted=False))
            elif states.get(each.delivery.id) == "dead" and each.waits_for is not None:
                reason = f"it has waited too long: {each.waits_for}"
                log_dead(each.delivery.id, each.delivery.destination, reason)
                outcome = Outcome(0, 0, error=reason)
                ended.append(Completion(each.delivery, outcome, DEAD, attempted=False))
        for observe in self._observers:
            observe(ended)
        await self._host.notify([*removed, *ended])

    def _settle(self, delivery: ClaimedDelivery) -> None:
        self.forget(delivery)
