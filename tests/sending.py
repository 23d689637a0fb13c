"""Attempts by themselves, for tests that need no queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from flowactions_plugin.egress.attempt import Outcome, Transport
from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.host_transport import HostTransport
from flowactions_plugin.egress.lag import Deadline, LagMeter
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender, Validate
from flowactions_plugin.egress.transport import OutboundTransport


class Message(NamedTuple):
    """What is sent."""

    url: str = "http://127.0.0.1/"
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = (("x", "1"),)
    body: bytes | None = b"{}"


async def validate(url: str) -> Destination:
    """Parse a URL, as for the plugin's own transport, which checks addresses when it dials them."""
    return parse_destination(url)


async def attempt(
    transport: Any, url: str = "http://127.0.0.1/", check: Validate = validate, now: float = 0.0
) -> Outcome:
    """Make one attempt, unsigned."""
    outcome = await Sender(transport, check, lambda: now, lambda: 0.0).send(Message(url=url), None)
    assert isinstance(outcome, Outcome)
    return outcome


def as_transport(answer: Any) -> Transport:
    """Make a transport of what answers in place of one; a transport is one already."""
    return answer if hasattr(answer, "send") else HostTransport(httpx.MockTransport(answer))


class Deadlines(LagMeter):
    """Deadlines of attempts, which pass when the test says so, and no sooner on a machine that is busy."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self._waiting: set[Deadline] = set()

    def share(self, deadline: Deadline, at: float) -> set[Deadline]:
        """Have a deadline wait for the test."""
        self._waiting.add(deadline)
        return self._waiting

    async def pass_now(self) -> None:
        """End all attempts, once they have read what has arrived by now."""
        for _ in range(5):
            await asyncio.sleep(0.01)
        for deadline in tuple(self._waiting):
            deadline.end()


class SlowAnswer:
    """A receiver that answers when the test says so; it answers in place of a transport.

    Args:
        status: of its answers.

    Attributes:
        requests: that have arrived.
        arrived: is set by the first request.
        released: the test sets it, and requests are answered.
    """

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.requests: list[httpx.Request] = []
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Take a request, and answer it once the test has said so."""
        self.requests.append(request)
        self.arrived.set()
        await self.released.wait()
        return httpx.Response(self._status)


@asynccontextmanager
async def own_transport() -> AsyncIterator[OutboundTransport]:
    """Run the plugin's own transport, in development."""
    made = OutboundTransport(EgressGuard(development=True, resolve=Resolver(8)), 1000)
    try:
        yield made
    finally:
        await made.aclose()
