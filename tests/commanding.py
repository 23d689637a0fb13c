"""Runs ``flowactions`` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.forking import fork
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[1]


class Ended(NamedTuple):
    """How a command has ended.

    Attributes:
        code: its exit status.
        out: its standard output.
        err: its standard error.
    """

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it has written as JSON."""
        return json.loads(self.out)


@asynccontextmanager
async def running(
    *arguments: str, cwd: Path, stdout: int, stderr: int, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command while the block runs; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowactions_plugin.cli", *arguments),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def command(*arguments: str, cwd: Path, **settings: str) -> Ended:
    """Run a command; give how it has ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = await fork(
            "flowactions_plugin.cli", *arguments, environment=environment, output=output, errors=errors, cwd=cwd
        )
        async with asyncio.timeout(SAFETY_SECONDS):
            code = await process.wait()
        output.seek(0)
        errors.seek(0)
        return Ended(code, output.read().decode(), errors.read().decode())
