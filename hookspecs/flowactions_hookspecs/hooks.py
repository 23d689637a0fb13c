"""Calls the hooks and checks what they declare; an error names the plugin."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import pluggy

from flowactions_hookspecs.errors import FlowActionsError, PluginInvalid, SettingsInvalid
from flowactions_hookspecs.origins import PluginOrigin
from flowactions_hookspecs.runtime import Runtime

Declared = TypeVar("Declared")
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
SecretResolver: TypeAlias = Callable[[PluginOrigin], Awaitable[str | None]]


class Owned(NamedTuple, Generic[Declared]):
    """Something that a plugin declared, with the plugin's name."""

    plugin: str
    value: Declared


class Hooks:
    """Calls hooks of all plugins. If one raises, is async or declares a wrong value, a `PluginInvalid` names its plugin.

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
        """Call one hook of the plugins that ``asks`` names; return the items of their sequences, which it accepts."""
        declared: list[Owned[Any]] = []
        for plugin, returned in self.call(hook, asks):
            if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
                raise _wrong(hook, plugin, f"a sequence of {kind}", returned)
            for item in returned:
                if not accepts(item):
                    raise _wrong(hook, plugin, f"a sequence of {kind}", item, "one that holds ")
                declared.append(Owned(plugin, item))
        return declared

    def named(self, hook: str, kind: type, run: str) -> list[Owned[Any]]:
        """Call one hook of every plugin; return the structs of this kind, each with a callable and a name of its own.

        Args:
            hook: the hook's name, which also says what the structs are.
            kind: their class.
            run: the field with the callable.
        """
        found = self.collect(
            hook, kind.__name__, lambda item: isinstance(item, kind) and callable(getattr(item, run))
        )
        what = hook.removeprefix("flowactions_").removesuffix("s").replace("_", " ")
        owners: dict[str, str] = {}
        for plugin, value in found:
            if (first := owners.get(value.name)) == plugin:
                raise PluginInvalid(f"plugin {plugin!r} declares the {what} {value.name!r} twice")
            if first is not None:
                raise PluginInvalid(
                    f"plugins {first!r} and {plugin!r} both declare the {what} {value.name!r}; uninstall one of them"
                )
            owners[value.name] = plugin
        return found

    def runtime(self) -> Owned[Runtime] | None:
        """Call `flowactions_runtime`; return the one runtime, or ``None`` if settings of a plugin cannot be used."""
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
        """Call `flowactions_signing_secrets`; return plugin and origin name → async callable."""
        hook, expected = "flowactions_signing_secrets", "a mapping of origin names to async callables"
        resolvers: dict[tuple[str, str], SecretResolver] = {}
        for plugin, returned in self.call(hook):
            if not isinstance(returned, Mapping):
                raise _wrong(hook, plugin, expected, returned)
            for name, resolver in returned.items():
                if not isinstance(name, str) or not callable(resolver):
                    raise _wrong(hook, plugin, expected, resolver, "one that holds ")
                resolvers[plugin, name] = resolver
        return resolvers

    def lifespans(self) -> list[Owned[Lifespan]]:
        """Call `flowactions_lifespan`; return the factories."""
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
        """Call one hook of the plugins that ``asks`` names, in their order; yield each name and what the hook returned.

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
        """Raise one `SettingsInvalid` with what all plugins say of their settings."""
        errors = list(self._settings_invalid.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise SettingsInvalid("\n".join(map(str, errors)))


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


def _wrong(hook: str, plugin: str, expected: str, returned: object, holds: str = "") -> PluginInvalid:
    got = "None" if returned is None else f"{holds}{_article(type(returned).__name__)}"
    return PluginInvalid(f"{hook} of plugin {plugin!r} must return {expected}, not {got}")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
