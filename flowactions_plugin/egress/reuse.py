"""When a connection may be used again, and when a request may go out a second time; no I/O."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

IDLE_SECONDS: Final = 30.0
"""How long a connection may be idle before it is used again, if the receiver has not said how long it keeps it."""

LONGEST_IDLE_SECONDS: Final = 60.0
"""The same, whatever the receiver has said."""

LIFETIME_SECONDS: Final = 60.0
"""The age from which no request goes out on a connection, so that a name's new address is used."""

WINDOW_SECONDS: Final = 600.0
"""Two repeated requests within this time make a destination one that closes early, for as long again."""

DESTINATIONS: Final = 4096
"""Of how many destinations it is known when requests were repeated: those where it happened last."""

_KEEP_ALIVE: Final = re.compile(rb"\nkeep-alive:([^\r\n]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb"(?:^|[\s,;])(timeout|max)\s*=\s*\"?0*([0-9]+)", re.IGNORECASE)
_MANY: Final = 5
"""Digits of a number of seconds that is above every limit."""


def idle_seconds(head: bytes) -> float:
    """Return how long a connection may be idle after a response: ``Keep-Alive: timeout=N`` less a second, or 30 s.

    Args:
        head: the response's, as it came. What is not a number counts as not there; of several, the smallest counts.

    Returns:
        Seconds, at most 60; 0 if the connection is not to be used again.
    """
    if b"keep-alive:" not in head.lower():
        return IDLE_SECONDS
    limits = []
    for value in _KEEP_ALIVE.findall(head):
        for name, digits in _PARAMETER.findall(value):
            number = int(digits) if len(digits) <= _MANY else 10**_MANY
            if name.lower() == b"timeout":
                limits.append(min(max(number - 1.0, 0.0), LONGEST_IDLE_SECONDS))
            elif number == 0:
                return 0.0
    return min(limits, default=IDLE_SECONDS)


class Reuse:
    """What one connection has been through (§4.5).

    A connection on which anything came unasked, whose response was not read to the end, whose request was not written to
    the end, or that was to be closed is never used again.

    Attributes:
        may_begin: whether a request may go out on it.
        is_answered: whether any byte has come since the last request went out.
        has_answered: whether a request before this one was answered, so that the receiver may have closed it since.
    """

    # Plain attributes: several of these are read and set for each delivery.
    __slots__ = ("_is_busy", "_is_written", "has_answered", "is_answered", "may_begin")

    def __init__(self) -> None:
        self.may_begin = True
        self.has_answered = self.is_answered = self._is_busy = self._is_written = False

    def begin(self) -> None:
        """Note that a request goes out on it."""
        assert self.may_begin  # noqa: S101  the pool gives out no other
        self._is_busy = True
        self.may_begin = self.is_answered = self._is_written = False

    def wrote(self) -> None:
        """All of the request has been handed to the operating system, or waits in the transport to be."""
        self._is_written = True

    def received(self) -> None:
        """Bytes have come: part of a response, or unasked."""
        if self._is_busy:
            self.is_answered = True
        else:
            self.may_begin = False

    def ended(self, *, clean: bool) -> None:
        """Note that the response is complete; ``clean``: it was read to its end, and nothing says that this was the last one."""
        if self._is_busy:
            self._is_busy = False
            self.may_begin = clean and self._is_written
            self.has_answered = True

    def lost(self) -> None:
        """Note that it was closed, from either side."""
        self.may_begin = self._is_busy = False

    def may_repeat(self, *, by_peer: bool) -> bool:
        """Return whether the request that was lost with it may go out once more within the same attempt.

        Args:
            by_peer: whether the other side has closed or reset it.
        """
        return by_peer and self.has_answered and not self.is_answered


class EarlyClosers:
    """The destinations that close kept connections just as a request goes out: they get a fresh one for each request."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def record(self, key: str, now: float) -> None:
        """Record that a request to a destination had to be repeated.

        Args:
            key: the destination's.
            now: seconds of a clock that is never set.
        """
        before = self._seen.pop(key, None)
        self._seen[key] = (now, before is not None and now - before[0] < WINDOW_SECONDS)
        if len(self._seen) > DESTINATIONS:
            self._seen.popitem(last=False)

    def includes(self, key: str, now: float) -> bool:
        """Return whether a destination gets a fresh connection for each request now."""
        seen = self._seen.get(key)
        return seen is not None and seen[1] and now - seen[0] < WINDOW_SECONDS
