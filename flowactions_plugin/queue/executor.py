"""Executes claimed deliveries: makes an attempt, or ends or gives back a delivery that gets none."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from flowactions_plugin.egress.attempt import UNSIGNED, Aborted, Outcome
from flowactions_plugin.egress.lag import GRACE_SECONDS
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.completer import Completer
from flowactions_plugin.queue.delivery_telemetry import with_traceparent
from flowactions_plugin.queue.host_calls import NO_SECRET, Episodes, Secret, Secrets, SecretSource
from flowactions_plugin.queue.observer import Load
from flowactions_plugin.queue.rules import (
    DEAD,
    HELD_SECONDS,
    QUARANTINE_ROUNDS,
    RETURN_SECONDS,
    Timing,
    transition,
)

log = logging.getLogger("flowactions.outbox")

MOST_STALLS: Final = 5
"""How often in a row a delivery is given back because its attempt failed while this process stood still."""

STALLED_KNOWN: Final = 10_000
"""Of how many deliveries it is counted. Beyond, all counts begin anew."""


class Executor:
    """Executes claimed deliveries, for a worker that decides when to claim.

    Args:
        store: the queue.
        sender: makes the attempts.
        completer: writes the outcomes.
        source: the signing secrets, asked for once per origin and claim (§5.3.6).
        timing: lease and deadline.
        sends_trace: whether requests carry the trace of what enqueued them.
        retry_schedule: the one that an operator has set; empty: the rule of §8.
        chance: returns random numbers from 0 to 1, by which the delays of a schedule vary.

    Attributes:
        completer: the same.
        limits: get the outcome of each attempt.
        secrets: returns the signing secrets of a claim: the host is asked once for each origin.
        withdrawn: returns the ids of deliveries that have not begun, and may not any more.
        stopping: set when what has not begun is to be given back.
    """

    def __init__(
        self,
        store: ClaimStore,
        sender: Sender,
        completer: Completer,
        source: SecretSource,
        timing: Timing = Timing(),  # noqa: B008  immutable
        *,
        sends_trace: bool = False,
        retry_schedule: Sequence[int] = (),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._sender = sender
        self.secrets = source.claim
        self._sends_trace = sends_trace
        self._retry_schedule = retry_schedule
        self._chance = chance
        self._stall_seconds = timing.lease_seconds / 4
        self._timing = timing
        self._stalls: Counter[str] = Counter()
        self._episodes = Episodes()
        self._in_flight = 0
        self._claimed = 0
        self.completer = completer
        self.limits = completer.limits
        self.withdrawn = store.withdrawn
        self.stopping = False

    def load(self) -> Load:
        """Return how busy this process is."""
        return Load(self._in_flight, self._claimed, self.limits.limited(), self.limits.forget)

    @property
    def behind(self) -> bool:
        """Whether something has to be written, or read after a stall, before anything else is claimed."""
        return self.completer.behind or self._sender.lag.longest() >= self._stall_seconds

    async def catch_up(self) -> None:
        """After a stall that leases may not have outlasted, read and write what has arrived meanwhile.

        Otherwise this worker would claim what it has in flight, and send it again.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        if self._sender.lag.pop_longest() >= self._stall_seconds:
            await asyncio.sleep(2 * GRACE_SECONDS)
            await self.completer.flush()

    def take(self, claimed: Sequence[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Return what of a claim may be sent, and record it as in hand: also while it waits for a slot.

        The rest is in hand already, under another claim of this worker's, whose answer has come late or has ended meanwhile.
        """
        claimed = self.completer.not_in_hand(claimed)
        self._claimed += len(claimed)
        for each in claimed:
            self.completer.begin(each)
        return claimed

    async def execute(self, delivery: ClaimedDelivery, secrets: Secrets) -> None:
        """Make an attempt, or end or give back a delivery that gets none.

        Args:
            delivery: what was claimed.
            secrets: of the origins of its claim.
        """
        self.completer.begin(delivery)
        try:
            await self._execute(delivery, secrets)
        except BaseException:
            self.completer.forget(delivery)
            raise

    async def _execute(self, delivery: ClaimedDelivery, secrets: Secrets) -> None:
        begun = self._sender.lag.now()
        secret = await self._secret(delivery, secrets)
        waited = self._sender.lag.now() - begun >= HELD_SECONDS
        dead, waits_for = _obstacles(delivery, secret)
        if self.stopping or (waited and await self._is_withdrawn(delivery)):
            self.abandon([delivery])
        elif dead is not None:
            self._mark_dead(delivery, dead)
        elif waits_for is not None:
            if delivery.waits_for is not None and self._episodes.begin(waits_for):
                log.warning(
                    "delivery %s waits for another release or a plugin: %s",
                    delivery.id,
                    waits_for,
                    extra={"event": "delivery.waits"},
                )
            self.completer.give_back(Return(delivery, waits_for=waits_for))
        elif self._is_too_late(delivery):
            # Another worker may have reclaimed it. If not, this worker claims it again.
            self.completer.give_back(Return(delivery, answered=True))
        else:
            await self._attempt(delivery, secret)

    async def _secret(self, delivery: ClaimedDelivery, secrets: Secrets) -> Secret:
        if delivery.defect is not None or self.stopping:
            return NO_SECRET
        return await secrets.of(delivery.origin)

    async def _is_withdrawn(self, delivery: ClaimedDelivery) -> bool:
        try:
            return bool(await self.withdrawn([delivery]))
        except StorageUnavailable:  # it is given back when that is over
            return True

    async def execute_alone(self, delivery: ClaimedDelivery) -> None:
        """Execute a delivery in quarantine, while nothing else is in flight.

        The round is written as begun before its request leaves. So it is known how often a delivery has ended its
        worker, and a worker that ends before that counts for nothing.

        Raises:
            StorageUnavailable: nothing was sent.
        """
        if delivery.defect is None and delivery.quarantine_rounds >= QUARANTINE_ROUNDS:
            times = delivery.quarantine_rounds
            self._mark_dead(delivery, f"its worker ended each of the {times} times that it was sent alone")
            return
        self._claimed += 1
        secrets = self.secrets()
        sends = _obstacles(delivery, await self._secret(delivery, secrets)) == (None, None)
        if sends and not self.stopping and not self._is_too_late(delivery):
            try:
                if not await self._store.begin_quarantined(delivery):
                    return
            except BaseException:
                self.abandon([delivery])
                raise
        await self.execute(delivery, secrets)

    def abandon(self, deliveries: Sequence[ClaimedDelivery]) -> None:
        """Give back deliveries that were not begun: they are due at once."""
        self.completer.give_back(*map(Return, deliveries))

    def _is_too_late(self, delivery: ClaimedDelivery) -> bool:
        """Return whether the rest of a lease is too short for an attempt."""
        return self._timing.is_too_late(self._sender.lag.now(), delivery.lease_end)

    async def _attempt(self, delivery: ClaimedDelivery, secret: Secret) -> None:
        forgives = self._stalls[delivery.id] < MOST_STALLS
        message = await self._whole(delivery)
        if message is None:
            return
        self._in_flight += 1
        try:
            message = with_traceparent(message) if self._sends_trace else message
            outcome = await self._sender.send(message, secret.value, forgives=forgives)
        except BaseException as exc:
            if not isinstance(exc, Exception):
                self.abandon([delivery])
                raise
            log.exception(
                "delivery %s failed unexpectedly; it is tried again later",
                delivery.id,
                extra={"event": "delivery.failed_unexpectedly"},
            )
            outcome = Aborted("defect", f"it failed unexpectedly: {type(exc).__name__}", waits=True)
        finally:
            self._in_flight -= 1
        if isinstance(outcome, Aborted):
            self._abort(delivery, outcome)
            return
        if secret.value is None:
            outcome = msgspec.structs.replace(outcome, notes=(*outcome.notes, UNSIGNED))
        self._stalls.pop(delivery.id, None)
        self.limits.record(delivery, outcome)
        over: list[Hashable] = ["stall", "resources"]
        if outcome.status_code is not None:
            over += ["proxy", ("tunnel", delivery.destination)]
        for each in over:
            if self._episodes.end(each):
                log.info("deliveries continue", extra={"event": "deliveries.go_on"})
        schedule = self._retry_schedule
        chance = self._chance() if schedule else 0.5
        change = transition(delivery.attempts + 1, delivery.max_attempts, outcome, schedule, chance)
        self.completer.complete(Completion(delivery, outcome, change))

    async def _whole(self, delivery: ClaimedDelivery) -> ClaimedDelivery | None:
        """Return a delivery with its body; ``None``: there is nothing to send under its claim."""
        if not delivery.lacks_body:
            return delivery
        try:
            whole = await self._store.whole(delivery)
        except StorageUnavailable:
            self.abandon([delivery])
            return None
        if whole is None:  # its claim has ended
            self.completer.forget(delivery)
        return whole

    def _abort(self, delivery: ClaimedDelivery, aborted: Aborted) -> None:
        key: Hashable = aborted.cause
        if aborted.cause == "stall":
            if len(self._stalls) >= STALLED_KNOWN:
                self._stalls.clear()
            self._stalls[delivery.id] += 1
        if aborted.cause == "tunnel":
            key = (aborted.cause, delivery.destination)
        elif aborted.cause in {"host", "defect"}:
            key = aborted.reason
        if aborted.cause != "stopped" and self._episodes.begin(key):
            detail = f" ({printable(aborted.detail, message=True)})" if aborted.detail else ""
            log.warning(
                "deliveries are given back without an attempt: %s",
                aborted.reason + detail,
                extra={"event": "deliveries.given_back"},
            )
        if aborted.waits:
            self.completer.give_back(Return(delivery, waits_for=aborted.reason))
        else:
            delay = 0.0 if aborted.cause == "stopped" else RETURN_SECONDS
            self.completer.give_back(Return(delivery, delay, answered=True))

    def _mark_dead(self, delivery: ClaimedDelivery, reason: str) -> None:
        outcome = Outcome(0, 0, error=reason)
        self.completer.complete(Completion(delivery, outcome, DEAD, attempted=False))


def _obstacles(delivery: ClaimedDelivery, secret: Secret) -> tuple[str | None, str | None]:
    """Return why a delivery ends without an attempt, and what it waits for; ``None`` where it does not."""
    dead = secret.gone if delivery.defect is None else delivery.defect
    waits_for = secret.failed if delivery.waits_for is None else delivery.waits_for
    return dead, waits_for
