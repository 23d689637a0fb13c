"""The chat provider: slack-sdk behind a small interface, its errors translated into `ChatRefused`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.pickers import Choice, Page

CALL_SECONDS: Final = 5
KEPT_ALIVE_SECONDS: Final = 3
"""Well below what any server keeps a connection that is idle: a request on one that it is just closing would be lost."""

AT_ONCE: Final = 500
"""Connections to the provider. The calls beyond wait, within their own time."""

BUILT_IN_USER: Final = "USLACKBOT"

_QUIET: Final = logging.Logger("flowactions.chat.sdk", logging.CRITICAL)  # noqa: LOG001  unattached on purpose
"""Attached to nothing: at debug level the SDK would log codes and secrets."""

Call = Callable[[AsyncWebClient], Awaitable[Any]]


class Identity(NamedTuple):
    """Whose token it is, as the provider's auth test says."""

    team_id: str
    team_name: str
    bot_user_id: str
    scopes: tuple[str, ...]


class Installation(NamedTuple):
    """What an OAuth exchange gave. The token is left out of the repr."""

    token: str
    app_id: str

    def __repr__(self) -> str:
        return f"Installation(app_id={self.app_id!r}, …)"


class ChatProvider(Protocol):
    """What the plugin asks of a chat provider. Every method raises `ChatRefused` when it is refused."""

    async def post_message(self, token: str, channel: str, text: str) -> str:
        """Post a message with mrkdwn on; give its timestamp."""
        ...

    async def open_dm(self, token: str, user: str) -> str:
        """Open or reuse the direct-message channel with a member; give its id."""
        ...

    async def identify(self, token: str) -> Identity:
        """Test a token; tell whose it is."""
        ...

    async def exchange(self, code: str, redirect_uri: str) -> Installation:
        """Exchange an OAuth code for a bot token."""
        ...

    async def revoke(self, token: str) -> None:
        """Make a token worthless."""
        ...

    async def channels(self, token: str, cursor: str | None, size: int, *, private: bool) -> Page:
        """List a page of the channels that are not archived."""
        ...

    async def members(self, token: str, cursor: str | None, size: int) -> Page:
        """List a page of the members, without bots, deactivated accounts and the built-in user (§2.3)."""
        ...


