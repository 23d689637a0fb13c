"""A webhook that is ready to be written: the plugin's `PreparedWebhook`."""

from __future__ import annotations

from flowactions_hookspecs import NodeResult, Receipt
from flowactions_plugin.outbox.enqueue import Outbox
from flowactions_plugin.outbox.rules import NewDelivery
from flowactions_plugin.storage.database import Connection


class PreparedDelivery:
    """A delivery whose destination was checked and whose bytes are fixed.

    Args:
        outbox: takes it in.
        delivery: what is written.
    """

    refused: Receipt | None = None

    def __init__(self, outbox: Outbox, delivery: NewDelivery) -> None:
        self._outbox = outbox
        self._delivery = delivery

    async def write(self, transaction: Connection | None) -> NodeResult:
        """Writes the delivery.

        Args:
            transaction: the caller's; ``None``: one of its own, in fewer round trips.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        await self._outbox.write(self._delivery, transaction)
        return NodeResult(status="queued", delivery_id=self._delivery.id)
