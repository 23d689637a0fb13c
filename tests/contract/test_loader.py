from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import (
    Advanced,
    AlreadyStarted,
    BackgroundTask,
    ExperienceTriggerRef,
    Firing,
    FlowActions,
    Host,
    LogicActionType,
    Node,
    NodeResult,
    NodeType,
    PluginInvalid,
    Receipt,
    StartFailed,
    Walk,
)
from tests.contract.test_hooks import hooking
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until

REF = ExperienceTriggerRef(
    organization_id="acme", agent_id="a", experience_id="e", trigger_row_id="t", action_index=0
)

FIRING: dict[str, Any] = {"firing_id": "f1", "occurred_at": datetime.now(UTC)}


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The plugin's default database is a file in the working directory.
    monkeypatch.chdir(tmp_path)


async def reached(walk: Walk, node: Node) -> NodeResult:
    return NodeResult(status="sent", message=walk.content)


def a_node_type(name: str, reach: Any = reached) -> NodeType:
    return NodeType(name=name, title=name, description=name, reach=reach)


def plugin(name: str, **hooks: Any) -> SimpleNamespace:
    """Make a plugin that returns what is given for each hook."""
    return hooking(name, **{hook: lambda value=value: value for hook, value in hooks.items()})


def load(*plugins: object, host: Host | None = None) -> FlowActions:
    return FlowActions.load(host or SmallHost(), plugins=plugins)


class TestWhatIsCollected:
    async def test_a_plugin_adds_a_node_type_beside_the_installed_ones(self) -> None:
        """A further plugin's node type stands beside chat_message and webhook, and can be reached."""
        actions = load(plugin("third", node_types=[a_node_type("third_thing")]))
        assert set(actions.node_types) == {"chat_message", "webhook", "third_thing"}
        async with actions.lifespan():
            result = await actions.reach(a_walk(content="hi"), Node(id="n", type="third_thing"))
        assert result == NodeResult(node_id="n", status="sent", message="hi")

    async def test_dispatch_goes_to_the_action_type_that_is_named(self) -> None:
        """A logic action of another kind than webhook goes to the plugin that declares it."""

        async def dispatch(firing: Firing, transaction: Any) -> Receipt:
            return Receipt(status="queued", delivery_id=firing.firing_id, event_id=firing.ref.experience_id)

        actions = load(plugin("p", logic_action_types=[LogicActionType(name="email", dispatch=dispatch)]))
        async with actions.lifespan():
            receipt = await actions.dispatch(REF, **FIRING, action_type="email")
        assert receipt == Receipt(status="queued", delivery_id="f1", event_id="e")

    async def test_two_hosts_in_one_process_are_independent(self, tmp_path: Any) -> None:
        """Two hosts that run side by side have settings, outbox and deliveries of their own."""
        settings = [development(f"sqlite:///{tmp_path / name}.db") for name in ("one", "two")]
        settings[0] |= {"CHAT_BOT_TOKEN": "xoxb-1", "BACKEND_PUBLIC_URL": "http://localhost"}
        one, two = (load(host=SmallHost(each)) for each in settings)
        assert one.node_types["chat_message"].available
        assert not two.node_types["chat_message"].available
        async with recorder() as receiver, one.lifespan(), two.lifespan():
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
            enqueued = await one.reach(a_walk(), node)
            await until(lambda: receiver.requests)
            assert [row["id"] for row in await listed(one)] == [enqueued.delivery_id]
            assert await listed(two) == []
            # Had the other host sent it, too, that would have come before what it sends now.
            behind = await two.reach(a_walk(), node)
            await until(lambda: len(receiver.requests) == 2)
            assert [row["id"] for row in await listed(two)] == [behind.delivery_id]


