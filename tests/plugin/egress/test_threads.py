"""Transports in several threads, each with an event loop of its own, beside each other: no response is another's."""

from __future__ import annotations

import asyncio
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES, Progress, Request
from flowactions_plugin.egress.connection import Connection
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.pool import Pool
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.transport import OutboundTransport
from tests.authority import inner_authority
from tests.loopback import listening
from tests.loops import LOOPS, Loop
from tests.recorder import OK, status

THREADS = 4
EXCHANGES = 400
"""For each thread. Through one buffer for all threads, a few of them get what is another's, in most runs."""


async def answering(
    number: int, together: threading.Barrier, authority: str, tls: ssl.SSLContext | None
) -> int:
    """Exchange requests with a receiver of this thread; return how many got its answer to just that request."""
    code, page = (200, 500)[number % 2], b"-" * (RESPONSE_KEPT_BYTES - 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = b"%d %b %b" % (number, head.split()[1], page)
            writer.write(b"HTTP/1.1 %d It\r\ncontent-length: %d\r\n\r\n%b" % (code, len(body), body))

    guard = EgressGuard(development=True, resolve=Resolver(1))
    transport = OutboundTransport(guard, 20, authorities=authority)
    right = 0
    async with listening(serve, tls=tls) as port:
        left = iter(range(EXCHANGES))

        async def exchange() -> None:
            nonlocal right
            for each in left:
                url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/{each}"
                response = await transport.send(Request("GET", parse_destination(url), (), None, Progress()))
                body = b"%d /%d %b" % (number, each, page)
                right += (response.status_code, response.body_prefix) == (code, body)

        await asyncio.to_thread(together.wait)
        try:
            async with asyncio.timeout(300):
                await asyncio.gather(*(exchange() for _ in range(10)))
        finally:
            await transport.aclose()
    return right


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("loop", LOOPS)
def test_responses_stay_in_their_thread(tmp_path: Path, loop: Loop, secured: bool) -> None:
    """Each request gets the status and the body of its own receiver, whatever another thread reads meanwhile."""
    authority, context = inner_authority(tmp_path)
    together = threading.Barrier(THREADS)

    def run(number: int) -> int:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(answering(number, together, authority, context if secured else None))

    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(run, range(THREADS))) == [EXCHANGES] * THREADS


async def test_what_is_read_is_kept_by_transport_and_not_by_connection() -> None:
    """What one transport has read stays while another one reads; the connections of one share their buffer."""
    clock = asyncio.get_running_loop().time
    pools = Pool(2, clock), Pool(2, clock)
    first, beside, other = (Connection("key", "where", pool) for pool in (pools[0], *pools))
    reading = [
        asyncio.create_task(each.request(b"GET / HTTP/1.1\r\n\r\n", b"", Progress(), head_only=False))
        for each in (first, other)
    ]
    await asyncio.sleep(0)
    assert first.get_buffer(-1) is beside.get_buffer(-1)
    # As of two event loops, each of which reads before either takes what it has read.
    for each, answer in ((first, OK), (other, status(500))):
        each.get_buffer(-1)[: len(answer)] = answer
    first.buffer_updated(len(OK))
    other.buffer_updated(len(status(500)))
    async with asyncio.timeout(300):
        assert [each.status_code for each in await asyncio.gather(*reading)] == [200, 500]
