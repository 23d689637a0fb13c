"""Deletes all rows of an organization, or exactly the rows that were shown to an operator."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, select, tuple_, type_coerce, update
from sqlalchemy.engine import Connection
from sqlalchemy.types import NullType

from flowactions_plugin.bulk.sets import decode_token, encode_token
from flowactions_plugin.chat.oauth import FLOW_SECONDS
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import ActionInvalid, SetChanged
from flowactions_plugin.log_text import printable
from flowactions_plugin.operators.audit import PURGE, Entry, recording
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.queue.limits import PURGED
from flowactions_plugin.queue.rules import HELD_SECONDS
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    actions,
    attempts,
    audit,
    chat_connections,
    deferred,
    destinations,
    enqueue_keys,
    enqueue_rates,
    halted_runs,
    oauth_states,
    outbox,
    pauses,
    statistics,
    workers,
)
from flowactions_plugin.storage.text import read_all, stored

log = logging.getLogger("flowactions.actions")

Disconnect: TypeAlias = Callable[[str], Awaitable[None]]
"""Removes an organization's chat connection, and revokes its token (`Connections.disconnect`)."""

PART_SECONDS: Final = 10.0
"""How long one request of the page removes rows; another one removes the rest."""

BATCH: Final = 500
"""How many rows a transaction removes at the most."""

WITHDRAWN_SECONDS: Final = 2 * HELD_SECONDS
"""How long a purge waits after it has removed rows that workers had claimed: what they have not begun, they drop meanwhile."""

# Bulk actions and pauses first: what they hold would otherwise be held for good. Of records, deliveries are made.
_FIRST: Final = {"actions": actions, "pauses": pauses, "records": deferred}
_REST: Final = {
    "halted_runs": halted_runs,
    "idempotency_keys": enqueue_keys,
    "rates": enqueue_rates,
    "statistics": statistics,
    "destinations": destinations,
    "installs": oauth_states,
    "audit": audit,
}


_SINCE: Final[Mapping[Table, ColumnElement[int]]] = {
    outbox: outbox.c.created_at,
    actions: actions.c.created_at,
    pauses: pauses.c.paused_at,
    deferred: deferred.c.created_at,
    halted_runs: halted_runs.c.halted_at,
    enqueue_keys: enqueue_keys.c.created_at,
    enqueue_rates: enqueue_rates.c.updated_at,
    statistics: statistics.c.bucket,
    destinations: destinations.c.updated_at,
    oauth_states: oauth_states.c.expires_at - FLOW_SECONDS * 1000,
    audit: audit.c.at,
    chat_connections: chat_connections.c.installed_at,
}
"""The time from which a row of each table is there, or was written last where it is written again and again."""


