"""When a connection may be used again, and when a request may go out a second time; no I/O."""

from __future__ import annotations


class Reuse:
    """What one connection has been through.

    A connection on which anything came unasked, whose response was not read to the end, whose request was not written to
    the end, or that was to be closed is never used again.

    Attributes:
        may_begin: whether a request may go out on it.
        is_answered: whether any byte has come since the last request went out.
        has_rested: whether it was idle between a request before and this one, so that the receiver may have closed it.
    """

    # Plain attributes: several of these are read and set for each delivery.
    __slots__ = ("_is_busy", "_is_written", "has_rested", "is_answered", "may_begin")

    def __init__(self) -> None:
        self.may_begin = True
        self.has_rested = self.is_answered = self._is_busy = self._is_written = False

    def begin(self) -> None:
        """A request goes out on it."""
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
        """The response is complete; ``clean``: it was read to its end, and nothing says that this was the last one."""
        if self._is_busy:
            self._is_busy = False
            self.may_begin = clean and self._is_written
            self.has_rested = True

    def lost(self) -> None:
        """It was closed, from either side."""
        self.may_begin = self._is_busy = False

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
        return self.has_rested and not self.is_answered and known and acknowledged_now == acknowledged_before
