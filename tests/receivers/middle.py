"""What stands between the worker and a receiver, and changes requests on their way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from tests.loopback import listening
from tests.receivers.cases import SIGNATURE, TIMESTAMP

_SIGNATURE_LINE: Final = re.compile(rb"(?i)\r\n" + SIGNATURE.encode() + rb": [^\r]+")
_TIMESTAMP_LINE: Final = re.compile(rb"(?i)(\r\n" + TIMESTAMP.encode() + rb": )(\d+)")

Change = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""Takes a request's head and body, and gives those that arrive."""


def _later(head: bytes, body: bytes) -> tuple[bytes, bytes]:
    return _TIMESTAMP_LINE.sub(lambda line: line[1] + str(int(line[2]) + 1).encode(), head), body


CHANGES: Final[dict[str, Change]] = {
    "/tampered": lambda head, body: (head, body[:-1] + bytes([body[-1] ^ 1])),
    "/stamped-again": _later,
    "/stripped": lambda head, body: (_SIGNATURE_LINE.sub(b"", head), body),
    "/twice": lambda head, body: (_SIGNATURE_LINE.sub(lambda line: line[0] * 2, head), body),
}
"""By path; every other request arrives as it was sent."""


@asynccontextmanager
async def in_the_middle(port: int) -> AsyncIterator[str]:
    """Forward requests to a server; give the URL that stands for it."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        path = head.split(b" ", 2)[1].decode()
        if path in CHANGES:
            changed = CHANGES[path](head, body)
            assert changed != (head, body), f"nothing was changed on the way to {path}"
            head, body = changed
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        requests.write(head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n" + body)
        writer.write(await answers.read())
        await writer.drain()
        requests.close()
        await requests.wait_closed()

    async with listening(forward) as own:
        yield f"http://127.0.0.1:{own}"