class Purged(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Number of rows of each kind that exist, or that were deleted.

    Attributes:
        deliveries: rows of the outbox.
        attempts: attempts of these in the log.
        records: nodes that wait for a step.
        halted_runs: runs that a node has halted.
        idempotency_keys: stored keys.
        rates: counted calls of agents.
        statistics: intervals.
        destinations: health of destinations.
        pauses: paused destinations.
        actions: bulk actions.
        audit: lines of the audit.
        alerts: alerts to operators that name the organization, sent ones among them.
        installs: started installs of a chat workspace.
        chat_connection: number of chat connections, 0 or 1; when it is deleted, its token is revoked.
    """

    deliveries: int = 0
    attempts: int = 0
    records: int = 0
    halted_runs: int = 0
    idempotency_keys: int = 0
    rates: int = 0
    statistics: int = 0
    destinations: int = 0
    pauses: int = 0
    actions: int = 0
    audit: int = 0
    alerts: int = 0
    installs: int = 0
    chat_connection: int = 0


class PurgePreview(msgspec.Struct, kw_only=True, frozen=True):
    """The number of rows of an organization at a time.

    Attributes:
        organization_id: the tenant.
        as_of: the time, Unix milliseconds.
        counts: how many rows of each kind.
    """

    organization_id: str
    as_of: int
    counts: Purged

    @property
    def token(self) -> str:
        """Name it to `Purges.carry_out`. It proves nothing: who holds one may purge anyway."""
        return encode_token(self)


class PurgeResult(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a purge, or of a part of it.

    Attributes:
        removed: what was removed.
        left: what is left of what was shown, because the time was over.
        later: what came after it was shown, and stays.
        token_revoked: whether the token of a chat connection could be revoked; ``None``: there was none.
    """

    removed: Purged
    left: Purged
    later: Purged
    token_revoked: bool | None


class Purges:
    """Purges that remove what was shown, and nothing that came later.

    Args:
        database: where it is.
        disconnect: ``None``: chat is not configured, so that a token cannot be revoked.
    """

    def __init__(self, database: Database, disconnect: Disconnect | None) -> None:
        self._database = database
        self._disconnect = disconnect

    async def preview(self, organization_id: str) -> PurgePreview:
        """Count what is kept of an organization now.

        Raises:
            ActionInvalid: no organization is named.
            StorageUnavailable: the database failed.
        """
        _check_name(organization_id)
        as_of = await self._now()
        counts = await PurgeStore(self._database, organization_id, as_of).count()
        return PurgePreview(organization_id=organization_id, as_of=as_of, counts=Purged(**counts))

    async def carry_out(
        self, organization_id: str, token: str, actor: Actor, reason: str = "", *, seconds: float = PART_SECONDS
    ) -> PurgeResult:
        """Remove what a preview has shown, as much of it as can be removed within a time; the same token removes the rest.

        Each call has a line of the audit, which stays.

        Args:
            organization_id: the tenant, as whoever purges has typed it.
            token: of the preview.
            actor: who does it.
            reason: why, for the audit; may be empty.
            seconds: the time, the last batch excepted.

        Raises:
            ActionInvalid: the token cannot be used, or is of another organization.
            SetChanged: more is kept of that time than was shown; nothing was removed.
            StorageUnavailable: the database failed; what was removed before stays removed.
        """
        shown = decode_token(token, PurgePreview)
        if shown.organization_id != organization_id or not 0 <= shown.as_of <= await self._now():
            raise ActionInvalid("The token is of another preview: count again.")
        _check_name(organization_id)
        until = time.monotonic() + seconds
        store = PurgeStore(self._database, organization_id, shown.as_of, lambda: time.monotonic() >= until)
        before = msgspec.structs.asdict(shown.counts)
        # Attempts go with their delivery, also those that were made since.
        if any(number > before[name] for name, number in (await store.count()).items() if name != "attempts"):
            raise SetChanged("More is kept of this organization than was shown. Look at the numbers again.")
        removed = await _remove(self._database, store, actor, self._disconnect, reason)
        left = await store.count()
        total = await PurgeStore(self._database, organization_id).count()
        return PurgeResult(
            removed=removed,
            left=Purged(**left),
            later=Purged(**{name: max(0, number - left[name]) for name, number in total.items()}),
            token_revoked=self._disconnect is not None if removed.chat_connection else None,
        )

    async def _now(self) -> int:
        async with self._database.read() as connection:
            return await connection.run_sync(self._database.time_on)


def _check_name(organization_id: str) -> None:
    if not organization_id or "\0" in organization_id:
        raise ActionInvalid("Name the organization whose data is to be removed.")


async def purge(
    database: Database,
    organization_id: str,
    actor: Actor,
    *,
    dry: bool,
    disconnect: Disconnect | None = None,
) -> Purged:
    """Remove all that is kept of an organization, in small batches; it can be repeated when it was interrupted.

    One line of the audit stays: who purged, and the numbers. What workers have counted in memory is not written any more, and
    of rows that are being sent, the host is told that they are ``purged``. What is enqueued after the purge has begun is
    removed too, or stays and is sent.

    Args:
        database: where it is.
        organization_id: the tenant.
        actor: who does it.
        dry: count only.
        disconnect: ``None``: chat is not configured, so that a connection is removed and its token cannot be revoked.

    Raises:
        ActionInvalid: no organization is named.
        StorageUnavailable: the database failed; what was removed before stays removed.
    """
    _check_name(organization_id)
    store = PurgeStore(database, organization_id)
    if dry:
        return Purged(**await store.count())
    return await _remove(database, store, actor, disconnect)


async def _remove(
    database: Database, store: PurgeStore, actor: Actor, disconnect: Disconnect | None, reason: str = ""
) -> Purged:
    """Remove what a store has, and return how much that was."""
    organization_id = store.organization_id
    line_id = await store.begin(actor, reason)
    connections = ConnectionStore(database)
    connection = await connections.get(organization_id)
    connected = connection is not None and store.is_of_it(connection.installed_at)
    if connected and disconnect is not None:
        await disconnect(organization_id)
    elif connected:
        await connections.pop(organization_id)
    removed = {**await store.remove(), "chat_connection": int(connected)}
    await store.finish(line_id, removed)
    log.info(
        "organization %s is purged: %s rows",
        printable(organization_id),
        sum(removed.values()),
        extra={"event": "organization.purged"},
    )
    return Purged(**removed)


class PurgeStore:
    """What one database keeps of one organization.

    Args:
        database: where it is.
        organization_id: the tenant.
        as_of: only rows that were there at this time, Unix milliseconds; ``None``: all.
        is_over: whether the time for removing is over.

    Attributes:
        organization_id: the tenant.
    """

    def __init__(
        self,
        database: Database,
        organization_id: str,
        as_of: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self.organization_id = organization_id
        self._as_of = as_of
        self._is_over = is_over
        self._was_claimed = False

    def is_of_it(self, since: int) -> bool:
        """Return whether a row that is there since a time belongs to what is counted and removed."""
        return self._as_of is None or since <= self._as_of

    async def count(self) -> dict[str, int]:
        """Return how many rows of each kind there are."""
        mine = select(outbox.c.id).where(*self._of(outbox))
        logged = select(func.count()).select_from(attempts).where(attempts.c.delivery_id.in_(mine))
        queries = {"attempts": logged}
        counted = {"deliveries": outbox, "chat_connection": chat_connections, **_FIRST, **_REST}
        for name, table in counted.items():
            queries[name] = select(func.count()).select_from(table).where(*self._of(table))
        async with self._database.read() as connection:
            found = {name: (await connection.execute(query)).scalar_one() for name, query in queries.items()}
            alerts = await connection.run_sync(self._alerts)
        return {**found, "alerts": len(alerts)}

    @repeated
    async def begin(self, who: Actor, reason: str = "") -> str:
        """Write the line of the audit that stays, and return its id; see `finish`.

        From then on no process writes statistics that it has counted before (`StatisticsStore.add`).
        """
        line_id = new_id(self._database.clock())
        entry = Entry(who=who, action=PURGE, organization_id=self.organization_id, reason=reason)
        async with self._database.write() as connection:
            await connection.execute(recording(self._database, entry, line_id))
        return line_id

    async def remove(self) -> dict[str, int]:
        """Remove everything but the chat connection; return how many rows of each kind that were."""
        removed = {name: await self._remove(table) for name, table in _FIRST.items()}
        removed["deliveries"], removed["attempts"] = await self._remove_deliveries()
        await self._wait_for_statistics()
        for name, table in _REST.items():
            removed[name] = await self._remove(table)
        removed["alerts"] = await self._remove_alerts()
        clearing = update(workers).where(workers.c.stopped_at.is_(None)).values(limited=PURGED)
        await self._database.in_transaction(lambda connection: connection.execute(clearing))
        if self._was_claimed:
            await asyncio.sleep(WITHDRAWN_SECONDS)
        return removed

    def _alerts(self, connection: Connection) -> list[str]:
        """Return the ids of alerts that name the organization: they belong to none, and their body has its id."""
        named = b'"organizationId":' + msgspec.json.encode(self.organization_id)
        key, body, last = outbox.c.id, outbox.c.body, ""
        there = [] if self._as_of is None else [_SINCE[outbox] <= inline(self._as_of)]
        found: list[str] = []
        while True:
            page = (
                select(key, body)
                .where(outbox.c.organization_id == inline(EVERY_ORGANIZATION), key > last, *there)
                .order_by(key)
                .limit(inline(BATCH))
            )
            rows = list(connection.execute(page))
            found += [row.id for row in rows if named in (row.body or b"")]
            if len(rows) < BATCH:
                return found
            last = rows[-1].id

    @repeated
    async def _remove_alerts(self) -> int:
        def remove(connection: Connection) -> int:
            ids = self._alerts(connection)
            for start in range(0, len(ids), BATCH):
                batch = ids[start : start + BATCH]
                connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(batch)))
                connection.execute(delete(outbox).where(outbox.c.id.in_(batch)))
            return len(ids)

        async with self._database.write() as connection:
            return await connection.run_sync(remove)

    @repeated
    async def _wait_for_statistics(self) -> None:
        """Wait until the processes have written that have not seen that the purge began, and may have added statistics."""
        async with self._database.write() as connection:
            await self._database.lock_table(connection, statistics, "SHARE")

    @repeated
    async def finish(self, line_id: str, removed: Mapping[str, int]) -> None:
        """Write what was removed to the line of `begin`."""
        numbers = {"number": sum(removed.values()), "before": msgspec.json.encode(removed).decode()}
        async with self._database.write() as connection:
            await connection.execute(update(audit).where(audit.c.id == line_id).values(numbers))

    def _of(self, table: Table) -> list[ColumnElement[bool]]:
        conditions = [table.c.organization_id == self.organization_id]
        if table is audit:
            conditions.append(audit.c.action != PURGE)
        if self._as_of is not None:
            conditions.append(_SINCE[table] <= inline(self._as_of))
        return conditions

    async def _remove(self, table: Table) -> int:
        key = list(table.primary_key)
        chosen = select(*key).where(*self._of(table)).limit(inline(BATCH))
        gone = delete(table).where((key[0] if len(key) == 1 else tuple_(*key)).in_(chosen))
        total = 0
        while True:
            number = await self._database.in_transaction(lambda connection: connection.execute(gone).rowcount)
            total += number
            if number < BATCH or self._is_over():
                return total

    async def _remove_deliveries(self) -> tuple[int, int]:
        """Remove rows of the outbox with their attempts, whatever their ids are stored as."""
        chosen = (
            select(type_coerce(outbox.c.id, NullType()).label("id"))
            .add_columns(outbox.c.claimed_by)
            .where(*self._of(outbox))
            .order_by(outbox.c.id)
            .limit(inline(BATCH))
            .with_for_update()
        )

        def remove(connection: Connection) -> tuple[int, int]:
            found = read_all(connection, chosen)
            if not found:
                return 0, 0
            self._was_claimed |= any(row.claimed_by is not None for row in found)
            ids = [stored(row.id) for row in found]
            logged = connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(ids))).rowcount
            return connection.execute(delete(outbox).where(outbox.c.id.in_(ids))).rowcount, logged

        @repeated
        async def batch() -> tuple[int, int]:
            async with self._database.write() as connection:
                return await connection.run_sync(remove)

        rows = logged = 0
        while True:
            number, attempted = await batch()
            rows, logged = rows + number, logged + attempted
            if number < BATCH or self._is_over():
                return rows, logged
