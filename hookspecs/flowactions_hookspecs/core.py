"""What a host's `FlowActions` holds: the plugins that were loaded, and the lifespan."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from flowactions_hookspecs import hooks as declared
from flowactions_hookspecs.errors import AlreadyStarted, HostInvalid, NotStarted, StartFailed, WrongLoop
from flowactions_hookspecs.host_check import check_host
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.nodes import NodeType
from flowactions_hookspecs.plugins import plugin_manager
from flowactions_hookspecs.routes import (
    check_prefix,
    check_routes,
    is_route_handler,
    own_handler,
    prefixed,
)
from flowactions_hookspecs.runtime import Runtime
from flowactions_hookspecs.tasks import BackgroundTask, Supervisor

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler
else:
    ControllerRouterHandler = Any

T = TypeVar("T")

_MAKING_ROUTES = threading.RLock()

LOADED = "_flowactions"
"""The attribute by which a host object keeps that it was loaded."""


class Core:
    """Loads the plugins for one host; runs their lifespans and tasks. `FlowActions` says what its members do and raise."""

    runtime: Runtime
    node_types: Mapping[str, NodeType]
    logic_action_types: Mapping[str, LogicActionType]
    signing_secrets: Mapping[tuple[str, str], declared.SecretResolver]
    plugin_names: Sequence[str]

    def __init__(self, host: object, prefix: str) -> None:
        check_prefix(prefix)
        self.host = check_host(host)
        if LOADED in vars(self.host):
            raise HostInvalid(
                f"this {type(self.host).__name__} was loaded before: one host object has one FlowActions"
            )
        self.prefix = prefix
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_open = False
        self._calls: set[Future[Any]] = set()
        self.states: dict[object, object] = {}
        self._route_handlers: Sequence[ControllerRouterHandler] | None = None

    def load(self, plugins: Iterable[object], arguments: Callable[[str], Mapping[str, object]]) -> None:
        """Register the plugins and call their hooks; ``arguments`` gives a plugin's hooks what they may name."""
        manager = plugin_manager(plugins)
        self.plugin_names = tuple(name for name, _ in reversed(manager.list_name_plugin()))
        hooks = declared.Hooks(manager, arguments)
        runtime = hooks.runtime()
        node_types = hooks.named("flowactions_node_types", NodeType, "reach")
        actions = hooks.named("flowactions_logic_action_types", LogicActionType, "dispatch")
        tasks = hooks.named("flowactions_background_tasks", BackgroundTask, "run")
        # The runtime's paths are reserved, so no other plugin has them: its routes are made when a process serves them.
        routes = _routes(hooks, lambda plugin: runtime is None or plugin != runtime.plugin)
        secrets = hooks.signing_secrets()
        lifespans = hooks.lifespans()
        hooks.check_settings()
        assert runtime is not None  # noqa: S101  check_settings raised otherwise
        if routes:
            check_routes(routes)
        self.runtime = runtime.value
        prefixed_types = {}
        for _, node_type in node_types:
            pickers = {field: f"{self.prefix}{path}" for field, path in node_type.pickers.items()}
            prefixed_types[node_type.name] = msgspec.structs.replace(node_type, pickers=pickers)
        self.node_types = MappingProxyType(prefixed_types)
        self.logic_action_types = {owned.value.name: owned.value for owned in actions}
        self._hooks = hooks
        self._runtime_plugin = runtime.plugin
        self._other_routes = routes
        self.signing_secrets = secrets
        self._tasks = tuple(owned.value for owned in tasks)
        # The runtime is opened first and closed last: its tables exist when the other plugins open.
        self._lifespans = sorted(lifespans, key=lambda owned: owned.plugin != runtime.plugin)
        vars(self.host)[LOADED] = self

    @property
    def route_handlers(self) -> Sequence[ControllerRouterHandler]:
        """Litestar routes of all plugins, under the prefix; the runtime's routes are made at the first call."""
        if self._route_handlers is None:
            routes = [*self._other_routes, *_routes(self._hooks, lambda plugin: plugin == self._runtime_plugin)]
            self._hooks.check_settings()
            routes.sort(key=lambda owned: self.plugin_names.index(owned.plugin))
            self._route_handlers = prefixed([owned.value for owned in routes], self.prefix)
        return self._route_handlers

    @asynccontextmanager
    async def lifespan(self, *, tasks: bool) -> AsyncIterator[None]:
        """Open the plugins' lifespans and run their background tasks until the context is left."""
        if self.is_open:
            raise AlreadyStarted
        self.is_open = True
        try:
            async with AsyncExitStack() as stack:
                for plugin, factory in self._lifespans:
                    try:
                        await stack.enter_async_context(factory())
                    except Exception as exc:
                        message = f"plugin {plugin!r} could not be started: {type(exc).__name__}: {exc}"
                        raise StartFailed(message) from exc
                self._loop = asyncio.get_running_loop()
                stack.callback(self._close)
                await stack.enter_async_context(Supervisor(self._tasks if tasks else ()))
                yield
        finally:
            self._loop = None
            self.is_open = False

    def _close(self) -> None:
        self._loop = None
        for call in list(self._calls):
            call.cancel()

    def check_usable(self) -> None:
        """Check that the lifespan is open, and in this event loop."""
        if self._loop is None:
            raise NotStarted
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run a coroutine in the lifespan's event loop, and wait for it in this thread."""
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"call needs a coroutine, not {type(coroutine).__name__}")
        loop = self._loop
        if loop is None or loop.is_closed():
            coroutine.close()
            raise NotStarted
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            coroutine.close()
            raise WrongLoop("This thread runs the lifespan's event loop: await the coroutine instead.")
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop was closed in between
            coroutine.close()
            raise NotStarted from None
        self._calls.add(future)
        if self._loop is None:  # closed in between
            future.cancel()
        try:
            return future.result(timeout)
        except CancelledError:
            raise NotStarted("The lifespan was closed before the call had ended.") from None
        except TimeoutError:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)


def _routes(hooks: declared.Hooks, asks: Callable[[str], bool]) -> list[declared.Owned[Any]]:
    """Return the routes of the plugins, made for one host at a time; copy each handler outside a router for the host.

    Litestar writes the router into a handler before it copies the handler. If a plugin defines handlers at the
    top of a module, hosts in two threads would otherwise share them.
    """
    with _MAKING_ROUTES:
        made = hooks.collect(
            "flowactions_route_handlers", "Litestar routers or handlers", is_route_handler, asks
        )
    return [each._replace(value=own_handler(each.value)) for each in made]
