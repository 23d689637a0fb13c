"""All SQL of chat connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Row, delete, insert, select, update

from flowactions_plugin.chat.scopes import read_scopes, write_scopes
from flowactions_plugin.inbound import store as inbound_store
from flowactions_plugin.storage.database import Database, Transaction
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
    install_id: str = ""
    missing_scopes: str = ""


class OAuthFlow(msgspec.Struct, frozen=True, kw_only=True):
    """An OAuth flow under way: who installs, for which tenant, in which browser.

    Attributes:
        browser: SHA-256 of the cookie that binds it to one browser, in hex.
    """

    id: str
    organization_id: str
    user_id: str
    user_name: str
    browser: str


EXPIRED_FLOW_MS: Final = 24 * 3600 * 1000
"""How long an expired flow is kept, so that a late callback is answered with ``expired``."""

PROVIDER: Final = "chat"
"""The provider's name in the table of inbound events."""


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """An event by which a workspace takes the app's tokens away (§6.2).

    Attributes:
        event_id: by this it is deduplicated.
        team_id: the workspace.
        app_id: the provider's app; empty when the event does not say.
        bot_users: only connections of these; ``None`` means all of the workspace.
        at: when it happened, Unix seconds.
        reason: what to store, a code that has advice.
    """

    event_id: str
    team_id: str
    app_id: str
    bot_users: frozenset[str] | None
    at: int
    reason: str

    def applies_to(self, stored: StoredConnection) -> bool:
        """Returns whether it revokes a connection of this workspace: not one that was installed later."""
        if self.bot_users is not None and stored.bot_user_id not in self.bot_users:
            return False
        if self.app_id and stored.app_id and self.app_id != stored.app_id:
            return False
        return stored.installed_at // 1000 <= self.at


