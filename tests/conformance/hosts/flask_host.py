"""What `init` writes, on Flask: its views run in threads, walk flows there, and are served behind the plugins' routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from a2wsgi import WSGIMiddleware
from flask import Flask, request

from flowactions_conformance import Action, Env, Step, Turn
from flowactions_conformance.commands.host_template import Data, ExampleHost, MyDriver, Run, new_walk
from flowactions_hookspecs import Deferred, FlowActions, Node


def core(data: Data, actions: FlowActions) -> Flask:
    """Make the engine: a view for each thing that an end user does."""
    app, runs = Flask("core"), dict[str, Run]()

    @app.post("/runs/<path:flow_id>")
    def open_flow(flow_id: str) -> dict[str, Any]:
        flow, said = data.flows[flow_id], request.get_json()
        walk = new_walk(flow, said["user"], said["content"])
        run = Run(walk, [item.id for item in flow.items if isinstance(item, Step)])
        run.done = flow.pacing == "eager"
        for index, item in enumerate(flow.items):
            if isinstance(item, Action):
                behind = (each.id for each in flow.items[index:] if isinstance(each, Step))
                recorded = msgspec.structs.replace(walk, pacing=Deferred(next(behind, None)))
                node = Node(id=item.id, type=item.type, config=item.config)
                reached = actions.call(actions.reach(walk if run.done else recorded, node))
                if run.done and reached.halt:
                    break
        runs[walk.run_id] = run
        return shown(run)

    @app.post("/steps/<run_id>")
    def go_on(run_id: str) -> dict[str, Any]:
        run = runs[run_id]
        before = run.position
        if run.done or request.get_json()["at"] != run.shown:
            return shown(run)
        step = run.steps[before + 1] if before + 1 < len(run.steps) else None
        advanced = actions.call(actions.advance(run.walk, step))
        if advanced.state != "running" and run.position == before:
            run.position += 1
            run.done |= step is None or advanced.state == "halted"
        return shown(run)

    def shown(run: Run) -> dict[str, Any]:
        return {"session": run.walk.run_id, "step_id": run.shown, "done": run.done}

    return app


class FlaskDriver(MyDriver):
    """Uses it over HTTP."""

    def __init__(self, data: Data, actions: FlowActions, env: Env) -> None:
        super().__init__(data, actions)
        app: Any = core(data, actions)
        self.app = actions.wrap(WSGIMiddleware(app, workers=20))
        self._base_url = env.base_url

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Open a flow as an end user."""
        return await self._ask(f"/runs/{quote(flow, safe='')}", user=user, content=content)

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Go on from a step."""
        return await self._ask(f"/steps/{session}", at=step)

    async def _ask(self, path: str, **said: Any) -> Turn:
        async with httpx.AsyncClient(base_url=self._base_url, timeout=60) as client:
            answer = await client.post(path, json=said)
        answer.raise_for_status()
        return Turn(**answer.json(), raw=answer.text)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[FlaskDriver]:
    """Make the host."""
    data = Data()
    yield FlaskDriver(data, FlowActions.load(ExampleHost(env.settings, data)), env)
