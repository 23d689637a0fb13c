"""The driver of a reference host that is already served, which can also restart and kill it, as an operator's scripts do."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from flowactions_conformance import Env
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.reference_host.testing import ServedDriver
from tests.conformance.served import end, lives, serves, uvicorn
from tests.waiting import until

GROUP_FILE = "RESTARTED_HOST_GROUP"
"""In the environment: the file that holds the process group of the host."""
PORT = "RESTARTED_HOST_PORT"
SAFETY_SECONDS = 300.0


class RestartingDriver(ServedDriver):
    """Ends the host's process group, and starts another."""

    def __init__(self, store: Store, env: Env) -> None:
        super().__init__(store, env)
        self._env = env

    async def restart(self) -> None:
        await self._again(signal.SIGTERM)

    async def kill(self) -> None:
        await self._again(signal.SIGKILL)

    async def _again(self, number: signal.Signals) -> None:
        group = int(Path(os.environ[GROUP_FILE]).read_text())
        end(group, number)
        await until(lambda: not lives(group), SAFETY_SECONDS)
        start(self._env.settings)
        await until(lambda: serves(self._env.base_url), SAFETY_SECONDS)


def start(environ: Mapping[str, str]) -> None:
    """Start the host, in a process group of its own."""
    command = uvicorn(int(os.environ[PORT]), workers=2)
    group = os.posix_spawn(command[0], command, {**os.environ, **environ}, setsid=True)
    Path(os.environ[GROUP_FILE]).write_text(str(group))


@asynccontextmanager
async def make_driver(env: Env) -> AsyncIterator[RestartingDriver]:
    store = Store(env.database_url)
    async with store.open():
        yield RestartingDriver(store, env)
