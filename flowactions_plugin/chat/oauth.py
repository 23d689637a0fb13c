"""The OAuth install: a signed opaque state, bound to one browser, used once."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from flowactions_hookspecs import DashboardPrincipal, FlowActionsError
from flowactions_plugin.chat.answers import shown
from flowactions_plugin.chat.app import SCOPES
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.failures import ChatRefused, advice_for_operators, code_with_detail
from flowactions_plugin.chat.provider import Installation, SlackProvider
from flowactions_plugin.chat.store import ConnectionStore, OAuthFlow
from flowactions_plugin.log_text import printable
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")

FLOW_SECONDS: Final = 600
STATIC_CODE: Final = "static-bot-token"
"""The synthetic code that stands for the static bot token (§4.1.2)."""

STATE_PURPOSE: Final = "chat oauth state"


class OAuthFailed(FlowActionsError):
    """An install did not end in a connection.

    Attributes:
        reason: a stable code for the dashboard page.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Started(NamedTuple):
    """The URL to which the browser is sent, and the cookie that binds the flow to it."""

    url: str
    cookie_name: str
    cookie_value: str


class OAuthInstaller:
    """Runs OAuth installs for one host (§4.1.1, §4.1.2, §5.2).

    The provider sends the browser back to ``callback_url``. With ``CHAT_BOT_TOKEN``, that token is used, without the
    provider's consent page.
    """

    def __init__(
        self,
        store: ConnectionStore,
        connections: Connections,
        provider: SlackProvider,
        keys: KeyRing,
        callback_url: str,
        settings: Settings,
    ) -> None:
        self._store = store
        self._connections = connections
        self._provider = provider
        self._keys = keys
        self._redirect_uri = callback_url
        self._settings = settings
        self._static_token = settings.chat_bot_token

    def __repr__(self) -> str:
        return "OAuthInstaller(…)"

    async def start(self, principal: DashboardPrincipal) -> Started:
        """Start an install for the principal's organization."""
        flow_id, cookie = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        flow = OAuthFlow(
            id=flow_id,
            organization_id=principal.organization_id,
            user_id=shown(principal.user_id),
            user_name=shown(principal.user_name),
            browser=_fingerprint(cookie),
        )
        await self._store.start_flow(flow, FLOW_SECONDS * 1000)
        query = {"state": self._signed(flow_id)}
        if self._static_token is not None:
            target = f"{self._redirect_uri}?{urlencode({'code': STATIC_CODE, **query})}"
        else:
            query |= {
                "client_id": self._settings.chat_client_id or "",
                "scope": ",".join(SCOPES),
                "redirect_uri": self._redirect_uri,
            }
            target = f"{self._settings.chat_authorize_url}?{urlencode(query, quote_via=quote)}"
        return Started(target, cookie_name(flow_id), cookie)

    async def finish(
        self,
        *,
        code: str | None,
        state: str | None,
        error: str | None,
        cookies: Mapping[str, str],
        principal: DashboardPrincipal | None,
    ) -> None:
        """Finish an install: check and consume the state, exchange the code, store the token.

        ``error`` is the provider's reason for giving no code. There is no ``principal`` if the request has no credential: a
        browser that is redirected by the provider may send no bearer token.

        Raises:
            OAuthFailed: no connection was created; its reason says why.
        """
        flow = await self._flow(state)
        if not hmac.compare_digest(flow.browser, _fingerprint(cookies.get(cookie_name(flow.id), ""))):
            raise OAuthFailed("wrong_browser")
        if principal is not None and principal.organization_id != flow.organization_id:
            raise OAuthFailed("wrong_organization")
        used = await self._store.finish_flow(flow.id)
        if used != "finished":
            raise OAuthFailed(used)
        if error is not None:
            raise OAuthFailed("cancelled" if error == "access_denied" else "provider_error")
        if not code:
            raise OAuthFailed("no_code")
        seen = await self._connections.get(flow.organization_id)
        try:
            installation = await self._installation(code)
            stored = await self._connections.adopt(flow, installation, seen)
        except ChatRefused as refusal:
            log.warning(
                "organization %s could not connect: %s: %s",
                printable(flow.organization_id),
                code_with_detail(refusal),
                advice_for_operators(refusal.code),
                extra={"event": "chat.not_connected"},
            )
            raise OAuthFailed(refusal.code) from None
        if stored.missing:  # as on the connection card
            log.warning(
                "team %s granted no %s",
                stored.team_id,
                ", ".join(stored.missing),
                extra={"event": "chat.scope_missing"},
            )
            raise OAuthFailed("missing_scope")

    async def _installation(self, code: str) -> Installation:
        if self._static_token is None:
            return await self._provider.exchange(code, self._redirect_uri)
        if code != STATIC_CODE:
            raise OAuthFailed("invalid_code")
        return Installation(self._static_token, "")

    def _signed(self, flow_id: str) -> str:
        return f"{flow_id}.{self._keys.sign(flow_id.encode(), STATE_PURPOSE).hex()}"

    async def _flow(self, state: str | None) -> OAuthFlow:
        """Return the flow of a state. The signature is checked before the database is read."""
        flow_id, _, signature_text = (state or "").partition(".")
        try:
            message, signature = flow_id.encode("ascii"), bytes.fromhex(signature_text)
        except ValueError:
            raise OAuthFailed("invalid_state") from None
        if not self._keys.verify(message, signature, STATE_PURPOSE):
            raise OAuthFailed("invalid_state")
        flow = await self._store.flow(flow_id)
        if flow is None:
            raise OAuthFailed("already_used")
        return flow


def cookie_name(flow_id: str) -> str:
    """Return the name of a flow's cookie. Each flow has its own, so that two tabs work at the same time."""
    return f"flowactions_chat_{hashlib.sha256(flow_id.encode()).hexdigest()[:16]}"


def _fingerprint(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).hexdigest()
