from __future__ import annotations

import base64
import hmac
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import standardwebhooks
from sqlalchemy import text

from flowactions_hookspecs import FlowActions, Header, HostOrigin, Node, NodeDraft, Origin
from flowactions_plugin.egress.signature import sign
from tests import npm
from tests.commanding import command
from tests.owning import own_webhook
from tests.recorder import Recorder, Request, recorder, status
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.waiting import until

KEY = bytes(range(7, 39))
ENCODED = f"whsec_{base64.b64encode(KEY).decode()}"
SECRETS = {
    "whsec_": ENCODED,
    "whsec_ without padding": ENCODED.rstrip("="),
    "plain": "s3cret",
    "UTF-8": "schlüssel-鍵",
    "looks like base64": "c2VjcmV0",
}
NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")


@asynccontextmanager
async def running(database_url: str, **given: str) -> AsyncIterator[tuple[FlowActions, SmallHost, Recorder]]:
    host = SmallHost(development(database_url, **{"FLOWACTIONS_STANDARD_WEBHOOKS": "on", **given}))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        yield actions, host, receiver


def values(request: Request) -> dict[str, str]:
    """Give the scheme's headers, each of which is there once at the most."""
    found = [(name, value.decode()) for name, value in request.headers if name.startswith("webhook-")]
    assert len(dict(found)) == len(found)
    return dict(found)


async def deliver(actions: FlowActions, host: SmallHost, receiver: Recorder, **webhook: Any) -> Request:
    before = len(host.finished)
    await actions.enqueue(own_webhook(url=receiver.url, **webhook))
    await until(lambda: len(host.finished) > before)
    return receiver.requests[-1]


class Signed:
    """What arrived for each of `SECRETS`, with and without a body, and once changed."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.expected: list[bool] = []

    def add(self, secret: str, request: Request) -> None:
        headers, body = values(request), request.body.decode()
        changed = {**headers, "webhook-id": "evt_other"}
        for each, content, verified in (
            (headers, body, True),
            (headers, f"{body} ", False),
            (changed, body, False),
        ):
            self.requests.append({"secret": secret, "headers": each, "body": content})
            self.expected.append(verified)


async def signed(database_url: str) -> Signed:
    """Have the worker deliver with each secret."""
    arrived = Signed()

    async def signing_secret(origin: Origin) -> str:
        assert isinstance(origin, HostOrigin)
        return SECRETS[origin.id]

    async with running(database_url) as (actions, host, receiver):
        host.signing_secret = signing_secret  # type: ignore[method-assign]
        for name, secret in SECRETS.items():
            origin = HostOrigin(organization_id="acme", name="order-placed", id=name)
            for body in (b'{"total": 1.10, "note": "h\xc3\xa9"}', None):
                request = await deliver(actions, host, receiver, origin=origin, entity=name, body=body)
                arrived.add(secret, request)
    return arrived


async def test_the_package_of_pypi_verifies_deliveries(sqlite_url: str) -> None:
    """Signed as its README says: `whsec_` secrets as they are, others as bytes; nothing changed verifies (§5.3.8)."""
    arrived = await signed(sqlite_url)
    verdicts = []
    for each in arrived.requests:
        secret = each["secret"]
        webhook = standardwebhooks.Webhook(secret if secret.startswith("whsec_") else secret.encode())
        try:
            webhook.verify(each["body"].encode(), each["headers"], json_parse=False)
            verdicts.append(True)
        except standardwebhooks.WebhookVerificationError as exc:
            assert str(exc) == "No matching signature found"  # noqa: PT017  the only reason that is right here
            verdicts.append(False)
    assert verdicts == arrived.expected
    assert len(verdicts) == 30


def by_npm(folder: Path, requests: list[dict[str, Any]]) -> list[str]:
    """Ask the npm package; give what it says."""
    npm.install(folder, "standardwebhooks@1")
    shutil.copy(Path(__file__).with_name("standard_webhooks.mjs"), folder)
    done = subprocess.run(
        ["node", "standard_webhooks.mjs"],  # noqa: S607  the one on the path
        cwd=folder,
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    said: list[str] = json.loads(done.stdout)
    return said


@pytest.mark.ci
@pytest.mark.node
async def test_the_package_of_npm_verifies_deliveries(sqlite_url: str, tmp_path: Path) -> None:
    """The same deliveries, in JavaScript (§5.3.8)."""
    arrived = await signed(sqlite_url)
    verdicts = by_npm(tmp_path, arrived.requests)
    assert [verdict == "verified" for verdict in verdicts] == arrived.expected
    assert set(verdicts) == {"verified", "No matching signature found"}


async def test_the_headers_stand_beside_those_of_the_service(database_url: str) -> None:
    """Id and timestamp are the same in both schemes, and the signature in hex is what it is without the setting (§5.3.8)."""
    async with running(database_url) as (actions, host, receiver):
        host.secret = ENCODED
        request = await deliver(actions, host, receiver)
    found, stamp = values(request), request.header("x-service-webhook-timestamp")
    assert tuple(found) == NAMES
    assert found["webhook-id"] == request.header("x-service-webhook-id")
    assert found["webhook-timestamp"] == stamp
    assert request.header("x-service-webhook-signature") == sign(ENCODED, int(stamp), request.body)
    content = f"{found['webhook-id']}.{stamp}.".encode() + request.body
    expected = base64.b64encode(hmac.digest(KEY, content, "sha256")).decode()
    assert found["webhook-signature"] == f"v1,{expected}"


async def test_every_attempt_has_the_same_id_and_is_signed_anew(sqlite_url: str) -> None:
    """A retry is the same event, with a timestamp and a signature of its own (§2.6, §5.3.8)."""
    async with running(sqlite_url) as (actions, host, receiver):
        host.secret = ENCODED
        receiver.answer = lambda number: status(503 if number == 1 else 200)
        first = await deliver(actions, host, receiver, max_attempts=1)
        await until(lambda: time.time() >= int(first.header("webhook-timestamp")) + 1)
        async with httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client:
            answer = await client.post(f"/v1/webhooks/outbox/{host.finished[0].id}/retry")
        assert answer.status_code == 200
        await until(lambda: len(host.finished) == 2)
    second = receiver.requests[1]
    assert [each.status for each in host.finished] == ["dead", "delivered"]
    assert first.header("webhook-id") == second.header("webhook-id")
    assert int(first.header("webhook-timestamp")) < int(second.header("webhook-timestamp"))
    for request in (first, second):
        standardwebhooks.Webhook(ENCODED).verify(request.body, values(request), json_parse=False)


async def test_without_a_secret_there_is_no_signature(sqlite_url: str) -> None:
    """Id and timestamp are there without one (§5.3.7)."""
    async with running(sqlite_url) as (actions, host, receiver):
        request = await deliver(actions, host, receiver)
    assert tuple(values(request)) == NAMES[:2]


async def test_without_the_setting_there_are_no_such_headers(sqlite_url: str) -> None:
    """And a custom header of such a name is the author's (§2.6)."""
    async with running(sqlite_url, FLOWACTIONS_STANDARD_WEBHOOKS="") as (actions, host, receiver):
        host.secret = ENCODED
        request = await deliver(actions, host, receiver, headers=[Header(key="Webhook-Id", value="mine")])
    assert values(request) == {"webhook-id": "mine"}


