"""One connection to a receiver: writes a request, reads its response, and says whether it may be used again."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol, cast

from flowactions_plugin.egress.attempt import Progress, Response
from flowactions_plugin.egress.response_reader import NotHttp, ResponseReader
from flowactions_plugin.egress.transport_errors import broke, broke_off, closed_unanswered, not_http
from flowactions_plugin.errors import SendFailed

WRITE_BYTES: Final = 64 * 1024
"""How much of a large body is handed over at once, so that other requests proceed."""

SILENCE_MS: Final = 3000
"""How long the other side of a kept connection may leave a request unacknowledged, before the kernel ends the connection."""

_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it

_CLOSED_BY_PEER: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What a read or a write fails with when the other side has closed or reset the connection."""


_SILENT: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""How the kernel says that nothing was acknowledged."""


class ClosedKept(SendFailed):
    """The other side closed a connection that it had answered on before, or its path was lost; no byte came after this request.

    Attributes:
        is_lost: whether nothing acknowledged the request.
    """

    is_lost = False


class Keeper(Protocol):
    """The pool, as its connections see it.

    Attributes:
        buffer: what all connections of an event loop read to, in turn.
    """

    buffer: memoryview

    def released(self, connection: Connection, head: bytes) -> None:
        """Take a connection that has read a response with this head, and may take the next request."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def closed_early(self, key: str, *, is_certain: bool = False) -> None:
        """Record that a kept connection to a destination did not take its next request."""


