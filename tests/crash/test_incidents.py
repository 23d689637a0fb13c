"""Incidents, staged for real: the commands of the runbook are run as it gives them, and show what it shows."""

from __future__ import annotations

import asyncio
import html
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from flowactions_hookspecs import FlowActions, Operator, Request
from flowactions_plugin.cli.checks import Checks
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.diagnosis import _clock, _writing
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.chatting import chat_host
from tests.commanding import command
from tests.crash.workers import Field, field_on
from tests.loopback import listening
from tests.outages import Outage
from tests.recorder import OK, status
from tests.support import SmallHost, transport_of
from tests.waiting import until

pytestmark = pytest.mark.ci

RUNBOOK = Path(__file__).parents[2] / "docs" / "how-to" / "incidents.md"
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
HOST = "tests.crash.timed_hosts:make"
SOON = "3 1.5 0.3"
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
DESTINATION = "https://hooks.customer.example:443"

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


class Shown(NamedTuple):
    """A command of the runbook, and the lines that it shows of its output."""

    command: str
    lines: list[str]


def shown(incident: str) -> list[Shown]:
    """Give the commands of a section."""
    section = RUNBOOK.read_text().partition(f"\n## {incident}\n")[2].partition("\n## ")[0]
    found: list[Shown] = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        first, *lines = block.splitlines()
        found.append(
            Shown(first.removeprefix("$ flowactions "), [line for line in lines if line not in {"", "…"}])
        )
    return found


