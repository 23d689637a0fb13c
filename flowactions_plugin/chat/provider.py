"""The chat provider: slack-sdk with an HTTP session of the plugin.

slack-sdk defines the methods and encodes their arguments. The requests are sent here: without proxies from the
environment, without following redirects, and with answers that are limited in size and validated by `answers`.

slack-sdk and aiohttp are imported at the first call: most processes make none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from flowactions_plugin.chat.answers import (
    MAX_BYTES,
    TOKEN,
    channel_page,
    id_of,
    is_success,
    member_page,
    name_of,
    object_of,
    optional_id,
    read_answer,
)
from flowactions_plugin.chat.app import read_scopes
from flowactions_plugin.chat.failures import MAYBE_POSTED, UNREADABLE_ANSWER, ChatRefused
from flowactions_plugin.chat.pickers import Page

if TYPE_CHECKING:
    import aiohttp
    from slack_sdk.web.async_client import AsyncWebClient

CALL_SECONDS: Final = 5

_QUIET: Final = logging.Logger("flowactions.chat.sdk", logging.CRITICAL)  # noqa: LOG001  not attached on purpose
"""Not attached to a handler, because the SDK logs codes and secrets at debug level."""

Call: TypeAlias = "Callable[[AsyncWebClient], Awaitable[Any]]"


class Identity(NamedTuple):
    """The owner of a token, from the provider's auth test; ``scopes`` are empty when it does not report them."""

    team_id: str
    team_name: str
    bot_user_id: str
    scopes: tuple[str, ...]


class Installation(NamedTuple):
    """The result of an OAuth exchange. The repr hides the token; ``scopes`` are empty when it does not report them."""

    token: str
    app_id: str
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Installation(app_id={self.app_id!r}, …)"


class SlackProvider:
    """The Slack-compatible chat provider (§4.1). Every method that calls it raises `ChatRefused` if it refuses.

    Args:
        api_url: ends with a slash.
        client_id: the app's, for the OAuth exchange.
        client_secret: the app's, for the OAuth exchange.
        proxy: ``FLOWACTIONS_EGRESS_PROXY``; a forward proxy for all calls. Proxies of the environment are never used.
    """

    def __init__(
        self, api_url: str, client_id: str | None, client_secret: str | None, proxy: str | None = None
    ) -> None:
        self._api_url = api_url
        self._client_id = client_id or ""
        self._client_secret = client_secret or ""
        self._session = _Session(proxy)
        self._client: type[AsyncWebClient] | None = None

    async def aclose(self) -> None:
        """Close the connections to the provider; a later call opens new ones."""
        await self._session.aclose()

    async def post_message(self, token: str, channel: str, text: str) -> str:
        """Post a message with mrkdwn on; returns its timestamp, empty text if the answer has none."""
        try:
            answer = await self._call(
                token,
                lambda client: client.chat_postMessage(channel=channel, text=text, mrkdwn=True),
                needs="chat:write",
            )
        except ChatRefused as refusal:
            if refusal.code != UNREADABLE_ANSWER:
                raise
            raise ChatRefused(MAYBE_POSTED, detail=refusal.detail) from None
        return optional_id(answer.data, "ts")

    async def open_dm(self, token: str, user: str) -> str:
        """Open or reuse the direct-message channel with a member; returns its id."""
        answer = await self._call(
            token, lambda client: client.conversations_open(users=[user]), needs="im:write"
        )
        return id_of(object_of(answer.data, "channel"), "id")

    async def identify(self, token: str) -> Identity:
        """Test a token; returns its owner."""
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
        token = id_of(answer.data, "access_token", TOKEN)
        if "expires_in" in answer.data:
            # The token is not revoked, which may uninstall the app: it expires by itself.
            raise ChatRefused("token_rotation")
        if answer.data.get("is_enterprise_install"):
            with contextlib.suppress(ChatRefused):
                await self.revoke(token)
            raise ChatRefused("enterprise_install")
        return Installation(token, optional_id(answer.data, "app_id"), read_scopes(answer.data.get("scope")))

    async def revoke(self, token: str) -> None:
        """Revoke a token."""
        await self._call(token, lambda client: client.auth_revoke())

    async def joined_channels(self, token: str, cursor: str | None, size: int, *, private: bool) -> Page:
        """Return a page of the channels that the app is in, without archived ones."""
        answer = await self._call(
            token,
            lambda client: client.users_conversations(
                types="public_channel,private_channel" if private else "public_channel",
                exclude_archived=True,
                limit=size,
                cursor=cursor or None,
            ),
            needs="groups:read" if private else "channels:read",
        )
        return channel_page(answer.data, joined=True)

    async def other_channels(self, token: str, cursor: str | None, size: int) -> Page:
        """Return a page of the other channels. They are public: a private one is listed only if the app is in it."""
        answer = await self._call(
            token,
            lambda client: client.conversations_list(
                types="public_channel", exclude_archived=True, limit=size, cursor=cursor or None
            ),
            needs="channels:read",
        )
        return channel_page(answer.data, joined=False)

    async def members(self, token: str, cursor: str | None, size: int) -> Page:
        """Return a page of the members, without bots, deactivated accounts and the built-in user (§2.3)."""
        answer = await self._call(
            token, lambda client: client.users_list(limit=size, cursor=cursor or None), needs="users:read"
        )
        return member_page(answer.data)

    async def channel(self, token: str, channel: str) -> Mapping[str, Any]:
        """Return the record of one channel; `answers` reads it."""
        answer = await self._call(
            token, lambda client: client.conversations_info(channel=channel), needs="channels:read"
        )
        return object_of(answer.data, "channel")

    async def member(self, token: str, user: str) -> Mapping[str, Any]:
        """Return the record of one member; `answers` reads it."""
        answer = await self._call(token, lambda client: client.users_info(user=user), needs="users:read")
        return object_of(answer.data, "user")

    async def _call(self, token: str | None, call: Call, *, needs: str | None = None) -> Any:
        """Make a call; ``needs`` is the scope to report when one is missing and the provider does not name it."""
        try:
            if self._client is None:
                # In a thread, for it takes some hundred milliseconds, in which the event loop must go on.
                self._client = await asyncio.to_thread(_import_client)
            client = self._client(
                token=token,
                base_url=self._api_url,
                timeout=CALL_SECONDS,
                session=cast("aiohttp.ClientSession", self._session),
                logger=_QUIET,
                retry_handlers=[],
            )
            return await call(client)
        except ChatRefused as refusal:
            if refusal.code == "missing_scope" and not refusal.needed and needs is not None:
                refusal.needed = (needs,)
            raise
        except Exception as exc:  # noqa: BLE001  errors of the network, the SDK and aiohttp
            # Without the cause, because its message may hold what was sent, or the proxy's password.
            raise ChatRefused("unreachable", detail=type(exc).__name__) from None


