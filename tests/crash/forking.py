"""Python programs in processes of their own; used as `asyncio.subprocess.Process` is.

A process that has imported everything forks them: starting an interpreter anew takes seconds of processor time, and tests start
hundreds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_FORKING = multiprocessing.get_context("forkserver")
_STARTING = threading.Lock()
_PATH = tuple(sys.path)
"""Where programs find modules: not where a test lets this process find some, too, which `multiprocessing` would hand on."""


class Forked:
    """A running program.

    Attributes:
        pid: its process id.
        stdin: writes to its standard input; only when it was started with pipes.
        stdout: reads its standard output; likewise.
    """

    def __init__(
        self, process: BaseProcess, stdin: asyncio.StreamWriter | None, stdout: asyncio.StreamReader | None
    ) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.stdin = stdin
        self.stdout = stdout
        self._process = process
        self._ended = asyncio.create_task(self._wait())

    @property
    def returncode(self) -> int | None:
        """How it has ended, as `subprocess.Popen` tells it; ``None`` while it runs."""
        return self._process.exitcode

    async def _wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        assert self.returncode is not None
        return self.returncode

    async def wait(self) -> int:
        """Wait for the end; give the return code."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


async def fork(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
    limit: int = 1 << 16,
    cwd: Path = ROOT,
) -> Forked:
    """Run ``python -m module arguments`` in a process of its own.

    Args:
        module: the program.
        arguments: its arguments.
        environment: all of its environment.
        output: where its standard output goes, and its error. ``None``: pipes for input and output, and the test's own
            error.
        errors: where its error goes instead.
        limit: of a line that is read of its output.
        cwd: its working directory, where modules are found first.
    """
    await asyncio.to_thread(_started)
    ours: list[int] = []
    if output is not None:
        theirs = [os.open(os.devnull, os.O_RDONLY), *(os.dup(e.fileno()) for e in (output, errors or output))]
    else:
        their_input, our_input = os.pipe()
        our_output, their_output = os.pipe()
        theirs, ours = [their_input, their_output, os.dup(2)], [our_output, our_input]
    descriptors = [Connection(each) for each in theirs]
    try:
        program = (module, arguments, dict(environment), (str(cwd), *_PATH), descriptors)
        process = _FORKING.Process(target=_run, args=program, daemon=True)
        process.start()
    finally:
        for each in descriptors:
            each.close()
    stdout, stdin = await _pipes(ours[0], ours[1], limit) if ours else (None, None)
    return Forked(process, stdin, stdout)


async def _pipes(output: int, stdin: int, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(stdin, "wb")
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _run(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    path: Sequence[str],
    descriptors: Sequence[Connection],
) -> None:
    """Be the program that was asked for, with descriptors as standard input, output and error."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor.fileno(), number)
        descriptor.close()
    sys.stdin = open(0)  # noqa: SIM115  which `multiprocessing` has closed
    os.chdir(path[0])
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _started() -> None:
    with _STARTING:
        _start()


@cache
def _start() -> None:
    """Start the process that forks, once for this process, and wait until it has imported everything."""
    _FORKING.set_forkserver_preload(["tests.crash.preloaded"])
    with chdir(ROOT):
        first = _FORKING.Process(target=int, daemon=True)
        first.start()
    first.join()
