"""A host in a process of its own that does what its parent says, and dies where it is told to.

It reads one JSON object a line and answers with one: ``{"do": "advance", "walk": {…}, "step": "s", "times": 10}``,
``{"do": "post", "path": …, "bodies": […]}``. With ``"kill": n`` it kills itself (SIGKILL) at the nth point: before and
after each statement, and before each commit. Without, it says how many points there were.
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

from flowactions_hookspecs import Agent, ApiPrincipal, FlowActions, LogicAction
from tests.support import SmallHost, a_walk, transport_of


class Fuse:
    """Counts the points that were passed, and kills this process at one of them."""

    def __init__(self) -> None:
        self.passed = 0
        self._last = 0
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, name, self._pass)

    def arm(self, last: int) -> None:
        self.passed, self._last = 0, last

    def _pass(self, *_: Any) -> None:
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
    host = SmallHost(os.environ)
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
            print(msgspec.json.encode({"answer": answer, "points": fuse.passed}).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
