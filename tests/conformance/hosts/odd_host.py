"""The FastAPI host as few would build it, and as the contract lets one: nothing of it may be blamed.

The plugins' routes are below ``/backend``. Middleware around everything adds headers and cookies to each answer,
compresses answers, and refuses whoever shows no credential with a 403 of its own. End users see nothing when a flow is
opened, and get to its first step with their first *next*. A *next* goes on from where the run is, whatever step the client
names, in the newest version of the flow; one beside another waits for that, and then goes on from there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import sqlalchemy as sa
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flowactions_conformance import Env
from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.fastapi_host import (
    ShopDriver,
    ShopHost,
    Walker,
    _shown,
    _steps,
    create_app,
    flows,
    runs,
)

PREFIX = "/backend"
FOR_MEMBERS = re.compile(
    rf"{PREFIX}/(v1/webhooks/|v1/agents/|integrations/nodes/|integrations/chat/connection)"
)


class OddWalker(Walker):
    """Shows no step before the first *next*, and goes on in the newest version of the flow."""

    async def open(self, flow: dict[str, Any], user_id: str, content: str) -> dict[str, Any]:
        """See `Walker.open`."""
        run = await super().open(flow, user_id, content)
        return await self._move(run, -1, run["state"]) if run["state"] == "open" else run

    async def next(self, run: dict[str, Any], at: str | None) -> dict[str, Any]:
        """See `Walker.next`; ``at`` is not looked at."""
        while True:
            run = await self._in_the_newest(run)
            moved = await super().next(run, _shown(run))
            if moved["state"] != "open" or moved["position"] != run["position"]:
                return moved
            await asyncio.sleep(0.1)
            run = await self.host._get(runs, id=run["id"]) or run

    async def _in_the_newest(self, run: dict[str, Any]) -> dict[str, Any]:
        flow = await self.host._get(flows, id=run["walk"]["flowId"])
        if flow is None or flow["items"] == run["items"]:
            return run
        now = {**run, "items": flow["items"]}
        shown = _shown(run)
        if shown in _steps(now):
            now["position"] = _steps(now).index(shown or "")
        same = sa.and_(runs.c.id == run["id"], runs.c.position == run["position"])
        async with self.host.database.begin() as connection:
            await connection.execute(
                sa.update(runs).where(same).values(items=now["items"], position=now["position"])
            )
        return await self.host._get(runs, id=run["id"]) or run


async def _around(request: Request, call_next: RequestResponseEndpoint) -> Response:
    if FOR_MEMBERS.match(request.url.path) and "authorization" not in request.headers:
        return JSONResponse({"detail": "This is for members."}, 403)
    answer = await call_next(request)
    answer.headers["x-frame-options"] = "DENY"
    answer.headers["server-timing"] = "app;dur=1"
    answer.set_cookie("visited", "yes", samesite="lax")
    return answer


class OddDriver(ShopDriver):
    """Uses it as the FastAPI host is used."""

    prefix = PREFIX
    edits: Literal["pinned", "live"] | None = "live"


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[OddDriver]:
    """Makes the host."""
    host = ShopHost(env.settings, env.database_url)
    actions = FlowActions.load(host, prefix=PREFIX)
    app: FastAPI = create_app(host, actions, OddWalker(host, actions))
    app.add_middleware(GZipMiddleware, minimum_size=100)
    app.add_middleware(BaseHTTPMiddleware, dispatch=_around)
    yield OddDriver(host, app, env)
