from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from flowactions_conformance.demo import main as demo
from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.cli import main
from flowactions_plugin.storage import migrations
from tests.commanding import command as command_of
from tests.commanding import running
from tests.loopback import listening
from tests.outages import Door, a_database, execute
from tests.recorder import recorder, status
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS, until, within

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


def worker(host: str, cwd: Path, **settings: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run ``flowactions worker``; killed at the end if it still runs."""
    pipe, stdout = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    return running("worker", "--host", host, cwd=cwd, stdout=pipe, stderr=stdout, **settings)


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


@sampled("name", ["host", "make", "make_soon", "opened", "Shelf.host"], size=1)
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


@sampled("number", [signal.SIGTERM, signal.SIGHUP], size=1)
async def test_a_stop_finishes_what_is_being_sent_and_claims_no_more(
    database_url: str, hosts: str, tmp_path: Path, number: int
) -> None:
    """On a signal in the middle of a request, its outcome is still written, and what waits goes on waiting.

    A terminal that is closed sends SIGHUP more than once.
    """
    settings = development(database_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_CLAIM_LIMIT="1")
    actions = FlowActions.load(SmallHost(settings))
    async with slow_receiver() as (url, arrived, answer), actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": url})
        for _ in range(3):
            await actions.reach(a_walk(), node)
        async with worker(f"{hosts}:make", tmp_path, **settings) as process:
            await arrived.wait()
            process.send_signal(number)
            await has_said(process, "stopping: ")
            process.send_signal(signal.SIGHUP)
            answer.set()
            await output(process)
        assert process.returncode == 0
        rows = await stored(database_url)
        assert sorted(rows) == [("delivered", 1, None), ("pending", 0, None), ("pending", 0, None)]


@pytest.mark.ci
async def test_a_stop_ends_before_orchestrators_kill(postgres_url: str, hosts: str, tmp_path: Path) -> None:
    """Of a worker and of a host's lifespan, while the database swallows bytes: within 25 s, of Kubernetes' thirty."""
    door = Door(postgres_url)
    async with recorder() as receiver, door.url() as through:
        settings = development(through, FLOWACTIONS_DELIVERY="continuous", FLOWACTIONS_TICK_SECONDS="0.2")
        actions = FlowActions.load(SmallHost(settings))
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(actions.lifespan())
            async with worker(f"{hosts}:make", tmp_path, FLOWACTIONS_HOST_WORKER="off", **settings) as process:
                await has_said(process, "delivers")
                for _ in range(20):
                    await actions.reach(a_walk(), node)
                await until(lambda: receiver.requests)
                door.is_open = False
                await asyncio.sleep(2)  # until both are in the middle of a statement
                process.send_signal(signal.SIGTERM)
                async with within(25):
                    await asyncio.gather(opened.aclose(), output(process))
                assert process.returncode == 0


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


@pytest.mark.ci
async def test_a_worker_outlives_its_terminal_if_it_should(hosts: str, tmp_path: Path) -> None:
    """`nohup` has it ignore SIGHUP: it goes on, and SIGTERM ends it."""
    settings = development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off")
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with worker(f"{hosts}:make", tmp_path, **settings) as process:
            signal.signal(signal.SIGHUP, usual)
            await has_said(process, "delivers")
            process.send_signal(signal.SIGHUP)
            actions = FlowActions.load(SmallHost(settings))
            async with recorder() as receiver, actions.lifespan():
                await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": receiver.url}))
                await until(lambda: receiver.requests)
                process.send_signal(signal.SIGTERM)
                assert "has stopped" in await output(process)
    finally:
        signal.signal(signal.SIGHUP, usual)


async def test_a_host_that_leaves_delivering_to_workers_delivers_nothing(tmp_path: Path) -> None:
    """With FLOWACTIONS_HOST_WORKER=off the host's own process has no background task but that of its metrics."""
    actions = FlowActions.load(
        SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off"))
    )
    assert [task.name for task in actions._core._tasks] == ["flowactions gauges"]


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


def test_before_the_first_start_doctor_says_what_makes_the_tables(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database without tables, or a file of SQLite that is not there yet: no revision is named."""
    monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", database_url)
    assert main(["doctor"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "no tables yet" in shown
    assert "the worker or 'flowactions migrate' makes them" in shown
    assert "revision" not in shown


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
    assert capsys.readouterr().out == f"no tables yet, this release at {head}\n"
    assert main(["migrate", "--host", f"{hosts}:make"]) == 0
    assert capsys.readouterr().out == f"created the tables (revision {head})\n"
    assert main(["migrate"]) == 0
    assert capsys.readouterr().out == f"tables at {head}\n"
    assert main(["migrate", "--check"]) == 0


TROUBLES = {
    # what is wrong: (the setting FLOWACTIONS_DATABASE_URL, the host's name, what the line says, the exit status)
    "no directory": ("sqlite:///{tmp}/no/f.db", "make", "the directory {tmp}/no", 2),
    "no database": ("sqlite:///{tmp}/text.db", "make", "file is not a database", 1),
    "in memory": ("sqlite://", "make", "FLOWACTIONS_DATABASE_URL must name a file", 2),
    "no URL": ("postgresql://h:s3cret/x", "make", "FLOWACTIONS_DATABASE_URL must", 2),
    "unknown option": ("postgresql://h/x?foo=s3cret", "make", "the option foo", 2),
    "a typo in it": ("{url}", "typo:make", "could not be made: SyntaxError in", 2),
    "an import in it": ("{url}", "imports:make", "ModuleNotFoundError of 'not_there_at_all' in", 2),
    "it leaves": ("{url}", "leaves:make", "SystemExit in", 2),
    "making it fails": ("{url}", "raises", "could not be made: RuntimeError in", 2),
    "opening it fails": ("{url}", "opening", "could not be made: RuntimeError in", 2),
}
UNREACHABLE = {
    "read-only": ("{readonly}", "readonly database", 1),
    "nobody there": ("postgresql://u:s3cret@127.0.0.1:1/x", "the database failed", 1),
    "a wrong user": ("{wrong}", "see that the user name and password", 1),
    "no such database": ("{absent}", "make the database", 1),
    "no right to make tables": ("{plain}", "flowactions migrate", 1),
}
"""What a worker waits for, as a host does, but a command that has something to do now does not."""

KEYS = {"FLOWACTIONS_ENCRYPTION_KEYS": base64.b64encode(bytes(32)).decode()}
FAULTY = {
    "typo": "def make(:\n",
    "imports": "import not_there_at_all\n",
    "leaves": "raise SystemExit('s3cret')\n",
}
FAULTY_HOSTS = """
def raises():
    raise RuntimeError("s3cret")

@contextlib.asynccontextmanager
async def opening():
    raise RuntimeError("s3cret")
    yield

@contextlib.asynccontextmanager
async def closing():
    yield SmallHost(os.environ)
    raise RuntimeError("s3cret")
"""


async def run(*arguments: str, cwd: Path, **settings: str) -> tuple[int, str]:
    """Run the command in a process of its own; give its exit status and standard error."""
    ended = await command_of(*arguments, cwd=cwd, **settings)
    return ended.code, ended.err


class TestTrouble:
    @pytest.fixture
    def place(self, tmp_path: Path, hosts: str) -> dict[str, str]:
        """Fill a working directory; gives what stands in braces above."""
        module = tmp_path / f"{hosts}.py"
        module.write_text(module.read_text() + FAULTY_HOSTS)
        for name, source in FAULTY.items():
            (tmp_path / f"{name}.py").write_text(source)
        (tmp_path / "text.db").write_text("a text that is longer than the header of a database " * 50)
        database = tmp_path / "there.db"
        sqlite3.connect(database).close()
        url = f"sqlite:///{database}"
        return {"tmp": str(tmp_path), "url": url, "readonly": f"sqlite:///file:{database}?mode=ro&uri=true"}

    @pytest.mark.parametrize("trouble", TROUBLES)
    async def test_what_an_operator_can_cause_is_one_line(
        self, trouble: str, place: dict[str, str], hosts: str, tmp_path: Path
    ) -> None:
        """Of every command: it says what to do, has its exit status, and shows neither a traceback nor a secret."""
        url, name, told, status = TROUBLES[trouble]
        host = name if ":" in name else f"{hosts}:{name}"
        settings = {"FLOWACTIONS_DATABASE_URL": url.format(**place), **KEYS}
        commands = ("worker", "migrate", "reseal")
        results = await asyncio.gather(
            *(run(each, "--host", host, cwd=tmp_path, **settings) for each in commands)
        )
        for command, (code, shown) in zip(commands, results, strict=True):
            assert (code, shown.count("\n")) == (status, 1), (command, shown)
            assert told.format(**place) in shown
            assert "s3cret" not in shown

    @pytest.mark.parametrize("trouble", UNREACHABLE)
    async def test_a_database_that_cannot_be_used_is_one_line(
        self, trouble: str, place: dict[str, str], postgres_servers: dict[str, str], tmp_path: Path
    ) -> None:
        """Of the commands that need it now; without a host, too."""
        url, told, status = UNREACHABLE[trouble]
        settings = {"FLOWACTIONS_DATABASE_URL": url.format(**place, **postgres_servers), **KEYS}
        commands = (["migrate"], ["migrate", "--check"], ["reseal"])
        results = await asyncio.gather(*(run(*each, cwd=tmp_path, **settings) for each in commands))
        for command, (code, shown) in zip(commands, results, strict=True):
            assert "s3cret" not in shown
            assert "Traceback" not in shown
            if trouble == "no right to make tables" and "--check" in command:
                assert (code, shown) == (1, "")  # there is something to do
                continue
            assert (code, shown.count("\n")) == (status, 1), (command, shown)
            assert told in shown

    async def test_a_traceback_is_there_for_who_asks(
        self, place: dict[str, str], hosts: str, tmp_path: Path
    ) -> None:
        """--log-level debug shows where a host's own code failed."""
        settings = {"FLOWACTIONS_DATABASE_URL": place["url"]}
        code, shown = await run(
            "--log-level", "debug", "migrate", "--host", f"{hosts}:raises", cwd=tmp_path, **settings
        )
        assert code == 2
        assert "Traceback" in shown
        assert shown.splitlines()[-1].startswith("flowactions: the host")

    async def test_a_host_that_cannot_be_closed_is_told(
        self, place: dict[str, str], hosts: str, tmp_path: Path
    ) -> None:
        """What the command has done stays done."""
        settings = {"FLOWACTIONS_DATABASE_URL": place["url"]}
        code, shown = await run("migrate", "--host", f"{hosts}:closing", cwd=tmp_path, **settings)
        assert code == 1
        assert "Traceback" not in shown
        assert "failed unexpectedly: RuntimeError in " in shown.splitlines()[-1]
        assert "s3cret" not in shown
        assert (await run("migrate", "--check", cwd=tmp_path, **settings))[0] == 0

    @pytest.mark.usefixtures("queue")
    async def test_tables_of_another_release_are_one_line(
        self, database_url: str, hosts: str, tmp_path: Path
    ) -> None:
        """Newer ones have an exit status of their own; a worker does not wait until older ones are what it needs."""
        host, settings = ("--host", f"{hosts}:make"), {"FLOWACTIONS_DATABASE_URL": database_url, **KEYS}
        newer = (("migrate",), ("migrate", "--check"), ("migrate", *host), ("reseal",))
        for revision, code, told, commands in (
            ("9999", 3, "revision 9999, which is newer", newer),
            ("0009", 1, "begin a new database", (("worker", *host),)),
        ):
            await execute(database_url, f"UPDATE flowactions_version SET version_num = '{revision}'")  # noqa: S608
            for each in await asyncio.gather(*(run(*words, cwd=tmp_path, **settings) for words in commands)):
                assert (each[0], each[1].count("\n"), told in each[1]) == (code, 1, True), each

    @pytest.fixture
    def postgres_servers(self, postgres_url: str) -> Iterator[dict[str, str]]:
        """URLs of one PostgreSQL that do not do: a wrong user, no such database, a role with no rights."""
        name = f"plain_{os.urandom(4).hex()}"
        url = make_url(postgres_url)
        asyncio.run(execute(postgres_url, f"CREATE ROLE {name} LOGIN PASSWORD 's3cret'"))
        plain = url.set(username=name, password="s3cret")
        yield {
            "wrong": url.set(username="nobody_here", password="s3cret").render_as_string(hide_password=False),
            "absent": url.set(database="absent").render_as_string(hide_password=False),
            "plain": plain.render_as_string(hide_password=False),
        }
        asyncio.run(execute(postgres_url, f"DROP ROLE {name}"))


def test_a_demo_whose_port_is_in_use_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert demo(["--port", str(port)]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"port {port} cannot be used: Address already in use; give another with --port" in shown
    assert demo(["--port", "70000"]) == 1


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
    async with a_database(database_url) as database, database.read() as connection:
        rows = await connection.execute(text("SELECT status, attempts, claimed_by FROM flowactions_outbox"))
        return [(row[0], row[1], row[2]) for row in rows]