def alike(text: str) -> str:
    """Put the same in place of what differs from one run to the next: ids, places, times and numbers."""
    text = re.sub(ID, "ID", text)
    text = re.sub(r"https?://[^\s:/]+:\d+|\b(hooks\.customer\.example|127\.0\.0\.1):\d+", "PLACE", text)
    text = re.sub(rf"\b(app1|{re.escape(socket.gethostname())}):\d+", "WORKER", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    return " ".join(re.sub(r"\d+(\.\d+)?( ms| s\b)?", "N", text).split())


def compare(one: Shown, output: str) -> None:
    """Check that a command printed each line that the runbook shows, apart from what differs between runs."""
    printed = [alike(line) for line in output.splitlines()]
    for line in one.lines:
        assert any(each.startswith(alike(line)) for each in printed), f"{line}\nis not in\n{output}"


async def follow(field: Field, one: Shown, directory: Path, *, url: str = "", row: str = "") -> None:
    """Run a command of the runbook with the id and the place of this run in place of its own, and compare."""
    given = one.command.replace(f"{DESTINATION}/hook", url).replace("--before 5m", "--before 1s")
    ended = await command(*shlex.split(re.sub(ID, row, given)), cwd=directory, **field.settings)
    compare(one, ended.out)


async def ids(field: Field, state: str, most: int = 1) -> list[str]:
    """Give the ids of rows of a status, the oldest first, once there are so many."""
    found = await field.query(f"SELECT id FROM flowactions_outbox WHERE status = '{state}' ORDER BY id")  # noqa: S608
    return [row.id for row in found] if len(found) >= most else []


class OperatedHost(SmallHost):
    """A host whose operator calls."""

    async def operator(self, request: Request) -> Operator | None:
        return Operator(user_id="olive", user_name="Olive", may_change=False)


async def page(settings: Mapping[str, str], path: str) -> str:
    """Open a page as the operator; give its text."""
    actions = FlowActions.load(OperatedHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
    transport = transport_of(actions)
    async with (
        actions.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://host") as browser,
    ):
        answer = await browser.get(f"/integrations/webhooks{path}")
    assert answer.status_code == 200
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", answer.text.partition("<main")[2]).split()))


@pytest.fixture
async def field(database_url: str, tmp_path: Path) -> AsyncIterator[Field]:
    async with field_on(database_url, tmp_path) as made:
        made.settings.update(FLOWACTIONS_DELIVERY="continuous", FLOWACTIONS_ENCRYPTION_KEYS=KEY)
        yield made


@POSTGRESQL
async def test_a_receiver_that_is_down_is_named(field: Field, tmp_path: Path) -> None:
    """By doctor; and a delivery says that nothing has reached it."""
    doctor, show = shown("A receiver is down")
    await field.enqueue(24, webhookUrl="http://127.0.0.1:9/hook", webhookRetryOnFailure=True)
    await field.enqueue(2)
    worker = await field.start(host=HOST)
    await until(lambda: ids(field, "retrying", 24))
    worker.terminate()
    await worker.wait()
    await follow(field, doctor, tmp_path)
    (one, *_) = await ids(field, "retrying")
    await follow(field, show, tmp_path, row=one)
    assert "24 in a row" in await page(field.settings, "/destinations")


@SQLITE
async def test_a_slow_customer_is_named(field: Field, tmp_path: Path) -> None:
    """By the time of workers that it takes; what waits for it says so."""
    stats, show = shown("A customer is slow")
    answered = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b'\r\n\r\n{"user": ')
            await reader.readuntil(b"}")
            await answered.wait()
            writer.write(OK)

    field.settings["FLOWACTIONS_DESTINATION_LIMIT"] = "2"
    async with listening(slow) as port:
        await field.enqueue(4, webhookUrl=f"http://127.0.0.1:{port}/hook")
        await field.enqueue(20)
        await field.start(host=HOST)
        await until(lambda: ids(field, "delivered", 20))
        waiting = await ids(field, "pending", 4)
        await follow(field, show, tmp_path, row=waiting[-1])
        answered.set()
        await until(lambda: ids(field, "delivered", 24))
        await field.stop()
    await follow(field, stats, tmp_path)
    assert f"http://127.0.0.1:{port} acme" in await page(field.settings, "")


@POSTGRESQL
async def test_a_database_that_is_away_is_told(field: Field, tmp_path: Path) -> None:
    """With the server's own words, in one step."""
    (doctor,) = shown("The database is away")
    field.settings["FLOWACTIONS_DATABASE_URL"] = "postgresql://u:s3cret@127.0.0.1:9/x"
    await follow(field, doctor, tmp_path)


@POSTGRESQL
async def test_a_wrong_clock_is_told(field: Field, tmp_path: Path) -> None:
    """By comparison with the database's; and a delivery shows what receivers answer."""
    fleet, doctor, show = shown("A clock is wrong")
    field.receiver.answer = lambda number: status(400, body=b'{"error":"Message timestamp too new"}')
    await field.enqueue(1)
    await field.start(host=HOST, FLOWACTIONS_TEST_AHEAD="600")
    await until(lambda: ids(field, "dead"))
    (one,) = await ids(field, "dead")
    await follow(field, show, tmp_path, row=one)
    await follow(field, fleet, tmp_path)
    overview = await page(field.settings, "")
    assert "A worker's clock is 10 min ahead of the database's: receivers refuse what it signs." in overview
    assert f"{socket.gethostname()}:" in await page(field.settings, f"/deliveries/{one}")
    settings = read_settings(field.settings)
    async with Database(settings.database_url, clock=lambda: time.time() + 600) as database:
        checks = Checks()
        await _clock(checks, CommandContext(None, settings, database))
    compare(doctor, printed(checks))


def printed(checks: Checks) -> str:
    """Give checks as ``doctor`` prints them."""
    return "\n".join(f"{each.result} {each.name} {each.message}\n-> {each.advice}" for each in checks.found)


@POSTGRESQL
async def test_workers_that_crash_are_told(field: Field, tmp_path: Path) -> None:
    """A minute after three of them were killed."""
    doctor, workers = shown("Workers crash")
    await field.enqueue(30)  # ten for each, which is the limit of a destination
    for _ in range(3):
        assert await (await field.start(kill="claimed:1")).wait() == -signal.SIGKILL
    await field.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 60000")
    await field.start(host=HOST)
    await until(
        lambda: field.query("SELECT 1 FROM flowactions_workers WHERE last_seen_at > started_at - 50000")
    )
    await follow(field, doctor, tmp_path)
    ended = await command("workers", cwd=tmp_path, **field.settings)
    columns = workers.lines[0].split()
    assert [name for name in columns if name not in ended.out] == []
    states = [" does not answer " in line for line in ended.out.splitlines()[1:]]
    assert states == [False, True, True, True]


@SQLITE
async def test_rows_that_wait_without_a_worker_are_told(field: Field, tmp_path: Path) -> None:
    """How many, and since when: a minute after the last worker was frozen, of which it says that it does not answer."""
    (doctor,) = shown("No worker is alive")
    await field.enqueue(1)
    worker = await field.start(host=HOST)
    await until(lambda: ids(field, "delivered"))
    os.kill(worker.pid, signal.SIGSTOP)
    await field.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 60000")
    await field.enqueue(3)
    await follow(field, doctor, tmp_path)
    assert len(await ids(field, "pending", 3)) == 3


@SQLITE
async def test_a_delivery_that_ends_its_workers_is_named(field: Field, tmp_path: Path) -> None:
    """While it is in quarantine, as after five workers, and when it is dead."""
    pending, show, dead = shown("One delivery ends its workers")
    await field.enqueue(1)
    await field.run("UPDATE flowactions_outbox SET takeovers = 5")
    (one,) = await ids(field, "pending")

    def answer(number: int) -> bytes:
        os.kill(worker.pid, signal.SIGKILL)
        return OK

    field.receiver.answer = answer
    for number in range(4):
        worker = await field.start(host=HOST, FLOWACTIONS_TEST_TIMING=SOON)
        if number < 3:
            assert await worker.wait() == -signal.SIGKILL, field.logs()
        if number == 0:
            # Its lease expires.
            await until(
                lambda: field.query(
                    f"SELECT 1 FROM flowactions_outbox WHERE claimed_until < {time.time() * 1000}"  # noqa: S608
                )
            )
            await follow(field, pending, tmp_path)
            await follow(field, show, tmp_path, row=one)
    await until(lambda: ids(field, "dead"))
    await follow(field, dead, tmp_path)
    assert len(field.receiver.requests) == 3


@SQLITE
async def test_a_revoked_chat_token_is_told(database_url: str, field: Field, tmp_path: Path) -> None:
    """By the provider, and on the page once a message has failed."""
    (doctor,) = shown("A chat token is revoked")
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=KEY) as run:
        await run.connect()
        for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]):
            token.dead = "token_revoked"
        field.settings = dict(run.host.settings)
        await follow(field, doctor, tmp_path)
        assert (await run.message()).status == "failed"
        assert "Acme T0ACME revoked acme token_revoked" in await page(field.settings, "/connections")


