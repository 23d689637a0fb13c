"""Webhooks that hosts and plugins enqueue themselves: the plugin's `PreparedWebhook`, through the same outbox."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec

from flowactions_hookspecs import NodeResult, NotQueued, OutboundWebhook, Receipt
from flowactions_plugin.errors import EgressRefused, StorageUnavailable, TooLarge
from flowactions_plugin.queue.enqueue import Outbox, row_of
from flowactions_plugin.queue.items import Item, statements_of
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.dialect import PARAMSTYLES

log = logging.getLogger("flowactions.outbox")

NOT_QUEUED: Final = "The webhook was not queued"


class PreparedDelivery:
    """A delivery whose destination was checked and whose bytes are fixed.

    Args:
        outbox: takes it in.
        delivery: what is written; ``None`` for one that may not be sent.
        use: its idempotency key; ``None``: none.
        refused: why it may not be sent; ``None`` when it may.
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
        self._loop = asyncio.get_running_loop()
        self.refused = refused

    async def write(self, transaction: Transaction | None) -> NodeResult:
        """Write the delivery, as `enqueue` does; what tells a duplicate from the first is its id.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        return result_of(await self.enqueue(transaction))

    def not_written(self, _exc: StorageUnavailable) -> NodeResult | None:
        """Return the result of a node whose delivery could not be written; ``None``: as of any node that could not be stored."""
        return None

    def statements(self, paramstyle: str) -> list[tuple[str, Any]]:
        """Return the statements that write it, with their parameters; see `PreparedWebhook`.

        Raises:
            ValueError: it is none of `PARAMSTYLES`.
        """
        if paramstyle not in PARAMSTYLES:
            raise ValueError(f"paramstyle {paramstyle!r} is unknown: give one of {', '.join(PARAMSTYLES)}")
        if self._delivery is None:
            return []
        return statements_of(self._outbox.database, Item(row_of(self._delivery), self._use), paramstyle)

    def committed(self) -> None:
        """Wake a worker, from any thread."""
        if self._delivery is not None:
            self._loop.call_soon_threadsafe(self._outbox.committed, self._delivery)

    async def enqueue(self, transaction: Transaction | None) -> Receipt:
        """Write the delivery. Written again, it is the same row.

        Args:
            transaction: the caller's; ``None``: one of its own, in fewer round trips.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        outbox, delivery, use = self._outbox, self._delivery, self._use
        first = None
        if delivery is not None:
            first = await outbox.write(delivery, transaction, use)
        elif use is not None:
            # The first delivery of its key passed the rules as they were then.
            async with outbox.database.answering(), outbox.database.read(transaction) as connection:
                first = await use.keys.find(use, connection)
        if first is not None:
            return Receipt(status="duplicate", delivery_id=first.delivery_id, event_id=first.event_id)
        if delivery is None:
            return self.refused or Receipt(status="skipped")
        return Receipt(status="queued", delivery_id=delivery.id, event_id=delivery.event_id)


def result_of(receipt: Receipt) -> NodeResult:
    """Return the result of a node that has enqueued a webhook."""
    if receipt.status == "skipped":
        return NodeResult(status="skipped", reason=receipt.reason, message=receipt.message)
    return NodeResult(status="queued", delivery_id=receipt.delivery_id)


class OwnWebhooks:
    """Enqueues the webhooks of hosts and plugins, which were checked before. Callers are ``host`` and ``plugin:<name>``."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def prepare(self, webhook: OutboundWebhook, caller: str) -> PreparedDelivery:
        """Apply the egress rules and fix the bytes; no SQL."""
        outbox, key, refused = self._outbox, webhook.idempotency_key, None
        use = None if key is None else KeyUse(outbox.keys, webhook.organization_id, caller, key)
        # The caller's entity is unique for the caller, so the id names whose it is, too (§2.5).
        entity = msgspec.json.encode((webhook.organization_id, caller, webhook.entity)).decode()
        url = webhook.url.strip()
        try:
            delivery = await outbox.new_delivery(msgspec.structs.replace(webhook, entity=entity, url=url))
        except TooLarge as exc:
            refused = Receipt(status="skipped", reason=exc.reason, message=str(exc))
        except EgressRefused as exc:
            reason = "blocked_url" if url else "missing_url"
            refused = Receipt(status="skipped", reason=reason, message=str(exc))
        return PreparedDelivery(outbox, delivery if refused is None else None, use, refused)

    async def enqueue(self, webhook: OutboundWebhook, caller: str, transaction: Transaction | None) -> Receipt:
        """Prepare a webhook and write it, once per key, in the host's transaction or one of its own.

        Raises:
            NotQueued: the database failed.
            TransactionInvalid: the transaction cannot be joined.
        """
        with self._outbox.database.transactions.using(transaction):
            prepared = await self.prepare(webhook, caller)
            try:
                return await prepared.enqueue(transaction)
            except StorageUnavailable as exc:
                self._outbox.count_refusal(exc)
                log.error(  # noqa: TRY400
                    "a webhook of %s was not queued: %s", caller, exc, extra={"event": "webhook.not_queued"}
                )
                known = "It is not known whether the webhook was queued" if exc.may_be_written else NOT_QUEUED
                raise NotQueued(f"{known}: {exc}") from exc
