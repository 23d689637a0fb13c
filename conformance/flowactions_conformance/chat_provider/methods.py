"""The Web API's methods: they compute answers from the state, without I/O."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from flowactions_conformance.chat_provider.faults import failing_code, refusal
from flowactions_conformance.chat_provider.state import Channel, Member, State, Token

Arguments = Mapping[str, Any]
Answer = dict[str, Any]
Item = TypeVar("Item")

SCOPE_OF_TYPE: Mapping[str, str] = {"public_channel": "channels:read", "private_channel": "groups:read"}


class Method(NamedTuple):
    """A method of the Web API.

    Attributes:
        run: returns the answer's body.
        scope: the scope that a token needs; ``None``: every token may call it.
        takes_json: whether a JSON body is read; otherwise only form fields and the query.
        limit: calls, and the seconds in which they are allowed, for each workspace.
    """

    run: Callable[[State, Token, Arguments], Answer]
    scope: str | None = None
    takes_json: bool = False
    limit: tuple[int, int] | None = None


TIER_2, TIER_3, TIER_4 = (20, 60), (50, 60), (100, 60)


def auth_test(_: State, token: Token, __: Arguments) -> Answer:
    """Return the owner of the token."""
    workspace = token.workspace
    return {
        "ok": True,
        "url": f"https://{workspace.name.lower()}.example.com/",
        "team": workspace.name,
        "user": "bot",
        "team_id": workspace.id,
        "user_id": workspace.bot_user_id,
        "bot_id": f"B{workspace.id[1:]}",
    }


def auth_revoke(_: State, token: Token, __: Arguments) -> Answer:
    """Revoke the token."""
    token.dead = "token_revoked"
    return {"ok": True, "revoked": True}


def post_message(state: State, token: Token, arguments: Arguments) -> Answer:
    """Post to a channel that the app has joined, or to a direct-message channel."""
    text, target = str(arguments.get("text") or ""), str(arguments.get("channel") or "")
    workspace = token.workspace
    member = state.direct_member(workspace, target)
    channel = _channel(workspace.channels, target)
    code = failing_code(token.value) or _unfit(text)
    if code is None and member is None:
        code = _closed(channel)
    if code is not None:
        more = {"needed": "chat:write", "provided": ""} if code == "missing_scope" else {}
        return refusal(code, **more)
    name = f"@{member.name}" if member is not None else f"#{channel.name if channel else ''}"
    message = state.post(workspace, target, name, text)
    sent = {"type": "message", "user": workspace.bot_user_id, "text": text, "ts": message.ts}
    return {"ok": True, "channel": target, "ts": message.ts, "message": sent}


def _unfit(text: str) -> str | None:
    if not text:
        return "no_text"
    return "msg_too_long" if len(text) > 40_000 else None


def _closed(channel: Channel | None) -> str | None:
    """Return why the app cannot post to a channel. A private channel is not found unless the app is a member."""
    if channel is None or (channel.is_private and not channel.is_member):
        return "channel_not_found"
    if channel.is_archived:
        return "is_archived"
    return None if channel.is_member else "not_in_channel"


def conversations_open(state: State, token: Token, arguments: Arguments) -> Answer:
    """Open the direct-message channel with a member."""
    users = arguments.get("users")
    user = str(users[0] if isinstance(users, list) and users else users or "")
    member = next((member for member in token.workspace.members if member.id == user), None)
    if member is None:
        return refusal("user_not_found")
    if member.is_bot:
        return refusal("cannot_dm_bot")
    if member.deleted:
        return refusal("user_disabled")
    already = {"no_op": True, "already_open": True} if state.open_direct(token.workspace, member) else {}
    return {"ok": True, **already, "channel": {"id": member.direct_channel_id}}


def conversations_join(_: State, token: Token, arguments: Arguments) -> Answer:
    """Add the app to a public channel."""
    channel = _channel(token.workspace.channels, str(arguments.get("channel") or ""))
    if channel is None or channel.is_private:
        return refusal("channel_not_found")
    if channel.is_archived:
        return refusal("is_archived")
    channel.is_member = True
    return {"ok": True, "channel": _channel_record(channel)}


def conversations_list(_: State, token: Token, arguments: Arguments) -> Answer:
    """Return channels page by page; a private one only where the app is a member."""
    return _channels(token, arguments, lambda channel: channel.is_member or not channel.is_private)


def users_conversations(_: State, token: Token, arguments: Arguments) -> Answer:
    """Return the channels that the app is in, page by page, without ``is_member``."""
    return _channels(token, arguments, lambda channel: channel.is_member, "is_member")


def _channels(token: Token, arguments: Arguments, visible: Callable[[Channel], bool], *without: str) -> Answer:
    types = str(arguments.get("types") or "public_channel").split(",")
    for kind in types:
        if kind not in SCOPE_OF_TYPE:
            return refusal("invalid_types")
        if SCOPE_OF_TYPE[kind] not in token.scopes:
            return missing_scope(SCOPE_OF_TYPE[kind], token)
    without_archived = str(arguments.get("exclude_archived") or "").lower() in {"true", "1"}
    channels = [
        channel
        for channel in token.workspace.channels
        if ("private_channel" if channel.is_private else "public_channel") in types
        and visible(channel)
        and not (channel.is_archived and without_archived)
    ]

    def record(channel: Channel) -> Answer:
        return {name: value for name, value in _channel_record(channel).items() if name not in without}

    return _page(token, "channels", channels, record, arguments)


def conversations_info(_: State, token: Token, arguments: Arguments) -> Answer:
    """Tell of one channel; of a private one only where the app is a member."""
    channel = _channel(token.workspace.channels, str(arguments.get("channel") or ""))
    if channel is None or (channel.is_private and not channel.is_member):
        return refusal("channel_not_found")
    scope = SCOPE_OF_TYPE["private_channel" if channel.is_private else "public_channel"]
    if scope not in token.scopes:
        return missing_scope(scope, token)
    return {"ok": True, "channel": _channel_record(channel)}


def users_info(_: State, token: Token, arguments: Arguments) -> Answer:
    """Tell of one member."""
    user = str(arguments.get("user") or "")
    member = next((member for member in token.workspace.members if member.id == user), None)
    return refusal("user_not_found") if member is None else {"ok": True, "user": _member_record(member)}


def users_list(state: State, token: Token, arguments: Arguments) -> Answer:
    """Return members page by page."""
    answer = _page(token, "members", token.workspace.members, _member_record, arguments)
    return {**answer, "cache_ts": state.now()} if answer["ok"] else answer


def missing_scope(needed: str, token: Token) -> Answer:
    """Refuse a call for which the token lacks a scope."""
    return refusal("missing_scope", needed=needed, provided=",".join(token.scopes))


METHODS: Mapping[str, Method] = {
    "auth.test": Method(auth_test, takes_json=True),
    "auth.revoke": Method(auth_revoke),
    "chat.postMessage": Method(post_message, "chat:write", takes_json=True),
    "conversations.open": Method(conversations_open, "im:write", takes_json=True, limit=TIER_3),
    "conversations.join": Method(conversations_join, "channels:join", takes_json=True, limit=TIER_3),
    "conversations.list": Method(conversations_list, limit=TIER_2),
    "conversations.info": Method(conversations_info, limit=TIER_3),
    "users.conversations": Method(users_conversations, limit=TIER_3),
    "users.info": Method(users_info, "users:read", limit=TIER_4),
    "users.list": Method(users_list, "users:read", limit=TIER_2),
}


def _channel(channels: Sequence[Channel], channel_id: str) -> Channel | None:
    return next((channel for channel in channels if channel.id == channel_id), None)


def _channel_record(channel: Channel) -> Answer:
    """Return what apps read of a channel, in a record of about 900 bytes, as the provider's are."""
    return {
        "id": channel.id,
        "name": channel.name,
        "is_channel": not channel.is_private,
        "is_group": channel.is_private,
        "is_private": channel.is_private,
        "is_archived": channel.is_archived,
        "is_general": channel.name == "general",
        "is_member": channel.is_member,
        "num_members": 12,
        "topic": {"value": f"What belongs into #{channel.name}, and what does not. " * 15},
    }


