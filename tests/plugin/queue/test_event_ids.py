"""Event ids: one for each event and the same for each repetition of it, whatever ids hosts and callers choose (§2.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import text

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    Deferred,
    FlowActions,
    FlowNodeOrigin,
    Header,
    LogicAction,
    LogicActionRef,
    Node,
)
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.logic.store import LIMIT
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.prepared import PreparedDelivery
from tests.owning import HOST_ORIGIN, CrmPlugin, own_webhook, owning, plugin_origin
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.triggers import EXPERIENCE, NODE_TRIGGER

URL = "http://127.0.0.1:9/"
NODE = Node(id="n", type="webhook", config={"webhookUrl": URL, "webhookBody": '{"said": {{content}}}'})
PATH = "/v1/agents/{}/experiences/e1/logic-webhook"
CALL = {"source": "experience_trigger", "actionIndex": 0, "triggerRowId": "t1"}
OF_NODE = replace(NODE_TRIGGER, node_id="t1")
PINNED = {
    "node": "evt_5b7ad944b6a8d847a63cf7b20a383107a2be9d7f6d538ec17c6f4a24ae473345",
    "experience": "evt_d350671abe507e863228b99b12ed1392dbd89f18a640c91cdeadaefcf83b2c1f",
    "node trigger": "evt_a9f2a95c93146178fd25721e0a189d63dfe228167ce3fc73b8f86fac39db7e25",
    "call": "evt_fe2a422001f8e56eef52ea2816e0639ad11ae73dafa6c190af42ab509b573345",
    "own": "evt_e9748f5747c345e23edfc79e0ad4a81786b36021a63046eca11e5bc1fa03a148",
}
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Queued:
    """A host whose deliveries stay in the outbox."""

    def __init__(self, host: SmallHost, actions: FlowActions, client: httpx.AsyncClient) -> None:
        self.host = host
        self.actions = actions
        self.client = client
        self.database = services_of(host)._database

    async def call(self, key: str, agent: str = "a1", **changes: Any) -> httpx.Response:
        return await self.client.post(PATH.format(agent), json={"idempotencyKey": key, **CALL, **changes})

    async def dispatch(self, firing_id: str = "f", ref: LogicActionRef = EXPERIENCE, at: datetime = NOW) -> str:
        receipt = await self.actions.dispatch(ref, firing_id=firing_id, occurred_at=at)
        assert receipt.status == "queued"
        return receipt.event_id or ""

    async def reach(self, node: Node = NODE, **walk: Any) -> str:
        """Reach a node of one run, with these changes; give the event id."""
        values = {"run_id": "r", "content": "hi", **walk}
        result = await self.actions.reach(a_walk(**values), node)
        assert result.status == "queued"
        return await self.event_id(result.delivery_id)

    async def event_id(self, delivery_id: str | None) -> str:
        rows = await self.query("SELECT event_id FROM flowactions_outbox WHERE id = :id", id=delivery_id)
        return str(rows[0][0])

    async def query(self, statement: str, **values: Any) -> list[Any]:
        async with self.database.read() as connection:
            return list((await connection.execute(text(statement), values)).all())

    async def forget_keys(self) -> None:
        async with self.database.write() as connection:
            for table in ("flowactions_enqueue_keys", "flowactions_enqueue_rates"):
                await connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Queued]:
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    host.action = LogicAction(url=URL)
    host.api = ApiPrincipal(organization_id="acme", all_agents=True)
    host.agents = [Agent(id="a1", name="A", organization_id="acme")]
    actions = FlowActions.load(host)
    transport = transport_of(actions)
    async with actions.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        yield Queued(host, actions, client)


def event_ids(answers: Any) -> list[str]:
    assert {answer.status_code for answer in answers} == {202}
    return [answer.json()["data"]["eventId"] for answer in answers]


async def test_ids_are_the_same_in_every_release(run: Queued) -> None:
    """Receivers remember them for long, and other programs compute them: what they are made of does not change."""
    webhook = own_webhook()
    assert {
        "node": await run.reach(),
        "experience": await run.dispatch(),
        "node trigger": await run.dispatch(ref=OF_NODE),
        "call": event_ids([await run.call("key")])[0],
        "own": (await run.actions.enqueue(webhook)).event_id,
    } == PINNED


class TestNodes:
    async def test_what_tells_events_apart(self, run: Queued) -> None:
        """Organization, flow, run, node, visit and payload each make another event."""
        found = {
            "plain": await run.reach(),
            "organization": await run.reach(organization_id="globex"),
            "flow": await run.reach(flow_id="flow-2"),
            "run": await run.reach(run_id="r2"),
            "node": await run.reach(replace(NODE, id="n2")),
            "visit": await run.reach(visit="2"),
            "payload": await run.reach(content="bye"),
        }
        assert len(set(found.values())) == len(found)

    async def test_a_walk_that_is_repeated_gives_the_same_ids(self, run: Queued) -> None:
        """A host that walks again after a crash: another row, the same event, whatever agent runs the flow."""
        assert len({await run.reach() for _ in range(3)}) == 1
        assert await run.reach(agent_id="other") == await run.reach()
        assert len(await run.query("SELECT id FROM flowactions_outbox")) == 5

    async def test_a_deferred_node_has_the_id_that_it_has_at_once(self, run: Queued) -> None:
        """Pacing is not part of the event."""
        at_once = await run.reach()
        walk = a_walk(run_id="r", content="hi", pacing=Deferred("s"))
        await run.actions.reach(walk, NODE)
        (result,) = (await run.actions.advance(walk, "s")).results
        assert await run.event_id(result.delivery_id) == at_once


class TestOwnWebhooks:
    """What a host or a plugin enqueues itself, by `FlowActions.enqueue` and by `prepare`."""

    async def test_what_tells_events_apart(self, database_url: str) -> None:
        """Organization, caller, type, entity and body each make another event; nothing else does."""
        crm, other = CrmPlugin(), CrmPlugin()
        other.__name__ = "billing"
        async with owning(database_url, crm, other, tasks=False) as (actions, _):
            assert crm.actions is not None
            assert other.actions is not None

            async def ids(facade: FlowActions, origin: Any, organization: str = "acme", **fields: Any) -> str:
                """Give the id of one event, which is the same by either call."""
                origin = replace(origin, organization_id=organization)
                webhook = own_webhook(organization_id=organization, origin=origin, **fields)
                receipt = await facade.enqueue(webhook)
                prepared = await facade.prepare(webhook)
                assert isinstance(prepared, PreparedDelivery)
                assert prepared._delivery is not None
                assert receipt.event_id == prepared._delivery.event_id
                return receipt.event_id or ""

            plain = await ids(actions, HOST_ORIGIN)
            found = {
                "plain": plain,
                "organization": await ids(actions, HOST_ORIGIN, "globex"),
                "plugin": await ids(crm.actions, plugin_origin()),
                "another plugin": await ids(other.actions, plugin_origin(plugin="billing")),
                "type": await ids(actions, HOST_ORIGIN, event_type="order.paid"),
                "entity": await ids(actions, HOST_ORIGIN, entity='order-1","x'),
                "body": await ids(actions, HOST_ORIGIN, body=b"{}"),
            }
            assert len(set(found.values())) == len(found)
            of_node = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="n")
            for same in (
                {"url": "http://127.0.0.1:10/"},
                {"method": "PUT"},
                {"headers": [Header(key="a", value="b")]},
                {"agent_id": "a"},
                {"max_attempts": 1},
                {"idempotency_key": "k"},
            ):
                assert await ids(actions, HOST_ORIGIN, **same) == plain, same
            assert await ids(actions, of_node) == plain


class TestCalls:
    async def test_a_key_is_the_same_event_whenever_it_is_used(
        self, run: Queued, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the window, and after a first call whose write failed, though the envelope's time is another."""
        (first,) = event_ids([await run.call("k")])
        await run.forget_keys()
        await asyncio.sleep(0.01)
        (second,) = event_ids([await run.call("k")])
        assert second == first
        bodies = await run.query("SELECT DISTINCT body FROM flowactions_outbox")
        assert len(bodies) == 2
        write = Outbox.write
        prepared: list[str] = []

        async def away(self: Outbox, delivery: Any, *_: Any, **__: Any) -> None:
            prepared.append(delivery.event_id)
            raise StorageUnavailable("the database failed: it is away")

        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "write", away)
            assert (await run.call("other")).status_code == 503
        assert Outbox.write is write
        assert event_ids([await run.call("other")]) == prepared

    async def test_a_key_is_never_a_firing(self, run: Queued) -> None:
        """The same text as key and as firing id is two events, and so are the two kinds of trigger."""
        (called,) = event_ids([await run.call("f")])
        found = {called, await run.dispatch("f"), await run.dispatch("f", OF_NODE)}
        assert len(found) == 3

    async def test_two_tenants_with_equal_ids_share_neither_keys_nor_rates_nor_events(
        self, run: Queued
    ) -> None:
        """One organization's sixty calls, each with a key and an event of its own, are nothing to the other."""
        assert len(set(event_ids([await run.call(f"k{number}") for number in range(LIMIT)]))) == LIMIT
        assert (await run.call("one more")).status_code == 429
        assert (await run.call("k0")).status_code == 204
        run.host.api = ApiPrincipal(organization_id="globex", all_agents=True)
        run.host.agents = [Agent(id="a1", name="A", organization_id="globex")]
        await run.call("k0")
        rows = await run.query(
            "SELECT organization_id, event_id FROM flowactions_outbox WHERE idempotency_key = 'k0'"
        )
        assert sorted(row[0] for row in rows) == ["acme", "globex"]
        assert len({row[1] for row in rows}) == 2


