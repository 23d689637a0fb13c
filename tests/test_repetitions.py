"""Of tests that repeat one another, one always runs."""

from __future__ import annotations

from itertools import product

import pytest

from tests.repetitions import DATABASES, MODES, repetitions


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (["sqlite", "postgresql"], 1),
        (["sqlite-a", "sqlite-b", "postgresql-a", "postgresql-b"], 2),
        ([f"{database}-{mode}" for database, mode in product(DATABASES, MODES)], 1),
        ([f"{mode}-x-{database}" for database, mode in product(DATABASES, MODES)], 1),
        # Nothing of these would be chosen, so nothing repeats another.
        (["sqlite-continuous", "postgresql-scheduled"], 2),
        (["a", "b"], 2),
    ],
)
@pytest.mark.parametrize("number", range(20))
def test_one_of_those_alike_always_runs(parameters: list[str], kept: int, number: int) -> None:
    """Whatever a test is called, and in whichever order its cases come."""
    name = f"tests/plugin/nodes/test_it.py::test_{number}"
    cases = [f"{name}[{each}]" for each in parameters]
    left = set(cases) - repetitions(cases)
    assert len(left) == kept
    assert left == set(cases) - repetitions(reversed(cases))


def test_half_run_on_each_database() -> None:
    """Neither database is left to the release's tests."""
    cases = [
        f"tests/plugin/nodes/test_it.py::test_{number}[{each}]" for number in range(200) for each in DATABASES
    ]
    repeated = repetitions(cases)
    assert 70 < sum("sqlite" in case for case in repeated) < 130


def test_what_is_about_the_database_runs_on_both() -> None:
    """The outbox's own tests are not repetitions, nor is a single case that somebody asks for."""
    cases = [f"tests/plugin/outbox/test_it.py::test_it[{each}]" for each in DATABASES]
    assert repetitions(cases) == frozenset()
    cases = [f"tests/plugin/outbox/test_it.py::test_it[{each}-{mode}]" for each in DATABASES for mode in MODES]
    left = {each.partition("[")[2] for each in set(cases) - repetitions(cases)}
    assert left == {"sqlite-scheduled]", "postgresql-continuous]"}
    for database in DATABASES:
        assert repetitions([f"tests/plugin/nodes/test_it.py::test_it[{database}]"]) == frozenset()
