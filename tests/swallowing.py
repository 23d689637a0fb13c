"""Servers whose connections can lose their path: what arrives on them is dropped, and nobody is told."""

from __future__ import annotations

import asyncio
import ctypes
import struct
import sys
from collections import Counter
from socket import SOL_SOCKET

import pytest

from tests.loopback import Serve
from tests.recorder import OK
from tests.sending import Deadlines


class Swallowing:
    """Serves connections, and swallows what arrives on those that were made before a moment.

    Args:
        serve: one connection; by default, each request is read and answered.

    Attributes:
        connections: how many were made.
        bodies: how often each body was read.
        answers: whether requests are answered.
        deadlines: pass when a request was read that is not answered.
    """

    def __init__(self, serve: Serve | None = None) -> None:
        self.connections = 0
        self.bodies: Counter[bytes] = Counter()
        self.answers = True
        self.deadlines: Deadlines | None = None
        self._serve = serve or self._answer
        self._writers: list[asyncio.StreamWriter] = []

    def lose(self) -> None:
        """Drop every packet that arrives on a connection which is open now; new connections are not concerned.

        The kernel drops them by a socket filter that accepts nothing, so it sends no acknowledgement, reset or ICMP message.
        """
        if sys.platform != "linux":
            pytest.skip("only Linux has filters of sockets")
        program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(program)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections += 1
        self._writers.append(writer)
        await self._serve(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.answer_one(reader, writer)

    async def answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, and answer it."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        self.bodies[await reader.readexactly(size)] += 1
        if self.answers:
            writer.write(OK)
        elif self.deadlines is not None:
            await self.deadlines.pass_now()
