from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest
from litestar import Litestar, Router, WebSocket, get, post, websocket
from litestar.params import FromPath

from flowactions_hookspecs import (
    CONTRACT_VERSION,
    PROJECT,
    FlowActions,
    Host,
    Node,
    NodeResult,
    NodeType,
    PluginInvalid,
    SettingsInvalid,
    hookimpl,
    spec,
)
from flowactions_hookspecs.hooks import Hooks
from flowactions_hookspecs.routes import RESERVED
from flowactions_plugin.services import Services
from tests.support import SmallHost, a_walk


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The plugin's default database is a file in the working directory.
    monkeypatch.chdir(tmp_path)


def hooking(name: str, **hooks: Any) -> SimpleNamespace:
    """Make a plugin of these hooks, which are named without their prefix, and marked."""
    marked = {f"flowactions_{hook}": hookimpl(value) for hook, value in hooks.items()}
    return SimpleNamespace(__name__=name, **marked)


def nothing() -> list[Any]:
    return []


def load(*plugins: object, prefix: str = "") -> FlowActions:
    return FlowActions.load(SmallHost(), plugins=plugins, prefix=prefix)


class TestArguments:
    def test_a_hook_names_the_arguments_that_it_wants(self) -> None:
        """None, one of them or both, in any order."""
        given: list[tuple[Any, ...]] = []

        def both(actions: FlowActions, host: Host) -> list[Any]:
            given.append((host, actions))
            return []

        def one(host: Host) -> list[Any]:
            given.append((host,))
            return []

        def none() -> list[Any]:
            given.append(())
            return []

        loaded = load(
            hooking("p", node_types=both, background_tasks=one),
            hooking("q", node_types=none),
        )
        assert [len(each) for each in given] == [2, 0, 1]
        host, actions = given[0]
        assert host is loaded.host
        assert isinstance(actions, FlowActions)
        assert actions.node_types == loaded.node_types

    def test_state_is_made_once_for_a_host(self) -> None:
        """Every hook gets the same object, and another host another one."""
        states: list[Any] = []

        class State:
            def __init__(self, host: Host, actions: FlowActions) -> None:
                self.host = host

        def hook(actions: FlowActions) -> list[Any]:
            states.append(actions.plugin_state(State))
            return []

        made = hooking("p", node_types=hook, background_tasks=hook)
        one, two = load(made), load(made)
        assert states[0] is states[1] is one.plugin_state(State)
        assert states[2] is states[3] is two.plugin_state(State)
        assert [state.host for state in states] == [one.host, one.host, two.host, two.host]

    def test_an_optional_hook_may_be_unknown(self) -> None:
        """A plugin for this version and a later one marks what only the later one knows; unmarked, it is misspelt."""

        def later() -> list[Any]:
            raise AssertionError

        optional = SimpleNamespace(__name__="p", flowactions_later=hookimpl(optionalhook=True)(later))
        assert "p" in load(optional).plugin_names
        known = SimpleNamespace(__name__="q", flowactions_node_types=hookimpl(optionalhook=True)(nothing))
        assert "q" in load(known).plugin_names
        with pytest.raises(
            PluginInvalid, match=r"unknown hook 'flowactions_lifespans', did you mean 'flowactions_lifespan'"
        ):
            load(hooking("r", lifespans=later))


class TestVersion:
    @pytest.mark.parametrize("needed", [(1, 0), CONTRACT_VERSION])
    def test_a_plugin_may_state_what_it_needs(self, needed: tuple[int, int]) -> None:
        """A version that this contract fulfils is fine."""
        assert "p" in load(SimpleNamespace(__name__="p", flowactions_contract=needed)).plugin_names

    @pytest.mark.parametrize(
        "needed", [(1, CONTRACT_VERSION[1] + 1), (2, 0), (0, 9), "1.0", (1, "0"), (1, 0, 0)]
    )
    def test_a_version_that_is_not_here_names_both(self, needed: Any) -> None:
        """So that the reader knows which of the two to change; what is no pair of numbers is refused."""
        said = "flowactions_contract of plugin 'p' must be a pair"
        if len(needed) == 2 and needed[1] != "0":
            wanted, have = (".".join(map(str, version)) for version in (needed, CONTRACT_VERSION))
            said = f"'p' needs version {wanted} of the contract, and version {have}"
        with pytest.raises(PluginInvalid, match=said):
            load(SimpleNamespace(__name__="p", flowactions_contract=needed))


