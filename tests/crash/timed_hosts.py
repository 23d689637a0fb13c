"""Hosts for worker processes whose claims expire soon: ``FLOWACTIONS_TEST_TIMING`` gives lease, deadline and quarantine.

``FLOWACTIONS_TEST_AHEAD=600`` sets the clock of its process ahead, by seconds.
``FLOWACTIONS_TEST_FULL=path`` lets its SQLite file not grow while a file is at the path.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.services import Services
from flowactions_plugin.storage.database import Database
from tests.outages import Outage
from tests.support import SmallHost


class _Full(Outage):
    """A disk that is full while a file is at a path."""

    @property
    def is_broken(self) -> bool:
        return Path(os.environ["FLOWACTIONS_TEST_FULL"]).exists()


class TimedHost(SmallHost):
    """A host whose deliveries have other times: its process has no other host, so they are the default of `Services`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        given = os.environ.get("FLOWACTIONS_TEST_TIMING", "")
        defaults = Services.__init__.__kwdefaults__
        assert defaults is not None
        defaults["timing"] = Timing(*map(float, given.split()))
        ahead = float(os.environ.get("FLOWACTIONS_TEST_AHEAD", "0"))
        if ahead:
            # Of its engine and its clock.
            Database.__init__.__defaults__ = (None, lambda: time.time() + ahead)
        if "FLOWACTIONS_TEST_FULL" in os.environ:
            self.database = _Full(settings["FLOWACTIONS_DATABASE_URL"], "disk full").engine()


def make() -> TimedHost:
    """Make the host of a worker, with the plugin's own transport."""
    return TimedHost(os.environ)
