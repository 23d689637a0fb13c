"""A receiver that answers the first request of each connection, and closes it as soon as the next one arrives."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias

from tests.recorder import OK

End: TypeAlias = Callable[[socket.socket], object]

WAIT_SECONDS: Final = 300.0
"""Only for a test that would otherwise never end."""


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _unwrap(connection: socket.socket) -> None:
    assert isinstance(connection, ssl.SSLSocket)
    connection.unwrap()


UNREAD: Final = "close unread"
"""Close without reading what has arrived, which the other side sees as a reset."""

ENDS: Final[Mapping[str, End]] = {
    UNREAD: lambda connection: None,
    "close": lambda connection: None,
    "shut down": lambda connection: connection.shutdown(socket.SHUT_WR),
    "reset": _reset,
    "close_notify": _unwrap,
}
"""How a connection ends, after its second request was read unless the name says otherwise."""


class Closing:
    """What has reached the receiver.

    Attributes:
        connections: how many were made.
        bodies: how often each body was read.
    """

    def __init__(self, end: str, tls: ssl.SSLContext | None, at_first: int) -> None:
        self.connections = 0
        self.bodies: Counter[bytes] = Counter()
        self._end = end
        self._tls = tls
        self._at_first = threading.Barrier(at_first)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.getsockname()[1]}/"

    def accept(self) -> None:
        """Serve each connection in a thread of its own, until the server is closed."""
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._server.accept()
                raw.settimeout(WAIT_SECONDS)
                self.connections += 1
                together = self.connections <= self._at_first.parties
                thread = threading.Thread(target=self._serve, args=(raw, together))
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """End it, once the other side has closed its connections."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)

    def _serve(self, raw: socket.socket, together: bool) -> None:
        with (
            contextlib.suppress(OSError),
            self._tls.wrap_socket(raw, server_side=True) if self._tls else raw as connection,
        ):
            self._read(connection)
            if together:
                self._at_first.wait(WAIT_SECONDS)
            connection.sendall(OK)
            waiting = select.poll()
            waiting.register(connection, select.POLLIN)
            waiting.poll(WAIT_SECONDS * 1000)
            if self._end == UNREAD or self._read(connection):
                ENDS[self._end](connection)

    def _read(self, connection: socket.socket) -> bytes:
        """Read a request whose body ends with a full stop; return the body, empty at the end of the connection."""
        data = b""
        while not data.endswith(b"."):
            part = connection.recv(1 << 20)
            if not part:
                return b""
            data += part
        body = data.partition(b"\r\n\r\n")[2]
        self.bodies[body] += 1
        return body


@contextmanager
def closing(end: str, tls: ssl.SSLContext | None = None, at_first: int = 1) -> Iterator[Closing]:
    """Run such a receiver.

    Args:
        end: how it ends a connection when the second request arrives, one of `ENDS`.
        tls: the server's certificate.
        at_first: how many connections it answers together at first.
    """
    receiver = Closing(end, tls, at_first)
    accepting = threading.Thread(target=receiver.accept)
    accepting.start()
    try:
        yield receiver
    finally:
        receiver.close()
        accepting.join(WAIT_SECONDS)
