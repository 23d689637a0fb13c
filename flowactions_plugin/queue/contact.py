"""A worker as the queue knows it: the tokens of its claims, and when it could last write.

A token names the worker whose claim it is, so that operators see who holds a row. Whose leases are in doubt is decided by how
long a worker could not write to the queue, and how long ago that was (decision 54).

A worker that cannot write keeps the outcomes of what it has sent. Its leases end meanwhile, and a worker that writes again a
moment earlier would send its rows once more. So leases that ended while nobody could write are in doubt for the length of a
lease: time enough for all workers to try again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from flowactions_plugin.clock import lease_clock

PREFIX_DIGITS: Final = 8

LATE_MS: Final = 1000
"""How much later than it is asked how old the doubt is, the statement with the answer may read the time: leases that ended so
shortly before the doubt are in doubt, too."""

LONGEST_DOUBT_MS: Final = 1 << 50
"""The age of a doubt that has always been there."""


class Contact:
    """Remembers when this worker could last write to the queue.

    Args:
        lease_seconds: how long a claim holds.
        clock: seconds, which also pass while the process is stopped.

    Attributes:
        lease_seconds: the same.
        token_prefix: what the worker's tokens begin with, see `new_token`; empty: no worker claims, so there are no others.
        probe_seconds: seconds between two statements that write to the queue, at the most.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float] = lease_clock) -> None:
        self.lease_seconds = lease_seconds
        self.token_prefix = ""
        self.probe_seconds = lease_seconds / 15
        # No lease can end in a shorter outage with its row sent and its outcome not written.
        self._patience = lease_seconds / 6
        self._clock = clock
        self._last: float | None = None
        self._since = math.inf
        self._until = -math.inf

    def now(self) -> float:
        """Return the time by the clock of leases."""
        return self._clock()

    def silence(self) -> float:
        """Return the seconds since the queue was last written to; without end if it was not yet."""
        return math.inf if self._last is None else self._clock() - self._last

    def failed(self) -> None:
        """Record that the queue could not be written: leases that end from the last success on are in doubt."""
        since = self._in_doubt_since()
        before = -math.inf if self._last is None else self._last
        self._since = before if since is None else min(since, before)
        self._until = math.inf

    def succeeded(self, began: float) -> None:
        """Record that the queue was written to.

        Args:
            began: when the statement began. Until then a lease may have ended unnoticed.
        """
        since, now = self._in_doubt_since(), self._clock()
        if since is not None and (self._until == math.inf or self._is_late(now)):
            self._since, self._until = since, now + self.lease_seconds
        self._last = began if self._last is None else max(began, self._last)

    def doubt(self) -> dict[str, Any]:
        """Return the parameters of `due.undoubted`; empty when no lease is in doubt."""
        seconds = self.doubt_seconds() if self.token_prefix else None
        if seconds is None:
            return {}
        return {"doubt_ms": int(min(seconds * 1000 + LATE_MS, LONGEST_DOUBT_MS)), "own": self.token_prefix}

    def doubt_seconds(self) -> float | None:
        """Return the age from which on leases are not in doubt: those that ended earlier; ``None``: none is in doubt."""
        since = self._in_doubt_since()
        return None if since is None else self._clock() - since

    def remaining(self) -> float:
        """Return the seconds until leases are not in doubt any more; without end while it is not known, or none is."""
        left = self._until - self._clock()
        return left if left > 0 else math.inf

    def _in_doubt_since(self) -> float | None:
        now = self._clock()
        since = self._since if now < self._until else math.inf
        if self._is_late(now) and self._last is not None:
            since = min(since, self._last)
        return None if since == math.inf else since

    def _is_late(self, now: float) -> bool:
        return self._last is not None and now - self._last > self._patience


def token_prefix(worker_id: str) -> str:
    """Return what the tokens of a worker's claims begin with: the end of its id, which is random."""
    return worker_id[-PREFIX_DIGITS:]


def new_token(prefix: str) -> str:
    """Return a token that no other claim has: 32 hexadecimal digits.

    Args:
        prefix: of the worker that claims; empty: of nobody in particular.
    """
    return prefix + uuid4().hex[len(prefix) :]


def is_token_of(token: object, worker_id: str) -> bool:
    """Return whether a stored token is of a claim of this worker's."""
    return isinstance(token, str) and token.startswith(token_prefix(worker_id))
