"""What an author may have got wrong in a text with variables. Pure; positions are those of the author's own text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.json_words import first_error, repeated_names
from flowactions_plugin.nodes.template import (
    VARIABLES,
    as_json_of_same_length,
    check_json,
    place,
    without_surrogates,
)

NAME_LENGTH: Final = 80
TOKEN_LENGTH: Final = 100
"""Characters between the braces at the most; what is longer was hardly meant as a variable."""

_LIKE_A_TOKEN: Final = re.compile(rf"\{{\{{([^{{}}\n]{{1,{TOKEN_LENGTH}}})\}}\}}")


_NAMES: Final = "|".join(VARIABLES)
_NEARLY_A_TOKEN: Final = re.compile(
    rf"(?<!\{{)\$?(?:\{{{{2,3}}[ \t]*({_NAMES})\b[ \t]*\}}{{0,3}}|\{{[ \t]*({_NAMES})[ \t]*\}})", re.IGNORECASE
)
"""A variable's name behind two or three braces, closed or not, or in single ones."""

_NOT_CLOSED: Final = re.compile(r"\{\{[ \t]*+[A-Za-z][\w.]{0,99}+[ \t]*+(?!\}\}|[\w.])")


class Fault(NamedTuple):
    """Something in a text, and where: line and column from 1, in characters; ``None`` when that is not known."""

    message: str
    line: int | None = None
    column: int | None = None


def json_fault(text: str) -> Fault | None:
    """Find the first error that keeps a body from being JSON once its variables are substituted, whatever their values."""
    same, _ = as_json_of_same_length(text)
    try:
        check_json(without_surrogates(same).encode())
    except BodyInvalid as exc:
        found = first_error(same)
        if found is None:
            return Fault(str(exc), exc.line, exc.column)
        words, offset = found
        # The second brace of what looks like a variable is the first that is wrong.
        token = _LIKE_A_TOKEN.match(text, offset) or _LIKE_A_TOKEN.match(text, max(0, offset - 1))
        if token is not None and token[1] not in VARIABLES:
            return _not_valid(text, token.start(), before=_not_a_variable(token[1]))
        if malformed := _malformed_near(text, offset):
            return _not_valid(text, malformed[0], before=malformed[1])
        return _not_valid(text, offset, words)
    return None


def _not_valid(text: str, offset: int, words: str = "", before: str = "") -> Fault:
    line, column = place(text[:offset])
    where = f"The body is not valid JSON in line {line}, column {column}"
    return Fault(f"{before} {where}{': ' if words else ''}{words}.".lstrip(), line, column)


def repeated_keys(text: str) -> Iterator[Fault]:
    """Find the names that stand twice in one object of a body that is valid JSON; each place of them after the first."""
    for name, offset in repeated_names(as_json_of_same_length(text)[0], text):
        shown = f"{name[:NAME_LENGTH]}{'…' if len(name) > NAME_LENGTH else ''}"
        message = (
            f'This object has the name "{without_surrogates(shown)}" twice. Both are sent, and receivers read only one of'
            " them. Remove one."
        )
        yield Fault(message, *place(text[:offset]))


def unknown_tokens(text: str) -> Iterator[Fault]:
    """Find what looks like a variable and is none, so that it is sent unchanged; each of them once."""
    found: set[str] = set()
    for token in _LIKE_A_TOKEN.finditer(text):
        name = token[1]
        if name in VARIABLES or not name.strip() or name in found:
            continue
        found.add(name)
        yield Fault(f"{_not_a_variable(name)} It is sent unchanged.", *place(text[: token.start()]))


def malformed_tokens(text: str) -> Iterator[Fault]:
    """Find variables with too few or too many braces, so that they are sent as they stand; each of them once."""
    found: set[str] = set()
    for token in _NEARLY_A_TOKEN.finditer(text):
        written = token[0].strip()
        message = None if written in found else _why_malformed(token)
        found.add(written)
        if message is not None:
            yield Fault(f"{message} It is sent unchanged.", *place(text[: token.start()]))
    for token in _NOT_CLOSED.finditer(text):
        written = token[0].strip()
        known = _NEARLY_A_TOKEN.match(text, token.start()) is not None  # and told above
        if known or written in found or _LIKE_A_TOKEN.match(text, token.start()):
            continue
        found.add(written)
        message = f"{written} is not closed, and no variable. {_VARIABLES_ARE} It is sent unchanged."
        yield Fault(message, *place(text[: token.start()]))


def tokens_not_substituted(text: str) -> Iterator[Fault]:
    """Find what was meant as a variable in a text in which none is substituted; each of them once."""
    found: set[str] = set()
    for token in chain(_LIKE_A_TOKEN.finditer(text), _NEARLY_A_TOKEN.finditer(text)):
        written = token[0].strip()
        if any(written in each or each in written for each in found):
            continue
        found.add(written)
        message = f"{written} is not substituted here. It is sent unchanged."
        yield Fault(message, *place(text[: token.start()]))


def tokens_in_keys(text: str) -> Iterator[Fault]:
    """Find the variables in keys of a JSON body, where none is substituted; each of them once."""
    for name, offset in as_json_of_same_length(text)[1].items():
        message = f"{_braced(name)} is not substituted in a key. It is sent unchanged."
        yield Fault(message, *place(text[:offset]))


def _why_malformed(token: re.Match[str]) -> str | None:
    """Say how what is nearly a variable is written; ``None`` for one that is filled in, or told of as unknown."""
    written = token[0].strip()
    name = next(known for known in VARIABLES if known.lower() == token[token.lastindex or 0].lower())
    # Around one that is filled in, somebody may want further braces.
    if _LIKE_A_TOKEN.fullmatch(written) or _braced(name) in written:
        return None
    return f"{written} is not a variable: write {_braced(name)}."


def _malformed_near(text: str, offset: int) -> tuple[int, str] | None:
    """Find what is nearly a variable and is what a reader of JSON stumbles over, in or behind its braces."""
    for start in range(offset, max(-1, offset - 3), -1):
        token = _NEARLY_A_TOKEN.match(text, start)
        message = token and _why_malformed(token)
        if message:
            return start, message
    return None


def _braced(name: str) -> str:
    return f"{{{{{name}}}}}"


def _not_a_variable(name: str) -> str:
    meant = next((known for known in VARIABLES if known.lower() == name.strip().lower()), None)
    return (
        f"{_braced(name)} is not a variable{f': write {_braced(meant)}.' if meant else f'. {_VARIABLES_ARE}'}"
    )


_VARIABLES_ARE: Final = f"The variables are {' and '.join(map(_braced, VARIABLES))}."
