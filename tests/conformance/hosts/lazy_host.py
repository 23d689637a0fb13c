"""The FastAPI host that records an action node only when its user has got to the step before it, in the newest version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from flowactions_conformance import Env
from flowactions_hookspecs import Deferred, FlowActions
from tests.conformance.hosts.fastapi_host import (
    ShopDriver,
    ShopHost,
    Walker,
    _node,
    _walk,
    create_app,
    runs,
)
from tests.conformance.hosts.odd_host import OddWalker


class LazyWalker(OddWalker):
    """Goes from step to step, and looks no further than the next one."""

    async def open(self, flow: dict[str, Any], user_id: str, content: str) -> dict[str, Any]:
        """See `Walker.open`."""
        if flow["pacing"] != "deferred":
            return await Walker.open(self, flow, user_id, content)
        items = flow["items"]
        steps = [item for item in items if item["kind"] == "step"]
        run = await Walker.open(self, {**flow, "items": steps}, user_id, content)
        position = 0 if items and items[0]["kind"] == "step" else -1
        await self.host._put(runs, **{**run, "items": items, "position": position})
        return await self._recorded(await self.host._get(runs, id=run["id"]) or run)

    async def next(self, run: dict[str, Any], at: str | None) -> dict[str, Any]:
        """See `Walker.next`."""
        return await Walker.next(self, await self._in_the_newest(run), at)

    async def _move(self, run: dict[str, Any], position: int, state: str) -> dict[str, Any]:
        return await self._recorded(await super()._move(run, position, state))

    async def _recorded(self, run: dict[str, Any]) -> dict[str, Any]:
        at = -1
        for index, item in enumerate(run["items"] if run["state"] == "open" else ()):
            if item["kind"] == "step":
                at += 1
            elif at == run["position"]:
                behind = (each["id"] for each in run["items"][index:] if each["kind"] == "step")
                walk = msgspec.structs.replace(self._walk(run), pacing=Deferred(next(behind, None)))
                await self.actions.reach(walk, _node(item))
        return run

    def _walk(self, run: dict[str, Any]) -> Any:
        return _walk(run)


class LazyDriver(ShopDriver):
    """Uses it as the FastAPI host is used; a run and its records are not one transaction."""

    claims = frozenset({"pacing", "tenancy"})
    edits: Literal["pinned", "live"] | None = "live"


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[LazyDriver]:
    """Makes the host."""
    host = ShopHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield LazyDriver(host, create_app(host, actions, LazyWalker(host, actions)), env)
