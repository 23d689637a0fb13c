"""One attempt: sign, send, read a little, all under one deadline (§4.5, §5.3, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from flowactions_plugin.clock import Clock
from flowactions_plugin.errors import EgressRefused, SendFailed
from flowactions_plugin.outbox.delivery import DEADLINE_SECONDS, Outcome, retry_after
from flowactions_plugin.outbox.egress import Destination
from flowactions_plugin.outbox.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from flowactions_plugin.outbox.store import ClaimedDelivery

ERROR_LENGTH: Final = 500

Look: TypeAlias = Callable[[str], Awaitable[Destination]]
"""Reads a stored URL by the rules for an authored one; raises `EgressRefused`."""


class Request(NamedTuple):
    """A request as it is to leave, to a destination that was read once."""

    method: str
    destination: Destination
    headers: Sequence[tuple[str, str]]
    body: bytes | None


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
        """Send a request, and read the start of its answer.

        Raises:
            EgressRefused: an address is forbidden.
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
    """

    def __init__(self, transport: Transport, look: Look, clock: Clock, timer: Callable[[], float]) -> None:
        self._transport = transport
        self._look = look
        self._clock = clock
        self._timer = timer

    async def send(self, delivery: ClaimedDelivery, secret: str | None) -> Outcome:
        """Make one attempt. Whatever the receiver does is an outcome, never an exception.

        Args:
            delivery: the claimed row, with the exact bytes to send.
            secret: the signing secret; ``None`` sends unsigned.
        """
        now = self._clock()
        started = self._timer()
        answer: Answer | None = None
        error, final = None, False
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                destination = await self._look(delivery.url)
                headers = _signed(delivery, secret, int(now))
                answer = await self._transport.post(
                    Request(delivery.method, destination, headers, delivery.body)
                )
        except TimeoutError:
            error = f"timed out after {DEADLINE_SECONDS:g} s"
        except EgressRefused as exc:
            error, final = str(exc), True
        except SendFailed as exc:
            error = str(exc)[:ERROR_LENGTH]
        except Exception as exc:  # noqa: BLE001  the stack beneath raises far more than it documents
            error = f"{type(exc).__name__}: {exc}"[:ERROR_LENGTH]
        started_at, duration = int(now * 1000), int((self._timer() - started) * 1000)
        if answer is None:
            return Outcome(started_at, duration, error=error, final=final)
        asked = retry_after(answer.status_code, answer.headers.get("retry-after"), now)
        return Outcome(started_at, duration, answer.status_code, response=answer.start, retry_after=asked)


def _signed(delivery: ClaimedDelivery, secret: str | None, timestamp: int) -> list[tuple[str, str]]:
    headers = [*delivery.headers, (TIMESTAMP_HEADER, str(timestamp))]
    if secret is not None:
        headers.append((SIGNATURE_HEADER, sign(secret, timestamp, delivery.body or b"")))
    return headers
