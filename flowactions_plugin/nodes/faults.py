"""What an author may have got wrong in one text of a config: pure rules, and where; no rule repeats anything of a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from flowactions_hookspecs import ConfigProblem
from flowactions_hookspecs.editing import MASK
from flowactions_plugin.egress.signature import signing_key
from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.template import (
    VARIABLES,
    place,
    split_json,
    without_surrogates,
)

NAME_LENGTH: Final = 80
"""Characters of a name that are shown."""

MOST_OF_A_RULE: Final = 20
"""Problems that one rule tells of one text."""

_TYPOGRAPHIC_QUOTES: Final = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u2018\u2019\u201a\u201b\u2032"
_BLANKS: Final = " \t\r\n"
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters without a sign that Python calls printable: fillers, blanks and selectors of variants."""

_KNOWN_TOKEN: Final = re.compile(
    r"\b((?:xox[abeoprs]-|xapp-|[rs]k_(?:live|test)_|gh[oprsu]_|github_pat_|glpat-|whsec_)[\w.\-+/=]{8,}"
    r"|AKIA[0-9A-Z]{16}\b|AIza[\w\-]{35}|eyJ[\w\-]{8,}\.eyJ[\w\-]{8,})",
    re.ASCII,
)
"""Tokens of providers that mark them, and JSON Web Tokens."""

_OF_A_SCHEME: Final = re.compile(r"\s*(?:basic|bearer|token|apikey)\s+([^\s{}]{8,})", re.IGNORECASE)
_A_TOKEN: Final = re.compile(r"\s*([^\s{}]{8,})\s*")
_IN_COOKIE: Final = re.compile(
    r"(?:^|;)\s*(?=[^\s;=]*?(?:sess|token|auth(?!or)|jwt|(?<![a-z])sid))[^\s;=]*+=([^\s;{}]{8,})",
    re.IGNORECASE,
)
"""The value of a cookie whose name is a session's or a token's."""

_TOKEN_HEADER: Final = re.compile(
    r"(?:.*[-_])?(?:token|secret|password|api-?key|access-?key|subscription-key|authorization)",
    re.IGNORECASE,
)
_TOKEN_IN_QUERY: Final = re.compile(
    r"[?&](?:(?:api|auth|access)[_-]?token|api[_-]?key|token|(?:client[_-]?)?secret|password|sig|signature)=(?=[^&#{}])",
    re.IGNORECASE,
)
_IN_CLEAR: Final = (
    "This looks like a token, and it is stored unencrypted. Sign the requests instead, or use a token with few rights and"
    " replace it regularly."
)
_OF_STANDARD_WEBHOOKS: Final = re.compile(r"(?:\b|_)wh(?:sec|sk|pk)[_-]", re.IGNORECASE)

_MARKUP: Final = {
    "bold": "This is not bold here: write *text*.",
    "link": "This is not a link here: write <https://example.com|text>.",
    "mention": "{0} notifies nobody: write <!{1}>.",
}
_OTHER_MARKUP: Final = re.compile(
    r"""```.*?``` | `[^`\n]+` | <[^<>\n]*>  # code, links and mentions as they are written here
    | (?P<bold>(?<![\w*])\*\*(?=[^\s*])[^*\n]*(?<=\S)\*\*(?!\*))
    | (?P<link>\[[^\[\]\n]+\]\((?:https?://|mailto:)[^\s()]+\))
    | (?P<mention>(?<![\w@./-])@(?:channel|here|everyone)\b(?![@-]|\.\w))""",
    re.DOTALL | re.VERBOSE,
)
"""Markup of other programs, which is sent as it stands."""

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
_JSON_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*+"(?=([ \t\r\n]*+:)?)|[{}]', re.DOTALL)
"""A text of JSON, with a group if it is a name, or a brace."""


def fault(text: str, offset: int, code: str, message: str) -> ConfigProblem:
    """Return what is wrong at an offset of a text."""
    line, column = place(text[:offset])
    return ConfigProblem(code=code, message=message, severity="warning", line=line, column=column)


def warning(code: str, message: str, *path: str | int) -> ConfigProblem:
    """Return what is wrong with a field as a whole."""
    return ConfigProblem(path=path, code=code, message=message, severity="warning")


