"""What the benchmarks share: databases, receivers, filled queues, worker processes, and how they are read."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowNodeOrigin, Header, OutboundWebhook
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import LIVE, attempts, outbox
from tests.authority import inner_authority
from tests.benchmarks.processor import memory_mib
from tests.benchmarks.sink import BODY
from tests.own_server import PROGRAMS, own_postgresql
from tests.support import development
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]
FILL = 1000
DATABASES = ("sqlite", "postgres")
HOST = "tests.benchmarks.bare:BareHost"
SERVER_URL = "FLOWACTIONS_TEST_POSTGRES_URL"


@contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM raise an exception within the block, as Ctrl-C does, so that what was started is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


@contextmanager
def a_database(kind: str) -> Iterator[str]:
    """Give the URL of a new database, ``sqlite`` or ``postgres``."""
    with (
        terminable(),
        tempfile.TemporaryDirectory(prefix="flowactions-", ignore_cleanup_errors=True) as directory,
    ):
        if kind == "sqlite":
            yield f"sqlite:///{directory}/f.db"
            return
        if given := os.environ.get(SERVER_URL):
            yield from _a_database_of(given)
            return
        with own_postgresql(Path(directory)) as server:
            yield server.get_uri()


def _a_database_of(server: str) -> Iterator[str]:
    """Give the URL of a new database of a server that runs."""
    name = f"flowactions_{uuid4().hex}"
    asyncio.run(_execute(server, f"CREATE DATABASE {name}"))
    try:
        yield make_url(server).set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _use_server(text: str) -> str:
    """Have this process, and those that it starts, use another PostgreSQL than the wheel's."""
    os.environ[SERVER_URL if "://" in text else PROGRAMS] = text
    return text


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add ``--server`` to a command line."""
    words = "a PostgreSQL: the folder of its programs, or its URL on this machine (default: the wheel's)"
    parser.add_argument("--server", type=_use_server, help=words)


def a_parser(
    description: str | None, *databases: str, one_database: bool = False, **numbers: float
) -> argparse.ArgumentParser:
    """Make the command line that benchmarks share: ``--database``, ``--server``, ``--json``, and an option for each number.

    Args:
        description: for ``--help``.
        databases: those that are measured by default; without any, both.
        one_database: whether one database is measured, and not several.
        numbers: the options' names, without dashes, and their defaults, whose type they have.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = list(databases or DATABASES)
    if one_database:
        parser.add_argument("--database", choices=DATABASES, default=defaults[0])
    else:
        parser.add_argument("--database", choices=DATABASES, nargs="+", default=defaults)
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=type(number), default=number, help=f"default: {number:,}")
    parser.add_argument("--json", action="store_true")
    add_server(parser)
    return parser


def on_each_database(
    description: str | None, measure: Callable[..., Coroutine[Any, Any, dict[str, Any]]], **numbers: float
) -> dict[str, dict[str, Any]]:
    """Be the command line of a benchmark that measures the same on each database, and print the figures of all.

    Args:
        description: for ``--help``.
        measure: gets the URL of a new database and the numbers by name; gives figures by name.
        numbers: the options and their defaults, as of `a_parser`.

    Returns:
        The figures by database.
    """
    options = a_parser(description, one_database=False, **numbers).parse_args()
    logging.disable(logging.INFO)
    given = {name: getattr(options, name) for name in numbers}
    found: dict[str, dict[str, Any]] = {}
    for kind in options.database:
        with a_database(kind) as url:
            found[kind] = asyncio.run(measure(url, **given))
    figures = {f"{kind}_{name}": value for kind, each in found.items() for name, value in each.items()}
    show({**given, "machine": machine(), **figures}, as_json=options.json)
    return found


def opened(url: str) -> Database:
    """Give the database, to be entered."""
    return Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url, statement_seconds=None)


class Receivers(NamedTuple):
    """A process that receives.

    Attributes:
        pid: its id.
        urls: one for each of its ports.
        settings: what a worker needs to deliver there.
    """

    pid: int
    urls: list[str]
    settings: Mapping[str, str]


@contextmanager
def a_receiver(destinations: int) -> Iterator[list[str]]:
    """Give the URLs of a receiver on so many ports: nginx where it is installed, else `sink`."""
    with a_receiver_process(destinations) as receivers:
        yield receivers.urls


@contextmanager
def a_receiver_process(destinations: int, *, tls: bool = False) -> Iterator[Receivers]:
    """Run a receiver on so many ports.

    Args:
        destinations: how many ports.
        tls: whether it takes https, which only nginx can.
    """
    ports = _free_ports(destinations)
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if tls and not nginx:
        raise SystemExit("https needs nginx")
    settings: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="flowactions-") as directory:
        if nginx:
            config = Path(directory, "nginx.conf")
            secured = certificate = ""
            if tls:
                authority, _ = inner_authority(Path(directory))
                ca = Path(directory, "ca.pem")
                ca.write_text(authority)
                settings["FLOWACTIONS_EGRESS_CA_FILE"] = str(ca)
                secured, key = " ssl", f"{directory}/server.pem"
                certificate = f"ssl_certificate {key}; ssl_certificate_key {key};"
            listen = " ".join(f"listen 127.0.0.1:{port}{secured} backlog=1024;" for port in ports)
            config.write_text(
                f"daemon off; pid {directory}/pid; error_log {directory}/log; worker_processes 1;"
                "worker_rlimit_nofile 16384; events { worker_connections 8192; }"
                f"http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {directory};"
                f"server {{ {listen} {certificate} location / {{ return 200 ok; }} }} }}"
            )
            command = [nginx, "-c", str(config)]
        else:
            command = [sys.executable, "-m", "tests.benchmarks.sink", *map(str, ports)]
        with running(command, {}) as process:
            for port in ports:
                _until_listening(port, process)
            scheme = "https" if tls else "http"
            yield Receivers(process.pid, [f"{scheme}://127.0.0.1:{port}/hook" for port in ports], settings)


