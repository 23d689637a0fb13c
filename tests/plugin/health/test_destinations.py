"""The list of destinations: those that fail first, page by page, as long as it is."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from sqlalchemy import insert

from flowactions_plugin.cli.destinations import SHOWN
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.schema import destinations
from tests.bulk import failing
from tests.commanding import command
from tests.queueing import Queue

FAIL = [f"https://d{number}.example:443" for number in range(20)]
WORK = [f"https://w{number:02}.example:443" for number in range(25)]


async def crowd(queue: Queue, *further: str) -> list[str]:
    """Write destinations of two organizations, half of which fail, several at one time; give them in the list's order."""
    # Those that fail in turn before and behind the others by name.
    bad = [{**failing(n, 1_000_000 - n // 3), "organization_id": "az"[n % 2]} for n in range(len(FAIL))]
    good = [
        {**failing(0, 2_000_000), "organization_id": "m", "destination": place, "failing_since": None}
        for place in (*WORK, *further)
    ]
    for each in (*good, *bad):
        await queue.run(insert(destinations).values(each))
    bad.sort(key=lambda row: (-row["last_failure_at"], row["organization_id"], row["destination"]))
    return [row["destination"] for row in [*bad, *good]]


@pytest.mark.parametrize("limit", [1, 7, 20, 45, 46])
async def test_a_list_gives_each_once_those_that_fail_first(queue: Queue, limit: int) -> None:
    """Whatever the length of a page; none is longer than asked for, and the last one says so."""
    expected, insights = await crowd(queue), Insights(queue.database)
    for scope, places in ((Scope(), expected), (Scope("m"), WORK)):
        found, cursor, pages = [], None, 0
        while True:
            rows, cursor = await insights.destinations(scope, limit, cursor)
            assert len(rows) <= limit
            found += [row.destination for row in rows]
            pages += 1
            if cursor is None:
                break
        assert found == places
        assert pages <= 1 + 2 * len(expected) // limit


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "{}",
        "é",
        "0",
        "AAAA",
        *(
            base64.urlsafe_b64encode(text).decode()
            for text in (b"[1]", b'[1,"a\\u0000","b"]', b'["1","a","b"]', b"[1e99,1,1]", b'[99999999999999999999,"a","b"]')
        ),
    ],
)  # fmt: skip
async def test_a_cursor_of_another_list_is_refused(queue: Queue, cursor: str) -> None:
    """And no error of the database's."""
    await crowd(queue)
    with pytest.raises(FilterInvalid, match="must be the next cursor of a page of the same list"):
        await Insights(queue.database).destinations(Scope(), 5, cursor)


async def test_the_command_lists_what_fails_first_and_goes_on(
    tmp_path: Path, queue: Queue, database_url: str
) -> None:
    """`--cursor` of the answer shows the next page; what is none ends with status 2."""
    expected = await crowd(queue, *(f"https://x{number:03}.example:443" for number in range(2 * SHOWN)))
    settings = {"FLOWACTIONS_DATABASE_URL": database_url}
    found: list[str] = []
    more: list[str] = []
    while True:
        ended = await command("destinations", "list", "--json", *more, cwd=tmp_path, **settings)
        assert ended.code == 0, ended.err
        found += [each["destination"] for each in ended.document["data"]]
        assert len(ended.document["data"]) <= SHOWN
        if ended.document["nextCursor"] is None:
            break
        assert len(ended.document["data"]) == SHOWN
        more = ["--cursor", ended.document["nextCursor"]]
    assert found == expected
    refused = await command("destinations", "list", "--cursor", "x", cwd=tmp_path, **settings)
    assert (refused.code, "next cursor of a page" in refused.err) == (2, True)
