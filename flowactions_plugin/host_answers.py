"""What a host's methods return, checked where it enters: a wrong type names the host's class and method."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec

from flowactions_hookspecs import Agent, ApiPrincipal, DashboardPrincipal, Host, Node, Operator, Walk
from flowactions_hookspecs.checks import id_fault
from flowactions_plugin.errors import HostAnswerInvalid, HostFailed
from flowactions_plugin.structs import fields_of

log = logging.getLogger("flowactions")

Answer = TypeVar("Answer")

NODE_SECONDS: Final = 5.0
"""How long `Host.node` may take."""

STORED: Final = (Agent, ApiPrincipal, DashboardPrincipal, Operator)
"""Structs whose texts reach the database: they are ids, but for the names."""

NAMES: Final = frozenset({"name", "user_name"})

MAX_NAME: Final = 200

_UNSTORABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""What one of the databases cannot hold, or a page cannot show."""


async def ask(host: Host, method: str, expected: Any, *arguments: object) -> Any:
    """Call a method of a host, and return its answer when it is what the contract says.

    The method may be any function that returns an awaitable.

    Args:
        host: the host.
        method: the method's name.
        expected: the type of its answer, as for `checked`; `Any`: it is not looked at.
        arguments: of the method.

    Raises:
        HostAnswerInvalid: the answer is something else, or nothing that can be awaited; it was logged.
        Exception: what the method raised.
    """
    answer = getattr(host, method)(*arguments)
    if not inspect.isawaitable(answer):
        raise _invalid(f"{type(host).__name__}.{method} must be async: it returned {_article(answer)}")
    answer = await answer
    return answer if expected is Any else checked(host, method, expected, answer)


async def has_agent(host: Host, organization_id: str, agent_id: str) -> bool:
    """Return whether an agent is the organization's, by `Host.agent`. That of another is as if it were not there.

    Raises:
        HostAnswerInvalid: the answer is no agent; it was logged.
        Exception: what the method raised.
    """
    agent = await ask(host, "agent", Agent | None, agent_id)
    return agent is not None and agent.organization_id == organization_id


async def saved_node(host: Host, walk: Walk, node: Node) -> Node | None:
    """Return a node of the walk's flow as the organization has it now, by `Host.node`; ``None``: it has no such node.

    Raises:
        HostFailed: the method failed, took too long, or gave something else; it was logged.
    """
    with failing(host, "node"):
        async with asyncio.timeout(NODE_SECONDS):
            where = (walk.organization_id, walk.flow_id, node.id)
            return cast("Node | None", await ask(host, "node", Node | None, *where))


@contextmanager
def failing(host: Host, method: str, *expected: type[Exception]) -> Iterator[None]:
    """Log an error that a method of a host raises, and raise `HostFailed` in its place.

    Args:
        host: the host.
        method: the method's name.
        expected: errors that the contract lets it raise; they pass.
    """
    passing: tuple[type[Exception], ...] = (HostAnswerInvalid, *expected)
    try:
        yield
    except passing:
        raise
    except Exception as exc:
        name = f"{type(host).__name__}.{method}"
        log.exception("%s failed", name, extra={"event": "host.method_failed"})
        raise HostFailed(f"{name} failed; the server's log has the details.") from exc


def checked(host: Host, method: str, expected: Any, answer: Answer) -> Answer:
    """Return a host's answer when it is what the contract says.

    Args:
        host: whose answer it is.
        method: which of its methods gave it.
        expected: the method's type: a struct, a sequence or set of one, or a union with ``None``.
        answer: what the method returned. Names that no database can hold are cleaned, and cut to 200 characters.

    Raises:
        HostAnswerInvalid: it is something else. The error was logged; it names class and method, and no value.
    """
    fault = _fault(answer, expected, "")
    if fault is None:
        cleaned: Answer = _with_clean_names(answer)
        return cleaned
    raise _invalid(f"{type(host).__name__}.{method} must return {_words(expected)}: {fault}")


def _with_clean_names(answer: Any) -> Any:
    """Return an answer whose names of people and agents can be stored and shown, whatever a directory has in them."""
    if isinstance(answer, list | tuple):
        return [_with_clean_names(each) for each in answer]
    if not isinstance(answer, STORED):
        return answer
    names = {name: getattr(answer, name) for name in NAMES.intersection(answer.__struct_fields__)}
    clean = {name: _UNSTORABLE.sub("\ufffd", text[:MAX_NAME]) for name, text in names.items()}
    return answer if clean == names else msgspec.structs.replace(answer, **clean)


def _invalid(message: str) -> HostAnswerInvalid:
    log.error("%s", message, extra={"event": "host.answer_invalid"})
    return HostAnswerInvalid(message)


def _fault(value: object, expected: Any, path: str) -> str | None:
    """Tell what is wrong with a value; ``None``: nothing.

    Args:
        value: the value.
        expected: its type, as annotated.
        path: where it stands within the answer; empty for the answer itself.
    """
    where = path or "it"
    options = get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)
    if value is None and NoneType in options:
        return None
    # The contract's unions are of one type and None.
    (kind,) = (option for option in options if option is not NoneType)
    origin = get_origin(kind) or kind
    collection = Sequence if origin is Sequence else AbstractSet if origin is frozenset else None
    if collection is not None:
        if not isinstance(value, collection) or isinstance(value, str | bytes):
            return f"{where} is {_article(value)}, not {_words(kind)}"
        faults = (_fault(each, get_args(kind)[0], f"{path}[{index}]") for index, each in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    if not isinstance(value, origin):
        return f"{where} is {_article(value)}, not {_words(kind)}"
    return _struct_fault(value, kind, path) if isinstance(value, msgspec.Struct) else None


def _struct_fault(struct: msgspec.Struct, kind: type[msgspec.Struct], path: str) -> str | None:
    for field in fields_of(kind):
        value = getattr(struct, field.name)
        at = f"{path}.{field.name}" if path else field.name
        fault = _fault(value, field.type, at) or (
            _text_fault(value, field.name, at) if kind in STORED else None
        )
        if fault is not None:
            return fault
    return None


def _text_fault(value: object, field: str, at: str) -> str | None:
    if isinstance(value, bool):
        return None
    if field in NAMES and isinstance(value, str):
        return None
    ids = value if isinstance(value, AbstractSet) else () if value is None else (value,)
    return next((f"{at} {fault}" for fault in map(id_fault, ids) if fault is not None), None)


def _words(expected: Any) -> str:
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_words(option) for option in get_args(expected))
    if expected is NoneType:
        return "None"
    if get_origin(expected) is not None:
        if get_origin(expected) is Mapping:
            return "a mapping"
        kind = "sequence" if get_origin(expected) is Sequence else "set"
        return f"a {kind} of {get_args(expected)[0].__name__}"
    name = expected.__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _article(value: object) -> str:
    return "None" if value is None else _words(type(value))
