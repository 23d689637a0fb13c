"""How long a host is waited for: one that hangs is told apart from one that is slow, and the run ends."""

from __future__ import annotations

from typing import Final, NamedTuple

START_SECONDS: Final = 40.0
STOP_SECONDS: Final = 30.0
CALL_SECONDS: Final = 25.0
HUNG_STOP_SECONDS: Final = 3.0
"""For how long a host is waited for that has hung before."""
HUNG_CALL_SECONDS: Final = 5.0
"""How long a call may take once several have hung: such a host must not take minutes to be told."""
HUNG_CALLS: Final = 3


class Limits(NamedTuple):
    """How long a host may take; no measure of speed, but the end of waiting for one that hangs.

    Attributes:
        start: seconds until the app serves.
        stop: seconds until it has stopped.
        call: seconds until a method of the driver has returned.
        hung_stop: seconds until it has stopped, after something hung.
        hung_call: as ``call``, once `HUNG_CALLS` calls have hung.
    """

    start: float = START_SECONDS
    stop: float = STOP_SECONDS
    call: float = CALL_SECONDS
    hung_stop: float = HUNG_STOP_SECONDS
    hung_call: float = HUNG_CALL_SECONDS


LIMITS: Final = Limits()


class Waiting:
    """For how long one host is waited for: less, once it has hung.

    Args:
        limits: while nothing has hung.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.hung = 0

    @property
    def call(self) -> float:
        """Seconds for a call."""
        return self.limits.call if self.hung < HUNG_CALLS else min(self.limits.call, self.limits.hung_call)

    @property
    def stop(self) -> float:
        """Seconds for stopping."""
        return min(self.limits.stop, self.limits.hung_stop) if self.hung else self.limits.stop