def token_in_header(name: str, value: str) -> Iterator[ConfigProblem]:
    """Find a credential in a header's value; one that is a variable is none."""
    found = _KNOWN_TOKEN.search(value) or _OF_A_SCHEME.match(value)
    if found is None and name.lower() == "cookie":
        found = _IN_COOKIE.search(value)
    elif found is None and _TOKEN_HEADER.fullmatch(name):
        found = _A_TOKEN.fullmatch(value)
    if found is not None:
        yield fault(value, found.start(1), "token_in_clear", _IN_CLEAR)


def token_in_url(url: str) -> Iterator[ConfigProblem]:
    """Find a credential in a URL's query."""
    address, _, query = url.partition("#")[0].partition("?")
    at = None
    if found := _TOKEN_IN_QUERY.search(f"?{query}"):
        at = len(address) + found.end()
    elif found := _KNOWN_TOKEN.search(query):
        at = len(address) + 1 + found.start()
    if at is not None:
        yield fault(url, at, "token_in_clear", _IN_CLEAR)


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


def faults_of_secret(secret: str) -> Iterator[ConfigProblem]:
    """Find what is wrong with a signing secret."""
    inner = secret.strip()
    if secret != inner or len(inner.split()) > 1 or any(invisible(inner)):
        message = "The secret contains a space, a line break or an invisible character. It counts: the receiver needs the same."
        yield warning("secret_has_spaces", message)
    if not inner:
        return
    quotes = f"\"'`{_TYPOGRAPHIC_QUOTES}"
    if inner != MASK and not inner.strip("*\u2022\u25cf\u00b7"):
        yield warning("secret_is_hidden", "These are the signs that hide a secret. Copy the secret itself.")
    elif inner[0] in quotes or inner[-1] in quotes:
        message = "The secret begins or ends with a quote. It counts: the receiver needs the same."
        yield warning("secret_has_quotes", message)
    elif _OF_STANDARD_WEBHOOKS.search(inner) and signing_key(inner) == inner.encode("utf-8", "surrogatepass"):
        message = "A secret of Standard Webhooks is whsec_ and base64. This is not, and libraries refuse it. Copy it again."
        yield warning("secret_not_base64", message)
    elif len(inner) < 16 and inner != MASK:
        message = "A secret of fewer than 16 characters can be guessed. Use a longer one."
        yield warning("secret_too_short", message)


def other_markup(text: str) -> Iterator[ConfigProblem]:
    """Find markup that the chat provider does not know; the first of each kind."""
    seen: set[str | None] = {None}
    for found in _OTHER_MARKUP.finditer(text):
        if (kind := found.lastgroup) not in seen:
            seen.add(kind)
            yield fault(text, found.start(), "other_markup", _MARKUP[str(kind)].format(found[0], found[0][1:]))


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
        message, at = (
            _json_error(plain, error)
            or _variable_near(text, error.pos)
            or (_expected(plain[: error.pos]), error.pos)
        )
    except (ValueError, RecursionError):
        return refusal
    else:  # Python reads NaN and Infinity, too
        if refusal.line is None or refusal.column is None:
            return refusal
        at = sum(len(line) + 1 for line in plain.split("\n")[: refusal.line - 1]) + refusal.column - 1
        at -= plain[:at].endswith("-")
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
        is_name = brackets[-1:] == ["{"] and last in {"{", ","}
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


def repeated_keys(text: str) -> Iterator[ConfigProblem]:
    """Find the names that stand twice in one object of a body that is valid JSON; each place of them after the first."""
    objects: list[set[str]] = []
    for part in _JSON_PART.finditer(split_json(text).plain):
        if part[0] == "{":
            objects.append(set())
        elif part[0] == "}":
            objects.pop()
        elif part[1] is not None:
            written = text[part.start() : part.end()]
            name = json.loads(written) if written.startswith('"') else written
            if name in objects[-1]:
                shown = without_surrogates(f"{name[:NAME_LENGTH]}{'…' if len(name) > NAME_LENGTH else ''}")
                said = f'This object has the name "{shown}" twice. Receivers read only one of them. Remove one.'
                yield fault(text, part.start(), "duplicate_key", said)
            objects[-1].add(name)


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
    for name, offset in split_json(text).in_keys.items():
        message = f"{_BRACED[name.lower()]} is not substituted in a key. It is sent unchanged."
        yield fault(text, offset, "token_not_substituted", message)


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
