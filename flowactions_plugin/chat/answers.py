"""Validates the chat provider's answers before other modules use them.

No part of an answer is trusted. For any bytes, parsing returns a value or raises `ChatRefused`, uses memory and time in
proportion to `MAX_BYTES`, and returns no text that a database, a log line or a JSON body cannot hold.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowactions_plugin.chat.app import read_scopes
from flowactions_plugin.chat.failures import REVOKED, UNREADABLE_ANSWER, AnswerTooLarge, ChatRefused
from flowactions_plugin.chat.pickers import Choice, Page

MAX_BYTES: Final = 1 << 22
"""The size limit of an answer's body, as received and decompressed. A record with pictures takes 2 to 2.5 KB, so a page
of 999 members fits."""

BUILT_IN_USER: Final = "USLACKBOT"
MAX_NAME: Final = 200

_ID = re.compile(r"[!-~]{1,255}", re.ASCII)
TOKEN: Final = re.compile(r"[!-~]{1,2000}", re.ASCII)
_CURSOR = re.compile(r"[!-~]{1,490}", re.ASCII)  # with what `directory` puts before it, a route's limit is 500
_CODE = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_SECONDS = re.compile(r"[0-9]+", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_answer(status: int, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a call that succeeded.

    Args:
        status: the HTTP status.
        headers: names in lower case.
        body: at most one byte more than `MAX_BYTES`.

    Raises:
        AnswerTooLarge: the body of a 2xx is larger than `MAX_BYTES`, as received or decompressed.
        ChatRefused: the call did not succeed, or is not known to have.
    """
    asked = headers.get("retry-after", "").strip()
    retry_after = float(asked) if _SECONDS.fullmatch(asked) else None
    if status == 429:
        raise ChatRefused("ratelimited", retry_after, detail="HTTP status 429")
    if status == 407:  # the egress proxy's: what it says in JSON is no refusal of the provider's
        raise ChatRefused("unreachable", detail="the egress proxy asks for credentials (407)")
    try:
        answer = _object(headers, body)
    except ChatRefused as refusal:
        if is_success(status):
            raise
        # The answer is from a proxy or a gateway.
        raise ChatRefused("unreachable", retry_after, detail=f"HTTP status {status}") from refusal
    ok, code = answer.get("ok"), answer.get("error")
    if is_success(status) and ok is True:
        return answer
    is_code = _is(_CODE, code)
    # That a token is revoked, the provider says in the way of its own answers, and a gateway or a portal before it otherwise.
    if not is_code or (code in REVOKED and not (is_success(status) and ok is False)):
        said = "unreachable" if ok is False or not is_success(status) else UNREADABLE_ANSWER
        words = f"HTTP status {status}, {code if is_code else 'no error code'}"
        raise ChatRefused(said, retry_after, detail=words)
    provided = read_scopes(answer.get("provided"))
    needed = tuple(scope for scope in read_scopes(answer.get("needed")) if scope not in provided)
    raise ChatRefused(str(code)[:100], retry_after, needed=needed)


def is_success(status: int) -> bool:
    """Return whether a status says that a call succeeded, if the body does not say otherwise."""
    return 200 <= status < 300


