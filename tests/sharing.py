"""Work that each host of a process does anew, done once for the thousands of hosts that tests load.

What is shared is a function of what it is made of: it is the same for each host, and no test can change it.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from types import CodeType, SimpleNamespace
from typing import Any

import httpx
import httpx2
import msgspec
import pytest
import uvicorn.server
from litestar._signature import SignatureModel
from litestar.datastructures import ResponseHeader
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.utils.signature import ParsedSignature
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from flowactions_hookspecs import PROJECT, plugins, schema
from flowactions_plugin.http.openapi import RouteRules
from flowactions_plugin.pages.rendering import Renderer


@contextmanager
def signatures() -> Iterator[None]:
    """Have the signature of each function parsed once, and its model made once: half of the time of building a Litestar app.

    A parsed signature is frozen, and depends on the function's code and its module alone; a model on what names are dependencies, too.
    """
    # Equal code in two modules is one key: copies of a host have types of their own.
    parsed: dict[tuple[str, CodeType], ParsedSignature] = {}
    parse = ParsedSignature.from_fn

    def from_fn(fn: Callable[..., Any], signature_namespace: dict[str, Any]) -> ParsedSignature:
        code = getattr(fn, "__code__", None)
        if code is None:
            return parse(fn, signature_namespace)
        key = (fn.__module__, code)
        if key not in parsed:
            parsed[key] = parse(fn, signature_namespace)
        return parsed[key]

    models: dict[Any, type[SignatureModel]] = {}
    make = SignatureModel.create

    def create(fn: Any, dependency_name_set: set[str], **given: Any) -> type[SignatureModel]:
        # Each app has its own, which are the same.
        decoders = tuple(getattr(each, "func", each).__qualname__ for _, each in given["type_decoders"] or ())
        names = frozenset(dependency_name_set)
        key = (fn.__module__, getattr(fn, "__code__", fn), names, decoders, given["data_dto"])
        if key not in models:
            models[key] = make(fn=fn, dependency_name_set=dependency_name_set, **given)
        return models[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParsedSignature, "from_fn", from_fn)
        patched.setattr(SignatureModel, "create", create)
        yield


@contextmanager
def certificates() -> Iterator[None]:
    """Have the system's certificates read once, and not by each client of a test."""
    with pytest.MonkeyPatch.context() as patched:
        for client in (httpx, httpx2):
            transports = import_module(f"{client.__name__}._transports.default")
            patched.setattr(transports, "create_ssl_context", cache(transports.create_ssl_context))
        yield


@contextmanager
def templates() -> Iterator[None]:
    """Have the templates of the pages compiled once."""
    make = vars(Renderer)["_environment"].func
    made = cache(lambda: make(Renderer()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Renderer, "_environment", property(lambda _: made()))
        yield


@contextmanager
def routes() -> Iterator[None]:
    """Have routers not copied by each app.

    Tests that make several apps of one host have Litestar's own copies.
    """
    kinds = dict.fromkeys((Example, ResponseHeader, ResponseSpec, RouteRules), lambda each, _memo: each)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("litestar.router.deepcopy", lambda router: router)
        for kind, same in kinds.items():
            patched.setitem(copy._deepcopy_dispatch, kind, same)  # type: ignore[attr-defined]
        yield


@contextmanager
def distributions() -> Iterator[None]:
    """Have the installed distributions searched for plugins and read once, as long as no folder of the path changes."""
    found: dict[Any, list[SimpleNamespace]] = {}

    def with_plugins() -> list[SimpleNamespace]:
        key = tuple((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.exists(place))  # noqa: PTH110, PTH116
        if key not in found:
            every = metadata.distributions()
            found[key] = [
                SimpleNamespace(entry_points=each.entry_points, metadata=each.metadata)
                for each in every
                if any(it.group == PROJECT for it in each.entry_points)
            ]
        return found[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plugins, "metadata", SimpleNamespace(distributions=with_plugins))
        yield


@contextmanager
def schemas() -> Iterator[None]:
    """Have the schema of each struct made once; `config_schema` makes a new one of it."""

    @cache
    def components(config: type, template: str) -> Any:
        return msgspec.json.schema_components([config], ref_template=template)

    def made(types: list[type], ref_template: str) -> Any:
        (config,) = types
        return components(config, ref_template)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schema, "msgspec", SimpleNamespace(json=SimpleNamespace(schema_components=made)))
        yield


class _Statements(dict[Any, Any]):
    """Compiled statements of all engines: what an engine keeps for itself, by the kind of its dialect in place of its own."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_by_kind(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_by_kind(key), compiled)


def _by_kind(key: Any) -> Any:
    dialect, *others = key
    return type(dialect), getattr(dialect, "server_version_info", None), *others


@contextmanager
def statements() -> Iterator[None]:
    """Have each statement compiled once, and not by the engine of each test."""
    shared = _Statements()

    def share(connection: Connection) -> None:
        connection.engine._compiled_cache = shared

    event.listen(Engine, "engine_connect", share)
    yield
    event.remove(Engine, "engine_connect", share)


class _Sooner:
    """The module asyncio for uvicorn, whose servers look ten times a second whether they are to stop: here a hundred times."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


@contextmanager
def servers() -> Iterator[None]:
    """Have servers stop at once: a fifth of a second for each of two thousand is no part of what a test shows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.server, "asyncio", _Sooner())
        yield


EACH = (certificates, distributions, routes, schemas, servers, signatures, statements, templates)
"""All of these."""
