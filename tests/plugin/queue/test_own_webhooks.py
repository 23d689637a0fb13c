from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar
from sqlalchemy import text

from flowactions_hookspecs import (
    ExperienceTriggerRef,
    FlowActions,
    FlowNodeOrigin,
    Header,
    LogicActionOrigin,
    Node,
    NotQueued,
    OutboundWebhook,
    Receipt,
    TransactionInvalid,
)
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.rules import event_id
from flowactions_plugin.services import Services
from tests.host_transactions import order
from tests.owning import (
    CrmPlugin,
    OwningHost,
    keys_and_rows,
    orders,
    own_webhook,
    owning,
    plugin_origin,
    statements,
)
from tests.support import a_walk
from tests.waiting import until


@pytest.fixture
async def shared(database_url: str) -> AsyncIterator[tuple[FlowActions, OwningHost]]:
    """A host that shares its engine and leaves deliveries to workers."""
    async with owning(database_url) as started:
        yield started


@asynccontextmanager
async def with_crm(
    database_url: str, **settings: Any
) -> AsyncIterator[tuple[FlowActions, FlowActions, OwningHost]]:
    """Run a host with a plugin; give the host's facade and the plugin's."""
    crm = CrmPlugin()
    async with owning(database_url, crm, **settings) as (actions, host):
        assert crm.actions is not None
        yield actions, crm.actions, host


class TestWhatIsWritten:
    async def test_the_row_is_what_was_given(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """Body verbatim, id from type, organization, caller, entity and body, headers less the reserved, five attempts unless said."""
        actions, host = shared
        headers = [
            Header(key="X-Shop", value="a\nb"),
            Header(key="Host", value="no"),
            Header(key="x-service-webhook-id"),
        ]
        body = b'{"b":1, "a": 1.10 }'
        receipt = await actions.enqueue(
            own_webhook(body=body, headers=headers, method="put", idempotency_key="k")
        )
        keys, (row,) = await keys_and_rows(host)
        identity = event_id("order.placed", '["acme","host","order-1"]', body)
        assert receipt == Receipt(status="queued", delivery_id=row.id, event_id=identity)
        assert (row.status, row.method, bytes(row.body), row.max_attempts) == ("pending", "PUT", body, 5)
        assert (row.event_id, row.event_type, row.url, row.agent_id) == (
            identity,
            "order.placed",
            "http://127.0.0.1:9/",
            "",
        )
        assert row.idempotency_key == "k"
        stored = dict(json.loads(row.headers))
        assert stored["X-Shop"] == "a b"
        assert stored["x-service-webhook-id"] == identity
        assert not {"Host", "host"} & set(stored)
        assert keys == [("acme", "host", "k", row.id)]

    async def test_a_bodyless_method_sends_none(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """GET and HEAD carry no body, and it is no part of the event id (§2.4)."""
        actions, host = shared
        receipt = await actions.enqueue(own_webhook(method="get", max_attempts=10))
        _, (row,) = await keys_and_rows(host)
        assert (row.body, row.max_attempts) == (None, 10)
        assert receipt.event_id == event_id("order.placed", '["acme","host","order-1"]', b"")

    @pytest.mark.parametrize("agent", [None, "agent-1"])
    async def test_operators_see_whose_agent_it_is(
        self, shared: tuple[FlowActions, OwningHost], agent: str | None
    ) -> None:
        """List and detail show the agent, null for a webhook of no agent."""
        actions, _ = shared
        receipt = await actions.enqueue(own_webhook(agent_id=agent))
        app = Litestar(route_handlers=list(actions.route_handlers), logging_config=None)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            (listed,) = (await client.get("/v1/webhooks/outbox")).json()["data"]
            detail = (await client.get(f"/v1/webhooks/outbox/{receipt.delivery_id}")).json()["data"]
        assert listed["agentId"] == detail["agentId"] == agent
        assert "defect" not in listed
        assert detail["origin"]["kind"] == "host"

    async def test_other_origins_of_the_organization_are_taken(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """A host may send on behalf of a node or a logic action, whose secret then signs."""
        actions, host = shared
        ref = ExperienceTriggerRef(
            organization_id="acme", agent_id="a", experience_id="e", trigger_row_id="t", action_index=0
        )
        node = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="n")
        for origin in (node, LogicActionOrigin(ref=ref)):
            assert (await actions.enqueue(own_webhook(origin=origin))).status == "queued"
        _, rows = await keys_and_rows(host)
        assert [json.loads(row.origin)["kind"] for row in rows] == ["flow_node", "logic_action"]

    async def test_without_key_it_costs_what_a_node_costs(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """One webhook without key and transaction takes the statements of a webhook node, and no other."""
        actions, host = shared
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})
        async with statements(host) as of_node:
            assert (await actions.reach(a_walk(), node)).status == "queued"
        async with statements(host) as of_webhook:
            await actions.enqueue(own_webhook())
        assert of_webhook == of_node
        assert len([each for each in of_webhook if each.startswith(("INSERT", "SELECT"))]) == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://169.254.169.254/"}, "blocked_url"),
    ({"url": "ftp://example.com/"}, "blocked_url"),
    ({"url": "http://user:pw@example.com/"}, "blocked_url"),
    ({"url": "http://a\0b/"}, "blocked_url"),
    ({"url": "  "}, "missing_url"),
    ({"body": b"x" * 2000}, "body_too_large"),
    ({"headers": [Header(key="a", value="x" * 9000)]}, "headers_too_large"),
]


