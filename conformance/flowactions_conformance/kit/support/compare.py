"""Compares values as JSON has them: ``0`` is not ``false``, a missing key is not ``null``, and the order of keys is nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

ADDED: Final = "which was not there"
"""The end of a difference by which something was added."""


def difference(expected: object, actual: object, path: str = "") -> str | None:
    """Return the first difference between two JSON values in words; ``None``: they are equal.

    Args:
        expected: what it should be.
        actual: what it is.
        path: where it stands; empty for the whole.
    """
    where = path or "it"
    if isinstance(expected, Mapping):
        return _of_objects(expected, actual, path, where)
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        if not isinstance(actual, Sequence) or isinstance(actual, str):
            return f"{where} is {actual!r}, not {expected!r}"
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} items, not {len(expected)}"
        each = (
            difference(one, other, f"{path}[{index}]")
            for index, (one, other) in enumerate(zip(expected, actual, strict=True))
        )
        return next((found for found in each if found is not None), None)
    # In Python True == 1; in JSON a number is a number, with a fraction or without.
    same_kind = isinstance(expected, bool) == isinstance(actual, bool)
    if same_kind and expected == actual:
        return None
    return f"{where} is {actual!r}, not {expected!r}{text_change(expected, actual)}"


def text_change(expected: object, actual: object) -> str:
    """Return in words how a text was changed, in brackets, where it is known: what is normalized looks the same."""
    if not isinstance(expected, str) or not isinstance(actual, str):
        return ""
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        if unicodedata.normalize(form, expected) == actual:
            return f" (it was normalized: Unicode {form})"
    if expected.strip() == actual.strip():
        return " (blanks at its begin or end were changed)"
    if expected.startswith(actual):
        return f" (it was cut after {len(actual)} of {len(expected)} characters)"
    if expected.splitlines() == actual.splitlines():
        return " (its line ends were changed)"
    return ""


def _of_objects(expected: Mapping[Any, Any], actual: object, path: str, where: str) -> str | None:
    if not isinstance(actual, Mapping):
        return f"{where} is {actual!r}, not {expected!r}"
    for name, value in expected.items():
        below = f"{path}.{name}" if path else str(name)
        if name not in actual:
            return f"{below} is missing; it was {value!r}"
        found = difference(value, actual[name], below)
        if found is not None:
            return found
    added = sorted(str(name) for name in actual if name not in expected)
    return f"{where} has {', '.join(added)}, {ADDED}" if added else None


def json_object(answer: httpx.Response) -> Mapping[str, Any]:
    """Return an answer's JSON object; empty when it is none."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
