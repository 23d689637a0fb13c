"""Runs a host in a child process, which can be killed: the parent's side.

They talk in lines of JSON over a connection of their own, so that what the host prints disturbs nothing.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowactions_conformance.kit.hosts.child_wire import LEFT, LINE_LIMIT, Call, Reply, Start
from flowactions_conformance.kit.hosts.hosting import About, Running, types_of
from flowactions_conformance.kit.hosts.limits import Patience
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import DriverFault, NothingKnown
from flowactions_conformance.kit.under_test import Env


class ChildProcess(Running):
    """A host in a child process.

    Args:
        factory: ``package.module:attribute``.
        env: for the factory.
        listener: an open port, which the child inherits: nobody else can take it meanwhile. Closed here at the start.
        path: further folders for the child's ``sys.path``.
        patience: how it is waited for.
        output: what it prints.
    """

    def __init__(
        self,
        factory: str,
        env: Env,
        listener: socket.socket,
        path: Sequence[str],
        patience: Patience,
        output: Output,
    ) -> None:
        super().__init__(env, patience, output)
        self._start = Start(
            factory=factory,
            env=env,
            listener=listener.fileno(),
            path=(*path, *filter(None, sys.path), str(Path.cwd())),
        )
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._reading: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start it.

        Raises:
            DriverFault: it could not be made or started, or not in time.
        """
        ready = self._waiting[0] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self._writer.write(msgspec.json.encode(self._start, enc_hook=str) + b"\n")
        # A pipe of its own: with asyncio's, wait() would also wait for every grandchild that keeps it open.
        reading, writing = os.pipe()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowactions_conformance.kit.hosts.child",
            str(theirs.fileno()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=[theirs.fileno(), self._listener.fileno()],
            start_new_session=True,  # so that what the host starts can be ended with it
        )
        os.close(writing)
        theirs.close()
        self._listener.close()
        reads = self._read_output(reading), self._read_replies(reader, process)
        self._reading = [asyncio.create_task(each) for each in reads]
        try:
            await self._started(self._about(ready))
        except (DriverFault, NothingKnown):
            await self.kill()
            raise

    async def _about(self, ready: asyncio.Future[Reply]) -> About:
        return msgspec.convert(_value(await ready), About)

    async def _read_replies(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
        # A child that ends before it has read all resets the connection.
        with suppress(ConnectionError):
            while line := await reader.readline():
                reply = msgspec.json.decode(line, type=Reply)
                if reply.number == LEFT:
                    self.left_at = reply.value
                waiting = self._waiting.pop(reply.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await process.wait()
        self._lost()

    async def call(self, method: str, *arguments: object) -> Any:
        """See `Running.call`."""
        if self._writer is None or self._process is None or self._process.returncode is not None:
            raise DriverFault(f"{method}() was called on a host that does not run")
        number = secrets.randbits(52) + 1
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        call = Call(number=number, method=method, arguments=[msgspec.to_builtins(each) for each in arguments])
        self._writer.write(msgspec.json.encode(call) + b"\n")
        value, (_, returns) = _value(await self._returned(method, waiting)), types_of(method)
        return None if returns is type(None) else msgspec.convert(value, returns)

    async def stop(self, *, judged: bool = True) -> None:
        """See `Running.stop`."""
        if self._process is None or self._process.returncode is not None:
            await self._close()
            return
        self._process.send_signal(signal.SIGTERM)
        status = await self._stopped(self._has_ended(self._process), self.kill, judged=judged)
        await self._close()
        if status:
            raise DriverFault(
                f"the host failed while it stopped (status {status}):\n{self.output.text()[-2_000:]}"
            )

    async def _has_ended(self, process: asyncio.subprocess.Process) -> int:
        status = await process.wait()
        await asyncio.wait({self._reading[1]})
        return status

    async def kill(self) -> None:
        """See `Running.kill`."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._close()

    async def _close(self) -> None:
        self._lost()
        if self._process is not None:
            # What the host has started, and did not end. The group's id is not used again while one of it lives.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        for task in self._reading:
            # What a grandchild of the host keeps open is not waited for.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.wait({task})
            task.cancel()

    async def _read_output(self, pipe: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
        )
        try:
            while data := await reader.read(1 << 20):
                self.output.write(data.decode("utf-8", "replace"))
        finally:
            transport.close()

    def _lost(self) -> None:
        status = None if self._process is None else self._process.returncode
        for number in list(self._waiting):
            waiting = self._waiting.pop(number)
            if not waiting.done():
                printed = self.output.text()[-3_000:]
                text = f"the host's process ended (status {status}):\n{printed or 'it has printed nothing'}"
                waiting.set_result(Reply(number=number, error=text))


def _value(reply: Reply) -> Any:
    """Return what a reply holds.

    Raises:
        DriverFault: an error.
        NotImplementedError: that the driver lacks the method.
    """
    if reply.missing is not None:
        raise NotImplementedError(reply.missing)
    if reply.error is not None:
        raise DriverFault(reply.error)
    return reply.value
