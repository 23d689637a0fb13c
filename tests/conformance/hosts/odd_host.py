"""The FastAPI host as few would build it, and as the contract lets one: nothing of it may be blamed.

The plugins' routes are below ``/backend``. Middleware around everything adds headers and cookies to each answer,
compresses answers, and refuses whoever shows no credential with a 403 of its own. End users see nothing when a flow is
opened, and get to its first step with their first *next*.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flowactions_conformance import Env
from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.fastapi_host import ShopDriver, ShopHost, Walker, create_app

PREFIX = "/backend"
FOR_MEMBERS = re.compile(
    rf"{PREFIX}/(v1/webhooks/|v1/agents/|integrations/nodes/|integrations/chat/connection)"
)


class OddWalker(Walker):
    """Shows no step before the first *next*."""

    async def open(self, flow: dict[str, Any], user_id: str, content: str) -> dict[str, Any]:
        """See `Walker.open`."""
        run = await super().open(flow, user_id, content)
        return await self._move(run, -1, run["state"]) if run["state"] == "open" else run


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


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[OddDriver]:
    """Makes the host."""
    host = ShopHost(env.settings, env.database_url)
    actions = FlowActions.load(host, prefix=PREFIX)
    app: FastAPI = create_app(host, actions, OddWalker(host, actions))
    app.add_middleware(GZipMiddleware, minimum_size=100)
    app.add_middleware(BaseHTTPMiddleware, dispatch=_around)
    yield OddDriver(host, app, env)
