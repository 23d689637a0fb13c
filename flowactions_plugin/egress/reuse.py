"""When a connection may be used again, and when a request may go out a second time; no I/O."""

from __future__ import annotations

from enum import Enum, auto


class _State(Enum):
    IDLE = auto()
    BUSY = auto()
    SPENT = auto()


class Reuse:
    """What one connection has been through.

    A connection on which anything came unasked, whose response was not read to the end, whose request was not written to
    the end, or that was to be closed is never used again.
    """

    __slots__ = ("_answered", "_rested", "_state", "_written")

    def __init__(self) -> None:
        self._state = _State.IDLE
        self._rested = self._answered = self._written = False

    @property
    def may_begin(self) -> bool:
        """Whether a request may go out on it."""
        return self._state is _State.IDLE

    @property
    def is_answered(self) -> bool:
        """Whether any byte has come since the last request went out."""
        return self._answered

    @property
    def has_rested(self) -> bool:
        """Whether it was idle between a request before and this one, so that the receiver may have closed it."""
        return self._rested

    def begin(self) -> None:
        """A request goes out on it."""
        assert self._state is _State.IDLE  # noqa: S101  the pool gives out no other
        self._state, self._answered, self._written = _State.BUSY, False, False

    def wrote(self) -> None:
        """All of the request has been handed to the operating system, or waits in the transport to be."""
        self._written = True

    def received(self) -> None:
        """Bytes have come: part of a response, or unasked."""
        if self._state is _State.BUSY:
            self._answered = True
        else:
            self._state = _State.SPENT

    def ended(self, *, clean: bool) -> None:
        """The response is complete; ``clean``: it was read to its end, and nothing says that this was the last one."""
        if self._state is _State.BUSY:
            self._state = _State.IDLE if clean and self._written else _State.SPENT
            self._rested = True

    def lost(self) -> None:
        """It was closed, from either side."""
        self._state = _State.SPENT

    def may_repeat(self, acknowledged_before: int | None, acknowledged_now: int | None) -> bool:
        """Return whether the request that was lost with it may go out once more within the same attempt.

        The receiver can have read nothing of it: the connection had been idle, no byte of a response came, and its
        kernel acknowledged no byte of the request.

        Args:
            acknowledged_before: bytes that the other side had acknowledged when the request went out; ``None`` where the
                operating system does not tell.
            acknowledged_now: the same after the connection was lost.
        """
        known = acknowledged_before is not None and acknowledged_now is not None
        return self._rested and not self._answered and known and acknowledged_now == acknowledged_before
