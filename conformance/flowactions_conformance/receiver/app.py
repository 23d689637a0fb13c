"""The receiver's ASGI app: anything under ``/hooks/`` is recorded, verified and answered.

``/hooks/status/503/…`` answers that status, ``/hooks/fail-first/2/…`` answers 500 to the first two arrivals of
each event, ``/hooks/slow/3/…`` answers after three seconds, and any other path answers 200.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from litestar import HttpMethod, Litestar, Request, Response, get, route
from litestar.params import FromPath
from litestar.response import File
from litestar.static_files import create_static_files_router

from flowactions_conformance.receiver.verify import verify

PAGES = Path(__file__).parent / "pages"
KEPT_ARRIVALS = 1000
KEPT_BODY_BYTES = 64 * 1024
BODY_LIMIT = 1024 * 1024
SLOWEST_SECONDS = 60


class Arrival(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One request as it arrived.

    Attributes:
        signature: ``verified``, ``unsigned``, ``stale`` or ``wrong``; see `verify`.
        seen: how often this event id has arrived, this time included.
        at: Unix seconds.
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


class Receiver:
    """Records what arrives.

    Args:
        secret: the signing secret that arrivals are checked with.
        clock: Unix seconds.

    Attributes:
        arrivals: the newest thousand, oldest first.
        app: the ASGI app.
    """

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock
        self._seen: Counter[str] = Counter()
        self._total = 0
        self.arrivals: deque[Arrival] = deque(maxlen=KEPT_ARRIVALS)
        self.app = self._app()

    async def receive(self, request: Request[Any, Any, Any], path: str) -> int:
        """Record one request; give the status to answer with."""
        body = await request.body()
        headers = {name.lower(): value for name, value in request.headers.items()}
        event_id = headers.get("x-service-webhook-id", "")
        self._seen[event_id] += 1
        self._total += 1
        seen = self._seen[event_id]
        answer = _answer(path, seen)
        self.arrivals.append(
            Arrival(
                number=self._total,
                at=self._clock(),
                method=request.method,
                path=f"/hooks{path}",
                headers=sorted(headers.items()),
                body=body[:KEPT_BODY_BYTES].decode("utf-8", "replace"),
                event_id=event_id,
                event_type=headers.get("x-service-webhook-event", ""),
                signature=verify(self._secret, headers, body, self._clock()),
                seen=seen,
                answer=answer,
            )
        )
        if len(self._seen) > KEPT_ARRIVALS:
            self._seen = Counter({arrival.event_id: arrival.seen for arrival in self.arrivals})
        return answer

    def _app(self) -> Litestar:
        @route("/hooks/{path:path}", http_method=list(HttpMethod), include_in_schema=False)
        async def hook(request: Request[Any, Any, Any], path: FromPath[str]) -> Response[bytes]:
            answer = await self.receive(request, path)
            slow = re.match(r"/slow/(\d{1,2})(/|$)", path)
            if slow:
                await asyncio.sleep(min(int(slow[1]), SLOWEST_SECONDS))
            return Response(b"", status_code=answer, media_type="text/plain")

        @get("/inspect/deliveries")
        async def inspect() -> dict[str, list[Arrival]]:
            return {"data": list(self.arrivals)}

        @get("/", include_in_schema=False)
        async def page() -> File:
            return File(PAGES / "receiver.html", content_disposition_type="inline", media_type="text/html")

        return Litestar(
            [hook, inspect, page, create_static_files_router("/static", [PAGES], include_in_schema=False)],
            request_max_body_size=BODY_LIMIT,
            openapi_config=None,
            logging_config=None,
        )


def _answer(path: str, seen: int) -> int:
    status = re.match(r"/status/([2-5]\d\d)(/|$)", path)
    if status:
        return int(status[1])
    fail_first = re.match(r"/fail-first/(\d{1,3})(/|$)", path)
    return 500 if fail_first and seen <= int(fail_first[1]) else 200