class TestFirings:
    async def test_a_firing_that_is_repeated_is_the_same_bytes_and_event(self, run: Queued) -> None:
        """Another row each time; the zone in which the moment is written does not matter."""
        elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
        assert len({await run.dispatch(at=at) for at in (NOW, NOW, elsewhere)}) == 1
        rows = await run.query("SELECT body FROM flowactions_outbox")
        assert len(rows) == 3
        assert len({bytes(row.body) for row in rows}) == 1

    async def test_what_tells_firings_apart(self, run: Queued) -> None:
        """Each id of the action, its index, its question and the firing id make another event."""
        of_experience = ("organization_id", "agent_id", "experience_id", "trigger_row_id")
        of_node = ("node_id", "node_trigger_group_id", "question_id")
        refs: list[LogicActionRef] = [
            EXPERIENCE,
            OF_NODE,
            *(replace(EXPERIENCE, **{name: "other"}) for name in of_experience),
            *(replace(OF_NODE, **{name: "other"}) for name in of_node),
            replace(EXPERIENCE, action_index=1),
            replace(OF_NODE, question_id="null"),
        ]
        found = {await run.dispatch("another"), *[await run.dispatch(ref=ref) for ref in refs]}
        assert len(found) == 1 + len(refs)


class TestRate:
    @pytest.mark.parametrize(("age_ms", "at_least"), [(59_500, 1), (58_500, 2), (1_000, 59)])
    async def test_retry_after_is_never_too_early(self, run: Queued, age_ms: int, at_least: int) -> None:
        """Whole seconds, rounded up: who waits that long is admitted, or waits again for what the test itself took."""
        if run.database.dialect == "postgresql":
            pytest.skip("the clock is the server's")
        now = 1_800_000_000.0
        run.database.clock = lambda: now
        await run.call("first")
        times = f"[{', '.join([str(int(now * 1000) - age_ms)] * LIMIT)}]"
        async with run.database.write() as connection:
            await connection.execute(
                text("UPDATE flowactions_enqueue_rates SET times = :times"), {"times": times}
            )
        answer = await run.call("second")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, str(at_least))


class TestPathIds:
    @pytest.mark.parametrize("bad", ["%00", "x%00y", "x" * 256])
    async def test_ids_in_paths_that_are_none_are_not_there(self, run: Queued, bad: str) -> None:
        """NUL and more than 255 characters: 404 for an agent and 400 for an experience, alike on both databases."""

        class Everything(list[Agent]):
            def __iter__(self) -> Any:
                return iter([Agent(id=httpx.URL(f"http://h/{bad}").path[1:], name="A", organization_id="acme")])

        path = PATH.format("a1").replace("e1", bad)
        answer = await run.client.post(path, json={"idempotencyKey": "k", **CALL})
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_action")
        run.host.agents = Everything()
        answer = await run.call("k", bad)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert await run.query("SELECT id FROM flowactions_outbox") == []

    async def test_ids_of_255_characters_work(self, run: Queued) -> None:
        """In the path and in the body."""
        long = "x" * 255
        run.host.agents = [Agent(id=long, name="A", organization_id="acme")]
        path = PATH.format(long).replace("e1", long)
        answer = await run.client.post(path, json={**CALL, "idempotencyKey": "k", "triggerRowId": long})
        assert answer.status_code == 202