class SlackProvider:
    """The Slack-compatible `ChatProvider`.

    Args:
        api_url: ends with a slash.
        client_id: the app's, for the OAuth exchange.
        client_secret: likewise.
    """

    def __init__(self, api_url: str, client_id: str | None, client_secret: str | None) -> None:
        self._api_url = api_url
        self._client_id = client_id or ""
        self._client_secret = client_secret or ""
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close the connections to the provider; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post_message(self, token: str, channel: str, text: str) -> str:
        """Post a message with mrkdwn on; give its timestamp."""
        answer = await self._call(
            token, lambda client: client.chat_postMessage(channel=channel, text=text, mrkdwn=True)
        )
        return _text(answer, "ts")

    async def open_dm(self, token: str, user: str) -> str:
        """Open or reuse the direct-message channel with a member; give its id."""
        answer = await self._call(token, lambda client: client.conversations_open(users=[user]))
        return _text(_mapping(answer, "channel"), "id")

    async def identify(self, token: str) -> Identity:
        """Test a token; tell whose it is."""
        answer = await self._call(token, lambda client: client.auth_test())
        if answer.get("is_enterprise_install"):
            raise ChatRefused("enterprise_install")
        headers = {str(name).lower(): value for name, value in answer.headers.items()}
        scopes = tuple(scope.strip() for scope in headers.get("x-oauth-scopes", "").split(",") if scope.strip())
        return Identity(_text(answer, "team_id"), _text(answer, "team"), _text(answer, "user_id"), scopes)

    async def exchange(self, code: str, redirect_uri: str) -> Installation:
        """Exchange an OAuth code for a bot token."""
        answer = await self._call(
            None,
            lambda client: client.oauth_v2_access(
                client_id=self._client_id,
                client_secret=self._client_secret,
                code=code,
                redirect_uri=redirect_uri,
            ),
        )
        token = _text(answer, "access_token")
        if answer.get("is_enterprise_install"):
            with contextlib.suppress(ChatRefused):
                await self.revoke(token)
            raise ChatRefused("enterprise_install")
        app_id = answer.get("app_id")
        return Installation(token, app_id if isinstance(app_id, str) else "")

    async def revoke(self, token: str) -> None:
        """Make a token worthless."""
        await self._call(token, lambda client: client.auth_revoke())

    async def channels(self, token: str, cursor: str | None, size: int, *, private: bool) -> Page:
        """List a page of the channels that are not archived."""
        answer = await self._call(
            token,
            lambda client: client.conversations_list(
                types="public_channel,private_channel" if private else "public_channel",
                exclude_archived=True,
                limit=size,
                cursor=cursor or None,
            ),
        )
        return Page(
            [
                _channel_choice(channel)
                for channel in _list(answer, "channels")
                if not channel.get("is_archived") and _is_named(channel)
            ],
            _next_cursor(answer),
        )

    async def members(self, token: str, cursor: str | None, size: int) -> Page:
        """List a page of the members, without bots, deactivated accounts and the built-in user (§2.3)."""
        answer = await self._call(token, lambda client: client.users_list(limit=size, cursor=cursor or None))
        return Page(
            [_member_choice(member) for member in _list(answer, "members") if _is_person(member)],
            _next_cursor(answer),
        )

    async def _call(self, token: str | None, call: Call) -> Any:
        client = AsyncWebClient(
            token=token,
            base_url=self._api_url,
            timeout=CALL_SECONDS,
            session=self._opened(),
            logger=_QUIET,
            retry_handlers=[],
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await call(client)
        except SlackApiError as exc:
            raise _refused(exc) from None
        except (
            SlackClientError,
            aiohttp.ClientError,
            OSError,
            TimeoutError,
            ValueError,
            AttributeError,
            TypeError,
        ):
            # The last two: the SDK meets JSON that is no object. Without the cause: its text may hold what was sent.
            raise ChatRefused("unreachable") from None
        if not isinstance(answer.data, Mapping):
            raise ChatRefused("unreachable")
        return answer

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # One for all organizations: so it keeps no cookies.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=KEPT_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _refused(exc: SlackApiError) -> ChatRefused:
    response: Any = exc.response
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    headers = getattr(response, "headers", None) or {}
    wait = {str(name).lower(): str(value) for name, value in headers.items()}.get("retry-after", "")
    retry_after = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else None
    data = getattr(response, "data", None)
    code = data.get("error") if isinstance(data, Mapping) else None
    if status == 429:
        return ChatRefused("ratelimited", retry_after)
    if isinstance(code, str) and code:
        return ChatRefused(code[:100], retry_after)
    return ChatRefused("unreachable", retry_after)


def _text(answer: Any, name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise ChatRefused("unreachable")
    return value


def _mapping(answer: Any, name: str) -> Mapping[str, Any]:
    value = answer.get(name)
    if not isinstance(value, Mapping):
        raise ChatRefused("unreachable")
    return value


def _list(answer: Any, name: str) -> list[Mapping[str, Any]]:
    value = answer.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _next_cursor(answer: Any) -> str | None:
    metadata = answer.get("response_metadata")
    cursor = metadata.get("next_cursor") if isinstance(metadata, Mapping) else None
    return cursor if isinstance(cursor, str) and cursor else None


def _is_named(channel: Mapping[str, Any]) -> bool:
    return all(isinstance(channel.get(field), str) for field in ("id", "name"))


def _is_person(member: Mapping[str, Any]) -> bool:
    if member.get("is_bot") or member.get("deleted"):
        return False
    return isinstance(member.get("id"), str) and member["id"] != BUILT_IN_USER


def _channel_choice(channel: Mapping[str, Any]) -> Choice:
    name = channel["name"]
    if not channel.get("is_member"):
        note: str | None = "The app has not joined this channel."
    else:
        note = "Private channel" if channel.get("is_private") else None
    return Choice(channel["id"], f"#{name}", note, (name,))


def _member_choice(member: Mapping[str, Any]) -> Choice:
    profile = member.get("profile")
    shown = profile.get("display_name") if isinstance(profile, Mapping) else None
    handle = str(member.get("name") or "")
    names = tuple(str(name) for name in (shown, member.get("real_name"), handle) if name)
    return Choice(member["id"], names[0] if names else member["id"], f"@{handle}" if handle else None, names)
