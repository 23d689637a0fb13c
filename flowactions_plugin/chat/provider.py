"""The chat provider: slack-sdk behind a small interface, its calls made over our own session (§4.1).

slack-sdk says which methods there are and how their arguments are sent. The request itself leaves from here: it reads
no environment, follows no redirect, and its answer is read to a bound and judged by `answers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, cast

import aiohttp
from slack_sdk.web.async_client import AsyncWebClient

from flowactions_plugin.chat.answers import (
    MOST_BYTES,
    ChannelState,
    MemberState,
    channel_page,
    channel_state,
    id_of,
    member_page,
    member_state,
    name_of,
    object_of,
    optional_id,
    read_answer,
    token_of,
)
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.pickers import Page
from flowactions_plugin.chat.scopes import read_scopes

CALL_SECONDS: Final = 5
KEPT_ALIVE_SECONDS: Final = 3
"""Well below what any server keeps a connection that is idle: a request on one that it is just closing would be lost."""

AT_ONCE: Final = 500
"""Connections to the provider. The calls beyond wait, within their own time."""

_QUIET: Final = logging.Logger("flowactions.chat.sdk", logging.CRITICAL)  # noqa: LOG001  unattached on purpose
"""Attached to nothing: at debug level the SDK would log codes and secrets."""

Call = Callable[[AsyncWebClient], Awaitable[Any]]


class Identity(NamedTuple):
    """Whose token it is, as the provider's auth test says; ``scopes`` are empty when it does not say."""

    team_id: str
    team_name: str
    bot_user_id: str
    scopes: tuple[str, ...]


class Installation(NamedTuple):
    """What an OAuth exchange gave. The token is left out of the repr; ``scopes`` are empty when it did not say."""

    token: str
    app_id: str
    scopes: tuple[str, ...] = ()

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

    async def channel(self, token: str, channel: str) -> ChannelState:
        """Tell the state of one channel."""
        ...

    async def member(self, token: str, user: str) -> MemberState:
        """Tell the state of one member."""
        ...


