"""Runs the sample flows over HTTP, as a browser would, and checks what the receiver and the provider saw."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from flowactions_conformance.chat_provider import Message
from flowactions_conformance.receiver import Arrival

Say = Callable[[str], None]

OBSERVED_SECONDS = 15.0
USER = "user-42"
CONTENT = "two pizzas & a <lemonade>"


class WalkthroughFailed(Exception):
    """Something that should have been observed was not; the message says what."""


class Observer:
    """What can be seen from outside.

    Args:
        client: signed in to the reference host's dashboard.
        arrivals: what the receiver got.
        messages: what the fake provider got; ``None`` with a real workspace.
        say: prints a line.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        arrivals: Iterable[Arrival],
        messages: Sequence[Message] | None,
        say: Say,
    ) -> None:
        self._client = client
        self._arrivals = arrivals
        self._messages = messages
        self.say = say

    async def results(self, flow_id: str) -> list[dict[str, Any]]:
        """Return the node results of the flow's newest run."""
        answer = await self._client.get(f"/api/flows/{flow_id}/runs")
        results: list[dict[str, Any]] = answer.json()["data"][0]["results"]
        return results

    async def webhook(self, result: dict[str, Any], event: str) -> None:
        """See a queued webhook delivered, and verified by the receiver."""
        _expect(result["status"] == "queued", f"node {result['nodeId']} was not queued: {result}")
        delivery_id = result["deliveryId"]

        async def delivered() -> dict[str, Any] | None:
            answer = await self._client.get(f"/v1/webhooks/outbox/{delivery_id}")
            row: dict[str, Any] = answer.json()["data"]
            return row if row["status"] in {"delivered", "dead"} else None

        row = await _until(delivered, f"delivery {delivery_id} did not end")
        _expect(row["status"] == "delivered", f"delivery {delivery_id} is {row['status']}: {row['lastError']}")
        found = [arrival for arrival in self._arrivals if arrival.event_id == row["eventId"]]
        _expect(len(found) == 1, f"the receiver saw event {row['eventId']} {len(found)} times, not once")
        _expect(found[0].signature == "verified", f"the receiver found the signature {found[0].signature}")
        _expect(f'"{event}"' in found[0].body, f"the receiver got another body: {found[0].body}")
        self.say(
            f"  ok  webhook {result['nodeId']}: delivery {delivery_id} {row['status']}, signature "
            f"{found[0].signature}, event {row['eventId'][:16]}…"
        )

    async def message(self, result: dict[str, Any], count: int) -> None:
        """See a chat message in its channel."""
        _expect(result["status"] == "sent", f"node {result['nodeId']} was not sent: {result}")
        if self._messages is None:
            self.say(f"  ok  chat {result['nodeId']}: sent, as the workspace has confirmed")
            return
        _expect(len(self._messages) == count, f"the provider has {len(self._messages)} messages, not {count}")
        message = self._messages[-1]
        expected = "two pizzas &amp; a &lt;lemonade&gt;"
        _expect(expected in message.text, f"the provider got another text: {message.text}")
        self.say(f"  ok  chat {result['nodeId']}: {message.channel} has the message, ts {message.ts}")


async def connect_chat(host_url: str, dashboard_token: str) -> str:
    """Connect the fake provider's first workspace, clicking Allow as a person would.

    Returns:
        The workspace's name.
    """
    async with _dashboard(host_url, dashboard_token) as client:
        await _install(client)
        card = (await client.get("/integrations/chat/connection")).json()["data"]
    name: str = card["workspace"]["name"]
    return name


async def walk_through(
    host_url: str,
    dashboard_token: str,
    arrivals: Iterable[Arrival],
    messages: Sequence[Message] | None,
    say: Say,
) -> None:
    """Run both sample flows, and see everything arrive.

    Raises:
        WalkthroughFailed: something was not observed.
    """
    async with _dashboard(host_url, dashboard_token) as client:
        observer = Observer(client, arrivals, messages, say)
        say("Connecting chat")
        await _install(client)
        card = (await client.get("/integrations/chat/connection")).json()["data"]
        say(f"  ok  connected to {card['workspace']['name']}, installed by {card['installedBy']['name']}")

        say("Single-shot flow: everything runs when it is opened")
        await _post(client, "/run/flows/order-placed/open", {"userId": USER, "content": CONTENT})
        webhook, chat = await observer.results("order-placed")
        await observer.message(chat, 1)
        await observer.webhook(webhook, "order.placed")

        say("Client-paced flow: each node runs when the user gets to its step")
        turn = await _post(client, "/run/flows/onboarding/open", {"userId": USER, "content": CONTENT})
        recorded = await observer.results("onboarding")
        _expect({result["status"] for result in recorded} == {"recorded"}, "something ran on opening")
        say(f"  ok  opened: {len(recorded)} nodes recorded, none run")
        while not turn["done"]:
            shown = turn["step"]["id"]
            turn = await _post(client, f"/run/sessions/{turn['session']}/next", {"from": shown})
            *_, result = await observer.results("onboarding")
            if result["nodeId"] == "say-hello":
                await observer.message(result, 2)
            else:
                await observer.webhook(result, f"onboarding.{result['nodeId']}")


