from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.serving import serve
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    ExperienceTriggerRef,
    FlowActions,
    FlowNodeOrigin,
    Host,
    HostInvalid,
    HostWarning,
    LogicAction,
    LogicActionOrigin,
    Node,
    Operator,
    Origin,
    OriginGone,
    Request,
    SettingsInvalid,
    provides,
)
from flowactions_plugin.errors import HostFailed
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.openapi import RouteRules
from tests.chatting import adopting_settings
from tests.owning import own_webhook
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until

SECRET = "whsec_c2VjcmV0IG9mIHRoZSBhdXRoIHByb3ZpZGVy"
REF = ExperienceTriggerRef(
    organization_id="acme", agent_id="a", experience_id="e", trigger_row_id="t", action_index=0
)
CALL = "/v1/agents/a/experiences/e/logic-webhook"
BODY = {"idempotencyKey": "k", "source": "experience_trigger", "actionIndex": 0, "triggerRowId": "t"}
OPTIONAL = (
    "signing_secret",
    "api_principal",
    "agent",
    "agents_using",
    "logic_action",
    "auth_event",
    "delivery_finished",
    "nodes_recovered",
    "operator",
)


class MinimalHost(Host):
    """The three required members, and no other."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        return DashboardPrincipal(organization_id="acme", user_id="ada", user_name="Ada", may_change=True)

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        return Node(id=node_id, type="webhook", config={})


@asynccontextmanager
async def served(actions: FlowActions, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        actions.lifespan(**options),
        httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client,
    ):
        yield client


@asynccontextmanager
async def chat_settings(database_url: str) -> AsyncIterator[dict[str, str]]:
    """Run a chat provider; give the settings of a host that adopts a static token of it."""
    provider = FakeChatProvider()
    token = provider.state.add_token(provider.state.workspaces[0])
    async with serve(provider.app) as url:
        yield adopting_settings(database_url, url, token.value)


async def adopt(client: httpx.AsyncClient) -> None:
    started = await client.get("/integrations/chat/install")
    ended = await client.get(started.headers["location"])
    assert ended.headers["location"].endswith("chat=connected")


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


class TestSigningSecret:
    """What a host without `signing_secret` signs with."""

    @pytest.mark.parametrize(
        ("node", "secret"),
        [
            (Node(id="n", type="webhook", config={"webhookSecret": "s"}), "s"),
            (Node(id="n", type="webhook", config={"webhookSecret": 5}), None),
            (Node(id="n", type="webhook", config={}), None),
            (Node(id="n", type="chat_message", config={"webhookSecret": "s"}), OriginGone),
            (None, OriginGone),
        ],
    )
    async def test_a_nodes_is_in_its_config(self, node: Node | None, secret: Any) -> None:
        """By `node`, with all ids of the origin; a secret that is not text is none, as the node reads it."""
        host = MinimalHost({})
        asked = []

        async def find(*ids: str) -> Node | None:
            asked.append(ids)
            return node

        host.node = find  # type: ignore[method-assign, assignment]
        origin = FlowNodeOrigin(organization_id="o", agent_id="a", flow_id="f", node_id="n")
        if secret is OriginGone:
            with pytest.raises(OriginGone):
                await host.signing_secret(origin)
        else:
            assert await host.signing_secret(origin) == secret
        assert asked == [("o", "f", "n")]

    async def test_a_logic_actions_is_the_actions(self) -> None:
        """By `logic_action`; an action that is not there is gone."""
        host = MinimalHost({})
        with pytest.raises(OriginGone):
            await host.signing_secret(LogicActionOrigin(ref=REF))

        async def action(ref: Any) -> LogicAction:
            return LogicAction(url="https://example.com/", secret="s")

        host.logic_action = action  # type: ignore[method-assign]
        assert await host.signing_secret(LogicActionOrigin(ref=REF)) == "s"

    async def test_the_hosts_own_webhooks_need_it(self, database_url: str) -> None:
        """`enqueue` and `prepare` refuse them at the call, before anything is written."""
        actions = FlowActions.load(MinimalHost(development(database_url)))
        async with served(actions) as client:
            for call in (actions.enqueue, actions.prepare):
                with pytest.raises(ValueError, match="does not override signing_secret"):
                    await call(own_webhook())
            assert (await client.get("/v1/webhooks/outbox")).json()["data"] == []

    async def test_what_fails_is_named(self, database_url: str) -> None:
        """A delivery that waits says `Host.node`, which the host has written."""

        class Failing(MinimalHost):
            async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
                raise KeyError

        actions = FlowActions.load(Failing(development(database_url)))
        async with served(actions) as client:
            config = {"webhookUrl": "http://127.0.0.1:9/"}
            await actions.reach(a_walk(), Node(id="n", type="webhook", config=config))

            async def waits() -> bool:
                (row,) = (await client.get("/v1/webhooks/outbox")).json()["data"]
                return "Host.node of Failing" in (row["lastError"] or "")

            await until(waits)


class TestOptionalMembers:
    def test_provides_tells_what_a_host_has(self, tmp_path: Any) -> None:
        """By its class, a base class of it, or the object itself."""
        host = MinimalHost(development(f"sqlite:///{tmp_path / 'f.db'}"))
        assert not any(provides(host, name) for name in OPTIONAL)
        assert provides(host, "node")
        host.agent = host.signing_secret  # type: ignore[method-assign, assignment]
        assert provides(host, "agent")
        assert all(provides(SmallHost(), name) for name in ("agent", "auth_event"))

        class Derived(SmallHost):
            pass

        assert provides(Derived(), "auth_event")

    async def test_three_members_are_enough(self, database_url: str) -> None:
        """Nodes run, deliveries leave and operators see them; the rest answers 401, 503, no such action, nobody."""
        actions = FlowActions.load(MinimalHost(development(database_url)))
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/"})
        async with served(actions) as client:
            result = await actions.reach(a_walk(), node)
            assert result.status == "queued"

            async def dead() -> bool:
                (row,) = (await client.get("/v1/webhooks/outbox")).json()["data"]
                return bool(row["status"] == "dead" and row["attempts"] == 1)

            await until(dead)
            assert code(await client.post(CALL, json=BODY)) == (401, "unauthorized")
            receipt = await actions.dispatch(REF, firing_id="f", occurred_at=datetime.now(UTC))
            assert (receipt.status, receipt.reason) == ("skipped", "unknown_action")
            answer = await client.post("/webhooks/auth", json={})
            assert code(answer) == (503, "not_configured")
            assert "auth_event" in answer.json()["detail"]

    async def test_a_backend_without_agents_or_actions(self, database_url: str) -> None:
        """With api_principal alone there is no agent (404); with agent, no action (400)."""

        class Api(MinimalHost):
            async def api_principal(self, request: Request) -> ApiPrincipal:
                return ApiPrincipal(organization_id="acme", all_agents=True)

        class ApiWithAgent(Api):
            async def agent(self, agent_id: str) -> Agent:
                return Agent(id=agent_id, name="A", organization_id="acme")

        settings = development(database_url, FLOWACTIONS_HOST_WORKER="off")
        for host, expected in (
            (Api(settings), (404, "not_found")),
            (ApiWithAgent(settings), (400, "unknown_action")),
        ):
            async with served(FlowActions.load(host)) as client:
                assert code(await client.post(CALL, json=BODY)) == expected

    async def test_a_connection_is_shown_without_agents(self, database_url: str) -> None:
        """Without agents_using, the card names none (§2.2)."""
        async with (
            chat_settings(database_url) as settings,
            served(FlowActions.load(MinimalHost(settings))) as client,
        ):
            await adopt(client)
            card = (await client.get("/integrations/chat/connection")).json()["data"]
        assert card["agents"] == []

    def test_a_secret_without_the_method_is_an_error_at_load(self, tmp_path: Any) -> None:
        """It names both, and comes with whatever else is wrong in the settings."""
        settings = development(f"sqlite:///{tmp_path / 'f.db'}", AUTH_WEBHOOK_SIGNING_SECRET=SECRET)
        message = "AUTH_WEBHOOK_SIGNING_SECRET is set, and MinimalHost has no method auth_event"
        with pytest.raises(SettingsInvalid, match=message) as raised:
            FlowActions.load(MinimalHost(settings))
        assert SECRET not in str(raised.value)
        with pytest.raises(SettingsInvalid, match=f"{message}.*FLOWACTIONS_DELIVERY must be"):
            FlowActions.load(MinimalHost({**settings, "FLOWACTIONS_DELIVERY": "never"}))
        FlowActions.load(SmallHost(settings))
        FlowActions.load(MinimalHost({**settings, "AUTH_WEBHOOK_SIGNING_SECRET": "  "}))


class TestWhatIsRefusedAtLoad:
    def test_a_host_is_loaded_once(self, tmp_path: Any) -> None:
        """A second FlowActions of one host would run everything twice; another host object is fine."""
        settings = development(f"sqlite:///{tmp_path / 'f.db'}")
        host = SmallHost(settings)
        FlowActions.load(host)
        with pytest.raises(
            HostInvalid, match="this SmallHost was loaded before: one host object has one FlowActions"
        ):
            FlowActions.load(host)
        FlowActions.load(SmallHost(settings))

    def test_after_a_load_that_failed_it_can_be_loaded(self, tmp_path: Any) -> None:
        """What was wrong is mended, and the same object is taken."""
        host = SmallHost({"FLOWACTIONS_DELIVERY": "never"})
        with pytest.raises(SettingsInvalid):
            FlowActions.load(host)
        host.settings = development(f"sqlite:///{tmp_path / 'f.db'}")
        FlowActions.load(host)

    def test_required_members_are_named(self) -> None:
        """Without a required method there is no object; without settings, load says what they are."""

        class NoNode(Host):
            async def dashboard_principal(self, request: Request) -> None: ...

        class NoSettings(NoNode):
            async def node(self, organization_id: str, flow_id: str, node_id: str) -> None: ...

        with pytest.raises(TypeError, match="node"):
            NoNode()  # type: ignore[abstract]
        with pytest.raises(HostInvalid, match="NoSettings is not a usable host: settings must be a mapping"):
            FlowActions.load(NoSettings())
        with pytest.raises(HostInvalid, match=r"object is not a host.*dashboard_principal, node"):
            FlowActions.load(object())  # type: ignore[arg-type]

    def test_what_cannot_be_called_is_named(self, tmp_path: Any) -> None:
        """A member of the contract that is no method."""

        class NotCallable(SmallHost):
            agent = None  # type: ignore[assignment]

        with pytest.raises(HostInvalid, match="agent must be an async method"):
            FlowActions.load(NotCallable(development(f"sqlite:///{tmp_path / 'f.db'}")))

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("sign_secret", "did you mean 'signing_secret'"),
            ("auth_events", "did you mean 'auth_event'"),
            ("delivery_finish", "did you mean 'delivery_finished'"),
            ("warm_up", "name it '_warm_up' if it is your own"),
        ],
    )
    def test_an_unknown_public_async_method_is_a_warning(self, tmp_path: Any, name: str, said: str) -> None:
        """With a suggestion; own methods with an underscore, sync ones and properties are nobody's business."""

        async def method(self: Any, *_: object) -> None: ...

        async def generator(self: Any) -> AsyncIterator[int]:
            yield 1

        settings = development(f"sqlite:///{tmp_path / 'f.db'}")
        for found in (method, staticmethod(method), classmethod(method), generator):
            made = type("Shop", (SmallHost,), {name: found})
            with pytest.warns(HostWarning, match=f"Shop.{name} is no method of the contract: {said}"):
                FlowActions.load(made(settings))
        own = type(
            "Own", (SmallHost,), {f"_{name}": method, "plain": len, "late": property(lambda self: 1 / 0)}
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", HostWarning)  # not what the collector says of other tests
            FlowActions.load(own(settings))


def made(kind: Any, **fields: Any) -> Any:
    """Make a struct, of wrong types, too."""
    return kind(**fields)


ANSWERS: dict[str, tuple[tuple[Any, ...], list[Any]]] = {
    "operator": (
        (None,),
        [
            True,
            made(Operator, user_id=1, user_name="A", may_change=True),
            made(Operator, user_id="a", user_name="A", may_change="yes"),
        ],
    ),
    "node": (
        ("acme", "f", "n"),
        [
            {"id": "n"},
            made(Node, id="n", type="t", config=[]),
            made(Node, id=7, type="t"),
            made(Node, id="n", type="t", version="1"),
        ],
    ),
}


class TestAnswers:
    @pytest.mark.parametrize("method", ANSWERS)
    async def test_a_wrong_type_names_class_and_method(
        self, method: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also one that cannot be awaited; a plain function that returns an awaitable is fine, and None is nobody."""
        arguments, wrong = ANSWERS[method]
        host = SmallHost()

        def given(answer: Any) -> None:
            async def later(*_: object) -> Any:
                return answer

            setattr(host, method, lambda *arguments: asyncio.ensure_future(later(*arguments)))

        for answer in wrong:
            given(answer)
            caplog.clear()
            with pytest.raises(HostFailed, match=rf"^SmallHost\.{method} must return "):
                await ask(host, method, *arguments)
            assert f"SmallHost.{method} must return" in caplog.text
        setattr(host, method, lambda *_: None)
        with pytest.raises(HostFailed, match=rf"^SmallHost\.{method} must be async: it returned None"):
            await ask(host, method, *arguments)
        given(None)
        assert await ask(host, method, *arguments) is None

    async def test_a_method_that_answers_at_once_costs_no_attempt(
        self, database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A sync signing_secret lets its deliveries wait with a reason; routes answer 500 and the log names the method."""

        class Sync(SmallHost):
            def signing_secret(self, origin: Origin) -> Any:
                return "secret"

            def agents_using(self, organization_id: str, node_type: str) -> Any:
                return []

            def api_principal(self, request: Request) -> Any:
                return ApiPrincipal(organization_id="acme")

        actions = FlowActions.load(Sync(development(database_url)))
        async with served(actions) as client:
            await actions.enqueue(own_webhook(max_attempts=1))

            async def waits() -> bool:
                (row,) = (await client.get("/v1/webhooks/outbox")).json()["data"]
                return row["attempts"] == 0 and "it has to be async" in (row["lastError"] or "")

            await until(waits)
            assert code(await client.post(CALL, json=BODY)) == (500, "internal_error")
        assert "Sync.api_principal must be async: it returned an ApiPrincipal" in caplog.text
        assert "Host.signing_secret of Sync returned str: it has to be async" in caplog.text


def dashboard_routes(actions: FlowActions) -> Iterator[tuple[str, str, RouteRules]]:
    """Walk the routes that a dashboard principal may call."""
    app = Litestar(route_handlers=list(actions.route_handlers), logging_config=None)
    for route in app.routes:
        assert isinstance(route, HTTPRoute)
        for handler in route.route_handlers:
            rules = RouteRules.of(handler)
            for method in sorted(handler.http_methods - {"OPTIONS", "HEAD"}):
                if rules.caller == "dashboard":
                    yield method, route.path_format, rules


async def test_without_may_change_all_is_read_and_nothing_changed(database_url: str) -> None:
    """Every changing dashboard route answers 403 `forbidden`, whatever is sent; every reading one answers as before."""
    async with chat_settings(database_url) as settings:
        host = SmallHost(settings)
        actions = FlowActions.load(host)
        async with served(actions) as client:
            await adopt(client)
            receipt = await actions.enqueue(own_webhook())
            changing, reading = [], []
            for may_change in (True, False):
                host.principal = DashboardPrincipal(
                    organization_id="acme", user_id="eve", user_name="Eve", may_change=may_change
                )
                for method, path, rules in dashboard_routes(actions):
                    at = path
                    for name in ("row_id", "delivery_id", "id"):
                        at = at.replace(f"{{{name}}}", receipt.delivery_id or "")
                    if rules.reads:
                        answer = await client.post(at, json={"agentId": "agent-1", "node": {"type": "webhook"}})
                        reading.append((path, answer.status_code))
                        assert answer.status_code == 200, (at, answer.text)
                    elif method == "GET" and not rules.changes:
                        answer = await client.get(at)
                        reading.append((path, answer.status_code))
                        assert answer.status_code == 200, (at, answer.text)
                    elif not may_change:
                        for body in (None, {}, {"nonsense": 1}):
                            answer = await client.request(method, at, json=body)
                            assert code(answer) == (403, "forbidden"), (method, at)
                        changing.append((method, path))
                    assert rules.changes or method == "GET", (method, path)
    assert len(changing) >= 7
    assert len(reading) >= 8
