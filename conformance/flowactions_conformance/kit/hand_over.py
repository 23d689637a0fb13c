"""How a run takes over what a served host talks to: `serve-env` gives it its open ports, and serves again when it has ended.

The run connects to a Unix socket, in a folder that only this user can enter, and gets the ports themselves: nobody is refused
meanwhile. With them come the probe's reports so far. Back go those that a later run needs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from flowactions_conformance.kit.bench import Listeners
from flowactions_conformance.kit.hosts.child_wire import LINE_LIMIT
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.control import LASTING, Control, Event
from flowactions_conformance.variables import DESK

HAND_OVER_SECONDS: Final = 30.0
"""How long a run waits for `serve-env`, which may still answer requests (at most 5 s) or serve another run."""
Run = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Report = tuple[float, dict[str, Any]]
"""One of the probe's, with the time at which it came."""


class ServedAt(NamedTuple):
    """A host that somebody else has started: the file that `serve-env` has written, and what is in it."""

    file: Path
    environ: Mapping[str, str]


def written(environment: Mapping[str, str]) -> str:
    """Return an environment as lines for a shell, and for `read_environment`."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())


def read_environment(path: Path) -> ServedAt:
    """Read what `serve-env` has written.

    Raises:
        DriverFault: the file cannot be read, or is another one.
    """
    try:
        words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    except (OSError, ValueError) as exc:
        raise DriverFault(f"the environment {path} cannot be read: {exc}") from exc
    environ = {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
    if DESK not in environ:
        raise DriverFault(
            f"the environment {path} is none: it has to hold lines NAME=value, as serve-env writes them"
        )
    return ServedAt(path, environ)


def _report_of(event: Event) -> Report:
    return event.at, {"kind": event.kind, "host": event.host, "pid": event.pid, **event.data}


@asynccontextmanager
async def desk(path: Path) -> AsyncIterator[asyncio.Queue[Run]]:
    """Accept runs at a Unix socket, which are served one after the other."""
    asked: asyncio.Queue[Run] = asyncio.Queue()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait((reader, writer))

    server = await asyncio.start_unix_server(connected, path, limit=LINE_LIMIT)
    try:
        yield asked
    finally:
        server.close()


async def hand_over(run: Run, control: Control, ports: Sequence[socket.socket]) -> None:
    """Give the unused ports to a run, and wait until it ends; the control keeps the reports that the run sends back."""
    reader, writer = run
    # A run that is killed may leave half of a line.
    with suppress(OSError, ValueError):
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
            socket.send_fds(connection, [b"\n"], [each.fileno() for each in ports])
        told = [_report_of(event) for event in control.events if event.kind in LASTING]
        writer.write(msgspec.json.encode(told) + b"\n")
        while line := await reader.readline():
            at, report = msgspec.json.decode(line, type=Report)
            control.keep(report, at)
    writer.close()


@asynccontextmanager
async def borrowed(environ: Mapping[str, str], control: Control) -> AsyncIterator[Listeners]:
    """Serve instead of `serve-env`, which serves again when this is left.

    Args:
        environ: what it has written.
        control: learns of the reports so far; those that a later run needs are passed on as they come.

    Raises:
        DriverFault: it is not there, or another run has it.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(HAND_OVER_SECONDS)
        connection.connect(environ[DESK])
        _, ports, _, _ = await asyncio.to_thread(socket.recv_fds, connection, 1, len(Listeners._fields))
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_LIMIT)
        for at, report in msgspec.json.decode(await reader.readline(), type=list[Report]):
            control.keep(report, at)
    except (OSError, ValueError) as exc:
        connection.close()
        raise DriverFault(
            "serve-env does not hand over: another run uses it, or it has ended. Start `python -m flowactions_conformance serve-env`,"
            " and your host with the environment that it writes"
        ) from exc

    def pass_on(event: Event) -> None:
        if event.kind in LASTING:
            writer.write(msgspec.json.encode(_report_of(event)) + b"\n")

    stop = control.listen(pass_on)
    try:
        yield Listeners(*(socket.socket(fileno=port) for port in ports))
    finally:
        stop()
        writer.close()
