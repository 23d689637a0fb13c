"""The outbox of one host: what enqueues, and the task that delivers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from flowactions_hookspecs import DeliveryAlert, Host, provides
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import Aborted, Message, Outcome
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import CachingResolver, Resolver, threads_for
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.claims import ClaimStore, Contact, token_prefix
from flowactions_plugin.queue.completer import Completer, Observe
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.delivery_telemetry import Load, record
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.executor import Executor, Send
from flowactions_plugin.queue.host_calls import SecretSource
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.notifier import CHANNEL, Named, Notifier, lanes_in, listen_forever
from flowactions_plugin.queue.outcomes import OutcomeStore
from flowactions_plugin.queue.probes import Probes
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.scheduled import ScheduledClaims
from flowactions_plugin.queue.worker import ClaimStrategy, Worker
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry.telemetry import Telemetry

ENQUEUE_RESOLVER_THREADS: Final = 64
"""A name that finds no thread within a second is checked at delivery only."""


class Observer(Protocol):
    """Watches the deliveries of a process: counts ends of claims, reports how busy it is, and tells the log and the host."""

    def record(self, completions: Sequence[Completion], /) -> None: ...  # noqa: D102
    def watching(self, load: Load, /) -> AbstractAsyncContextManager[str]: ...  # noqa: D102
    def tell(self, alert: DeliveryAlert, /) -> None: ...  # noqa: D102


class OutboxService:
    """The outbox of one host; an async context manager that can be entered again.

    Args:
        host: its transport, its signing secrets, and what it wants to be notified of.
        settings: those of the host.
        database: where the queue is.
        timing: of claims and attempts.
        secret_source: returns what resolves signing secrets, once all plugins are loaded.
        observer: watches the deliveries of this process.
        telemetry: measures and traces deliveries.
        others: what makes attempts that are no HTTP requests of their own, see `Executor`.
        ended: is told of each end of a delivery that was written.

    Attributes:
        claims: of the worker.
        outbox: enqueues.
        guard: decides at enqueue where requests may go.
        load: how busy this process's worker is.
        claims_all: whether this process claims whatever is due, or sends only what it enqueues.
    """

    def __init__(
        self,
        host: Host,
        settings: Settings,
        database: Database,
        timing: Timing,
        secret_source: Callable[[], SecretSource],
        observer: Observer,
        telemetry: Telemetry,
        others: Mapping[str, Send] = MappingProxyType({}),
        ended: Observe = lambda _completions: None,
    ) -> None:
        self._others = others
        self._ended = ended
        self._host = host
        self._settings = settings
        self._database = database
        self._timing = timing
        self._secret_source = secret_source
        self._observer = observer
        self._telemetry = telemetry
        self.load = Load()
        self.claims = ClaimStore(database, Contact(timing))
        self.guard = guard_of(settings, CachingResolver(Resolver(ENQUEUE_RESOLVER_THREADS)))
        self.outbox = Outbox(database, self.guard, settings, telemetry)
        self.claims_all = settings.host_worker != "own"
        if settings.delivery == "continuous":
            self.outbox.on_commit = self._committed
        self._notifier: Notifier | None = None
        self._claiming: ContinuousClaims | None = None
        self._probes: Probes | None = None

    def _committed(self, due: Due) -> None:
        """Wake whoever delivers: this process's worker, or those of others."""
        if self._claiming is not None and self.claims_all:
            self._claiming.enqueued(due)
        elif self._notifier is not None:
            self._notifier.notify(Named(*due[:3]))

    async def __aenter__(self) -> None:
        # Which database it is, is known once it is open.
        if self._settings.delivery == "continuous" and self._database.sql.is_server:
            self._notifier = Notifier(partial(self._database.notify, CHANNEL))
            await self._notifier.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self.outbox.sequences.aclose()
        if self._notifier is not None:
            await self._notifier.__aexit__(*exc)
            self._notifier = None

    async def deliver(self) -> None:
        """Deliver what is in the outbox until cancelled."""
        settings = self._settings
        timing = self._timing if self.claims_all else self._timing._replace(quarantine_seconds=math.inf)
        finished = self._host.delivery_finished if provides(self._host, "delivery_finished") else None
        observers: list[Observe] = [self._observer.record, partial(record, self._telemetry), self._ended]
        with LagMeter(lease_clock) as lag:
            sender = self._sender(lag)
            executor = Executor(
                self.claims,
                sender,
                Completer(
                    OutcomeStore(self._database, self.claims.contact),
                    finished,
                    observers,
                    sequences=self.outbox.sequences,
                ),
                self._secret_source(),
                self._timing,
                sends_trace=settings.send_traceparent,
                retry_schedule=settings.retry_schedule,
                others=self._others,
            )
            self.load = executor.load
            try:
                async with (
                    self._observer.watching(executor.load) as worker_id,
                    self._claims(executor) as strategy,
                ):
                    self.claims.contact.prefix = token_prefix(worker_id)
                    worker = Worker(self.claims, executor, strategy, timing, tell=self._observer.tell)
                    self._probes = worker.probes
                    await worker.run()
            finally:
                self._probes = None
                await sender.aclose()

    async def probe(self) -> None:
        """Begin the probes that are due, while this process delivers."""
        if self._probes is not None:
            await self._probes.look()

    async def send_now(self, message: Message, secret: str) -> Outcome | Aborted:
        """Make one attempt to send what the outbox cannot hold, signed with a secret, as a worker would."""
        with LagMeter(lease_clock) as lag:
            sender = self._sender(lag)
            try:
                return await sender.send(message, secret)
            finally:
                await sender.aclose()

    def _sender(self, lag: LagMeter) -> Sender:
        """Build what makes the attempts, with a resolver of its own: what hangs at enqueue takes no thread from deliveries."""
        threads = threads_for(self._settings.slots, self._timing.deadline_seconds)
        guard = guard_of(self._settings, Resolver(threads))
        transport, validate = outbound(self._settings, guard, self._host.transport)
        return Sender(
            transport,
            validate,
            self._database.clock,
            time.monotonic,
            lag,
            self._timing.deadline_seconds,
            times_all=self._telemetry.is_open,
            standard_webhooks=self._settings.standard_webhooks,
        )

    @asynccontextmanager
    async def _claims(self, executor: Executor) -> AsyncIterator[ClaimStrategy]:
        """Build the claim strategy of the settings, and within the block wake it when something is enqueued."""
        settings = self._settings
        if settings.delivery != "continuous":
            yield ScheduledClaims(
                self.claims,
                executor,
                tick_seconds=settings.tick_seconds,
                claim_limit=settings.claim_limit,
                per_destination=settings.per_destination,
            )
            return
        claims = ContinuousClaims(
            self.claims,
            executor,
            slots=settings.slots,
            per_destination=settings.per_destination or settings.slots,
            claims_all=self.claims_all,
        )
        self._claiming = self.outbox.claimant = claims
        listening = asyncio.create_task(self._listen(claims))
        try:
            yield claims
        finally:
            self._claiming = self.outbox.claimant = None
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self, claims: ContinuousClaims) -> None:
        """Wake a worker that claims whatever is due when another process has enqueued something."""
        if self._notifier is None:
            listen = partial(self._database.watch_inserts, claims.wake)
        else:
            listen = partial(self._database.listen, CHANNEL, lambda payload: claims.wake(lanes_in(payload)))
        if self.claims_all:
            await listen_forever(listen, claims.wake)
