"""Bulk actions: which rows belong to one, its options and its rate. Pure, no I/O."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from flowactions_plugin.clock import RANDOM_BYTES, new_id
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.insights.filters import LIVE_STATES, Filter
from flowactions_plugin.insights.results import Counted, Kind

KINDS: Final[frozenset[str]] = frozenset(get_args(Kind))

SENDING: Final[frozenset[str]] = frozenset({"retry", "resend"})
"""The kinds after which rows are sent."""

MOST_RATE: Final = 100_000.0

MOST_RESENT: Final = 100_000
"""How many rows are sent again at the most. Delivered rows are the most of a table: so many bound what is counted."""

BURST_SECONDS: Final = 1.0
"""A process that was late makes up for so much time at the most."""

STATES_OF: Final[dict[Kind, frozenset[str]]] = {
    "retry": frozenset({"dead"}),
    "delete": frozenset({"dead"}),
    "cancel": frozenset(LIVE_STATES),
    "resend": frozenset({"delivered"}),
}
"""Kind → the states of the rows that it changes."""


class Selection(NamedTuple):
    """A set of rows: those that met a filter at a time.

    Attributes:
        kind: what it is for.
        filter: which rows.
        as_of: that time, Unix milliseconds.
        organization_id: whose rows; ``None``: those of all organizations.
    """

    kind: Kind
    filter: Filter
    as_of: int
    organization_id: str | None = None


class Share(NamedTuple):
    """How many rows of a set belong to a destination or to an organization."""

    name: str
    number: int


@dataclass(frozen=True)
class Preview:
    """The set of rows that an action would be done to.

    Attributes:
        chosen: the set; `Operations.change` is given it.
        count: how many rows it has.
        destinations: the destinations with the most rows.
        organizations: the organizations with the most rows.
        delivered: of a retry: how many delivered rows meet the filter too, and are left out; ``None`` for other
            actions.
    """

    chosen: Selection
    count: int
    destinations: Sequence[Share]
    organizations: Sequence[Share]
    delivered: Counted | None


def once_id(chosen: Selection) -> str:
    """Return the id of the action that is done to a set: it is done once, however often a form is sent."""
    written = "\0".join([chosen.kind, str(chosen.filter), str(chosen.as_of), chosen.organization_id or ""])
    return new_id(chosen.as_of / 1000, hashlib.sha256(written.encode()).digest()[:RANDOM_BYTES])


def names_rows(wanted: Filter) -> bool:
    """Return whether a filter names rows, events or keys, so that few rows meet it."""
    return any(map(wanted.values, ("id", "event", "key")))


def check_filter(wanted: Filter, kind: Kind) -> None:
    """Check that rows of a kind can meet a filter, and that what is sent again is bounded.

    Raises:
        ActionInvalid: they cannot, or it is not.
    """
    if kind == "resend" and not wanted.values("since") and not names_rows(wanted):
        raise ActionInvalid(
            "Say which deliveries to send again: give ids, an event id or an idempotency key, or the time from which they"
            " were enqueued."
        )
    if wanted.states and not wanted.states & STATES_OF[kind]:
        raise ActionInvalid(f"{kind.capitalize()} changes what is {' or '.join(sorted(STATES_OF[kind]))} only.")
    if kind == "cancel" and (wanted.values("ended-since") or wanted.values("ended-before")):
        raise ActionInvalid(
            "What waits has not ended: give the time when it was enqueued, by since and before."
        )


def check_options(kind: str, *, reset_attempts: bool, rate: float | None) -> None:
    """Check the options of an action.

    Raises:
        ActionInvalid: one of them cannot be used; the message says which, and what is allowed.
    """
    check_rate(rate)
    if kind not in SENDING and (rate is not None or reset_attempts):
        raise ActionInvalid(f"Rate and attempts are for what is sent, not for {kind}.")
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