@SQLITE
async def test_a_wrong_signing_secret_is_told(field: Field, tmp_path: Path) -> None:
    """By the receiver's answer, and by a test with the secret that it has."""
    show, send_test = shown("A signing secret is wrong")

    def answer(number: int) -> bytes:
        names = {name for name, _ in field.receiver.requests[-1].headers}
        # The deliveries of the worker are not signed.
        return OK if "x-service-webhook-signature" in names else status(401, body=b"signature does not match")

    field.receiver.answer = answer
    await field.enqueue(1, webhookRetryOnFailure=True)
    await field.start(host=HOST)
    await until(lambda: ids(field, "retrying"))
    await field.stop()
    (one,) = await ids(field, "retrying")
    await follow(field, show, tmp_path, row=one)
    (tmp_path / "secret").write_text("whsec_" + KEY)
    await follow(field, send_test, tmp_path, url=field.receiver.url)


@POSTGRESQL
async def test_migrations_that_are_behind_are_told(field: Field, tmp_path: Path) -> None:
    """In one step, with the command that brings them."""
    (doctor,) = shown("Migrations are behind")
    await field.enqueue(1)
    await field.run("UPDATE flowactions_version SET version_num = '0003'")
    await follow(field, doctor, tmp_path)
    worker = await field.start(host=HOST)
    assert await worker.wait() == 1
    assert "flowactions migrate" in field.logs()


async def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """By a try to write, for all can be read."""
    (doctor,) = shown("The disk is full")
    outage = Outage(f"sqlite:///{tmp_path / 'f.db'}", "disk full")
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": outage.url})
    engine = outage.engine()
    assert engine is not None
    async with Database(settings.database_url, lambda: engine) as database, outage.lasting():
        checks = Checks()
        await _writing(checks, CommandContext(None, settings, database))
    await engine.dispose()
    compare(doctor, printed(checks))


def test_alerts_and_log_events_of_the_runbook_exist() -> None:
    """It names none that nobody sees."""
    text = RUNBOOK.read_text()
    known = (RUNBOOK.parents[1] / "observability" / "alerts.yaml").read_text()
    assert all(f"alert: {name}\n" in known for name in re.findall(r"`(Flowactions\w+)`", text))
    events = (RUNBOOK.parents[1] / "reference" / "log-events.md").read_text()
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", text)
    assert len(named) > 5
    assert [name for name in named if f"| `{name}` |" not in events] == []
