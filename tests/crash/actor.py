"""A host in a process of its own that does what its parent says, and dies where it is told to.

It reads one JSON object a line and answers with one: ``{"do": "advance", "walk": {…}, "step": "s", "times": 10}``,
``{"do": "post", "path": …, "bodies": […]}``. With ``"kill": n`` it kills itself (SIGKILL) at the nth point: before and
after each statement, before each commit, before and after each request to another server, and before the answer. Without,
it says how many points there were. ``FLOWACTIONS_TEST_PACKAGES`` is a directory of further installed plugins, and with
``FLOWACTIONS_TEST_SHARED`` the host has an engine of its own, which it shares.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import httpx
import msgspec
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Agent, ApiPrincipal, FlowActions, LogicAction
from flowactions_plugin.settings import read_settings
from tests.support import SmallHost, a_walk, transport_of


class Fuse:
    """Counts the points that were passed, and kills this process at one of them."""

    def __init__(self) -> None:
        self.passed = 0
        self._last = 0
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, name, self.step)
        send = httpx.AsyncClient.send

        async def sending(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
            if request.url.host == "host":  # this process itself
                return await send(client, request, **options)
            self.step()
            response = await send(client, request, **options)
            self.step()
            return response

        setattr(httpx.AsyncClient, "send", sending)  # noqa: B010  a method is replaced

    def arm(self, last: int) -> None:
        self.passed, self._last = 0, last

    def step(self, *_: Any) -> None:
        """Pass a point."""
        self.passed += 1
        if self.passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


async def advance(actions: FlowActions, ask: dict[str, Any]) -> dict[str, list[str]]:
    """Advance so many times at once; give the ids of the nodes that ran, and each call's state."""
    walk = a_walk(**ask["walk"])
    found = await asyncio.gather(*(actions.advance(walk, ask["step"]) for _ in range(ask.get("times", 1))))
    return {
        "ran": [f"{result.node_id}:{result.status}" for advanced in found for result in advanced.results],
        "states": [advanced.state for advanced in found],
    }


async def post(actions: FlowActions, ask: dict[str, Any]) -> list[int]:
    """Post all the bodies at once; give the statuses."""
    transport = transport_of(actions)
    async with httpx.AsyncClient(transport=transport, base_url="http://host", timeout=300) as client:
        answers = await asyncio.gather(*(client.post(ask["path"], json=body) for body in ask["bodies"]))
    return [answer.status_code for answer in answers]


async def main() -> None:
    """Serve the parent until it closes the pipe."""
    sys.path[:0] = [path for path in [os.environ.get("FLOWACTIONS_TEST_PACKAGES")] if path]
    url = read_settings(os.environ).database_url
    host = SmallHost(
        os.environ, database=create_async_engine(url) if "FLOWACTIONS_TEST_SHARED" in os.environ else None
    )
    host.action = LogicAction(url=os.environ.get("FLOWACTIONS_TEST_URL", "http://127.0.0.1:9/"))
    host.agents = [Agent(id=f"agent-{number}", name="A", organization_id="acme") for number in (1, 2)]
    host.api = ApiPrincipal(organization_id="acme")
    actions = FlowActions.load(host)
    fuse = Fuse()
    loop = asyncio.get_running_loop()
    async with actions.lifespan():
        print("{}", flush=True)  # noqa: T201
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            ask = json.loads(line)
            fuse.arm(ask.get("kill", 0))
            answer = await {"advance": advance, "post": post}[ask["do"]](actions, ask)
            fuse.step()
            print(msgspec.json.encode({"answer": answer, "points": fuse.passed}).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
