"""The chat part of one host, or the reason why it has none."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.events import Events
from flowactions_plugin.chat.oauth import Install
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.settings import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.sealing import KeyRing, key_ring


class Chat(NamedTuple):
    """What the chat node and the chat routes work with.

    Attributes:
        signing_secret: verifies the provider's events; ``None`` when it is not configured.
    """

    connections: Connections
    install: Install
    events: Events
    signing_secret: str | None
    provider: SlackProvider

    def __repr__(self) -> str:
        return "Chat(…)"


def keys_of(settings: Settings, database: Database) -> KeyRing:
    """Make the ring of encryption keys that these settings give.

    Raises:
        NotConfigured: there is no key.
    """
    development: Path | None = database.directory if settings.environment == "development" else None
    return key_ring(settings.encryption_keys, development)


def build_chat(settings: Settings, database: Database) -> Chat | NotConfigured:
    """Put the chat part together, or say which setting is missing or unfit; nothing else depends on it (§5.5)."""
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
        settings.chat_api_url,
        settings.chat_client_id,
        settings.chat_client_secret,
        proxy=settings.egress_proxy,
    )
    store = ConnectionStore(database)
    connections = Connections(store, provider, keys, database.clock, static_token=settings.chat_bot_token)
    install = Install(
        store=store,
        connections=connections,
        provider=provider,
        keys=keys,
        public_url=settings.public_url,
        authorize_url=settings.chat_authorize_url,
        client_id=settings.chat_client_id,
        static_token=settings.chat_bot_token,
    )
    return Chat(connections, install, Events(store), settings.chat_signing_secret, provider)
