"""The limits of one worker: destinations that hang, and organizations at their share of slots. Pure, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import failure_class

Value = TypeVar("Value")

MOST_ANSWERED: Final = 10_000
"""How many destinations are remembered that have answered. One that is forgotten is unproven until its next answer."""

MOST_HANGING: Final = 1000
"""How many destinations are remembered that hang. One that is forgotten is unproven until it answers."""

MOST_ORGANIZATIONS: Final = 1000
"""How many organizations are remembered that were passed over."""

LEAST_MS: Final = 1000
"""An organization that was passed over for less time is not named as limited: a burst of new destinations is over by then."""

STANDS_MS: Final = 15_000
"""For so long after it was last passed over, an organization is still named as limited: longer than from one report of a
worker to the next."""


class Limited(msgspec.Struct, frozen=True):
    """What a worker limits, and since when (Unix milliseconds).

    Attributes:
        destinations: limited to one attempt at a time, because attempts time out.
        organizations: limited to half of the slots, or to half of the slots for unproven destinations.
    """

    destinations: Mapping[str, int] = {}
    organizations: Mapping[str, int] = {}


NOTHING_LIMITED: Final = Limited()

PURGED: Final = ""
"""What a purge writes in place of what workers limit, where the organization may be among it. Each worker then forgets it."""


class Limits:
    """What one worker knows about its destinations and organizations; it is empty when the worker starts.

    A destination is *unproven* until it has answered. It *hangs* after an attempt has timed out, until one is
    answered, with any status. A failure that is neither an answer nor a timeout, like a refused connection,
    changes nothing.

    Args:
        clock: Unix seconds.
        most_answered: see `MOST_ANSWERED`.
        most_hanging: see `MOST_HANGING`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        most_answered: int = MOST_ANSWERED,
        most_hanging: int = MOST_HANGING,
    ) -> None:
        self._clock = clock
        self._most_answered = most_answered
        self._most_hanging = most_hanging
        self._answered: dict[str, None] = {}
        self._hanging: dict[str, int] = {}
        self._passed_over: dict[str, tuple[int, int]] = {}

    @property
    def hanging(self) -> Mapping[str, int]:
        """Destinations that hang, and since when (Unix milliseconds)."""
        return self._hanging

    def answers(self, destination: str) -> bool:
        """Return whether a destination has answered, and has not timed out since."""
        return destination in self._answered

    def hangs(self, destination: str) -> bool:
        """Return whether an attempt to a destination has timed out, and none was answered since."""
        return destination in self._hanging

    def record(self, destination: str, outcome: Outcome) -> None:
        """Record the outcome of an attempt."""
        if outcome.status_code is not None:
            if destination not in self._answered:
                self._hanging.pop(destination, None)
                _remember(self._answered, destination, None, self._most_answered)
        elif failure_class(outcome) == "timeout" and destination not in self._hanging:
            self._answered.pop(destination, None)
            since = outcome.started_at + outcome.duration_ms
            _remember(self._hanging, destination, since, self._most_hanging)

    def forget(self) -> None:
        """Forget what hangs and who was passed over, as at the start: an organization was purged."""
        self._hanging.clear()
        self._passed_over.clear()

    def pass_over(self, organization_id: str) -> None:
        """Record that a row of an organization got no slot, because of the organization's deliveries in flight."""
        now = int(self._clock() * 1000)
        since, last = self._passed_over.pop(organization_id, (now, now))
        if now - last > STANDS_MS:
            since = now
        _remember(self._passed_over, organization_id, (since, now), MOST_ORGANIZATIONS)

    def limited(self) -> Limited:
        """Return what is limited now. Any thread may call it."""
        oldest = int(self._clock() * 1000) - STANDS_MS
        # Copied at once: the worker changes them in its own thread.
        destinations, organizations = self._hanging.copy(), self._passed_over.copy()
        return Limited(
            destinations,
            {
                each: since
                for each, (since, last) in organizations.items()
                if last >= oldest and last - since >= LEAST_MS
            },
        )


def _remember(kept: dict[str, Value], key: str, value: Value, most: int) -> None:
    """Keep a value under a new key; the oldest is forgotten when there are too many."""
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
