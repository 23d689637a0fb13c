"""Python programs in processes of their own, forked from `tests.crash.zygote`; used as `asyncio.subprocess.Process` is."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
STARTING_SECONDS = 120
_STARTING = threading.Lock()


class Forked:
    """A running program.

    Attributes:
        pid: its process id.
        returncode: how it has ended, as `subprocess.Popen` tells it; ``None`` while it runs.
        stdin: writes to its standard input; only when it was started with pipes.
        stdout: reads its standard output; likewise.
    """

    def __init__(
        self,
        pid: int,
        status: asyncio.StreamReader,
        end: asyncio.StreamWriter,
        stdin: asyncio.StreamWriter | None,
        stdout: asyncio.StreamReader | None,
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self._ended = asyncio.create_task(self._wait(status, end))

    async def _wait(self, status: asyncio.StreamReader, end: asyncio.StreamWriter) -> int:
        line = await status.readline()
        self.returncode = int(line)
        end.close()
        return self.returncode

    async def wait(self) -> int:
        """Wait for the end; give the return code."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

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
    request = {"module": module, "arguments": arguments, "env": dict(environment), "cwd": str(cwd)}
    stdin: asyncio.StreamWriter | None = None
    stdout: asyncio.StreamReader | None = None
    ours: list[int] = []
    if output is not None:
        theirs = [os.open(os.devnull, os.O_RDONLY), output.fileno(), (errors or output).fileno()]
        opened = theirs[:1]
    else:
        their_input, our_input = os.pipe()
        our_output, their_output = os.pipe()
        theirs, opened = [their_input, their_output, 2], [their_input, their_output]
        ours = [our_output, our_input]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await asyncio.to_thread(_ask, connection, json.dumps(request).encode() + b"\n", theirs)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    status, end = await asyncio.open_unix_connection(sock=connection)
    pid = int(await status.readline())
    if ours:
        stdout, stdin = await _pipes(ours[0], ours[1], limit)
    return Forked(pid, status, end, stdin, stdout)


async def _pipes(output: int, stdin: int, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(stdin, "wb")
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _ask(connection: socket.socket, request: bytes, descriptors: list[int]) -> None:
    connection.connect(_zygote())
    sent = socket.send_fds(connection, [request], descriptors)
    connection.sendall(request[sent:])


def _zygote() -> str:
    with _STARTING:
        return _started()


@cache
def _started() -> str:
    """Start the process that forks, once for this process; give its socket."""
    directory = tempfile.TemporaryDirectory(prefix="flowactions-zygote-", ignore_cleanup_errors=True)
    path = str(Path(directory.name) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.zygote", path], cwd=ROOT, stdin=subprocess.PIPE
    )

    def stop() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        directory.cleanup()

    atexit.register(stop)
    deadline = time.monotonic() + STARTING_SECONDS
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == 0:
                return path
        assert process.poll() is None, "the process that forks did not start"
        assert time.monotonic() < deadline, "the process that forks did not start in time"
        time.sleep(0.05)
