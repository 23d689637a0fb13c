"""Removes all that is kept of an organization."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from flowactions_plugin.bulk.purge_store import PurgeStore
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.log_text import printable
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.storage.database import Database

log = logging.getLogger("flowactions.actions")


class Purged(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """How many rows of each kind there are, or were removed.

    Attributes:
        deliveries: rows of the outbox.
        attempts: logged attempts of them.
        records: nodes that wait for a step.
        halted_runs: runs that were ended.
        idempotency_keys: remembered keys.
        rates: counted calls of agents.
        statistics: intervals.
        destinations: health of destinations.
        pauses: paused destinations.
        actions: bulk actions.
        audit: lines of the audit.
        installs: started installs of a chat workspace.
        chat_connection: whether there is a chat connection, 0 or 1; when it is removed, its token is revoked.
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
    installs: int = 0
    chat_connection: int = 0


async def purge(
    database: Database,
    organization_id: str,
    actor: Actor,
    *,
    dry: bool,
    disconnect: Callable[[str], Awaitable[None]] | None = None,
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
        disconnect: removes the chat connection and revokes its token (`Connections.disconnect`); ``None``: chat is not
            configured, so that a connection is removed and its token cannot be revoked.

    Raises:
        ActionInvalid: no organization is named.
        StorageUnavailable: the database failed; what was removed before stays removed.
    """
    if not organization_id or "\0" in organization_id:
        raise ActionInvalid("Name the organization whose data is to be removed.")
    store = PurgeStore(database, organization_id)
    if dry:
        return Purged(**await store.count())
    line_id = await store.begin(actor)
    connections = ConnectionStore(database)
    connected = await connections.get(organization_id) is not None
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
