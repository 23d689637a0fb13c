"""No module keeps what changes: one process may hold several hosts, each in a thread and an event loop of its own.

A part of ``python -m tests.docs.lint``.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
from litestar.handlers import BaseRouteHandler

from flowactions_hookspecs import FlowActions
from tests.support import SmallHost, development

PACKAGES = ("flowactions_plugin", "flowactions_hookspecs", "flowactions_conformance")

CONSTANT = frozenset(
    [
        "builtins.NoneType",
        "builtins.bool",
        "builtins.int",
        "builtins.float",
        "builtins.str",
        "builtins.bytes",
        "builtins.function",
        "builtins.builtin_function_or_method",
        "builtins.type",
        "builtins.property",
        "builtins.classmethod",
        "builtins.staticmethod",
        "builtins.member_descriptor",
        "builtins.wrapper_descriptor",
        "flowactions_plugin.loggers.PluginLogger",
        "_collections._tuplegetter",
        "collections._tuplegetter",  # since Python 3.12
        "datetime.datetime",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",  # in 3.13
        "re.Pattern",
        "_struct.Struct",
        "ipaddress.IPv4Network",
        "ipaddress.IPv6Network",
        "_abc._abc_data",
    ]
)
"""Types whose values do not change, or which Python keeps by itself."""

DEFINITIONS: Mapping[str, str] = {
    "types.": "a type's alias",
    "typing.": "a type's alias",
    "collections.abc.": "a type's alias",
    "logging.Logger": "loggers belong to the process; a record has its thread",
    "flowactions_plugin.loggers.PluginLogger": "the same",
    "sqlalchemy.": "tables and expressions; what SQLAlchemy notes on them depends on them alone",
    "pluggy._decorators.": "marks functions",
    "click.": "commands of a process that runs one of them",
    "flowactions_plugin.cli.": "commands of a process that runs one of them",
    "functools.cached_property": "kept on the object, not on the class",
    "litestar.handlers.": "hosts have copies: see the test below",
    "litestar.di.Provide": "apps have copies: see the test below",
}
"""What begins the name of a type → why its values are no state."""

REASONS: Mapping[str, str] = {
    "flowactions_hookspecs.core:_MAKING_ROUTES": "a lock",
    "flowactions_hookspecs.openapi:OPENAPI_COMPONENTS": "a description; Litestar copies it for each document",
    "flowactions_plugin.queue.enqueue:_test": "a context variable: each task has its own value",
    "flowactions_plugin.egress.destination:_host_and_port": "caches a pure function of hosts and ports",
    "flowactions_plugin.egress.request_head:_is_free": "caches a pure function of header names",
    "flowactions_plugin.egress.request_head:_is_token": "caches a pure function of header names",
    "flowactions_plugin.queue.claimed:_HEADERS": "a decoder keeps nothing between calls",
    "flowactions_plugin.queue.notifier:_NAMED": "a decoder keeps nothing between calls",
    "flowactions_plugin.queue.claimed:_ORIGIN": "a decoder keeps nothing between calls",
    "flowactions_plugin.queue.rules:_is_name": "caches a pure function of header names",
    "flowactions_plugin.storage.transactions:_used": "a context variable: each call has its own value",
    "flowactions_plugin.storage.waiting:_limited": "a context variable: each task has its own value",
    "flowactions_plugin.structs:fields_of": "caches a pure function of types",
    "flowactions_plugin.storage.migrations:revisions": "caches the names of this release's files",
    "flowactions_plugin.storage.migrations:_ALEMBIC": "a lock",
    "flowactions_plugin.host_answers:_answer_type": "caches a pure function of the contract",
    "flowactions_plugin.telemetry.meters:_PROVIDERS": "under a lock, by OpenTelemetry's provider, which several hosts may share",
    "flowactions_plugin.telemetry.spans:_NOTHING": "a context manager and a span that keep nothing",
    "flowactions_plugin.telemetry.spans:_PROPAGATOR": "it keeps nothing",
    "flowactions_conformance.kit.hosts.hosting:types_of": "caches a pure function of types",
    "flowactions_conformance.kit.tested:distribution_of": "caches what is installed",
    "flowactions_conformance.kit.probing.plugin:NO_TLS": "is not changed",
    "flowactions_conformance.kit.probing.plugin:_unique": "caches an id for each process: hosts of one process have the same",
    "flowactions_conformance.serving:NO_TIMEOUT": "is not changed",
    "flowactions_conformance.serving:NO_TLS": "is not changed",
}
"""What may change, or is not known not to → why hosts in several threads get nothing of each other by it."""

CHANGES = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    ]
)


class Found(NamedTuple):
    """An object that a module or a class of ours keeps."""

    where: str
    value: Any


@functools.cache
def modules() -> Mapping[str, tuple[ModuleType, ast.Module]]:
    """Give all modules of the packages, with what was parsed of them."""
    found: dict[str, tuple[ModuleType, ast.Module]] = {}
    for package in map(importlib.import_module, PACKAGES):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if each.name.endswith("__main__") or ".migrations.env" in each.name or ".versions" in each.name:
                continue  # run as scripts, or by Alembic, under its lock
            module = importlib.import_module(each.name)
            found[each.name] = module, ast.parse(Path(inspect.getfile(module)).read_text("utf-8"))
    return found


def at_top(tree: ast.Module, *, imports: bool) -> set[str]:
    """Give the names that are bound at the top of a module."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names} if imports else set()
        elif isinstance(node, ast.Name):
            names |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        else:
            waiting += ast.iter_child_nodes(node)
    return names


