"""One attempt: sign, send, read a little, all under one deadline (§4.5, §5.3, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import httpx

from flowactions_plugin.clock import Clock
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.outbox.delivery import (
    DEADLINE_SECONDS,
    RESPONSE_KEPT_BYTES,
    Outcome,
    retry_after,
)
from flowactions_plugin.outbox.egress import Destination
from flowactions_plugin.outbox.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from flowactions_plugin.outbox.store import ClaimedDelivery

ERROR_LENGTH: Final = 500

Look: TypeAlias = Callable[[str], Awaitable[Destination]]
"""Reads a stored URL by the rules for an authored one; raises `EgressRefused`."""


class Sender:
    """Sends deliveries through one transport.

    Args:
        transport: follows no redirects and decompresses nothing.
        look: reads a row's URL and checks what the transport does not check by itself.
        clock: Unix seconds, for the signature's timestamp.
        timer: monotonic seconds, for durations.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, look: Look, clock: Clock, timer: Callable[[], float]
    ) -> None:
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

        def outcome(**kept: object) -> Outcome:
            return Outcome(int(now * 1000), int((self._timer() - started) * 1000), **kept)  # type: ignore[arg-type]

        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                destination = await self._look(delivery.url)
                request = _request(delivery, destination, secret, int(now))
                response = await self._transport.handle_async_request(request)
                try:
                    kept = await _first_bytes(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            return outcome(error=f"timed out after {DEADLINE_SECONDS:g} s")
        except EgressRefused as exc:
            return outcome(error=str(exc), final=True)
        except Exception as exc:  # noqa: BLE001  the stack beneath raises far more than it documents
            return outcome(error=_described(exc))
        asked = retry_after(response.status_code, response.headers.get("retry-after"), now)
        return outcome(status_code=response.status_code, response=kept, retry_after=asked)


def _request(
    delivery: ClaimedDelivery, destination: Destination, secret: str | None, timestamp: int
) -> httpx.Request:
    body = delivery.body or b""
    headers = [*delivery.headers, (TIMESTAMP_HEADER, str(timestamp))]
    if secret is not None:
        headers.append((SIGNATURE_HEADER, sign(secret, timestamp, body)))
    target = destination.target.encode("ascii")
    return httpx.Request(
        delivery.method,
        # Made of what was checked, not read a second time by another parser's rules.
        httpx.URL(scheme=destination.scheme, host=destination.host, port=destination.port, raw_path=target),
        headers=[(name.encode(), value.encode()) for name, value in headers],
        content=body,
        extensions={"target": target},
    )


async def _first_bytes(response: httpx.Response) -> bytes:
    assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  an async transport gives no other
    kept = bytearray()
    async for chunk in response.stream:
        kept += chunk
        if len(kept) >= RESPONSE_KEPT_BYTES:
            break
    return bytes(kept[:RESPONSE_KEPT_BYTES])


def _described(exc: Exception) -> str:
    reason = str(exc) if isinstance(exc, httpx.TransportError) and str(exc) else f"{type(exc).__name__}: {exc}"
    return reason[:ERROR_LENGTH]
