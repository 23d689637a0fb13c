"""What an author may have got wrong in a text with variables. Pure; positions are those of the author's own text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.plausibility import TYPOGRAPHIC_QUOTES, invisible
from flowactions_plugin.nodes.template import (
    VARIABLES,
    as_json_of_same_length,
    check_json,
    place,
    without_surrogates,
)

NAME_LENGTH: Final = 80
_BRACED: Final = {name.lower(): f"{{{{{name}}}}}" for name in VARIABLES}
_LIKE_A_VARIABLE: Final = re.compile(
    rf"""(?<!\{{)\$?+(?:
        \{{\{{([^{{}}\n]{{1,100}})\}}\}}                                # closed, with any name
      | \{{[ \t]*+({"|".join(VARIABLES)})[ \t]*+\}}                      # in single braces
      | \{{\{{[ \t]*+([A-Za-z][\w.]{{0,99}}+)[ \t]*+\}}?                # not closed
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_JSON_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*+"(?=([ \t\r\n]*+:)?)|[{}]', re.DOTALL)
"""A text of JSON, with a group if it is a name, or a brace."""


class Fault(NamedTuple):
    """Something in a text, and where: line and column from 1, in characters; ``None`` when that is not known."""

    message: str
    line: int | None = None
    column: int | None = None


def fault(text: str, message: str, offset: int) -> Fault:
    """Return what is wrong at an offset of a text."""
    return Fault(message, *place(text[:offset]))


def json_fault(text: str) -> Fault | None:
    """Find the first error that keeps a body from being JSON once its variables are substituted, whatever their values.

    It says more than the place only where that cannot be wrong.
    """
    same, _ = as_json_of_same_length(text)
    try:
        check_json(without_surrogates(same).encode())
    except BodyInvalid as exc:
        try:
            json.loads(same, parse_int=str, parse_float=str)
        except json.JSONDecodeError as found:
            said, at = _json_error(same, found) or _variable_near(text, found.pos) or ("", found.pos)
            line, column = place(text[:at])
            return Fault(f"{said} The body must be JSON (line {line}, column {column}).".lstrip(), line, column)
        except (ValueError, RecursionError):
            pass
        return Fault(str(exc), exc.line, exc.column)
    return None


def _json_error(text: str, error: json.JSONDecodeError) -> tuple[str, int] | None:
    at, found = error.pos, text[error.pos : error.pos + 1]
    if error.msg.startswith("Invalid control character") and found in {"\r", "\n"}:
        return 'A text cannot contain a line break. Write \\n in its place, or end the text with ".', at
    if error.msg.startswith("Invalid"):  # within a text, where commas and brackets are text
        return None
    # Python 3.13 and later stop at the comma, others behind it.
    comma = at if found == "," else len(text[:at].rstrip(" \t\r\n")) - 1
    if text[comma : comma + 1] == "," and text[comma + 1 :].lstrip(" \t\r\n")[:1] in {"}", "]"}:
        return "Nothing follows this comma. Remove it.", comma
    if found and found in TYPOGRAPHIC_QUOTES:
        return f'{found} is a typographic quote. Write " in its place.', at
    unseen = invisible(found)
    return None if unseen is None else (unseen[0], at)


def _variable_near(text: str, offset: int) -> tuple[str, int] | None:
    """Find what is no variable, at or around whose braces a reader of JSON stops."""
    for start in range(offset, max(-1, offset - 3), -1):
        found = _LIKE_A_VARIABLE.match(text, start)
        if found is not None and found[1] not in VARIABLES:
            return _no_variable(found), start
    return None


def repeated_keys(text: str) -> Iterator[Fault]:
    """Find the names that stand twice in one object of a body that is valid JSON; each place of them after the first."""
    objects: list[set[str]] = []
    for part in _JSON_PART.finditer(as_json_of_same_length(text)[0]):
        if part[0] == "{":
            objects.append(set())
        elif part[0] == "}":
            objects.pop()
        elif part[1] is not None:
            written = text[part.start() : part.end()]
            name = json.loads(written) if written.startswith('"') else written
            if name in objects[-1]:
                shown = without_surrogates(f"{name[:NAME_LENGTH]}{'…' if len(name) > NAME_LENGTH else ''}")
                message = (
                    f'This object has the name "{shown}" twice. Receivers read only one of them. Remove one.'
                )
                yield fault(text, message, part.start())
            objects[-1].add(name)


def unknown_tokens(text: str) -> Iterator[Fault]:
    """Find what looks like a variable and is none, so that it is sent unchanged; each of them once."""
    for found in _each_once(text):
        if found[1] not in VARIABLES and (found[1] is None or found[1].strip()):
            yield fault(text, f"{_no_variable(found)} It is sent unchanged.", found.start())


def tokens_not_substituted(text: str) -> Iterator[Fault]:
    """Find what was meant as a variable in a text in which none is substituted; each of them once."""
    for found in _each_once(text):
        yield fault(text, f"{found[0]} is not substituted here. It is sent unchanged.", found.start())


def tokens_in_keys(text: str) -> Iterator[Fault]:
    """Find the variables in keys of a JSON body, where none is substituted; each of them once."""
    for name, offset in as_json_of_same_length(text)[1].items():
        yield fault(text, f"{_BRACED[name.lower()]} is not substituted in a key. It is sent unchanged.", offset)


def _each_once(text: str) -> Iterator[re.Match[str]]:
    seen: set[str] = set()
    for found in _LIKE_A_VARIABLE.finditer(text):
        if found[0] not in seen:
            seen.add(found[0])
            yield found


def _no_variable(found: re.Match[str]) -> str:
    meant = _BRACED.get((found[1] or found[2] or found[3]).strip().lower())
    known = f": write {meant}." if meant else f". The variables are {' and '.join(_BRACED.values())}."
    return f"{found[0].strip()} is not a variable{known}"
