"""Processes the auth provider's events: each is handed to the host once (§4.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from flowactions_hookspecs import AuthEvent, Host
from flowactions_plugin.errors import HandlerFailed
from flowactions_plugin.host_answers import ask
from flowactions_plugin.inbound import store
from flowactions_plugin.inbound.verify import ParsedEvent
from flowactions_plugin.storage.conflicts import CONFLICTS, repeated
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.outages import code_of

PROVIDER: Final = "auth"
HANDLER_SECONDS: Final = 10.0
"""How long a host's handler may take, because a transaction is open meanwhile."""

OnOrganizationDeleted = Callable[[str, Transaction], Awaitable[Callable[[], Awaitable[None]] | None]]
"""Deletes an organization's chat connection in a transaction; returns what is to be called after the commit."""


class AuthEvents:
    """Processes authentic events.

    Args:
        host: handles them.
        database: records their ids, in the transaction in which the handler may write, too.
        on_organization_deleted: called for an organization that was deleted, in the same transaction.
    """

    def __init__(self, host: Host, database: Database, on_organization_deleted: OnOrganizationDeleted) -> None:
        self._host = host
        self._database = database
        self._on_organization_deleted = on_organization_deleted

    @repeated
    async def receive(self, parsed: ParsedEvent) -> bool:
        """Let the host handle an event, unless it was handled before.

        Of any number of concurrent deliveries of one event, one is handled, and the others wait for it. When the handler
        raises, nothing is recorded, so the provider's next delivery is handled.

        Returns:
            Whether the event was handled before.

        Raises:
            StorageUnavailable: the database failed; nothing is recorded.
            HandlerFailed: the host's handler raised, or took too long.
        """
        after_commit = None
        async with self._database.write(as_host=True) as transaction:
            if not await store.record(self._database, transaction, PROVIDER, parsed.event_id):
                return True
            if (parsed.kind, parsed.action) == ("organization", "deleted"):
                organization_id = parsed.data.get("id")
                if isinstance(organization_id, str):
                    after_commit = await self._on_organization_deleted(organization_id, transaction)
            event = AuthEvent(
                provider=PROVIDER,
                event_id=parsed.event_id,
                kind=parsed.kind,
                action=parsed.action,
                occurred_at=parsed.occurred_at,
                data=parsed.data,
                transaction=transaction if self._host.database is not None else None,
            )
            try:
                async with asyncio.timeout(HANDLER_SECONDS), self._database.lend_to_host(transaction):
                    await ask(self._host, "auth_event", Any, event)
            except Exception as exc:
                if code_of(exc) in CONFLICTS:
                    raise
                raise HandlerFailed from exc
        if after_commit is not None:
            await after_commit()
        return False
