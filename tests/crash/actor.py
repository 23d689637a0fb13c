"""A host in a process of its own that does what its parent says, and dies where it is told to.

It reads one JSON object a line and answers with one: ``{"do": "advance", "walk": {…}, "step": "s", "times": 10}``,
``{"do": "post", "path": …, "bodies": […]}``, ``{"do": "enqueue", "how": "alone", "key": "k"}``. With ``"kill": n`` it kills itself (SIGKILL) at the nth point: before and
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
from sqlalchemy import Engine, event, text

from flowactions_hookspecs import Agent, ApiPrincipal, FlowActions, LogicAction
from tests.owning import engine_of, own_webhook
from tests.support import SmallHost, a_walk, transport_of


class Fuse:
    """Counts the points that were passed, and kills this process at one of them."""

    def __init__(self) -> None:
        self.passed = 0
        self._last = 0
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, name, self.note)
        send = httpx.AsyncClient.send

        async def sending(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
            if request.url.host == "host":  # this process itself
                return await send(client, request, **options)
            self.note()
            response = await send(client, request, **options)
            self.note()
            return response

        setattr(httpx.AsyncClient, "send", sending)  # noqa: B010  a method is replaced

    def arm(self, last: int) -> None:
        self.passed, self._last = 0, last

    def note(self, *_: Any) -> None:
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


async def enqueue(actions: FlowActions, ask: dict[str, Any]) -> Any:
    """Enqueue a webhook of the host's: alone, in a transaction of the host's with an order, or from a thread."""
    webhook = own_webhook(
        url=ask.get("url", "http://127.0.0.1:9/"), idempotency_key=ask["key"], entity=ask["key"]
    )
    if ask["how"] == "alone":
        return await actions.enqueue(webhook)
    if ask["how"] == "thread":
        return await asyncio.to_thread(lambda: actions.call(actions.enqueue(webhook)))
    engine = actions.host.database
    assert engine is not None
    async with engine.connect() as connection:
        await connection.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": ask["key"]})
        receipt = await actions.enqueue(webhook, connection)
        await (connection.rollback() if ask["how"] == "rolled back" else connection.commit())
    return receipt


async def main() -> None:
    """Serve the parent until it closes the pipe."""
    sys.path[:0] = [path for path in [os.environ.get("FLOWACTIONS_TEST_PACKAGES")] if path]
    host = SmallHost(os.environ)
    if "FLOWACTIONS_TEST_SHARED" in os.environ:
        host.database = engine_of(os.environ["FLOWACTIONS_DATABASE_URL"])
    host.action = LogicAction(url=os.environ.get("FLOWACTIONS_TEST_URL", "http://127.0.0.1:9/"))
    host.agents = [Agent(id=f"agent-{number}", name="A", organization_id="acme") for number in (1, 2)]
    host.api = ApiPrincipal(organization_id="acme", all_agents=True)
    actions = FlowActions.load(host)
    fuse = Fuse()
    loop = asyncio.get_running_loop()
    async with actions.lifespan(tasks="FLOWACTIONS_TEST_NO_TASKS" not in os.environ):
        print("{}", flush=True)  # noqa: T201
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            ask = json.loads(line)
            fuse.arm(ask.get("kill", 0))
            answer = await {"advance": advance, "post": post, "enqueue": enqueue}[ask["do"]](actions, ask)
            fuse.note()  # it is done, and nobody has been told
            print(msgspec.json.encode({"answer": answer, "points": fuse.passed}).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
