"""A host in Quart, with what hosts usually have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from quart import Quart, Response, current_app, jsonify, request, session, websocket

from tests.contract.wrap.probe import Wrap, noted


class Refused(Exception):
    """An error of the host's, for which it has a handler."""


def quart(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    """Make the host; it is wrapped as Quart's documentation says for ASGI middleware."""
    app = Quart("host")
    app.secret_key = "not a secret"

    @app.while_serving
    async def serving() -> AsyncGenerator[None, None]:
        async with noted(events if events is not None else [], fails):
            yield

    _add_pages(app)
    _add_errors(app)
    _add_streams(app)
    if wrap is not None:
        app.asgi_app = wrap(app.asgi_app)  # type: ignore[method-assign]
    return app


def _add_pages(app: Quart) -> None:
    @app.get("/items/<name>")
    @app.get("/v1/agents/<name>")
    async def item(name: str) -> Any:
        return jsonify(item=name, url=request.url, root_path=request.root_path)

    @app.post("/items")
    @app.put("/v1/webhooks/outbox")
    async def create() -> Any:
        return await request.get_json(), 201

    @app.get("/slash/")
    async def slash() -> str:
        return "with a slash"

    @app.post("/login")
    async def login() -> str:
        session["name"] = str(await request.get_data(as_text=True))
        return "welcome"

    @app.get("/who")
    async def who() -> Any:
        return jsonify(session=dict(session), app=current_app.name, keys=sorted(request.scope))


def _add_errors(app: Quart) -> None:
    @app.get("/boom")
    async def boom() -> str:
        raise RuntimeError("boom")

    @app.get("/refuse")
    async def refuse() -> str:
        raise Refused("by hand")

    @app.errorhandler(Refused)
    async def refused(exc: Refused) -> Any:
        return {"refused": str(exc)}, 409


def _add_streams(app: Quart) -> None:
    done: list[str] = []

    @app.get("/stream")
    async def stream() -> Any:
        async def parts() -> AsyncIterator[str]:
            for number in range(5):
                yield f"part {number}\n"

        return Response(parts(), content_type="text/plain")

    @app.post("/upload")
    async def upload() -> Any:
        total = 0
        async for part in request.body:
            total += len(part)
        return {"total": total}

    @app.get("/background")
    async def background() -> str:
        async def work() -> None:
            done.append("task")

        app.add_background_task(work)
        return f"{len(done)} done"

    @app.websocket("/ws")
    @app.websocket("/v1/webhooks/outbox")
    async def echo() -> None:
        await websocket.accept(subprotocol="echo" if websocket.requested_subprotocols else None)
        while True:
            await websocket.send(f"the host: {await websocket.receive()!s}")
