from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import (
    FlowActions,
    HostOrigin,
    NodeType,
    Origin,
    OriginGone,
    PluginOrigin,
    hookimpl,
)
from flowactions_plugin.egress.signature import sign
from flowactions_plugin.queue import executor, host_calls
from tests.owning import HOST_ORIGIN, CrmPlugin, keys_and_rows, own_webhook, owning, plugin_origin
from tests.recorder import Recorder, Request, recorder
from tests.support import SmallHost, development
from tests.waiting import until

WORKS: dict[str, Any] = {"FLOWACTIONS_HOST_WORKER": "on", "FLOWACTIONS_TICK_SECONDS": "0.05"}


@pytest.fixture
async def receiver() -> AsyncIterator[Recorder]:
    async with recorder() as recording:
        yield recording


def check_signature(request: Request, secret: str) -> None:
    """A receiver's check (§5.3)."""
    stamp = int(request.header("x-service-webhook-timestamp"))
    assert request.header("x-service-webhook-signature") == sign(secret, stamp, request.body)


def answered(plugin: CrmPlugin, crm: FlowActions | None) -> FlowActions:
    assert crm is not None
    return crm


async def test_a_hosts_webhook_arrives_signed(database_url: str, receiver: Recorder) -> None:
    """Its bytes and headers are those that were enqueued; the secret is the host's for this HostOrigin (§2.6, §5.3)."""
    asked: list[Origin] = []
    async with owning(database_url, **WORKS) as (actions, host):

        async def secret(origin: Origin) -> str:
            asked.append(origin)
            return f"secret of {origin.id}" if isinstance(origin, HostOrigin) else "wrong"

        host.signing_secret = secret  # type: ignore[method-assign]
        receipt = await actions.enqueue(own_webhook(url=receiver.url))
        await until(lambda: host.finished)
    (request,) = receiver.requests
    assert (request.line, request.body) == ("POST /hook HTTP/1.1", b'{"total": 1.10}')
    check_signature(request, "secret of subscription-1")
    assert request.header("x-service-webhook-id") == receipt.event_id
    assert request.header("x-service-webhook-event") == "order.placed"
    assert request.header("user-agent") == "Service-Webhooks/1"
    assert asked == [HOST_ORIGIN]
    (finished,) = host.finished
    assert (finished.id, finished.agent_id, finished.origin) == (receipt.delivery_id, None, HOST_ORIGIN)
    assert finished.status == "delivered"


async def test_a_plugins_webhook_is_signed_by_its_own_resolver(database_url: str, receiver: Recorder) -> None:
    """The host is not asked; the resolver gets the origin."""
    asked: list[PluginOrigin] = []

    async def resolve(origin: PluginOrigin) -> str:
        asked.append(origin)
        return "of the plugin"

    crm = CrmPlugin(sync=resolve)
    async with owning(database_url, crm, **WORKS) as (_, host):
        host.secret_error = ZeroDivisionError("the host was asked")
        own = answered(crm, crm.actions)
        await own.enqueue(own_webhook(url=receiver.url, origin=plugin_origin()))
        await until(lambda: host.finished)
    check_signature(receiver.requests[0], "of the plugin")
    assert asked == [plugin_origin()]
    assert host.finished[0].origin == plugin_origin()


async def test_while_a_resolver_fails_its_delivery_waits(
    database_url: str,
    receiver: Recorder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No attempt is used, last_error names plugin and origin, others are sent; mended, the delivery is sent.

    What else a function may do is tried with a host's.
    """
    monkeypatch.setattr(executor, "WAIT_FIRST_SECONDS", 0.3)
    monkeypatch.setattr(host_calls, "ASK_AGAIN_SECONDS", (0.0, 0.0))
    crm = CrmPlugin()
    crm.error = ZeroDivisionError("s3cret")
    async with owning(database_url, crm, **WORKS) as (actions, host):
        own = answered(crm, crm.actions)
        receipt = await own.enqueue(own_webhook(url=receiver.url, origin=plugin_origin()))
        await actions.enqueue(own_webhook(url=receiver.url))

        async def waits() -> Any:
            (row,) = [row for row in (await keys_and_rows(host))[1] if row.id == receipt.delivery_id]
            return row if row.waiting_since is not None and row.claimed_by is None else None

        row = await until(waits)
        assert (row.status, row.attempts) == ("pending", 0)
        assert row.last_error == "the resolver of origin 'sync' of plugin 'crm' raised ZeroDivisionError"
        await until(lambda: len(host.finished) == 1)
        crm.answer, crm.error = "mended", None
        await until(lambda: len(host.finished) == 2)
        assert host.finished[1].attempts == 1
    check_signature(receiver.requests[-1], "mended")
    assert len([each for each in caplog.records if "wait:" in each.getMessage()]) == 1


async def test_a_plugins_origin_that_is_gone_ends_the_delivery(database_url: str) -> None:
    """OriginGone makes it dead with the plugin's reason, and no attempt is made."""
    crm = CrmPlugin()
    crm.error = OriginGone("the account was disconnected")
    async with owning(database_url, crm, **WORKS) as (_, host):
        await answered(crm, crm.actions).enqueue(own_webhook(origin=plugin_origin()))
        await until(lambda: host.finished)
    (finished,) = host.finished
    assert (finished.status, finished.error, finished.attempts) == ("dead", "the account was disconnected", 0)


async def test_a_delivery_waits_for_a_process_that_has_its_plugin(
    database_url: str, receiver: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once for all of its origins, no attempt is used; a process that has the plugin sends it."""
    crm = CrmPlugin()
    async with owning(database_url, crm) as (_, _host):
        for number in range(3):
            origin = plugin_origin(id=str(number))
            await answered(crm, crm.actions).enqueue(own_webhook(url=receiver.url, origin=origin))

    async with owning(database_url, **WORKS) as (_, host):

        async def wait() -> Any:
            rows = (await keys_and_rows(host))[1]
            return (
                rows if all(row.waiting_since is not None and row.claimed_by is None for row in rows) else None
            )

        rows = await until(wait)
        reason = "this process does not have the resolver of origin 'sync' of plugin 'crm'"
        assert {(row.status, row.attempts, row.last_error) for row in rows} == {("pending", 0, reason)}
    assert len([each for each in caplog.records if reason in each.getMessage()]) == 1
    assert receiver.requests == []

    crm = CrmPlugin()
    async with owning(database_url, crm, **WORKS) as (_, host):
        async with host.engine.begin() as connection:
            await connection.execute(text("UPDATE flowactions_outbox SET next_attempt_at = 0"))
        await until(lambda: len(host.finished) == 3)
    assert {each.status for each in host.finished} == {"delivered"}


async def test_a_plugin_without_secrets_sends_unsigned(database_url: str, receiver: Recorder) -> None:
    """A plugin that declares no resolver need not declare its origins either."""
    facades: list[FlowActions] = []

    @hookimpl
    def flowactions_node_types(actions: FlowActions) -> list[NodeType]:
        facades.append(actions)
        return []

    plain = SimpleNamespace(__name__="plain", flowactions_node_types=flowactions_node_types)
    host = SmallHost(development(database_url))
    async with FlowActions.load(host, plugins=[plain]).lifespan():
        origin = plugin_origin("anything", plugin="plain")
        receipt = await facades[0].enqueue(own_webhook(url=receiver.url, origin=origin))
        assert receipt.status == "queued"
        await until(lambda: host.finished)
    (request,) = receiver.requests
    assert "x-service-webhook-signature" not in dict(request.headers)