class TestRefusals:
    @pytest.mark.parametrize(("changes", "reason"), REFUSED)
    async def test_what_may_not_be_sent_is_skipped(
        self, database_url: str, changes: dict[str, Any], reason: str
    ) -> None:
        """The receipt says why, nothing is written, and the key stays free (§5.2)."""
        async with with_crm(database_url, FLOWACTIONS_MAX_BODY_BYTES="1024") as (actions, _, host):
            webhook = own_webhook(idempotency_key="k", **changes)
            receipt = await actions.enqueue(webhook)
            assert (receipt.status, receipt.reason, receipt.delivery_id) == ("skipped", reason, None)
            assert receipt.message
            prepared = await actions.prepare(webhook)
            assert prepared.refused == receipt
            async with host.engine.begin() as connection:
                result = await prepared.write(connection)
            assert (result.status, result.reason, result.message) == ("skipped", reason, receipt.message)
            assert await keys_and_rows(host) == ([], [])
            assert (await actions.enqueue(own_webhook(idempotency_key="k"))).status == "queued"

    async def test_a_key_that_was_used_wins_over_a_refusal(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """Repeated when its URL is refused by now, the call still finds its first delivery."""
        actions, _ = shared
        first = await actions.enqueue(own_webhook(idempotency_key="k"))
        again = await actions.enqueue(own_webhook(idempotency_key="k", url="http://169.254.169.254/"))
        assert again == msgspec.structs.replace(first, status="duplicate")


LONG = "x" * 256
INVALID: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "organization_id", {"organization_id": 7}),
    (ValueError, "organization_id", {"organization_id": ""}),
    (ValueError, "agent_id", {"agent_id": ""}),
    (ValueError, "agent_id", {"agent_id": "a\0"}),
    (ValueError, "idempotency_key", {"idempotency_key": ""}),
    (ValueError, "idempotency_key", {"idempotency_key": "k" * 201}),
    (ValueError, "idempotency_key", {"idempotency_key": "\ud800"}),
    (TypeError, "idempotency_key", {"idempotency_key": 1}),
    (TypeError, "event_type", {"event_type": None}),
    *(
        (ValueError, "event_type", {"event_type": each})
        for each in ("", "Order", "-a", "a b", "a" * 65, "experience", "experience.x", "a\n", "ö")
    ),
    (TypeError, "entity", {"entity": 4}),
    (ValueError, "entity", {"entity": ""}),
    (ValueError, "entity", {"entity": "\ud800"}),
    (TypeError, "url", {"url": None}),
    (ValueError, "url", {"url": "http://\ud800/"}),
    (TypeError, "method", {"method": None}),
    *(
        (ValueError, "method", {"method": each})
        for each in ("", "PO ST", "CONNECT", "connect", "x" * 33, "PÖST")
    ),
    (TypeError, "body", {"body": "text"}),
    (TypeError, "body", {"body": {}}),
    (TypeError, "headers", {"headers": {"a": "b"}}),
    (TypeError, "headers", {"headers": "a: b"}),
    (TypeError, "headers", {"headers": [("a", "b")]}),
    (TypeError, "headers", {"headers": [Header(key="a", value=1)]}),  # type: ignore[arg-type]
    (ValueError, "headers", {"headers": [Header(key="a", value="\ud800")]}),
    (TypeError, "max_attempts", {"max_attempts": "5"}),
    (TypeError, "max_attempts", {"max_attempts": True}),
    (ValueError, "max_attempts", {"max_attempts": 0}),
    (ValueError, "max_attempts", {"max_attempts": 11}),
    (TypeError, "origin", {"origin": None}),
    (TypeError, "origin", {"origin": {"kind": "host"}}),
    (ValueError, "organization", {"organization_id": "globex"}),
    (ValueError, "origin.name", {"origin": msgspec.structs.replace(own_webhook().origin, name="")}),
    (ValueError, "origin.id", {"origin": msgspec.structs.replace(own_webhook().origin, id=LONG)}),
    (ValueError, "plugin", {"origin": plugin_origin()}),
]


