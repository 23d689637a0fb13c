"""A bare ASGI app: the protocol by hand, without a framework."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.wrap.probe import Wrap


def bare(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    """Make the host."""
    host = BareHost(events if events is not None else [], fails)
    return host if wrap is None else wrap(host)


class BareHost:
    """Answers with what it was given; raises at /boom; has a lifespan."""

    def __init__(self, events: list[str], fails: str) -> None:
        self._events = events
        self._fails = fails

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._run(receive, send)
        elif scope["type"] == "websocket":
            await _echo(receive, send)
        elif scope["path"] == "/boom":
            raise RuntimeError("boom")
        else:
            size = 0
            while (message := await receive())["type"] == "http.request":
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    break
            seen = {key: scope.get(key) for key in ("path", "root_path", "method", "state")}
            body = json.dumps({**seen, "keys": sorted(scope), "size": size}).encode()
            await send({"type": "http.response.start", "status": 203, "headers": [(b"x-host", b"bare")]})
            for part in (body[:10], body[10:]):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})

    async def _run(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            step = kind.rpartition(".")[2]
            failing = {"startup": "start", "shutdown": "stop"}[step]
            if self._fails == failing:
                await send({"type": f"{kind}.failed", "message": f"the host cannot {failing}"})
                return
            self._events.append({"startup": "host started", "shutdown": "host stopped"}[step])
            await send({"type": f"{kind}.complete"})
            if step == "shutdown":
                return


async def _echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": f"bare: {message['text']}"})
