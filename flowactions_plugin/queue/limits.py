"""What one worker knows of its lanes: which have answered, and which hang. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import failure_class

MOST_REMEMBERED: Final = 20_000
"""Of how many lanes and destinations a worker remembers whether they answer. One that is forgotten has not answered yet."""


class Limited(msgspec.Struct, frozen=True):
    """What a worker limits, and since when (Unix milliseconds).

    Attributes:
        destinations: limited to one attempt at a time, because attempts time out.
    """

    destinations: Mapping[str, int] = {}


NOTHING_LIMITED: Final = Limited()

PURGED: Final = ""
"""What a purge writes in place of what workers limit, where the organization may be among it. Each worker then forgets it."""


class InLane(Protocol):
    """What belongs to a lane: a row, or the lane itself."""

    @property
    def lane(self) -> int: ...  # noqa: D102
    @property
    def organization_id(self) -> str: ...  # noqa: D102
    @property
    def destination(self) -> str: ...  # noqa: D102


class Standing:
    """Which lanes have answered, and which hang; nothing is known when the worker starts.

    A lane *answers* after an attempt was answered, with any status, until one times out. Any other failure, like a refused
    connection, changes nothing. A destination that has answered an organization lends it its standing for its new lanes.

    Args:
        most: of how many it is remembered.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._answered: dict[int | tuple[str, str], None] = {}
        self._hanging: dict[int, tuple[str, int]] = {}

    def answers(self, row: InLane) -> bool:
        """Return whether a lane answers, as far as it is known."""
        return row.lane in self._answered

    def lends(self, row: InLane) -> bool:
        """Return whether a lane of which nothing is known is expected to answer: its destination has, to its organization."""
        return row.lane not in self._hanging and (row.organization_id, row.destination) in self._answered

    def record(self, row: InLane, outcome: Outcome) -> None:
        """Record the outcome of an attempt."""
        host = (row.organization_id, row.destination)
        if outcome.status_code is not None:
            self._hanging.pop(row.lane, None)
            self._answered[row.lane] = self._answered[host] = None
            while len(self._answered) > self._most:
                del self._answered[next(iter(self._answered))]
        elif failure_class(outcome) == "timeout":
            self._answered.pop(row.lane, None)
            self._answered.pop(host, None)
            self._hanging.setdefault(row.lane, (row.destination, outcome.started_at + outcome.duration_ms))
            while len(self._hanging) > self._most:
                del self._hanging[next(iter(self._hanging))]

    def limited(self) -> Limited:
        """Return the destinations of lanes that hang, and since when. Any thread may call it."""
        found: dict[str, int] = {}
        for destination, since in self._hanging.copy().values():
            found[destination] = min(since, found.get(destination, since))
        return Limited(found)

    def forget(self) -> None:
        """Forget what hangs, as at the start: an organization was purged."""
        self._hanging.clear()
