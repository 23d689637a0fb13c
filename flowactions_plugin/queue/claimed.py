"""A claimed row, and what becomes of it. A row whose origin or headers cannot be decoded carries its defect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from flowactions_hookspecs import LogicActionRef, Origin
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.rules import Transition, sendable_headers

_ORIGIN: Final = msgspec.json.Decoder(Origin)
_HEADERS: Final = msgspec.json.Decoder(list[tuple[str, str]])

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_KIND: Final = "kind"
_KINDS: Final = frozenset(each.__struct_config__.tag for each in get_args(Origin))
_SOURCE: Final = "source"
_SOURCES: Final = frozenset(each.__struct_config__.tag for each in get_args(LogicActionRef))

COLUMNS: Final = (
    "id",
    "claimed_by",
    "organization_id",
    "agent_id",
    "event_id",
    "event_type",
    "origin",
    "url",
    "destination",
    "method",
    "headers",
    "body",
    "attempts",
    "earlier_attempts",
    "max_attempts",
    "takeovers",
    "quarantine_rounds",
    "waiting_since",
    "trace",
)
"""What `read_row` needs of a row, in this order."""

SMALL_BYTES: Final = 64 * 1024
"""A claim returns a body of this size at the most; a larger one is read when its delivery begins."""

NEW: Final = {"status": "pending", "attempts": 0, "earlier_attempts": 0, "takeovers": 0, "quarantine_rounds": 0}
"""What all new rows have in these columns."""


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A row that one worker has claimed. Up to ``waiting_since``, its fields are in the order of `COLUMNS`.

    Attributes:
        origin: ``None`` when this process cannot read it: then ``defect`` or ``waits_for`` says why.
        reclaims: how often the row was claimed after the lease of another claim had expired.
        defect: why the row cannot be sent as it is stored, ``None`` when it can.
        waits_for: why the row waits for another release of this plugin, ``None`` when it does not.
        lease_end: when the claim expires, by `lease_clock`.
        size: about how many bytes body and headers take.
        trace: the ``traceparent`` of what enqueued the row; ``None``: it was not traced.
        lane: what it waits in.
        due_at: since when it was due, Unix milliseconds.
        is_probe: whether it uses up no attempt when it fails; ``max_attempts`` is already one more than in the row.
    """

    id: str
    token: str
    organization_id: str
    agent_id: str | None
    event_id: str
    event_type: str
    origin: Origin | None
    url: str
    destination: str
    method: str
    headers: list[tuple[str, str]]
    body: bytes | None
    attempts: int
    earlier_attempts: int
    max_attempts: int
    reclaims: int
    quarantine_rounds: int = 0
    waiting_since: int | None = None
    defect: str | None = None
    waits_for: str | None = None
    lease_end: float = math.inf
    size: int = 0
    trace: str | None = None
    lane: int = 0
    due_at: int = 0
    is_probe: bool = False

    @property
    def lacks_body(self) -> bool:
        """Whether its claim has left out a large body."""
        return self.body is None and self.defect is None and self.size > SMALL_BYTES


class Completion(msgspec.Struct, frozen=True):
    """The end of a claim, to be written: with an attempt, or without one.

    Attributes:
        attempted: whether an attempt was made; if not, ``outcome`` holds only the reason.
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


class ClaimEnd(NamedTuple):
    """What has ended a claim before its outcome was written.

    Attributes:
        kind: ``reclaimed``: a later claim has the row, or has ended it; ``purged``, ``deleted``: there is no such row;
            ``changed``: the row was changed without a claim.
        detail: for ``reclaimed``, whose claim it is; for ``changed``, the status of the row.
        own_token: of a later claim of the same worker's, which holds the row; ``None``: there is none.
    """

    kind: Literal["reclaimed", "purged", "deleted", "changed"]
    detail: str = ""
    own_token: str | None = None


def read_row(row: Sequence[Any], lease_end: float = math.inf) -> ClaimedDelivery:
    """Return a claimed row as a delivery, with its defect if it has one.

    Args:
        row: `COLUMNS`, the lane, the due time, and the bytes that body and headers take.
        lease_end: when the claim expires, by `lease_clock`.
    """
    *values, lane, due_at, size = row
    row_id, token, organization, agent, event_id, event_type, origin_text, *rest = values
    url, destination, method, headers_text, body, *counts, waiting_since, trace = rest
    attempts, earlier_attempts, max_attempts, reclaims, rounds = counts
    origin, waits_for, defect = read_origin(origin_text)
    headers, wrong = read_headers(headers_text)
    defect = defect or wrong
    # Each row of each claim comes through here: by position, which takes a quarter of the time that keywords take.
    return ClaimedDelivery(
        row_id,
        token,
        organization,
        agent or None,
        event_id,
        event_type,
        origin,
        url,
        destination,
        method,
        headers,
        body,
        attempts,
        earlier_attempts,
        max_attempts,
        reclaims,
        rounds,
        waiting_since,
        None if defect is None else f"the stored row cannot be read: {defect}",
        waits_for,
        lease_end,
        size,
        trace,
        lane,
        due_at,
    )


def read_origin(text: str) -> tuple[Origin | None, str | None, str | None]:
    """Decode a stored origin.

    Returns:
        The origin; why the row waits, for an origin of a kind that this process does not know, which another release or
        another plugin has written; or what is wrong with it.
    """
    try:
        return _ORIGIN.decode(text), None, None
    except _UNREADABLE as exc:
        unknown = _unknown_kind(text)
        if unknown is None:
            return None, None, printable(f"origin: {exc}", message=True)
        return None, f"its origin is of {unknown}, which this process cannot read", None


def read_headers(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """Decode stored headers.

    Returns:
        The headers, and what is wrong when they cannot be sent.
    """
    try:
        headers = _HEADERS.decode(text)
    except _UNREADABLE as exc:
        return [], printable(f"headers: {exc}", message=True)
    if not sendable_headers(headers, text):
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
            return f"{field} {printable(found[field], message=True)[:40]!r}"
        found = found.get("ref")
    return None
