"""The receiver of ``flowactions listen``: reads requests, verifies their signatures, prints them, and passes them on."""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import signal
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from flowactions_plugin.cli.output import block, line, status, write_json
from flowactions_plugin.clock import system_clock, to_iso
from flowactions_plugin.egress.signature import (
    EVENT_ID_HEADER,
    EVENT_TYPE_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    sign,
)
from flowactions_plugin.errors import CannotRun

Verdict: TypeAlias = Literal["verified", "unsigned", "stale", "wrong"]

TOLERANCE_SECONDS: Final = 300
HEAD_BYTES: Final = 128 << 10
BODY_BYTES: Final = 32 << 20
READ_SECONDS: Final = 30.0
FORWARD_SECONDS: Final = 30.0
CONNECTIONS: Final = 100

NOT_FORWARDED: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
)
"""Headers of one connection, which the next one has its own of."""


class Received(msgspec.Struct, kw_only=True, rename="camel"):
    """A request that `listen` received; one line for each.

    Attributes:
        received_at: ISO 8601, UTC.
        method: of the request.
        target: path and query.
        verified: `verified`; `unsigned` without a signature; `stale` when it is right but more than five minutes old, or
            from the future; `wrong` for anything else.
        event_id: `x-service-webhook-id`; `null` without one.
        event_type: `x-service-webhook-event`; `null` without one.
        repeated: whether this event id was received before.
        status: with which it was answered.
        headers: all headers as they came, in their order, as pairs of name and value.
        body: as text; bytes that are not UTF-8 are replaced.
        body_bytes: its length.
    """

    received_at: str
    method: str
    target: str
    verified: Verdict
    event_id: str | None
    event_type: str | None
    repeated: bool
    status: int
    headers: list[tuple[str, str]]
    body: str
    body_bytes: int


class _Refused(Exception):
    """A request that is answered with an error, and not printed as received."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Arrived(NamedTuple):
    """A request as it came."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header; ``None`` without one."""
        return next((value for each, value in self.headers if each.lower() == name), None)


def verify(secret: str, arrived: Arrived, now: float) -> Verdict:
    """Check the signature of a request; `now` is in Unix seconds (§5.3.4, §5.3.5)."""
    signature = arrived.header(SIGNATURE_HEADER)
    if signature is None:
        return "unsigned"
    timestamp = arrived.header(TIMESTAMP_HEADER) or ""
    # The signature covers the timestamp's own characters, so one with leading zeros is wrong.
    if not timestamp.isascii() or not timestamp.isdigit() or str(int(timestamp[:16])) != timestamp:
        return "wrong"
    expected = sign(secret, int(timestamp), arrived.body)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        return "wrong"
    return "verified" if abs(now - int(timestamp)) <= TOLERANCE_SECONDS else "stale"


class Receiver:
    """Answers and prints every request.

    Args:
        secret: the signing secret.
        answer: the status of every answer.
        count: after how many requests it is done; ``None``: never.
        forward_to: a URL to which each request is sent as it came, and whose status is the answer; ``None``: none is.
        show_headers: whether headers and bodies are printed, too.
        as_json: whether each request is one line of JSON.

    Attributes:
        done: set after `count` requests.
        all_verified: whether every request so far was.
    """

    def __init__(
        self,
        secret: str,
        answer: int,
        count: int | None,
        *,
        forward_to: str | None = None,
        show_headers: bool,
        as_json: bool,
    ) -> None:
        self._secret = secret
        self._answer = answer
        self._left = count
        self._forward_to = forward_to
        self._show_headers = show_headers
        self._as_json = as_json
        self._seen: set[str] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.done = asyncio.Event()
        self.all_verified = True

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, in a task that is silent when the end of the command cancels it."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while len(self._serving) <= CONNECTIONS and not self.done.is_set():
                async with asyncio.timeout(READ_SECONDS):
                    arrived = await read_request(reader)
                if arrived is None:
                    break
                code = self._answer
                if self._forward_to is not None:
                    code = await asyncio.to_thread(forward, self._forward_to, arrived)
                # Answered before it is counted: the process may end with the last one.
                writer.write(_answer(code, close=False))
                await writer.drain()
                self._print(arrived, code)
        except _Refused as refused:
            status(f"a request was refused with {refused.code}: {refused}")
            writer.write(_answer(refused.code, close=True))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side went away
        finally:
            writer.close()

    def _print(self, arrived: Arrived, code: int) -> None:
        now = system_clock()
        verdict, event_id = verify(self._secret, arrived, now), arrived.header(EVENT_ID_HEADER)
        received = Received(
            received_at=to_iso(int(now * 1000)),
            method=arrived.method,
            target=arrived.target,
            verified=verdict,
            event_id=event_id,
            event_type=arrived.header(EVENT_TYPE_HEADER),
            repeated=event_id in self._seen,
            status=code,
            headers=list(arrived.headers),
            body=arrived.body.decode("utf-8", "replace"),
            body_bytes=len(arrived.body),
        )
        self._seen |= {event_id} if event_id is not None else set()
        if self._as_json:
            write_json(received, indent=None)
        else:
            self._print_lines(received)
        self.all_verified = self.all_verified and verdict == "verified"
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.done.set()

    def _print_lines(self, received: Received) -> None:
        answered = f"  answered {received.status}" if self._forward_to is not None else ""
        again = "  (this event id came before)" if received.repeated else ""
        line(
            f"{received.received_at}  {received.verified:8}  {received.method} {received.target}  "
            f"{received.event_type or '-'}  {received.event_id or '-'}  {received.body_bytes} bytes{answered}{again}"
        )
        if self._show_headers:
            for name, value in received.headers:
                line(f"    {name}: {value}")
            line()
            block(received.body)


