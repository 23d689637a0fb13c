"""Finds the installed plugins; if one cannot be loaded, the error names it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final, cast

import pluggy

from flowactions_hookspecs import spec
from flowactions_hookspecs.base import CONTRACT_VERSION
from flowactions_hookspecs.errors import FlowActionsError, PluginInvalid
from flowactions_hookspecs.markers import PROJECT

NAME: Final = f"{PROJECT}_name"
"""The attribute by which a plugin defines the name of its origins."""

KIT: Final = "flowactions_conformance"
"""A frozen app may lack the conformance kit, and still have its entry point in its metadata."""


def plugin_manager(plugins: Iterable[object]) -> pluggy.PluginManager:
    """Register every installed plugin, then ``plugins``, and check their names, versions and hooks against the contract."""
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
        _check_version(name, plugin)
        _check_name(name, plugin)
    return manager


def _given_name(plugin: object) -> str:
    """Return the name of a plugin that no entry point names; if it has origins, it defines their name."""
    name = getattr(plugin, NAME, None) or getattr(plugin, "__name__", None) or type(plugin).__name__
    # An import gives a module its name, and a class has one for its readers: neither was chosen for origins.
    is_imported = getattr(plugin, "__spec__", None) is not None
    is_said = hasattr(plugin, NAME) or (
        hasattr(plugin, "__name__") and not is_imported and not isinstance(plugin, type)
    )
    if hasattr(plugin, f"{PROJECT}_signing_secrets") and not is_said:
        raise PluginInvalid(
            f"plugin {name!r} is given by plugins=, and declares signing secrets for origins of its own: set {NAME} in it to "
            "the name that they carry (PluginOrigin.plugin)"
        )
    return cast("str", name)


def _check_name(name: str, plugin: object) -> None:
    said = getattr(plugin, NAME, name)
    if not isinstance(said, str) or not said:
        raise PluginInvalid(f"{NAME} of plugin {name!r} must be text, not empty")
    if said != name:
        raise PluginInvalid(
            f"plugin {name!r} says {NAME} = {said!r}: its origins would be refused, because an installed plugin has the name "
            "of its entry point. Give both the same name"
        )


def _installed() -> Iterable[tuple[str, object]]:
    """Load the entry points of the group, in the order of their names; skip one that names ``None``, and a kit that is absent."""
    owners: dict[str, str] = {}
    entry_points: dict[str, metadata.EntryPoint] = {}
    for distribution in metadata.distributions():
        for entry_point in distribution.entry_points:
            if entry_point.group != PROJECT:
                continue
            owner = distribution.metadata["Name"] or "?"  # read here only: parsing all of them takes 50 ms
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
            if isinstance(exc, ModuleNotFoundError) and exc.name == KIT == entry_point.module.partition(".")[0]:
                continue
            raise PluginInvalid(
                f"plugin {name!r} of distribution {owners[name]!r} cannot be imported "
                f"({entry_point.value}): {type(exc).__name__}: {exc}"
            ) from exc
        if plugin is not None:
            yield name, plugin


def _check_hook_names(name: str, plugin: object, manager: pluggy.PluginManager) -> None:
    known = sorted(hook for hook in vars(spec) if hook.startswith(f"{PROJECT}_"))
    for attribute in dir(plugin):
        if not attribute.startswith(f"{PROJECT}_") or not callable(getattr(plugin, attribute)):
            continue
        options: dict[str, Any] | None = cast("Any", manager.parse_hookimpl_opts(plugin, attribute))
        if attribute not in known and not (options or {}).get("optionalhook"):
            close = difflib.get_close_matches(attribute, known, n=1)
            raise PluginInvalid(
                f"plugin {name!r} has the unknown hook {attribute!r}"
                + (f", did you mean {close[0]!r}" if close else "")
                + f"; the hooks are {', '.join(known)}"
            )
        if options is None:
            raise PluginInvalid(f"plugin {name!r} must mark {attribute!r} with @hookimpl")


def _check_version(name: str, plugin: object) -> None:
    needed: object = getattr(plugin, "flowactions_contract", CONTRACT_VERSION)
    match needed:
        case (int() as major, int() as minor):
            if major == CONTRACT_VERSION[0] and minor <= CONTRACT_VERSION[1]:
                return
            have = ".".join(map(str, CONTRACT_VERSION))
            raise PluginInvalid(
                f"plugin {name!r} needs version {major}.{minor} of the contract, and version {have} is installed: "
                f"use releases of flowactions-plugin and {name} that agree"
            )
        case _:
            raise PluginInvalid(
                f"flowactions_contract of plugin {name!r} must be a pair of numbers such as (1, 0)"
            )
