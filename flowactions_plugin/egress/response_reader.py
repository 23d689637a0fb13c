"""Reads one response from the bytes of a connection, whatever pieces they come in; no I/O.

llhttp parses heads and chunks. What it does not limit or does not tell is added here: the size of lines and heads, how
much of a body is kept, and whether bytes have come that belong to no response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import httptools

from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES

MAX_LINE_BYTES: Final = 8190
"""One header line, or the status line."""

MAX_HEAD_BYTES: Final = 64 * 1024
"""All headers of one response; and, apart from them, what frames the chunks of its body, with its trailers."""

_START: Final = b"HTTP/"
_END_OF_HEAD: Final = b"\r\n\r\n"


class NotHttp(Exception):
    """The bytes are not an HTTP response, or one beyond the limits; the message says what is wrong."""


class Headers(Mapping[str, str]):
    """The headers of a response, found by their names in any case; of several with one name the first.

    Few responses are asked for any, so nothing is decoded before.
    """

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1", "replace")
        for each, value in self._pairs:
            if each.lower() == wanted:
                return value.decode("latin-1").strip(" \t")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1").lower() for name, _ in self._pairs))

    def __len__(self) -> int:
        return len(list(iter(self)))


class ResponseReader:
    """Reads the response to one request.

    Interim responses (1xx, except 101, which ends HTTP on a connection) are passed over.

    Args:
        head_only: whether the request was one whose response has no body (HEAD, CONNECT).

    Attributes:
        status: of the final response; 0 until its head has been read.
        headers: its headers, from then on.
        body: the first bytes of its body, at most `RESPONSE_KEPT_BYTES`.
        complete: whether all has been read that counts: the response, or as much of its body as is kept.
        clean: whether the response has ended, nothing came after it, and the connection stays open after it.
    """

    __slots__ = (
        "_body_bytes",
        "_chunked",
        "_ended",
        "_head_bytes",
        "_head_only",
        "_in_head",
        "_keep_alive",
        "_line_bytes",
        "_pairs",
        "_parser",
        "_rest_bytes",
        "_start",
        "_tail",
        "body",
        "clean",
        "complete",
        "headers",
        "status",
    )

    def __init__(self, *, head_only: bool = False) -> None:
        self.status = 0
        self.headers: Headers | None = None
        self.body = b""
        self.complete = False
        self.clean = False
        self._head_only = head_only
        self._in_head = True
        self._start = b""
        self._head_bytes = self._line_bytes = 0
        self._tail = b""
        self._pairs: list[tuple[bytes, bytes]] = []
        self._rest_bytes = self._body_bytes = 0
        self._chunked = self._ended = self._keep_alive = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection.

        Raises:
            NotHttp: they are not a response's; what was read before stays.
        """
        while data and not self.complete:
            data = self._feed_head(data) if self._in_head else self._feed_body(data)
        if data:
            self.clean = False

    def end(self) -> bool:
        """Take the end of the connection; return whether the response is complete.

        Without a length and without chunks, the end of the connection is the end of the body.
        """
        if not self.complete and self.headers is not None and not self._chunked:
            self.complete = not {"content-length", "transfer-encoding"} & self.headers.keys()
        self.clean = False
        self._parser = None
        return self.complete

    def _feed_head(self, data: bytes) -> bytes:
        """Take bytes of a head; return those that are after it."""
        if len(self._start) < len(_START):
            # Empty lines before a response are passed over, and count as bytes of its head.
            given, data = len(data), data if self._start else data.lstrip(b"\r\n")
            self._head_bytes += given - len(data)
            self._start = (self._start + data)[: len(_START)]
            if not _START.startswith(self._start):
                raise NotHttp("it does not begin with HTTP/")
        end = self._end_of_head(data)
        head = data if end is None else data[:end]
        self._head_bytes += len(head)
        line_end = head.rfind(b"\n")
        self._line_bytes = self._line_bytes + len(head) if line_end < 0 else len(head) - line_end - 1
        if self._head_bytes > MAX_HEAD_BYTES:
            raise NotHttp(f"its headers are longer than {MAX_HEAD_BYTES} bytes")
        if self._line_bytes > MAX_LINE_BYTES:
            raise NotHttp(_LINE_TOO_LONG)
        upgraded = self._parse(head)
        if end is None:
            self._tail = (self._tail + head)[-3:]
            return b""
        assert self._parser is not None  # noqa: S101  a head is read only before the response is complete
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            if not self._ended:
                raise NotHttp(f"an interim response ({status}) has a body")
            self._pairs = []
            self._head_bytes, self._tail, self._ended = 0, b"", False
            self._start = b""
            return data[end:]
        self.status, self.headers, self._in_head = status, Headers(self._pairs), False
        if self._ended or upgraded or self._head_only or status in {101, 204, 304}:
            self._complete(clean=self._ended and not upgraded and status != 101)
        return data[end:]

    def _feed_body(self, data: bytes) -> bytes:
        """Take bytes of a body; return those that are certainly after it."""
        self._rest_bytes += len(data)
        try:
            self._parse(data)
        except NotHttp:
            # Of a response that has ended, and of a body of which enough is kept, the rest does not count.
            if not self._ended and len(self.body) < RESPONSE_KEPT_BYTES:
                raise
        framing = self._rest_bytes - self._body_bytes
        if self._ended:
            # The first empty line ends the last chunk and its trailers.
            exact = framing == 0
            if self._chunked:
                tail = (self._tail + data)[-5:]
                exact = tail.endswith(_END_OF_HEAD) and not tail.startswith(b"\n")
            self._complete(clean=exact)
        elif len(self.body) >= RESPONSE_KEPT_BYTES:
            self._complete(clean=False)
        elif framing > MAX_HEAD_BYTES:
            raise NotHttp(f"its chunks are framed by more than {MAX_HEAD_BYTES} bytes")
        self._tail = (self._tail + data)[-4:]
        return b""

    def _complete(self, *, clean: bool) -> None:
        assert self._parser is not None  # noqa: S101  it is given up here
        self.complete = True
        self.clean = clean and self._keep_alive
        self._parser = None  # it refers to this object

    def _end_of_head(self, data: bytes) -> int | None:
        """Return where in these bytes the head is over; ``None`` when it is not."""
        found = data.find(_END_OF_HEAD)
        if self._tail:
            # The empty line may have begun in the bytes before.
            across = (self._tail + data[:3]).find(_END_OF_HEAD)
            if across >= 0:
                return across + len(_END_OF_HEAD) - len(self._tail)
        return None if found < 0 else found + len(_END_OF_HEAD)

    def _parse(self, data: bytes) -> bool:
        """Have llhttp take bytes; return whether they ended HTTP on this connection."""
        assert self._parser is not None  # noqa: S101  nothing is read of a response that is complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserCallbackError as exc:
            cause = exc.__context__
            raise cause if isinstance(cause, NotHttp) else NotHttp(str(exc)) from None
        except httptools.HttpParserError as exc:
            if self._parser.get_status_code() == 101:
                return True
            raise NotHttp(str(exc).rstrip(".")) from None
        return False

    # llhttp calls these.

    def on_status(self, reason: bytes) -> None:
        """Check the reason phrase."""
        if len(reason) > MAX_LINE_BYTES:
            raise NotHttp(_LINE_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are not kept."""
        if len(name) + len(value) > MAX_LINE_BYTES:
            raise NotHttp(_LINE_TOO_LONG)
        if self._in_head:
            self._pairs.append((name, value))

    def on_body(self, part: bytes) -> None:
        """Keep the start of the body."""
        self._body_bytes += len(part)
        if len(self.body) < RESPONSE_KEPT_BYTES:
            self.body = (self.body + part)[:RESPONSE_KEPT_BYTES]

    def on_chunk_header(self) -> None:
        """Note that the body comes in chunks."""
        self._chunked = True

    def on_message_complete(self) -> None:
        """Note that a response has ended, and whether the connection stays open after it."""
        assert self._parser is not None  # noqa: S101  it calls this
        self._ended, self._keep_alive = True, self._parser.should_keep_alive()


_LINE_TOO_LONG: Final = f"a header line is longer than {MAX_LINE_BYTES} bytes"
