"""How the kit compares what went in with what came out."""

from __future__ import annotations

from typing import Any

import pytest

from flowactions_conformance.kit.support.compare import difference


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 0, "b": None}, {"b": None, "a": 0}),
        ({"a": 1}, {"a": 1.0}),
        ([], ()),
        ({"a": {"b": [{}, "", False]}}, {"a": {"b": [{}, "", False]}}),
    ],
)
def test_the_same_json_is_equal(expected: Any, actual: Any) -> None:
    """The order of keys, and how Python holds a number or a list, is no difference."""
    assert difference(expected, actual) is None


@pytest.mark.parametrize(
    ("expected", "actual", "told"),
    [
        ({"a": 0}, {"a": False}, "a is False, not 0"),
        ({"a": True}, {"a": 1}, "a is 1, not True"),
        ({"a": None}, {}, "a is missing; it was None"),
        ({}, {"a": None}, "it has a, which was not there"),
        ({"a": {"b": [1, ""]}}, {"a": {"b": [1, None]}}, "a.b[1] is None, not ''"),
        ({"a": []}, {"a": ""}, "a is '', not []"),
        ({"a": [1]}, {"a": [1, 2]}, "a has 2 items, not 1"),
        ({"a": {}}, {"a": []}, "a is [], not {}"),
        (9_007_199_254_740_991, 9_007_199_254_740_992, "it is 9007199254740992, not 9007199254740991"),
        ("é", "e\u0301", "it is 'e\u0301', not 'é' (it was normalized: Unicode NFD)"),
        (" a ", "a", "it is 'a', not ' a ' (blanks at its begin or end were changed)"),
        ("abc", "ab", "it is 'ab', not 'abc' (it was cut after 2 of 3 characters)"),
    ],
)
def test_a_difference_names_its_place(expected: Any, actual: Any, told: str) -> None:
    """What JSON tells apart is a difference, and is said with the place where it stands."""
    assert difference(expected, actual) == told
