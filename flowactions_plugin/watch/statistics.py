"""What attempts came to, counted in memory until it is written: pure, no I/O.

Health is counted in the order of the outcomes: a success ends a row of failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from flowactions_hookspecs import Origin, UnsignedTestOrigin
from flowactions_plugin.log_text import storable
from flowactions_plugin.queue.claimed import Attempted, Completion
from flowactions_plugin.queue.outcomes import error_class

BUCKET_MS: Final = 5 * 60 * 1000
"""The interval of statistics."""

EVERY_DESTINATION: Final = ""
"""Instead of a destination, in the sums over all of an organization's, and over all organizations'."""

COUNTS: Final = ("delivered", "failed", "dead", "duration_ms")
"""What statistics sum up."""

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Answers that name another URL, which is not asked."""

ALERT_FAILURES: Final = 20
ALERT_MS: Final = 3600 * 1000
"""A destination fails that has only failed so often in a row, or for so long."""


class Counts:
    """What the attempts of one organization to one destination came to.

    Attributes:
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        duration_ms: how long all attempts took.
        succeeded: whether any has succeeded.
        failures_in_row: how many have failed since.
        failing: where these come from: two of the origins, at least. Tests of drafts are left out.
        last_error: the kind of the last failure; ``None``: there was none.
        last_reason: why in words, as operators read it.
        gone: how many deliveries of each origin the receiver has ended by a 410.
    """

    def __init__(self) -> None:
        self.delivered = self.failed = self.dead = self.duration_ms = self.failures_in_row = 0
        self.succeeded = False
        self.last_error: str | None = None
        self.last_reason: str | None = None
        self.failing: set[Origin] = set()
        self.gone: Counter[Origin | None] = Counter()

    @property
    def attempts(self) -> int:
        """How many attempts were made."""
        return self.delivered + self.failed

    def add(self, completion: Completion) -> None:
        """Count an outcome; an end without an attempt says nothing about the destination."""
        status = completion.status
        self.dead += status == "dead"
        if not isinstance(completion, Attempted):
            return
        self.duration_ms += completion.outcome.duration_ms
        if status == "delivered":
            self.delivered += 1
            self.succeeded = True
            self.failures_in_row = 0
            self.failing.clear()
        elif completion.outcome.of_one:
            self.failed += 1
        else:
            self.failed += 1
            self.failures_in_row += 1
            self.last_error = error_class(completion)
            origin = completion.delivery.origin
            if len(self.failing) < 2 and not isinstance(origin, UnsignedTestOrigin | None):
                self.failing.add(origin)
            outcome = completion.outcome
            self.last_reason = storable(outcome.error) or answered(outcome.status_code)
            if completion.change.gone:
                self.gone[completion.delivery.origin] += 1

    def follow(self, later: Counts) -> None:
        """Add what was counted later."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.failures_in_row = later.failures_in_row + (0 if later.succeeded else self.failures_in_row)
        self.failing = later.failing | (set() if later.succeeded else self.failing)
        self.succeeded = self.succeeded or later.succeeded
        if later.last_error is not None:
            self.last_error, self.last_reason = later.last_error, later.last_reason
        self.gone += later.gone


class Tally:
    """Counts outcomes by organization and destination, until they are taken to be written."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Counts] = {}

    def record(self, completions: Iterable[Completion]) -> None:
        """Count outcomes that were written; an end without an attempt is the organization's, and of no destination."""
        counts = self._counts
        for completion in completions:
            place = completion.delivery.destination if isinstance(completion, Attempted) else EVERY_DESTINATION
            key = (completion.delivery.organization_id, place)
            found = counts.get(key)
            if found is None:
                found = counts[key] = Counts()
            found.add(completion)

    def pop(self) -> Mapping[tuple[str, str], Counts]:
        """Return what was counted since the last call, in the order of its keys, and forget it."""
        taken, self._counts = self._counts, {}
        return dict(sorted(taken.items()))

    def restore(self, taken: Mapping[tuple[str, str], Counts]) -> None:
        """Count again what could not be written, as before what was counted since."""
        later, self._counts = self._counts, dict(taken)
        for key, counts in later.items():
            if key in self._counts:
                self._counts[key].follow(counts)
            else:
                self._counts[key] = counts


def answered(code: int | None) -> str | None:
    """Return what is wrong with an answer; ``None``: nothing, or there was none."""
    if code is None or 200 <= code < 300:
        return None
    return f"it answered {code}{', a redirect: webhooks do not follow it' if code in REDIRECTS else ''}"


def alert_of(
    failing_since: int | None, last_failure_at: int | None, failures_in_row: int, alerted_at: int | None
) -> Literal["failing", "recovered"] | None:
    """Return what to tell the host about a destination; ``None``: nothing.

    Args:
        failing_since: the first failure since the last success; ``None``: the last attempt succeeded.
        last_failure_at: the last failure.
        failures_in_row: failures since the last success.
        alerted_at: when the host was told that it fails; ``None``: it was not, or was told of the recovery.
    """
    if alerted_at is not None:
        return "recovered" if failing_since is None or failing_since > alerted_at else None
    if failing_since is None or last_failure_at is None:
        return None
    fails = failures_in_row >= ALERT_FAILURES or last_failure_at - failing_since >= ALERT_MS
    return "failing" if fails else None
