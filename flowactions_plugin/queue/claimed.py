"""A claimed row, and what becomes of it. A row whose origin or headers cannot be decoded carries its defect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from flowactions_hookspecs import LogicActionRef, Origin
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.rules import TOO_LATE, Status, Transition, failure_reason, sendable_headers

_ORIGIN: Final = msgspec.json.Decoder(Origin)
_HEADERS: Final = msgspec.json.Decoder(list[tuple[str, str]])

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_KNOWN: Final = tuple(
    (field, frozenset(each.__struct_config__.tag for each in get_args(union)))
    for field, union in (("kind", Origin), ("source", LogicActionRef))
)
"""The fields that say what an origin is, the inner one in ``ref``, with the values that this process can read."""

SMALL_BYTES: Final = 64 * 1024
"""A claim returns a body of this size at the most; a larger one is read when its delivery begins."""

NEW: Final = {"status": "pending", "attempts": 0, "earlier_attempts": 0, "takeovers": 0, "quarantine_rounds": 0}
"""What all new rows have in these columns."""


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A row that one worker has claimed. Up to ``size``, its fields are in the order in which a claim returns them.

    Attributes:
        origin: ``None`` when this process cannot read it: then ``defect`` or ``waits_for`` says why.
        reclaims: how often the row was claimed after the lease of another claim had expired.
        waited_ms: for how long the row has waited for something on this side; ``None``: it does not.
        last_error: why its last attempt failed, or what it waits for.
        trace: the ``traceparent`` of what enqueued the row; ``None``: it was not traced.
        sequence: what is sent one after another with it; ``None``: nothing is.
        left_ms: for how long it may still be sent; ``None``: for ever.
        lane: what it waits in.
        due_at: since when it was due, Unix milliseconds.
        size: about how many bytes body and headers take.
        defect: why the row cannot be sent as it is stored, ``None`` when it can.
        waits_for: why the row waits for another release of this plugin, ``None`` when it does not.
        lease_end: when the claim expires, by `lease_clock`.
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
    waited_ms: int | None = None
    last_error: str | None = None
    trace: str | None = None
    sequence: int | None = None
    left_ms: int | None = None
    lane: int = 0
    due_at: int = 0
    size: int = 0
    defect: str | None = None
    waits_for: str | None = None
    lease_end: float = math.inf
    is_probe: bool = False

    @property
    def hopeless(self) -> str | None:
        """Why no attempt is made any more; ``None``: one may be made."""
        return TOO_LATE if self.left_ms is not None and self.left_ms <= 0 else self.defect

    @property
    def lacks_body(self) -> bool:
        """Whether its claim has left out a large body."""
        return self.body is None and self.defect is None and self.size > SMALL_BYTES


_STORED: Final = ClaimedDelivery.__struct_fields__[: ClaimedDelivery.__struct_fields__.index("lane")]
_AGENT, _ORIGIN_AT, _HEADERS_AT = map(_STORED.index, ("agent_id", "origin", "headers"))

COLUMNS: Final = tuple({"token": "claimed_by", "reclaims": "takeovers"}.get(name, name) for name in _STORED)
"""What `read_row` needs of a row, in this order: its first fields."""


class Completion(msgspec.Struct, frozen=True):
    """The end of a claim, to be written: one of the three kinds below."""

    delivery: ClaimedDelivery

    @property
    def status(self) -> Status | None:
        """What the row becomes; ``None``: it keeps its state."""
        return None

    @property
    def reason(self) -> str | None:
        """Why the delivery has not arrived, in one phrase; ``None``: it has, or nothing is known."""
        return None


class Attempted(Completion, frozen=True):
    """An attempt was made.

    Attributes:
        outcome: its result.
        change: what it makes of the row.
    """

    outcome: Outcome
    change: Transition

    @property
    def status(self) -> Status:
        """What the row becomes."""
        return self.change.status

    @property
    def reason(self) -> str | None:
        """Why the attempt failed."""
        return None if self.change.status == "delivered" else failure_reason(self.outcome)


class Ended(Completion, frozen=True):
    """The delivery is dead without an attempt.

    Attributes:
        why: the reason.
    """

    why: str

    @property
    def status(self) -> Status:
        """Dead."""
        return "dead"

    @property
    def reason(self) -> str:
        """Why it is dead."""
        return self.why


class Returned(Completion, frozen=True):
    """The delivery is given back without an attempt: its row keeps its state, and is due again.

    Attributes:
        delay: seconds until then.
        waits_for: what it waits for on this side; ``None``: as its row says.
        failure: the kind of what keeps it back; ``None``: something on this side.
        answered: whether what it has waited for on this side is over.
    """

    delay: float = 0.0
    waits_for: str | None = None
    failure: str | None = None
    answered: bool = False


class End(NamedTuple):
    """What has ended a claim.

    Attributes:
        kind: ``written``: its own outcome, or its return; ``again``: a later claim of the same worker's, which holds the row;
            ``reclaimed``: one of another worker's; ``purged``: there is no such row; ``changed``: a person has changed it.
        detail: the status of the row; for ``again``, the token of the later claim.
    """

    kind: Literal["written", "again", "reclaimed", "purged", "changed"]
    detail: str = ""


def read_row(row: Sequence[Any], lease_end: float = math.inf) -> ClaimedDelivery:
    """Return a claimed row as a delivery, with its defect if it has one.

    Args:
        row: `COLUMNS`, the lane, the due time, and the bytes that body and headers take.
        lease_end: when the claim expires, by `lease_clock`.
    """
    values = list(row)
    values[_AGENT] = values[_AGENT] or None
    values[_ORIGIN_AT], waits_for, defect = read_origin(values[_ORIGIN_AT])
    values[_HEADERS_AT], wrong = read_headers(values[_HEADERS_AT])
    defect = defect or wrong
    if defect is not None:
        defect = f"the stored row cannot be read: {defect}"
    values += (defect, waits_for, lease_end)
    return ClaimedDelivery(*values)  # by position, which takes a quarter of the time that keywords take


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
    """Return what names a kind of origin that this process does not know; ``None``: nothing does."""
    try:
        found = msgspec.json.decode(text)
    except _UNREADABLE:
        return None
    for field, known in _KNOWN:
        kind = found.get(field) if isinstance(found, dict) else None
        if not isinstance(kind, str):
            return None
        if kind not in known:
            return f"{field} {printable(kind, message=True)[:40]!r}"
        found = found.get("ref")
    return None
