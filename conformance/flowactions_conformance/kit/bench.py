"""What a host under test talks to: receiver, chat provider and the place where the probe reports; and the settings of it."""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

from flowactions_conformance.chat_provider import FakeChatProvider, Workspace, sample_workspace
from flowactions_conformance.chat_provider.app import settings_of
from flowactions_conformance.kit.probing.control import Control
from flowactions_conformance.receiver import Arrival, Receiver
from flowactions_conformance.serving import serve

TICK_SECONDS: Final = "0.1"
AUTH_SECRET: Final = "AUTH_WEBHOOK_SIGNING_SECRET"  # noqa: S105  a setting's name


class Listeners(NamedTuple):
    """The open ports of a bench; ``None``: a free one."""

    control: socket.socket | None = None
    receiver: socket.socket | None = None
    provider: socket.socket | None = None


class Bench:
    """Receiver, chat provider and control, of a run or of `serve-env`.

    Attributes:
        arrivals: all requests that the receiver got.
    """

    def __init__(self, token: str | None = None) -> None:
        self.control = Control(token)
        self.receiver = Receiver("", on_arrival=self._arrived)
        self.provider = FakeChatProvider([sample_workspace()])
        self.encryption_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.auth_secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.arrivals: list[Arrival] = []
        self.receiver_url = ""
        self.provider_url = ""
        self._changes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, listeners: Listeners = Listeners()) -> AsyncIterator[None]:  # noqa: B008  it is immutable
        """Serve all of it while open; the listeners are closed in the end."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.control.running(listeners.control))
            self.receiver_url = await stack.enter_async_context(serve(self.receiver.app, listeners.receiver))
            self.provider_url = await stack.enter_async_context(serve(self.provider.app, listeners.provider))
            yield

    def settings(self, database: str, url: str, *, chat: bool = True, inbound: bool) -> dict[str, str]:
        """Return the settings of a host.

        Args:
            database: the URL of the plugin's.
            url: at which it is reached.
            chat: whether chat is among them.
            inbound: whether it handles events of the auth provider.
        """
        settings = {
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DATABASE_URL": database,
            "FLOWACTIONS_TICK_SECONDS": TICK_SECONDS,
            # Without it the plugin would make a file of its own, on PostgreSQL in whatever folder the kit is run in.
            "FLOWACTIONS_ENCRYPTION_KEYS": self.encryption_key,
            "BACKEND_PUBLIC_URL": url,
        }
        if inbound:
            settings[AUTH_SECRET] = self.auth_secret
        if chat:
            settings |= settings_of(self.provider_url)
        return settings

    def workspace(self) -> Workspace:
        """Make a workspace of the chat provider that nobody has connected."""
        number = secrets.token_hex(4).upper()
        workspace = sample_workspace(f"Workspace {number}", f"T{number}")
        self.provider.state.workspaces.append(workspace)
        return workspace

    def _arrived(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        task = asyncio.create_task(self.control.changed())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
