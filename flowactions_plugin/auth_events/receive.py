"""Hands an auth provider's event to the host, once (§4.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from flowactions_hookspecs import AuthEvent, FlowActionsError, Host
from flowactions_plugin.auth_events.verify import Told
from flowactions_plugin.host_answers import ask
from flowactions_plugin.storage import inbound
from flowactions_plugin.storage.database import Connection, Database

PROVIDER: Final = "auth"
HANDLER_SECONDS: Final = 10.0
"""How long a host's handler may take, for it holds a transaction open."""

Deleted = Callable[[str, Connection], Awaitable[Callable[[], Awaitable[None]] | None]]
"""Removes an organization's chat connection within a transaction; gives what is left to do when that has committed."""


class HandlerFailed(FlowActionsError):
    """The host could not handle the event; the cause says why."""


class AuthEvents:
    """Takes authentic events.

    Args:
        host: handles them.
        database: where it is noted which were seen, in the transaction that the handler may write in, too.
        organization_deleted: called for an organization that was deleted, in the same transaction.
    """

    def __init__(self, host: Host, database: Database, organization_deleted: Deleted) -> None:
        self._host = host
        self._database = database
        self._organization_deleted = organization_deleted

    async def receive(self, told: Told) -> bool:
        """Have the host handle an event, unless that was done before.

        Of any number of simultaneous deliveries of one event, one is handled, and the others wait for that.
        When the handler raises, nothing is noted, so the provider's next delivery is handled.

        Returns:
            Whether the event was handled before.

        Raises:
            StorageUnavailable: the database failed; nothing is noted.
            HandlerFailed: the host's handler raised, or took too long.
        """
        afterwards = None
        async with self._database.write() as connection:
            if not await inbound.note(self._database, connection, PROVIDER, told.event_id):
                return True
            if (told.kind, told.action) == ("organization", "deleted"):
                organization_id = told.data.get("id")
                if isinstance(organization_id, str):
                    afterwards = await self._organization_deleted(organization_id, connection)
            event = AuthEvent(
                provider=PROVIDER,
                event_id=told.event_id,
                kind=told.kind,
                action=told.action,
                occurred_at=told.occurred_at,
                data=told.data,
                transaction=connection if self._host.database is not None else None,
            )
            try:
                async with asyncio.timeout(HANDLER_SECONDS), self._database.lent(connection):
                    await ask(self._host, "auth_event", Any, event)
            except Exception as exc:
                raise HandlerFailed from exc
        if afterwards is not None:
            await afterwards()
        return False
