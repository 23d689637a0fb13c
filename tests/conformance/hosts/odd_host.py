"""The reference host as few would build it, and as the contract lets one: nothing of it may be blamed.

Middleware around everything adds headers and cookies to each answer, compresses answers, and refuses whoever shows no
credential with a 403 of its own. End users see nothing when a flow is opened, and get to its first step with their first *next*.
A *next* ignores the step that the client names, and continues from where the run is, in the newest version of the flow. Two at the
same time run one after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import to_builtins
from msgspec.structs import replace
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flowactions_conformance import Env
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.store import Flow, Run, runs
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Turn, _current

FOR_MEMBERS = re.compile("/(v1/webhooks/|v1/agents/|integrations/nodes/|integrations/chat/connection)")


async def _around(request: Request, call_next: RequestResponseEndpoint) -> Response:
    if FOR_MEMBERS.match(request.url.path) and "authorization" not in request.headers:
        return JSONResponse({"detail": "This is for members."}, 403)
    answer = await call_next(request)
    answer.headers["x-frame-options"] = "DENY"
    answer.headers["server-timing"] = "app;dur=1"
    answer.set_cookie("visited", "yes", samesite="lax")
    return answer


class OddDriver(ReferenceDriver):
    """Uses it as the reference host is used."""

    edits: Literal["pinned", "live"] | None = "live"


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[OddDriver]:
    """Make the host."""
    made = create_app(env.settings, env.database_url)
    store: Any = made.host.store
    walker: Any = made.walker
    start, kept, opens, goes_on = store.start_run, store.run, walker.open, walker.next

    async def start_before_the_first_step(run: Run, *connection: Any) -> None:
        await start(replace(run, position=-1), *connection)

    async def shows_nothing(*flow: Any) -> Turn:
        turn: Turn = await opens(*flow)
        return replace(turn, step=None)

    async def in_the_newest(session: str) -> Run | None:
        run: Run | None = await kept(session)
        if run is None:
            return None
        flow: Flow = await store.flow(run.flow.id) or run.flow
        shown, ids = _current(run), [step["id"] for step in flow.steps]
        position = ids.index(shown.id) if shown and shown.id in ids else run.position
        if flow != run.flow:
            same = (runs.c.id == run.id) & (runs.c.position == run.position)
            async with store.transaction() as connection:
                values = {"flow": to_builtins(flow), "position": position}
                await connection.execute(sa.update(runs).where(same).values(values))
        return replace(run, flow=flow, position=position)

    async def from_where_it_is(run: Run, _: str | None) -> Turn:
        while True:
            shown = _current(run)
            turn: Turn = await goes_on(run, shown and shown.id)
            if turn.done or turn.step != shown:
                return turn
            await asyncio.sleep(0.1)
            run = await store.run(run.session) or run

    store.start_run, store.run = start_before_the_first_step, in_the_newest
    walker.open, walker.next = shows_nothing, from_where_it_is
    driver = OddDriver(made, env)
    app: Any = made.app
    driver.app = GZipMiddleware(BaseHTTPMiddleware(app, dispatch=_around), minimum_size=100)
    yield driver
