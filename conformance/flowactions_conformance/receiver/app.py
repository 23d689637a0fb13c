"""The receiver's ASGI app: anything under ``/hooks/`` is recorded, verified and answered.

``/hooks/status/503/…`` answers that status, ``/hooks/fail-first/2/…`` answers 500 to the first two arrivals of
each event id, ``/hooks/slow/3/…`` answers after three seconds, and any other path answers 200. Every method is taken.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from litestar import Litestar, Request, Response, asgi, get
from litestar.enums import ScopeType
from litestar.response import File
from litestar.static_files import create_static_files_router
from litestar.types import HTTPScope, Receive, Scope, Send

from flowactions_conformance.receiver.verify import verify

PAGES = Path(__file__).parent / "pages"
KEPT_ARRIVALS = 1000
KEPT_BODY_BYTES = 64 * 1024
BODY_LIMIT = 1024 * 1024
SLOWEST_SECONDS = 60


class Arrival(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One received request.

    Attributes:
        signature: ``verified``, ``unsigned``, ``stale`` or ``wrong``; see `verify`.
        seen: the number of arrivals of this event id so far; 1 without an id.
        at: Unix seconds.
        path: the raw path and query.
        headers: in the order of arrival, names in lower case.
        body: text, cut at 64 KiB.
    """

    number: int
    at: float
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: str
    event_id: str
    event_type: str
    signature: str
    seen: int
    answer: int

    def __repr__(self) -> str:
        signed = "unsigned" if self.signature == "unsigned" else "signed"
        return f"{self.method} {self.path}, {signed}, event {self.event_id or 'without an id'} → {self.answer}"


class Receiver:
    """Records requests.

    Args:
        secret: the signing secret.
        on_arrival: called with each request once it is recorded.

    Attributes:
        arrivals: the newest thousand, oldest first.
        app: the ASGI app.
    """

    def __init__(
        self,
        secret: str,
        on_arrival: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        self._secret = secret
        self._on_arrival = on_arrival
        self._seen: Counter[str] = Counter()
        self._total = 0
        self.arrivals: deque[Arrival] = deque(maxlen=KEPT_ARRIVALS)
        self.app = self._app()

    def record(self, scope: HTTPScope, body: bytes) -> Arrival:
        """Record one request, and decide what to answer."""
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        by_name = dict(headers)
        event_id = by_name.get("x-service-webhook-id", "")
        seen = self._count(event_id)
        now = time.time()
        self._total += 1
        arrival = Arrival(
            number=self._total,
            at=now,
            method=scope["method"],
            path=f"{path}?{query}" if query else path,
            headers=headers,
            body=body[:KEPT_BODY_BYTES].decode("utf-8", "replace"),
            event_id=event_id,
            event_type=by_name.get("x-service-webhook-event", ""),
            signature=verify(self._secret, by_name, body, now),
            seen=seen,
            answer=_answer(path, seen),
        )
        self.arrivals.append(arrival)
        self._on_arrival(arrival)
        return arrival

    def _count(self, event_id: str) -> int:
        if not event_id:
            return 1
        if len(self._seen) > KEPT_ARRIVALS:
            self._seen = Counter({arrival.event_id: arrival.seen for arrival in self.arrivals})
        self._seen[event_id] += 1
        return self._seen[event_id]

    def _app(self) -> Litestar:
        # A mount, because a route accepts only Litestar's methods.
        @asgi("/hooks", is_mount=True, copy_scope=True)
        async def hooks(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP:
                return
            body = await _read(receive)
            if body is None:
                status = 413
            else:
                arrival = self.record(scope, body)
                await asyncio.sleep(_delay(arrival.path))
                status = arrival.answer
            answer = Response(b"", status_code=status, media_type="text/plain")
            await answer.to_asgi_response(None, Request(scope))(scope, receive, send)

        @get("/inspect/deliveries")
        async def inspect() -> dict[str, list[Arrival]]:
            return {"data": list(self.arrivals)}

        @get("/", include_in_schema=False)
        async def page() -> File:
            return File(PAGES / "receiver.html", content_disposition_type="inline", media_type="text/html")

        return Litestar(
            [hooks, inspect, page, create_static_files_router("/static", [PAGES], include_in_schema=False)],
            openapi_config=None,
            logging_config=None,
        )


async def _read(receive: Receive) -> bytes | None:
    """Read a request's body; ``None`` when it is too large or incomplete."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _answer(path: str, seen: int) -> int:
    status = re.match(r"/hooks/status/([2-5]\d\d)(/|$)", path)
    if status:
        return int(status[1])
    fail_first = re.match(r"/hooks/fail-first/(\d{1,3})(/|$)", path)
    return 500 if fail_first and seen <= int(fail_first[1]) else 200


def _delay(path: str) -> int:
    slow = re.match(r"/hooks/slow/(\d{1,2})([/?]|$)", path)
    return min(int(slow[1]), SLOWEST_SECONDS) if slow else 0
