"""The dashboard's routes: the connection card and the pickers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final, TypeAlias

import msgspec
from litestar import Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, JSONBody, QueryParameter
from msgspec import Meta

from flowactions_hookspecs import DashboardPrincipal, Host, PickerChoice, PickerPage
from flowactions_plugin.chat.app import read_scopes
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.directory import lists_private_channels
from flowactions_plugin.chat.failures import ChatRefused, advice
from flowactions_plugin.chat.pickers import Page
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.clock import to_iso
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.openapi import openapi_spec
from flowactions_plugin.http.problems import Problem

ASKED_AGAIN: Final = "The chat provider is asked about the token again at least once an hour: if it accepts it, you need not reconnect."

NO_PRIVATE_CHANNELS: Final = (
    "Private channels are not listed, because the app was not granted groups:read. You can still enter an ID."
)

SearchText: TypeAlias = Annotated[str, QueryParameter(name="search", max_length=100)]
IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description="The ETag of the connection that was shown: if it is another by now, nothing is changed.",
    ),
]
Cursor: TypeAlias = Annotated[str | None, QueryParameter(max_length=500)]


class Named(msgspec.Struct):
    """Something with an id and a name."""

    id: str
    name: str


class LastError(msgspec.Struct, rename="camel", kw_only=True):
    """The last message that could not be sent since the install.

    Attributes:
        code: why.
        advice: what a person should do.
        at: when; at most one is kept in ten seconds.
        flow_id: the flow; ``None``: it was a test message.
        node_id: the node.
    """

    code: str
    advice: str
    at: str
    flow_id: str | None
    node_id: str | None


class Card(msgspec.Struct, rename="camel", kw_only=True):
    """The connection card (§2.2). It never holds the token.

    Attributes:
        status: ``active``; ``revoked`` by the workspace; or ``unusable`` as it is stored here.
        status_reason: a code, ``None`` when the connection can be used.
        advice: what a person should do, ``None`` when there is nothing to do.
        scopes: permissions that the workspace has granted, as far as the provider says.
        missing_scopes: permissions that it has not granted, or that the provider refused a call for.
    """

    status: str
    status_reason: str | None
    advice: str | None
    workspace: Named
    bot_user_id: str
    scopes: list[str]
    missing_scopes: list[str]
    installed_by: Named
    installed_at: str
    default_channel: str | None
    last_error: LastError | None
    agents: list[Named]


class CardAnswer(msgspec.Struct):
    """The card, or nothing when no workspace is connected."""

    data: Card | None


class DefaultChannel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The channel that test messages go to."""

    # In Python, $ alone would let a line feed pass.
    channel_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}$(?!\n)")]


@get("/connection", summary="Show the connection", **openapi_spec("dashboard", {}, "not_configured"))
async def show(
    principal: NamedDependency[DashboardPrincipal], chat: NamedDependency[Chat], host: NamedDependency[Host]
) -> Response[CardAnswer]:
    """Show the organization's workspace, who connected it, and the agents that use it (§2.2). The ETag names the version."""
    return await _card(host, chat.connections, principal.organization_id)


@delete(
    "/connection",
    summary="Disconnect the workspace",
    **openapi_spec("dashboard", {}, "changed", "not_configured", changes=True),
)
async def disconnect(
    principal: NamedDependency[DashboardPrincipal], chat: NamedDependency[Chat], if_match: IfMatch = None
) -> None:
    """Revoke the token at the provider and forget the connection."""
    await chat.connections.disconnect(principal.organization_id, _seen(if_match))


@put(
    "/connection/default-channel",
    summary="Choose the channel for test messages",
    **openapi_spec(
        "dashboard",
        {},
        "not_connected",
        "changed",
        "not_configured",
        changes=True,
        body='a JSON object such as {"channelId": "C0123456789"}',
    ),
)
async def choose_channel(
    principal: NamedDependency[DashboardPrincipal],
    chat: NamedDependency[Chat],
    host: NamedDependency[Host],
    data: JSONBody[DefaultChannel],
    if_match: IfMatch = None,
) -> Response[CardAnswer]:
    """Set the default channel, to which test messages are posted (§4.1)."""
    await chat.connections.set_default_channel(principal.organization_id, data.channel_id, _seen(if_match))
    return await _card(host, chat.connections, principal.organization_id)


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
    """List channels by name; the note says where the app still has to be invited (§2.3)."""
    stored = await chat.connections.existing(principal.organization_id)
    otherwise = None if lists_private_channels(stored) else NO_PRIVATE_CHANNELS
    return await _pick(chat.directory.channels(stored, search_text, cursor), otherwise)


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
    stored = await chat.connections.existing(principal.organization_id)
    return await _pick(chat.directory.members(stored, search_text, cursor))


def _seen(if_match: str | None) -> str | None:
    """Return the version that a caller was shown; ``None``: they take whichever is there."""
    tag = (if_match or "*").strip().removeprefix("W/").strip('"')  # weak: compressed by a proxy
    return None if tag == "*" else tag


async def _card(host: Host, connections: Connections, organization_id: str) -> Response[CardAnswer]:
    stored = await connections.get(organization_id)
    if stored is None:
        return Response(CardAnswer(None))
    agents = await ask(host, "agents_using", organization_id, "chat_message")
    missing = list(stored.missing)
    scopes = [scope for scope in read_scopes(stored.scopes) if scope not in missing]
    reason = connections.reason(stored)
    hint = advice(reason) if reason else advice("missing_scope") if missing else None
    if stored.ask_at is not None:
        hint = f"{hint} {ASKED_AGAIN}"
    card = CardAnswer(
        Card(
            status="active" if reason is None else "revoked" if stored.status == "revoked" else "unusable",
            status_reason=reason,
            advice=hint,
            workspace=Named(stored.team_id, stored.team_name),
            bot_user_id=stored.bot_user_id,
            scopes=scopes,
            missing_scopes=missing,
            installed_by=Named(stored.installed_by_id, stored.installed_by_name),
            installed_at=to_iso(stored.installed_at),
            default_channel=stored.default_channel,
            last_error=_last_error(stored),
            agents=[Named(agent.id, agent.name) for agent in agents],
        )
    )
    return Response(card, headers={"etag": f'"{stored.version}"'})


def _last_error(stored: StoredConnection) -> LastError | None:
    if stored.last_error is None or stored.last_error_at is None:
        return None
    return LastError(
        code=stored.last_error,
        advice=advice(stored.last_error),
        at=to_iso(stored.last_error_at),
        flow_id=stored.last_error_flow,
        node_id=stored.last_error_node,
    )


async def _pick(searching: Awaitable[Page], otherwise: str | None = None) -> PickerPage:
    """Make a page; its notice is ``otherwise`` when the search has none."""
    try:
        found = await searching
    except ChatRefused as refusal:
        if refusal.code == "invalid_cursor":
            raise Problem(
                "invalid_request", str(refusal), [{"path": "cursor", "message": "is not known"}]
            ) from None
        raise Problem("chat_refused", str(refusal)) from None
    choices = [PickerChoice(id=choice.id, label=choice.label, note=choice.note) for choice in found.choices]
    return PickerPage(data=choices, next_cursor=found.cursor, notice=found.notice or otherwise)