def _member_record(member: Member) -> Answer:
    """Return what apps read of a member, in a record of about 2,000 bytes, as the provider's are with pictures."""
    picture = f"https://avatars.example.com/2024-01-01/{member.id}_0123456789abcdef0123"
    sizes = ("24", "32", "48", "72", "192", "512", "1024", "original")
    return {
        "id": member.id,
        "name": member.name,
        "deleted": member.deleted,
        "real_name": member.real_name,
        "is_bot": member.is_bot,
        "profile": {
            "real_name": member.real_name,
            "display_name": member.name.title(),
            "title": "Works with flows, and with the people who write them. " * 20,
            **{f"image_{size}": f"{picture}_{size}.png" for size in sizes},
        },
    }


def _page(
    token: Token, name: str, records: Sequence[Item], record: Callable[[Item], Answer], arguments: Arguments
) -> Answer:
    """Return a page. Pages may be short, and the first ones empty, although more follow."""
    workspace = token.workspace
    asked = str(arguments.get("limit") or 100)
    if re.fullmatch(r"[1-9][0-9]{0,8}", asked) is None:
        return refusal("invalid_limit")
    limit = min(int(asked), workspace.page_size, 999)
    try:
        position = _position(str(arguments.get("cursor") or ""))
    except ValueError:
        return refusal("invalid_cursor")
    if position < workspace.empty_pages:
        shown: list[Answer] = []
        following = position + 1
    else:
        start = position - workspace.empty_pages
        shown = [record(item) for item in records[start : start + limit]]
        following = position + limit if start + limit < len(records) else -1
    cursor = "" if following < 0 else base64.b64encode(f"next:{following:06}".encode()).decode()
    return {"ok": True, name: shown, "response_metadata": {"next_cursor": cursor}}


def _position(cursor: str) -> int:
    if not cursor:
        return 0
    prefix, _, position = base64.b64decode(cursor, validate=True).decode().partition(":")
    if prefix != "next" or not position.isdecimal():
        raise ValueError(cursor)
    return int(position)