def changed_in(tree: ast.Module) -> set[str]:
    """Give the names that functions bind in their module, or that code changes in place, without local ones."""
    changed, bound, local = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            bound.update(node.names)
        elif isinstance(node, ast.arg):
            local.add(node.arg)
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            changed.add(ast.unparse(node.value))
        elif isinstance(node, ast.AugAssign):
            changed.add(ast.unparse(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (each for statement in node.body for each in ast.walk(statement))
            local |= {
                each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
    return bound | (changed - local)


def kept() -> Iterator[Found]:
    """Give what modules and classes keep."""
    for name, (module, tree) in modules().items():
        for own in sorted(at_top(tree, imports=False) & vars(module).keys()):
            value = vars(module)[own]
            if isinstance(value, type):
                python = (value.__module__ != name) or issubclass(value, enum.Enum)
                for attribute, held in vars(value).items():
                    if not python and not attribute.startswith("__") and attribute != "_field_defaults":
                        yield Found(f"{name}:{own}.{attribute}", held)
            else:
                yield Found(f"{name}:{own}", value)


def is_constant(value: Any) -> bool:
    """Tell whether a value cannot change, or is a list or mapping of such: those are not changed by our code."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in CONSTANT or isinstance(value, type | enum.Enum) or name.startswith(tuple(DEFINITIONS)):
        return True
    if isinstance(value, tuple | frozenset | list | set):
        return all(map(is_constant, value))
    if isinstance(value, Mapping):
        return kind.__name__ in {"dict", "mappingproxy"} and all(map(is_constant, value.values()))
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen and all(
            is_constant(getattr(value, each)) for each in value.__struct_fields__
        )
    if is_dataclass(value):
        frozen = kind.__dataclass_params__.frozen
        return frozen and all(is_constant(getattr(value, each.name)) for each in fields(value))
    return isinstance(value, functools.partial) and is_constant(
        (value.func, value.args, *value.keywords.values())
    )


CHANGED_IN_PLACE: Mapping[str, str] = {
    "flowactions_conformance.kit.in_pytest:conformance_suite": "marked when it is imported",
    "flowactions_conformance.kit.plugins.checks:CHECKS": "filled while the module is imported",
    "flowactions_conformance.kit.registry:_checks": "filled while the modules of the checks are imported",
}
"""Of the kit alone: what its code changes at the top of a module → why."""


def faults() -> Iterator[str]:
    """Say what a module or a class keeps that may change, and what code changes in place or binds anew."""
    of_modules = {found.where for found in kept() if not is_constant(found.value)}
    yield from (f"{each} may change: say why threads may share it" for each in of_modules - REASONS.keys())
    yield from (f"{each} is constant, or gone, and has a reason" for each in REASONS.keys() - of_modules)
    changes = set()
    for name, (module, tree) in modules().items():
        changed = changed_in(tree) & at_top(tree, imports=True)
        changes |= {f"{name}:{each}" for each in changed if not isinstance(vars(module).get(each), ModuleType)}
    yield from (f"{each} is changed in place, or is not any more" for each in changes ^ CHANGED_IN_PLACE.keys())
    with TemporaryDirectory() as folder:
        FlowActions.load(SmallHost(development(f"sqlite:///{folder}/f.db"))).openapi()
        handlers = [each for each in kept() if isinstance(each.value, BaseRouteHandler)]
        provided = [each for each in kept() if type(each.value).__name__ == "Provide"]
    if len(handlers) < 40:
        yield "the handlers of routes are not found"
    # Litestar notes a router on a handler, and a signature on a dependency: on the host's copies of them.
    yield from (f"a host changes {each.where}" for each in handlers if each.value.owner is not None)
    yield from (f"a host changes {each.where}" for each in provided if hasattr(each.value, "signature_model"))
