"""Reads one response from the bytes of a connection, whatever pieces they come in; no I/O.

llhttp parses heads and chunks. What it does not limit or does not tell is added here: the size of heads, how
much of a body is kept, whether bytes have come that belong to no response, and what a response is worth whose status line is
complete and whose rest is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import httptools

from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES
from flowactions_plugin.errors import SendFailed

MAX_HEAD_BYTES: Final = 64 * 1024
"""The status line and all headers of one response; and, apart from them, what frames the chunks of its body, with its trailers."""

_END_OF_HEAD: Final = b"\r\n\r\n"
_END_OF_FLAWED_HEAD: Final = re.compile(rb"\n\r?\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[0-9][ \t]+([1-9][0-9]{2})(?:[ \t][^\n]*)?\r?\n")


class NotHttp(SendFailed):
    """The bytes are not an HTTP response, or one beyond the limits; the message says what is wrong."""


class Headers(Mapping[str, str]):
    """The headers of a response, found by their names in any case; of several with one name the first.

    Of few responses anything is asked, so the head is taken apart only then.

    Args:
        head: its bytes, of which whole lines count.
    """

    def __init__(self, head: bytes) -> None:
        self.head = head

    def __getitem__(self, name: str) -> str:
        return self._found[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def _found(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in self.head.decode("latin-1").replace("\r\n", "\n").split("\n")[1:-1]:
            name, colon, value = line.partition(":")
            if colon:
                found.setdefault(name.strip().lower(), value.strip(" \t"))
        return found


class ResponseReader:
    """Reads the responses of one connection, one after the other.

    Interim responses (1xx, except 101, which ends HTTP on a connection) are passed over, up to sixteen. Once the status line of
    a final one is complete, it counts: what is wrong after it, or missing, makes it flawed. Headers of a flawed failure are read
    to their end, because ``Retry-After`` may be among them.

    Args:
        head_only: whether the first request is one whose response has no body (HEAD, CONNECT).

    Attributes:
        status: of the final response; 0 until its head has been read.
        headers: its headers, from then on.
        body: the first bytes of its body, at most `RESPONSE_KEPT_BYTES`.
        complete: whether all has been read that counts: the response, or as much of its body as is kept.
        clean: whether the response has ended, nothing came after it, and the connection stays open after it.
        flawed: whether what was read after its status line is not HTTP, too long, or not all.
    """

    def __init__(self, *, head_only: bool = False) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)  # None at the end: it refers to this object
        self.begin(head_only=head_only)

    def begin(self, *, head_only: bool) -> None:
        """Expect the response to the next request. The one before, if there was one, was read and is clean."""
        self.status = 0
        self.headers: Headers | None = None
        self.body = self._head = self._tail = b""
        self.complete = self.clean = self.flawed = False
        self._wrong = ""  # in the head
        self._parsed = 0  # bytes of the head
        self._head_only = head_only
        self._interim = self._empty_bytes = self._rest_bytes = self._body_bytes = 0
        self._chunked = self._ended = self._keep_alive = self._surplus = False

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the connection.

        Raises:
            NotHttp: they are not a response's, and no status line of one was complete.
        """
        try:
            while data and not self.complete:
                data = self._feed_head(data) if self.headers is None else self._feed_body(data)
        except NotHttp:
            if not self.cut():
                raise
        if data:
            self.clean = False

    def end(self) -> bool:
        """Handle the end of the connection; return whether there is a response.

        Without a length and without chunks, the end of the connection is the end of the body.
        """
        if not self.complete and self.headers is not None and not self._chunked:
            self.complete = not {"content-length", "transfer-encoding"} & self.headers.keys()
        return self.cut()

    def cut(self) -> bool:
        """Take what was read for all of the response, if its status line is complete; return whether it is."""
        self.clean, self._parser = False, None
        if self.headers is None:
            found = _STATUS_LINE.match(self._head, 0, MAX_HEAD_BYTES)
            status = 0 if found is None else int(found[1])
            if status < 200 and status != 101:
                return False
            self.status = status
            self.headers = Headers(self._head[:MAX_HEAD_BYTES])
        self.complete, self.flawed = True, self.flawed or not self.complete
        return True

    def _feed_head(self, data: bytes) -> bytes:
        """Take bytes of a head; return those that are after it."""
        if not self._head and not (data := self._without_empty_lines(data)):
            return b""
        before, self._head = len(self._head), self._head + data
        if not self._head.startswith(b"HTTP/"[: len(self._head)]):
            raise NotHttp("it does not begin with HTTP/")
        # The empty line that ends it may have begun in the bytes before.
        end = self._head.find(_END_OF_HEAD, max(0, before - 3))
        rest = b""
        if end >= 0:
            size = end + len(_END_OF_HEAD)
            self._head, rest = self._head[:size], self._head[size:]
        upgraded = self._parse_head(before)
        return b"" if end < 0 or self._wrong else self._end_head(rest, upgraded=upgraded)

    def _parse_head(self, before: int) -> bool:
        """Have llhttp take what is new in a head; return whether that ended HTTP on this connection."""
        is_long, upgraded = len(self._head) > MAX_HEAD_BYTES, False
        if b"\n" not in self._head and not is_long:
            return False  # llhttp gets whole status lines, so that it makes no difference where they are cut
        start, self._parsed = self._parsed, len(self._head)
        if not self._wrong:
            try:
                upgraded = self._parse(self._head[start:MAX_HEAD_BYTES])
            except NotHttp as exc:
                self._wrong = str(exc)
        if self._wrong:
            line = _STATUS_LINE.match(self._head, 0, MAX_HEAD_BYTES)
            if (
                line is None
                or line[1][0] in b"12"
                or _END_OF_FLAWED_HEAD.search(self._head, max(0, before - 2))
            ):
                raise NotHttp(self._wrong)
        if is_long:
            raise NotHttp(f"its headers are longer than {MAX_HEAD_BYTES} bytes")
        return upgraded

    def _end_head(self, rest: bytes, *, upgraded: bool) -> bytes:
        """Pass over the head of an interim response, or keep that of a final one; return what is after it."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            if not self._ended:
                raise NotHttp(f"an interim response ({status}) has a body")
            self._head, self._parsed, self._ended = b"", 0, False
            self._interim += 1
            if self._interim > 16:
                raise NotHttp("more than 16 interim responses came before it")
            return rest
        self.status = status
        headers = self.headers = Headers(self._head)
        if self._ended or upgraded or self._head_only or status in {204, 304}:
            # Of a 204 that speaks of a body, one may follow although it must not.
            empty = status != 204 or (
                "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"
            )
            self._complete(clean=self._ended and not upgraded and empty)
        return rest

    def _without_empty_lines(self, data: bytes) -> bytes:
        """Pass over empty lines before a head, of which there may be as many bytes as of a head."""
        found = data.lstrip(b"\r\n")
        self._empty_bytes += len(data) - len(found)
        if self._empty_bytes > MAX_HEAD_BYTES:
            raise NotHttp(f"more than {MAX_HEAD_BYTES} bytes of empty lines came before it")
        return found

    def _feed_body(self, data: bytes) -> bytes:
        """Take bytes of a body; return those that are certainly after it."""
        self._rest_bytes += len(data)
        try:
            self._parse(data)
        except NotHttp:
            # Of a response that has ended, and of a body of which enough is kept, the rest does not count.
            if not self._ended and len(self.body) < RESPONSE_KEPT_BYTES:
                raise
            self._surplus = True
        framing = self._rest_bytes - self._body_bytes
        if self._chunked:
            self._tail = (self._tail + data[-5:])[-5:]
        if self._ended:
            # Empty lines after it are passed over by llhttp; the first one ended the last chunk and its trailers.
            exact = self._tail.endswith(_END_OF_HEAD) and not self._tail.startswith(b"\n")
            self._complete(clean=not self._surplus and (exact if self._chunked else framing == 0))
        elif len(self.body) >= RESPONSE_KEPT_BYTES:
            self._complete(clean=False)
        elif framing > MAX_HEAD_BYTES:
            raise NotHttp(f"its chunks are framed by more than {MAX_HEAD_BYTES} bytes")
        return b""

    def _complete(self, *, clean: bool) -> None:
        self.complete = True
        self.clean = clean and self._keep_alive
        if not self.clean:
            self._parser = None

    def _parse(self, data: bytes) -> bool:
        """Have llhttp take bytes; return whether they ended HTTP on this connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserError as exc:
            if self._parser.get_status_code() == 101:
                return True
            raise NotHttp(str(exc).rstrip(".")) from None
        return False

    # llhttp calls these.

    def on_message_begin(self) -> None:
        """Note that another response follows the one that has ended."""
        self._surplus = self._ended

    def on_body(self, part: bytes) -> None:
        """Keep the start of the body."""
        if self._ended:
            return
        self._body_bytes += len(part)
        if len(self.body) < RESPONSE_KEPT_BYTES:
            self.body = (self.body + part)[:RESPONSE_KEPT_BYTES]

    def on_chunk_header(self) -> None:
        """Note that the body comes in chunks."""
        self._chunked = True

    def on_message_complete(self) -> None:
        """Note that a response has ended, and whether the connection stays open after it."""
        self._ended, self._keep_alive = True, self._parser.should_keep_alive()