class ConnectionStore:
    """The chat connections of one database, and the OAuth flows under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Returns an organization's connection, ``None`` when it has none."""
        query = select(chat_connections).where(chat_connections.c.organization_id == organization_id)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _stored(row)

    async def replace(self, stored: StoredConnection) -> StoredConnection | None:
        """Store a connection in place of the organization's present one.

        The default channel of the present one stays when it is of the same workspace.

        Returns:
            The connection whose place it took, ``None`` when there was none. Of any number of racing calls, each gets
            the one that it replaced.
        """
        values = msgspec.structs.asdict(stored)
        mine = chat_connections.c.organization_id == stored.organization_id
        async with self._database.write() as transaction:
            while True:
                added = await transaction.execute(
                    self._database.insert_unless_there(chat_connections).values(values)
                )
                if added.rowcount == 1:
                    return None
                query = select(chat_connections).where(mine).with_for_update()
                row = (await transaction.execute(query)).one_or_none()
                if row is None:
                    continue  # somebody has disconnected in between
                before = _stored(row)
                if before.team_id == stored.team_id:
                    values["default_channel"] = before.default_channel
                await transaction.execute(update(chat_connections).where(mine).values(values))
                return before

    async def set_default_channel(self, organization_id: str, channel_id: str) -> bool:
        """Choose the default channel.

        Returns:
            Whether the organization has a connection.
        """
        changed = (
            update(chat_connections)
            .where(chat_connections.c.organization_id == organization_id)
            .values(default_channel=channel_id)
        )
        async with self._database.write() as transaction:
            return (await transaction.execute(changed)).rowcount == 1

    async def active_of_team(self, team_id: str, limit: int | None = None) -> Sequence[StoredConnection]:
        """Returns the active connections of a workspace, of whatever organization.

        Args:
            team_id: the workspace.
            limit: how many at the most.
        """
        query = select(chat_connections).where(
            chat_connections.c.team_id == team_id, chat_connections.c.status == "active"
        )
        async with self._database.read() as connection:
            return [_stored(row) for row in (await connection.execute(query.limit(limit))).all()]

    async def change_missing_scopes(
        self, stored: StoredConnection, change: Callable[[Sequence[str]], Sequence[str]]
    ) -> None:
        """Change the scopes that a connection is noted to lack, unless it was made anew in the meantime.

        Args:
            stored: the connection that a call was made with.
            change: the noted ones → those to note.
        """
        query = select(chat_connections.c.missing_scopes).where(*_installed_as(stored)).with_for_update()
        async with self._database.write() as transaction:
            noted = (await transaction.execute(query)).scalar_one_or_none()
            if noted is None:
                return
            changed = write_scopes(change(read_scopes(noted)))
            if changed != noted:
                await transaction.execute(
                    update(chat_connections).where(*_installed_as(stored)).values(missing_scopes=changed)
                )

    async def revoke(self, revoked: Sequence[StoredConnection], reason: str) -> None:
        """Note that tokens are dead; a connection that was made anew in the meantime stays as it is."""
        async with self._database.write() as transaction:
            await self._revoke(transaction, revoked, reason)

    async def revoke_by_event(self, event: Revocation) -> Sequence[str] | None:
        """Note that a workspace has revoked its connections, and that its event was seen, in one transaction.

        Returns:
            The organizations concerned; ``None`` when the event was seen before.
        """
        of_team = select(chat_connections).where(
            chat_connections.c.team_id == event.team_id, chat_connections.c.status == "active"
        )
        async with self._database.write() as transaction:
            if not await inbound_store.record(self._database, transaction, PROVIDER, event.event_id):
                return None
            rows = [_stored(row) for row in (await transaction.execute(of_team)).all()]
            revoked = [stored for stored in rows if event.applies_to(stored)]
            await self._revoke(transaction, revoked, event.reason)
        return [stored.organization_id for stored in revoked]

    async def _revoke(self, transaction: Transaction, revoked: Sequence[StoredConnection], reason: str) -> None:
        for stored in revoked:
            await transaction.execute(
                update(chat_connections)
                .where(*_installed_as(stored), chat_connections.c.status == "active")
                .values(status="revoked", status_reason=reason)
            )

    async def sealed_tokens(self, after: str, limit: int) -> Sequence[tuple[str, bytes]]:
        """Returns organizations and their sealed tokens, in the organizations' order.

        Args:
            after: the organization that the list before ended with; empty for the first.
            limit: how many at the most.
        """
        query = (
            select(chat_connections.c.organization_id, chat_connections.c.sealed_token)
            .where(chat_connections.c.organization_id > after)
            .order_by(chat_connections.c.organization_id)
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [(row[0], row[1]) for row in (await connection.execute(query)).all()]

    async def reseal(self, organization_id: str, old: bytes, new: bytes) -> bool:
        """Exchange a sealed token for the same one under another key.

        Returns:
            Whether it was still there; a connection that was made anew has a token of its own.
        """
        exchanged = (
            update(chat_connections)
            .where(
                chat_connections.c.organization_id == organization_id, chat_connections.c.sealed_token == old
            )
            .values(sealed_token=new)
        )
        async with self._database.write() as transaction:
            return (await transaction.execute(exchanged)).rowcount == 1

    async def pop(
        self, organization_id: str, transaction: Transaction | None = None
    ) -> StoredConnection | None:
        """Delete an organization's connection and return it; ``None`` when it has none.

        Args:
            organization_id: the tenant.
            transaction: the caller's; ``None``: a new one.
        """
        deleted = (
            delete(chat_connections)
            .where(chat_connections.c.organization_id == organization_id)
            .returning(*chat_connections.c)
        )
        async with self._database.write(transaction) as opened:
            row = (await opened.execute(deleted)).one_or_none()
        return None if row is None else _stored(row)

    async def start_flow(self, flow: OAuthFlow, lifetime_ms: int) -> None:
        """Remember that an OAuth flow was started, and forget those that were never finished.

        Args:
            flow: who started it.
            lifetime_ms: how long there is to finish it.
        """
        now = self._database.now()
        values = msgspec.structs.asdict(flow)
        async with self._database.write() as transaction:
            # Kept for a while, so that somebody who comes too late is told so.
            await transaction.execute(
                delete(oauth_states).where(oauth_states.c.expires_at < now - EXPIRED_FLOW_MS)
            )
            await transaction.execute(insert(oauth_states).values(**values, expires_at=now + lifetime_ms))

    async def flow(self, flow_id: str) -> OAuthFlow | None:
        """Returns an OAuth flow that was started and not finished, expired or not."""
        query = select(*(oauth_states.c[name] for name in OAuthFlow.__struct_fields__)).where(
            oauth_states.c.id == flow_id
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else OAuthFlow(**row._mapping)  # noqa: SLF001  public in SQLAlchemy

    async def finish_flow(self, flow_id: str) -> Literal["finished", "expired", "already_used"]:
        """Use a started OAuth flow up, whether or not there was still time.

        Returns:
            What came of it; of any number of racing callers, one is told ``finished``.
        """
        used = (
            delete(oauth_states)
            .where(oauth_states.c.id == flow_id)
            .returning(oauth_states.c.expires_at >= self._database.now())
        )
        async with self._database.write() as transaction:
            row = (await transaction.execute(used)).one_or_none()
        if row is None:
            return "already_used"
        return "finished" if row[0] else "expired"


def _installed_as(stored: StoredConnection) -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions under which an organization's connection is still this installation.

    A connection of an earlier release has no id, and a process of that release that replaces one leaves the id as it
    was. So the time counts, too.
    """
    return (
        chat_connections.c.organization_id == stored.organization_id,
        chat_connections.c.install_id == stored.install_id,
        chat_connections.c.installed_at == stored.installed_at,
    )


def _stored(row: Row[Any]) -> StoredConnection:
    return StoredConnection(**row._mapping)  # noqa: SLF001  public in SQLAlchemy