async def listed(actions: FlowActions) -> list[dict[str, Any]]:
    transport = transport_of(actions)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        rows: list[dict[str, Any]] = (await client.get("/v1/webhooks/outbox")).json()["data"]
    return rows


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("plugins", "message"),
        [
            (
                [
                    plugin("first", node_types=[a_node_type("x")]),
                    plugin("second", node_types=[a_node_type("x")]),
                ],
                r"plugins 'first' and 'second' both declare the node type 'x'",
            ),
            (
                [plugin("greedy", node_types=[a_node_type("webhook")])],
                r"'flowactions-plugin' and 'greedy' both declare the node type 'webhook'",
            ),
            (
                [plugin("twice", node_types=[a_node_type("x"), a_node_type("x")])],
                r"plugin 'twice' declares the node type 'x' twice",
            ),
            ([plugin("p", nod_types=[])], r"plugin 'p' has the unknown hook 'flowactions_nod_types'"),
            (
                [plugin("p", node_types=3)],
                r"flowactions_node_types of plugin 'p' must return a sequence.*an int",
            ),
            ([plugin("p", node_types=None)], r"flowactions_node_types of plugin 'p' must return.*not None"),
            ([plugin("p", node_types=["x"])], r"plugin 'p' must return a sequence of NodeType.*holds a str"),
            (
                [plugin("p", step_listeners=[1])],
                r"plugin 'p' has the unknown hook 'flowactions_step_listeners'",
            ),
            ([plugin("p", runtime=1)], r"flowactions_runtime of plugin 'p' must return a Runtime, not an int"),
            *(
                ([plugin("p", signing_secrets=wrong)], rf"secrets of plugin 'p' must return a mapping.*{said}")
                for wrong, said in (([1], "a list"), ({"x": 1}, "holds an int"), ({1: len}, "holds a builtin"))
            ),
            ([plugin("p", route_handlers=[1])], r"flowactions_route_handlers of plugin 'p'"),
            ([plugin("p", background_tasks=[1])], r"flowactions_background_tasks of plugin 'p'"),
            ([plugin("p", logic_action_types=[1])], r"flowactions_logic_action_types of plugin 'p'"),
            (
                [plugin("p", lifespan=1)],
                r"flowactions_lifespan of plugin 'p' must return a factory of an async context",
            ),
            ([plugin("same"), plugin("same")], r"plugin 'same' cannot be registered"),
        ],
    )
    def test_a_plugin_that_breaks_the_contract_is_named(self, plugins: list[object], message: str) -> None:
        """Whatever is wrong with a plugin, the error at load names it."""
        with pytest.raises(PluginInvalid, match=message):
            load(*plugins)

    def test_a_hook_without_its_marker_is_named(self) -> None:
        """A function with a hook's name that lacks @hookimpl is an error, not silence."""
        unmarked = SimpleNamespace(__name__="unmarked", flowactions_node_types=lambda host: [])
        with pytest.raises(PluginInvalid, match=r"'unmarked' must mark 'flowactions_node_types'"):
            load(unmarked)

    def test_an_async_hook_is_named(self) -> None:
        """Hooks are sync; an async one is an error."""

        async def late() -> list[NodeType]:
            return []

        with pytest.raises(PluginInvalid, match="flowactions_node_types of plugin 'late' is async"):
            load(hooking("late", node_types=late))

    def test_a_hook_that_raises_is_named(self) -> None:
        """What a hook raises at load is reported with the plugin's name."""

        def broken() -> list[NodeType]:
            raise LookupError("no such thing")

        with pytest.raises(PluginInvalid, match="'broken' raised LookupError: no such thing"):
            load(hooking("broken", node_types=broken))

    def test_a_hook_with_arguments_that_the_specification_lacks_is_named(self) -> None:
        """An implementation that asks for more than the hook gives cannot be registered."""
        with pytest.raises(PluginInvalid, match="'wide' cannot be registered"):
            load(hooking("wide", node_types=lambda host, more: []))


class TestFailOpen:
    async def test_a_plugin_that_raises_fails_the_node_and_not_the_walk(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An exception in reach or dispatch is logged and answered without a halt."""

        async def broken(*_: object) -> Any:
            raise ZeroDivisionError

        actions = load(
            plugin(
                "broken",
                node_types=[a_node_type("broken", broken)],
                logic_action_types=[LogicActionType(name="broken", dispatch=broken)],
            )
        )
        async with actions.lifespan():
            result = await actions.reach(a_walk(), Node(id="n", type="broken"))
            advanced = await actions.advance(a_walk(), None)
            receipt = await actions.dispatch(REF, **FIRING, action_type="broken")
        assert (result.status, result.reason, result.halt) == ("failed", "plugin_error", False)
        assert advanced == Advanced(state="done")
        assert (receipt.status, receipt.reason) == ("failed", "plugin_error")
        assert sum("ZeroDivisionError" in (record.exc_text or "") for record in caplog.records) == 2

    async def test_what_no_plugin_offers_fails_with_its_name(self) -> None:
        """An unknown node type or action type is an answer, not an exception."""
        actions = load()
        async with actions.lifespan():
            result = await actions.reach(a_walk(), Node(id="n", type="fax"))
            receipt = await actions.dispatch(REF, **FIRING, action_type="fax")
        assert result.reason == "unknown_node_type"
        assert "'fax'" in (result.message or "")
        assert receipt.reason == "unknown_action_type"


class TestLifespan:
    async def test_it_can_be_left_and_entered_again_but_not_twice_at_once(self) -> None:
        """Start, stop, start works; a second start while running is an error."""
        actions = load()
        for _ in range(2):
            async with actions.lifespan():
                with pytest.raises(AlreadyStarted):
                    await actions.lifespan().__aenter__()

    async def test_tasks_run_between_the_opening_and_the_closing_of_what_they_need(self) -> None:
        """A plugin's lifespan is open whenever its tasks run."""
        events: list[str] = []

        class Opened(AbstractAsyncContextManager[None]):
            async def __aenter__(self) -> None:
                events.append("opened")

            async def __aexit__(self, *_: object) -> None:
                events.append("closed")

        async def run() -> None:
            events.append("task started")
            try:
                await asyncio.Event().wait()
            finally:
                events.append("task ended")

        task = BackgroundTask(name="t", run=run)
        actions = load(plugin("p", lifespan=Opened, background_tasks=[task]))
        async with actions.lifespan():
            await until(lambda: "task started" in events)
        assert events == ["opened", "task started", "task ended", "closed"]

    async def test_a_plugin_that_cannot_start_is_named_and_the_others_are_closed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A lifespan that fails to open stops the start with the plugin's name."""
        caplog.set_level(logging.CRITICAL)

        @asynccontextmanager
        async def failing() -> AsyncIterator[None]:
            raise ConnectionError("no route")
            yield

        actions = load(plugin("far", lifespan=failing))
        with pytest.raises(StartFailed, match=r"plugin 'far' could not be started: ConnectionError: no route"):
            await actions.lifespan().__aenter__()
