"""One connection to a receiver: writes a request, reads its response, and says whether it may be used again."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from typing import Final, Protocol, cast

from flowactions_plugin.egress.attempt import Progress, Response
from flowactions_plugin.egress.response_reader import NotHttp, ResponseReader
from flowactions_plugin.egress.reuse import IDLE_SECONDS, Reuse, idle_seconds
from flowactions_plugin.egress.transport_errors import (
    broke,
    broke_off,
    closed_unanswered,
    headers_too_large,
    not_http,
)
from flowactions_plugin.errors import SendFailed

READ_BYTES: Final = 16 * 1024
"""How much is read at once."""

WRITE_BYTES: Final = 64 * 1024
"""How much of a large body is handed over at once, so that other requests proceed."""

_CLOSED_BY_PEER: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What a read or a write fails with when the other side has closed or reset the connection."""


class ClosedKept(SendFailed):
    """The other side closed a connection that it had answered on before; no byte came after this request."""


class Keeper(Protocol):
    """Keeps the connections of one event loop, as the pool does.

    Attributes:
        buffer: where all of them read to, `READ_BYTES` long: what came is used up before the next read. Those of another
            event loop read at the same time, in another thread, so they have another buffer.
    """

    buffer: memoryview

    def released(self, connection: Connection) -> None:
        """Get a connection back that can send the next request."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection that was closed; called once for each."""


