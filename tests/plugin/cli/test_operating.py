from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import Table, insert, update

from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.cli.frame import Command
from flowactions_plugin.clock import new_id
from flowactions_plugin.insights import search as search_queries
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database
from tests.commanding import Ended, command
from tests.docs.commands import commands, document_of, fields
from tests.plugin.cli.test_output import HOSTILE, assert_safe
from tests.plugin.stored import a_dead_one, a_row
from tests.queueing import Queue
from tests.rings import sampled

Run: TypeAlias = Callable[..., Coroutine[Any, Any, Ended]]

NASTY = "".join(text for name, text in HOSTILE.items() if name not in {"nul", "surrogate"})
NAMED = dict(commands())
SMALL = "\x1b[31m\u202e\n"
"""For columns of a few characters."""


@pytest.fixture
def run(database_url: str, tmp_path: Path, queue: Queue) -> Run:
    """Run a command on the database."""

    async def run(*arguments: str, **settings: str) -> Ended:
        return await command(*arguments, cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database_url, **settings)

    return run


async def fill(queue: Queue, table: Table, **values: Any) -> None:
    """Write a row whose texts are all hostile, as far as their columns hold them."""
    await queue.run(insert(table).values(a_row(table, NASTY, values, whole=True)))


@pytest.fixture
async def hostile(queue: Queue) -> str:
    """The id of a delivery that holds hostile text wherever it can, as all other tables do."""
    row_id = await a_dead_one(
        queue,
        organization_id=NASTY,
        agent_id=NASTY,
        event_id=SMALL,
        event_type=SMALL,
        url=f"http://h/{NASTY}",
        destination=f"http://h{NASTY}",
        method=f"P{SMALL}",
        headers=((NASTY, NASTY), ("x-empty", "")),
        body=NASTY.encode() + b"\xff\0",
        state={"last_error": NASTY, "trace": SMALL},
    )
    now = int(queue.database.clock() * 1000)
    bucket = now - now % 300_000
    action = new_id(queue.database.clock())
    await fill(queue, schema.attempts, delivery_id=row_id, number=1)
    await fill(queue, schema.inbound_events)
    await fill(queue, schema.inbound_requests)
    await fill(queue, schema.workers, last_seen_at=now, stopped_at=None)
    await fill(queue, schema.pauses, organization_id=NASTY, destination=f"http://h{NASTY}")
    await fill(
        queue, schema.destinations, organization_id=NASTY, destination=f"http://h{NASTY}", updated_at=now
    )
    await fill(queue, schema.statistics, bucket=bucket, organization_id=NASTY, destination=f"http://h{NASTY}")
    await fill(
        queue,
        schema.actions,
        id=action,
        kind="retry",
        organization_id=NASTY,
        filter="",
        actor_role="command",
        state="done",
        created_at=now,
        held_by=None,
        claimed=None,
        withdrawn_at=None,
        position=None,
    )
    await fill(
        queue,
        schema.audit,
        id=new_id(queue.database.clock()),
        delivery_id=row_id,
        action_id=action,
        filter="",
        actor_role="command",
        at=now,
    )
    await queue.run(update(schema.outbox).values(action_id=action))
    return row_id


def command_of(arguments: Sequence[str]) -> Command:
    """Give the command that is run."""
    names = [name for name in NAMED if f"flowactions {' '.join(arguments)} ".startswith(f"{name} ")]
    return NAMED[max(names, key=len)]


