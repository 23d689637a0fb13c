"""Runs the checks of a plugin, and returns the result of each."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from flowactions_conformance.kit.hosts.output import LogLines, Output
from flowactions_conformance.kit.outcomes import CheckFailed, CheckResult, Finding, Status
from flowactions_conformance.kit.plugins.checks import CHECKS
from flowactions_conformance.kit.plugins.tried import AGENT, ORGANIZATION, Tried
from flowactions_conformance.kit.probing.installed import INSTALLED
from flowactions_conformance.kit.registry import Check
from flowactions_conformance.receiver import Receiver
from flowactions_conformance.reference_host import create_app
from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.app import ReferenceApp
from flowactions_conformance.serving import serve
from flowactions_hookspecs import (
    PROJECT,
    FlowActions,
    FlowActionsError,
    NodeType,
)

RECEIVER: Final = "{receiver}"
"""In settings and configs: the URL of the kit's receiver."""


class PluginFault(Exception):
    """Nothing can be checked; the message says what to do."""


@asynccontextmanager
async def _opened(
    name: str, settings: Mapping[str, str], output: Output
) -> AsyncIterator[tuple[Sequence[tuple[ReferenceApp, Path]], Receiver, str, str]]:
    """Open two reference hosts with the plugin, and a receiver."""
    handler = LogLines(output)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowactions-plugin-kit-")))
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        receiver = Receiver("")
        url = f"{await stack.enter_async_context(serve(receiver.app))}/hooks"
        hosts = []
        for each in ("first", "second"):
            path = folder / f"{each}.db"
            given = {
                "FLOWACTIONS_ENVIRONMENT": "development",
                "FLOWACTIONS_DELIVERY": "continuous",
                "FLOWACTIONS_ENCRYPTION_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
                **{key: value.replace(RECEIVER, url) for key, value in settings.items()},
            }
            with _told(name):
                made = create_app(given, path, plugins=_further(name))
            await stack.enter_async_context(made.host.store.open())
            await made.host.store.put(tables.agents, id=AGENT, name="Kit", organization_id=ORGANIZATION)
            await stack.enter_async_context(made.actions.lifespan())
            hosts.append((made, path))
        yield hosts, receiver, url, _named(hosts[0][0].actions, name)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except FlowActionsError as exc:
        raise PluginFault(f"the plugin {name} cannot be loaded: {exc}") from exc


def _further(name: str) -> list[object]:
    """Return the module of a plugin that is not installed."""
    installed = metadata.entry_points(group=PROJECT).names - {INSTALLED}
    if name in installed:
        return []
    try:
        return [importlib.import_module(name)]
    except ImportError as exc:
        raise PluginFault(
            f"no installed plugin has the name {name!r}, and no module of that name can be imported: {exc}. "
            f"Installed are {', '.join(sorted(installed))}"
        ) from exc


def _named(actions: FlowActions, name: str) -> str:
    module = importlib.import_module(name) if name not in actions.plugin_names else None
    return name if module is None else str(getattr(module, "flowactions_name", name))


def _types_of(actions: FlowActions, plugin: str) -> list[str]:
    owned = actions._core._hooks.named("flowactions_node_types", NodeType, "reach")  # noqa: SLF001
    return [each.value.name for each in owned if each.plugin == plugin]


async def check_plugin(
    name: str, *, settings: Mapping[str, str], configs: Mapping[str, Mapping[str, Any]]
) -> list[CheckResult]:
    """Check a plugin's node types.

    Args:
        name: of its entry point, or of its module, if it is not installed.
        settings: of the host; ``{receiver}`` stands for the kit's receiver.
        configs: node type → a valid config, in which it stands for the same.

    Raises:
        PluginFault: the plugin cannot be loaded or has no node types, or a config is for a type that it has not.
    """
    results = []
    output = Output()
    async with _opened(name, settings, output) as (hosts, receiver, url, plugin):
        types = _types_of(hosts[0][0].actions, plugin)
        if not types:
            raise PluginFault(f"the plugin {plugin} has no node types: nothing is to be checked")
        unknown = sorted(set(configs) - set(types))
        if unknown:
            raise PluginFault(
                f"the plugin {plugin} has no node type {', '.join(unknown)}; it has {', '.join(types)}"
            )
        for each in types:
            config = json.loads(json.dumps(configs.get(each, {})).replace(RECEIVER, url))
            tried = Tried(plugin, hosts[0][0].actions.node_types[each], config, hosts, receiver)
            results += [await _judged(check, tried, output) for check in CHECKS]
    return results


async def _judged(check: Check, tried: Tried, output: Output) -> CheckResult:
    logged: list[str] = []
    stop = output.listen(logged.extend)
    finding = None
    try:
        await check.run(tried)
    except CheckFailed as exc:
        finding = exc.finding
    except Exception as exc:  # noqa: BLE001  whatever it is, the plugin has raised it
        finding = Finding(message=f"{type(exc).__name__}: {exc}")
    finally:
        stop()
    check = check._replace(profile=tried.node_type.name)
    if finding is None:
        return check.result(Status.PASS)
    lines = tuple(line for line in logged if line)[-20:]
    return check.result(
        Status.FAIL, finding=msgspec.structs.replace(finding, causes=check.causes, logged=lines)
    )
