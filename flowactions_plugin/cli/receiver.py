"""``flowactions listen``: receives requests, verifies their signatures, prints them, and passes them on."""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from flowactions_plugin.cli.frame import DONE
from flowactions_plugin.cli.output import block, line, status, wants_json, write_json
from flowactions_plugin.clock import system_clock, to_iso
from flowactions_plugin.egress.signature import (
    EVENT_ID_HEADER,
    EVENT_TYPE_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    sign,
)
from flowactions_plugin.errors import CannotRun

TOLERANCE_SECONDS: Final = 300
BODY_BYTES: Final = 32 << 20
LINE_BYTES: Final = 64 << 10
SECONDS: Final = 30.0
"""How long the other side may be silent, whichever it is."""

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
    verified: str
    event_id: str | None
    event_type: str | None
    repeated: bool
    status: int
    headers: list[tuple[str, str]]
    body: str
    body_bytes: int


def listen(port: str, answer: int, forward_to: str | None) -> int:
    """Receive until Ctrl+C or SIGTERM."""
    address, _, number = port.rpartition(":")
    if not number.isascii() or not number.isdigit() or int(number) > 65535:
        raise click.UsageError("--port must be a port, or an address and a port.")
    as_json = wants_json()  # which no other thread knows

    def show(received: Received) -> None:
        if as_json:
            write_json(received, indent=None)
            return
        answered = f"  answered {received.status}" if forward_to is not None else ""
        again = "  (this event id came before)" if received.repeated else ""
        line(
            f"{received.received_at}  {received.verified:8}  {received.method} {received.target}  "
            f"{received.event_type or '-'}  {received.event_id or '-'}  {received.body_bytes} bytes{answered}{again}"
        )
        if received.verified != "verified":
            for name, value in received.headers:
                line(f"    {name}: {value}")
            line()
            block(received.body)

    secret = os.environ.get("WEBHOOK_SECRET")
    if not secret:
        secret = f"whsec_{secrets.token_urlsafe(24)}"
        status(f"signing secret of this run: {secret}")
    if forward_to is not None and not forward_to.startswith(("http://", "https://")):
        raise click.UsageError("--forward-to must be a URL that begins with http:// or https://.")
    where = address.strip("[]") or "127.0.0.1", int(number)
    with Receiver(where, secret, answer, forward_to, show) as receiver:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        address, bound = receiver.socket.getsockname()[:2]
        try:
            status(f"listening at http://{f'[{address}]' if ':' in address else address}:{bound}/")
            receiver.serve_forever(poll_interval=0.05)
        except KeyboardInterrupt:
            pass
    return DONE


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Check the signature of a request; `headers` knows no case, `now` is in Unix seconds (§5.3.4, §5.3.5)."""
    signature, timestamp = headers.get(SIGNATURE_HEADER), headers.get(TIMESTAMP_HEADER, "")
    if signature is None:
        return "unsigned"
    # The signature covers the timestamp's own characters, so one with leading zeros is wrong.
    if not timestamp.isascii() or not timestamp.isdigit() or str(int(timestamp[:16])) != timestamp:
        return "wrong"
    expected = sign(secret, int(timestamp), body)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        return "wrong"
    return "verified" if abs(now - int(timestamp)) <= TOLERANCE_SECONDS else "stale"


class Receiver(ThreadingTCPServer):
    """Listens, answers every request, and shows each that was received."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        answer: int,
        forward_to: str | None,
        show: Callable[[Received], None],
    ) -> None:
        self.secret, self.answer, self.forward_to = secret, answer, forward_to
        self._show = show
        self._seen: set[str | None] = set()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, _Connection)
        except OSError as exc:
            where = f"{address[0]}, port {address[1]} cannot be listened at"
            raise CannotRun(f"{where}: {exc.strerror}; give another --port") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a connection end when the other side has gone away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def record(self, received: Received) -> None:
        """Show a request that was answered."""
        with self._lock:
            received.repeated = received.event_id is not None and received.event_id in self._seen
            self._seen.add(received.event_id)
            self._show(received)


class _Connection(BaseHTTPRequestHandler):
    """Reads and answers the requests of one connection."""

    protocol_version = default_request_version = "HTTP/1.1"
    error_message_format = ""
    timeout = SECONDS
    server: Receiver

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # of any method of HTTP
            return self._receive
        raise AttributeError(name)

    def _receive(self) -> None:
        try:
            body = self._body()
        except ValueError as exc:
            code, words = exc.args
            self.send_error(code, None, words)
            return
        headers = [
            (name, value.encode("latin-1").decode("utf-8", "replace")) for name, value in self.headers.items()
        ]
        known = {name.lower(): value for name, value in reversed(headers)}
        # Not `path`, which has one slash at its start where there were two.
        target, to, now = self.requestline.split()[1], self.server.forward_to, system_clock()
        passed = [(name, value) for name, value in headers if name.lower() not in NOT_FORWARDED]
        code = self.server.answer if to is None else forward(to, self.command, passed, body)
        self.send_response_only(code)
        if code not in {204, 304}:
            self.send_header("content-length", "0")
        self.end_headers()
        self.server.record(
            Received(
                received_at=to_iso(int(now * 1000)),
                method=self.command,
                target=target,
                verified=verify(self.server.secret, known, body, now),
                event_id=known.get(EVENT_ID_HEADER),
                event_type=known.get(EVENT_TYPE_HEADER),
                repeated=False,
                status=code,
                headers=headers,
                body=body.decode("utf-8", "replace"),
                body_bytes=len(body),
            )
        )

    def _body(self) -> bytes:
        """Read the body. Raises `ValueError` with a status and a reason."""
        if "transfer-encoding" not in self.headers:
            return self._part(self.headers.get("content-length", "0"), 10)
        body = bytearray()
        while part := self._part(self.rfile.readline(LINE_BYTES).split(b";")[0], 16, len(body)):
            body += part
            self.rfile.readline(LINE_BYTES)
        while self.rfile.readline(LINE_BYTES).strip():  # trailers
            pass
        return bytes(body)

    def _part(self, length: str | bytes, base: int, before: int = 0) -> bytes:
        try:
            size = int(length, base)
        except ValueError:
            size = -1
        if size < 0:
            raise ValueError(400, "the length of its body is not a number")
        if before + size > BODY_BYTES:
            raise ValueError(413, f"its body is larger than {BODY_BYTES} bytes")
        part = self.rfile.read(size)
        if len(part) < size:
            raise ConnectionError
        return part

    def send_error(self, code: int, _message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, with one line on standard error."""
        words = explain or HTTPStatus(code).description
        status(f"a request was refused with {int(code)}: {words}")
        super().send_error(code)

    def log_message(self, *_: object) -> None:
        """Write no log."""


def forward(url: str, method: str, headers: list[tuple[str, str]], body: bytes) -> int:
    """Send a request on as it came; return the status of the answer, 502 where there is none."""
    to = urlsplit(url)
    connection = (HTTPSConnection if to.scheme == "https" else HTTPConnection)(to.netloc, timeout=SECONDS)
    try:
        target = to._replace(scheme="", netloc="").geturl() or "/"
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in [*headers, ("content-length", str(len(body)))]:
            connection.putheader(name, value.encode())
        connection.endheaders(body)
        return connection.getresponse().status
    except (OSError, ValueError, HTTPException) as exc:
        status(f"a request could not be passed on: {exc}")
        return 502
    finally:
        connection.close()
