"""What an author may have got wrong in one text of a config: pure rules, and where; no rule repeats anything of a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from flowactions_hookspecs import ConfigProblem
from flowactions_hookspecs.editing import MASK
from flowactions_plugin.egress.signature import signing_key
from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.template import TOKEN, VARIABLES, place, split_json

SAMPLE: Final = {"userId": "x", "content": "x"}
"""Values for a check without a walk: short, and not empty."""

MOST_PROBLEMS: Final = 100

MOST_OF_A_RULE: Final = 20
"""Problems that one rule tells of one text."""

_TYPOGRAPHIC_QUOTES: Final = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u2018\u2019\u201a\u201b\u2032"
_OF_STANDARD_WEBHOOKS: Final = re.compile(r"(?:\b|_)wh(?:sec|sk|pk)[_-]", re.IGNORECASE)
_BLANKS: Final = " \t\r\n"
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters without a sign that Python calls printable: fillers, blanks and selectors of variants."""

_BRACED: Final = {name.lower(): f"{{{{{name}}}}}" for name in VARIABLES}
_LIKE_A_VARIABLE: Final = re.compile(
    rf"""(?<!\{{)\$?+(?:
        \{{\{{([^{{}}\n]{{1,100}})\}}\}}                                # closed, with any name
      | \{{[ \t]*+({"|".join(VARIABLES)})[ \t]*+\}}                      # in single braces
      | \{{\{{[ \t]*+([A-Za-z][\w.]{{0,99}}+)[ \t]*+\}}?                # not closed
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_LINE_BREAK: Final = 'A text cannot contain a line break. Write \\n in its place, or end the text with ".'
_IN_A_TEXT: Final = {
    "Invalid control character at\n": _LINE_BREAK,
    "Invalid control character at\r": _LINE_BREAK,
    "Invalid control character": "A text cannot contain this character. Write \\u{} in its place.",
    "Invalid": 'A \\ in a text needs one of " \\ / b f n r t behind it, or u and four digits from 0 to f.',
    "Unterminated": 'This text is not closed. Write " at its end.',
}
"""What is wrong within a text, by how Python's message begins, with the character at its place."""


def at(place: str | int, found: Iterable[ConfigProblem]) -> Iterator[ConfigProblem]:
    """Put a field's name or an item's index before the paths of problems."""
    return (replace(problem, path=(place, *problem.path)) for problem in found)


def bounded(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """Leave out what is too much to read; warnings first."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    return tuple(sorted(problems, key=lambda problem: problem.severity != "error")[:MOST_PROBLEMS])


def wrong_types(fields: Iterable[str]) -> Iterator[ConfigProblem]:
    """Tell the fields that have the wrong type."""
    for field in sorted(fields):
        yield warning("wrong_type", "This value has the wrong type, and counts as not set.", field)


def fault(text: str, offset: int, code: str, message: str) -> ConfigProblem:
    """Return what is wrong at an offset of a text."""
    line, column = place(text[:offset])
    return ConfigProblem(code=code, message=message, severity="warning", line=line, column=column)


def warning(code: str, message: str, *path: str | int) -> ConfigProblem:
    """Return what is wrong with a field as a whole."""
    return ConfigProblem(path=path, code=code, message=message, severity="warning")


def fragment(url: str) -> Iterator[ConfigProblem]:
    """Find the part of a URL that is not sent."""
    if "#" in url:
        message = "The part from # on is not sent. Remove it, or write %23 if the receiver needs a #."
        yield fault(url, url.index("#"), "fragment_dropped", message)


def invisible(text: str, code: str = "invisible_character") -> Iterator[ConfigProblem]:
    """Find the first character that nobody sees, blanks at the ends excepted."""
    begins = len(text) - len(text.lstrip(_BLANKS))
    for at, each in enumerate(text.strip(_BLANKS), begins):
        if not each.isprintable() or _INVISIBLE.match(each):
            yield fault(text, at, code, f"This is an invisible character (U+{ord(each):04X}). Remove it.")
            return


def badly_pasted(text: str) -> Iterator[ConfigProblem]:
    """Find what a signing secret has got where it was copied, or lost: the receiver would need the same."""
    inner, quotes = text.strip(), f"\"'`{_TYPOGRAPHIC_QUOTES}"
    message = ""
    if not inner or inner == MASK:
        return
    if text != inner or len(inner.split()) > 1 or any(invisible(inner)):
        message = "The secret contains a space, a line break or an invisible character. It counts: the receiver needs the same."
    elif not inner.strip("*\u2022\u25cf\u00b7"):
        message = "These are the signs that hide a secret. Copy the secret itself."
    elif inner[0] in quotes or inner[-1] in quotes:
        message = "The secret begins or ends with a quote. It counts: the receiver needs the same."
    elif _OF_STANDARD_WEBHOOKS.search(inner) and signing_key(inner) == inner.encode("utf-8", "surrogatepass"):
        message = "A secret of Standard Webhooks is whsec_ and base64. This is not, and libraries refuse it. Copy it again."
    elif len(inner) < 16:
        message = "A secret of fewer than 16 characters can be guessed. Use a longer one."
    if message:
        yield warning("suspect_secret", message)


def wrong_id(target: str, *, to_member: bool) -> Iterator[ConfigProblem]:
    """Find whether a target is no id of the provider's, or one of the other kind; variables are told elsewhere."""
    if "{" in target:
        return
    if not re.fullmatch("[A-Z0-9]+", target):
        yield warning("not_an_id", "This is no id: choose from the list, or copy the id.")
    elif target[0] in "ABCDGTUW" and target[0] not in ("UW" if to_member else "CGD"):
        kind = "a person" if to_member else "a channel"
        yield warning("not_an_id", f"This is not the id of {kind}: choose from the list, or copy the id.")


def explained(text: str, refusal: BodyInvalid) -> BodyInvalid:
    """Return the refusal of a body with the place where a reader stops, and what is wrong or expected there."""
    plain = split_json(text).plain
    try:
        json.loads(plain, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        known = _json_error(plain, error) or _variable_near(text, error.pos)
        message, at = known or (_expected(plain[: error.pos]), error.pos)
    except (ValueError, RecursionError):
        return refusal
    else:
        # Python reads NaN and Infinity, too.
        tokens = _JSON_TOKEN.finditer(plain)
        at = next((token.start() for token in tokens if token[0] in {"NaN", "Infinity", "-Infinity"}), -1)
        if at < 0:
            return refusal
        message = _expected(plain[:at])
    line, column = place(text[:at])
    return BodyInvalid(f"{message} The body must be JSON (line {line}, column {column}).", line, column)


def _json_error(text: str, error: json.JSONDecodeError) -> tuple[str, int] | None:
    """Say what is wrong where a reader of JSON stops, if that is certain."""
    at, found = error.pos, text[error.pos : error.pos + 1]
    for begin, message in _IN_A_TEXT.items():
        if f"{error.msg}{found}".startswith(begin):
            return message.format(f"{ord(found or ' '):04x}"), at
    # Python 3.13 and later stop at the comma, others behind it.
    comma = at if found == "," else len(text[:at].rstrip(_BLANKS)) - 1
    if text[comma : comma + 1] == "," and text[comma + 1 :].lstrip(_BLANKS)[:1] in {"}", "]"}:
        return "Nothing follows this comma. Remove it.", comma
    if found and found in f"'`{_TYPOGRAPHIC_QUOTES}":
        return f'{found} does not quote text in JSON. Write " in its place.', at
    return next(((unseen.message, at) for unseen in invisible(found)), None)


def _expected(before: str) -> str:
    """Say what may follow the begin of a JSON text that is right so far."""
    brackets: list[str] = []
    last, is_name = "", False
    for token in _JSON_TOKEN.findall(before):
        is_name = brackets[-1:] == ["{"] and last in {"{", ","} and token not in {"}", "]"}
        if token in {"{", "["}:
            brackets.append(token)
        elif token in {"}", "]"}:
            del brackets[-1:]
        last = token
    inner = brackets[-1] if brackets else ""
    end = {"{": "}", "[": "]"}.get(inner)
    if last == "{" or (last == "," and inner == "{"):
        return f"A name in double quotes{' or }' if last == '{' else ''} is expected here."
    if last in {"", "[", ",", ":"}:
        value = "A value or ]" if last == "[" else "A value"
        return f"{value} is expected here: text in double quotes, a number, true, false, null, {{ or [."
    if end is None:
        return "Nothing more is expected here."
    return f"{'A colon' if is_name else f'A comma or {end}'} is expected here."


def _variable_near(text: str, offset: int) -> tuple[str, int] | None:
    """Find what is no variable, at or around whose braces a reader of JSON stops."""
    for start in range(offset, max(-1, offset - 3), -1):
        found = _LIKE_A_VARIABLE.match(text, start)
        if found is not None and found[1] not in VARIABLES:
            return _no_variable(found), start
    return None


def unknown_tokens(text: str) -> Iterator[ConfigProblem]:
    """Find what looks like a variable and is none, so that it is sent unchanged; each of them once."""
    for found in _each_once(text):
        if found[1] not in VARIABLES and (found[1] is None or found[1].strip()):
            message = f"{_no_variable(found)} It is sent unchanged."
            yield fault(text, found.start(), "unknown_token", message)


def tokens_not_substituted(text: str) -> Iterator[ConfigProblem]:
    """Find what was meant as a variable in a text in which none is substituted; each of them once."""
    for found in _each_once(text):
        message = f"{found[0]} is not substituted here, and stays as it is."
        yield fault(text, found.start(), "token_not_substituted", message)


def tokens_in_keys(text: str) -> Iterator[ConfigProblem]:
    """Find the variables in keys of a JSON body, where none is substituted; each of them once."""
    seen: set[str] = set()
    for key, colon in pairwise(_JSON_TOKEN.finditer(split_json(text).plain)):
        for found in TOKEN.finditer(text, key.start(), key.end()) if colon[0] == ":" else ():
            if found[0] not in seen:
                seen.add(found[0])
                said = f"{found[0]} is not substituted in a key. It is sent unchanged."
                yield fault(text, found.start(), "token_not_substituted", said)


def _each_once(text: str) -> Iterator[re.Match[str]]:
    """Find what looks like a variable, the first time of each of the first few."""
    seen: set[str] = set()
    for found in _LIKE_A_VARIABLE.finditer(text):
        if found[0] not in seen:
            seen.add(found[0])
            yield found
            if len(seen) == MOST_OF_A_RULE:
                return


def _no_variable(found: re.Match[str]) -> str:
    """Say that something is no variable, and which it may be."""
    meant = _BRACED.get((found[1] or found[2] or found[3]).strip().lower())
    known = f": write {meant}." if meant else f". The variables are {' and '.join(_BRACED.values())}."
    return f"{found[0].strip()} is not a variable{known}"
