"""``flowactions listen``: receives requests, verifies their signatures, prints them, and passes them on."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import signal
from collections.abc import Mapping
from functools import partial
from typing import Final

import click
import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

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
"""How long the other side may take, whichever it is."""

NOT_FORWARDED: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
)
"""Headers of one connection, which the next one has its own of."""

NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that a client adds by itself."""


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


async def listen(port: str, answer: int, forward_to: str | None) -> int:
    """Receive until Ctrl+C or SIGTERM."""
    address, _, number = port.rpartition(":")
    if not number.isascii() or not number.isdigit() or int(number) > 65535:
        raise click.UsageError("--port must be a port, or an address and a port.")
    secret = os.environ.get("WEBHOOK_SECRET")
    if not secret:
        secret = f"whsec_{secrets.token_urlsafe(24)}"
        status(f"signing secret of this run: {secret}")
    if forward_to is not None and not forward_to.startswith(("http://", "https://")):
        raise click.UsageError("--forward-to must be a URL that begins with http:// or https://.")
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    silent = logging.Logger("flowactions.cli", logging.CRITICAL)  # noqa: LOG001  a child of none
    connection = partial(
        _Connection,
        web.Server(_Receiver(secret, answer, forward_to)),
        loop=loop,
        access_log=silent,
        logger=silent,
        auto_decompress=False,
        max_line_size=LINE_BYTES,
        max_field_size=LINE_BYTES,
    )
    host = address.strip("[]") or "127.0.0.1"
    try:
        server = await loop.create_server(connection, host, int(number), backlog=128)
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror
        raise CannotRun(f"{host}, port {number} cannot be listened at: {why}; give another --port") from None
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    address, bound = server.sockets[0].getsockname()[:2]
    status(f"listening at http://{f'[{address}]' if ':' in address else address}:{bound}/")
    await stop.wait()
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


class _Receiver:
    """Answers every request, and shows each that was received."""

    def __init__(self, secret: str, answer: int, forward_to: str | None) -> None:
        self._secret, self._answer, self._forward_to = secret, answer, forward_to
        self._seen: set[str | None] = set()

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        """Read a request, pass it on if that is wanted, and answer it."""
        now, body = system_clock(), bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                while max(len(body), request.content_length or 0) <= BODY_BYTES:
                    if not (part := await request.content.readany()):
                        break
                    body += part
                else:
                    return _refusal(413, f"its body is larger than {BODY_BYTES} bytes")
        except TimeoutError:
            return _refusal(408, f"its body did not arrive within {SECONDS:g} s")
        headers = [
            (name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
            for name, value in request.raw_headers
        ]
        known = {name.lower(): value for name, value in reversed(headers)}
        code = self._answer
        if self._forward_to is not None:
            code = await forward(self._forward_to, request.method, headers, bytes(body))
        event_id = known.get(EVENT_ID_HEADER)
        self._show(
            Received(
                received_at=to_iso(int(now * 1000)),
                method=request.method,
                target=request.raw_path,
                verified=verify(self._secret, known, bytes(body), now),
                event_id=event_id,
                event_type=known.get(EVENT_TYPE_HEADER),
                repeated=event_id in self._seen,
                status=code,
                headers=headers,
                body=body.decode("utf-8", "replace"),
                body_bytes=len(body),
            )
        )
        self._seen |= {event_id} - {None}
        return web.Response(status=code)

    def _show(self, received: Received) -> None:
        if wants_json():
            write_json(received, indent=None)
            return
        answered = "" if self._forward_to is None else f"  answered {received.status}"
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


class _Connection(web.RequestHandler):
    """Refuses what is no request, with one line on standard error."""

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer."""
        if self.transport is None or self.transport.is_closing():
            return web.Response()  # nobody is there any more
        code = 400 if isinstance(exc, web.RequestPayloadError) else status
        return _refusal(code, (message or str(exc)).partition("\n")[0].rstrip(":"))


def _refusal(code: int, words: str) -> web.Response:
    status(f"a request was refused with {code}: {words}")
    answer = web.Response(status=code)
    answer.force_close()
    return answer


async def forward(url: str, method: str, headers: list[tuple[str, str]], body: bytes) -> int:
    """Send a request on as it came; return the status of the answer, 502 where there is none."""
    passed = [each for each in headers if each[0].lower() not in NOT_FORWARDED]
    try:
        async with (
            ClientSession(timeout=ClientTimeout(SECONDS), skip_auto_headers=NOT_ADDED) as session,
            session.request(method, url, headers=passed, data=body, allow_redirects=False) as answer,
        ):
            return answer.status
    except (OSError, ValueError, TimeoutError, ClientError) as exc:
        status(f"a request could not be passed on: {exc}")
        return 502
