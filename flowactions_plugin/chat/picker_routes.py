"""The pickers' routes: search a workspace's channels and members (§2.3)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, TypeAlias

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from flowactions_hookspecs import DashboardPrincipal, PickerChoice, PickerPage
from flowactions_plugin.chat.directory import lists_private_channels
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.pickers import ListPage, search
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.errors import NotConnected
from flowactions_plugin.http.openapi import openapi_spec
from flowactions_plugin.http.problems import Problem

NO_PRIVATE_CHANNELS: Final = "Private channels are not listed, for the app was not granted groups:read. An ID can be entered all the same."

SearchText: TypeAlias = Annotated[str, QueryParameter(name="search", max_length=100)]
Cursor: TypeAlias = Annotated[str | None, QueryParameter(max_length=500)]


@get(
    "/channels",
    summary="Pick a channel",
    **openapi_spec("dashboard", {}, "invalid_request", "not_connected", "chat_refused", "not_configured"),
)
async def channels(
    principal: NamedDependency[DashboardPrincipal],
    chat: NamedDependency[Chat],
    search_text: SearchText = "",
    cursor: Cursor = None,
) -> PickerPage:
    """List channels by name; the note says where the app still has to be invited."""
    stored = await _connected(chat, principal)
    otherwise = None if lists_private_channels(stored) else NO_PRIVATE_CHANNELS
    return await _pick(
        partial(chat.directory.channels, stored, searched=bool(search_text)), search_text, cursor, otherwise
    )


@get(
    "/members",
    summary="Pick a member",
    **openapi_spec("dashboard", {}, "invalid_request", "not_connected", "chat_refused", "not_configured"),
)
async def members(
    principal: NamedDependency[DashboardPrincipal],
    chat: NamedDependency[Chat],
    search_text: SearchText = "",
    cursor: Cursor = None,
) -> PickerPage:
    """List people by name, without bots, deactivated accounts and the built-in user (§2.3)."""
    stored = await _connected(chat, principal)
    return await _pick(partial(chat.directory.members, stored, searched=bool(search_text)), search_text, cursor)


async def _connected(chat: Chat, principal: DashboardPrincipal) -> StoredConnection:
    try:
        return await chat.connections.existing(principal.organization_id)
    except NotConnected as exc:
        raise Problem("not_connected", str(exc)) from None


async def _pick(list_page: ListPage, text: str, cursor: str | None, otherwise: str | None = None) -> PickerPage:
    """Make a page; its notice is ``otherwise`` when the search has none."""
    try:
        found = await search(list_page, text, cursor)
    except ChatRefused as refusal:
        if refusal.code == "invalid_cursor":
            raise Problem(
                "invalid_request", str(refusal), [{"path": "cursor", "message": "is not known"}]
            ) from None
        raise Problem("chat_refused", str(refusal)) from None
    choices = [PickerChoice(id=choice.id, label=choice.label, note=choice.note) for choice in found.choices]
    return PickerPage(data=choices, next_cursor=found.cursor, notice=found.notice or otherwise)