class SlackProvider:
    """The Slack-compatible `ChatProvider`.

    Args:
        api_url: ends with a slash.
        client_id: the app's, for the OAuth exchange.
        client_secret: likewise.
        proxy: ``FLOWACTIONS_EGRESS_PROXY``; a forward proxy through which every call leaves. Proxies that the
            environment names are never used.
    """

    def __init__(
        self, api_url: str, client_id: str | None, client_secret: str | None, proxy: str | None = None
    ) -> None:
        self._api_url = api_url
        self._client_id = client_id or ""
        self._client_secret = client_secret or ""
        self._session = _Session(proxy)

    async def aclose(self) -> None:
        """Close the connections to the provider; a later call opens new ones."""
        await self._session.aclose()

    async def post_message(self, token: str, channel: str, text: str) -> str:
        """Post a message with mrkdwn on; give its timestamp."""
        answer = await self._call(
            token,
            lambda client: client.chat_postMessage(channel=channel, text=text, mrkdwn=True),
            needs="chat:write",
        )
        return id_of(answer.data, "ts")

    async def open_dm(self, token: str, user: str) -> str:
        """Open or reuse the direct-message channel with a member; give its id."""
        answer = await self._call(
            token, lambda client: client.conversations_open(users=[user]), needs="im:write"
        )
        return id_of(object_of(answer.data, "channel"), "id")

    async def identify(self, token: str) -> Identity:
        """Test a token; tell whose it is."""
        answer = await self._call(token, lambda client: client.auth_test())
        if answer.data.get("is_enterprise_install"):
            raise ChatRefused("enterprise_install")
        return Identity(
            id_of(answer.data, "team_id"),
            name_of(answer.data, "team"),
            id_of(answer.data, "user_id"),
            read_scopes(answer.headers.get("x-oauth-scopes")),
        )

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
        token = token_of(answer.data, "access_token")
        if answer.data.get("is_enterprise_install"):
            with contextlib.suppress(ChatRefused):
                await self.revoke(token)
            raise ChatRefused("enterprise_install")
        return Installation(token, optional_id(answer.data, "app_id"), read_scopes(answer.data.get("scope")))

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
            needs="groups:read" if private else "channels:read",
        )
        return channel_page(answer.data)

    async def members(self, token: str, cursor: str | None, size: int) -> Page:
        """List a page of the members, without bots, deactivated accounts and the built-in user (§2.3)."""
        answer = await self._call(
            token, lambda client: client.users_list(limit=size, cursor=cursor or None), needs="users:read"
        )
        return member_page(answer.data)

    async def channel(self, token: str, channel: str) -> ChannelState:
        """Tell the state of one channel."""
        answer = await self._call(
            token, lambda client: client.conversations_info(channel=channel), needs="channels:read"
        )
        return channel_state(object_of(answer.data, "channel"))

    async def member(self, token: str, user: str) -> MemberState:
        """Tell the state of one member."""
        answer = await self._call(token, lambda client: client.users_info(user=user), needs="users:read")
        return member_state(object_of(answer.data, "user"))

    async def _call(self, token: str | None, call: Call, *, needs: str | None = None) -> Any:
        """Make a call.

        Args:
            token: the bot token, ``None`` for calls that work without.
            call: uses the SDK's client.
            needs: the scope that is missing when the provider says that one is, and does not say which.

        Raises:
            ChatRefused: whatever else came than a success.
        """
        client = AsyncWebClient(
            token=token,
            base_url=self._api_url,
            timeout=CALL_SECONDS,
            session=cast("aiohttp.ClientSession", self._session),
            logger=_QUIET,
            retry_handlers=[],
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call(client)
        except ChatRefused as refusal:
            if refusal.code == "missing_scope" and not refusal.needed and needs is not None:
                refusal.needed = (needs,)
            raise
        except Exception as exc:  # noqa: BLE001  whatever the network, the SDK or aiohttp make of it
            # Without the cause: its text may hold what was sent, or the proxy's password.
            raise ChatRefused("unreachable", detail=type(exc).__name__) from None


class _Answer(NamedTuple):
    """An answer that was read and found good, as the SDK wants it."""

    status: int
    headers: Mapping[str, str]
    data: Mapping[str, Any]
    content_type: str = "application/json"

    async def json(self) -> Mapping[str, Any]:
        return self.data


class _Session:
    """What the SDK makes its requests with, in place of an `aiohttp.ClientSession`.

    Args:
        proxy: a forward proxy, with user name and password in it if it asks for them.
    """

    closed: Final = False
    """The SDK would open a session of its own in place of a closed one."""

    def __init__(self, proxy: str | None) -> None:
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def request(self, method: str, url: str, **options: Any) -> AsyncIterator[_Answer]:
        """Make a request, and read its answer.

        Args:
            method: the HTTP method.
            url: the address.
            options: the SDK's; a proxy that it found in the environment is not used.

        Raises:
            ChatRefused: the answer is no success.
            aiohttp.ClientError: there is no answer.
        """
        options |= {"proxy": self._proxy, "allow_redirects": False}
        response = await self._opened().request(method, url, **options)
        try:
            body = await _read(response.content)
        finally:
            # A connection that was read to the end is back in the pool by now; any other is closed.
            response.close()
        headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
        yield _Answer(response.status, headers, read_answer(response.status, headers, body))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # One for all organizations: so it keeps no cookies.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=KEPT_ALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                # It is done to a bound, in `answers`.
                auto_decompress=False,
                headers={"Accept-Encoding": "gzip"},
            )
        return self._session


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Read a body to its end, or to where it is too long."""
    body = bytearray()
    while len(body) <= MOST_BYTES and (chunk := await content.readany()):
        body += chunk
    return bytes(body[: MOST_BYTES + 1])