def forward(url: str, arrived: Arrived) -> int:
    """Send a request on as it came; return the status of the answer, 502 where there is none."""
    to = urlsplit(url)
    headers = {name: value for name, value in arrived.headers if name.lower() not in NOT_FORWARDED}
    connect = HTTPSConnection if to.scheme == "https" else HTTPConnection
    connection = connect(to.netloc, timeout=FORWARD_SECONDS)
    try:
        connection.request(
            arrived.method, to._replace(scheme="", netloc="").geturl() or "/", arrived.body, headers
        )
        return connection.getresponse().status
    except (OSError, ValueError, HTTPException) as exc:
        status(f"a request could not be passed on: {exc}")
        return HTTPStatus.BAD_GATEWAY
    finally:
        connection.close()


async def serve(receiver: Receiver, bind: str, port: int) -> None:
    """Listen until the receiver is done, or SIGINT or SIGTERM comes.

    Raises:
        CannotRun: the address cannot be listened at.
    """
    try:
        server = await asyncio.start_server(receiver.connected, bind, port, limit=HEAD_BYTES)
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno and exc.errno in errno.errorcode else exc.strerror
        raise CannotRun(
            f"{bind}, port {port} cannot be listened at: {reason}; give another --port, or --bind"
        ) from None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receiver.done.set)
    address, bound = server.sockets[0].getsockname()[:2]
    status(f"listening at http://{f'[{address}]' if ':' in address else address}:{bound}/")
    try:
        await receiver.done.wait()
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> Arrived | None:
    """Read a request of HTTP/1.1; ``None`` when the other side has closed the connection.

    Raises:
        _Refused: it is none, or is too large.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(431, f"its head is larger than {HEAD_BYTES} bytes") from None
    except asyncio.IncompleteReadError as exc:
        if exc.partial:
            raise
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(400, "it is not HTTP/1.1")
    headers = [
        (name, value.strip(" \t").encode("latin-1").decode("utf-8", "replace"))
        for name, _, value in (each.partition(":") for each in lines)
    ]
    arrived = Arrived(words[0], words[1], headers, b"")
    if arrived.header("transfer-encoding") is not None:
        return arrived._replace(body=await _read_chunks(reader))
    length = arrived.header("content-length") or "0"
    if not (length.isascii() and length.isdigit()):
        raise _Refused(400, "its Content-Length is not a number")
    if len(length) > 12 or int(length) > BODY_BYTES:
        raise _Refused(413, f"its body is larger than {BODY_BYTES} bytes")
    return arrived._replace(body=await reader.readexactly(int(length)))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body, size = bytearray(), -1
    while size:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        except (ValueError, asyncio.LimitOverrunError):
            raise _Refused(400, "its chunks are not well formed") from None
        if size < 0 or len(body) + size > BODY_BYTES:
            raise _Refused(413, f"its body is larger than {BODY_BYTES} bytes")
        if size:
            body += (await reader.readexactly(size + 2))[:-2]
    try:
        while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
            pass
    except asyncio.LimitOverrunError:
        raise _Refused(431, f"a trailer is larger than {HEAD_BYTES} bytes") from None
    return bytes(body)


def _answer(code: int, *, close: bool) -> bytes:
    phrase = {each.value: each.phrase for each in HTTPStatus}.get(code, "Status")
    # 204 and 304 have no body, and no length of one.
    length = "" if code in {204, 304} else "content-length: 0\r\n"
    ending = "connection: close\r\n" if close else ""
    return f"HTTP/1.1 {code} {phrase}\r\n{length}{ending}\r\n".encode()
