"""Finds plugins, checks what they declare, and names the culprit when something is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import Any, Generic, NamedTuple, TypeVar, cast

import pluggy
from litestar import Controller, Router
from litestar.handlers import BaseRouteHandler

from flowactions_hookspecs import spec
from flowactions_hookspecs.errors import FlowActionsError, HostInvalid, PluginInvalid
from flowactions_hookspecs.host import Host
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.markers import PROJECT
from flowactions_hookspecs.nodes import NodeType
from flowactions_hookspecs.tasks import BackgroundTask

Declared = TypeVar("Declared")


class Owned(NamedTuple, Generic[Declared]):
    """Something that a plugin declared, with the plugin's name."""

    plugin: str
    value: Declared


def check_host(host: object) -> Host:
    """Return ``host`` when it fulfils the contract.

    Raises:
        HostInvalid: it does not; the message lists everything that is missing or wrong.
    """
    name = type(host).__name__
    if not isinstance(host, Host):
        missing = sorted(method for method in Host.__abstractmethods__ if not hasattr(host, method))
        lacks = f"; it also lacks {', '.join(missing)}" if missing else ""
        raise HostInvalid(f"{name} is not a host: subclass flowactions_hookspecs.Host{lacks}")
    wrong = [
        f"{method} must be declared with `async def`"
        for method in sorted(Host.__abstractmethods__)
        if not inspect.iscoroutinefunction(getattr(host, method))
    ]
    settings = getattr(host, "settings", None)
    if not hasattr(settings, "items"):
        wrong.insert(0, "settings must be a mapping of setting names to text, for example os.environ")
    if wrong:
        raise HostInvalid(f"{name} is not a usable host: {'; '.join(wrong)}")
    return host