def _import_client() -> type[AsyncWebClient]:
    import aiohttp  # noqa: F401, PLC0415  the session's
    from slack_sdk.web.async_client import AsyncWebClient  # noqa: PLC0415

    return AsyncWebClient


class _Answer(NamedTuple):
    """A validated answer, in the form that the SDK expects."""

    headers: Mapping[str, str]
    data: Mapping[str, Any]
    status: int = 200
    content_type: str = "application/json"

    async def json(self) -> Mapping[str, Any]:
        return self.data


class _Session:
    """Sends the SDK's requests, in place of an `aiohttp.ClientSession`."""

    closed: Final = False
    """The SDK would replace a closed session with one of its own."""

    def __init__(self, proxy: str | None) -> None:
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def request(self, method: str, url: str, **options: Any) -> AsyncIterator[_Answer]:
        """Send a request, and read its answer. The SDK's proxy, from the environment, is ignored."""
        import aiohttp  # noqa: PLC0415  imported before, with the SDK

        options |= {"proxy": self._proxy, "allow_redirects": False}
        ends = asyncio.get_running_loop().time() + CALL_SECONDS
        try:
            async with asyncio.timeout_at(ends):
                response = await self._opened().request(method, url, **options)
        except aiohttp.ClientResponseError as exc:
            if isinstance(exc, aiohttp.ClientHttpProxyError):
                raise
            # Something has answered, so the call may have succeeded. aiohttp does not say with which status.
            raise ChatRefused(UNREADABLE_ANSWER, detail="the answer is no HTTP, or has a flaw") from None
        try:
            async with asyncio.timeout_at(ends):
                body = await _read(response.content)
        except Exception as exc:
            if not is_success(response.status):
                raise
            raise ChatRefused(UNREADABLE_ANSWER, detail=f"its body ended with {type(exc).__name__}") from None
        finally:
            response.close()
        headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
        yield _Answer(headers, read_answer(response.status, headers, body))

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415  imported before, with the SDK

        if self._session is None:
            # It is shared by all organizations, so it stores no cookies. Calls above its limit wait within their own time.
            # No connection is kept: a call on one that was closed or lost would have to be repeated, and the provider knows
            # no ids, so a message could be posted twice.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=500, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                # `answers` decompresses with a size limit.
                auto_decompress=False,
                headers={"Accept-Encoding": "gzip"},
            )
        return self._session


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Return the body; at most one byte more than the limit."""
    body = bytearray()
    while len(body) <= MAX_BYTES and (chunk := await content.readany()):
        body += chunk
    return bytes(body[: MAX_BYTES + 1])
