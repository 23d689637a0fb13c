"""A forward proxy on loopback: it tunnels and forwards, and refuses what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.loopback import listening

Decide = Callable[[str], bytes | None]
"""Given a request line: what the proxy answers itself; ``None``: it lets the request through."""

OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Proxy:
    """What was asked of it, and how it decides.

    Args:
        leads_to: the port to which every host leads.
    """

    def __init__(self, leads_to: int = 0) -> None:
        self.url = ""
        self.leads_to = leads_to
        self.asked: list[str] = []
        self.decide: Decide = lambda line: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or connect it to where it leads."""
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].decode()
        self.asked.append(line)
        answer = self.decide(line)
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.leads_to)
        if line.startswith("CONNECT"):
            writer.write(OPENED)
        else:
            back.write(head)
        async with asyncio.TaskGroup() as both:
            both.create_task(pumped(reader, back))
            both.create_task(pumped(there, writer))


@asynccontextmanager
async def proxying(leads_to: int = 0) -> AsyncIterator[Proxy]:
    """Run a proxy on a free loopback port."""
    proxy = Proxy(leads_to)
    async with listening(proxy.serve) as port:
        proxy.url = f"http://ada:s3cret@127.0.0.1:{port}"
        yield proxy


async def pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until they end."""
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()
