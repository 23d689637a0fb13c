"""``chat-provider`` and ``receiver``: what a host talks to while it is developed, on loopback."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from typing import Any

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import CLIENT_ID, CLIENT_SECRET, SIGNING_SECRET
from flowactions_conformance.receiver import Receiver
from flowactions_conformance.serving import listen_as_told, serve, stopped


def serve_chat_provider(port: int, events_url: str | None) -> None:
    """Serve a fake chat provider until Ctrl+C, and print the settings of a host that uses it.

    Raises:
        PortUnavailable: the port cannot be used.
    """
    provider = FakeChatProvider(
        [sample_workspace(limited=True), sample_workspace("Globex", "T00GLOBEX", limited=True)],
        events_url=events_url,
    )

    def said(url: str) -> str:
        return f"""A fake chat provider. Give your host these settings, connect a workspace, and see its messages at {url}/

FLOWACTIONS_ENVIRONMENT=development
CHAT_CLIENT_ID={CLIENT_ID}
CHAT_CLIENT_SECRET={CLIENT_SECRET}
CHAT_SIGNING_SECRET={SIGNING_SECRET}
CHAT_API_URL={url}/api/
CHAT_AUTHORIZE_URL={url}/oauth/v2/authorize

Your host needs BACKEND_PUBLIC_URL as well, the URL at which it is served. Press Ctrl+C to stop. Nothing is kept.
"""

    asyncio.run(_until_stopped(provider.app, port, said))


def serve_receiver(port: int, secret: str | None) -> None:
    """Serve a webhook receiver until Ctrl+C, and print what to give a webhook node.

    Raises:
        PortUnavailable: the port cannot be used.
    """
    chosen = secret or secrets.token_urlsafe(24)

    def said(url: str) -> str:
        return f"""A webhook receiver, which verifies what arrives and shows it at {url}/

FLOWACTIONS_ENVIRONMENT=development
WEBHOOK_URL={url}/hooks/orders
WEBHOOK_SECRET={chosen}

Give your host the first as a setting: it allows webhooks to loopback. The other two are webhookUrl and webhookSecret of
a webhook node. Any path under /hooks/ is taken; /hooks/status/503/… answers 503, /hooks/fail-first/2/… answers 500
twice, /hooks/slow/3/… answers after three seconds. Press Ctrl+C to stop. Nothing is kept.
"""

    asyncio.run(_until_stopped(Receiver(chosen).app, port, said))


async def _until_stopped(app: Any, port: int, said: Callable[[str], str]) -> None:
    end = stopped()
    async with serve(app, listen_as_told(port)) as url:
        sys.stdout.write(said(url))
        sys.stdout.flush()
        await end.wait()
