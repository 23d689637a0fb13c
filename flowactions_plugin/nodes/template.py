"""Template variables: ``{{userId}}`` and ``{{content}}``, and no others.

Substituted values are never scanned again, so a value that looks like a variable stays as it is. Rendering takes
time in proportion to the template, whatever is in it, and a result that would be too large is never built.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

import msgspec

from flowactions_hookspecs import Walk
from flowactions_plugin.errors import BodyInvalid, BodyTooLarge, HeadersTooLarge
from flowactions_plugin.log_text import size
from flowactions_plugin.settings.model import DEFAULT_MAX_BODY_BYTES

VARIABLES: Final = {"userId": "The end user's id", "content": "The message that triggered the flow"}
CHAT_MESSAGE_LENGTH: Final = 4000

Variables: TypeAlias = Mapping[str, str]
"""Name of a variable → its value in one walk."""

TOKEN: Final = re.compile(r"\{\{(userId|content)\}\}")
"""A variable as it is written."""

_QUOTED: Final = {name: f'"{{{{{name}}}}}"' for name in VARIABLES}
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

_CHAT_LOOK_AHEAD: Final = 1 << 16
"""Characters of a message that are put together to see whether what is open at the cut is closed behind it."""

_LINK: Final = r"<(?:[@#!]|[A-Za-z][A-Za-z0-9+.-]{0,30}:)[^<>|\n]{1,3000}+(?P<label>\|[^<>\n]*+)?+>"
_CHAT_MARK: Final = re.compile(rf"```|`|&(?:amp|lt|gt);|{_LINK}|(?<![^\W_])[*_~](?=\S)")
_CHAT_CLOSER: Final = {"```": re.compile("(?P<closer>```)"), "`": re.compile("(?P<closer>`)")} | {
    mark: re.compile(rf"```.*?```|`[^`\n]+`|{_LINK}|(?<=\S)(?P<closer>\{mark})(?![^\W_])") for mark in "*_~"
}
"""What closes markup. In code and links, ``*``, ``_`` and ``~`` are text."""

_RUN_THEN_SPECIAL = re.compile(
    r"""
    (                                                    # text whose tokens, if any, are all in string values:
      (?: [^"{]
        | (?! \{\{(?:userId|content)\}\} ) \{
        | (?! " (?: [^"\\{]++ | (?!\{\{(?:userId|content)\}\})\{ | \\.?+ )*+ \{  # not a string that has a token
                (?: [^"\\] | \\.?+ )*+ " [\x20\t\r\n]*+ : )                      # and is a key
          " (?: [^"\\] | \\.?+ )*+ "?
      )*+
    )
    (?: \{\{(userId|content)\}\} (?= [\x20\t\r\n]*+ (:?) )   # then a bare token, which may be a key,
      | ( " (?: [^"\\] | \\.?+ )*+ " )                       # or a key with a token, or the end
    )?+
    """,
    re.DOTALL | re.VERBOSE,
)
"""Splits a JSON body where tokens stand that are not in a string value.

It matches at every position and never backtracks: the quantifiers are possessive, and no alternative fails once it
has consumed anything. It advances a character at a time, also where longer steps would do, so that the time depends
on the length of a body and hardly on its contents. An ordinary ``*`` here takes 120 bytes of memory a character.
"""


def variables_of(walk: Walk) -> Variables:
    """Return the variables of a walk. A character that UTF-8 cannot encode (a lone surrogate) becomes U+FFFD."""
    return {"userId": without_surrogates(walk.user_id), "content": without_surrogates(walk.content)}


def interpolate_header(text: str, variables: Variables, limit: int) -> str:
    """Substitute the variables in a header's value.

    Raises:
        HeadersTooLarge: the result would be longer than ``limit`` characters; it is not built.
    """
    pieces = _pieces(text, variables.__getitem__)
    if sum(map(len, pieces)) > limit:
        raise HeadersTooLarge(f"A header's value is larger than {size(limit)}.")
    return "".join(pieces)


def interpolate_json(text: str, variables: Variables, limit: int = DEFAULT_MAX_BODY_BYTES) -> str:
    """Substitute the variables in a JSON body, byte for byte as authored elsewhere (§2.4).

    A bare token becomes a JSON string; a token within a string value is replaced by escaped text; object
    keys are left alone. A value can never change the body's syntax.

    Raises:
        BodyInvalid: the body is not JSON, with any values of the variables.
        BodyTooLarge: the template is larger than ``limit`` bytes (UTF-8), or the result would be; it is not built.
    """
    if len(text) > limit or len(text.encode()) > limit:
        raise _body_too_large(limit)
    template = split_json(text)
    check_json(template.plain.encode())
    if "{{" not in text:
        return text

    @cache
    def escaped(name: str) -> str:
        if len(variables[name]) > limit:
            raise _body_too_large(limit)
        return json.dumps(variables[name], ensure_ascii=False)[1:-1]

    pieces: list[str] = []
    for values, key in template.parts:
        pieces += _pieces(values, escaped) if "{{" in values else [values]
        pieces.append(key)
    # Characters first: what has more of them than there may be bytes is not put together.
    if sum(map(len, pieces)) > limit:
        raise _body_too_large(limit)
    body = "".join(pieces)
    if len(body.encode()) > limit:
        raise _body_too_large(limit)
    return body


class JsonTemplate(NamedTuple):
    """A JSON body, split at its tokens.

    Attributes:
        plain: JSON if the body is, and of the same length: so a syntax error has its place in the author's text.
        parts: text whose tokens are all in string values, and the key behind it, in which none is substituted.
    """

    plain: str
    parts: Sequence[tuple[str, str]]


def split_json(text: str) -> JsonTemplate:
    """Split a JSON body; one that is no JSON, too."""
    if "{{" not in text:
        return JsonTemplate(text, [(text, "")])
    plain: list[str] = []
    parts: list[tuple[str, str]] = []
    values: list[str] = []
    for found in _RUN_THEN_SPECIAL.finditer(text):
        run, token, colon, key = found.groups()
        plain.append(run)
        values.append(run)
        if token is not None:
            plain.append(f'"{"_" * (len(token) + 2)}"')
            if not colon:
                values.append(_QUOTED[token])
                continue
            key = _QUOTED[token]
        elif key is not None:
            plain.append(key)
        else:
            continue
        parts.append(("".join(values), key))
        values.clear()
    parts.append(("".join(values), ""))
    return JsonTemplate("".join(plain), parts)


def _body_too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {size(limit)}.")


def _pieces(text: str, value_of: Callable[[str], str]) -> list[str]:
    """Split text at its tokens and put the values there; joined, this is the result."""
    pieces = TOKEN.split(text)
    pieces[1::2] = map(value_of, pieces[1::2])
    return pieces


def check_json(body: bytes) -> None:
    """Check that a body is JSON.

    Raises:
        BodyInvalid: it is not.
    """
    try:
        # Nothing of what is in it is built, which for many small values takes fifty times as long.
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
        except msgspec.DecodeError:
            # JSON allows the escape of a lone surrogate, and the decoder does not.
            text = body.decode().replace("\\\\", "__")
            msgspec.json.decode(_SURROGATE_ESCAPE.sub("______", text), type=msgspec.Raw)
    except RecursionError:
        raise BodyInvalid("The body is nested too deeply.") from None
    except msgspec.DecodeError:
        raise BodyInvalid from None


def place(before: str) -> tuple[int, int]:
    """Return the line and column, both from 1 and in characters, of what follows a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def chat_message(text: str, variables: Variables) -> str:
    """Make the text of a chat message: substitute, trim, cut to 4000 characters (§2.1).

    Substituted values are escaped, so an end user can neither ping people nor fake a link. Markup that the cut would
    leave open is closed, and a link or an entity that it would split is left out. What is far behind the cut is not put
    together.
    """
    text = _chat_head(text, variables)
    if len(text) <= CHAT_MESSAGE_LENGTH:
        return text
    spans = _spans_at(text, CHAT_MESSAGE_LENGTH)
    at = CHAT_MESSAGE_LENGTH
    while True:
        around = [span for span in spans if span.start < at < span.end]
        closing = "".join(span.mark for span in reversed(around))
        if split := [span for span in around if not span.inner_start < at <= span.inner_end]:
            at = min(span.start if at <= span.inner_start else span.inner_end for span in split)
        elif at + len(closing) > CHAT_MESSAGE_LENGTH:
            at -= 1
        elif around and around[-1].mark in "*_~" and text[at - 1].isspace():
            at -= 1  # behind white space, the mark would close nothing
        else:
            return text[:at] + closing


def is_chat_message_cut(text: str, variables: Variables) -> bool:
    """Return whether `chat_message` leaves something out of a text because it is too long."""
    return len(_chat_head(text, variables)) > CHAT_MESSAGE_LENGTH


class _Span(NamedTuple):
    """Markup, by its places in a text: a cut is possible outside, and inside where ``mark`` then closes it."""

    start: int
    inner_start: int
    inner_end: int
    end: int
    mark: str


def _spans_at(text: str, cut: int) -> list[_Span]:
    """Return the markup that is open at a place or ends just before it; what is never closed is text.

    Each kind of markup searches a part of the text once, so that it takes time in proportion to the text.
    """
    spans: list[_Span] = []
    searched: dict[str, int] = {}
    code_end = 0
    for found in _CHAT_MARK.finditer(text):
        start, mark = found.start(), found[0]
        if start >= cut:
            break
        span = None
        if mark[0] in "<&":
            inner = found.start("label") + 1 or found.end() - 1
            span = _Span(start, inner, found.end() - 1, found.end(), ">")
        elif start >= max(code_end, searched.get(mark, 0)):
            inner, line_end = start + len(mark), -1 if mark == "```" else text.find("\n", start)
            searched[mark] = len(text) if line_end < 0 else line_end
            closers = _CHAT_CLOSER[mark].finditer(text, inner, searched[mark])
            close = next((end.start() for end in closers if end["closer"] and end.start() > inner), None)
            if close is not None:
                span = _Span(start, inner, close, close + len(mark), mark)
                searched[mark] = span.end
                code_end = span.end if mark[0] == "`" else code_end
        if span is not None and span.end > cut - 8:  # what ends earlier is whole, also where marks are added
            spans.append(span)
    return spans


def _chat_head(text: str, variables: Variables) -> str:
    """Substitute and trim, as far as the text is looked at; a piece that occurs often is looked at once."""
    pieces = _pieces(text, cache(lambda name: html.escape(variables[name], quote=False)))
    has_text: Callable[[str], bool] = cache(lambda piece: bool(piece) and not piece.isspace())
    kept = [number for number, piece in enumerate(pieces) if has_text(piece)]
    if not kept:
        return ""
    shown = pieces[kept[0] : kept[-1] + 1]
    shown[0] = shown[0].lstrip()
    shown[-1] = shown[-1].rstrip()
    head, left = [], CHAT_MESSAGE_LENGTH + _CHAT_LOOK_AHEAD
    for piece in shown:
        head.append(piece[:left])
        left -= len(head[-1])
        if left <= 0:
            break
    return "".join(head)


def without_surrogates(text: str) -> str:
    """Replace what UTF-8 cannot hold by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
