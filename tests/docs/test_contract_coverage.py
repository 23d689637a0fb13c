from __future__ import annotations

from typing import Any

import pytest

from flowactions_conformance.kit.clauses import FILE
from flowactions_conformance.kit.registry import all_checks
from tests.docs.contract_coverage import (
    COMMAND,
    PAGE,
    Sentence,
    checks_of,
    clauses,
    coverage,
    now,
    render,
    sentences,
)

FOUND = now()


def test_every_sentence_that_binds_a_host_names_its_checks() -> None:
    """Each sentence of the contract names existing checks, says why there is none, or whom it binds instead."""
    assert FOUND.missing == [], COMMAND
    assert FOUND.faults == []
    assert len(FOUND.entries) > 200


def test_every_check_that_cites_the_contract_is_named_there() -> None:
    """A check that follows from the contract tests at least one of its sentences."""
    named = {id_ for _, entry in FOUND.entries for id_ in checks_of(entry)}
    citing = {check.id for check in all_checks() if check.clause.startswith("contract")}
    assert citing - named == set()


def test_the_page_is_current() -> None:
    """The page is what the file gives."""
    assert PAGE.read_text(encoding="utf-8") == render(FOUND), COMMAND
    assert FILE.read_bytes() == clauses(FOUND), COMMAND


TEXT = """# A page

First one. Second, with `code. And` a [link](to.md). *Third*?

| name | rule |
|---|---|
| `a` | must be |

- **Item.** Goes on
  here. And ends.

```python
Not. A sentence.
```
"""


def test_a_page_is_split_into_sentences() -> None:
    """Paragraphs and items are split at the ends of sentences, rows are not; links are text, examples are left out."""
    assert sentences(TEXT) == [
        Sentence("A page", text)
        for text in [
            "First one.",
            "Second, with `code.",
            "And` a link.",
            "*Third*?",
            "`a` | must be",
            "**Item.** Goes on here.",
            "And ends.",
        ]
    ]


PAGE_OF_THREE = "# P\n\nOne is here. Two is there. Two is everywhere.\n"
WHOLE: dict[str, Any] = {"One": ["A-1"], "Two is t": "nobody can", "Two is e": {"binds": "nobody"}}


def test_a_whole_file_has_no_faults() -> None:
    """Each sentence has an entry of its own."""
    found = coverage(PAGE_OF_THREE, {"P": WHOLE}, frozenset({"A-1"}))
    assert (found.missing, found.faults) == ([], [])
    assert [entry for _, entry in found.entries] == list(WHOLE.values())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"One": ["A-2"]}, "there is no check A-2"),
        ({"One": []}, "neither checks nor a reason"),
        ({"One": {"checks": ["A-2"], "except": "a part"}}, "there is no check A-2"),
        ({"One": {"checks": ["A-1"]}}, "neither checks nor a reason"),
        ({"Four": ["A-1"]}, "no sentence of 'P' begins with 'Four'"),
        ({"One is": ["A-1"]}, "several entries fit"),
        ({"Two": ["A-1"]}, "several entries fit"),
    ],
)
def test_what_is_wrong_in_the_file_is_found(changes: dict[str, Any], fault: str) -> None:
    """Unknown checks, empty and ambiguous entries, and sentences that are gone."""
    found = coverage(PAGE_OF_THREE, {"P": {**WHOLE, **changes}}, frozenset({"A-1"}))
    assert any(fault in each for each in found.faults)


def test_a_new_sentence_and_a_lost_section_are_found() -> None:
    """A sentence without an entry is missing; an entry that fits two sentences fits neither for sure."""
    rest = {name: entry for name, entry in WHOLE.items() if name != "One"}
    assert coverage(PAGE_OF_THREE, {"P": rest}, frozenset()).missing == [Sentence("P", "One is here.")]
    assert (
        "the page has no section 'Q'" in coverage(PAGE_OF_THREE, {"P": rest, "Q": "lost"}, frozenset()).faults
    )
    twice = coverage(PAGE_OF_THREE, {"P": {"One": "reason", "Two": "reason"}}, frozenset()).faults
    assert any("more than one sentence" in each for each in twice)
