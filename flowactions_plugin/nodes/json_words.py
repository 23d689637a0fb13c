"""What is wrong with a text that should be JSON, in an author's words. Pure; offsets are in characters.

None of this decides whether a text is JSON. It is asked only about a text that was refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from flowactions_plugin.nodes.template import VARIABLES

TYPOGRAPHIC_QUOTES: Final = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u2018\u2019\u201a\u201b\u2032"
_OTHER_QUOTES: Final = "'`\u00b4"

_BLANKS: Final = " \t\r\n"
_ENDS: Final = {"{": "}", "[": "]"}
_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)(?=([ \t\r\n]*+:)?)|[{}\[\]]', re.DOTALL)
"""A text, with a group if it is a name, or a bracket."""

_QUOTE_FOR_AN_END: Final = re.compile(
    r"[^\u201c\u201e\u00ab\u2018\u201a\n]*?([\u201d\u2033\uff02\u00bb\u2019])(?=[ \t]*(?:[,:}\]\n]|\Z))"
)
"""A text up to a typographic quote that may be meant to end it; none that begins one stands before."""

_WORD: Final = re.compile(r"[^\W\d]\w{0,39}")
_LIKE_A_VARIABLE: Final = re.compile(rf"[$%<@:]{{0,2}}({'|'.join(VARIABLES)})\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_LIKE_A_NUMBER: Final = re.compile(r"[+\-.]{0,2}\d[\w.:/+\-]{0,39}", re.ASCII)
_LITERALS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "none": "null",
    "nil": "null",
    "undefined": "null",
    "nan": "null",
    "infinity": "null",
}


def first_error(text: str) -> tuple[str, int] | None:
    """Return what is wrong with a text that is no JSON, and at which offset; ``None`` when that cannot be said."""
    constants: list[str] = []

    def refuse(constant: str) -> NoReturn:
        constants.append(constant)
        raise ValueError

    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=refuse)
    except json.JSONDecodeError as exc:
        return _explained(text, exc.msg.lower(), exc.pos)
    except (ValueError, RecursionError):
        pass
    if not constants:
        return None
    # Outside of texts, the reader takes its constants in their order, and the first one ends it.
    outside = re.compile(rf'"(?:[^"\\]|\\.)*+"|({constants[0]})', re.DOTALL)
    at = next(each.start() for each in outside.finditer(text) if each[1])
    return f"{constants[0]} is no number in JSON. Write null", at


def repeated_names(text: str, written: str) -> Iterator[tuple[str, int]]:
    """Find the names that stand twice in one object, each at its second place.

    Args:
        text: valid JSON.
        written: the same as its author has it, character for character.
    """
    objects: list[set[str]] = []
    for part in _PART.finditer(text):
        if part[0] == "{":
            objects.append(set())
        elif part[0] == "}":
            objects.pop()
        elif part[1] is not None:
            name = written[part.start() : part.end()]
            name = json.loads(name) if name.startswith('"') else name
            if name in objects[-1]:
                yield name, part.start()
            objects[-1].add(name)


def _explained(text: str, reason: str, at: int) -> tuple[str, int]:
    """Say what the standard library's reader found, at the place where the author has to change something."""
    within = _within_a_text(text, reason, at)
    if within is not None:
        return within
    before = text[:at].rstrip(_BLANKS)
    # Python 3.13 and later name the comma themselves.
    comma = at if reason.startswith("illegal trailing comma") else len(before) - 1
    if comma == at or (before.endswith(",") and text[at : at + 1] in {"", "}", "]"}):
        return "Nothing follows this comma. Remove it", comma
    if at == len(text):
        return _ends_too_early(text, before), at
    is_name = reason.startswith("expecting property name")
    words = next((words for start, words in _EXPECTED.items() if reason.startswith(start)), _no_comma)
    return (
        (_decimal_comma if is_name else _of_a_number)(text, at)
        or _of_a_character(text, text[at], at)
        or (words(text, at), at)
    )


def _within_a_text(text: str, reason: str, at: int) -> tuple[str, int] | None:
    """Say what is wrong within a text, or with its end; ``None`` if something else is."""
    if reason.startswith("unterminated string"):
        return _no_end(text, at, len(text)) or ('The text that begins here does not end: " is missing', at)
    if reason.startswith("invalid control character"):
        begins = text.rfind('"', 0, at)
        return _no_end(text, begins, at) or (_control_character(text[at]), at)
    if reason.startswith("invalid \\u"):
        return "Four characters from 0 to 9 and a to f must follow \\u", at
    if reason.startswith("invalid \\") and text.startswith("\\'", at):
        return "A ' needs no backslash before it. Remove the backslash", at
    if reason.startswith("invalid \\"):
        return "A single backslash is not allowed before this character. Write \\\\ for a backslash", at
    return None


def _no_end(text: str, begins: int, ends: int) -> tuple[str, int] | None:
    """Find a typographic quote that was to end a text."""
    meant = _QUOTE_FOR_AN_END.match(text, begins, min(len(text), ends + 1))
    return None if meant is None else (_typographic(meant[1]), meant.start(1))


def _control_character(found: str) -> str:
    if found in "\r\n":
        return 'A text cannot contain a line break. Write \\n in its place, or end the text with "'
    if found == "\t":
        return "A text cannot contain a tab. Write \\t in its place"
    return f"A text cannot contain the control character {_code(found)}. Remove it"


