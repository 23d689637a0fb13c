"""One attempt: sign, send, read a little, all under one deadline (§4.5, §5.3, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import httpx

from flowactions_plugin.clock import Clock
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.outbox.delivery import (
    DEADLINE_SECONDS,
    RESPONSE_KEPT_BYTES,
    Outcome,
    retry_after,
)
from flowactions_plugin.outbox.egress import parse_destination
from flowactions_plugin.outbox.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from flowactions_plugin.outbox.store import ClaimedDelivery

ERROR_LENGTH: Final = 500


class Sender:
    """Sends deliveries through one transport.

    Args:
        transport: follows no redirects and decompresses nothing.
        clock: Unix seconds, for the signature's timestamp.
        timer: monotonic seconds, for durations.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, clock: Clock, timer: Callable[[], float]) -> None:
        self._transport = transport
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
            parse_destination(delivery.url)  # a stored URL meets the rules of an authored one
            async with asyncio.timeout(DEADLINE_SECONDS):
                response = await self._transport.handle_async_request(_request(delivery, secret, int(now)))
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


def _request(delivery: ClaimedDelivery, secret: str | None, timestamp: int) -> httpx.Request:
    body = delivery.body or b""
    headers = [*delivery.headers, (TIMESTAMP_HEADER, str(timestamp))]
    if secret is not None:
        headers.append((SIGNATURE_HEADER, sign(secret, timestamp, body)))
    return httpx.Request(
        delivery.method,
        delivery.url,
        headers=[(name.encode(), value.encode()) for name, value in headers],
        content=body,
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
    return f"{type(exc).__name__}: {exc}"[:ERROR_LENGTH]
