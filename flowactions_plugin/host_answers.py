"""What a host's methods return, checked where it enters: a wrong type names the host's class and method."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from flowactions_hookspecs import Agent, ApiPrincipal, DashboardPrincipal, Host, Node, Operator, Walk
from flowactions_hookspecs.checks import id_fault, path_id_fault
from flowactions_plugin.errors import HostFailed
from flowactions_plugin.structs import fields_of

log = logging.getLogger("flowactions")

Answer = TypeVar("Answer")

NODE_SECONDS: Final = 5.0
"""How long `Host.node` may take."""

STORED: Final = (Agent, ApiPrincipal, DashboardPrincipal, Operator)
"""Structs whose texts reach the database: they are ids, but for the names."""

NAMES: Final = frozenset({"name", "user_name"})

_UNSTORABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""What one of the databases cannot hold, or a page cannot show."""


async def ask(host: Host, method: str, *arguments: object) -> Any:
    """Call a method of a host, and return its answer when it is what the contract says.

    The method may be any function that returns an awaitable.

    Raises:
        HostFailed: the answer is something else, or nothing that can be awaited; it was logged.
        Exception: what the method raised.
    """
    answer = getattr(host, method)(*arguments)
    if not inspect.isawaitable(answer):
        raise _invalid(f"{type(host).__name__}.{method} must be async: it returned {_article(answer)}")
    return checked(host, method, await answer)


async def has_agent(host: Host, organization_id: str, agent_id: str) -> bool:
    """Return whether an agent is the organization's, by `Host.agent`. That of another is as if it were not there.

    Raises:
        HostFailed: the answer is no agent; it was logged.
        Exception: what the method raised.
    """
    agent = await ask(host, "agent", agent_id)
    return agent is not None and agent.organization_id == organization_id


async def saved_node(host: Host, walk: Walk, node: Node) -> Node | None:
    """Return a node of the walk's flow as the organization has it now, by `Host.node`; ``None``: it has no such node.

    Raises:
        HostFailed: the method failed, took too long, or gave something else; it was logged.
    """
    with failing(host, "node"):
        async with asyncio.timeout(NODE_SECONDS):
            saved: Node | None = await ask(host, "node", walk.organization_id, walk.flow_id, node.id)
            return saved


@contextmanager
def failing(host: Host, method: str, *expected: type[Exception]) -> Iterator[None]:
    """Log an error that a method of a host raises, and raise `HostFailed` in its place.

    Args:
        host: the host.
        method: the method's name.
        expected: errors that the contract lets it raise; they pass.
    """
    passing: tuple[type[Exception], ...] = (HostFailed, *expected)
    try:
        yield
    except passing:
        raise
    except Exception as exc:
        name = f"{type(host).__name__}.{method}"
        log.exception("%s failed", name, extra={"event": "host.method_failed"})
        raise HostFailed(f"{name} failed; the server's log has the details.") from exc


def checked(host: Host, method: str, answer: Answer) -> Answer:
    """Return a host's answer when it is of the type that the contract's method has.

    Args:
        host: whose answer it is.
        method: which of its methods gave it; of one that returns nothing, it is not looked at.
        answer: what the method returned. Names that no database can hold are cleaned, and cut to 200 characters.

    Raises:
        HostFailed: it is something else. The error was logged; it names class and method, and no value.
    """
    expected = _answer_type(method)
    fault = None if expected is NoneType else next(_faults(answer, expected, "it"), None)
    if fault is not None:
        raise _invalid(f"{type(host).__name__}.{method} must return {_words(expected)}: {fault}")
    cleaned: Answer = _with_clean_names(answer)
    return cleaned


@cache
def _answer_type(method: str) -> Any:
    """Return what the contract says that a method of a host returns."""
    return get_type_hints(getattr(Host, method))["return"]


def _with_clean_names(answer: Any) -> Any:
    """Return an answer whose names of people and agents can be stored and shown, whatever a directory has in them."""
    if isinstance(answer, list | tuple):
        return [_with_clean_names(each) for each in answer]
    if not isinstance(answer, STORED):
        return answer
    names = {name: getattr(answer, name) for name in NAMES.intersection(answer.__struct_fields__)}
    clean = {name: _UNSTORABLE.sub("\ufffd", text[:200]) for name, text in names.items()}
    return answer if clean == names else msgspec.structs.replace(answer, **clean)


def _invalid(message: str) -> HostFailed:
    log.error("%s", message, extra={"event": "host.answer_invalid"})
    return HostFailed(message)


def _faults(
    value: object, expected: Any, at: str, id_fault_of: Callable[[object], str | None] | None = None
) -> Iterator[str]:
    """Find what is wrong with a value, which may be an id: its place in the answer, and what it is."""
    # The contract's unions are of one type and None.
    kind, *others = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    if value is None and NoneType in others:
        return
    origin = get_origin(kind) or kind
    allowed = AbstractSet if origin is frozenset else origin
    if not isinstance(value, allowed) or (origin is Sequence and isinstance(value, str | bytes)):
        yield f"{at} is {_article(value)}, not {_words(kind)}"
    elif origin in {Sequence, frozenset}:
        for index, each in enumerate(value):
            yield from _faults(each, get_args(kind)[0], f"{at}[{index}]", id_fault_of)
    elif isinstance(value, msgspec.Struct):
        for field in fields_of(kind):
            holds_id = kind in STORED and field.name not in NAMES
            of_agents = field.name == "agent_ids" or (kind is Agent and field.name == "id")
            fault_of = (path_id_fault if of_agents else id_fault) if holds_id else None
            yield from _faults(getattr(value, field.name), field.type, f"{at}.{field.name}", fault_of)
    elif id_fault_of is not None and kind is str and (fault := id_fault_of(value)):
        yield f"{at} {fault}"


def _words(expected: Any) -> str:
    """Return a type as it is written, without modules."""
    return expected.__name__ if isinstance(expected, type) else re.sub(r"[\w.]+\.", "", str(expected))


def _article(value: object) -> str:
    """Return the type of a value, with its article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
