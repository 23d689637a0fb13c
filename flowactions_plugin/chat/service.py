"""Builds the chat part of one host, or says which setting is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowactions_plugin.chat.app import CALLBACK_PATH, routes_url
from flowactions_plugin.chat.calls import ProviderCalls
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.directory import Directory
from flowactions_plugin.chat.messenger import Messenger
from flowactions_plugin.chat.oauth import OAuthInstaller
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import ConnectionStore, Removed
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.sealing import KeyRing, key_ring


class Chat(NamedTuple):
    """What the chat node, the chat routes and ``doctor`` use. Without signing secrets, the provider's events are refused."""

    connections: Connections
    messenger: Messenger
    directory: Directory
    installer: OAuthInstaller
    signing_secrets: Sequence[str]
    calls: ProviderCalls
    provider: SlackProvider

    def __repr__(self) -> str:
        return "Chat(…)"

    async def aclose(self) -> None:
        """Wait for work in the background, then close the connections to the provider."""
        try:
            await self.calls.aclose()
        finally:
            await self.provider.aclose()


def keys_of(settings: Settings, database: Database) -> KeyRing:
    """Return the key ring of these settings; raises `NotConfigured` without a key."""
    directory = Path.cwd() if database.file is None else database.file.parent
    return key_ring(settings.encryption_keys, directory if settings.environment == "development" else None)


def build_chat(
    settings: Settings, database: Database, prefix: str = "", removed: Removed | None = None
) -> Chat | NotConfigured:
    """Return the chat part, or an error that names the missing or wrong setting, without which all else works (§5.5)."""
    if settings.chat_bot_token is not None and settings.environment != "development":
        return NotConfigured(
            "CHAT_BOT_TOKEN is for local development only: remove it, or set FLOWACTIONS_ENVIRONMENT=development."
        )
    with_oauth = settings.chat_client_id and settings.chat_client_secret
    if settings.chat_bot_token is None and not with_oauth:
        return NotConfigured("Set CHAT_CLIENT_ID and CHAT_CLIENT_SECRET (or CHAT_BOT_TOKEN) to use chat.")
    if settings.public_url is None:
        return NotConfigured("Set BACKEND_PUBLIC_URL to use chat: the provider sends browsers back there.")
    try:
        keys = keys_of(settings, database)
    except NotConfigured as exc:
        return exc
    provider = SlackProvider(
        settings.chat_api_url, settings.chat_client_id, settings.chat_client_secret, proxy=settings.egress_proxy
    )
    store = ConnectionStore(database, removed)
    connections = Connections(store, provider, keys, database.clock, settings.chat_bot_token)
    calls = ProviderCalls(store, connections.verify)
    callback_url = routes_url(settings.public_url, prefix) + CALLBACK_PATH
    return Chat(
        connections=connections,
        messenger=Messenger(connections, provider, calls, keys),
        directory=Directory(provider, calls, keys),
        installer=OAuthInstaller(store, connections, provider, keys, callback_url, settings),
        signing_secrets=settings.chat_signing_secrets,
        calls=calls,
        provider=provider,
    )
