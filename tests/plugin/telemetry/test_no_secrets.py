"""A full run's metrics, traces, logs, pages, commands and database hold none of the secrets that took part."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from flowactions_conformance.chat_provider.oauth import CLIENT_SECRET
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Agent, ApiPrincipal, FlowActions, LogicAction, Node
from flowactions_plugin.storage.schema import metadata
from tests.auth_provider import CREATED, NEW, signed
from tests.chatting import ChatHost, chat_settings
from tests.commanding import command
from tests.recorder import Recorder, recorder, status
from tests.support import SmallHost, a_walk, services_of
from tests.telemetry import Recorded
from tests.waiting import until

SIGNING = "the-signing-secret-of-the-customer"
KEY = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA="
CREDENTIALS = {
    "a header": "header-credential-of-the-customer",
    "a path": "path-credential-of-the-customer",
    "a query": "query-credential-of-the-customer",
    "a body": "what-the-end-user-wrote",
    "a response": "what-the-receiver-answered",
    "a bearer token": "bearer-of-the-caller",
    "an idempotency key": "key-of-the-caller",
}

SHOWN = {"a path", "a body", "a response", "an idempotency key"}
"""What an organization sees of its own deliveries, so that it can find them and tell what was sent."""

STORED = {*SHOWN, "a header", "a query"}
"""What the outbox has to keep as it is: each attempt sends the same bytes."""

PAGES = ("", "/deliveries", "/destinations", "/actions", "/connections", "/inbound", "/audit")

COMMANDS = (
    ("outbox", "list"),
    ("outbox", "list", "--json"),
    ("status",),
    ("destinations", "list"),
    ("doctor",),
)

OURS = (
    "flowactions",
    "alembic",
    "sqlalchemy",
    "asyncpg",
    "aiosqlite",
    "slack_sdk",
    "aiohttp",
    "opentelemetry",
    "litestar",
)
"""Loggers of a host's process; others are of the test's own clients and of the provider."""


def told(caplog: pytest.LogCaptureFixture) -> str:
    """Give everything that a host's process has logged, with the attributes of each record."""
    formatter = logging.Formatter()
    return "".join(
        f"{formatter.format(record)} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith(OURS)
    )


def webhook(receiver: Recorder, **config: Any) -> Node:
    return Node(
        id="n",
        type="webhook",
        config={
            "webhookUrl": f"{receiver.url}/{CREDENTIALS['a path']}?token={CREDENTIALS['a query']}",
            "webhookBody": '{"text": {{content}}}',
            "webhookHeaders": [{"key": "Authorization", "value": f"Bearer {CREDENTIALS['a header']}"}],
            "webhookSecret": SIGNING,
            **config,
        },
    )


