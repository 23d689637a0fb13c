"""One host in Starlette and the same in FastAPI, with what hosts usually have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.contract.wrap.probe import Wrap, noted

ORIGIN = "http://dashboard.test"


class Refused(Exception):
    """An error of the host's, for which it has a handler."""


async def refused(request: Request, exc: Exception) -> Response:
    return JSONResponse({"refused": str(exc)}, status_code=409)


async def item(request: Request) -> Response:
    return JSONResponse({"item": request.path_params["name"], "url": str(request.url)})


async def create(request: Request) -> Response:
    return JSONResponse(await request.json(), status_code=201)


async def boom(request: Request) -> Response:
    raise RuntimeError("boom")


async def refuse(request: Request) -> Response:
    raise Refused("by hand")


async def teapot(request: Request) -> Response:
    raise HTTPException(418, "short and stout", headers={"x-pot": "tea"})


async def login(request: Request) -> Response:
    request.session["name"] = (await request.body()).decode()
    return PlainTextResponse("welcome")


async def who(request: Request) -> Response:
    return JSONResponse(
        {
            "session": dict(request.session),
            "app_state": request.app.state.name,
            "app": type(request.app).__name__,
            "pool": request.state.pool,
            "root_path": request.scope.get("root_path"),
            "keys": sorted(key for key in request.scope if not key.startswith("fastapi")),
        }
    )


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[str]:
        for number in range(5):
            yield f"part {number}\n"
            await asyncio.sleep(0)

    return StreamingResponse(parts(), media_type="text/plain")


async def upload(request: Request) -> Response:
    sizes = [len(part) async for part in request.stream()]
    return JSONResponse({"total": sum(sizes)})


async def background(request: Request) -> Response:
    done = request.app.state.done
    return PlainTextResponse(f"{len(done)} done", background=BackgroundTask(done.append, "task"))


async def slow(request: Request) -> Response:
    gone = request.app.state.gone
    while not await request.is_disconnected():  # noqa: ASYNC110  what frameworks offer
        await asyncio.sleep(0.01)
    gone.append("client")
    return PlainTextResponse("nobody reads this")


async def echo(socket: WebSocket) -> None:
    await socket.accept(subprotocol="echo" if socket.scope["subprotocols"] else None)
    try:
        while True:
            await socket.send_text(f"{socket.app.state.name}: {await socket.receive_text()}")
    except WebSocketDisconnect:
        socket.app.state.gone.append("socket")


async def stamp(request: Request, call_next: RequestResponseEndpoint) -> Response:
    request.state.stamped = True
    response = await call_next(request)
    response.headers["x-stamp"] = "stamped"
    return response


ROUTES = [
    Route("/items/{name}", item),
    Route("/items", create, methods=["POST"]),
    Route("/slash/", teapot),
    Route("/boom", boom),
    Route("/refuse", refuse),
    Route("/teapot", teapot),
    Route("/login", login, methods=["POST"]),
    Route("/who", who),
    Route("/stream", stream),
    Route("/upload", upload, methods=["POST"]),
    Route("/background", background),
    Route("/slow", slow),
    # On paths of the plugins': another method, and a neighbour.
    Route("/v1/webhooks/outbox", create, methods=["PUT"]),
    Route("/v1/agents/{name}", item),
    Route("/integrations/probe/seen/{name}", item, methods=["GET", "PATCH"]),
    WebSocketRoute("/ws", echo),
    WebSocketRoute("/v1/webhooks/outbox", echo),
]


def make(
    kind: type[Any],
    wrap: Wrap | None,
    events: list[str] | None = None,
    fails: str = "",
    *,
    stamped: bool = True,
) -> Any:
    """Make the host in one of the two frameworks.

    Args:
        kind: `Starlette` or `FastAPI`.
        wrap: added as a middleware.
        events: what its lifespan notes.
        fails: ``start`` or ``stop``.
        stamped: with a middleware after whose kind routes do not hear of a disconnect, also without plugins.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with noted(events if events is not None else [], fails):
            yield {"pool": "from the lifespan"}

    app = kind(lifespan=lifespan)
    app.router.routes.extend(ROUTES)
    app.state.name = "the host"
    app.state.done = []
    app.state.gone = []
    app.add_exception_handler(Refused, refused)
    if wrap is not None:
        app.add_middleware(wrap)
    if stamped:
        app.add_middleware(BaseHTTPMiddleware, dispatch=stamp)
    app.add_middleware(SessionMiddleware, secret_key="not a secret")
    app.add_middleware(CORSMiddleware, allow_origins=[ORIGIN], allow_methods=["*"], allow_credentials=True)
    if kind is FastAPI:
        _add_typed_routes(app)
    return app


def _add_typed_routes(app: FastAPI) -> None:
    @app.get("/typed/{number}")
    async def typed(number: int) -> dict[str, int]:
        return {"number": number}


def starlette(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    return make(Starlette, wrap, events, fails)


def fastapi(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    return make(FastAPI, wrap, events, fails)
