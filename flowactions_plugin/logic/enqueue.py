"""A customer backend triggers a configured webhook action: once per key, at a bounded rate."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from flowactions_hookspecs import FlowActionsError, LogicActionRef
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.logic.dispatch import Dispatcher, Occasion
from flowactions_plugin.logic.store import CallStore
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.keys import IdempotencyKeys, api_key
from flowactions_plugin.storage.database import Connection


class Enqueued(msgspec.Struct, frozen=True, rename="camel"):
    """What a first call is answered with.

    Attributes:
        id: the delivery's.
        event_id: what the receiver dedupes on.
        status: it is in the outbox; the destination has not seen it yet.
    """

    id: str
    event_id: str
    status: Literal["pending"] = "pending"


class RateExceeded(FlowActionsError):
    """The agent has made as many calls as a minute admits.

    Attributes:
        wait_ms: when the next call will be admitted.
    """

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"the next call is admitted in {wait_ms} ms")
        self.wait_ms = wait_ms


class Enqueuer:
    """Takes logic-webhook calls (§1.5, §4.2)."""

    def __init__(self, calls: CallStore, keys: IdempotencyKeys, dispatcher: Dispatcher, outbox: Outbox) -> None:
        self._calls = calls
        self._keys = keys
        self._dispatcher = dispatcher
        self._outbox = outbox

    async def call(self, ref: LogicActionRef, key: str) -> Enqueued | None:
        """Enqueue the action that ``ref`` points at, unless the key was used within the window.

        Of any number of simultaneous calls with one key, one enqueues. Only that one counts towards the
        agent's rate.

        Args:
            ref: where the action is; tenancy was checked.
            key: the caller's idempotency key, unique within the agent.

        Returns:
            What was enqueued; ``None`` for a duplicate.

        Raises:
            RateExceeded: sixty calls were admitted within the last minute.
            ActionUnusable: there is no such action, or it may not be sent.
            HostFailed: the host could not resolve it.
            StorageUnavailable: the database failed; nothing was written.
        """
        database, outbox = self._outbox.database, self._outbox
        organization_id, agent_id = ref.organization_id, ref.agent_id

        def count(connection: Connection) -> None:
            wait_ms = self._calls.count(connection, organization_id, agent_id)
            if wait_ms:
                raise RateExceeded(wait_ms)

        try:
            # Looked at first, so that a repeated or throttled call costs the host nothing.
            async with database.answering():
                wait_ms = await self._calls.look_up(organization_id, agent_id, key)
            if wait_ms is None:
                return None
            if wait_ms:
                raise RateExceeded(wait_ms)
            called_at = datetime.fromtimestamp(database.clock(), UTC)
            delivery = await self._dispatcher.resolve(ref, called_at, Occasion("key", key))
            use = api_key(self._keys, organization_id, agent_id, key)
            first = await outbox.write(delivery, key=use, rate=count)
        except StorageUnavailable as exc:
            outbox.count_refusal(exc)
            raise
        return None if first is not None else Enqueued(id=delivery.id, event_id=delivery.event_id)
