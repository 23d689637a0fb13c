"""All SQL of chat connections."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, update

from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import chat_connections, oauth_states


class StoredConnection(msgspec.Struct, frozen=True, kw_only=True):
    """An organization's connection as it is stored; the token only sealed."""

    organization_id: str
    team_id: str
    team_name: str
    bot_user_id: str
    app_id: str
    scopes: str
    installed_by_id: str
    installed_by_name: str
    installed_at: int
    default_channel: str | None
    status: str
    status_reason: str | None
    sealed_token: bytes


class ConnectionStore:
    """The chat connections of one database, and the OAuth flows under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Give an organization's connection, ``None`` when it has none."""
        query = select(chat_connections).where(chat_connections.c.organization_id == organization_id)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else StoredConnection(**row._mapping)  # noqa: SLF001  public in SQLAlchemy

    async def replace(self, stored: StoredConnection) -> None:
        """Store a connection in place of the organization's present one, in one transaction."""
        async with self._database.write() as connection:
            await connection.execute(
                delete(chat_connections).where(chat_connections.c.organization_id == stored.organization_id)
            )
            await connection.execute(insert(chat_connections).values(msgspec.structs.asdict(stored)))

    async def change(self, organization_id: str, **values: Any) -> bool:
        """Change columns of an organization's connection.

        Returns:
            Whether it has one.
        """
        changed = (
            update(chat_connections)
            .where(chat_connections.c.organization_id == organization_id)
            .values(**values)
        )
        async with self._database.write() as connection:
            return (await connection.execute(changed)).rowcount == 1

    async def remove(self, organization_id: str) -> None:
        """Forget an organization's connection."""
        async with self._database.write() as connection:
            await connection.execute(
                delete(chat_connections).where(chat_connections.c.organization_id == organization_id)
            )

    async def start_flow(self, flow_id: str, lifetime_ms: int) -> None:
        """Remember that an OAuth flow was started, and forget those that were never finished."""
        now = self._database.now()
        async with self._database.write() as connection:
            await connection.execute(delete(oauth_states).where(oauth_states.c.expires_at < now))
            await connection.execute(insert(oauth_states).values(id=flow_id, expires_at=now + lifetime_ms))

    async def finish_flow(self, flow_id: str) -> bool:
        """Use a started OAuth flow up.

        Returns:
            Whether it was there and had not expired; of any number of racing callers, one is told so.
        """
        now = self._database.now()
        used = delete(oauth_states).where(oauth_states.c.id == flow_id, oauth_states.c.expires_at >= now)
        async with self._database.write() as connection:
            return (await connection.execute(used)).rowcount == 1