def probe_when_idle(connection: socket.socket) -> None:
    """Have the kernel probe a connection while it is idle, and close it after three probes that nobody acknowledged."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPALIVE", 5), ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection(asyncio.BufferedProtocol):
    """A connection to one destination, for one request at a time.

    A connection on which anything came unasked, whose response was not read to the end, whose request was not written to
    the end, or that was to be closed is never used again (§4.5).

    Args:
        key: the destination's.
        where: its host and port, for messages.
        pool: told when the connection can take the next request, and when it is closed.

    Attributes:
        key: the same.
        may_begin: whether a request may go out on it.
        opened_at: when it was opened, by the pool's clock; the transport sets it.
        fit_until: until when it is kept, by the same clock; the pool sets it.
    """

    def __init__(self, key: str, where: str, pool: Keeper) -> None:
        self.key = key
        self._where = where
        self._pool = pool
        self._buffer = pool.buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._reader = ResponseReader()
        self._response: asyncio.Future[Response] | None = None  # of the request that is out
        self.may_begin = True
        self._is_small = True  # the request that is out
        self._is_written = False  # all of the request, or it waits in the transport to be
        self._is_answered = False  # any byte has come since it went out
        self._has_answered = False  # an earlier request: the receiver may have closed it since
        self._is_closed_here = False
        self._silence_ms = 0  # as the kernel knows it
        self._lost: Exception | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_full = False
        self.opened_at = self.fit_until = 0.0

    def phase(self) -> str:
        """Return what a request on it is waiting for."""
        if self._reader.headers is not None:
            return "reading the body"
        sending = self._transport is not None and (self._is_full or self._transport.get_write_buffer_size() > 0)
        return "sending the request" if sending else "waiting for the answer"

    def attach(self, connection: socket.socket) -> None:
        """Set the connection's socket, to ask the kernel which bytes have arrived."""
        self._socket = connection
        with suppress(OSError, ValueError):  # it was lost as it was opened
            self._poll.register(connection, select.POLLIN)
            if _USER_TIMEOUT is None:
                probe_when_idle(connection)

    def is_quiet(self) -> bool:
        """Return whether nothing waits to be read: neither bytes that nobody asked for nor the end."""
        return not self._poll.poll(0)

    async def request(self, head: bytes, body: bytes, progress: Progress, *, head_only: bool) -> Response:
        """Send a request and read its response, or as much of its body as is kept; ``head_only``: it will have no body.

        The progress is told what the request waits for, and what was read of a response that was cut short.

        Raises:
            ClosedKept: the other side closed it, after earlier answers and before any byte of this one.
            SendFailed: there is no response.
        """
        if not self.may_begin:
            self.close()  # it was to be closed while it was dialled
            raise self._failure(self._lost)
        progress.enter("sending the request")
        is_small = self._is_small = self._is_written = len(body) <= WRITE_BYTES
        self.may_begin = self._is_answered = False
        self._bound_silence()
        self._reader.begin(head_only=head_only)
        response: asyncio.Future[Response] = self._loop.create_future()
        self._response = response
        try:
            self._put(head + body if is_small else head)
            if not is_small:
                await self._write(body, response)
            progress.enter("waiting for the answer")
            return await response
        except BaseException:
            progress.phase = self.phase()
            progress.response = self._interrupted(response)
            raise

    def close(self) -> None:
        """Close it at once, whatever was not sent."""
        self._is_closed_here = True
        self.may_begin = False
        if self._transport is not None:
            self._transport.abort()

    def _bound_silence(self) -> None:
        """Bound how long a request on a kept connection may stay unacknowledged, except a large one: its window may be full."""
        silence_ms = SILENCE_MS if self._is_small else 0
        if (
            _USER_TIMEOUT is None
            or self._socket is None
            or not self._has_answered
            or silence_ms == self._silence_ms
        ):
            return
        with suppress(OSError):  # it is lost already
            self._socket.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, silence_ms)
            self._silence_ms = silence_ms

    def _is_silent(self) -> bool:
        """Return whether it was kept, this side has not closed it, and no byte came since this request."""
        return self._has_answered and not self._is_answered and not self._is_closed_here

    def _put(self, data: bytes | memoryview) -> None:
        """Hand bytes over, unless the connection is about to be lost, which ends the request."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _write(self, body: bytes, response: asyncio.Future[Response]) -> None:
        """Write a large body in pieces, as fast as it is taken; stop when the response is there before."""
        view = memoryview(body)
        for start in range(0, len(body), WRITE_BYTES):
            if self._is_full:
                self._writable = self._loop.create_future()
                await asyncio.wait((self._writable, response), return_when=asyncio.FIRST_COMPLETED)
            if response.done():
                return
            self._put(view[start : start + WRITE_BYTES])
        self._is_written = True

    def _interrupted(self, response: asyncio.Future[Response]) -> Response | None:
        """Return what was read of the response to a request that was given up, if its status line was complete."""
        if response.done() and not response.cancelled() and response.exception() is None:
            return response.result()  # the connection was handed back, and may be another request's by now
        if self._is_silent() and (response.cancelled() or not response.done()):
            self._pool.closed_early(self.key, is_certain=True)
        response.cancel()  # nobody waits for it any more
        self.close()
        self._reader.cut()
        return self._read()

    def _read(self) -> Response | None:
        """Return what was read of a response, if its status line was complete."""
        reader = self._reader
        if reader.headers is None:
            return None
        return Response(reader.status, reader.headers, reader.body, reader.flawed)

    def _settle(self, result: Response | SendFailed | None) -> None:
        """End the request that is out, unless nobody waits for it any more."""
        response, self._response = self._response, None
        if response is None or response.done():
            return
        if isinstance(result, SendFailed):
            response.set_exception(result)
        elif result is not None:
            response.set_result(result)

    def _failure(self, exc: Exception | None) -> SendFailed:
        """Return why there is no response, now that the connection is lost."""
        error = SendFailed(closed_unanswered(self._where))
        is_lost = isinstance(exc, OSError) and exc.errno in _SILENT and self._is_small
        if self._is_answered:
            error = SendFailed(broke_off(self._where))
        elif self._is_silent() and (is_lost or exc is None or isinstance(exc, _CLOSED_BY_PEER)):
            error = ClosedKept(str(error))
            error.is_lost = is_lost
        elif exc is not None:
            error = SendFailed(broke(self._where, exc))
        error.__cause__ = exc
        return error

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the event loop's signature
        """Return where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read."""
        if self._response is None:
            self.close()  # nobody asked for it
            return
        self._is_answered = True
        try:
            self._reader.feed(bytes(self._buffer[:nbytes]))
        except NotHttp as exc:
            error = SendFailed(not_http(self._where, str(exc)))
            error.__cause__ = exc
            self._settle(error)
            self.close()
            return
        if self._reader.complete:
            self._finish()

    def eof_received(self) -> bool:
        """Close the transport: nothing can follow."""
        self.may_begin = False
        if self._response is not None and self._reader.end():
            self._finish()
        elif self._response is not None and self._transport is not None:
            self._transport.abort()  # closing would wait for the rest of a large body to be taken
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that waits for a response."""
        self._settle(self._failure(exc))
        self._reader.cut()
        self._lost = exc
        self.may_begin = False
        self.resume_writing()
        self._transport = None
        self._pool.closed(self)

    def pause_writing(self) -> None:
        """Note that the transport has enough for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Continue to send a large body."""
        self._is_full = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _finish(self) -> None:
        """Hand the response over, and the connection back."""
        self.may_begin = self._reader.clean and self._is_written and not self._is_closed_here
        self._has_answered = True
        self._settle(self._read())
        if self.may_begin and self._reader.headers is not None:
            self._pool.released(self, self._reader.headers.head)
        else:
            self.close()
