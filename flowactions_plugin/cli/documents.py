"""What commands write with ``--json``; the reference page lists these fields."""

from __future__ import annotations

from typing import Literal

import msgspec


class Document(msgspec.Struct, kw_only=True, rename="camel"):
    """A result."""


class Tables(Document):
    """The revision of the tables.

    Attributes:
        revision: that they have now; `null` without tables.
        before: that they had before the command.
        wanted: this release's.
    """

    revision: str | None
    before: str | None
    wanted: str


class Tokens(Document):
    """The stored chat tokens.

    Attributes:
        changed: how many were sealed with an older key; unless `dry`, they are resealed.
        current: how many were sealed with the newest key before.
        unreadable: organizations whose token no key opens.
        dry: whether `--check` was given.
    """

    changed: int
    current: int
    unreadable: list[str]
    dry: bool


class Key(Document):
    """A new key.

    Attributes:
        kind: what it is for.
        key: the key; it is nowhere else.
    """

    kind: Literal["encryption", "signing"]
    key: str


class Received(Document):
    """A request that `listen` received; one line for each.

    Attributes:
        received_at: ISO 8601, UTC.
        method: of the request.
        target: path and query.
        verified: `verified`; `unsigned` without a signature; `stale` when it is right but more than five minutes old, or
            from the future; `wrong` for anything else.
        event_id: `x-service-webhook-id`; `null` without one.
        event_type: `x-service-webhook-event`; `null` without one.
        repeated: whether this event id was received before.
        status: with which it was answered.
        headers: all headers as they came, in their order, as pairs of name and value.
        body: as text; bytes that are not UTF-8 are replaced.
        body_bytes: its length.
    """

    received_at: str
    method: str
    target: str
    verified: Literal["verified", "unsigned", "stale", "wrong"]
    event_id: str | None
    event_type: str | None
    repeated: bool
    status: int
    headers: list[tuple[str, str]]
    body: str
    body_bytes: int


class Phase(Document):
    """A phase of an attempt.

    Attributes:
        name: `resolve`, `connect`, `tls`, `send`, `firstByte` (until the head of the answer is there), `body`.
        ms: how long it took, milliseconds.
    """

    name: str
    ms: float


class Sent(Document):
    """A test delivery.

    Attributes:
        url: where to.
        delivered: whether the answer counts as a success (2xx).
        signed: whether it was signed.
        event_id: of the test event.
        status_code: of the answer; `null` when there was none.
        error: why there was no answer, or why nothing was sent.
        note: that the egress proxy may have answered itself; `null` when it cannot have.
        phase: the phase in which it failed; `null` when there was an answer.
        response: the first 2 KiB of the answer's body, as text.
        duration_ms: of the whole attempt.
        phases: what was gone through, in order; a phase that was not needed is left out.
    """

    url: str
    delivered: bool
    signed: bool
    event_id: str
    status_code: int | None
    error: str | None
    note: str | None
    phase: str | None
    response: str
    duration_ms: int
    phases: list[Phase]


class Check(Document):
    """A check of `doctor`.

    Attributes:
        name: what was checked.
        result: `ok`; `warning`: it works, and somebody should look; `failed`; `skipped`: it could not be checked, or there is
            nothing to check.
        message: what was found.
        advice: what to do; empty when there is nothing to do.
    """

    name: str
    result: Literal["ok", "warning", "failed", "skipped"]
    message: str
    advice: str


class Diagnosis(Document):
    """What `doctor` found.

    Attributes:
        verdict: on delivery: `ok`, `idle`, `unwritable`, `stalled`, `no_worker` or `failing`; `null` when the database cannot be asked.
        exit_status: that of the command.
        checks: in the order in which they were made.
    """

    verdict: str | None
    exit_status: int
    checks: list[Check]
