"""The SQL of chat connections."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Row, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Select
from sqlalchemy.sql.dml import UpdateBase

from flowactions_plugin.chat.app import in_order, read_scopes
from flowactions_plugin.errors import ConnectionChanged, LeaseLost
from flowactions_plugin.inbound import store as inbound_store
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.schema import chat_connections, oauth_states
from flowactions_plugin.storage.waiting import repeated


class StoredConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A stored connection of an organization; its token is sealed."""

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
    last_error: str | None = None
    last_error_at: int | None = None
    last_error_flow: str | None = None
    last_error_node: str | None = None
    revoked_at: int | None = None
    ask_at: int | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The scopes that were not granted, or because of which the provider refused a call."""
        return in_order(read_scopes(self.missing_scopes))

    @property
    def version(self) -> str:
        """What a person decides about: the install and the default channel. What messages write is not in it."""
        decided = msgspec.json.encode((self.install_id, self.default_channel))
        return hashlib.sha256(decided).hexdigest()[:16]


class OAuthFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A started OAuth flow: the user, the tenant, and SHA-256, in hex, of the cookie that binds it to one browser."""

    id: str
    organization_id: str
    user_id: str
    user_name: str
    browser: str


ACTIVE: Final = chat_connections.c.status == "active"
ASKED_AGAIN: Final = chat_connections.c.ask_at.is_not(None)
"""The provider has refused the token, and is asked about it again."""

FAILURE_MS: Final = 10_000
"""How often a connection's last error is written at the most."""

ASKED_AFTER_MS: Final = (60_000, 600_000, 3_600_000)
"""So long after a token was refused, the provider is asked about it again; then as often as the last says."""


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """An event with which a workspace revokes the app's tokens (§6.2).

    Attributes:
        event_id: the provider's id, for deduplication.
        team_id: the workspace.
        app_id: the provider's app; empty when the event does not name it.
        bot_users: limits it to the connections of these bot users; ``None``: all of the workspace.
        at: the time of the event, Unix seconds.
        event_type: the provider's name of its type.
        reason: the code to store, one that has advice.
    """

    event_id: str
    team_id: str
    app_id: str
    bot_users: frozenset[str] | None
    at: int
    event_type: str
    reason: str

    def applies_to(self, stored: StoredConnection) -> bool:
        """Return whether it revokes a connection of this workspace: not one that was installed later."""
        if self.bot_users is not None and stored.bot_user_id not in self.bot_users:
            return False
        if self.app_id and stored.app_id and self.app_id != stored.app_id:
            return False
        return stored.installed_at // 1000 <= self.at


Removed: TypeAlias = Callable[[str, Transaction], Awaitable[None]]
"""Ends what waits for an organization's connection, in the transaction that removes it."""


