"""How a run takes over what a served host talks to: `serve-env` gives it its open ports, and serves again when it has ended.

The run finds `serve-env` by the probe's address. There it is told of a Unix socket, in a folder that only this user can enter,
and over that it gets the ports themselves: nobody is refused meanwhile. Back go the reports that a later run needs.
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

import httpx
import msgspec

from flowactions_conformance.kit.bench import Bench, Listeners
from flowactions_conformance.kit.hosts.child_wire import LINE_LIMIT
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.control import LASTING, Control, Event
from flowactions_conformance.kit.probing.plugin import ask
from flowactions_conformance.kit.under_test import Wire
from flowactions_conformance.variables import PROBE, PROBE_TOKEN

AGAIN: Final = (
    "start `python -m flowactions_conformance serve-env`, and your host with the environment that it prints"
)
HAND_OVER_SECONDS: Final = 30.0
"""Until `serve-env` has answered what was under way; it takes five seconds at the most."""


class Handed(Wire, frozen=True):
    """What a run is told of the host.

    Args:
        settings: of the host.
        url: at which it is reached.
        state_dir: a folder for the driver.
        database_url: of `Env`.
        server: the URL of the PostgreSQL; ``None``: SQLite.
        events: the probe's reports so far, with their times.
    """

    settings: dict[str, str]
    url: str
    state_dir: str
    database_url: str
    server: str | None
    events: list[tuple[float, dict[str, Any]]]


class Address(NamedTuple):
    """Where `serve-env` is, and the token that it takes."""

    url: str
    token: str


def address_in(environ: Mapping[str, str]) -> Address:
    """Read where `serve-env` is.

    Raises:
        DriverFault: it is not said.
    """
    address = Address(environ.get(PROBE, ""), environ.get(PROBE_TOKEN, ""))
    if not all(address):
        raise DriverFault(
            f"{PROBE} and {PROBE_TOKEN} do not say where serve-env is: {AGAIN}; give run that environment, too, "
            "or the file that `serve-env --file` wrote, by --env"
        )
    return address


def written(environment: Mapping[str, str]) -> str:
    """Return an environment as lines for a shell, and for `read_environment`."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())


def read_environment(path: Path) -> dict[str, str]:
    """Read what `written` has returned.

    Raises:
        DriverFault: the file cannot be read, or is another one.
    """
    try:
        words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    except (OSError, ValueError) as exc:
        raise DriverFault(f"the environment {path} cannot be read: {exc}") from exc
    pairs = [word.partition("=") for word in words if word != "export"]
    if not all(equals for _, equals, _ in pairs):
        raise DriverFault(
            f"the environment {path} is none: it has to hold lines NAME=value, as serve-env writes them"
        )
    return {name: value for name, _, value in pairs}


def _report_of(event: Event) -> tuple[float, dict[str, Any]]:
    return event.at, {"kind": event.kind, "host": event.host, "pid": event.pid, **event.data}


class Desk:
    """The side of `serve-env`.

    Args:
        path: of the Unix socket.
        bench: whose control learns what the run is told.
    """

    def __init__(self, path: Path, bench: Bench) -> None:
        self._path = path
        self._bench = bench
        self._asked: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Accept the requests of runs, one after the other."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._asked.put_nowait((reader, writer))

        server = await asyncio.start_unix_server(connected, self._path, limit=LINE_LIMIT)
        self._bench.control.desk = str(self._path)
        try:
            yield
        finally:
            server.close()

    async def asked(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Wait until a run asks."""
        return await self._asked.get()

    async def hand_over(
        self,
        run: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        handed: Handed,
        ports: Sequence[socket.socket],
    ) -> None:
        """Give the unused ports to a run, and wait until it has ended."""
        reader, writer = run
        control = self._bench.control
        events = [_report_of(event) for event in control.events if event.kind in LASTING]
        # A run that is killed may leave half of a line.
        with suppress(OSError, ValueError):
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
                socket.send_fds(connection, [b"\n"], [each.fileno() for each in ports])
            told = msgspec.structs.replace(handed, events=events)
            writer.write(msgspec.json.encode(told) + b"\n")
            while line := await reader.readline():
                at, report = msgspec.json.decode(line, type=tuple[float, dict[str, Any]])
                control.keep(report, at)
        writer.close()


@asynccontextmanager
async def borrowed(address: Address, control: Control) -> AsyncIterator[tuple[Handed, Listeners]]:
    """Serve instead of `serve-env`, which serves again when this is left.

    Args:
        address: where it is.
        control: learns of the reports so far; those that a later run needs are passed on as they come.

    Raises:
        DriverFault: it is not there, has another token, or another run has it.
    """
    path = await _desk(address)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(HAND_OVER_SECONDS)
        connection.connect(path)
        _, ports, _, _ = await asyncio.to_thread(socket.recv_fds, connection, 1, len(Listeners._fields))
        listeners = Listeners(*(socket.socket(fileno=port) for port in ports))
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_LIMIT)
        handed = msgspec.json.decode(await reader.readline(), type=Handed)
    except (OSError, ValueError) as exc:
        connection.close()
        raise DriverFault(f"serve-env does not hand over: {exc}; {AGAIN}") from exc

    def pass_on(event: Event) -> None:
        if event.kind in LASTING:
            writer.write(msgspec.json.encode(_report_of(event)) + b"\n")

    for at, report in handed.events:
        control.keep(report, at)
    stop = control.listen(pass_on)
    try:
        yield handed, listeners
    finally:
        stop()
        writer.close()


async def _desk(address: Address) -> str:
    try:
        answer = await ask("GET", address.url, address.token, HAND_OVER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise DriverFault(f"no serve-env answers at {address.url}, which {PROBE} names: {AGAIN}") from exc
    match answer.status_code:
        case 200 if answer.text.startswith("/"):
            return answer.text
        case 403:
            raise DriverFault(
                f"serve-env at {address.url} refuses the token in {PROBE_TOKEN}: it is of another serve-env"
            )
        case 409:
            raise DriverFault(f"another run uses serve-env at {address.url}: wait until it has ended")
    raise DriverFault(f"what answers at {address.url}, which {PROBE} names, is no serve-env: {AGAIN}")
