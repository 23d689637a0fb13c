"""Logs why inbound requests are refused. Their senders do not learn it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from flowactions_plugin.inbound.requests import NotAuthentic

QUIET_SECONDS: Final = 60.0
"""A cause is logged once in this time, because anyone can send requests that are refused."""


class RefusalLog:
    """Logs why requests to a route were refused, once a minute for each cause, with their number.

    Args:
        logger: its name.
        route: method and path.
        clock: monotonic seconds.
    """

    def __init__(self, logger: str, route: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = logging.getLogger(logger)
        self._route = route
        self._clock = clock
        self._quiet_until: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def record(self, refusal: NotAuthentic) -> None:
        """Log a refusal, or count it when its cause was logged less than a minute ago."""
        now = self._clock()
        if now < self._quiet_until.get(refusal.cause, now):
            self._unlogged[refusal.cause] = self._unlogged.get(refusal.cause, 0) + 1
            return
        self._quiet_until[refusal.cause] = now + QUIET_SECONDS
        unlogged = self._unlogged.pop(refusal.cause, 0)
        since = f" ({unlogged} more for this cause since the last line)" if unlogged else ""
        self._log.warning("%s refused: %s%s", self._route, refusal, since, extra={"event": "inbound.refused"})
