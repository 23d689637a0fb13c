from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flowactions_conformance.kit.registry import PROFILES, all_checks
from flowactions_plugin.queue import rules
from flowactions_plugin.storage import schema
from tests.docs import checks, commands, observability
from tests.docs.fences import ROOT

WRITTEN = [
    (commands.PAGE, commands.render, commands.COMMAND),
    *((path, render, observability.COMMAND) for path, render in observability.FILES.items()),
]


@pytest.mark.parametrize(("path", "render", "command"), WRITTEN, ids=lambda each: getattr(each, "name", ""))
def test_a_file_is_what_the_code_gives(path: Path, render: Callable[[], str], command: str) -> None:
    """Commands, metrics, alert rules and the dashboard."""
    assert path.read_text() == render(), command


def test_every_check_and_profile_is_in_the_table_of_the_site() -> None:
    """With its clause; the kit's report has the causes."""
    text = checks.render()
    assert set(checks.ABOUT) == set(PROFILES)
    for check in all_checks():
        assert f"></a>{check.id} " in text
        assert check.clause
        assert check.causes


def test_every_table_is_listed() -> None:
    """With what it holds, and no other."""
    page = (ROOT / "docs" / "how-to" / "operate.md").read_text()
    assert re.findall(r"^\| `(flowactions_\w+)` \| \w", page, re.MULTILINE) == list(schema.metadata.tables)


def test_rules_on_the_page_of_guarantees_are_those_of_the_code() -> None:
    """Lease, attempts and backoff are the numbers of the rules."""
    page = (ROOT / "docs" / "explanation" / "claiming.md").read_text()
    assert f"{rules.Timing().lease_seconds:.0f} seconds" in page
    assert f"reclaimed {schema.QUARANTINE_AFTER} times" in page