class TestArguments:
    async def test_what_cannot_be_used_is_named_before_any_sql(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """enqueue and prepare raise alike, on both databases, and nothing is executed."""
        actions, host = shared
        async with statements(host) as seen:
            for error, said, changes in INVALID:
                for call in (actions.enqueue, actions.prepare):
                    with pytest.raises(error, match=said):
                        await call(own_webhook(**changes))
        assert seen == []

    async def test_it_is_an_outbound_webhook(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """Anything else is a TypeError."""
        with pytest.raises(TypeError, match="must be an OutboundWebhook, not dict"):
            await shared[0].enqueue({"url": "http://x/"})  # type: ignore[arg-type]

    async def test_a_plugin_speaks_for_itself_only(self, database_url: str) -> None:
        """Its origins are its own, of names that it declares; the host's are the host's."""
        async with with_crm(database_url) as (_, crm, host):
            for origin, said in (
                (own_webhook().origin, "is of the host"),
                (plugin_origin(plugin="other"), "is of plugin 'other'"),
                (plugin_origin("unknown"), "'unknown' is none that plugin 'crm' declares"),
            ):
                with pytest.raises(ValueError, match=said):
                    await crm.enqueue(own_webhook(origin=origin))
            assert await keys_and_rows(host) == ([], [])

    async def test_a_transaction_is_checked_first(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """What is no connection of the host's is a TransactionInvalid, and nothing is written."""
        actions, host = shared
        with pytest.raises(TransactionInvalid):
            await actions.enqueue(own_webhook(), "no connection")  # type: ignore[arg-type]
        assert await keys_and_rows(host) == ([], [])


class TestKeys:
    async def test_a_repeated_key_names_the_first_delivery(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """Whatever else is in the webhook; also when the first delivery was deleted meanwhile."""
        actions, host = shared
        first = await actions.enqueue(own_webhook(idempotency_key="k"))
        duplicate = msgspec.structs.replace(first, status="duplicate")
        assert await actions.enqueue(own_webhook(idempotency_key="k", body=b"other")) == duplicate
        async with host.engine.begin() as connection:
            await connection.execute(text("DELETE FROM flowactions_outbox"))
        assert await actions.enqueue(own_webhook(idempotency_key="k")) == duplicate
        assert (await keys_and_rows(host))[1] == []

    async def test_keys_belong_to_organization_and_caller(self, database_url: str) -> None:
        """The same text is another key for another organization, for a plugin, and for an agent's backend."""
        async with with_crm(database_url) as (actions, crm, host):
            other = msgspec.structs.replace(own_webhook().origin, organization_id="globex")
            for facade, webhook in (
                (actions, own_webhook(idempotency_key="k")),
                (actions, own_webhook(idempotency_key="k", organization_id="globex", origin=other)),
                (crm, own_webhook(idempotency_key="k", origin=plugin_origin())),
            ):
                assert (await facade.enqueue(webhook)).status == "queued"
                assert (await facade.enqueue(webhook)).status == "duplicate"
            keys, _ = await keys_and_rows(host)
        assert {key[:3] for key in keys} == {
            ("acme", "host", "k"),
            ("globex", "host", "k"),
            ("acme", "plugin:crm", "k"),
        }


class TestInAHostsTransaction:
    @pytest.mark.parametrize("key", [None, "k"])
    async def test_it_commits_and_rolls_back_with_the_host(
        self, shared: tuple[FlowActions, OwningHost], key: str | None
    ) -> None:
        """Rolled back: nothing is there, and the key is free again."""
        actions, host = shared
        webhook = own_webhook(idempotency_key=key)
        async with host.engine.connect() as connection:
            await order(connection, "first")
            assert (await actions.enqueue(webhook, connection)).status == "queued"
            await connection.rollback()
        assert (await orders(host), await keys_and_rows(host)) == (set(), ([], []))
        async with host.engine.begin() as connection:
            await order(connection, "second")
            receipt = await actions.enqueue(webhook, connection)
        assert receipt.status == "queued"
        keys, (row,) = await keys_and_rows(host)
        assert row.id == receipt.delivery_id
        assert (await orders(host), len(keys)) == ({"second"}, 1 if key else 0)

    async def test_twice_in_one_transaction_is_a_duplicate(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """A key that the same transaction has used is used."""
        actions, host = shared
        async with host.engine.begin() as connection:
            first = await actions.enqueue(own_webhook(idempotency_key="k"), connection)
            again = await actions.enqueue(own_webhook(idempotency_key="k"), connection)
        assert again == msgspec.structs.replace(first, status="duplicate")
        assert len((await keys_and_rows(host))[1]) == 1

    @pytest.mark.parametrize("commits", [True, False])
    async def test_a_key_of_an_open_transaction_is_waited_for(
        self, shared: tuple[FlowActions, OwningHost], commits: bool
    ) -> None:
        """Committed, the other call is a duplicate; rolled back, it is queued."""
        actions, host = shared
        async with host.engine.connect() as connection:
            first = await actions.enqueue(own_webhook(idempotency_key="k"), connection)
            other = asyncio.create_task(actions.enqueue(own_webhook(idempotency_key="k")))
            await asyncio.sleep(0.3)
            assert not other.done()
            await (connection.commit() if commits else connection.rollback())
            receipt = await other
        if commits:
            assert receipt == msgspec.structs.replace(first, status="duplicate")
        else:
            assert receipt.status == "queued"
            assert receipt.delivery_id != first.delivery_id
        _, (row,) = await keys_and_rows(host)
        assert row.id == receipt.delivery_id

    @pytest.mark.parametrize("alone", [True, False])
    async def test_waiting_for_a_key_ends(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch, alone: bool
    ) -> None:
        """A transaction that stays open makes the other call NotQueued, and its own transaction stays usable."""
        async with owning(postgres_url) as (actions, host), host.engine.connect() as connection:
            await actions.enqueue(own_webhook(idempotency_key="k"), connection)
            webhook = own_webhook(idempotency_key="k")
            with monkeypatch.context() as patched:
                patched.setattr("flowactions_plugin.queue.keys.KEY_SECONDS", 0.3)
                if alone:
                    with pytest.raises(NotQueued, match="did not end within"):
                        await actions.enqueue(webhook)
                else:
                    async with host.engine.begin() as second:
                        await order(second, "mine")
                        with pytest.raises(NotQueued, match="did not end within"):
                            await actions.enqueue(webhook, second)
                    assert await orders(host) == {"mine"}
            await connection.commit()
            assert (await actions.enqueue(webhook)).status == "duplicate"

    @pytest.mark.parametrize("key", [None, "k"])
    async def test_a_failing_database_is_not_queued_and_spoils_nothing(
        self, shared: tuple[FlowActions, OwningHost], key: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        """NotQueued, alone and in a host's transaction, which commits what the host wrote; repeated, it is queued."""
        actions, host = shared
        webhook = own_webhook(idempotency_key=key)
        async with host.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE flowactions_outbox RENAME TO away"))
        with pytest.raises(NotQueued):
            await actions.enqueue(webhook)
        async with host.engine.begin() as connection:
            await order(connection, "kept")
            with pytest.raises(NotQueued):
                await actions.enqueue(webhook, connection)
        assert await orders(host) == {"kept"}
        assert "a webhook of host was not queued" in caplog.text
        async with host.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE away RENAME TO flowactions_outbox"))
        assert (await actions.enqueue(webhook)).status == "queued"


class TestPrepared:
    async def test_preparing_writes_nothing(self, shared: tuple[FlowActions, OwningHost]) -> None:
        """No statement is executed before write."""
        actions, host = shared
        async with statements(host) as seen:
            prepared = await actions.prepare(own_webhook(idempotency_key="k"))
        assert (seen, prepared.refused) == ([], None)

    @pytest.mark.parametrize("key", [None, "k"])
    async def test_written_again_it_is_the_same_row(
        self, shared: tuple[FlowActions, OwningHost], key: str | None
    ) -> None:
        """In one transaction, in another after a rollback, and after a commit: one row, one id."""
        actions, host = shared
        prepared = await actions.prepare(own_webhook(idempotency_key=key))
        async with host.engine.connect() as connection:
            results = [await prepared.write(connection)]
            await connection.rollback()
        for _ in range(2):
            async with host.engine.begin() as connection:
                results += [await prepared.write(connection), await prepared.write(connection)]
        _, (row,) = await keys_and_rows(host)
        assert {(result.status, result.reason, result.delivery_id) for result in results} == {
            ("queued", None, row.id)
        }

    async def test_another_with_its_key_gets_the_first_ones_id(
        self, shared: tuple[FlowActions, OwningHost]
    ) -> None:
        """The result is queued, for there is such a delivery."""
        actions, host = shared
        first = await actions.enqueue(own_webhook(idempotency_key="k"))
        prepared = await actions.prepare(own_webhook(idempotency_key="k"))
        async with host.engine.begin() as connection:
            result = await prepared.write(connection)
        assert (result.status, result.delivery_id) == ("queued", first.delivery_id)
        assert len((await keys_and_rows(host))[1]) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_worker_is_woken_when_it_has_committed(
    shared: tuple[FlowActions, OwningHost], key: str | None
) -> None:
    """Alone at once, in a host's transaction after its commit, and never after a rollback or for a duplicate."""
    actions, host = shared
    woken: list[Due] = []
    actions.plugin_state(Services)._outbox.on_commit = woken.append

    def webhook(number: int) -> OutboundWebhook:
        return own_webhook(idempotency_key=key and f"{key}-{number}")

    await actions.enqueue(webhook(1))
    assert len(woken) == 1
    async with host.engine.connect() as connection:
        await actions.enqueue(webhook(2), connection)
        await connection.rollback()
    async with host.engine.begin() as connection:
        await actions.enqueue(webhook(3), connection)
        assert len(woken) == 1
    await until(lambda: len(woken) == 2)
    if key:
        assert (await actions.enqueue(webhook(3))).status == "duplicate"
        assert len(woken) == 2
