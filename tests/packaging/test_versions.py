from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.own_server import servers
from tests.packaging.versions import (
    OLDEST,
    PROJECT,
    ROOT,
    SMOKE,
    extra,
    interpreters,
    missing,
    requirements,
    trials,
)

pytestmark = pytest.mark.ci


def an_interpreter(folder: Path, name: str, says: str, status: int = 0) -> Path:
    """Make a program that answers as an interpreter does that is asked for its version."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {says}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_interpreters_that_work_are_found(tmp_path: Path) -> None:
    """The first folder counts; names of a version manager that lead nowhere, and older versions, do not."""
    first, second = tmp_path / "first", tmp_path / "second"
    an_interpreter(first, "python3.12", "'pyenv: command not found'", 127)
    an_interpreter(first, "python3.13-config", "3 13")
    an_interpreter(first, "python3.10", "3 10")
    mine = an_interpreter(first, "python3.14", "3 14")
    an_interpreter(second, "python3.14", "3 14")
    theirs = an_interpreter(second, "python3.12", "3 12")
    an_interpreter(second, "python3.13", "3 11")
    (second / "python3.15").write_text("")
    assert interpreters([first, second, tmp_path / "none"]) == {(3, 12): theirs, (3, 14): mine}


def test_each_other_version_is_tried_and_the_oldest_dependencies(tmp_path: Path) -> None:
    """On the running version, the newest dependencies are what the test suite runs with."""
    found = {(3, 11): tmp_path / "a", (3, 12): tmp_path / "b", (3, 13): tmp_path / "c"}
    tried = trials(found, (3, 12))
    assert [(each.name, each.python.name, each.oldest) for each in tried] == [
        ("the oldest dependencies", Path(sys.executable).name, True),
        ("Python 3.11", "a", False),
        ("Python 3.13", "c", False),
    ]
    assert trials(found, (3, 12), everything=False) == [tried[0], tried[2]]
    assert [each.postgresql[0] for each in tried[:2]] == [min(servers()), max(servers())]
    assert trials({(3, 12): tmp_path / "b"}, (3, 12), everything=False) == tried[:1]


def test_a_promised_version_that_is_not_there_is_named() -> None:
    """The classifiers are the promise."""
    assert missing([]) == ["3.11", "3.12", "3.13"]
    assert missing([(3, 11), (3, 12), (3, 13)]) == []
    assert PROJECT["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"


def test_the_selection_is_there() -> None:
    """A file that was moved would not be run; and what it needs is what the extra has."""
    assert all((ROOT / name).is_file() for name in SMOKE)
    assert {*requirements(everything=False)} < {*requirements(everything=True)}


def test_every_dependency_has_a_lower_bound_and_no_upper_one() -> None:
    """Of all extras, too."""
    listed = [each for name in ("fast", "demo", "conformance", "test", "docs") for each in extra(name)]
    for requirement in (*PROJECT["dependencies"], *listed):
        bounds = requirement.partition(";")[0]
        assert ">=" in bounds, requirement
        assert not {"<", "==", "~", "!"} & {*bounds.replace(">=", "")}, requirement
