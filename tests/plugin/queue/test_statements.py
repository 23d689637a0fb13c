"""The statements are files with numbers and texts in them: they say the same as the code, and as each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from flowactions_plugin.egress.attempt import PROBE
from flowactions_plugin.operators.scope import AUTOMATIC
from flowactions_plugin.queue.claimed import COLUMNS, SMALL_BYTES
from flowactions_plugin.queue.claims import PREFIX_DIGITS
from flowactions_plugin.queue.lanes import EVER, MOST_OF_A_LANE
from flowactions_plugin.queue.outcomes import MAY_BE_SENT
from flowactions_plugin.queue.probes import AT_ONCE
from flowactions_plugin.queue.statements import FOLDER, statement
from flowactions_plugin.storage.schema import BEHIND_MS, QUARANTINE_AFTER
from tests.queueing import Queue

FILES: Final = {
    path.name.removesuffix(".sql"): " ".join(path.read_text().split()) for path in FOLDER.glob("*.sql")
}
CODE: Final = "".join(path.read_text() for path in Path(FOLDER.parents[1]).rglob("*.py"))

SAID: Final = {
    r"takeovers (?:<|>=) (\d+)": str(QUARANTINE_AFTER),
    r"(?:octet_)?length\(body\) <= (\d+)": str(SMALL_BYTES),
    r"next_attempt_at, id LIMIT (\d{2,})": str(MOST_OF_A_LANE),
    r"substr\((?:claimed_by|done\.token|done\.value ->> 'token'), 1, (\d+)\)": str(PREFIX_DIGITS),
    r"\b(2534\d+)": str(BEHIND_MS),
    r"CAST\('(-\d+)' AS bigint\)": str(EVER),
    r"last_error, '([^']+)', ''": MAY_BE_SENT,
    r"paused_role = '(\w+)'": AUTOMATIC.role,
    r"probe_at LIMIT (\d+)": str(AT_ONCE),
    r"LIKE '%\"(\w+)\"%'": PROBE,
}
"""What files say, by an expression that finds it, and what the code says."""


@pytest.mark.parametrize("pattern", SAID)
def test_files_and_code_say_the_same(pattern: str) -> None:
    found = {match for words in FILES.values() for match in re.findall(pattern, words) if match}
    assert found == {SAID[pattern]}


def test_a_claim_returns_what_is_read_of_a_row() -> None:
    """Its columns are read by their position."""
    for name in (
        "claim.postgresql",
        "claim.sqlite",
        "claim_quarantined.postgresql",
        "claim_quarantined.sqlite",
    ):
        returned = FILES[name].rpartition("RETURNING ")[2]
        while returned != (returned := re.sub(r"\([^()]*\)", "", returned)):
            pass  # what stands in the inner ones first
        names = tuple(each.split()[-1] for each in returned.split(","))
        assert names == (*COLUMNS, "lane", "next_attempt_at", "size")


def test_one_rule_says_whether_a_row_is_free() -> None:
    """Whatever looks for rows, or claims them, leaves those alone that another worker may still send."""
    rule = re.compile(
        r"\(claimed_until IS NULL OR claimed_until <= (\S+(?: AS bigint\))?)"
        r" - CASE WHEN substr\(claimed_by, 1, 8\) = :own THEN 0 ELSE CAST\(:grace AS bigint\) END\)"
    )
    moments = {name: rule.findall(words) for name, words in FILES.items() if "claimed_until IS NULL" in words}
    assert set(moments) == {
        f"{name}.{database}"
        for name in ("claim", "claim_quarantined", "any_quarantined", "scan", "peek", "probes")
        for database in ("postgresql", "sqlite")
    } | {"look"}
    for name, found in moments.items():
        assert found == ["CAST(:looked_at AS bigint)" if name.startswith("claim") else "{now}"]


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in FILES}))
def test_each_file_is_used(name: str) -> None:
    assert re.search(rf'(?:statement, |_rows\(|_claim\(|_lanes\(|_read\(|else )"{name}"', CODE)


async def test_nothing_but_the_parts_is_left_to_fill_in(queue: Queue) -> None:
    """A name in braces that nothing fills in would be sent."""
    own = {name for name in FILES if name.partition(".")[2] in {"", queue.database.sql.name}}
    for name in own:
        assert "{" not in statement(queue.database.sql, name.partition(".")[0]).text
