from __future__ import annotations

import pytest

from tests.packaging.versions import (
    OLDEST,
    PROJECT,
    ROOT,
    SMOKE,
    extra,
    missing,
    requirements,
)

pytestmark = pytest.mark.ci


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
    listed = [
        each for name in ("agents", "fast", "demo", "conformance", "test", "docs") for each in extra(name)
    ]
    for requirement in (*PROJECT["dependencies"], *listed):
        bounds = requirement.partition(";")[0]
        assert ">=" in bounds, requirement
        assert not {"<", "==", "~", "!"} & {*bounds.replace(">=", "")}, requirement
