"""Receivers that misbehave, each in its own way."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flowactions_plugin.egress.attempt import FLAWED
from tests.loopback import Serve, listening
from tests.recorder import OK, status


async def request(reader: asyncio.StreamReader) -> None:
    """Read a request, headers and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))


def answering(first: bytes, *parts: bytes, pause: float = 0.0, times: int = 1) -> Serve:
    """Answer with the first part, then with the others so many times over, with a pause after each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(first)
        for _ in range(times):
            for part in parts:
                writer.write(part)
                await writer.drain()
                if pause:
                    await asyncio.sleep(pause)

    return serve


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    await asyncio.sleep(60)


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Break off in the middle of an answer, with a RST."""
    await request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()
    raw: Any = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def reset_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raw: Any = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def half_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close its side without an answer, and go on listening."""
    await request(reader)
    writer.write_eof()
    await asyncio.sleep(60)


async def silent_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)


HEAD = b"HTTP/1.1 200 OK\r\n"


BOMB = gzip.compress(b"\0" * 1_000_000) * 50


ENDLESS = 10**9


MISBEHAVIOUR: dict[str, tuple[Serve, str, str]] = {
    # name: (what it does, the row's state, what is said of it)
    "drips a status line": (
        answering(b"HTTP/1.1 200 ", b"x", pause=0.12, times=100),
        "retrying",
        "timed out after 10 s while waiting for the answer",
    ),
    "drips headers": (answering(HEAD, b"x: 1\r\n", pause=0.12, times=100), "delivered", FLAWED),
    "drips one header": (answering(HEAD + b"x: ", b"y", pause=0.05, times=ENDLESS), "delivered", FLAWED),
    "drips a body": (
        answering(HEAD + b"content-length: 1000\r\n\r\n", b"y", pause=0.05, times=ENDLESS),
        "delivered",
        FLAWED,
    ),
    "body without end": (
        answering(
            HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n", times=ENDLESS
        ),
        "delivered",
        "",
    ),
    "headers without end": (answering(HEAD, b"x-more: 1\r\n" * 50, times=ENDLESS), "delivered", FLAWED),
    "a header without end": (answering(HEAD + b"x: ", b"y" * 4096, times=ENDLESS), "delivered", FLAWED),
    "a status line without end": (
        answering(b"HTTP/1.1 200 ", b"y" * 4096, times=ENDLESS),
        "retrying",
        "is not HTTP",
    ),
    "gzip bomb": (
        answering(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB), BOMB),
        "delivered",
        "",
    ),
    "redirect to loopback": (answering(status(302, "location: http://127.0.0.1:1/")), "retrying", ""),
    "redirect to metadata": (answering(status(307, "location: http://169.254.169.254/")), "retrying", ""),
    "100-continue flood": (
        answering(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50, times=ENDLESS),
        "retrying",
        "is not HTTP: more than 16 interim responses came before it",
    ),
    "101 unasked": (
        answering(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
        "retrying",
        "",
    ),
    "reset in the middle": (reset, "delivered", FLAWED),
    "reset at once": (reset_at_once, "retrying", "connection"),
    "half-close": (half_close, "retrying", "closed the connection without an answer"),
    "closes without an answer": (silent_close, "retrying", "closed the connection without an answer"),
    "not HTTP": (answering(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), "retrying", "is not HTTP"),
    # A complete answer counts, whatever comes with it or after it, and at whatever time.
    "204, then a body": (answering(b"HTTP/1.1 204 No\r\n\r\n", b"", b"hello", pause=0.3), "delivered", ""),
    "stray bytes after the body": (answering(OK + b"\x00stray"), "delivered", ""),
    "chunks of one byte": (
        answering(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000, times=ENDLESS),
        "delivered",
        "",
    ),
    "a chunk's extension without end": (
        answering(HEAD + b"transfer-encoding: chunked\r\n\r\n1;x=", b"y" * 4096, times=ENDLESS),
        "delivered",
        FLAWED,
    ),
    "trailers without end": (
        answering(
            HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"x: y\r\n" * 500, times=ENDLESS
        ),
        "delivered",
        FLAWED,
    ),
    "empty lines without end": (answering(b"\r\n", b"\r\n" * 1000, times=ENDLESS), "retrying", "is not HTTP"),
    "closes in the middle of the status line": (answering(HEAD[:-1]), "retrying", "broke its answer off"),
    "accepts and never answers": (never, "retrying", "timed out after 10 s while waiting for the answer"),
}


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a raw server and give its URL."""
    async with listening(serve, tls=tls) as port:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/"
