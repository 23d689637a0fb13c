"""The observer of deliveries: it gets the outcomes, and may ask how busy this process is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.limits import NOTHING_LIMITED, Limited


class Load(NamedTuple):
    """How busy a process is that delivers.

    Attributes:
        in_flight: rows that are being executed.
        claimed: rows that it has claimed since its start.
        limited: what it limits.
        forget: makes it forget what it limits.
    """

    in_flight: int
    claimed: int
    limited: Limited = NOTHING_LIMITED
    forget: Callable[[], None] = lambda: None


class Observer(Protocol):
    """Watches the deliveries of one process."""

    def record(self, completions: Sequence[Completion]) -> None:
        """Record outcomes that were just written. It returns at once, and does not raise."""

    def tell(self, alert: DeliveryAlert) -> None:
        """Log what has become of a destination, and tell the host. It returns at once, and does not raise."""

    def watching(self, load: Callable[[], Load]) -> AbstractAsyncContextManager[str]:
        """Watch within the block, while this process delivers; gives the id under which operators see it.

        Args:
            load: returns how busy it is.
        """
