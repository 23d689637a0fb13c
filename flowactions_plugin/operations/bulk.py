"""Bulk actions: which rows belong to one, as it was shown, its options, its rate, and its canary. Pure, no I/O.

With a canary, an action does so many rows first, and waits for their first attempts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from flowactions_plugin.clock import RANDOM_BYTES, new_id
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Counted, Kind
from flowactions_plugin.log_text import is_unicode, plural

KINDS: Final[frozenset[str]] = frozenset(get_args(Kind))

SENDING: Final[frozenset[str]] = frozenset({"retry", "resend"})
"""The kinds after which rows are sent."""

MOST_RATE: Final = 100_000.0
MOST_CANARY: Final = 1000

MOST_RESENT: Final = 100_000
"""How many rows are sent again at the most. Delivered rows are the most of a table: so many bound what a preview counts."""

BURST_SECONDS: Final = 1.0
"""A process that was late makes up for so much time at the most."""

FAILING_SHARE: Final = 0.1
"""A canary of which a larger part fails stops the action."""

_LONGEST: Final = 4096

Result: TypeAlias = Literal["open", "delivered", "failed", "gone"]
"""What came of a row: no attempt yet; delivered; its first attempt failed; somebody else has changed it since."""


class Selection(msgspec.Struct, frozen=True):
    """A set of rows, as it was shown to somebody.

    Attributes:
        kind: what it is for.
        filter: which rows.
        as_of: when it was counted, Unix milliseconds.
        count: how many rows it had.
        organization_id: whose rows; ``None``: those of all organizations.
    """

    kind: Kind
    filter: Filter
    as_of: int
    count: int = 0
    organization_id: str | None = None


class Share(NamedTuple):
    """How many rows of a set belong to a destination or to an organization."""

    name: str
    number: int


class Preview(NamedTuple):
    """The set of rows that an action would be done to.

    Attributes:
        chosen: the set, with the exact number of its rows; `Operations.change` is given it.
        destinations: the destinations with the most rows.
        organizations: the organizations with the most rows.
        seconds_to_drain: about how long workers take to send them, by the rate and by what they delivered within the last
            day; ``None``: neither is known, or nothing is sent.
        delivered: of a retry: how many delivered rows meet the filter too, and are left out; ``None`` for other
            actions.
    """

    chosen: Selection
    destinations: Sequence[Share]
    organizations: Sequence[Share]
    seconds_to_drain: float | None
    delivered: Counted | None


def once_id(selection: Selection) -> str:
    """Return the id of the action that is done to a set, if it is to be done once, however often its token is sent."""
    digest = hashlib.sha256(msgspec.json.encode(selection)).digest()
    return new_id(selection.as_of / 1000, digest[:RANDOM_BYTES])


def names_rows(wanted: Filter) -> bool:
    """Return whether a filter names rows, events or keys, so that few rows meet it."""
    return any(each is not None for each in (wanted.ids, wanted.event_id, wanted.idempotency_key))


def check_filter(wanted: Filter, kind: Kind) -> None:
    """Check that every value of a filter can be a parameter of a query, and that what is sent again is bounded.

    Raises:
        ActionInvalid: one of them cannot, or it is not.
    """
    if kind == "resend" and wanted.created_from is None and not names_rows(wanted):
        raise ActionInvalid(
            "Say which deliveries to send again: give ids, an event id or an idempotency key, or the time from which they"
            " were enqueued."
        )
    for value in msgspec.structs.astuple(wanted):
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str) and (len(each) > _LONGEST or "\0" in each or not is_unicode(each)):
                raise ActionInvalid(
                    "A value of the filter is too long, or holds characters that no row can hold."
                )
            if isinstance(each, int) and not -(1 << 53) < each < 1 << 53:
                raise ActionInvalid("A time of the filter is not one.")


def check_options(kind: str, *, reset_attempts: bool, rate: float | None, canary: int) -> None:
    """Check the options of an action.

    Raises:
        ActionInvalid: one of them cannot be used; the message says which, and what is allowed.
    """
    check_rate(rate)
    if not 0 <= canary <= MOST_CANARY:
        raise ActionInvalid(f"The canary must be between 0 and {MOST_CANARY} rows.")
    if kind not in SENDING and (rate is not None or canary or reset_attempts):
        raise ActionInvalid(f"Rate, canary and attempts are for what is sent, not for {kind}.")
    if kind == "resend" and reset_attempts:
        raise ActionInvalid("What is sent again has all of its attempts.")


def check_rate(rate: float | None) -> None:
    """Check a rate.

    Raises:
        ActionInvalid: it cannot be used.
    """
    if rate is not None and not (math.isfinite(rate) and 0.01 <= rate <= MOST_RATE):
        raise ActionInvalid(f"The rate must be between 0.01 and {MOST_RATE:g} rows per second.")


class Pace(NamedTuple):
    """From when on a rate counts.

    Attributes:
        since: Unix milliseconds.
        done: how many rows were done since then.
    """

    since: int
    done: int = 0


def allowed(rate: float | None, pace: Pace | None, now: int, most: int) -> tuple[int, Pace]:
    """Return how many rows may be done now, and the pace to count them in.

    Args:
        rate: rows per second; ``None``: as many as possible.
        pace: as it was stored; ``None``: nothing was done yet.
        now: Unix milliseconds.
        most: how many rows a transaction takes at the most.
    """
    if pace is None or now < pace.since:  # the clock was set back
        pace = Pace(now)
    if rate is None:
        return most, pace
    due = int(rate * (now - pace.since) / 1000) - pace.done
    burst = max(1, int(rate * BURST_SECONDS))
    if due > burst:
        pace = Pace(now - int(burst / rate * 1000))
        due = burst
    return max(0, min(due, most)), pace


def wait_seconds(rate: float, pace: Pace, now: int) -> float:
    """Return the seconds until the next row may be done."""
    return max(0.0, (pace.since + (pace.done + 1) / rate * 1000 - now) / 1000)


def judge(size: int, results: Sequence[Result]) -> tuple[Literal["continue", "wait", "stop"], str]:
    """Return whether an action continues, and why it waits or stops: it stops as soon as its canary cannot pass any more.

    Args:
        size: how many rows the canary has.
        results: of those that were done.
    """
    failed, unknown = results.count("failed"), results.count("open")
    expected = size - results.count("gone")
    if failed > expected * FAILING_SHARE:
        return "stop", f"{failed} of {expected} first attempts failed in a canary of {plural(size, 'row')}"
    if unknown and len(results) == size:
        return "wait", f"waits for {unknown} of {expected} first attempts in a canary of {plural(size, 'row')}"
    return "continue", ""