class TestRuntime:
    def test_two_runtimes_are_named(self) -> None:
        """There is one, for the node types of all plugins."""
        given = load()._core.runtime
        with pytest.raises(PluginInvalid, match="'flowactions-plugin' and 'other' both provide the runtime"):
            load(hooking("other", runtime=lambda: given))

    def test_without_a_runtime_it_is_said_what_to_install(self) -> None:
        """Other plugins alone are no use."""
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(spec)
        manager.register(hooking("other", node_types=nothing), name="other")
        with pytest.raises(
            PluginInvalid, match=r"no plugin provides the runtime \(loaded: other\): .* install it"
        ):
            Hooks(manager, lambda _: {}).runtime()


class TestSettings:
    def test_what_all_plugins_say_of_their_settings_is_one_error(self) -> None:
        """An operator mends everything at once."""

        def refuse() -> list[Any]:
            raise SettingsInvalid("CRM_TOKEN is missing")

        def refuse_too() -> list[Any]:
            raise SettingsInvalid("FAX_NUMBER must be a number")

        host = SmallHost({"FLOWACTIONS_TICK_SECOND": "1"})
        plugins = [
            hooking("crm", node_types=refuse, background_tasks=refuse),
            hooking("fax", lifespan=refuse_too),
        ]
        with pytest.raises(SettingsInvalid) as caught:
            FlowActions.load(host, plugins=plugins)
        message = str(caught.value)
        for part in ("FLOWACTIONS_TICK_SECONDS", "CRM_TOKEN is missing", "FAX_NUMBER must be a number"):
            assert message.count(part) == 1
        host.settings = {}
        assert FlowActions.load(host).node_types  # a load that failed does not count


@get("/integrations/crm/contacts", sync_to_thread=False)
def contacts() -> list[str]:
    return []


@post("/integrations/crm/contacts", sync_to_thread=False)
def add_contact() -> None:
    return None


def routes(*handlers: Any) -> Any:
    return lambda: list(handlers)


