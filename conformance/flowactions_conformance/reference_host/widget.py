"""The end user's routes: opening a flow, and ``flow.next``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.reference_host.walker import Turn, Walker


class Opening(msgspec.Struct, rename="camel"):
    """The end user opens a flow."""

    user_id: Annotated[str, Meta(max_length=200)] = ""
    content: Annotated[str, Meta(max_length=10_000)] = ""


class Onward(msgspec.Struct):
    """The end user goes on from the step that the browser shows."""

    from_step: str | None = msgspec.field(name="from", default=None)


@post("/flows/{flow_id:str}/open", status_code=200, raises=[NotFoundException])
async def open_flow(
    store: NamedDependency[Store],
    walker: NamedDependency[Walker],
    flow_id: FromPath[str],
    data: JSONBody[Opening],
) -> dict[str, Turn]:
    """Open a flow in the end user's widget."""
    flow = await store.flow(flow_id)
    if flow is None:
        raise NotFoundException("No flow has this id.")
    return {"data": await walker.open(flow, data.user_id, data.content)}


@post("/sessions/{session:str}/next", status_code=200, raises=[NotFoundException])
async def next_step(
    store: NamedDependency[Store],
    walker: NamedDependency[Walker],
    session: FromPath[str],
    data: JSONBody[Onward],
) -> dict[str, Turn]:
    """Go to the next step: ``flow.next``."""
    run = await store.run(session)
    if run is None:
        raise NotFoundException("No session has this id.")
    return {"data": await walker.next(run, data.from_step)}