class Connection(asyncio.BufferedProtocol):
    """A connection to one destination, for one request at a time.

    Args:
        key: the destination's.
        where: its host and port, for messages.
        keeper: told when the connection can take the next request, and when it is closed.

    Attributes:
        key: the same.
        opened_at: when it was opened, by the keeper's clock.
        idle_since: when it became idle, by the same clock.
        idle_seconds: how long it may be idle since then.
    """

    def __init__(self, key: str, where: str, keeper: Keeper) -> None:
        self.key = key
        self._where = where
        self._keeper = keeper
        self._buffer = keeper.buffer
        self._reuse = Reuse()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._reader: ResponseReader | None = None
        self._response: asyncio.Future[Response] | None = None
        self._is_closed_here = False
        self._lost: Exception | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_full = False
        self.opened_at = self.idle_since = 0.0
        self.idle_seconds = IDLE_SECONDS

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None

    @property
    def may_begin(self) -> bool:
        """Whether a request may go out on it."""
        return self._reuse.may_begin

    def phase(self) -> str:
        """Return what a request on it is waiting for."""
        if self._reader is not None and self._reader.headers is not None:
            return "reading the body"
        sending = self._transport is not None and (self._is_full or self._transport.get_write_buffer_size() > 0)
        return "sending the request" if sending else "waiting for the answer"

    def attach(self, connection: socket.socket) -> None:
        """Set the connection's socket, to ask the kernel which bytes have arrived."""
        self._poll.register(connection, select.POLLIN)

    def is_quiet(self) -> bool:
        """Return whether nothing waits to be read: neither bytes that nobody asked for nor the end."""
        return not self._poll.poll(0)

    async def request(self, head: bytes, body: bytes, progress: Progress, *, head_only: bool) -> Response:
        """Send a request and read its response, or as much of its body as is kept.

        Args:
            head: the request line and the headers.
            body: empty for none.
            progress: told what the request is waiting for, and what was read of a response that was cut short.
            head_only: whether the response will have no body.

        Raises:
            ClosedKept: the other side closed it, after earlier answers and before any byte of this one.
            SendFailed: there is no response.
        """
        if not self._reuse.may_begin:
            raise self._failure(self._lost)
        progress.sending(self.phase)
        response = self._begin(head if len(body) > WRITE_BYTES else head + body, head_only=head_only)
        try:
            if len(body) > WRITE_BYTES:
                await self._write(body, response)
            else:
                self._reuse.wrote()
            progress.sent()
            return await response
        except BaseException:
            progress.phase = self.phase()
            progress.response = self._interrupted(response)
            raise

    def _begin(self, data: bytes, *, head_only: bool) -> asyncio.Future[Response]:
        """Send the first bytes of a request; return what will be its response."""
        self._reuse.begin()
        if self._reader is None:
            self._reader = ResponseReader(head_only=head_only)
        else:
            self._reader.begin(head_only=head_only)
        self._response = self._loop.create_future()
        self._put(data)
        return self._response

    def _interrupted(self, response: asyncio.Future[Response]) -> Response | None:
        """Return what was read of the response to a request that was given up, if its head was complete."""
        if response.done() and not response.cancelled() and response.exception() is None:
            return response.result()  # the connection was handed back, and may be another request's by now
        response.cancel()  # nobody waits for it any more
        self.close()
        reader = self._reader
        return None if reader is None or reader.headers is None else _response(reader)

    def _put(self, data: bytes | memoryview) -> None:
        """Hand bytes over, unless the connection is about to be lost, which ends the request."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close it at once, whatever was not sent."""
        self._is_closed_here = True
        self._reuse.lost()
        if self._transport is not None:
            self._transport.abort()

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
        self._reuse.wrote()

    def _settle(self, error: Exception | None) -> None:
        response, self._response = self._response, None
        if response is None or response.done():
            return
        if error is not None:
            response.set_exception(error)
        elif self._reader is not None:
            response.set_result(_response(self._reader))

    def _failure(self, exc: Exception | None) -> SendFailed:
        """Return why there is no response, now that the connection is lost."""
        by_peer = not self._is_closed_here and (exc is None or isinstance(exc, _CLOSED_BY_PEER))
        error: SendFailed
        if self._reuse.may_repeat(by_peer=by_peer):
            error = ClosedKept(closed_unanswered(self._where))
        elif self._reuse.is_answered:
            error = SendFailed(broke_off(self._where))
        elif exc is None:
            error = SendFailed(closed_unanswered(self._where))
        else:
            error = SendFailed(broke(self._where, exc))
        error.__cause__ = exc
        return error

    def _unreadable(self, exc: NotHttp) -> SendFailed:
        """Return why a response is read no further."""
        if exc.status_code is None:
            return SendFailed(not_http(self._where, str(exc)))
        error = SendFailed(headers_too_large(self._where, exc.status_code))
        error.status_code = exc.status_code
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
        self._reuse.received()
        reader = self._reader
        if reader is None or self._response is None:
            self.close()  # nobody asked for it
            return
        try:
            reader.feed(bytes(self._buffer[:nbytes]))
        except NotHttp as exc:
            self._settle(self._unreadable(exc))
            self.close()
            return
        if reader.complete:
            self._finish(reader)

    def eof_received(self) -> bool:
        """Close the transport: nothing can follow."""
        reader = self._reader
        if reader is None or self._response is None:
            self._reuse.lost()
        elif reader.end():
            self._finish(reader)
        elif self._transport is not None:
            self._transport.abort()  # closing would wait for the rest of a large body to be taken
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that waits for a response."""
        reader = self._reader
        if self._response is not None and not self._response.done():
            self._settle(self._failure(exc))
        if reader is not None:
            reader.end()
        self._lost = exc
        self._reuse.lost()
        self.resume_writing()
        self._transport = None
        self._keeper.closed(self)

    def pause_writing(self) -> None:
        """Note that the transport has enough for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Continue to send a large body."""
        self._is_full = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _finish(self, reader: ResponseReader) -> None:
        """Hand the response over, and the connection back."""
        self._reuse.ended(clean=reader.clean)
        self._settle(None)
        if self._reuse.may_begin and reader.headers is not None:
            self.idle_seconds = idle_seconds(reader.headers.head)
            self._keeper.released(self)
        else:
            self.close()


def _response(reader: ResponseReader) -> Response:
    assert reader.headers is not None  # noqa: S101  its head was read
    return Response(reader.status, reader.headers, reader.body)
