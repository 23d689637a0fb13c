"""Calls the hooks and checks what they declare; an error names the plugin."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import pluggy

from flowactions_hookspecs.errors import FlowActionsError, PluginInvalid, SettingsInvalid
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.nodes import NodeType
from flowactions_hookspecs.origins import PluginOrigin
from flowactions_hookspecs.runtime import Runtime
from flowactions_hookspecs.tasks import BackgroundTask

Declared = TypeVar("Declared")
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
SecretResolver: TypeAlias = Callable[[PluginOrigin], Awaitable[str | None]]


class Owned(NamedTuple, Generic[Declared]):
    """Something that a plugin declared, with the plugin's name."""

    plugin: str
    value: Declared


class Hooks:
    """Calls hooks of all plugins; if one declares a wrong value, the error names its plugin.

    Args:
        manager: the plugins.
        arguments: plugin's name → the arguments that its hooks may name.
    """

    def __init__(self, manager: pluggy.PluginManager, arguments: Callable[[str], Mapping[str, object]]) -> None:
        self._manager = manager
        self._arguments = arguments
        self._settings_invalid: dict[str, SettingsInvalid] = {}

    def collect(
        self,
        hook: str,
        kind: str,
        accepts: Callable[[object], bool],
        asks: Callable[[str], bool] = lambda _: True,
    ) -> list[Owned[Any]]:
        """Call one hook of every plugin once, and checks what each returned.

        Args:
            hook: the hook's name.
            kind: the type of the sequence's items, for the error message.
            accepts: whether an item is of that kind.
            asks: plugin's name → whether it is called now.

        Raises:
            PluginInvalid: a hook raised, is async, or returned something else; the message names the plugin.
        """
        declared: list[Owned[Any]] = []
        for plugin, returned in self.call(hook, asks):
            if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
                raise _wrong(hook, plugin, f"a sequence of {kind}", returned)
            for item in returned:
                if not accepts(item):
                    raise _wrong(hook, plugin, f"a sequence of {kind}", item, "one that holds ")
                declared.append(Owned(plugin, item))
        return declared

    def runtime(self) -> Owned[Runtime] | None:
        """Call `flowactions_runtime`.

        Returns:
            The runtime; ``None`` if the plugin that provides it has settings that cannot be used.

        Raises:
            PluginInvalid: no plugin provides one, or two do; the message names them.
        """
        hook = "flowactions_runtime"
        found = []
        for plugin, returned in self.call(hook):
            if not isinstance(returned, Runtime):
                raise _wrong(hook, plugin, "a Runtime", returned)
            found.append(Owned(plugin, returned))
        if len(found) > 1:
            raise PluginInvalid(
                f"plugins {found[0].plugin!r} and {found[1].plugin!r} both provide the runtime; uninstall one of them"
            )
        if not found and not self._settings_invalid:
            loaded = ", ".join(name for name, _ in reversed(self._manager.list_name_plugin())) or "none"
            raise PluginInvalid(
                f"no plugin provides the runtime (loaded: {loaded}): "
                "the entry point of flowactions-plugin was not found, so install it in this environment"
            )
        return found[0] if found else None

    def signing_secrets(self) -> Mapping[tuple[str, str], SecretResolver]:
        """Call `flowactions_signing_secrets`.

        Returns:
            Plugin and origin name → async callable.

        Raises:
            PluginInvalid: a hook raised, is async, or returned something else.
        """
        hook = "flowactions_signing_secrets"
        resolvers: dict[tuple[str, str], SecretResolver] = {}
        for plugin, returned in self.call(hook):
            if not isinstance(returned, Mapping):
                raise _wrong(hook, plugin, "a mapping of origin names to async callables", returned)
            for name, resolver in returned.items():
                if not isinstance(name, str) or not callable(resolver):
                    raise _wrong(
                        hook,
                        plugin,
                        "a mapping of origin names to async callables",
                        resolver,
                        "one that holds ",
                    )
                resolvers[plugin, name] = resolver
        return resolvers

    def lifespans(self) -> list[Owned[Lifespan]]:
        """Call `flowactions_lifespan`.

        Raises:
            PluginInvalid: a hook raised, is async, or returned no factory.
        """
        hook = "flowactions_lifespan"
        factories = []
        for plugin, returned in self.call(hook):
            # One from @asynccontextmanager is callable, too: it is a decorator as well.
            is_open = isinstance(returned, AbstractAsyncContextManager)
            if not callable(returned) or is_open:
                hint = "; return the function itself, which is called at every start" if is_open else ""
                raise PluginInvalid(
                    str(_wrong(hook, plugin, "a factory of an async context manager", returned)) + hint
                )
            factories.append(Owned(plugin, cast("Lifespan", returned)))
        return factories

    def call(self, hook: str, asks: Callable[[str], bool] = lambda _: True) -> Iterable[tuple[str, object]]:
        """Call one hook of every plugin, in the plugins' order, and yields the plugins' names and what they returned.

        If the settings of a plugin cannot be used, its other hooks are not called; `check_settings` reports all
        of them.
        """
        caller = getattr(self._manager.hook, hook)
        for implementation in reversed(caller.get_hookimpls()):
            plugin = implementation.plugin_name
            if implementation.hookwrapper or implementation.wrapper:
                raise PluginInvalid(
                    f"plugin {plugin!r} wraps {hook}: the hooks only declare, nothing can wrap them"
                )
            if plugin in self._settings_invalid or not asks(plugin):
                continue
            arguments = self._arguments(plugin)
            try:
                returned = implementation.function(*(arguments[name] for name in implementation.argnames))
            except SettingsInvalid as exc:
                self._settings_invalid[plugin] = exc
                continue
            except FlowActionsError:
                raise
            except Exception as exc:
                raise PluginInvalid(f"{hook} of plugin {plugin!r} raised {type(exc).__name__}: {exc}") from exc
            if inspect.iscoroutine(returned):
                returned.close()
                raise PluginInvalid(f"{hook} of plugin {plugin!r} is async; hooks are sync and only declare")
            yield plugin, returned

    def check_settings(self) -> None:
        """Raise one error for all plugins.

        Raises:
            SettingsInvalid: a plugin cannot use its settings; the message holds those of all plugins.
        """
        errors = list(self._settings_invalid.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise SettingsInvalid("\n".join(map(str, errors)))


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
    """Return ``value`` if it has the type that a plugin's coroutine must return.

    Raises:
        PluginInvalid: it has another type; the message names the function that returned it.
    """
    if not isinstance(value, expected):
        raise PluginInvalid(
            f"{by} must return {_article(expected.__name__)}, not {_article(type(value).__name__)}"
        )
    return value


def is_node_type(item: object) -> bool:
    """Return whether an item is a `NodeType` with a callable ``reach``."""
    return isinstance(item, NodeType) and callable(item.reach)


def is_logic_action_type(item: object) -> bool:
    """Return whether an item is a `LogicActionType` with a callable ``dispatch``."""
    return isinstance(item, LogicActionType) and callable(item.dispatch)


def is_background_task(item: object) -> bool:
    """Return whether an item is a `BackgroundTask` with a callable ``run``."""
    return isinstance(item, BackgroundTask) and callable(item.run)


def _wrong(hook: str, plugin: str, expected: str, returned: object, holds: str = "") -> PluginInvalid:
    got = "None" if returned is None else f"{holds}{_article(type(returned).__name__)}"
    return PluginInvalid(f"{hook} of plugin {plugin!r} must return {expected}, not {got}")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
