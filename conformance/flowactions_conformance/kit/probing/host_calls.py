"""What plugins ask of the host, seen from inside it: calls that raise or find no node, and calls that keep the event loop to themselves."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final

from msgspec import to_builtins

from flowactions_hookspecs import FlowActions, Host, provides

REQUIRED: Final = ("dashboard_principal", "node")
OPTIONAL: Final = (
    "agent",
    "agents_using",
    "api_principal",
    "auth_event",
    "delivery_alert",
    "delivery_finished",
    "logic_action",
    "nodes_recovered",
    "operator",
    "signing_secret",
)
SLOW_SECONDS: Final = 0.1
"""From when on a method that does not give the event loop back is reported."""

Report = Callable[..., Awaitable[None]]


class HostCalls:
    """Puts itself between the plugins and a host.

    Args:
        report: tells the kit.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._calls: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()

    def watch(self, host: Host) -> None:
        """Watch the methods that the host has."""
        for name in (*REQUIRED, *(name for name in OPTIONAL if provides(host, name))):
            with suppress(AttributeError, TypeError):  # a host whose attributes cannot be set is not watched
                setattr(host, name, self._watched(host, name))

    def watch_records(self, actions: FlowActions) -> None:
        """Watch nodes that the host records whose config says ``told``.

        The facade of a plugin is not the host's: the runtime is the same.
        """
        runtime: Any = actions._core.runtime  # noqa: SLF001  nothing public leads from a plugin to the host's calls
        runtime.reach = self._recording(runtime.reach)

    def _watched(self, host: Host, name: str) -> Callable[..., Awaitable[Any]]:
        own = vars(host).get(name)

        @functools.wraps(getattr(host, name))
        async def call(*arguments: Any) -> Any:
            steps = _Steps(own or getattr(type(host), name).__get__(host), arguments)
            raised, answer = "", None
            try:
                answer = await steps
            except Exception as exc:
                raised = type(exc).__name__
                raise
            else:
                return answer
            finally:
                self._calls[name] += 1
                is_slow = steps.longest >= SLOW_SECONDS
                self._slow[name] += is_slow
                lost = name == "node" and answer is None and not raised
                if is_slow or raised or lost:
                    await self._report(
                        "host_call",
                        method=name,
                        node=arguments[-1] if name == "node" else getattr(arguments[0], "node_id", None),
                        flow=arguments[1] if name == "node" else None,
                        raised=raised,
                        lost=lost,
                        seconds=steps.longest,
                        calls=self._calls[name],
                        slow=self._slow[name],
                    )

        return call

    def _recording(self, reach: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(reach)
        async def recorded(walk: Any, node: Any, *more: Any, **named: Any) -> Any:
            result = await reach(walk, node, *more, **named)
            if result.status == "recorded" and node.config.get("told"):
                await self._report("recorded", walk=to_builtins(walk), node=to_builtins(node))
            return result

        return recorded


class _Steps:
    """Awaits what a method returns, and measures the longest time between two of its awaits.

    Args:
        method: of the host.
        arguments: of it.

    Attributes:
        longest: in seconds.
    """

    def __init__(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.longest = 0.0
        self._method, self._arguments = method, arguments

    def __await__(self) -> Generator[Any, Any, Any]:
        began = time.perf_counter()
        try:
            returned = self._method(*self._arguments)
            if not isinstance(returned, Awaitable):
                return returned
            iterator: Any = returned.__await__()
            given, failure = None, None
            while True:
                try:
                    waits_for = iterator.send(given) if failure is None else iterator.throw(failure)
                except StopIteration as stop:
                    return stop.value
                self._took(began)
                given, failure = None, None
                try:
                    given = yield waits_for
                except BaseException as exc:  # noqa: BLE001  it is thrown into the method
                    failure = exc
                began = time.perf_counter()
        finally:
            self._took(began)

    def _took(self, began: float) -> None:
        self.longest = max(self.longest, time.perf_counter() - began)
