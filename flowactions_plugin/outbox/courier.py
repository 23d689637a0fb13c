"""What is done with claimed deliveries: ask for secrets, send, write what became of them, notify the host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from flowactions_hookspecs import Origin
from flowactions_plugin.errors import RowInvalid, StorageUnavailable
from flowactions_plugin.outbox.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.outbox.deadline import GRACE_SECONDS
from flowactions_plugin.outbox.delivery import (
    FINISHED,
    RETURN_SECONDS,
    Aborted,
    Outcome,
    Transition,
    failure_reason,
    transition,
)
from flowactions_plugin.outbox.episodes import Episodes
from flowactions_plugin.outbox.host_calls import (
    DeliveryFinished,
    HostNotifier,
    PluginSecrets,
    Secret,
    SecretSource,
    SigningSecret,
)
from flowactions_plugin.outbox.sender import Sender
from flowactions_plugin.outbox.store import OutboxStore, log_dead
from flowactions_plugin.outbox.suspects import QUARANTINE_ROUNDS, Suspects

log = logging.getLogger("flowactions.outbox")

LINGER_SECONDS: Final = 0.005
"""How long an outcome waits for others, so that one statement serves them all."""

BATCH: Final = 500

LARGE_BYTES: Final = 64 * 1024
"""A body of this size is not kept until the outcome is written."""

SURPLUS_SECONDS: Final = 1.0
"""When a delivery is due again of which too many are suspected at once."""

Secrets: TypeAlias = Mapping[Origin | None, Secret]


class Courier:
    """Carries claimed deliveries, for a worker that decides when to claim.

    What became of them is written together, many in a transaction. What the database did not take is kept, and written
    before the worker claims anything else: while the database is away, for however long, nothing that was sent is
    sent again by this worker.

    Args:
        store: the queue.
        sender: makes the attempts.
        signing_secret: asks the host for an origin's secret, once per origin and claim (§5.3.6).
        delivery_finished: tells the host what has ended; ``None`` when it does not want to know.
        plugin_secrets: asks plugins for the secrets of their own origins.

    Attributes:
        stopping: set when what has not begun is to be given back.
    """

    def __init__(
        self,
        store: OutboxStore,
        sender: Sender,
        signing_secret: SigningSecret,
        delivery_finished: DeliveryFinished | None,
        plugin_secrets: PluginSecrets = MappingProxyType({}),
    ) -> None:
        self._store = store
        self._sender = sender
        self._source = SecretSource(signing_secret, plugin_secrets)
        self._notifier = HostNotifier(delivery_finished)
        self._suspects = Suspects()
        self._episodes = Episodes()
        self._completions: list[Completion] = []
        self._returns: list[Return] = []
        self._writing = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._failed = False
        self._stall_seconds = sender.timing.lease_seconds / 4
        self.stopping = False

    @property
    def unwritten(self) -> int:
        """How many outcomes of attempts wait to be written."""
        return sum(each.attempted for each in self._completions)

    @property
    def behind(self) -> bool:
        """Whether something is to be written before anything else is claimed."""
        return self._failed or len(self._completions) + len(self._returns) > BATCH

    async def catch_up(self) -> None:
        """After a stall that leases may not have outlasted, have read and written what has arrived meanwhile.

        Otherwise this worker would claim what it has in flight, and send it again.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        if self._sender.longest_stall() >= self._stall_seconds:
            await asyncio.sleep(2 * GRACE_SECONDS)
            await self.flush()

    async def admit(self, claimed: Sequence[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Give what of a claim may be sent.

        The rest, which was reclaimed too often for so many of them to be sent at once, is given back before: if this
        process ends now, it counts against those only that were sent.

        Raises:
            StorageUnavailable: it could not be given back, and so nothing of the claim may be sent.
        """
        admitted, surplus = self._suspects.admit(claimed)
        if surplus:
            self._returns += [Return(each, SURPLUS_SECONDS) for each in surplus]
            try:
                await self._write()
            except BaseException:
                self.abandon(admitted)
                raise
        return admitted

    async def secrets(self, claimed: Sequence[ClaimedDelivery]) -> Secrets:
        """Ask the host for the signing secrets of claimed deliveries, once for each origin."""
        return await self._source.secrets(each for each in claimed if each.defect is None)

    async def deliver(self, delivery: ClaimedDelivery, secrets: Secrets) -> None:
        """Make an attempt, or end or give back a delivery that gets none.

        What became of it is written a moment later, together with what comes meanwhile; `flush` waits for it.
        """
        secret = secrets.get(delivery.origin, Secret())
        dead, waits_for = _obstacles(delivery, secret)
        if self.stopping:
            self.abandon([delivery])
        elif dead is not None:
            self._mark_dead(delivery, dead)
        elif waits_for is not None:
            if delivery.waits_for is not None and self._episodes.begin(waits_for):
                log.warning("delivery %s waits for another release or a plugin: %s", delivery.id, waits_for)
            self._give_back(Return(delivery, waits_for=waits_for))
        elif self._sender.too_late(delivery):
            # Another worker may have it by now. It stays here when this worker claims it again.
            self._give_back(Return(delivery, answered=True))
        else:
            await self._attempt(delivery, secret)

    async def deliver_alone(self, delivery: ClaimedDelivery) -> None:
        """Do the same with a delivery in quarantine, while nothing else is in flight.

        That it was begun is written before its request leaves. So it is known of a delivery that kills its worker how
        often it did, and a worker that ends earlier counts for nothing.

        Raises:
            StorageUnavailable: nothing was sent.
        """
        if delivery.defect is None and delivery.quarantine_rounds >= QUARANTINE_ROUNDS:
            times = delivery.quarantine_rounds
            self._mark_dead(delivery, f"its worker ended each of the {times} times that it was sent alone")
            return
        secrets = await self.secrets([delivery])
        sends = _obstacles(delivery, secrets.get(delivery.origin, Secret())) == (None, None)
        if sends and not self.stopping and not self._sender.too_late(delivery):
            try:
                if not await self._store.begin_quarantined(delivery):
                    return
            except BaseException:
                self.abandon([delivery])
                raise
        await self.deliver(delivery, secrets)

    async def _attempt(self, delivery: ClaimedDelivery, secret: Secret) -> None:
        try:
            outcome = await self._sender.send(delivery, secret.value)
        except BaseException as exc:
            if not isinstance(exc, Exception):
                self.abandon([delivery])
                raise
            log.exception("delivery %s failed unexpectedly; it is tried again later", delivery.id)
            outcome = Aborted("defect", f"it failed unexpectedly: {type(exc).__name__}", waits=True)
        if isinstance(outcome, Aborted):
            self._abort(delivery, outcome)
            return
        for cause in ("stall", "resources"):
            if self._episodes.end(cause):
                log.info("deliveries go on")
        change = transition(delivery.attempts + 1, delivery.max_attempts, outcome)
        if delivery.body is not None and len(delivery.body) > LARGE_BYTES:
            delivery = msgspec.structs.replace(delivery, body=None)
        self._completions.append(Completion(delivery, outcome, change))
        self._write_soon()

    def _abort(self, delivery: ClaimedDelivery, aborted: Aborted) -> None:
        said = aborted.cause if aborted.cause in {"stall", "resources"} else aborted.reason
        if aborted.cause != "stopped" and self._episodes.begin(said):
            log.warning("deliveries are given back without an attempt: %s", aborted.reason)
        if aborted.waits:
            self._give_back(Return(delivery, waits_for=aborted.reason))
        else:
            delay = 0.0 if aborted.cause == "stopped" else RETURN_SECONDS
            self._give_back(Return(delivery, delay, answered=True))

    def _mark_dead(self, delivery: ClaimedDelivery, reason: str) -> None:
        outcome = Outcome(0, 0, error=reason)
        self._completions.append(Completion(delivery, outcome, Transition("dead"), attempted=False))
        self._write_soon()

    def abandon(self, deliveries: Sequence[ClaimedDelivery]) -> None:
        """Give deliveries back that were not begun: they are due at once."""
        self._returns += [Return(each) for each in deliveries]
        self._write_soon()

    def _give_back(self, each: Return) -> None:
        self._returns.append(each)
        self._write_soon()

    def _write_soon(self) -> None:
        if self._lingering is None:
            self._lingering = asyncio.create_task(self._linger())

    async def _linger(self) -> None:
        """Write while there is anything; after a failure the worker decides when to try again."""
        try:
            while (self._completions or self._returns) and not self._failed:
                await asyncio.sleep(LINGER_SECONDS)
                with suppress(StorageUnavailable):
                    await self._write()
        except Exception:
            log.exception("what became of deliveries could not be written; it is tried again")
        finally:
            self._lingering = None

    async def flush(self) -> None:
        """Write everything that waits, and see the host take note.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        await self._write()
        await self._notifier.drain()

    async def _write(self) -> None:
        async with self._writing:
            while self._returns:
                returns, self._returns = self._returns[:BATCH], self._returns[BATCH:]
                try:
                    states = await self._store.give_back(returns)
                except BaseException:
                    self._returns = returns + self._returns
                    self._failed = True
                    raise
                await self._note_returns(returns, states)
            while self._completions:
                batch, self._completions = self._completions[:BATCH], self._completions[BATCH:]
                try:
                    held = await self._complete(batch)
                except BaseException:
                    self._completions = batch + self._completions
                    self._failed = True
                    raise
                await self._note(batch, held)
            self._failed = False

    async def _complete(self, batch: list[Completion]) -> set[str]:
        """Write a batch; a row whose outcome cannot be stored is found by halves, and ended in its place."""
        try:
            return await self._store.complete(batch)
        except RowInvalid as exc:
            if len(batch) == 1:
                outcome = Outcome(0, 0, error=str(exc))
                batch[0] = Completion(batch[0].delivery, outcome, Transition("dead"), attempted=False)
                return await self._store.complete(batch)
            middle = len(batch) // 2
            first, second = batch[:middle], batch[middle:]
            held = await self._complete(first)
            held |= await self._complete(second)
            batch[:] = first + second
            return held

    async def _note(self, batch: Sequence[Completion], held: set[str]) -> None:
        ended = []
        for each in batch:
            self._suspects.settle(each.delivery)
            if each.delivery.id not in held:
                log.warning("delivery %s was taken over by another worker", each.delivery.id)
            elif each.change.status in FINISHED:
                ended.append(each)
                if each.change.status == "dead":
                    reason = failure_reason(each.outcome)
                    log_dead(each.delivery.id, each.delivery.destination, reason)
        await self._notifier.notify(ended)

    async def _note_returns(self, returns: Sequence[Return], states: Mapping[str, str]) -> None:
        ended = []
        for each in returns:
            self._suspects.settle(each.delivery)
            if states.get(each.delivery.id) == "dead" and each.waits_for is not None:
                reason = f"it has waited too long: {each.waits_for}"
                log_dead(each.delivery.id, each.delivery.destination, reason)
                outcome = Outcome(0, 0, error=reason)
                ended.append(Completion(each.delivery, outcome, Transition("dead"), attempted=False))
        await self._notifier.notify(ended)


def _obstacles(delivery: ClaimedDelivery, secret: Secret) -> tuple[str | None, str | None]:
    """Tell why a delivery ends without an attempt, or what it waits for."""
    dead = secret.gone if delivery.defect is None else delivery.defect
    waits_for = secret.failed if delivery.waits_for is None else delivery.waits_for
    return dead, waits_for