def _object(headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    try:
        # JSON is UTF-8 (RFC 8259), whatever type and charset say; some servers put a byte order mark before it.
        text = _decompressed(headers.get("content-encoding", ""), body).decode("utf-8-sig", "replace")
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed("the answer is no JSON") from None
    if not isinstance(answer, dict):
        raise _malformed("the answer is no JSON object")
    return answer


def _decompressed(encoding: str, body: bytes) -> bytes:
    if len(body) > MAX_BYTES:
        raise AnswerTooLarge
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in {"gzip", "x-gzip"}:
        raise _malformed("the answer is compressed in a way that was not asked for")
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = reader.decompress(body, MAX_BYTES + 1)
    except zlib.error:
        raise _malformed("the answer cannot be decompressed") from None
    if len(text) > MAX_BYTES:
        raise AnswerTooLarge
    if not reader.eof:
        raise _malformed("the answer broke off")
    return text


def id_of(answer: Mapping[str, Any], name: str, form: re.Pattern[str] = _ID) -> str:
    """Return an id, or what has another form, of an answer. Raises `ChatRefused` when it is missing or malformed."""
    value = answer.get(name)
    if not _is(form, value):
        raise _malformed(f"the answer's {name} is missing or cannot be used")
    return str(value)


def optional_id(answer: Mapping[str, Any], name: str) -> str:
    """Return an id of an answer; empty text when it is missing or malformed."""
    value = answer.get(name)
    return str(value) if _is(_ID, value) else ""


def name_of(answer: Mapping[str, Any], name: str) -> str:
    """Return a display name, cleaned by `shown`; empty text when it is missing."""
    value = answer.get(name)
    return shown(value) if isinstance(value, str) else ""


def shown(text: str) -> str:
    """Return a name without control characters and lone surrogates, cut to 200 characters."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text[:MAX_NAME])).strip()


def object_of(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object of an answer. Raises `ChatRefused` when it is missing."""
    value = answer.get(name)
    if not isinstance(value, dict):
        raise _malformed(f"the answer has no {name}")
    return value


def channel_page(answer: Mapping[str, Any], *, joined: bool) -> Page:
    """Return a page of channels, without archived ones and those without an id or a name.

    Args:
        answer: lists the app's own channels, or all.
        joined: whether it lists the app's own; otherwise, those are left out.

    Raises:
        ChatRefused: the cursor of the next page is malformed.
    """
    channels = [
        _channel(item, joined) for item in _items(answer, "channels") if joined or not item.get("is_member")
    ]
    return Page([channel for channel in channels if channel is not None], _next_cursor(answer))


def member_page(answer: Mapping[str, Any]) -> Page:
    """Return a page of members, without bots, deactivated accounts and the built-in user (§2.3).

    Raises:
        ChatRefused: the cursor of the next page is malformed.
    """
    members = map(member_choice, _items(answer, "members"))
    return Page([member for member in members if member is not None], _next_cursor(answer))


def channel_choice(item: Mapping[str, Any]) -> Choice | None:
    """Return the choice that a channel is; ``None``: none, as in a list."""
    return _channel(item, item.get("is_member") is True)


def member_choice(item: Mapping[str, Any]) -> Choice | None:
    """Return the choice that a member is; ``None``: none, as in a list."""
    if item.get("is_bot") or item.get("deleted") or not _is(_ID, item.get("id")) or item["id"] == BUILT_IN_USER:
        return None
    profile = item.get("profile")
    display_name = name_of(profile, "display_name") if isinstance(profile, dict) else ""
    handle = name_of(item, "name")
    names = tuple(name for name in (display_name, name_of(item, "real_name"), handle) if name)
    return Choice(item["id"], names[0] if names else item["id"], f"@{handle}" if handle else None, names)


def _channel(item: Mapping[str, Any], joined: bool) -> Choice | None:
    name = name_of(item, "name")
    if item.get("is_archived") or not _is(_ID, item.get("id")) or not name:
        return None
    private = "Private channel" if item.get("is_private") else None
    return Choice(
        item["id"], f"#{name}", private if joined else "The app has not joined this channel.", (name,)
    )


def _items(answer: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = answer.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _next_cursor(answer: Mapping[str, Any]) -> str | None:
    metadata = answer.get("response_metadata")
    cursor = metadata.get("next_cursor") if isinstance(metadata, dict) else None
    if cursor is None or cursor == "":
        return None
    if not _is(_CURSOR, cursor):
        raise _malformed("the answer's cursor cannot be used")
    return str(cursor)


def _is(form: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _malformed(detail: str) -> ChatRefused:
    return ChatRefused(UNREADABLE_ANSWER, detail=detail)
