from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.cli import main
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage import migrations
from tests.loopback import listening
from tests.recorder import recorder, status
from tests.support import SmallHost, a_walk, development, until
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]

HOSTS = """
import asyncio, contextlib, os
from tests.support import SmallHost

host = SmallHost(os.environ)

def make():
    return SmallHost(os.environ)

async def make_soon():
    return SmallHost(os.environ)

@contextlib.asynccontextmanager
async def opened():
    print("host opened", flush=True)
    yield SmallHost(os.environ)
    print("host closed", flush=True)

class Shelf:
    host = make

nothing = 7
def broken():
    return object()
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with hosts of every kind, importable from the working directory."""
    name = f"hosts_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(HOSTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@asynccontextmanager
async def worker(host: str, cwd: Path, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``flowactions worker``; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "flowactions_plugin.cli",
        "worker",
        "--host",
        host,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def has_said(process: asyncio.subprocess.Process, words: str) -> None:
    """Wait until a process has logged something."""
    assert process.stdout is not None
    async with asyncio.timeout(SAFETY_SECONDS):
        while words not in (await process.stdout.readline()).decode():
            assert not process.stdout.at_eof()


async def output(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SAFETY_SECONDS):
        shown = (await process.stdout.read()).decode()
        await process.wait()
    return shown


@pytest.mark.parametrize("name", ["host", "make", "make_soon", "opened", "Shelf.host"])
async def test_a_worker_delivers_for_any_kind_of_host(
    database_url: str, hosts: str, tmp_path: Path, name: str
) -> None:
    """The host only enqueues; the worker delivers, and ends with 0 on SIGTERM."""
    settings = development(database_url, FLOWACTIONS_HOST_WORKER="off")
    actions = FlowActions.load(SmallHost(settings))
    async with recorder() as receiver, actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
        await actions.reach(a_walk(), node)
        async with worker(f"{hosts}:{name}", tmp_path, **settings) as process:
            await until(lambda: receiver.requests)
            process.send_signal(signal.SIGTERM)
            shown = await output(process)
        assert (process.returncode, "has stopped" in shown) == (0, True)
        assert len(receiver.requests) == 1
    assert ("host closed" in shown) == (name == "opened")


async def test_a_stop_finishes_what_is_being_sent_and_claims_no_more(
    database_url: str, hosts: str, tmp_path: Path
) -> None:
    """On SIGTERM in the middle of a request, its outcome is still written, and what waits goes on waiting."""
    settings = development(database_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_CLAIM_LIMIT="1")
    actions = FlowActions.load(SmallHost(settings))
    async with slow_receiver() as (url, arrived, answer), actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": url})
        for _ in range(3):
            await actions.reach(a_walk(), node)
        async with worker(f"{hosts}:make", tmp_path, **settings) as process:
            await arrived.wait()
            process.send_signal(signal.SIGTERM)
            await has_said(process, "stopping: ")
            answer.set()
            await output(process)
        assert process.returncode == 0
        rows = await stored(database_url)
        assert sorted(rows) == [("delivered", 1, None), ("pending", 0, None), ("pending", 0, None)]


async def test_a_second_signal_ends_it_at_once(hosts: str, tmp_path: Path) -> None:
    """Who does not want to wait for a slow receiver need not; its row is taken over later."""
    url = f"sqlite:///{tmp_path / 'f.db'}"
    settings = development(url, FLOWACTIONS_HOST_WORKER="off")
    actions = FlowActions.load(SmallHost(settings))
    async with slow_receiver() as (receiver, arrived, _), actions.lifespan():
        await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": receiver}))
        async with worker(f"{hosts}:make", tmp_path, **settings) as process:
            await arrived.wait()
            process.send_signal(signal.SIGTERM)
            await has_said(process, "stopping: ")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(SAFETY_SECONDS):
                assert await process.wait() == -signal.SIGTERM


async def test_a_host_that_leaves_delivering_to_workers_delivers_nothing(tmp_path: Path) -> None:
    """With FLOWACTIONS_HOST_WORKER=off the host's own process has no background task."""
    actions = FlowActions.load(
        SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off"))
    )
    assert actions._tasks == ()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("hosts", "write it as 'package.module:name'"),
        (":make", "write it as 'package.module:name'"),
        ("no_such_module:make", "no module 'no_such_module'"),
        ("{hosts}:missing", "has no 'missing'"),
        ("{hosts}:nothing", "gives int, not a Host"),
        ("{hosts}:broken", "gives object, not a Host"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(
    hosts: str, capsys: pytest.CaptureFixture[str], named: str, told: str
) -> None:
    """The mistake is said in one line, and the exit status is 2."""
    for command in ("worker", "migrate"):
        assert main([command, "--host", named.format(hosts=hosts)]) == 2
        shown = capsys.readouterr().err
        assert told in shown
        assert shown.count("\n") == 1


def test_settings_that_cannot_be_used_are_told(
    hosts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong setting is an error in one line, too."""
    monkeypatch.setenv("FLOWACTIONS_CLAIM_LIMIT", "many")
    assert main(["worker", "--host", f"{hosts}:make"]) == 2
    assert "FLOWACTIONS_CLAIM_LIMIT must be a number" in capsys.readouterr().err


def test_migrate_makes_the_tables(
    database_url: str,
    hosts: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--check`` only looks; migrating twice is once too often and harmless; a host names its own database."""
    monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", database_url)
    head = migrations.head()
    assert main(["migrate", "--check"]) == 1
    assert capsys.readouterr().out == f"tables at none, this release at {head}\n"
    assert main(["migrate", "--host", f"{hosts}:make"]) == 0
    assert capsys.readouterr().out == f"tables brought from none to {head}\n"
    assert main(["migrate"]) == 0
    assert capsys.readouterr().out == f"tables at {head}\n"
    assert main(["migrate", "--check"]) == 0


def test_migrate_without_a_database_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreachable database is one line and exit status 1."""
    monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/x")
    assert main(["migrate"]) == 1
    assert "the database failed" in capsys.readouterr().err


@asynccontextmanager
async def slow_receiver() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Give a receiver's URL, whether a request has arrived, and what makes it answer."""
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await answer.wait()
        writer.write(status(200))
        await writer.drain()

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}/", arrived, answer


async def stored(database_url: str) -> list[tuple[str, int, str | None]]:
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    try:
        async with engine.connect() as connection:
            rows = await connection.execute(
                text("SELECT status, attempts, claim_token FROM flowactions_outbox")
            )
            return [(row[0], row[1], row[2]) for row in rows]
    finally:
        await engine.dispose()
