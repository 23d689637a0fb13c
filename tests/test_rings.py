"""Each test is in one ring, which is seen where it stands."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from tests.docs.clauses import clauses, marks_of_tests, without_parts
from tests.rings import (
    ABOVE_SQL,
    DATABASES,
    DEAR,
    MODES,
    OWN_SQL,
    README,
    TWINS,
    Case,
    rings,
    sampled,
)

ROOT = Path(__file__).parents[1]
BOTH = [f"{database}-{mode}" for database, mode in product(DATABASES, MODES)]


def ring_of(name: str, parameters: list[str], marks: tuple[str, ...] = ()) -> dict[str, str]:
    """Give the rings of a test's cases, without the README's."""
    cases = [Case(f"{name}::test_it[{each}]", frozenset(marks)) for each in parameters]
    return {node_id.partition("[")[2][:-1]: ring for node_id, ring in rings(cases).items()}


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("tests/plugin/cli/test_a.py", ["sqlite", "postgresql"], {"postgresql": "ci"}),
        ("tests/plugin/cli/test_a.py", ["postgresql"], {}),
        ("tests/plugin/cli/test_a.py", ["sqlite-a", "postgresql-a", "postgresql-b"], {"postgresql-a": "ci"}),
        (
            "tests/plugin/cli/test_a.py",
            ["sqlite-a", "sqlite-b", "postgresql-a", "postgresql-b"],
            {"postgresql-a": "ci", "postgresql-b": "none"},
        ),
        (ABOVE_SQL[0] + "test_a.py", ["sqlite", "postgresql"], {"postgresql": "none"}),
        (ABOVE_SQL[0] + "test_a.py", ["postgresql"], {}),
        (TWINS[-1] + "test_a.py", ["sqlite", "postgresql"], {}),
        (
            OWN_SQL[1] + "test_a.py",
            ["sqlite-a", "sqlite-b", "postgresql-a", "postgresql-b"],
            {"postgresql-a": "ci", "postgresql-b": "ci"},
        ),
        (DEAR[3].partition("::")[0], ["a"], {"a": "ci"}),
        (
            TWINS[-1] + "test_a.py",
            BOTH,
            {"sqlite-continuous": "none", "postgresql-scheduled": "none"},
        ),
        (
            "tests/plugin/cli/test_a.py",
            BOTH,
            {"sqlite-continuous": "none", "postgresql-scheduled": "none", "postgresql-continuous": "ci"},
        ),
        # None of these is how a database is mostly run, so none repeats another.
        (TWINS[-1] + "test_a.py", ["sqlite-continuous", "postgresql-scheduled"], {}),
        ("tests/editor/test_a.py", ["sqlite"], {"sqlite": "ci"}),
        ("tests/plugin/cli/test_a.py", ["a", "b"], {}),
    ],
)
def test_the_ring_is_seen_where_the_test_stands(
    name: str, parameters: list[str], expected: dict[str, str]
) -> None:
    """Whatever else there is, one of the cases that are alike runs before the others."""
    assert ring_of(name, parameters) == expected


@pytest.mark.parametrize(("mark", "repeated"), [("ci", "none"), ("long", "long")])
def test_a_marker_moves_a_test_to_a_later_ring(mark: str, repeated: str) -> None:
    """All of its cases; what is run by hand has all combinations."""
    found = ring_of("tests/plugin/queue/test_a.py", BOTH, (mark,))
    assert found["sqlite-scheduled"] == found["postgresql-continuous"] == mark
    assert found["sqlite-continuous"] == repeated


def test_kills_of_the_later_ring_are_on_postgresql() -> None:
    """In each mode a test has its database; what the README's ring kills it kills on SQLite."""
    assert ring_of("tests/crash/test_a.py", ["sqlite", "postgresql"], ("ci",)) == {
        "sqlite": "none",
        "postgresql": "ci",
    }
    assert ring_of("tests/crash/test_a.py", ["sqlite"], ("ci",)) == {"sqlite": "ci"}
    assert ring_of("tests/crash/test_a.py", ["sqlite", "postgresql"]) == {"postgresql": "ci"}


@pytest.mark.parametrize(("beyond", "ring"), [(0, None), (1, "ci"), (2, "none")])
def test_combinations_beyond_two_samples_are_not_run(beyond: int, ring: str | None) -> None:
    """A value beyond its sample is tried by `.ci/run`, with the samples of other parameters."""
    marks = frozenset({"ci"} if beyond else ())
    assert rings([Case("tests/a.py::test_it[x]", marks, beyond)]) == (
        {} if ring is None else {"tests/a.py::test_it[x]": ring}
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_table_of_rules_is_kept_whole(size: int) -> None:
    """A rule whose only case the README's ring leaves out could be broken unnoticed; of alike cases, any sample will do."""
    rules = [(1, "odd"), (2, "even"), (3, "odd"), (4, "even")]
    if size == len(rules):
        assert [each.marks for each in sampled(("number", "expected"), rules, size).args[1]] == [()] * size
    else:
        with pytest.raises(ValueError, match="keep all of them"):
            sampled(("number", "expected"), rules, size)
    alike = [(number, "positive") for number, _ in rules]
    for names, values in ((("number", "expected"), alike), ("number", rules)):
        assert sum(not each.marks for each in sampled(names, values, size).args[1]) == size


def test_what_the_tables_name_is_there() -> None:
    """An entry of a file or test that was moved would move nothing to its ring."""
    gone = [each for each in (*DEAR, *TWINS, *OWN_SQL, *ABOVE_SQL) if not _exists(each)]
    assert gone == []


def _exists(entry: str) -> bool:
    """Tell whether a start of node ids is that of some: its file, and each name in it."""
    path, *names = entry.partition("[")[0].split("::")
    found = ROOT / path
    return found.exists() and all(re.search(rf"(?:class|def) {name}", found.read_text()) for name in names)


@pytest.mark.ci
def test_each_clause_is_shown_in_the_readmes_ring(pytestconfig: pytest.Config) -> None:
    """The first command that somebody runs proves each promise once."""
    if pytestconfig.args != ["tests"]:
        pytest.skip("only a run of a whole ring collects all tests")
    collected = pytestconfig.stash[README]
    shown = {
        mark.number
        for mark in marks_of_tests()
        if f"{mark.path.relative_to(ROOT)}::{mark.name.replace('.', '::')}" in collected
    }
    assert [f"§{each.number}" for each in without_parts(clauses()) if each.number not in shown] == []
