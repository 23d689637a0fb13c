"""What a worker remembers of receivers: which are quick, which are slow, and which time out. Pure, no I/O.

A lane is slow after an attempt that took longer than `SLOW_SECONDS`, whatever came of it, until `QUICK_ANSWERS` answers in a row
came within that. The host of an organization is judged by all attempts there, in the same way: what is known of it holds for its
lanes of which nothing is known, because a URL with an id in its path makes a lane of each row. A failure that comes early, like a
refused connection, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import failure_class

SLOW_SECONDS: Final = 2.0
"""How long an attempt takes at the most, without what this process stood still, so that its lane is not slow."""

QUICK_ANSWERS: Final = 10
"""After so many answers in a row within that time, a lane is not slow any more."""

MOST_REMEMBERED: Final = 20_000
"""Of how many lanes, and of how many hosts, a worker remembers what they are. Of one that is forgotten, nothing is known."""

_SILENT: Final = QUICK_ANSWERS + 1


class Standing:
    """Which lanes and hosts are quick, and which are slow; nothing is known when the worker starts.

    Attributes:
        changes: how often it has learned something new.
    """

    def __init__(self) -> None:
        self.changes = 0
        # How many quick answers are still needed; 0: it is quick. `_SILENT`: it has never answered, or not since a time-out.
        self._lanes: dict[int, int] = {}
        self._hosts: dict[tuple[str, str], int] = {}
        self._limited: dict[int, tuple[str, str, int]] = {}

    def is_slow(self, lane: int) -> bool | None:
        """Return whether a lane is slow; ``None``: nothing is known of it."""
        needed = self._lanes.get(lane)
        return None if needed is None else needed > 0

    def is_slow_host(self, host: tuple[str, str]) -> bool | None:
        """Return whether the host of an organization is slow; ``None``: nothing is known of it."""
        needed = self._hosts.get(host)
        return None if needed is None else needed > 0

    def answers(self, lane: int) -> bool:
        """Return whether a lane has answered, and has not timed out since: it may have several deliveries in flight."""
        return self._lanes.get(lane, _SILENT) < _SILENT

    def record(self, lane: int, host: tuple[str, str], outcome: Outcome) -> None:
        """Record the outcome of an attempt of a lane, at the host of an organization."""
        is_late = outcome.duration_ms - outcome.stalled_ms > SLOW_SECONDS * 1000
        answered = outcome.is_answered
        if answered and not is_late and self._lanes.get(lane) == 0 == self._hosts.get(host):
            return  # as it is mostly
        self.changes += 1
        if answered:
            self._limited.pop(lane, None)
            known, of_host = min(self._lanes.get(lane, 0), QUICK_ANSWERS), self._hosts.get(host, 0)
            _remember(self._lanes, lane, QUICK_ANSWERS if is_late else max(0, known - 1))
            _remember(self._hosts, host, QUICK_ANSWERS if is_late else max(0, of_host - 1))
        elif failure_class(outcome) == "timeout":
            _remember(self._lanes, lane, _SILENT)
            _remember(self._hosts, host, QUICK_ANSWERS)
            if lane not in self._limited:
                _remember(self._limited, lane, (*host, outcome.started_at + outcome.duration_ms))
        elif is_late:
            _remember(self._lanes, lane, QUICK_ANSWERS if self.answers(lane) else _SILENT)
            _remember(self._hosts, host, QUICK_ANSWERS)

    def limited(self) -> dict[str, dict[str, int]]:
        """Return each organization's destinations that have one attempt at a time because attempts time out, and since when.

        Times are Unix milliseconds. Any thread may call it.
        """
        found: dict[str, dict[str, int]] = {}
        for organization, destination, since in self._limited.copy().values():
            own = found.setdefault(organization, {})
            own[destination] = min(since, own.get(destination, since))
        return found

    def begin_with(self, limited: Mapping[str, Mapping[str, int]]) -> None:
        """Take over what other workers limit: these hosts are slow, as far as this one knows."""
        for organization, destinations in limited.items():
            for destination in destinations:
                _remember(self._hosts, (organization, destination), QUICK_ANSWERS)

    def forget(self) -> None:
        """Forget whose attempts time out: an organization was purged."""
        self._limited.clear()


def _remember(memory: dict[Any, Any], key: object, value: object) -> None:
    """Keep a value, and forget the oldest one where there are too many."""
    memory[key] = value
    if len(memory) > MOST_REMEMBERED:
        del memory[next(iter(memory))]
