from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url

from flowactions_conformance.chat_provider import Fault
from flowactions_plugin.cli.checks import Check, Checks, check_egress
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.diagnosis import _clock, _writing, check_deliveries
from flowactions_plugin.clock import new_id
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import postgresql, schema
from flowactions_plugin.storage.database import Database
from tests.chatting import ChatHost, chat_host
from tests.commanding import Ended, command
from tests.outages import Outage
from tests.plugin.egress.addresses import FORBIDDEN_EVERYWHERE, url_of
from tests.queueing import Queue
from tests.waiting import until

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
OTHER_KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="


def results(ended: Ended) -> dict[str, str]:
    """Give the worst result of each check."""
    order = ("skipped", "ok", "warning", "failed")
    found: dict[str, str] = {}
    for check in ended.document["checks"]:
        before = found.get(check["name"], "skipped")
        found[check["name"]] = max(before, check["result"], key=order.index)
    return found


async def made(check: Callable[..., Awaitable[Any]], database: Database, **settings: str) -> list[Check]:
    """Make one check, and give what it says."""
    checks, context = Checks(), CommandContext(None, read_settings(settings), database)
    if "checks" in signature(check).parameters:
        await check(checks, context)
    else:
        await checks.guarded("", check(context))
    return checks.found


async def put(queue: Queue, **values: Any) -> str:
    """Store a delivery of now with these values; give its id."""
    return await queue.put(id=new_id(queue.database.clock()), state=values)


def settings_of(run: ChatHost, **changes: str) -> Mapping[str, str]:
    return {**run.host.settings, **changes}


async def test_chat_tokens_and_keys_are_tried(database_url: str, tmp_path: Path) -> None:
    """By the provider's auth-test, and nothing is recorded; a key that is missing is told by organization."""
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=KEY) as run:
        await run.connect()
        well = await command("doctor", "--json", cwd=tmp_path, **settings_of(run))
        assert results(well)["chat"] == results(well)["keys"] == results(well)["migrations"] == "ok"
        assert well.code == 0, well.out
        rotated = settings_of(run, FLOWACTIONS_ENCRYPTION_KEYS=f"{OTHER_KEY},{KEY}")
        assert results(await command("doctor", "--json", cwd=tmp_path, **rotated))["keys"] == "warning"
        lost = await command(
            "doctor", "--json", cwd=tmp_path, **settings_of(run, FLOWACTIONS_ENCRYPTION_KEYS=OTHER_KEY)
        )
        assert (lost.code, results(lost)["keys"]) == (1, "failed")
        assert "acme" in lost.out
        portal = Fault(200, b"<html>Sign in</html>", (("content-type", "text/html"),))
        run.provider.faults["auth.test"].append(portal)
        unread = await command("doctor", cwd=tmp_path, **run.host.settings)
        assert "failed   chat         organization acme: unreadable_answer" in unread.out
        assert "CHAT_API_URL" in unread.out
        assert (await run.card())["status"] == "active"
        for ended in (well, lost, unread):
            assert "xoxb" not in ended.out + ended.err
            assert KEY not in ended.out + ended.err


async def test_a_purge_takes_the_chat_connection_and_revokes_its_token(
    database_url: str, tmp_path: Path
) -> None:
    """Counted first; of this organization alone."""
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=KEY) as run:
        await run.connect()
        run.sign_in("globex")
        await run.connect(workspace="T00GLOBEX")
        counted = await command("purge", "acme", cwd=tmp_path, **settings_of(run))
        assert (counted.code, counted.err.count("\n")) == (2, 1)
        assert "chat connection    1\n" in counted.out
        done = await command("purge", "acme", "--yes", cwd=tmp_path, **settings_of(run))
        assert (done.code, "cannot be revoked" in done.err) == (0, False)
        assert all(token.dead for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]))
        assert not any(token.dead for token in run.provider.state.tokens_of(run.provider.state.workspaces[1]))
        assert (await run.card())["status"] == "active"  # of globex
        run.sign_in("acme")
        assert await run.card() is None


async def test_rows_that_nobody_claims_are_a_status_of_their_own(
    queue: Queue, database_url: str, tmp_path: Path
) -> None:
    """The verdict is the exit status; that no worker is alive is a warning."""
    settings = {"FLOWACTIONS_DATABASE_URL": database_url, "FLOWACTIONS_DELIVERY": "continuous"}
    quiet = await command("doctor", "--json", cwd=tmp_path, **settings)
    assert (quiet.code, quiet.document["verdict"], results(quiet)["deliveries"]) == (0, "no_worker", "warning")
    await put(queue, next_attempt_at=int(await queue.database.time() * 1000) - 60_000)
    stalled = await command("doctor", "--json", cwd=tmp_path, **settings)
    assert (stalled.code, stalled.document["verdict"], stalled.document["exitStatus"]) == (4, "stalled", 4)
    assert results(stalled)["deliveries"] == "failed"
    assert results(stalled)["workers"] == "failed"
    (said,) = [check["message"] for check in stalled.document["checks"] if check["name"] == "workers"]
    assert said.startswith(
        "no worker was alive within the last day, although 1 delivery waits, the oldest due since 2"
    )


