"""Executes claimed deliveries: makes an attempt, or ends or gives back a delivery that gets none."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from flowactions_plugin.egress.attempt import UNSIGNED, Aborted, Outcome
from flowactions_plugin.egress.lag import GRACE_SECONDS
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.origins import CHAT, HTTP, kind_of
from flowactions_plugin.queue.claimed import Attempted, ClaimedDelivery, Completion, Ended, Returned
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.completer import Completer
from flowactions_plugin.queue.delivery_telemetry import with_traceparent
from flowactions_plugin.queue.host_calls import NO_SECRET, Episodes, Secret, SecretSource
from flowactions_plugin.queue.rules import (
    CHAT_WAIT_SECONDS,
    HELD_SECONDS,
    QUARANTINE_ROUNDS,
    RETURN_SECONDS,
    UNKNOWN,
    UNKNOWN_SECONDS,
    WAIT_CAP_SECONDS,
    WAIT_FIRST_SECONDS,
    WAIT_LIMIT_SECONDS,
    Timing,
    transition,
)

log = logging.getLogger("flowactions.outbox")

Send: TypeAlias = Callable[[ClaimedDelivery], Awaitable[Outcome | Aborted]]
"""Makes one attempt of a delivery that is not sent over HTTP. Whatever the other side does is an outcome."""


class Executor:
    """Executes claimed deliveries, for a worker that decides when to claim.

    Args:
        store: the queue.
        sender: makes the attempts over HTTP.
        completer: writes the outcomes.
        secrets: the signing secrets, asked for once per origin and claim (§5.3.6).
        timing: lease and deadline.
        sends_trace: whether requests carry the trace of what enqueued them.
        retry_schedule: the one that an operator has set; empty: the rule of §8.
        others: what makes the attempts of other kinds of destinations (`kind_of`), which are neither signed nor traced, and whose
            retries follow §8.

    Attributes:
        hand: what this worker has in hand.
        lag: how long this process stood still.
        load: how busy it is, and what it limits.
        stopping: set when what has not begun is to be given back.
    """

    def __init__(
        self,
        store: ClaimStore,
        sender: Sender,
        completer: Completer,
        secrets: SecretSource,
        timing: Timing = Timing(),  # noqa: B008  immutable
        *,
        sends_trace: bool = False,
        retry_schedule: Sequence[int] = (),
        others: Mapping[str, Send] = MappingProxyType({}),
    ) -> None:
        self._store = store
        self._sender = sender
        self.lag = sender.lag
        self._now = sender.lag.now
        self._secrets = secrets
        self._timing = timing
        self._sends_trace = sends_trace
        self._retry_schedule = retry_schedule
        self._others = others
        self._stall_seconds = timing.stall_seconds
        self._episodes = Episodes()
        self.completer = completer
        self.hand = completer.hand
        self.load = completer.load
        self.stopping = False

    @property
    def behind(self) -> bool:
        """Whether something has to be written, or read after a stall, before anything else is claimed."""
        return self.completer.behind or self.lag.longest() >= self._stall_seconds

    async def settle(self) -> None:
        """Write what has to be written before anything else is claimed.

        After a stall that leases may not have outlasted, what has arrived meanwhile is read, too. Otherwise this worker would
        claim what it has in flight, and send it again.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        stalled = self.lag.pop_longest() >= self._stall_seconds
        if stalled:
            await asyncio.sleep(2 * GRACE_SECONDS)
        if stalled or self.completer.behind:
            await self.completer.flush()

    def take(self, claimed: Sequence[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Return what of a claim may be sent; it is in hand from now on, also while it waits for a slot."""
        self._secrets.renew()
        taken = self.hand.take(claimed)
        self.load.claimed += len(taken)
        return taken

    async def execute(self, delivery: ClaimedDelivery, *, alone: bool = False, has_slot: bool = False) -> None:
        """Make an attempt of what was claimed and taken, or end or give back a delivery that gets none.

        A round in quarantine, alone, is counted before its request leaves. What has a slot has begun already (`Hand.start`).
        """
        if not has_slot:
            self.hand.begin(delivery)
        try:
            await self._execute(delivery, alone=alone)
        except BaseException:
            self.hand.lose(delivery)
            raise

    async def execute_alone(self, delivery: ClaimedDelivery) -> None:
        """Execute a delivery in quarantine that was taken, while nothing else is in flight.

        The round is written as begun before its request leaves. So it is known how often a delivery has ended its
        worker, and a worker that ends before that counts for nothing.
        """
        rounds = delivery.quarantine_rounds
        if delivery.defect is None and rounds >= QUARANTINE_ROUNDS:
            reason = f"its worker ended each of the {rounds} times that it was sent alone"
            self.completer.complete(Ended(delivery, reason))
        else:
            await self.execute(delivery, alone=True)

    def abandon(self, deliveries: Sequence[ClaimedDelivery]) -> None:
        """Give back deliveries that were not begun: they are due at once, for this worker or another."""
        if deliveries:
            self.completer.complete(*map(Returned, deliveries))

    def _unknown(self, delivery: ClaimedDelivery) -> Completion:
        """Return the end of a claim whose node or action the host does not know; the fourth in a row ends the delivery."""
        if self._episodes.begin(delivery.origin):
            log.warning(
                "delivery %s waits: the host does not know %r",
                delivery.id,
                delivery.origin,
                extra={"event": "delivery.waits"},
            )
        before = (
            delivery.last_error if delivery.waited_ms is not None else None
        )  # otherwise the host has answered since
        asked = UNKNOWN.index(before) + 1 if before in UNKNOWN[:-1] else 0
        reason = UNKNOWN[asked]
        is_last = reason == UNKNOWN[-1]
        return Ended(delivery, reason) if is_last else Returned(delivery, UNKNOWN_SECONDS, reason)

    async def _execute(self, delivery: ClaimedDelivery, *, alone: bool) -> None:
        asked, secret = self._now(), NO_SECRET
        is_http = kind_of(delivery.destination) == HTTP
        if delivery.origin is not None and is_http and delivery.defect is None and not self.stopping:
            secret = await self._secrets.of(delivery.origin)
        waited = self._now() - asked >= HELD_SECONDS
        if self.stopping or (waited and await self._is_withdrawn(delivery)):
            self.abandon([delivery])
            return
        end = self._end_at_once(delivery, secret)
        if end is not None:
            self.completer.complete(end)
            return
        message: ClaimedDelivery | None = delivery
        if alone:
            message = await self._begin(delivery, self._store.begin_quarantined)
        elif delivery.lacks_body:
            message = await self._begin(delivery, self._store.whole)
        if message is not None:
            await self._attempt(delivery, message, secret)

    def _end_at_once(self, delivery: ClaimedDelivery, secret: Secret) -> Completion | None:
        """Return the end of the claim of a delivery that gets no attempt; ``None``: it gets one."""
        if secret.is_unknown:
            return self._unknown(delivery)
        dead = delivery.hopeless or secret.gone
        if dead is not None:
            return Ended(delivery, dead)
        if delivery.waits_for is not None:
            if self._episodes.begin(delivery.waits_for):
                log.warning(
                    "delivery %s waits for another release or a plugin: %s",
                    delivery.id,
                    delivery.waits_for,
                    extra={"event": "delivery.waits"},
                )
            return waiting(delivery, delivery.waits_for)
        if secret.failed is not None:
            return waiting(delivery, secret.failed)
        if self._timing.is_too_late(self._now(), delivery.lease_end):
            # Another worker may have reclaimed it. If not, this worker claims it again.
            return Returned(delivery, answered=True)
        return None

    async def _is_withdrawn(self, delivery: ClaimedDelivery) -> bool:
        try:
            return bool(await self._store.withdrawn([delivery]))
        except StorageUnavailable:  # it is given back when that is over
            return True

    async def _begin(
        self, delivery: ClaimedDelivery, begin: Callable[[ClaimedDelivery], Awaitable[ClaimedDelivery | None]]
    ) -> ClaimedDelivery | None:
        """Do what has to be done in the database before a request leaves; return what is sent, ``None`` when it may not begin."""
        try:
            message = await begin(delivery)
        except BaseException as exc:
            self.abandon([delivery])
            if not isinstance(exc, StorageUnavailable):
                raise
            return None
        if message is None:  # its claim has ended
            self.hand.lose(delivery)
        return message

    async def _attempt(self, delivery: ClaimedDelivery, message: ClaimedDelivery, secret: Secret) -> None:
        forgives, kind = self.hand.forgives(delivery), kind_of(delivery.destination)
        self.load.in_flight += 1
        try:
            if kind != HTTP:
                outcome = await self._others[kind](message)
            else:
                message = with_traceparent(message) if self._sends_trace else message
                outcome = await self._sender.send(message, secret.value, forgives=forgives)
        except Exception as exc:
            log.exception(
                "delivery %s failed unexpectedly; it is tried again later",
                delivery.id,
                extra={"event": "delivery.failed_unexpectedly"},
            )
            outcome = Aborted("defect", f"it failed unexpectedly: {type(exc).__name__}", waits=True)
        except BaseException:
            self.abandon([delivery])
            raise
        finally:
            self.load.in_flight -= 1
        if isinstance(outcome, Aborted):
            self._abort(delivery, outcome)
            return
        if secret.value is None and kind == HTTP:
            outcome = msgspec.structs.replace(outcome, notes=(*outcome.notes, UNSIGNED))
        self.hand.attempted(delivery)
        self.load.limits.record(delivery.lane, (delivery.organization_id, delivery.destination), outcome)
        if self._episodes.any:
            self._go_on(delivery, outcome)
        chance = random.random()  # noqa: S311  no secret
        schedule = self._retry_schedule if kind == HTTP else ()
        change = transition(delivery.attempts + 1, delivery.max_attempts, outcome, schedule, chance)
        self.completer.complete(Attempted(delivery, outcome, change))

    def _go_on(self, delivery: ClaimedDelivery, outcome: Outcome) -> None:
        """Log what is over, as an attempt came to an end."""
        over: list[Hashable] = ["stall", "resources", delivery.origin, (CHAT, delivery.organization_id)]
        if outcome.status_code is not None:
            over += ["proxy", ("tunnel", delivery.destination)]
        for _ in range(self._episodes.end(*over)):
            log.info("deliveries continue", extra={"event": "deliveries.go_on"})

    def _postpone(self, delivery: ClaimedDelivery, delay: float, reason: str, failure: str | None) -> None:
        """Give back a delivery that waits for something that is not of this side; a channel at its limit has answered."""
        if failure is not None:
            outcome = Outcome(0, 0, error=reason, arrived=False, failure=failure)
            self.load.limits.record(delivery.lane, (delivery.organization_id, delivery.destination), outcome)
        self.completer.complete(Returned(delivery, delay, reason, failure, answered=True))

    def _abort(self, delivery: ClaimedDelivery, aborted: Aborted) -> None:
        """Give back a delivery whose try was no attempt, and log once why."""
        if aborted.ends:
            self.completer.complete(Ended(delivery, aborted.reason))
            return
        if aborted.delay is not None:
            self._postpone(delivery, aborted.delay, aborted.reason, aborted.failure)
            return
        key: Hashable = (CHAT, delivery.organization_id) if aborted.cause == CHAT else aborted.cause
        if aborted.cause == "stall":
            self.hand.stalled(delivery)
        elif aborted.cause == "tunnel":
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
            self.completer.complete(waiting(delivery, aborted.reason))
        else:
            delay = 0.0 if aborted.cause == "stopped" else RETURN_SECONDS
            self.completer.complete(Returned(delivery, delay, answered=True))


def waiting(delivery: ClaimedDelivery, reason: str) -> Completion:
    """Return the end of the claim of a delivery that waits for this side: its interval doubles, as it is the time waited so far."""
    waited = (delivery.waited_ms or 0) / 1000
    if waited >= WAIT_LIMIT_SECONDS:
        return Ended(delivery, f"it has waited too long: {reason}")
    longest = WAIT_CAP_SECONDS if delivery.left_ms is None else CHAT_WAIT_SECONDS
    return Returned(delivery, min(max(waited, WAIT_FIRST_SECONDS), longest), reason)
