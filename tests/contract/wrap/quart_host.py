"""A host in Quart, with what hosts usually have."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from quart import Quart, current_app, jsonify, request, session

from tests.contract.wrap.probe import Wrap, noted


def quart(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    """Make the host; it is wrapped as Quart's documentation says for ASGI middleware."""
    app = Quart("host")
    app.secret_key = "not a secret"

    @app.while_serving
    async def serving() -> AsyncGenerator[None, None]:
        async with noted(events if events is not None else [], fails):
            yield

    _add_pages(app)
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

    @app.get("/boom")
    async def boom() -> str:
        raise RuntimeError("boom")

    @app.post("/login")
    async def login() -> str:
        session["name"] = str(await request.get_data(as_text=True))
        return "welcome"

    @app.get("/who")
    async def who() -> Any:
        return jsonify(session=dict(session), app=current_app.name, keys=sorted(request.scope))
