from __future__ import annotations

import asyncio
import time

import httpx

from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.sender import Sender
from tests.loopback import listening
from tests.sending import Message, as_transport, own_transport, validate


async def test_an_attempt_ends_at_its_deadline() -> None:
    """A receiver that never answers is a failure after the total deadline (§8)."""

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    sender = Sender(as_transport(hang), validate, lambda: 0.0, lambda: 0.0, deadline_seconds=0.05)
    outcome = await sender.send(Message(), None)
    assert isinstance(outcome, Outcome)
    assert outcome.error == "timed out after 0.05 s while sending the request or waiting for the answer"


async def test_a_request_cut_by_closing_the_transport_is_no_attempt() -> None:
    """A request under way when the transport is closed comes to nothing that counts."""
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()

    async with listening(serve) as port, own_transport() as transport:
        sender = Sender(transport, validate, time.time, time.monotonic)
        sending = asyncio.create_task(sender.send(Message(url=f"http://127.0.0.1:{port}/"), None))
        await arrived.wait()
        await sender.aclose()
        outcome = await sending
    assert isinstance(outcome, Aborted)
    assert (outcome.cause, outcome.waits) == ("stopped", False)
