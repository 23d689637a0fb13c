"""Work that each host of a process does anew, done once for the thousands of hosts that tests load.

What is shared is a function of what it is made of: it is the same for each host, and no test can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

import pytest
from litestar.utils.signature import ParsedSignature
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from flowactions_plugin.pages.rendering import Renderer


@contextmanager
def signatures() -> Iterator[None]:
    """Have the signature of each function parsed once. Parsing takes half of the time of building a Litestar app.

    A parsed signature is frozen, and depends on the function's code and its module alone.
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

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParsedSignature, "from_fn", from_fn)
        yield


@contextmanager
def templates() -> Iterator[None]:
    """Have the templates of the pages compiled once."""
    make = vars(Renderer)["_environment"].func
    made = cache(lambda: make(Renderer()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Renderer, "_environment", property(lambda _: made()))
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