@contextmanager
def running(
    command: Sequence[str], settings: Mapping[str, str], folder: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a folder and end it with SIGTERM."""
    with terminable():
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **settings}, stdout=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(SAFETY_SECONDS)


def settings_of(url: str, **others: str) -> dict[str, str]:
    """Give the settings of a process that delivers continuously to loopback."""
    return development(url, FLOWACTIONS_DELIVERY="continuous", **others)


def worker(settings: Mapping[str, str]) -> Any:
    """Run ``flowactions worker``; a context manager."""
    command = [sys.executable, "-m", "flowactions_plugin.cli", "--log-level", "error", "worker"]
    return running([*command, "--host", HOST], settings)


def a_webhook(url: str, number: int) -> OutboundWebhook:
    """Make a webhook with a body of some 300 bytes and two headers of its own, as nodes send them."""
    return OutboundWebhook(
        organization_id="acme",
        agent_id="agent-1",
        origin=FlowNodeOrigin(organization_id="acme", agent_id="agent-1", flow_id="flow-1", node_id="node-1"),
        event_type="flow.action",
        entity=f"run-{number}/node-1",
        url=url,
        headers=(Header(key="authorization", value="Bearer token"), Header(key="x-tenant", value="acme")),
        body=BODY % number,
        max_attempts=4,
    )


async def fill(url: str, rows: int, receivers: Sequence[str]) -> None:
    """Enqueue so many webhooks, in turn to each receiver; PostgreSQL then knows of them, as it does within a minute."""
    async with opened(url) as database:
        queue = Outbox(database, EgressGuard(development=True, resolve=Resolver(1)))
        for first in range(0, rows, FILL):
            async with database.write() as connection:
                for number in range(first, min(first + FILL, rows)):
                    webhook = a_webhook(receivers[number % len(receivers)], number)
                    await queue.write(await queue.new_delivery(webhook), connection)
        if rows and database.sql.is_server:
            async with database.write() as connection:
                await connection.execute(text("ANALYZE"))


class Drained(NamedTuple):
    """What emptying a queue took.

    Attributes:
        per_s: deliveries a second, from the first attempt's start to the last outcome's write.
        peak_rss_mib: the highest resident memory of any worker.
        early_rss_mib: resident memory of the first worker a quarter of the way.
        late_rss_mib: at the end.
    """

    per_s: float
    peak_rss_mib: float
    early_rss_mib: float
    late_rss_mib: float


def drain(url: str, rows: int, settings: Mapping[str, str], workers: int = 1) -> Drained:
    """Have worker processes empty a queue, and see that every row was delivered once."""
    with ExitStack() as stack:
        processes = [stack.enter_context(worker({**settings_of(url), **settings})) for _ in range(workers)]
        memory = asyncio.run(_watch(url, processes))
        peak = max(memory_mib(process.pid, "VmHWM") for process in processes)
    started, ended, made, delivered = asyncio.run(_times(url))
    if (made, delivered) != (rows, rows):
        raise RuntimeError(f"{rows} rows, {made} attempts, {delivered} delivered")
    return Drained(rows / (ended - started) * 1000, peak, memory[len(memory) // 4], memory[-1])


async def _watch(url: str, processes: Sequence[subprocess.Popen[bytes]]) -> list[float]:
    """Wait until nothing lives, and give the resident memory of the first worker on the way."""
    live = select(outbox.c.id).where(LIVE).limit(1)
    memory = []
    async with opened(url) as database:
        while True:
            await asyncio.sleep(0.5)
            memory.append(memory_mib(processes[0].pid, "VmRSS"))
            if any(process.poll() is not None for process in processes):
                raise RuntimeError("a worker has ended")
            async with database.read() as connection:
                if (await connection.execute(live)).first() is None:
                    return memory


async def _times(url: str) -> tuple[int, int, int, int]:
    async with opened(url) as database, database.read() as connection:
        # The attempt that delivers a row is kept in the row.
        log = select(func.min(attempts.c.started_at), func.count())
        ended = select(
            func.min(outbox.c.delivered_started_at), func.max(outbox.c.finished_at), func.count()
        ).where(outbox.c.status == "delivered")
        first, failed = (await connection.execute(log)).one()
        started, last, delivered = (await connection.execute(ended)).one()
        return min(started, first or started), last, failed + delivered, delivered


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SAFETY_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as each:
            if each.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


def machine() -> str:
    """Name the machine."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        names = [line.split(":")[1].strip() for line in cpus.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one JSON object, or a line for each figure."""
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else str(value)
        print(f"{name:24} {shown:>14}" if len(shown) < 15 else f"{name:24} {shown}")