class ConnectionStore:
    """The chat connections of one database, and the started OAuth flows.

    Args:
        database: where.
        removed: is called when a connection is removed; ``None``: nothing waits for it.
    """

    def __init__(self, database: Database, removed: Removed | None = None) -> None:
        self._database = database
        self._removed = removed

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Return an organization's connection; ``None`` when it has none."""
        rows = await self._rows(select(chat_connections).where(_of(organization_id)))
        return _stored(rows[0]) if rows else None

    @repeated
    async def replace(
        self, stored: StoredConnection, seen: StoredConnection | None
    ) -> StoredConnection | Literal["lost"] | None:
        """Store a connection, replacing the organization's current one, whose default channel is kept if the workspace is.

        ``seen`` is the organization's when the install began.

        Returns:
            The replaced connection; ``None`` when there was none. Of any number of concurrent calls, each gets the one
            that it replaced. ``lost``: another workspace was connected since then, and nothing was changed.
        """
        values = msgspec.structs.asdict(stored)
        mine = _of(stored.organization_id)
        adding = self._database.sql.insert_unless_there(chat_connections).values(values)
        async with self._database.write() as transaction:
            while True:
                if (await transaction.execute(adding)).rowcount == 1:
                    return None
                query = select(chat_connections).where(mine).with_for_update()
                row = (await transaction.execute(query)).one_or_none()
                if row is None:
                    continue  # deleted concurrently
                before = _stored(row)
                if before.team_id == stored.team_id:
                    values["default_channel"] = before.default_channel
                elif before.status == "active" and (seen is None or before.install_id != seen.install_id):
                    return "lost"
                await transaction.execute(update(chat_connections).where(mine).values(values))
                return before

    async def take_turn(self, team_id: str, holder: str, lease_ms: int) -> bool:
        """Take the turn of a workspace, which one install or revocation has at a time; return whether it was free.

        It is a row among the OAuth flows, of no organization: no callback finds it, and what a killed process leaves behind
        ends with its lease, and is deleted with expired flows.
        """
        now = self._database.now()
        turn = oauth_states.c.id == _turn_of(team_id)
        values = {"id": _turn_of(team_id), "browser": holder, "expires_at": now + lease_ms}
        expired = delete(oauth_states).where(turn, oauth_states.c.expires_at < now)
        added = self._database.sql.insert_unless_there(oauth_states).values(values)
        return await self._write(expired, added) == 1

    async def renew_turn(self, team_id: str, holder: str, lease_ms: int) -> bool:
        """Renew the lease of a workspace's turn; raise `LeaseLost` if another holder has taken it meanwhile."""
        mine = oauth_states.c.id == _turn_of(team_id), oauth_states.c.browser == holder
        renewed = update(oauth_states).where(*mine).values(expires_at=self._database.now() + lease_ms)
        if not await self._write(renewed):
            raise LeaseLost
        return True

    async def end_turn(self, team_id: str, holder: str) -> None:
        """Free the turn of a workspace, if it is still this holder's."""
        mine = oauth_states.c.id == _turn_of(team_id), oauth_states.c.browser == holder
        await self._write(delete(oauth_states).where(*mine))

    @repeated
    async def set_default_channel(self, organization_id: str, channel_id: str, seen: str | None = None) -> bool:
        """Set the default channel; return whether the organization has a connection.

        Raises:
            ConnectionChanged: it is not of the version that was seen.
        """
        changed = update(chat_connections).where(_of(organization_id)).values(default_channel=channel_id)
        async with self._database.write() as transaction:
            await self._check_seen(organization_id, seen, transaction)
            return (await transaction.execute(changed)).rowcount == 1

    async def _check_seen(self, organization_id: str, seen: str | None, transaction: AsyncConnection) -> None:
        """Check that a connection, if there is one, is of the version that was seen, and lock it; ``None``: of any."""
        if seen is None:
            return
        query = select(chat_connections).where(_of(organization_id)).with_for_update()
        row = (await transaction.execute(query)).one_or_none()
        if row is not None and _stored(row).version != seen:
            raise ConnectionChanged(
                "The connection or its default channel was changed since you looked. Look at it again, then decide."
            )

    @repeated
    async def change_missing_scopes(
        self, stored: StoredConnection, change: Callable[[Sequence[str]], Sequence[str]]
    ) -> None:
        """Change the stored missing scopes of a connection, unless it was replaced meanwhile."""
        query = select(chat_connections.c.missing_scopes).where(*_installed_as(stored)).with_for_update()
        async with self._database.write() as transaction:
            noted = (await transaction.execute(query)).scalar_one_or_none()
            if noted is None:
                return
            changed = ",".join(change(read_scopes(noted)))
            if changed != noted:
                same = update(chat_connections).where(*_installed_as(stored))
                await transaction.execute(same.values(missing_scopes=changed))

    async def record_failure(self, stored: StoredConnection, code: str, flow_id: str, node_id: str) -> None:
        """Keep why a message could not be sent, unless another one failed less than ten seconds ago; test messages have no flow."""
        now, at = self._database.now(), chat_connections.c.last_error_at
        due = update(chat_connections).where(*_installed_as(stored), or_(at.is_(None), at <= now - FAILURE_MS))
        node = {"last_error_flow": flow_id or None, "last_error_node": node_id or None}
        await self._write(due.values(last_error=code, last_error_at=now, **node))

    @repeated
    async def refused(self, stored: StoredConnection, reason: str) -> None:
        """Mark an active connection as revoked until the provider accepts its token, unless it was replaced meanwhile."""
        async with self._database.write() as transaction:
            await self._revoke(transaction, stored, reason, self._database.now() + ASKED_AFTER_MS[0])

    async def accepted(self, stored: StoredConnection) -> bool:
        """Undo `refused`, unless the connection was replaced or the workspace has revoked it; return whether it was."""
        refused = update(chat_connections).where(*_installed_as(stored), ASKED_AGAIN)
        active = refused.values(status="active", status_reason=None, revoked_at=None, ask_at=None)
        return await self._write(active) == 1

    @repeated
    async def claim_refused(self) -> Sequence[StoredConnection]:
        """Return connections whose provider is to be asked again now: of any number of processes, one gets each."""
        now, table = self._database.now(), chat_connections
        due = select(table.c.organization_id).where(table.c.ask_at <= now).limit(20)
        times = [table.c.revoked_at + after for after in ASKED_AFTER_MS]
        claimed = (
            update(table)
            .where(table.c.organization_id.in_(due.with_for_update(skip_locked=True)))
            .values(ask_at=case(*((at > now, at) for at in times), else_=now + ASKED_AFTER_MS[-1]))
            .returning(*table.c)
        )
        if not await self._rows(due.limit(1)):
            return ()  # nothing is written
        async with self._database.write() as transaction:
            return [_stored(row) for row in (await transaction.execute(claimed)).all()]

    @repeated
    async def revoke_by_event(self, event: Revocation) -> Sequence[str] | None:
        """Mark a workspace's connections as revoked and record the event, in one transaction.

        Returns:
            The organizations of the revoked connections; ``None`` when the event was recorded before.
        """
        of_team = select(chat_connections).where(usable_of(event.team_id))
        async with self._database.write() as transaction:
            kind = event.event_type
            if not await inbound_store.record(self._database, transaction, "chat", event.event_id, kind):
                return None
            rows = map(_stored, (await transaction.execute(of_team)).all())
            revoked = [stored for stored in rows if event.applies_to(stored)]
            for stored in revoked:
                await self._revoke(transaction, stored, event.reason, None)
        return [stored.organization_id for stored in revoked]

    async def _revoke(
        self, transaction: Transaction, stored: StoredConnection, reason: str, ask_at: ColumnElement[int] | None
    ) -> None:
        """Mark a connection as revoked: for good, or until the provider was asked about it again."""
        same = update(chat_connections).where(*_installed_as(stored))
        values = {"status_reason": reason, "ask_at": ask_at}
        marked = await transaction.execute(
            same.where(ACTIVE).values(**values, status="revoked", revoked_at=self._database.now())
        )
        if not marked.rowcount and ask_at is None:  # refused before: now it is final
            await transaction.execute(same.where(ASKED_AGAIN).values(values))

    async def count_active(self) -> int:
        """Return how many connections are active."""
        return int((await self._rows(select(func.count()).where(ACTIVE)))[0][0])

    async def some(
        self, condition: ColumnElement[bool], limit: int | None = None
    ) -> Sequence[StoredConnection]:
        """Return connections that are of a condition, ordered by organization; at most so many."""
        table = chat_connections
        query = select(table).where(condition).order_by(table.c.organization_id).limit(limit)
        return [_stored(row) for row in await self._rows(query)]

    async def sealed_tokens(self, after: str, limit: int) -> Sequence[tuple[str, bytes]]:
        """Return organizations and their sealed tokens, ordered by organization: ``limit`` that come ``after`` one."""
        organization = chat_connections.c.organization_id
        rows = select(organization, chat_connections.c.sealed_token).where(organization > after)
        return [(row[0], row[1]) for row in await self._rows(rows.order_by(organization).limit(limit))]

    async def reseal(self, organization_id: str, old: bytes, new: bytes) -> bool:
        """Replace a sealed token with the same one sealed with another key, if it is still stored; return whether it was.

        A replaced connection has another token.
        """
        same = update(chat_connections).where(_of(organization_id), chat_connections.c.sealed_token == old)
        return await self._write(same.values(sealed_token=new)) == 1

    @repeated
    async def pop(
        self, organization_id: str, transaction: Transaction | None = None, seen: str | None = None
    ) -> StoredConnection | None:
        """Delete an organization's connection, in a new transaction or the caller's; return it, ``None`` when it has none.

        Raises:
            ConnectionChanged: it is not of the version that was seen.
        """
        deleted = delete(chat_connections).where(_of(organization_id)).returning(*chat_connections.c)
        async with self._database.write(transaction) as opened:
            await self._check_seen(organization_id, seen, opened)
            row = (await opened.execute(deleted)).one_or_none()
            if row is not None and self._removed is not None:
                await self._removed(organization_id, opened)
        return None if row is None else _stored(row)

    async def start_flow(self, flow: OAuthFlow, lifetime_ms: int) -> None:
        """Store an OAuth flow that can be finished within ``lifetime_ms``, and delete old ones that were not."""
        now = self._database.now()
        values = msgspec.structs.asdict(flow) | {"expires_at": now + lifetime_ms}
        # Expired flows are kept for a day, so that a late callback is answered with ``expired``.
        old = oauth_states.c.expires_at < now - 24 * 3600 * 1000
        await self._write(delete(oauth_states).where(old), insert(oauth_states).values(values))

    async def flow(self, flow_id: str) -> OAuthFlow | None:
        """Return an OAuth flow that was not finished, whether expired or not."""
        query = select(*(oauth_states.c[name] for name in OAuthFlow.__struct_fields__))
        rows = await self._rows(query.where(oauth_states.c.id == flow_id))
        return OAuthFlow(**rows[0]._mapping) if rows else None  # noqa: SLF001  public in SQLAlchemy

    @repeated
    async def finish_flow(self, flow_id: str) -> Literal["finished", "expired", "already_used"]:
        """Consume a started OAuth flow, whether expired or not; of any number of concurrent callers, one gets ``finished``."""
        in_time = oauth_states.c.expires_at >= self._database.now()
        used = delete(oauth_states).where(oauth_states.c.id == flow_id).returning(in_time)
        async with self._database.write() as transaction:
            row = (await transaction.execute(used)).one_or_none()
        if row is None:
            return "already_used"
        return "finished" if row[0] else "expired"

    async def _rows(self, query: Select[Any]) -> Sequence[Any]:
        async with self._database.read() as connection:
            found: Sequence[Any] = (await connection.execute(query)).all()
        return found

    @repeated
    async def _write(self, *statements: UpdateBase) -> int:
        """Run statements in one transaction; return how many rows the last one has changed."""
        changed = 0
        async with self._database.write() as transaction:
            for each in statements:
                changed = (await transaction.execute(each)).rowcount
        return changed


def _of(organization_id: str) -> ColumnElement[bool]:
    return chat_connections.c.organization_id == organization_id


def usable_of(team_id: str) -> ColumnElement[bool]:
    """Return the condition of a workspace's connections that are active, or may be again by themselves."""
    return and_(chat_connections.c.team_id == team_id, or_(ACTIVE, ASKED_AGAIN))


def troubled(since: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition of connections that are revoked, or failed to send since then, in Unix milliseconds."""
    return or_(chat_connections.c.status != "active", chat_connections.c.last_error_at >= since)


def _turn_of(team_id: str) -> str:
    return "turn:" + hashlib.sha256(team_id.encode()).hexdigest()[:48]


def _installed_as(stored: StoredConnection) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that an organization's connection is still this installation."""
    return _of(stored.organization_id), chat_connections.c.install_id == stored.install_id


def _stored(row: Row[Any]) -> StoredConnection:
    return StoredConnection(**row._mapping)  # noqa: SLF001  public in SQLAlchemy
