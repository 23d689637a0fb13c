from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
from tests.commanding import ROOT
from tests.plugin.test_cli import slow_receiver
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def may_be_first() -> bool:
    """Tell whether a process may be made the first one of a namespace here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_be_first(), reason="no namespaces of process ids can be made here")


@asynccontextmanager
async def delivering(tmp_path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, asyncio.Event]]:
    """Run a worker as a container does, in the middle of a request.

    Yields:
        What it runs in, its process id, and what makes the receiver answer.
    """
    settings = development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off")

    actions = FlowActions.load(SmallHost(settings))
    async with slow_receiver() as (url, arrived, answer), actions.lifespan():
        await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": url}))
        process = await asyncio.create_subprocess_exec(
            *(*UNSHARE, sys.executable, "-m", "flowactions_plugin.cli", "worker"),
            *("--host", "tests.plugin.cli.host:make"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(SAFETY_SECONDS):
                await arrived.wait()
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield process, int(child), answer
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def until_it_stops(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(SAFETY_SECONDS):
        while b"stopping: " not in await process.stderr.readline():
            assert not process.stderr.at_eof()


async def test_a_worker_drains_as_the_first_process(tmp_path: Path) -> None:
    """On SIGTERM it finishes what it sends, and ends with 0: the kernel drops signals that such a process does not handle."""
    async with delivering(tmp_path) as (process, worker, answer):
        os.kill(worker, signal.SIGTERM)
        await until_it_stops(process)
        answer.set()
        async with asyncio.timeout(SAFETY_SECONDS):
            assert await process.wait() == 0


@pytest.mark.ci
async def test_a_second_signal_ends_the_first_process(tmp_path: Path) -> None:
    """Also there, where the default action does not."""
    async with delivering(tmp_path) as (process, worker, _):
        os.kill(worker, signal.SIGTERM)
        await until_it_stops(process)
        os.kill(worker, signal.SIGTERM)
        async with asyncio.timeout(SAFETY_SECONDS):
            assert await process.wait() == 128 + signal.SIGTERM
