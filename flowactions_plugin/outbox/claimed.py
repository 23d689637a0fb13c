"""A row in the hands of a worker, and what is wrong with one that cannot be sent as it is stored."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, get_args

import msgspec

from flowactions_hookspecs import LogicActionRef, Origin
from flowactions_plugin.outbox.delivery import (
    MAX_COUNT,
    Outcome,
    Transition,
    loggable,
    method_name,
    sendable_headers,
)
from flowactions_plugin.storage.text import as_text, is_text

_ORIGIN: Final = msgspec.json.Decoder(Origin)
_HEADERS: Final = msgspec.json.Decoder(list[tuple[str, str]])

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "GET", "HEAD", "DELETE"})

_KIND: Final = "kind"
_KINDS: Final = frozenset(each.__struct_config__.tag for each in get_args(Origin))
_SOURCE: Final = "source"
_SOURCES: Final = frozenset(each.__struct_config__.tag for each in get_args(LogicActionRef))

_TEXTS: Final = (
    "organization_id",
    "agent_id",
    "event_id",
    "event_type",
    "origin",
    "url",
    "destination",
    "method",
    "headers",
)
_COUNTS: Final = ("attempts", "earlier_attempts", "max_attempts", "takeovers", "quarantine_rounds")

COLUMNS: Final = ("id", "claim_token", *_TEXTS, "body", *_COUNTS, "waiting_since")
"""What `read_row` needs of a row."""


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A row in the hands of one worker.

    Attributes:
        origin: ``None`` when this process cannot read it: then ``defect`` or ``waits_for`` says why.
        defect: why the row cannot be sent as it is stored, ``None`` when it can.
        waits_for: why the row waits for another release of this plugin, ``None`` when it does not.
        lease_end: when the claim is over, by `lease_clock`.
        size: about how many bytes body and headers take.
    """

    id: str
    token: str
    organization_id: str
    agent_id: str | None
    origin: Origin | None
    event_id: str
    event_type: str
    url: str
    destination: str
    method: str
    headers: list[tuple[str, str]]
    body: bytes | None
    attempts: int
    earlier_attempts: int
    max_attempts: int
    takeovers: int
    quarantine_rounds: int = 0
    waiting_since: int | None = None
    defect: str | None = None
    waits_for: str | None = None
    lease_end: float = math.inf
    size: int = 0


class Completion(NamedTuple):
    """What became of a claimed delivery, to be written.

    Attributes:
        attempted: whether an attempt was made; if not, the delivery is ended without one, and ``outcome`` has only
            the reason.
    """

    delivery: ClaimedDelivery
    outcome: Outcome
    change: Transition
    attempted: bool = True


class Return(NamedTuple):
    """A claimed delivery that is given back without an attempt.

    Attributes:
        delay_seconds: when it is due again.
        waits_for: what it waits for on this side. It is then due again at a growing interval, and dead in the end.
        answered: whether the host has answered all that it was asked, so that a wait is over.
    """

    delivery: ClaimedDelivery
    delay_seconds: float = 0.0
    waits_for: str | None = None
    answered: bool = False


def read_row(row: Any, lease_end: float = math.inf) -> ClaimedDelivery:
    """Read a row that was claimed, whatever stands in it.

    Args:
        row: begins with `COLUMNS`, as `read_all` gives them: on SQLite there may be any type in any column.
        lease_end: when the claim is over, by `lease_clock`.
    """
    values = dict(zip(COLUMNS, row, strict=False))  # what comes behind them is not for here
    origin, headers, waits_for = None, list[tuple[str, str]](), None
    defect = _defect(values)
    if defect is None:
        origin, waits_for, defect = read_origin(values["origin"])
    size = 0
    if defect is None:
        size = len(values["body"] or b"") + len(values["headers"])
        headers, defect = read_headers(values["headers"])
    if defect is not None:
        origin, waits_for, defect = None, None, f"the stored row cannot be read: {defect}"
        _make_presentable(values)
    values.update(
        agent_id=values["agent_id"] or None, origin=origin, headers=headers, token=values.pop("claim_token")
    )
    return ClaimedDelivery(**values, defect=defect, waits_for=waits_for, lease_end=lease_end, size=size)


def read_origin(text: str) -> tuple[Origin | None, str | None, str | None]:
    """Read a stored origin.

    Returns:
        The origin; why the row waits, for an origin of a kind that this process does not know, which another release or
        another plugin has written; or what is wrong with it.
    """
    try:
        return _ORIGIN.decode(text), None, None
    except _UNREADABLE as exc:
        unknown = _unknown_kind(text)
        if unknown is None:
            return None, None, loggable(f"origin: {exc}")
        return None, f"its origin is of {unknown}, which this process cannot read", None


def read_headers(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """Read stored headers; with them, what is wrong when they cannot be read."""
    try:
        headers = _HEADERS.decode(text)
    except _UNREADABLE as exc:
        return [], loggable(f"headers: {exc}")
    if not sendable_headers(headers):
        return [], "headers: a name or a value holds what no header may hold"
    return headers, None


def _unknown_kind(text: str) -> str | None:
    try:
        found = msgspec.json.decode(text)
    except _UNREADABLE:
        return None
    for field, known in ((_KIND, _KINDS), (_SOURCE, _SOURCES)):
        if not isinstance(found, dict) or not isinstance(found.get(field), str):
            return None
        if found[field] not in known:
            return f"{field} {loggable(found[field])[:40]!r}"
        found = found.get("ref")
    return None


def _defect(values: dict[str, Any]) -> str | None:
    for name in ("id", *_TEXTS):
        value = values[name]
        if not (type(value) is str and value.isascii()) and not is_text(value):
            return f"{name} is not text in UTF-8"
    for name in _COUNTS:
        value = values[name]
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            return f"{name} is {loggable(repr(value))[:40]}"
    if values["method"] not in _METHODS and method_name(values["method"]) != values["method"]:
        return f"method is {loggable(repr(values['method']))[:40]}"
    if not isinstance(values["body"], bytes | None):
        return "body is not bytes"
    if not isinstance(values["waiting_since"], int | None):
        return "waiting_since is not a time"
    return None


def _make_presentable(values: dict[str, Any]) -> None:
    """Replace what does not have its column's type; the id stays as it is, for it names the row."""
    for name in _TEXTS:
        values[name] = as_text(values[name])
    for name in _COUNTS:
        if type(values[name]) is not int:
            values[name] = 0
    values["body"] = None
    values["waiting_since"] = None
