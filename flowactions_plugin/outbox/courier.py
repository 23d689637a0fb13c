"""What is done with claimed deliveries: ask for secrets, send, write the outcomes, tell the host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from flowactions_hookspecs import Delivery, Origin, OriginGone
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox.delivery import FINISHED, MAX_TAKEOVERS, Outcome, Status, transition
from flowactions_plugin.outbox.sender import Sender
from flowactions_plugin.outbox.store import ClaimedDelivery, Completion, OutboxStore

log = logging.getLogger("flowactions.outbox")

HOST_SECONDS: Final = 5.0
"""How long the host may take over a signing secret, or over taking note; within the lease's margin."""

HOST_RETRY_SECONDS: Final = 30.0
"""How long a row waits when the host failed to say what its signing secret is."""

GATHER_SECONDS: Final = 0.005
"""How long an outcome waits for others, so that one statement serves them all."""

BATCH: Final = 500

TELLING: Final = 10
"""How many batches the host may be behind with taking note before the next is written."""


class Secret(NamedTuple):
    """What the host said of an origin's secret: the value, why it has none, or that it could not say."""

    value: str | None = None
    gone: str | None = None
    unknown: bool = False

    def __repr__(self) -> str:
        return "Secret(…)"


class Courier:
    """Carries claimed deliveries, for a worker that decides when to claim.

    Outcomes are written together, many in a transaction. One that the database did not take is kept, and written
    before the worker claims anything else: while the database is away, for however long, nothing that was sent is
    sent again by this worker.

    Args:
        store: the queue.
        sender: makes the attempts.
        signing_secret: asks the host for an origin's secret, once per origin and claim (§5.3.6).
        delivery_finished: tells the host what has ended; ``None`` when it does not want to know.
    """

    def __init__(
        self,
        store: OutboxStore,
        sender: Sender,
        signing_secret: Callable[[Origin], Awaitable[str | None]],
        delivery_finished: Callable[[Delivery], Awaitable[None]] | None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._signing_secret = signing_secret
        self._delivery_finished = delivery_finished
        self._unwritten: list[Completion] = []
        self._writing = asyncio.Lock()
        self._gathering: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._failed = False
        self.stopping = False
        """Set when what has not begun is to be given back."""

    @property
    def unwritten(self) -> int:
        """How many outcomes wait to be written."""
        return len(self._unwritten)

    @property
    def behind(self) -> bool:
        """Whether outcomes are to be written before anything else is claimed."""
        return self._failed or len(self._unwritten) > BATCH

    async def secrets(self, claimed: Sequence[ClaimedDelivery]) -> Mapping[Origin | None, Secret]:
        """Ask the host for the signing secrets of claimed deliveries, once for each origin."""
        origins = list({delivery.origin for delivery in claimed if delivery.origin is not None})
        answers = await asyncio.gather(*(self._secret(origin) for origin in origins))
        return dict(zip(origins, answers, strict=True))

    async def _secret(self, origin: Origin) -> Secret:
        try:
            async with asyncio.timeout(HOST_SECONDS):
                # An empty secret is none: signing with it would only look safe.
                return Secret(value=await self._signing_secret(origin) or None)
        except OriginGone as exc:
            return Secret(gone=str(exc))
        except Exception:
            log.exception("the host could not give a signing secret; its deliveries wait")
            return Secret(unknown=True)

    async def deliver(self, delivery: ClaimedDelivery, secrets: Mapping[Origin | None, Secret]) -> None:
        """Make an attempt, or end or give back a delivery that gets none.

        The outcome is written a moment later, together with those that come meanwhile; `flush` waits for it.

        Raises:
            StorageUnavailable: it could not be ended or given back; it is claimed again later.
        """
        secret = secrets.get(delivery.origin, Secret())
        if self.stopping or secret.unknown:
            await self._store.release([delivery], 0.0 if self.stopping else HOST_RETRY_SECONDS)
            return
        ended = delivery.defect or secret.gone
        if ended is None and delivery.takeovers >= MAX_TAKEOVERS:
            ended = f"{delivery.takeovers} workers in a row did not finish this delivery"
        if ended is not None:
            if await self._store.bury(delivery, ended):
                log.warning("delivery %s is dead: %s", delivery.id, ended)
                await self._tell(delivery, "dead", delivery.attempts, Outcome(0, 0, error=ended))
            return
        outcome = await self._sender.send(delivery, secret.value)
        change = transition(delivery.attempts + 1, delivery.max_attempts, outcome)
        self._unwritten.append(Completion(delivery, outcome, change))
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._gather())

    async def _gather(self) -> None:
        """Write outcomes while there are any; after a failure the worker decides when to try again."""
        try:
            while self._unwritten and not self._failed:
                await asyncio.sleep(GATHER_SECONDS)
                with suppress(StorageUnavailable):
                    await self._write()
        finally:
            self._gathering = None

    async def flush(self) -> None:
        """Write every outcome that waits, and see the host take note.

        Raises:
            StorageUnavailable: the rest is kept.
        """
        await self._write()
        if self._telling:
            await asyncio.wait(self._telling)

    async def _write(self) -> None:
        async with self._writing:
            while self._unwritten:
                batch, self._unwritten = self._unwritten[:BATCH], self._unwritten[BATCH:]
                try:
                    held = await self._store.complete(batch)
                except BaseException as exc:
                    self._unwritten = batch + self._unwritten
                    self._failed = isinstance(exc, StorageUnavailable)
                    raise
                await self._note(batch, held)
            self._failed = False

    async def _note(self, batch: Sequence[Completion], held: set[str]) -> None:
        for each in batch:
            if each.delivery.id not in held:
                log.warning("delivery %s was taken over by another worker", each.delivery.id)
        if self._delivery_finished is None:
            return
        ended = [each for each in batch if each.delivery.id in held and each.change.status in FINISHED]
        while len(self._telling) >= TELLING:
            await asyncio.wait(self._telling, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._tell_all(ended))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_all(self, ended: Sequence[Completion]) -> None:
        await asyncio.gather(
            *(
                self._tell(each.delivery, each.change.status, each.delivery.attempts + 1, each.outcome)
                for each in ended
            )
        )

    async def _tell(
        self,
        delivery: ClaimedDelivery,
        status: Status,
        attempts: int,
        outcome: Outcome,
    ) -> None:
        if delivery.origin is None or self._delivery_finished is None:
            return  # an unreadable origin is nothing that a host could find it by
        if status != "delivered" and status != "dead":  # noqa: PLR1714  narrows the type
            return
        finished = Delivery(
            id=delivery.id,
            organization_id=delivery.organization_id,
            agent_id=delivery.agent_id,
            origin=delivery.origin,
            event_id=delivery.event_id,
            event_type=delivery.event_type,
            url=delivery.url,
            status=status,
            attempts=attempts,
            status_code=outcome.status_code,
            error=outcome.error,
        )
        try:
            async with asyncio.timeout(HOST_SECONDS):
                await self._delivery_finished(finished)
        except Exception:
            log.exception("the host failed to take note of delivery %s", delivery.id)