async def call_in(
    host_url: str, dashboard_token: str, api_token: str, auth_secret: str, arrivals: Iterable[Arrival], say: Say
) -> None:
    """Call in from outside, as a customer's backend and as the auth provider, twice each.

    Raises:
        WalkthroughFailed: something was not observed.
    """
    say("A customer's backend triggers a logic webhook")
    path = "/v1/agents/acme-support/experiences/survey/logic-webhook"
    call = {
        "idempotencyKey": "order-1",
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": "submitted",
    }
    async with _dashboard(host_url, api_token) as backend, _dashboard(host_url, dashboard_token) as client:
        answer = await backend.post(path, json=call)
        _expect(answer.status_code == 202, f"the call was answered {answer.status_code}: {answer.text}")
        result = {"status": "queued", "nodeId": "submitted", "deliveryId": answer.json()["data"]["id"]}
        await Observer(client, arrivals, None, say).webhook(result, "experience.logic_action.webhook")
        again = await backend.post(path, json=call)
        _expect(again.status_code == 204, f"the same key was answered {again.status_code}: {again.text}")
        say("  ok  called again with the same key: nothing is enqueued")

    say("The auth provider tells of a user")
    body = b'{"type": "user.created", "data": {"id": "user_1"}}'
    stamp = str(int(time.time()))
    key = base64.b64decode(auth_secret.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.digest(key, b"msg_1." + stamp.encode() + b"." + body, "sha256")).decode()
    headers = {"svix-id": "msg_1", "svix-timestamp": stamp, "svix-signature": f"v1,{signature}"}
    async with httpx.AsyncClient(base_url=host_url, trust_env=False) as provider:
        for duplicate in (False, True):
            answer = await provider.post("/webhooks/auth", content=body, headers=headers)
            expected = {"data": {"received": True, "duplicate": duplicate}}
            _expect(answer.status_code == 200, f"the event was answered {answer.status_code}: {answer.text}")
            _expect(answer.json() == expected, f"the event was answered {answer.text}")
    say("  ok  the host has handled it once, and acknowledged it twice")


def _dashboard(host_url: str, token: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=host_url, headers=headers, trust_env=False, timeout=15)


async def _install(client: httpx.AsyncClient) -> None:
    start = await client.get("/integrations/chat/install", headers={"accept": "application/json"})
    _expect(start.status_code == 200, f"the install could not be started: {start.text}")
    url = start.json()["data"]["url"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    if "client_id" in query:
        _expect(urlsplit(url).hostname == "127.0.0.1", "a real workspace needs CHAT_BOT_TOKEN for --once")
        workspace = "T0000ACME"
        form = {**query, "workspace": workspace, "decision": "allow"}
        # Another client: the provider never sees the dashboard's token.
        async with httpx.AsyncClient(trust_env=False) as browser:
            consent = await browser.post(url.partition("?")[0], data=form)
        url = consent.headers["location"]
    end = await client.get(url)
    where = end.headers.get("location", "")
    _expect("chat=connected" in where, f"the install ended at {where or end.text}")


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    _expect(answer.status_code == 200, f"{path} answered {answer.status_code}: {answer.text}")
    data: dict[str, Any] = answer.json()["data"]
    return data


async def _until(holds: Callable[[], Awaitable[dict[str, Any] | None]], otherwise: str) -> dict[str, Any]:
    deadline = time.monotonic() + OBSERVED_SECONDS
    while time.monotonic() < deadline:
        value = await holds()
        if value is not None:
            return value
        await asyncio.sleep(0.05)
    raise WalkthroughFailed(otherwise)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WalkthroughFailed(otherwise)
