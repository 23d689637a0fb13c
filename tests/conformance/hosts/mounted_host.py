"""What `init` writes, in plain ASGI, mounted below a path of another app, whose start takes three seconds.

The outer app owns the server's lifespan, waits, and enters that of the plugins by hand. The inner one, which the plugins'
routes are put around, is told its path in ``root_path``, and gets no lifespan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from flowactions_conformance import Env, Login
from flowactions_conformance.commands.host_template import Data, ExampleHost, MyDriver
from flowactions_hookspecs import FlowActions

MOUNT = "/shop"
PREFIX = "/api/flows"
START_SECONDS = 3.0


async def _nothing_here(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"Nothing is here."})


class Outer:
    """The app that the server knows."""

    def __init__(self, actions: FlowActions) -> None:
        self._actions = actions
        self._inner = actions.wrap(_nothing_here, lifespan=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve, or start and stop."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and f"{scope['path']}/".startswith(f"{MOUNT}/"):
            await self._inner({**scope, "root_path": scope.get("root_path", "") + MOUNT}, receive, send)
        elif scope["type"] == "http":
            await _nothing_here(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                await asyncio.sleep(START_SECONDS)  # its caches are filled, say
                await stack.enter_async_context(self._actions.lifespan())
            except Exception as exc:
                await send({"type": "lifespan.startup.failed", "message": str(exc)})
                raise
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


class MountedDriver(MyDriver):
    """Uses it as the host that `init` writes is used."""

    prefix = MOUNT + PREFIX

    def __init__(self, data: Data, actions: FlowActions) -> None:
        super().__init__(data, actions)
        self.app = Outer(actions)

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """The editor is a page of the outer app: it gets the pickers' paths with the mount."""
        described = await super().palette(who)
        return [
            {**each, "pickers": {name: MOUNT + path for name, path in each["pickers"].items()}}
            for each in described
        ]


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[MountedDriver]:
    """Make the host. Its public address holds the path of the mount, which only the outer app knows."""
    data = Data()
    settings = {**env.settings, "BACKEND_PUBLIC_URL": env.settings["BACKEND_PUBLIC_URL"] + MOUNT}
    yield MountedDriver(data, FlowActions.load(ExampleHost(settings, data), prefix=PREFIX))