async def test_deliveries_that_wait_for_the_host_are_told(
    queue: Queue, database_url: str, tmp_path: Path
) -> None:
    """Each reason once, since when; a failure where it concerns several organizations. What has ended waits no more."""
    reasons = ("no secret: SECRET_A", "no secret: SECRET_A", "no secret: SECRET_B", "ended")
    for number, reason in enumerate(reasons):
        await put(
            queue,
            error_class="waits",
            last_error=reason,
            organization_id=f"org-{number}",
            waiting_since=None if reason == "ended" else 3000 - 1000 * number,
            status="dead" if reason == "ended" else "pending",
        )
    ended = await command("doctor", "--json", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database_url)
    waiting = [check for check in ended.document["checks"] if check["name"] == "waiting"]
    assert [(check["result"], check["message"]) for check in waiting] == [
        ("failed", "2 deliveries wait, without an attempt, since 1970-01-01T00:00:02Z: no secret: SECRET_A"),
        ("warning", "1 delivery waits, without an attempt, since 1970-01-01T00:00:01Z: no secret: SECRET_B"),
    ]
    assert all("outbox list --where error:waits" in check["advice"] for check in waiting)


async def test_a_database_that_cannot_be_written_is_told(outage: Outage, tmp_path: Path) -> None:
    """It may still answer: a full disk and a read-only server can be read. Nothing is left of what was written."""
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": outage.url})
    engine = outage.engine()
    async with Database(settings.database_url, None if engine is None else lambda: engine) as database:
        async with outage.lasting():
            (refused,) = await made(_writing, database)

        async def can_write() -> bool:
            # A connection that was cut may still be in the pool.
            return (await made(_writing, database))[0].result == "ok"

        await until(can_write)
        async with database.read() as connection:
            assert await connection.scalar(select(func.count()).select_from(schema.workers)) == 0
    if engine is not None:
        await engine.dispose()
    assert refused.result == "failed"
    assert refused.message.startswith("the database failed: ")


