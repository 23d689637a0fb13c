"""Hosts for worker processes whose claims expire soon: ``FLOWACTIONS_TEST_TIMING`` gives lease, deadline and quarantine.

``FLOWACTIONS_TEST_DIES=signing_secret`` has the process end when it is asked for a signing secret, before anything is sent.
``FLOWACTIONS_TEST_DESCRIPTORS=2`` has it use up all of its descriptors when it is first asked for one, for two seconds.
``FLOWACTIONS_TEST_AHEAD=600`` sets its clock ahead, by seconds.
``FLOWACTIONS_TEST_FULL=path`` lets its SQLite file not grow while a file is at the path.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from flowactions_hookspecs import Origin
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.services import Services
from flowactions_plugin.storage.database import Database
from tests.outages import Outage
from tests.support import SmallHost


def use_up_descriptors(seconds: float) -> None:
    """Leave this process without a descriptor for a while, under a limit that is lowered first."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

    def release() -> None:
        for each in taken:
            os.close(each)

    asyncio.get_running_loop().call_later(seconds, release)


class _Full(Outage):
    """A disk that is full while a file is at a path."""

    @property
    def is_broken(self) -> bool:
        return Path(os.environ["FLOWACTIONS_TEST_FULL"]).exists()


class TimedHost(SmallHost):
    """A host whose deliveries have other times: its process has no other host, so they are the default of `Services`."""

    _asked = False

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

    async def signing_secret(self, origin: Origin) -> str | None:
        if os.environ.get("FLOWACTIONS_TEST_DIES") == "signing_secret":
            os.kill(os.getpid(), signal.SIGKILL)
        lasting = os.environ.get("FLOWACTIONS_TEST_DESCRIPTORS")
        if lasting and not self._asked:
            self._asked = True
            use_up_descriptors(float(lasting))
        return await super().signing_secret(origin)


def make() -> TimedHost:
    """Make the host of a worker, with the plugin's own transport."""
    return TimedHost(os.environ)
