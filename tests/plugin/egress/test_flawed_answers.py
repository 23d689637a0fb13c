"""Answers with a flaw after their status line, each of a raw server on loopback (§4.5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from flowactions_plugin.egress.attempt import FLAWED, Outcome
from flowactions_plugin.egress.sender import Sender
from tests.loopback import Serve
from tests.plugin.egress.receivers import ENDLESS, answering, request, reset_at_once, serving
from tests.sending import Deadlines, Message, own_transport, validate


def reset_after(head: bytes) -> Serve:
    """Answer with the start of a head, and reset the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)  # or the reset discards it
        await reset_at_once(reader, writer)

    return serve


FLAWS: dict[str, Callable[[bytes], Serve]] = {
    "drips headers": lambda head: answering(head, b"x: 1\r\n", pause=0.01, times=9),
    "drips a body": lambda head: answering(head + b"content-length: 9\r\n\r\n", b"x", pause=0.01, times=2),
    "breaks off": lambda head: answering(head + b"content-length: 9\r\n\r\nhalf"),
    "both lengths": lambda head: answering(head + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok"),
    "headers without end": lambda head: answering(head, b"x-more: 1\r\n" * 50, times=ENDLESS),
    "reset": reset_after,
}


@pytest.mark.parametrize("flaw", FLAWS)
async def test_an_answer_with_a_flaw_counts_by_its_status_line(flaw: str) -> None:
    """Also at the deadline, at a reset and at the end of the connection; ``Retry-After`` counts if its line was read."""

    async def attempt(status: int) -> Outcome:
        head = b"HTTP/1.1 %d Odd\r\nRetry-After: 7\r\n" % status
        deadlines = Deadlines()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await FLAWS[flaw](head)(reader, writer)
            if flaw.startswith("drips"):
                await deadlines.pass_now()

        async with serving(serve) as url, own_transport() as transport:
            sender = Sender(transport, validate, time.time, time.monotonic, deadlines)
            outcome = await sender.send(Message(url=url), None)
        assert isinstance(outcome, Outcome)
        return outcome

    statuses = (200, 404, 429, 503)
    for status, outcome in zip(statuses, await asyncio.gather(*map(attempt, statuses)), strict=True):
        assert (outcome.status_code, outcome.error, outcome.final) == (status, None, False)
        assert outcome.notes == (FLAWED,)
        assert outcome.retry_after == (7 if status in {429, 503} else None)
