"""A host that somebody else has started and serves: only its driver is the kit's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from flowactions_conformance.kit.hosts.hosting import Running
from flowactions_conformance.kit.hosts.in_process import InProcess


class Served(Running):
    """One start of such a host, in however many processes.

    Args:
        driver: the driver, in a thread of the kit's process.
        again: has the driver's ``restart`` or ``kill`` start the host again.
    """

    def __init__(self, driver: InProcess, again: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(driver.env, driver.patience, driver.output)
        self.about = driver.about
        self._driver = driver
        self._again = again

    async def call(self, method: str, *arguments: object) -> Any:
        """See `Running.call`."""
        return await self._driver.call(method, *arguments)

    async def stop(self, *, judged: bool = True) -> None:  # noqa: ARG002  its driver has limits of its own
        """See `Running.stop`: afterwards the host serves again, as one that was started beside this one."""
        await self._again("restart")

    async def kill(self) -> None:
        """See `Running.kill`: afterwards the host serves again, too."""
        await self._again("kill")
