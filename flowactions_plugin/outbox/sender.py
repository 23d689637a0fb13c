"""One attempt: sign, send, read a little, all under one deadline (§4.5, §5.3, §8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from flowactions_plugin.clock import Clock, lease_clock
from flowactions_plugin.errors import EgressRefused, HostFailed, SendFailed
from flowactions_plugin.outbox.claimed import ClaimedDelivery
from flowactions_plugin.outbox.deadline import Deadline, StallMonitor
from flowactions_plugin.outbox.delivery import Aborted, Outcome, Timing, retry_after
from flowactions_plugin.outbox.egress import Destination
from flowactions_plugin.outbox.resources import shortage
from flowactions_plugin.outbox.signature import attempt_headers, sign

ERROR_LENGTH: Final = 500

NOTICEABLE: Final = 0.1
"""Which part of the deadline this process may lose before a failure counts for nothing."""

Look: TypeAlias = Callable[[str], Awaitable[Destination]]
"""Reads a stored URL by the rules for an authored one; raises `EgressRefused`."""


class Progress:
    """How far an attempt has got, as its transport tells it.

    Attributes:
        phase: what is being done, to follow "while": ``resolving the name``, ``connecting``, …
        refine: gives the phase more exactly, where that costs something.
        answer: the status and headers of the answer, as soon as they are there.
    """

    def __init__(self) -> None:
        self.phase = "resolving the name"
        self.refine: Callable[[], str] | None = None
        self.answer: Answer | None = None

    def settle(self) -> None:
        """Find out the exact phase, before the attempt is interrupted and nothing can be seen of it any more."""
        if self.refine is not None:
            self.phase = self.refine()


class Request(NamedTuple):
    """A request as it is to leave, to a destination that was read once."""

    method: str
    destination: Destination
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    progress: Progress


class Answer(NamedTuple):
    """What a receiver answered.

    Attributes:
        status_code: of the final response.
        headers: found by their names in any case.
        start: the body's first bytes, as they came, at most `RESPONSE_KEPT_BYTES`.
    """

    status_code: int
    headers: Mapping[str, str]
    start: bytes


class Transport(Protocol):
    """Makes requests; it follows no redirects and decompresses nothing."""

    async def post(self, request: Request) -> Answer:
        """Send a request, and read the start of its answer; its `Progress` is kept up to date.

        Raises:
            EgressRefused: an address is forbidden.
            HostFailed: the transport is the host's, and does not do what one has to.
            SendFailed: there is no answer; the message says why.
        """

    async def aclose(self) -> None:
        """Close every connection."""


class Sender:
    """Sends deliveries through one transport.

    Args:
        transport: the way out.
        look: reads a row's URL and checks what the transport does not check by itself.
        clock: Unix seconds, for the signature's timestamp.
        timer: monotonic seconds, for durations.
        monitor: knows what time this process lost; ``None``: none.
        timing: the deadline.

    Attributes:
        timing: the same.
    """

    def __init__(
        self,
        transport: Transport,
        look: Look,
        clock: Clock,
        timer: Callable[[], float],
        monitor: StallMonitor | None = None,
        timing: Timing = Timing(),  # noqa: B008  immutable
    ) -> None:
        self._transport = transport
        self._look = look
        self._clock = clock
        self._timer = timer
        self._monitor = StallMonitor(lease_clock) if monitor is None else monitor
        self.timing = timing
        self._closed = False

    def longest_stall(self) -> float:
        """Tell for how many seconds this process stood still at once since it was asked last."""
        return self._monitor.take_longest()

    def too_late(self, delivery: ClaimedDelivery) -> bool:
        """Tell whether the rest of a claim is too short for an attempt."""
        needed = self.timing.deadline_seconds + self.timing.margin_seconds
        return self._monitor.now() + needed > delivery.lease_end

    async def send(self, delivery: ClaimedDelivery, secret: str | None) -> Outcome | Aborted:
        """Make one attempt. Whatever the receiver does is an outcome, never an exception.

        Args:
            delivery: the claimed row, with the exact bytes to send.
            secret: the signing secret; ``None`` sends unsigned.

        Returns:
            What came of it; `Aborted` when it failed for a reason of this side.
        """
        now = self._clock()
        started = self._timer()
        progress = Progress()
        answer: Answer | None = None
        failure: Exception | None = None
        latest = delivery.lease_end - self.timing.margin_seconds / 2
        deadline = Deadline(self._monitor, self.timing.deadline_seconds, latest, progress.settle)
        try:
            async with deadline:
                destination = await self._look(delivery.url)
                headers = _signed(delivery, secret, int(now))
                answer = await self._transport.post(
                    Request(delivery.method, destination, headers, delivery.body, progress)
                )
        except Exception as exc:  # noqa: BLE001  the stack beneath raises far more than it documents
            failure = exc
        started_at, duration = int(now * 1000), int((self._timer() - started) * 1000)
        if failure is not None:
            refused = isinstance(failure, EgressRefused)
            aborted = None if refused else self._aborted(failure, deadline)
            if aborted is None:
                error = self._words(failure, deadline, progress)
                return Outcome(started_at, duration, error=error, final=refused)
            answer = progress.answer  # an answer that was there counts as what it says, though it was cut short
            if answer is None:
                return aborted
        assert answer is not None  # noqa: S101  there was no failure
        asked = retry_after(answer.status_code, answer.headers.get("retry-after"), now)
        return Outcome(started_at, duration, answer.status_code, response=answer.start, retry_after=asked)

    def _aborted(self, failure: Exception, deadline: Deadline) -> Aborted | None:
        """Tell why a failure is none of the destination's or the network's, if so."""
        if isinstance(failure, HostFailed):
            return Aborted("host", str(failure), waits=True)
        if self._closed:
            return Aborted("stopped", "this worker has closed its connections")
        lack = shortage(failure)
        if lack is not None:
            return Aborted("resources", f"this process has no resources left for it: {lack}")
        if deadline.expired and deadline.elapsed >= self.timing.deadline_seconds:
            return None  # what was lost was added: the receiver had all of its time
        if deadline.lost >= NOTICEABLE * self.timing.deadline_seconds:
            return Aborted("stall", f"this process stood still for {deadline.lost:.1f} s meanwhile")
        return None

    def _words(self, failure: Exception, deadline: Deadline, progress: Progress) -> str:
        if deadline.expired and isinstance(failure, TimeoutError):
            return f"timed out after {self.timing.deadline_seconds:g} s while {progress.phase}"
        if isinstance(failure, EgressRefused):
            return str(failure)
        if isinstance(failure, SendFailed):
            return str(failure)[:ERROR_LENGTH]
        return f"{type(failure).__name__}: {failure}"[:ERROR_LENGTH]

    async def aclose(self) -> None:
        """Close the transport; a request that this cuts is no attempt."""
        self._closed = True
        await self._transport.aclose()


def _signed(delivery: ClaimedDelivery, secret: str | None, timestamp: int) -> list[tuple[str, str]]:
    signature = None if secret is None else sign(secret, timestamp, delivery.body or b"")
    return attempt_headers(delivery.headers, str(timestamp), signature)
