"""``flowactions-demo``: the reference host, a fake chat provider and a webhook receiver, on loopback.

With ``--once`` it runs the sample flows without a browser, says step by step what was observed, and exits 0 only
when everything was.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import settings_of
from flowactions_conformance.receiver import Receiver
from flowactions_conformance.reference_host import Sample, create_app
from flowactions_conformance.serving import PortUnavailable, listen_as_told, serve, stopped, url_of
from flowactions_conformance.walkthrough import WalkthroughFailed, call_in, connect_chat, walk_through

TICK_SECONDS = "0.5"
CHOICES = ("FLOWACTIONS_DELIVERY", "FLOWACTIONS_CHAT_DELIVERY")
"""Settings that it takes from its environment; none that would lead it to data of others."""
STARTING = "Starting a flow engine host, a webhook receiver and a chat provider on this machine …"


class Demo(NamedTuple):
    """A running demo.

    Attributes:
        host_url: the reference host.
        receiver_url: the receiver's page.
        provider_url: the fake provider's page; ``None`` with a real workspace.
        dashboard_token: a bearer token for the dashboard.
        api_token: a bearer token for the logic-webhook route, as a customer's backend has it.
        auth_secret: what the auth provider signs its events with.
    """

    host_url: str
    receiver_url: str
    provider_url: str | None
    dashboard_token: str
    api_token: str
    auth_secret: str
    receiver: Receiver
    provider: FakeChatProvider | None


@asynccontextmanager
async def running_demo(
    environment: Mapping[str, str],
    directory: Path,
    *,
    channel_id: str | None = None,
    port: int = 0,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Demo]:
    """Start the three apps on loopback.

    Args:
        environment: with ``CHAT_BOT_TOKEN`` or ``CHAT_CLIENT_ID`` set, a real workspace is used.
        directory: for the database.
        channel_id: the channel that the sample flows post to.
        port: of the reference host, 0 for a free one.
        settings: of the plugin, instead of the demo's own.

    Raises:
        PortUnavailable: the port is taken.
    """
    chat = {name: value for name, value in environment.items() if name.startswith("CHAT_") and value}
    real = _has_real_workspace(environment)
    async with AsyncExitStack() as stack:
        provider, provider_url = None, None
        if not real:
            provider = FakeChatProvider([sample_workspace(), sample_workspace("Globex", "T00GLOBEX")])
            provider_url = await stack.enter_async_context(serve(provider.app))
            chat = settings_of(provider_url)
        webhook_secret, dashboard_token, api_token = (secrets.token_urlsafe(24) for _ in range(3))
        auth_secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        receiver = Receiver(webhook_secret)
        receiver_url = await stack.enter_async_context(serve(receiver.app))
        sample = Sample(
            webhook_url=f"{receiver_url}/hooks/orders",
            webhook_secret=webhook_secret,
            channel_id=channel_id or ("" if real else "C00ORDERS"),
            dashboard_token=dashboard_token,
            api_token=api_token,
        )
        listener = listen_as_told(port)
        if provider is not None:
            provider.events_url = f"{url_of(listener)}/integrations/chat/events"
        settings = {
            **chat,
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_TICK_SECONDS": TICK_SECONDS,
            "FLOWACTIONS_LOGIN_PATH": "/login",
            "BACKEND_PUBLIC_URL": url_of(listener),
            "AUTH_WEBHOOK_SIGNING_SECRET": auth_secret,
            **(settings or {}),
        }
        made = create_app(settings, directory / "reference-host.db", sample=sample)
        host_url = await stack.enter_async_context(serve(made.app, listener))
        yield Demo(
            host_url=host_url,
            receiver_url=receiver_url,
            provider_url=provider_url,
            dashboard_token=dashboard_token,
            api_token=api_token,
            auth_secret=auth_secret,
            receiver=receiver,
            provider=provider,
        )


def _has_real_workspace(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("CHAT_BOT_TOKEN") or environment.get("CHAT_CLIENT_ID"))


async def _serve_until_stopped(options: argparse.Namespace, directory: Path) -> None:
    end = stopped()
    _say(STARTING)
    chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
    async with running_demo(
        os.environ, directory, channel_id=options.channel, port=options.port, settings=chosen
    ) as demo:
        connected = "connect yours on the Connections page"
        if demo.provider is not None:
            card = await connect_chat(demo.host_url, demo.dashboard_token)
            connected = f"connected to {card['workspace']['name']}"
        _say(
            f"""
The demo runs. Sign in as Ada or as Olive, who operates it; no password is asked.

  Flow editor          {demo.host_url}/editor
  A flow as a user     {demo.host_url}/run/order-placed
  Step by step         {demo.host_url}/run/onboarding
  Deliveries           {demo.host_url}/integrations/webhooks  (as Ada those of Acme; as Olive, the operator, all)
  Chat connection      {demo.host_url}/connections  ({connected})
  Webhook receiver     {demo.receiver_url}/
  Chat channels        {f"{demo.provider_url}/" if demo.provider_url else "in your workspace"}
  All routes           {demo.host_url}/schema/openapi.json

Trigger the survey's webhook, as a customer's backend would (the second time it is a duplicate):

  curl -i {demo.host_url}/v1/agents/acme-support/experiences/survey/logic-webhook \\
    -H 'authorization: Bearer {demo.api_token}' -H 'content-type: application/json' \\
    -d '{{"idempotencyKey": "order-1", "source": "experience_trigger", "actionIndex": 0, "triggerRowId": "submitted"}}'

Press Ctrl+C to stop. Nothing is kept.
"""
        )
        await end.wait()


async def _once(options: argparse.Namespace, directory: Path) -> None:
    _say(STARTING)
    async with running_demo(os.environ, directory, channel_id=options.channel) as demo:
        arrivals, provider = demo.receiver.arrivals, demo.provider
        messages = None if provider is None else provider.messages
        await walk_through(demo.host_url, demo.dashboard_token, arrivals, messages, _say)
        await call_in(demo.host_url, demo.dashboard_token, demo.api_token, demo.auth_secret, arrivals, _say)
        _say("Everything was observed.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit status."""
    parser = argparse.ArgumentParser(prog="flowactions-demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="run the sample flows, report, and leave")
    parser.add_argument("--port", type=int, default=0, help="port of the reference host (default: a free one)")
    parser.add_argument("--channel", help="id of the channel to post to, in a real workspace")
    options = parser.parse_args(arguments)
    if options.once and _has_real_workspace(os.environ) and not options.channel:
        parser.error("a real workspace needs --channel, the id of a channel that the app has joined")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with tempfile.TemporaryDirectory(prefix="flowactions-demo-") as directory:
        try:
            asyncio.run((_once if options.once else _serve_until_stopped)(options, Path(directory)))
        except WalkthroughFailed as failure:
            _say(f"\nFAILED: {failure}")
            return 1
        except PortUnavailable as exc:
            sys.stderr.write(f"flowactions-demo: {exc}\n")
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