def undocumented(arguments: Sequence[str], document: Any) -> set[str]:
    """Give the fields of a document that the reference page does not name; what other pages describe is left out."""
    kind = document_of(command_of(arguments))
    assert kind is not None
    known = {path.replace("[]", "") for path, _ in fields(kind)}
    parents = {path.rpartition(".")[0] for path in known}
    return {path for path in paths(document) if path.rpartition(".")[0] in parents} - known


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Give the path of every field in a document."""
    if isinstance(value, list):
        for each in value:
            yield from paths(each, prefix)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield f"{prefix}{name}"
            yield from paths(each, f"{prefix}{name}.")


READING = (
    ("outbox", "list"),
    ("outbox", "show", "{id}"),
    ("status",),
    ("outbox", "retry", "all"),
    ("destinations", "list"),
    ("purge", NASTY),
    ("doctor", "--url", f"http://h/{NASTY}"),
)
CHANGING = (
    ("outbox", "retry", "{id}", "--reason", NASTY),
    ("outbox", "delete", "--where", NASTY, "--yes", "--reason", NASTY),
    ("outbox", "delete", "--where", str(Filter.of(organization=NASTY)), "--yes", "--reason", NASTY),
    ("destinations", "pause", "http://h/", "--organization", NASTY, "--reason", NASTY),
    ("destinations", "resume", f"http://h/{NASTY}"),
    ("purge", NASTY, "--yes"),
)
"""What is run one after the other."""


@sampled("as_json", [False, True], ids=["text", "json"], size=1)
async def test_what_is_stored_reaches_no_terminal_raw(run: Run, hostile: str, as_json: bool) -> None:
    """Text of strangers, in whatever column: colours, links, the clipboard, directions and lines."""

    async def safe(arguments: tuple[str, ...]) -> None:
        given = [each.replace("{id}", hostile) for each in arguments]
        has_document = as_json and document_of(command_of(given)) is not None
        ended = await run(*given, *(["--json"] if has_document else []))
        assert_safe(ended.out + ended.err)
        assert ended.code in {0, 1, 2, 4, 5}
        assert "unexpectedly" not in ended.out + ended.err
        if has_document and ended.code != 2:
            assert ended.out.isascii()
            assert ended.document
            assert undocumented(given, ended.document) == set()
        elif not has_document and arguments[:2] in {("outbox", "list"), ("outbox", "show")}:
            assert "52;c;ZXZpbA==" in ended.out

    await asyncio.gather(*map(safe, READING))
    for arguments in CHANGING:
        await safe(arguments)


def test_a_list_goes_on_until_it_has_found_enough(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no index serves the filter: each query reads a few rows back, and the next ones are asked for."""
    monkeypatch.setattr(search_queries, "READ_BACK", 2)
    monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", sqlite_url)

    async def put() -> list[str]:
        async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": sqlite_url}).database_url) as database:
            queue = Queue(database)
            return [
                await queue.put(id=new_id(1.0 + number), event_type="rare" if number < 3 else "t")
                for number in range(12)
            ]

    ids = asyncio.run(put())[:3][::-1]

    def listed(*arguments: str) -> tuple[list[str], str | None]:
        done = CliRunner().invoke(flowactions, ["outbox", "list", "--json", *arguments])
        assert done.exit_code == 0, done.output
        page = msgspec.json.decode(done.stdout)
        return [row["id"] for row in page["rows"]], page["nextCursor"]

    assert listed("--where", "type:rare") == (ids, None)
    found, cursor = listed("--where", "type:rare", "--limit", "2")
    assert (found, cursor) == (ids[:2], ids[1])
    assert listed("--where", "type:rare", "--cursor", str(cursor)) == (ids[2:], None)
    assert listed("--where", "type:none") == ([], None)


async def test_times_are_said_as_they_were_read(run: Run, queue: Queue) -> None:
    """In UTC, with their offset taken into account; not in JSON, and not without times."""
    given = ("--where", "since:2030-01-31T14:00+02:00 before:2030-01-31T15:00")
    said = "times in UTC: before:2030-01-31T15:00:00Z since:2030-01-31T12:00:00Z"
    assert said in (await run("outbox", "list", *given)).err
    assert said in (await run("outbox", "retry", *given)).err
    assert "times" not in (await run("outbox", "list", "--json", *given)).err
    assert "times" not in (await run("outbox", "list", "--where", "status:dead")).err
