"""Receivers that misbehave, each a raw server on loopback: every attempt ends in time, with an outcome."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from flowactions_plugin.egress.attempt import FLAWED, Outcome
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from tests.loopback import black_hole
from tests.plugin.egress.receivers import (
    BOMB,
    MISBEHAVIOUR,
    answering,
    serving,
)
from tests.queueing import Queue, a_schedule
from tests.recorder import recorder, status
from tests.sending import Message, validate

pytestmark = pytest.mark.ci

GROWTH = 20 * 1024 * 1024
"""How much memory all of them together may cost a worker."""


@asynccontextmanager
async def transport() -> AsyncIterator[OutboundTransport]:
    made = OutboundTransport(EgressGuard(development=True, resolve=Resolver(8)), 100)
    try:
        yield made
    finally:
        await made.aclose()


async def attempt(
    transport: OutboundTransport, url: str, method: str = "POST", seconds: float = 300.0
) -> Outcome:
    """Make one attempt."""
    made = Sender(transport, validate, time.time, time.monotonic, deadline_seconds=seconds)
    outcome = await made.send(Message(url=url, method=method), None)
    assert isinstance(outcome, Outcome)
    return outcome


async def test_every_attempt_ends_in_time_whatever_the_receiver_does(queue: Queue) -> None:
    """All at once in one tick: each has the outcome of §3.1 in time, and the worker's memory stays small."""
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(transport())
        rows, took = {}, dict[str, int]()
        for name, (serve, _, _) in MISBEHAVIOUR.items():
            rows[name] = await queue.put(url=await stack.enter_async_context(serving(serve)))
        async with memory() as used:
            assert await a_schedule(queue, sender, limit=100).tick() == len(rows)
        assert used.growth < GROWTH
        for name, (_, state, said) in MISBEHAVIOUR.items():
            found = await queue.queries.stored(rows[name], "acme")
            assert found is not None
            row, (attempt,) = found
            assert (name, row.status, row.attempts) == (name, state, 1), row.last_error
            note = FLAWED if '"flawed"' in (attempt.phases or "") else None
            assert said in f"{row.last_error} {note}", (name, row.last_error, note)
            took[name] = attempt.duration_ms
            assert len(attempt.response or b"") <= 2048, name
            if name == "gzip bomb":
                shown = BOMB[:2048].decode(errors="replace").replace("\0", "\ufffd").encode()
                assert attempt.response == shown[:2048].decode(errors="ignore").encode()  # nothing unpacked
        # One deadline for all: none outlasts the one whose receiver did nothing but wait. A pause of this process
        # between the ends of two attempts makes a difference, and those that go on would do so without end.
        assert max(took.values()) <= 1.5 * took["accepts and never answers"], took


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(code: int) -> None:
    """Where it leads hears nothing, though it would be allowed (§4.5)."""
    async with (
        recorder() as elsewhere,
        transport() as sender,
        serving(answering(status(code, f"location: {elsewhere.url}"))) as url,
    ):
        assert ((await attempt(sender, url)).status_code, elsewhere.requests) == (code, [])


async def test_a_receiver_that_does_not_read_ends_at_the_deadline(queue: Queue) -> None:
    """More than fits into the sockets between: the attempt ends while it is still sending."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving(deaf) as url, transport() as sender:
        # Beside one that needs no time to be sent.
        rows = [await queue.put(url=url, body=body) for body in (b"x" * 20_000_000, b"{}")]
        await a_schedule(queue, sender).tick()
        took, errors = [], []
        for row_id in rows:
            found = await queue.queries.stored(row_id, "acme")
            assert found is not None
            row, (attempt,) = found
            errors.append((row.status, row.last_error))
            took.append(attempt.duration_ms)
        assert took[0] <= 1.5 * took[1]
        assert errors == [
            ("retrying", "timed out after 10 s while sending the request"),
            ("retrying", "timed out after 10 s while waiting for the answer"),
        ]


class Memory:
    """How much this process has grown at the most."""

    def __init__(self) -> None:
        gc.collect()
        self._before = self._now()
        self.growth = 0

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    async def watch(self) -> None:
        while True:
            self.growth = max(self.growth, self._now() - self._before)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def memory() -> AsyncIterator[Memory]:
    used = Memory()
    watching = asyncio.create_task(used.watch())
    try:
        yield used
    finally:
        watching.cancel()


class TestPhases:
    """What an attempt was doing when its time was up (§8)."""

    @staticmethod
    async def error(url: str, guard: EgressGuard | None = None) -> str | None:
        guard = guard or EgressGuard(development=True, resolve=Resolver(8))
        made = OutboundTransport(guard, 100)
        try:
            return (await attempt(made, url, seconds=1.5)).error
        finally:
            await made.aclose()

    async def test_connecting(self) -> None:
        """A host that takes no more connections, and does not say so."""
        with black_hole() as port:
            said = await self.error(f"http://127.0.0.1:{port}/")
        assert said == "timed out after 1.5 s while connecting"

    async def test_tls(self) -> None:
        """A server that takes the connection, and says nothing of TLS."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with serving(serve) as url:
            said = await self.error(url.replace("http:", "https:"))
        assert said == "timed out after 1.5 s while making the TLS handshake"
