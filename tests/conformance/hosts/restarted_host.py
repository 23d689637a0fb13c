"""The driver of a reference host that is already served, which can also restart and kill it, as an operator's scripts do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from flowactions_conformance import Env
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.reference_host.testing import ServedDriver
from tests.conformance.served import end, serves, uvicorn
from tests.waiting import until

GROUP_FILE = "RESTARTED_HOST_GROUP"
"""In the environment: the file that holds the process group of the host."""
PORT = "RESTARTED_HOST_PORT"


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
        file = Path(os.environ[GROUP_FILE])
        group = int(file.read_text())
        end(group, number)
        await until(lambda: not _lives(group), 300)
        file.write_text(str(start(self._env.settings).pid))
        await until(lambda: serves(self._env.base_url), 300)


def start(environ: Mapping[str, str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start the host."""
    command = uvicorn(int(os.environ[PORT]), workers=2)
    environ = {**os.environ, **environ}
    return subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)


def _lives(group: int) -> bool:
    try:
        os.waitpid(-group, os.WNOHANG)
    except ChildProcessError:
        pass  # somebody else's
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def make_driver(env: Env) -> AsyncIterator[RestartingDriver]:
    store = Store(env.database_url)
    async with store.open():
        yield RestartingDriver(store, env)
