"""The delivery worker: once a tick it claims what is due, sends it, and writes what came of it (§8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from flowactions_hookspecs import Delivery, Origin, OriginGone
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox.delivery import MAX_TAKEOVERS, Outcome, Transition, transition
from flowactions_plugin.outbox.sender import Sender
from flowactions_plugin.outbox.store import ClaimedDelivery, OutboxStore

log = logging.getLogger("flowactions.outbox")

HOST_SECONDS: Final = 5.0
"""How long the host may take over a signing secret, or over taking note; within the lease's margin."""

HOST_RETRY_SECONDS: Final = 30.0
"""How long a row waits when the host failed to say what its signing secret is."""

RECALL_SECONDS: Final = 60.0
"""How often the worker looks for rows that a clock set back has left behind."""

OUTAGE_CAP_SECONDS: Final = 30.0


def outage_delay(failures: int) -> float:
    """Give the seconds to wait after the database failed ``failures`` times in a row: 0.5, 1, 2, … 30."""
    return min(OUTAGE_CAP_SECONDS, 0.5 * 2.0 ** min(failures - 1, 10))


class Secret(NamedTuple):
    """What the host said of an origin's secret: the value, why it has none, or that it could not say."""

    value: str | None = None
    gone: str | None = None
    unknown: bool = False

    def __repr__(self) -> str:
        return "Secret(…)"


class _Attempted(NamedTuple):
    """An attempt that was made, and what is to be written of it."""

    delivery: ClaimedDelivery
    outcome: Outcome
    change: Transition


class Worker:
    """Delivers what is in the outbox.

    An outcome that the database did not take is kept, and written before anything else is claimed: while the
    database is away, for however long, nothing that was sent is sent again by this worker.

    Args:
        store: the queue.
        sender: makes the attempts.
        signing_secret: asks the host for an origin's secret, once per origin and tick (§5.3.6).
        delivery_finished: tells the host what has ended.
        tick_seconds: from the start of a tick to the start of the next.
        claim_limit: rows per tick.
        per_destination: rows in flight to one destination; ``None``: as many as there are.
    """

    def __init__(
        self,
        store: OutboxStore,
        sender: Sender,
        signing_secret: Callable[[Origin], Awaitable[str | None]],
        delivery_finished: Callable[[Delivery], Awaitable[None]],
        *,
        tick_seconds: float,
        claim_limit: int,
        per_destination: int | None = None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._signing_secret = signing_secret
        self._delivery_finished = delivery_finished
        self._tick_seconds = tick_seconds
        self._claim_limit = claim_limit
        self._per_destination = per_destination
        self._unwritten: list[_Attempted] = []
        self._stopping = False
        self._recall_at = 0.0

    async def run(self) -> None:
        """Tick at once, then every ``tick_seconds``, until cancelled.

        Ticks never overlap: one that takes longer than a period is followed by the next at once. While the
        database is away, the outage is logged once and tried again with backoff.

        On cancellation, what is being sent is finished within its deadline and its outcome written; what was
        claimed and not begun is given back.
        """
        self._stopping = False
        try:
            await self._keep_ticking()
        except asyncio.CancelledError:
            await self._last_words()
            raise

    async def _keep_ticking(self) -> None:
        failures = 0
        while True:
            try:
                pause = await self._to_the_end(self._round())
                if failures:
                    log.info("the outbox is reachable again")
                failures = 0
            except StorageUnavailable as exc:
                failures += 1
                if failures == 1:
                    log.error("the outbox is out of reach, trying again with backoff: %s", exc)  # noqa: TRY400
                await asyncio.sleep(outage_delay(failures))
            else:
                await self._rest(pause)

    async def _round(self) -> float:
        """Do a tick's work, and give the seconds until the next."""
        clock = asyncio.get_running_loop().time
        started = clock()
        await self._recall()
        await self.tick()
        return started + self._tick_seconds - clock()

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def _recall(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._recall_at:
            recalled = await self._store.recall()
            if recalled:
                log.warning("%s deliveries were due far ahead: the clock was set back; they go on", recalled)
            self._recall_at = now + RECALL_SECONDS

    async def _to_the_end(self, work: Awaitable[float]) -> float:
        """Await a round to its end even when cancelled meanwhile, then be cancelled."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._stopping = True
            await asyncio.wait({task})
            if not task.cancelled() and isinstance(task.exception(), StorageUnavailable):
                log.warning("stopping while the outbox is out of reach: %s", task.exception())
            raise

    async def _last_words(self) -> None:
        with suppress(StorageUnavailable):
            await self._write_kept()
        if self._unwritten:
            log.warning(
                "the outcomes of %s deliveries could not be written; they will be sent again under the same id",
                len(self._unwritten),
            )

    async def tick(self) -> int:
        """Write what is left to write, claim up to the limit, make one attempt for each row, write every outcome.

        Returns:
            How many rows were claimed.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._write_kept()
        claimed = await self._store.claim(self._claim_limit, per_destination=self._per_destination)
        secrets = await self._secrets(claimed)
        results = await asyncio.gather(
            *(self._deliver(delivery, secrets) for delivery in claimed), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(claimed)

    async def _secrets(self, claimed: Sequence[ClaimedDelivery]) -> Mapping[Origin | None, Secret]:
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

    async def _deliver(self, delivery: ClaimedDelivery, secrets: Mapping[Origin | None, Secret]) -> None:
        secret = secrets.get(delivery.origin, Secret())
        if self._stopping or secret.unknown:
            await self._store.release(delivery, 0.0 if self._stopping else HOST_RETRY_SECONDS)
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
        self._unwritten.append(_Attempted(delivery, outcome, change))
        await self._write_kept()

    async def _write_kept(self) -> None:
        while self._unwritten:
            attempted = self._unwritten.pop()
            try:
                await self._write(attempted)
            except StorageUnavailable:
                self._unwritten.append(attempted)
                raise

    async def _write(self, attempted: _Attempted) -> None:
        delivery, outcome, change = attempted
        if not await self._store.complete(delivery, outcome, change):
            log.warning("delivery %s was taken over by another worker", delivery.id)
        elif change.status == "delivered" or change.status == "dead":  # noqa: PLR1714  narrows the type
            await self._tell(delivery, change.status, delivery.attempts + 1, outcome)

    async def _tell(
        self,
        delivery: ClaimedDelivery,
        status: Literal["delivered", "dead"],
        attempts: int,
        outcome: Outcome,
    ) -> None:
        if delivery.origin is None:
            return  # unreadable, so there is nothing that a host could find it by
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
