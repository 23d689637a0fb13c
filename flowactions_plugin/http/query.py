"""Validates query parameters strictly: known names, each once, with unambiguous values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Final, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from flowactions_plugin.http.problems import MAX_ERRORS, WRONG_FORM, Problem

Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time in ISO 8601 (RFC 3339) with a time zone."""

Check: TypeAlias = Callable[[str], str | None]
"""Tells what is wrong with a value; ``None``: nothing."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def text(value: str) -> str | None:
    """Any text that is not empty."""
    return None if value else "must not be empty"


def integer(value: str) -> str | None:
    """ASCII digits, not `1.0` and not digits of other scripts."""
    return None if _INTEGER.fullmatch(value) else "must be a whole number"


def moment(value: str) -> str | None:
    """Read a `Moment`."""
    try:
        msgspec.convert(value, Moment)
    except msgspec.ValidationError:
        return "must be a date and time with time zone such as 2030-01-31T12:00:00Z; write + as %2B"
    return None


def check_query(raw: bytes, known: Mapping[str, Check]) -> None:
    """Refuse a query string with unknown, repeated or invalid parameters.

    Args:
        raw: the received bytes, without the question mark.
        known: name → check of its value.

    Raises:
        Problem: 400, with all wrong parameters.
    """
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Problem("invalid_request", "The query is not percent-encoded UTF-8.") from None
    counts = Counter(name for name, _ in pairs)
    errors = []
    for name, value in dict(pairs).items():
        check = known.get(name)
        if check is None:
            wrong: str | None = "is not known"
        elif counts[name] > 1:
            wrong = "is given more than once"
        else:
            wrong = check(value)
        if wrong is not None:
            errors.append({"path": name, "message": wrong})
    if errors:
        raise Problem("invalid_request", WRONG_FORM, errors[:MAX_ERRORS])