async def test_custom_headers_of_these_names_are_reserved(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out and logged; a row from before the setting loses them when it is sent (§2.6)."""
    custom = [
        Header(key=name, value="mine")
        for name in ("Webhook-Id", "webhook-signature", "WEBHOOK-x", "x-webhook-y")
    ]
    async with running(database_url, FLOWACTIONS_STANDARD_WEBHOOKS="off", FLOWACTIONS_HOST_WORKER="off") as (
        actions,
        _,
        receiver,
    ):
        await actions.enqueue(own_webhook(url=receiver.url, headers=custom, entity="before"))
    assert "left out" not in caplog.text
    async with recorder() as late:
        host = SmallHost(development(database_url, FLOWACTIONS_STANDARD_WEBHOOKS="on"))
        host.secret = ENCODED
        actions = FlowActions.load(host)
        async with services_of(host)._database, services_of(host)._database.write() as connection:
            await connection.execute(text("UPDATE flowactions_outbox SET url = :url"), {"url": late.url})
        async with actions.lifespan():
            await actions.enqueue(own_webhook(url=late.url, headers=custom, entity="after"))
            await until(lambda: len(host.finished) == 2)
    assert "('Webhook-Id', 'webhook-signature', 'WEBHOOK-x')" in caplog.text
    for request in late.requests:
        assert tuple(values(request)) == NAMES
        standardwebhooks.Webhook(ENCODED).verify(request.body, values(request), json_parse=False)
        assert request.header("x-webhook-y") == "mine"


async def test_the_editor_knows(sqlite_url: str) -> None:
    """`check` says that such a header is left out; `preview` shows the headers, with the signature masked."""
    config = {
        "webhookUrl": "http://127.0.0.1:9/",
        "webhookBody": "{}",
        "webhookSecret": ENCODED,
        "webhookHeaders": [{"key": "webhook-id", "value": "mine"}],
    }
    draft = NodeDraft(
        organization_id="acme", agent_id="agent-1", node=Node(id="n", type="webhook", config=config)
    )
    async with running(sqlite_url) as (actions, _, _):
        (problem,) = await actions.check(draft)
        preview = await actions.preview(draft, a_walk())
    assert (problem.path, problem.code) == (("webhookHeaders", 0, "key"), "header_dropped")
    shown = [(header.key, header.value) for header in preview.headers if header.key.startswith("webhook-")]
    (identity,) = [header.value for header in preview.headers if header.key == "x-service-webhook-id"]
    assert shown == [("webhook-id", identity), ("webhook-timestamp", "…"), ("webhook-signature", "v1,…")]
    assert KEY not in json.dumps(shown).encode()
    async with running(sqlite_url, FLOWACTIONS_STANDARD_WEBHOOKS="off") as (actions, _, _):
        assert await actions.check(draft) == ()


async def test_a_test_delivery_is_as_a_workers(tmp_path: Path) -> None:
    """`flowactions send-test` follows the setting, too (§5.3.8)."""
    settings = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_STANDARD_WEBHOOKS": "on"}
    async with recorder() as receiver:
        sent = await command("send-test", receiver.url, cwd=tmp_path, WEBHOOK_SECRET=ENCODED, **settings)
    assert sent.code == 0, sent
    (request,) = receiver.requests
    standardwebhooks.Webhook(ENCODED).verify(request.body, values(request))