async def test_commands_make_no_database_and_no_tables(tmp_path: Path) -> None:
    """The command says that the directory is wrong. An empty database would look like one without deliveries."""
    keys = {"FLOWACTIONS_ENCRYPTION_KEYS": KEY}
    ended = await command("doctor", "--json", cwd=tmp_path)
    assert (ended.code, results(ended)["database"]) == (1, "failed")
    for arguments in (("outbox", "list"), ("status",), ("purge", "a", "--yes"), ("mcp",), ("reseal",)):
        ended = await command(*arguments, cwd=tmp_path, **keys)
        assert ended.code == 2
        assert ended.err.startswith("flowactions: no tables yet, the file ")
        assert ended.err.count("\n") == 1
    assert (await command("migrate", "--check", cwd=tmp_path)).code == 1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "flowactions.db").touch()
    ended = await command("reseal", cwd=tmp_path, **keys)
    assert (ended.code, "no tables yet" in ended.err) == (1, True)
    with closing(sqlite3.connect(tmp_path / "flowactions.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


async def test_tables_of_another_release_are_told(queue: Queue, database_url: str, tmp_path: Path) -> None:
    """Older ones are not upgraded by looking at them; newer ones have an exit status of their own."""
    settings = {"FLOWACTIONS_DATABASE_URL": database_url}
    for revision, code, told in (
        ("0003", 1, "begin a new database"),
        ("9999", 3, "newer than this release's"),
    ):
        await queue.run(f"UPDATE flowactions_version SET version_num = '{revision}'")  # noqa: S608  one of two
        ended = await command("status", cwd=tmp_path, **settings)
        assert ended.code == code
        assert told in ended.err
        doctor = await command("doctor", "--json", cwd=tmp_path, **settings)
        assert (doctor.code, results(doctor)["migrations"], doctor.document["verdict"]) == (1, "failed", None)
        async with queue.database.read() as connection:
            assert await connection.scalar(text("SELECT version_num FROM flowactions_version")) == revision


async def test_what_would_happen_to_a_url(tmp_path: Path) -> None:
    """And why; nothing is connected to."""
    urls = ("http://169.254.169.254/", "http://127.0.0.1/x", "ftp://x/", "http://8.8.8.8/")
    given = [word for url in urls for word in ("--url", url)]
    ended = await command("doctor", "--json", *given, cwd=tmp_path)
    said = [check["message"] for check in ended.document["checks"] if check["name"] == "egress"]
    assert "link-local and metadata" in said[0]
    assert "FLOWACTIONS_ENVIRONMENT=development" in said[1]
    assert "must start with http" in said[2]
    assert "would be sent directly" in said[3]


@pytest.mark.parametrize(
    ("address", "networks"),
    [
        ("10.0.0.1", "10.0.0.1/32"),
        ("fd12::1", "fd12::1/128"),
        ("64:ff9b::a00:1", "10.0.0.1/32"),
        ("::ffff:10.0.0.1", "::ffff:a00:1/128,10.0.0.1/32"),
    ],
)
async def test_the_advice_opens_the_address(address: str, networks: str) -> None:
    """With what an IPv6 address embeds."""
    refused = await advised(address)
    assert refused == ("failed", f"if this destination is yours: FLOWACTIONS_EGRESS_ALLOW={networks}")
    assert (await advised(address, FLOWACTIONS_EGRESS_ALLOW=networks))[0] == "ok"


async def test_of_a_name_the_advice_opens_the_name() -> None:
    """Its other addresses are then allowed, too, and other names of the address are not."""
    check = partial(check_egress, url="http://localhost/")
    database = Database(read_settings({}).database_url)
    (refused,) = await made(check, database)
    assert refused.advice == "if this destination is yours: FLOWACTIONS_EGRESS_ALLOW=localhost"
    (allowed,) = await made(check, database, FLOWACTIONS_EGRESS_ALLOW="localhost")
    assert allowed.result == "ok"
    assert (await advised("127.0.0.1", FLOWACTIONS_EGRESS_ALLOW="localhost"))[0] == "failed"


async def test_it_is_never_advised_to_allow_what_is_nobodys() -> None:
    """Such as metadata addresses."""
    for address in FORBIDDEN_EVERYWHERE:
        assert await advised(address) == ("failed", "no webhook should be sent there: correct the URL")


async def advised(address: str, **settings: str) -> tuple[str, str]:
    """Return the result and the advice of the check of an address."""
    (found,) = await made(
        partial(check_egress, url=url_of(address)), Database(read_settings({}).database_url), **settings
    )
    return found.result, found.advice


async def test_wrong_settings_are_told(tmp_path: Path) -> None:
    """All of them, and no value."""
    ended = await command(
        "doctor",
        "--json",
        cwd=tmp_path,
        FLOWACTIONS_DATABASE_URL="postgresql://h:s3cret/x",
        FLOWACTIONS_TYPO="s3cret",
    )
    assert (ended.code, results(ended)) == (1, {"settings": "failed"})
    assert "FLOWACTIONS_TYPO does not exist" in ended.out
    assert "s3cret" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("ahead", "result"),
    [(-3, "ok"), (60, "warning"), (-600, "failed")],
)
async def test_a_clock_that_differs_from_the_database_s_is_told(
    postgres_url: str, ahead: float, result: str
) -> None:
    """Receivers refuse signatures of five minutes away."""
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url})

    def clock() -> float:
        return time.time() + ahead

    async with Database(settings.database_url, clock=clock) as database:
        (check,) = await made(_clock, database)
    assert check.result == result
    if result != "ok":
        assert ("ahead of" if ahead > 0 else "behind") in check.message


@pytest.mark.parametrize("holder", ["snapshot", "writer", "idle", "none"])
async def test_what_keeps_old_versions_of_rows_is_named(
    postgres_url: str, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that reads, or has written, for long; not one that keeps nothing, and none where none is open."""
    monkeypatch.setattr(postgresql, "OPEN_SECONDS", 0)
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url})
    plain = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    other = await asyncpg.connect(plain, server_settings={"application_name": "nightly"})
    async with Database(settings.database_url) as database:
        if holder != "none":
            await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if holder == "snapshot" else "BEGIN")
        if holder == "snapshot":
            await other.execute("SELECT 1")
        elif holder == "writer":
            await other.execute("DELETE FROM flowactions_outbox")
            await other.execute("SELECT pg_current_xact_id()")
        pid = other.get_server_pid()
        found = [each for each in await made(check_deliveries, database) if each.name == "transactions"]
    assert [each.result for each in found] == ["warning"] * (holder in {"snapshot", "writer"})
    for each in found:
        assert f"the process {pid} (nightly of " in each.message
        assert "0 old versions" in each.message
    await other.close()
