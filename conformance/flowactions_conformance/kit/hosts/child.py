"""The child process in which a host runs: ``python -m flowactions_conformance.kit.hosts.child``, started by `processes`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from flowactions_conformance.kit.hosts.child_wire import LEFT, LINE_LIMIT, Call, Reply, Start
from flowactions_conformance.kit.hosts.hosting import call_driver, live, load_factory, types_of
from flowactions_conformance.kit.hosts.output import LogLines, Output, encodable
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.under_test import HostDriver


class Child:
    """The child's side of the connection.

    Args:
        reader: from the parent.
        writer: to the parent.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stopping = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._host: HostDriver | None = None

    async def run(self, start: Start) -> int:
        """Serve the host until the parent, or a signal, stops it.

        Returns:
            The exit status.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        # Read to the end: a host that starts or stops is asked whether its event loop answers.
        self._reading = asyncio.create_task(self._read())
        output = Output()
        # The kit reads what is printed. `basicConfig` does nothing once the root logger has a handler, so it is called first.
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger().addHandler(LogLines(output))
        try:
            await live(
                load_factory(start.factory),
                start.env,
                _inherited(start.listener),
                self._serving,
                lambda about: self._reply(Reply(number=0, value=msgspec.to_builtins(about))),
                output,
            )
        except DriverFault as exc:
            self._reply(Reply(number=0, error=str(exc)))
        except OSError as exc:
            self._reply(Reply(number=0, error=f"its port cannot be used: {exc}"))
        else:
            self._reply(Reply(number=LEFT, value=time.monotonic()))
            return 0
        with suppress(ConnectionError):
            await self._writer.drain()
        return 1

    async def _serving(self, host: HostDriver, started: Callable[[], None]) -> None:
        self._host = host
        started()
        await self._stopping.wait()

    async def _read(self) -> None:
        while line := await self._reader.readline():
            task = asyncio.create_task(self._answer(msgspec.json.decode(line, type=Call)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        self._stopping.set()  # the parent is gone

    async def _answer(self, call: Call) -> None:
        if self._host is None:
            self._reply(Reply(number=call.number))
            return
        try:
            types, _ = types_of(call.method)
            arguments = tuple(
                msgspec.convert(value, kind) for value, kind in zip(call.arguments, types, strict=False)
            )
            value = await call_driver(self._host, call.method, arguments)
            self._reply(Reply(number=call.number, value=msgspec.to_builtins(value)))
        except NotImplementedError as exc:
            self._reply(Reply(number=call.number, missing=str(exc) or call.method))
        except DriverFault as exc:
            self._reply(Reply(number=call.number, error=str(exc)))

    def _reply(self, reply: Reply) -> None:
        self._writer.write(msgspec.json.encode(encodable(msgspec.to_builtins(reply))) + b"\n")


def _inherited(descriptor: int) -> socket.socket:
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    return connection


async def _main() -> int:
    reader, writer = await asyncio.open_connection(sock=_inherited(int(sys.argv[1])), limit=LINE_LIMIT)
    # The one type that JSON does not have is the path of the state folder.
    start = msgspec.json.decode(await reader.readline(), type=Start, dec_hook=lambda kind, text: kind(text))
    sys.path[:0] = [folder for folder in start.path if folder not in sys.path]
    return await Child(reader, writer).run(start)


def _leave_with_parent() -> None:
    """End the process when its parent is gone, even when the host blocks the event loop."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        # With whatever the host has started: the parent gave this process a group of its own.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _leave_with_parent()
    sys.exit(asyncio.run(_main()))