@pytest.mark.parametrize("mode", [pytest.param("scheduled", marks=pytest.mark.ci), "continuous"])
async def test_a_full_run_shows_no_secret(
    database_url: str,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nodes, deliveries that arrive and that do not, chat, inbound events, a test send, a logic webhook and a replay."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    recorded = Recorded()
    provider = FakeChatProvider([sample_workspace()])
    async with serve(provider.app) as url, recorder() as receiver:
        settings = chat_settings(
            database_url,
            url,
            AUTH_WEBHOOK_SIGNING_SECRET=NEW,
            FLOWACTIONS_ENCRYPTION_KEYS=KEY,
            FLOWACTIONS_DELIVERY=mode,
            FLOWACTIONS_SEND_TRACEPARENT="on",
        )
        host = SmallHost(settings)
        host.secret = SIGNING
        host.agents = [Agent(id="agent-1", name="A", organization_id="acme")]
        host.api = ApiPrincipal(organization_id="acme", all_agents=True)
        host.action = LogicAction(url=webhook(receiver).config["webhookUrl"], secret=SIGNING)
        recorded.listen_to(host)
        actions = FlowActions.load(host)
        async with actions.lifespan():
            run = ChatHost(host, actions, provider)
            async with run.browser:
                run.browser.headers["Authorization"] = f"Bearer {CREDENTIALS['a bearer token']}"
                await use(run, receiver)
                pages = await pages_of(run)
            stored = await database_of(host)
        # Commands read what is stored, which is the same in both modes.
        printed = await printed_by(settings, tmp_path) if mode == "continuous" else CREDENTIALS["a path"]
        tokens = [token.value for token in provider.state.tokens_of(provider.state.workspaces[0])]
        names = {span.name for span in recorded.spans()}
        assert {"node webhook", "node chat_message", "enqueue outbox", "POST"} <= names
        text, log = recorded.text(), told(caplog)
    assert len(receiver.requests) >= 5
    assert all(CREDENTIALS["a header"] in str(request.headers) for request in receiver.requests[:1])
    assert "flowactions.inbound.requests" in text
    assert "flowactions.chat.sends" in text
    assert "is dead" in log
    assert tokens
    secrets = {
        **CREDENTIALS,
        "the signing secret": SIGNING,
        "the encryption key": KEY.rstrip("="),
        "the client secret": CLIENT_SECRET,
        "the provider's signing secret": SIGNING_SECRET,
        "the auth provider's secret": NEW.removeprefix("whsec_"),
        **{f"token {number}": token for number, token in enumerate(tokens)},
    }
    assert CREDENTIALS["a path"] in pages
    assert CREDENTIALS["a path"] in printed
    assert CREDENTIALS["a header"] in stored
    for name, secret in secrets.items():
        assert secret not in text, f"{name} is in metrics or traces"
        assert secret not in log, f"{name} is in the log"
        if name not in SHOWN:
            assert secret not in pages, f"{name} is on a page"
            assert secret not in printed, f"{name} is printed by a command"
        if name not in STORED:
            assert secret not in stored, f"{name} is in the database"


async def use(run: ChatHost, receiver: Recorder) -> None:
    """Use a host in every way in which secrets take part."""
    host, browser, actions = run.host, run.browser, run.actions
    receiver.answer = lambda number: status(200, body=CREDENTIALS["a response"].encode())
    walk = a_walk(content=CREDENTIALS["a body"])
    assert (await actions.reach(walk, webhook(receiver))).status == "queued"
    await until(lambda: host.finished)

    assert (await run.connect())["chat"] == "connected"
    assert (await run.message(chatMessageText=CREDENTIALS["a body"])).status == "sent"
    assert (
        await run.message(chatChannelId="C0NOWHERE", chatMessageText=CREDENTIALS["a body"])
    ).status == "failed"

    draft = webhook(receiver)
    body = {"agentId": "agent-1", "node": {"type": "webhook", "config": dict(draft.config)}}
    tested = await browser.post("/integrations/nodes/test", json=body, timeout=300)
    assert tested.status_code == 200, tested.text

    call = {
        "idempotencyKey": CREDENTIALS["an idempotency key"],
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": "row",
    }
    path = "/v1/agents/agent-1/experiences/e/logic-webhook"
    assert (await browser.post(path, json=call)).status_code == 202

    receiver.answer = lambda number: status(500, body=CREDENTIALS["a response"].encode())
    before = len(host.finished)
    assert (await actions.reach(a_walk(content=CREDENTIALS["a body"]), webhook(receiver))).status == "queued"
    await until(lambda: any(each.status == "dead" for each in host.finished[before:]))
    receiver.answer = lambda number: status(200)
    replayed = await browser.post("/v1/webhooks/outbox/retry", json={"all": True, "resetAttempts": True})
    assert replayed.status_code == 202, replayed.text
    dead = {each.id for each in host.finished if each.status == "dead"}
    await until(lambda: dead & {each.id for each in host.finished if each.status == "delivered"})

    raw = json.dumps(CREATED).encode()
    assert (await browser.post("/webhooks/auth", content=raw, headers=signed(raw))).status_code == 200
    assert (await browser.post("/webhooks/auth", content=raw, headers={"svix-id": "1"})).status_code == 401
    event = json.dumps({"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}).encode()
    stamp = int(time.time())
    headers = {
        "x-slack-request-timestamp": str(stamp),
        "x-slack-signature": signature(SIGNING_SECRET, stamp, event),
    }
    assert (await browser.post("/integrations/chat/events", content=event, headers=headers)).status_code == 200
    assert (await browser.post("/integrations/chat/events", content=event)).status_code == 401


async def pages_of(run: ChatHost) -> str:
    """Give the text of all operator pages, those of all deliveries included."""
    texts = []
    for path in PAGES:
        page = await run.browser.get(f"/integrations/webhooks{path}")
        assert page.status_code == 200, (path, page.text)
        texts.append(page.text)
    ids = set(re.findall(r"deliveries/([0-9a-f-]{36})", "".join(texts)))
    assert len(ids) >= 4
    for delivery_id in ids:
        page = await run.browser.get(f"/integrations/webhooks/deliveries/{delivery_id}")
        assert page.status_code == 200
        texts.append(page.text)
    return "".join(texts)


async def printed_by(settings: dict[str, str], folder: Path) -> str:
    """Give what commands print, about deliveries, too."""

    async def run(*arguments: str) -> str:
        ended = await command(*arguments, cwd=folder, **settings)
        return ended.out + ended.err

    texts = [await run(*arguments) for arguments in COMMANDS]
    ids = set(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", texts[1]))
    assert len(ids) >= 4, texts
    texts += [await run("outbox", "show", delivery_id) for delivery_id in list(ids)[:2]]
    return "".join(texts)


async def database_of(host: SmallHost) -> str:
    """Give all that is stored, as text."""
    texts = []
    async with services_of(host)._database.read() as connection:
        for table in metadata.sorted_tables:
            for row in await connection.execute(select(table)):
                texts += [each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in row]
    return "\n".join(texts)
