"""A webhook that is ready to be written: the plugin's `PreparedWebhook`."""

from __future__ import annotations

from typing import Self

from flowactions_hookspecs import NodeResult, Receipt
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.keys import KEY_SECONDS, FirstUse, KeyUse
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Transaction


class PreparedDelivery:
    """A delivery whose destination was checked and whose bytes are fixed.

    Args:
        outbox: takes it in.
        delivery: what is written; ``None`` for one that may not be sent.
        use: its idempotency key; ``None``: none.
        refused: why it may not be sent.
    """

    def __init__(
        self,
        outbox: Outbox,
        delivery: NewDelivery | None,
        use: KeyUse | None = None,
        refused: Receipt | None = None,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._use = use
        self._refused = refused

    @property
    def refused(self) -> Receipt | None:
        """Why it may not be sent; ``None`` when it may."""
        return self._refused

    @property
    def write(self) -> Self:
        """What writes it: the delivery itself, so that a node that writes nothing else is known by that."""
        return self

    async def __call__(self, transaction: Transaction | None) -> NodeResult:
        """Write the delivery. Written again, it is the same row.

        Args:
            transaction: the caller's; ``None``: one of its own, in fewer round trips.

        Returns:
            ``queued``, with the id of the first delivery when its key was used before; ``skipped`` when it may not be
            sent.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        receipt = await self.enqueue(transaction)
        if receipt.status == "skipped":
            return NodeResult(status="skipped", reason=receipt.reason, message=receipt.message)
        return NodeResult(status="queued", delivery_id=receipt.delivery_id)

    async def enqueue(self, transaction: Transaction | None) -> Receipt:
        """Do the same, and tell a duplicate apart.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        delivery = self._delivery
        first = None
        async with self._outbox.database.answering(0.0 if self._use is None else KEY_SECONDS):
            if delivery is None or self._refused is not None:
                return await self._skip(transaction)
            if self._use is None:
                await self._outbox.write(delivery, transaction)
            else:
                first = await self._write_once(delivery, self._use, transaction)
        if first is not None:
            return Receipt(status="duplicate", delivery_id=first.delivery_id, event_id=first.event_id)
        return Receipt(status="queued", delivery_id=delivery.id, event_id=delivery.event_id)

    async def _write_once(
        self, delivery: NewDelivery, use: KeyUse, transaction: Transaction | None
    ) -> FirstUse | None:
        keys, owner, key = use

        async def write(connection: Transaction) -> FirstUse | None:
            first = await keys.use(owner, key, delivery.id, delivery.event_id, connection)
            if first is None:
                await self._outbox.write(delivery, connection)
            return first

        return await self._outbox.together(delivery, (*owner, key), write, transaction, use)

    async def _skip(self, transaction: Transaction | None) -> Receipt:
        """Return why it is skipped, or the first delivery of its key, which passed the rules as they were then."""
        if self._use is not None:
            keys, owner, key = self._use
            async with self._outbox.database.read(transaction) as connection:
                first = await keys.find(owner, key, connection)
            if first is not None:
                return Receipt(status="duplicate", delivery_id=first.delivery_id, event_id=first.event_id)
        return self._refused or Receipt(status="skipped")
