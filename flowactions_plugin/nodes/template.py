"""Template variables: ``{{userId}}`` and ``{{content}}``, and no others (§2.1, §2.4).

Substituted values are never looked at again, so a value that looks like a variable stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from flowactions_hookspecs import Walk
from flowactions_plugin.errors import BodyInvalid

VARIABLES: Final = {"userId": "The end user's id", "content": "The message that triggered the flow"}
CHAT_MESSAGE_LENGTH: Final = 4000

_TOKEN = re.compile(r"\{\{(userId|content)\}\}")
_STRING_OR_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\{\{(userId|content)\}\}', re.DOTALL)
_KEY_FOLLOWS = re.compile(r"[ \t\r\n]*:")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHAT_ENTITIES: Final = ("&amp;", "&lt;", "&gt;")


class Variables(msgspec.Struct, frozen=True):
    """The values of the two variables in one walk."""

    user_id: str
    content: str

    def value(self, match: re.Match[str]) -> str:
        """Give the value of the variable that ``match`` found in its first group."""
        return self.user_id if match[1] == "userId" else self.content


def variables_of(walk: Walk) -> Variables:
    """Take the variables from a walk. What UTF-8 cannot hold (a lone surrogate) becomes U+FFFD."""
    return Variables(without_surrogates(walk.user_id), without_surrogates(walk.content))


def interpolate(text: str, variables: Variables, escape: Callable[[str], str] = str) -> str:
    """Substitute the variables in plain text.

    Args:
        text: as authored; nothing else in it changes.
        variables: the values.
        escape: applied to each value, not to the author's text.
    """
    return _TOKEN.sub(lambda match: escape(variables.value(match)), text)


def interpolate_json(text: str, variables: Variables) -> str:
    """Substitute the variables in a JSON body, byte for byte as authored elsewhere.

    A bare token becomes a JSON string; a token within a string value is replaced by escaped text; object
    keys are left alone. A value can never change the body's syntax.

    Raises:
        BodyInvalid: the body is no JSON.
    """

    def substitute(match: re.Match[str]) -> str:
        literal = match[0] if match[1] is None else f'"{match[0]}"'
        if _KEY_FOLLOWS.match(text, match.end()):
            return literal
        return interpolate(literal, variables, _json_text)

    body = _STRING_OR_TOKEN.sub(substitute, text)
    try:
        json.loads(body, parse_float=str, parse_int=str, parse_constant=_no_constant)
    except RecursionError:
        raise BodyInvalid("The body is nested too deeply.") from None
    except ValueError as exc:
        raise BodyInvalid(f"The body is not valid JSON: {exc}") from None
    return body


def chat_message(text: str, variables: Variables) -> str:
    """Make the text of a chat message: substitute, trim, cut to 4000 characters (§2.1).

    Substituted values are escaped, so an end user can neither ping people nor fake a link.
    """
    return _cut(interpolate(text, variables, _chat_text).strip())


def _cut(text: str) -> str:
    if len(text) <= CHAT_MESSAGE_LENGTH:
        return text
    # An entity that the cut would split is left out whole.
    start = text.rfind("&", CHAT_MESSAGE_LENGTH - 4, CHAT_MESSAGE_LENGTH)
    for entity in _CHAT_ENTITIES:
        if start != -1 and text.startswith(entity, start) and start + len(entity) > CHAT_MESSAGE_LENGTH:
            return text[:start]
    return text[:CHAT_MESSAGE_LENGTH]


def _chat_text(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _json_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def without_surrogates(text: str) -> str:
    """Replace what UTF-8 cannot hold by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)