def _ends_too_early(text: str, before: str) -> str:
    if not before:
        return "The body is empty"
    missing = "".join(map(_ENDS.__getitem__, reversed(_open_brackets(text))))
    if before.endswith(":"):
        return "A value is missing after the colon"
    return f"The body ends too early: {missing} is missing" if missing else "The body ends too early"


def _open_brackets(text: str) -> str:
    """Return the brackets that are open at the end of a text."""
    opened: list[str] = []
    for part in _PART.finditer(text):
        if part[0] in _ENDS:
            opened.append(part[0])
        elif part[0] in _ENDS.values() and opened:
            opened.pop()
    return "".join(opened)


def _of_a_number(text: str, at: int) -> tuple[str, int] | None:
    """Say what is wrong with a number, in or before which a reader stopped."""
    start = at
    while start and text[start - 1] in "0123456789+-.":
        start -= 1
    number = _LIKE_A_NUMBER.match(text, start)
    if number is None or number.end() <= at or _NUMBER.fullmatch(number[0]):
        return None
    written = number[0]
    if re.fullmatch(r"[+-]?0\d+(\.\d+)?", written, re.ASCII):
        plain = re.sub(r"^\+?(-?)0+(?=\d)", r"\1", written)
        return f'A number cannot begin with 0. Write {plain}, or "{written}" as a text', start
    if re.fullmatch(r"\+[\d.]+", written, re.ASCII):
        return f"A number cannot begin with +. Write {written[1:]}", start
    if re.fullmatch(r"-?\.\d+", written, re.ASCII):
        return f"A number cannot begin with a point. Write {written.replace('.', '0.', 1)}", start
    if re.fullmatch(r"-?\d+\.", written, re.ASCII):
        return f"A number cannot end with a point. Write {written[:-1]}", start
    return f'{written} is no number. Write "{written}" as a text', start


def _decimal_comma(text: str, at: int) -> tuple[str, int] | None:
    if text[at].isdigit() and re.search(r"\d,\Z", text[max(0, at - 2) : at]):
        return (
            "A number cannot contain a comma. Write a point for decimals, and no separator of thousands",
            at - 1,
        )
    return None


def _of_a_character(text: str, found: str, at: int) -> tuple[str, int] | None:
    """Say what is wrong with what stands there, whatever is expected."""
    if found in TYPOGRAPHIC_QUOTES:
        return _typographic(found), at
    if found in _OTHER_QUOTES:
        return f'Put texts and names in double quotes ("); this is {found}', at
    if text.startswith(("//", "/*"), at) or found == "#":
        return "JSON has no comments. Remove this one", at
    if found == "\\":
        return "A backslash is allowed only within a text. Remove it", at
    if not found.isprintable() or unicodedata.category(found) in {"Cf", "Zs"}:
        return f"This is an invisible character ({_code(found)}). Remove it", at
    return None


def _no_name(text: str, at: int) -> str:
    word = _WORD.match(text, at)
    if word is not None:
        return f'A name needs double quotes. Write "{word[0]}"'
    if text[at] == ",":
        return "This comma is one too many. Remove it"
    return 'Write a name in double quotes (") here'


def _no_colon(text: str, at: int) -> str:
    return "Put a colon between a name and its value" + (f", and not {text[at]}" if text[at] in "=,;" else "")


def _no_value(text: str, at: int) -> str:
    before, word = text[:at].rstrip(_BLANKS), _WORD.match(text, at)
    variable = _LIKE_A_VARIABLE.match(text, at)
    if variable is not None:
        name = next(each for each in VARIABLES if each.lower() == variable[1].lower())
        return f'Write {{{{{name}}}}} for the variable, or "{variable[1]}" as a text'
    if word is not None:
        meant = _LITERALS.get(word[0].lower())
        if meant is None:
            return f'A text needs double quotes, as in "{word[0]}"'
        return f"{word[0]} is no value. Write {meant}"
    if before.endswith(":") and text[at] in ",}]":
        return "A value is missing after the colon"
    if text[at] == "," and before.endswith((",", "[")):
        return "A value is missing before this comma. Remove the comma"
    return "Write a value here: a text, a number, true, false, null, { or ["


def _no_comma(text: str, at: int) -> str:
    found, opened = text[at], _open_brackets(text[:at])[-1:]
    if found == ":":
        return "This colon is one too many" if opened == "{" else "In [ ], values have no names. Write { }"
    if found == ";":
        return "Write a comma in place of the semicolon"
    if found in "}]" and opened:
        return f"{opened} is not closed before this: {_ENDS[opened]} is missing"
    missing = "A comma is missing before this"
    if text[:at].rstrip(_BLANKS).endswith('"') and _WORD.match(text, at):
        missing += '. Or, if this is part of the text: write \\" for a quote in a text'
    return missing


def _after_the_end(text: str, at: int) -> str:
    if text[at] == ":":
        return "Put names and values in braces. Write { and } around them"
    if text[at] in "}]":
        return f"This {text[at]} is one too many. Remove it"
    return "The JSON has ended before this. Remove what follows, or put all of it in [ ]"


_EXPECTED: Final[dict[str, Callable[[str, int], str]]] = {
    "expecting property name": _no_name,
    "expecting ':'": _no_colon,
    "expecting value": _no_value,
    "extra data": _after_the_end,
}
"""How the reader's reason begins → what says it in words, of the text and the offset."""


def _typographic(found: str) -> str:
    return f'{found} is a typographic quote. Write " in its place'


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
