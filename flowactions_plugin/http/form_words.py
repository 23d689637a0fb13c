"""What is wrong with a value in a request, for people: the decoder's own words name types of Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_KINDS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SIZES: Final = {"str": "characters", "array": "items", "object": "fields"}

_RULES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (
        re.compile(r"Expected `(?:int|float)` ([<>]=?) (\S+)"),
        lambda found: f"must be {_BOUNDS[found[1]]} {found[2]}",
    ),
    (
        re.compile(r"Expected `(str|array|object)` of length ([<>]=?) (\d+)"),
        lambda found: f"must have {_BOUNDS[found[2]]} {found[3]} {_SIZES[found[1]]}",
    ),
    (re.compile(r"Object contains unknown field `(.+)`", re.DOTALL), lambda found: f"has no field {found[1]}"),
    (re.compile(r"Object missing required field `(.+)`"), lambda found: f"needs the field {found[1]}"),
    (
        re.compile(r"Invalid RFC3339.*|Expected `datetime.*"),
        lambda _: "must be a date and time with time zone such as 2030-01-31T12:00:00Z",
    ),
    (
        re.compile(r"Expected `([^`]+)`(?:, got `[^`]+`)?"),
        lambda found: f"must be {' or '.join(_KINDS.get(each, each) for each in found[1].split(' | '))}",
    ),
    (re.compile(r"Invalid enum value .*", re.DOTALL), lambda _: "is none of the values that are known"),
)


def error_message(message: str) -> str:
    """Return what the decoder says of a value, in words that name no type of Python."""
    for pattern, words in _RULES:
        if found := pattern.fullmatch(message):
            return words(found)
    return "does not have the right form"
