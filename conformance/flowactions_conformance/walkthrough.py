"""Runs the sample flows over HTTP, as a browser would, and checks what the receiver and the provider saw."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from flowactions_conformance.chat_provider import Message
from flowactions_conformance.receiver import Arrival

Say = Callable[[str], None]

OBSERVED_SECONDS = 15.0
START = {"userId": "user-42", "content": "two pizzas & a <lemonade>"}


class WalkthroughFailed(Exception):
    """Something that should have been observed was not; the message says what."""


async def connect_chat(host_url: str, dashboard_token: str) -> dict[str, Any]:
    """Connect the fake provider's first workspace, clicking Allow as a person would.

    Returns:
        The connection card.

    Raises:
        WalkthroughFailed: it was not connected.
    """
    async with _client(host_url, dashboard_token) as client:
        start = await client.get("/integrations/chat/install", headers={"accept": "application/json"})
        _expect(start.status_code == 200, f"the install could not be started: {start.text}")
        url = start.json()["data"]["url"]
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        if "client_id" in query:
            _expect(urlsplit(url).hostname == "127.0.0.1", "a real workspace needs CHAT_BOT_TOKEN for --once")
            form = {**query, "workspace": "T0000ACME", "decision": "allow"}
            # Another client: the provider never sees the dashboard's token.
            async with httpx.AsyncClient(trust_env=False) as browser:
                consent = await browser.post(url.partition("?")[0], data=form)
            url = consent.headers["location"]
        end = await client.get(url)
        where = end.headers.get("location", "")
        _expect("chat=connected" in where, f"the install ended at {where or end.text}")
        card: dict[str, Any] = (await client.get("/integrations/chat/connection")).json()["data"]
    return card


async def walk_through(
    host_url: str,
    dashboard_token: str,
    arrivals: Iterable[Arrival],
    messages: Sequence[Message] | None,
    say: Say,
) -> None:
    """Run both sample flows, and see everything arrive.

    Args:
        host_url: of the reference host.
        dashboard_token: signs in to its dashboard.
        arrivals: what the receiver got.
        messages: what the fake provider got; ``None`` with a real workspace.
        say: prints a line.

    Raises:
        WalkthroughFailed: something was not observed.
    """
    say("Connecting chat")
    card = await connect_chat(host_url, dashboard_token)
    say(f"  ok  connected to {card['workspace']['name']}, installed by {card['installedBy']['name']}")
    async with _client(host_url, dashboard_token) as client:

        async def results(flow: str) -> list[dict[str, Any]]:
            """Return the node results of the flow's newest run."""
            answer = await client.get(f"/api/flows/{flow}/runs")
            found: list[dict[str, Any]] = answer.json()["data"][0]["results"]
            return found

        say("Single-shot flow: everything runs when it is opened")
        await _post(client, "/run/flows/order-placed/open", START)
        webhook, chat = await results("order-placed")
        _see_message(chat, 1, messages, say)
        await _see_webhook(client, webhook, "order.placed", arrivals, say)

        say("Client-paced flow: each node runs when the user gets to its step")
        turn = await _post(client, "/run/flows/onboarding/open", START)
        recorded = await results("onboarding")
        _expect({result["status"] for result in recorded} == {"recorded"}, "something ran on opening")
        say(f"  ok  opened: {len(recorded)} nodes recorded, none run")
        while not turn["done"]:
            turn = await _post(client, f"/run/sessions/{turn['session']}/next", {"from": turn["step"]["id"]})
            *_, result = await results("onboarding")
            if result["nodeId"] == "say-hello":
                _see_message(result, 2, messages, say)
            else:
                await _see_webhook(client, result, f"onboarding.{result['nodeId']}", arrivals, say)


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
    async with _client(host_url, api_token) as backend, _client(host_url, dashboard_token) as client:
        answer = await backend.post(path, json=call)
        _expect(answer.status_code == 202, f"the call was answered {answer.status_code}: {answer.text}")
        result = {"status": "queued", "nodeId": "submitted", "deliveryId": answer.json()["data"]["id"]}
        await _see_webhook(client, result, "experience.logic_action.webhook", arrivals, say)
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
            seen = (answer.status_code, answer.json())
            _expect(seen == (200, expected), f"the event was answered {answer.status_code}: {answer.text}")
    say("  ok  the host has handled it once, and acknowledged it twice")


async def _see_webhook(
    client: httpx.AsyncClient, result: dict[str, Any], event: str, arrivals: Iterable[Arrival], say: Say
) -> None:
    """See a queued webhook delivered, and verified by the receiver."""
    _expect(result["status"] == "queued", f"node {result['nodeId']} was not queued: {result}")
    delivery_id, row = result["deliveryId"], {"status": "pending"}
    deadline = time.monotonic() + OBSERVED_SECONDS
    while row["status"] not in {"delivered", "dead"}:
        _expect(time.monotonic() < deadline, f"delivery {delivery_id} did not end")
        await asyncio.sleep(0.05)
        row = (await client.get(f"/v1/webhooks/outbox/{delivery_id}")).json()["data"]
    _expect(row["status"] == "delivered", f"delivery {delivery_id} is dead: {row.get('lastError')}")
    found = [arrival for arrival in arrivals if arrival.event_id == row["eventId"]]
    _expect(len(found) == 1, f"the receiver saw event {row['eventId']} {len(found)} times, not once")
    _expect(found[0].signature == "verified", f"the receiver found the signature {found[0].signature}")
    _expect(f'"{event}"' in found[0].body, f"the receiver got another body: {found[0].body}")
    say(
        f"  ok  webhook {result['nodeId']}: delivery {delivery_id} {row['status']}, signature "
        f"{found[0].signature}, event {row['eventId'][:16]}…"
    )


def _see_message(result: dict[str, Any], count: int, messages: Sequence[Message] | None, say: Say) -> None:
    """See a chat message in its channel."""
    _expect(result["status"] == "sent", f"node {result['nodeId']} was not sent: {result}")
    if messages is None:
        say(f"  ok  chat {result['nodeId']}: sent, as the workspace has confirmed")
        return
    _expect(len(messages) == count, f"the provider has {len(messages)} messages, not {count}")
    text = messages[-1].text
    _expect("two pizzas &amp; a &lt;lemonade&gt;" in text, f"the provider got another text: {text}")
    say(f"  ok  chat {result['nodeId']}: {messages[-1].channel} has the message, ts {messages[-1].ts}")


def _client(host_url: str, token: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=host_url, headers=headers, trust_env=False, timeout=15)


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    _expect(answer.status_code == 200, f"{path} answered {answer.status_code}: {answer.text}")
    data: dict[str, Any] = answer.json()["data"]
    return data


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WalkthroughFailed(otherwise)