class TestRoutes:
    def test_routes_lie_below_a_place_of_the_plugin(self) -> None:
        """Directly, in a router, and under the prefix of the host; two methods of a path are two routes."""
        nested = Router(
            "/integrations/crm", route_handlers=[get("/{name:str}/notes", sync_to_thread=False)(list_notes)]
        )
        for prefix in ("", "/api"):
            one = hooking("one", route_handlers=routes(contacts, nested))
            two = hooking("two", route_handlers=routes(add_contact))
            app = Litestar([*load(one, two, prefix=prefix).route_handlers], openapi_config=None)
            paths = {route.path for route in app.routes}
            assert {
                f"{prefix}/integrations/crm/contacts",
                f"{prefix}/integrations/crm/{{name:str}}/notes",
            } <= paths
            assert f"{prefix}/integrations/chat/channels" in paths

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("/", "routes are below /integrations/<plugin>/"),
            ("/contacts", "routes are below /integrations/<plugin>/"),
            ("/integrations/crm", "routes are below /integrations/<plugin>/"),
            ("/integrations/{name:str}/contacts", "routes are below /integrations/<plugin>/"),
            *(
                (f"/integrations/{name}/contacts", f"/integrations/{name} is reserved")
                for name in ("chat", "webhooks", "health", "nodes")
            ),
        ],
    )
    def test_a_route_elsewhere_is_named(self, path: str, message: str) -> None:
        """Only the plugin that provides the runtime has the reserved places."""
        handler = get(path, sync_to_thread=False)(list_notes if "{" in path else contacts_elsewhere)
        with pytest.raises(PluginInvalid, match=f"plugin 'p' declares the route .*{message}"):
            load(hooking("p", route_handlers=routes(handler)))

    def test_a_route_that_is_declared_twice_names_both(self) -> None:
        """A path and method has one owner."""
        one = hooking("one", route_handlers=routes(contacts))
        two = hooking("two", route_handlers=routes(contacts))
        with pytest.raises(
            PluginInvalid, match="'one' and 'two' both declare the route GET /integrations/crm/contacts"
        ):
            load(one, two)

    def test_the_runtime_is_asked_when_its_routes_are_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that serves none makes none; the others are asked at load, for their places are checked."""
        asked: list[str] = []
        make = Services.route_handlers

        def of_the_runtime(services: Services) -> Any:
            asked.append("runtime")
            return make(services)

        def others() -> Any:
            asked.append("p")
            return [contacts]

        monkeypatch.setattr(Services, "route_handlers", of_the_runtime)
        actions = load(hooking("p", route_handlers=others))
        assert asked == ["p"]
        handlers = actions.route_handlers
        assert asked == ["p", "runtime"]
        assert getattr(handlers[-1], "fn", None) is contacts.fn  # the installed plugins stand first
        assert len(handlers) > 1
        assert actions.route_handlers is handlers
        assert actions.openapi()["paths"]
        assert asked == ["p", "runtime"]

    def test_hosts_in_threads_have_handlers_of_their_own(self) -> None:
        """Litestar notes a router on a handler: routes are made one host at a time, and a handler is copied for each."""
        together, inside = threading.Barrier(2), threading.Barrier(2)
        met: list[bool] = []

        def others() -> Any:
            try:
                inside.wait(0.2)  # nobody comes
                met.append(True)
            except threading.BrokenBarrierError:
                inside.reset()
            return [contacts, Router("/integrations/p", route_handlers=[contacts])]

        def handlers(_: int) -> Any:
            together.wait()
            return load(hooking("p", route_handlers=others)).route_handlers

        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(handlers, range(2)))
        assert not met
        assert (
            len(
                {id(each) for routes in found for each in routes if not isinstance(each, Router)}
                | {id(contacts)}
            )
            == 3
        )

    @pytest.mark.parametrize("error", [PluginInvalid, SettingsInvalid])
    def test_routes_of_the_runtime_that_cannot_be_used_are_told_then(
        self, error: type[Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error is that of a load."""

        def broken(_: Any) -> Any:
            if error is SettingsInvalid:
                raise SettingsInvalid("RUNTIME_URL must be set")
            return [1]

        monkeypatch.setattr(Services, "route_handlers", broken)
        actions = load()
        for _ in range(2):
            with pytest.raises(error, match=r"RUNTIME_URL|plugin 'flowactions-plugin' must return"):
                _ = actions.route_handlers

    def test_no_other_plugin_can_have_a_route_of_the_runtime(self) -> None:
        """Its paths below ``/integrations`` are the reserved ones. So no start has to compare them with others."""
        app = Litestar([*load().route_handlers], openapi_config=None)
        paths = [tuple(route.path.strip("/").split("/")) for route in app.routes]
        assert ("integrations", "health", "live") in paths
        assert {path[1] for path in paths if path[0] == "integrations"} == RESERVED

    def test_only_http_is_served(self) -> None:
        """`wrap` leaves WebSockets to the host."""

        @websocket("/integrations/crm/live")
        async def live(socket: WebSocket[Any, Any, Any]) -> None:
            raise AssertionError

        with pytest.raises(
            PluginInvalid, match="plugin 'p' declares /integrations/crm/live, which is not an HTTP route"
        ):
            load(hooking("p", route_handlers=routes(live)))


def list_notes(name: FromPath[str]) -> list[str]:
    return [name]


def contacts_elsewhere() -> list[str]:
    return []


class TestNodeTypes:
    async def test_the_runtime_names_the_node_of_a_result(self) -> None:
        """A type need not, and cannot answer for another node."""

        async def reach(walk: Any, node: Any) -> NodeResult:
            return NodeResult(status="sent", node_id=node.config.get("says", ""))

        declared = NodeType(name="t", title="T", description="d", reach=reach)
        loaded = load(hooking("p", node_types=lambda: [declared]))

        async with loaded.lifespan():
            for config in ({}, {"says": "other"}):
                result = await loaded.reach(a_walk(), Node(id="mine", type="t", config=config))
                assert result.node_id == "mine"
