"""``chat-provider`` and ``receiver``: what a host talks to while it is developed, on loopback."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from typing import Any

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import settings_of
from flowactions_conformance.commands import Wrong
from flowactions_conformance.receiver import Receiver
from flowactions_conformance.serving import PortUnavailable, listen_as_told, serve, stopped

PROVIDER = f"""\
A fake chat provider. Give your host these settings, connect a workspace, and see its messages at URL/

FLOWACTIONS_ENVIRONMENT=development
{"".join(f"{name}={value}" + chr(10) for name, value in settings_of("URL").items())}
Your host needs BACKEND_PUBLIC_URL as well, the URL at which it is served. Press Ctrl+C to stop. Nothing is kept.
"""
RECEIVER = """\
A webhook receiver, which verifies what arrives and shows it at URL/

FLOWACTIONS_ENVIRONMENT=development
WEBHOOK_URL=URL/hooks/orders
WEBHOOK_SECRET=SECRET

Give your host the first as a setting: it allows webhooks to loopback. The other two are webhookUrl and webhookSecret of
a webhook node. Any path under /hooks/ is taken; /hooks/status/503/… answers 503, /hooks/fail-first/2/… answers 500
twice, /hooks/slow/3/… answers after three seconds. Press Ctrl+C to stop. Nothing is kept.
"""


def serve_chat_provider(options: argparse.Namespace) -> int:
    """Serve a fake chat provider until Ctrl+C, and print the settings of a host that uses it."""
    workspaces = [sample_workspace(limited=True), sample_workspace("Globex", "T00GLOBEX", limited=True)]
    provider = FakeChatProvider(workspaces, events_url=options.events_url)
    return _until_stopped(provider.app, options.port, PROVIDER)


def serve_receiver(options: argparse.Namespace) -> int:
    """Serve a webhook receiver until Ctrl+C, and print what to give a webhook node."""
    secret = options.secret or secrets.token_urlsafe(24)
    return _until_stopped(Receiver(secret).app, options.port, RECEIVER.replace("=SECRET", f"={secret}"))


def _until_stopped(app: Any, port: int, text: str) -> int:
    async def serving() -> None:
        end = stopped()
        async with serve(app, listen_as_told(port)) as url:
            sys.stdout.write(text.replace("URL/", f"{url}/"))
            sys.stdout.flush()
            await end.wait()

    try:
        asyncio.run(serving())
    except PortUnavailable as exc:
        raise Wrong(str(exc)) from exc
    return 0