def plugin_manager(plugins: Iterable[object]) -> pluggy.PluginManager:
    """Register every installed plugin, then ``plugins``, and check their hooks against the contract.

    Raises:
        PluginInvalid: a plugin cannot be imported, misspells a hook, takes arguments that the hook does
            not have, or shares its name with another.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    found = [*_installed(), *((_given_name(plugin), plugin) for plugin in plugins)]
    # pluggy calls the last registered first, so this makes hooks run in the plugins' order.
    for name, plugin in reversed(found):
        try:
            manager.register(plugin, name=name)
        except (ValueError, pluggy.PluginValidationError) as exc:
            raise PluginInvalid(f"plugin {name!r} cannot be registered: {exc}") from exc
        _check_hook_names(name, plugin, manager)
    return manager


def _given_name(plugin: object) -> str:
    return cast("str", getattr(plugin, "__name__", None) or type(plugin).__name__)


def _installed() -> Iterable[tuple[str, object]]:
    """Load the entry points of the group, in the order of their names."""
    owners: dict[str, str] = {}
    entry_points: dict[str, metadata.EntryPoint] = {}
    for distribution in metadata.distributions():
        owner = distribution.metadata["Name"] or "?"
        for entry_point in distribution.entry_points:
            if entry_point.group != PROJECT:
                continue
            first_owner = owners.setdefault(entry_point.name, owner)
            if first_owner != owner:
                raise PluginInvalid(
                    f"two distributions name their plugin {entry_point.name!r}: {first_owner} and {owner}; "
                    "rename one or uninstall it"
                )
            # The same distribution twice on the path: the first wins, as with imports.
            entry_points.setdefault(entry_point.name, entry_point)
    for name, entry_point in sorted(entry_points.items()):
        try:
            plugin = entry_point.load()
        except FlowActionsError:
            raise
        except Exception as exc:
            raise PluginInvalid(
                f"plugin {name!r} of distribution {owners[name]!r} cannot be imported "
                f"({entry_point.value}): {type(exc).__name__}: {exc}"
            ) from exc
        yield name, plugin


def _check_hook_names(name: str, plugin: object, manager: pluggy.PluginManager) -> None:
    known = sorted(hook for hook in vars(spec) if hook.startswith(f"{PROJECT}_"))
    for attribute in dir(plugin):
        if not attribute.startswith(f"{PROJECT}_") or not callable(getattr(plugin, attribute)):
            continue
        if attribute not in known:
            raise PluginInvalid(
                f"plugin {name!r} has the unknown hook {attribute!r}; the hooks are {', '.join(known)}"
            )
        if manager.parse_hookimpl_opts(plugin, attribute) is None:
            raise PluginInvalid(f"plugin {name!r} must mark {attribute!r} with @hookimpl")


def collect(
    manager: pluggy.PluginManager, host: Host, hook: str, kind: str, accepts: Callable[[object], bool]
) -> list[Owned[Any]]:
    """Call one hook of every plugin once, and check what each returned.

    Args:
        manager: the plugins.
        host: handed to the hook.
        hook: the hook's name.
        kind: what its sequence must hold, for the error message.
        accepts: whether an item is of that kind.

    Raises:
        PluginInvalid: a hook raised, is async, or returned something else; the message names the plugin.
    """
    declared: list[Owned[Any]] = []
    for plugin, returned in _call(manager, host, hook):
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            raise _wrong(hook, plugin, f"a sequence of {kind}", returned)
        for item in returned:
            if not accepts(item):
                raise _wrong(hook, plugin, f"a sequence of {kind}", item, "one that holds ")
            declared.append(Owned(plugin, item))
    return declared


def collect_lifespans(
    manager: pluggy.PluginManager, host: Host
) -> list[Owned[AbstractAsyncContextManager[None]]]:
    """Call `flowactions_lifespan` of every plugin once.

    Raises:
        PluginInvalid: a hook raised, is async, or returned no async context manager.
    """
    hook = "flowactions_lifespan"
    lifespans = []
    for plugin, returned in _call(manager, host, hook):
        if not isinstance(returned, AbstractAsyncContextManager):
            raise _wrong(hook, plugin, "an async context manager", returned)
        lifespans.append(Owned(plugin, returned))
    return lifespans


def unique(declared: Sequence[Owned[Any]], what: str) -> None:
    """Check that no two plugins declare the same name.

    Raises:
        PluginInvalid: two do; the message names both.
    """
    owners: dict[str, str] = {}
    for plugin, value in declared:
        first = owners.setdefault(value.name, plugin)
        if first != plugin:
            raise PluginInvalid(
                f"plugins {first!r} and {plugin!r} both declare the {what} {value.name!r}; uninstall one of them"
            )
    seen: set[str] = set()
    for plugin, value in declared:
        if value.name in seen:
            raise PluginInvalid(f"plugin {plugin!r} declares the {what} {value.name!r} twice")
        seen.add(value.name)


def returned(value: object, expected: type[Declared], by: str) -> Declared:
    """Return ``value`` when it is what a plugin's coroutine must give.

    Raises:
        PluginInvalid: it is something else; the message names what returned it.
    """
    if not isinstance(value, expected):
        raise PluginInvalid(
            f"{by} must return {_article(expected.__name__)}, not {_article(type(value).__name__)}"
        )
    return value


def is_node_type(item: object) -> bool:
    """Tell whether an item is a `NodeType` that can be reached."""
    return isinstance(item, NodeType) and callable(item.reach)


def is_logic_action_type(item: object) -> bool:
    """Tell whether an item is a `LogicActionType` that can be dispatched."""
    return isinstance(item, LogicActionType) and callable(item.dispatch)


def is_background_task(item: object) -> bool:
    """Tell whether an item is a `BackgroundTask` that can be run."""
    return isinstance(item, BackgroundTask) and callable(item.run)


def is_route_handler(item: object) -> bool:
    """Tell whether Litestar can mount an item."""
    if isinstance(item, type):
        return issubclass(item, Controller | BaseRouteHandler)
    return isinstance(item, Router | BaseRouteHandler)


def _call(manager: pluggy.PluginManager, host: Host, hook: str) -> Iterable[tuple[str, object]]:
    caller = getattr(manager.hook, hook)
    for implementation in reversed(caller.get_hookimpls()):
        plugin = implementation.plugin_name
        if implementation.hookwrapper or implementation.wrapper:
            raise PluginInvalid(
                f"plugin {plugin!r} wraps {hook}: the hooks only declare, nothing can wrap them"
            )
        arguments = {"host": host}
        try:
            returned = implementation.function(*(arguments[name] for name in implementation.argnames))
        except FlowActionsError:
            raise
        except Exception as exc:
            raise PluginInvalid(f"{hook} of plugin {plugin!r} raised {type(exc).__name__}: {exc}") from exc
        if inspect.iscoroutine(returned):
            returned.close()
            raise PluginInvalid(f"{hook} of plugin {plugin!r} is async; hooks are sync and only declare")
        yield plugin, returned


def _wrong(hook: str, plugin: str, expected: str, returned: object, holds: str = "") -> PluginInvalid:
    got = "None" if returned is None else f"{holds}{_article(type(returned).__name__)}"
    return PluginInvalid(f"{hook} of plugin {plugin!r} must return {expected}, not {got}")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
