"""Enqueues webhooks: checks the destination, serializes the request, and has the row written."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import msgspec

from flowactions_hookspecs import (
    ChatNodeOrigin,
    FlowNodeOrigin,
    LogicActionOrigin,
    OutboundWebhook,
    PluginOrigin,
    UnsignedTestOrigin,
)
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.destination import destination_of
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.errors import BodyTooLarge, EgressRefused, StorageUnavailable, TooLarge
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.group_commit import Group, GroupCommit
from flowactions_plugin.queue.items import MOST_CLAIMED_BYTES, Item, write_items
from flowactions_plugin.queue.keys import KEY_SECONDS, FirstUse, IdempotencyKeys, KeyUse, waiting_for_keys
from flowactions_plugin.queue.lanes import AS_KNOWN, EVER, SINCE_MARGIN_MS, Due, lane_of
from flowactions_plugin.queue.rules import (
    BODYLESS_METHODS,
    CHAT_HOURS,
    DEFAULT_MAX_ATTEMPTS,
    NewDelivery,
    attempts_of,
    capped_attempts,
    delivery_headers,
    event_id,
    method_name,
)
from flowactions_plugin.queue.sequences import Sequences, sequence_of
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Connection, Database, Transaction
from flowactions_plugin.storage.outages import reason_of
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import NO_AGENT
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.spans import note_delivery, traceparent_of
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions.outbox")

GROUP_LOCK_MS: Final = 100
"""How long a transaction of several callers waits for a lock on PostgreSQL. It is less than the server takes to find a
deadlock, so that it is this transaction that gives way."""


class UnsignedTest:
    """A test of a draft whose webhooks are sent unsigned (§5.3.6).

    Attributes:
        origin: of what is enqueued meanwhile, so that no process asks for a secret, then or later.
        is_open: whether the test still runs. A task that it has started may go on for longer.
        was_used: whether a webhook got this origin.
    """

    def __init__(self, origin: UnsignedTestOrigin) -> None:
        self.origin = origin
        self.is_open = True
        self.was_used = False

    def applied(self, delivery: NewDelivery) -> NewDelivery:
        """Return a delivery with this origin. One of another plugin keeps its own: that plugin gives its secret."""
        if not self.is_open or isinstance(delivery.origin, PluginOrigin):
            return delivery
        self.was_used = True
        return msgspec.structs.replace(delivery, origin=self.origin, sequence=None)


_test: Final[ContextVar[UnsignedTest | None]] = ContextVar("flowactions_unsigned_test", default=None)


def is_test() -> bool:
    """Return whether a draft is being tested, whose webhooks would be sent unsigned."""
    test = _test.get()
    return test is not None and test.is_open


@contextmanager
def unsigned_test(origin: UnsignedTestOrigin) -> Iterator[UnsignedTest]:
    """Mark the webhooks that a draft enqueues, by whichever way, as those of an unsigned test."""
    test = UnsignedTest(origin)
    token = _test.set(test)
    try:
        yield test
    finally:
        test.is_open = False
        _test.reset(token)


class Outbox:
    """Enqueues webhooks in two steps, so that no transaction waits for a name to resolve (§2.5).

    Args:
        database: where the queue is.
        guard: decides where requests may go.
        settings: the host's.
        telemetry: counts what is enqueued and refused, and traces it; ``None``: nothing does.

    Attributes:
        database: the same.
        settings: the same.
        keys: the idempotency keys that were used.
        on_commit: called with what has become due of what was committed and not claimed; ``None``: nobody waits for these.
        sequences: releases what is sent one after another.
        claimant: who sends what this process enqueues; ``None``: whoever claims it.
    """

    def __init__(
        self,
        database: Database,
        guard: EgressGuard,
        settings: Settings = Settings(),  # noqa: B008  immutable
        telemetry: Telemetry | None = None,
    ) -> None:
        self.database = database
        self._guard = guard
        self.settings = settings
        self._telemetry = telemetry or Telemetry()
        self.keys = IdempotencyKeys(database, settings.idempotency_hours * HOUR_MS)
        self.on_commit: Callable[[Due], None] | None = None
        self.sequences = Sequences(database, lambda due: self.on_commit and self.on_commit(due))
        self.claimant: ContinuousClaims | None = None
        self._groups = GroupCommit(self._write_group, is_interruptible=lambda: database.sql.is_server)

    async def new_delivery(self, webhook: OutboundWebhook, event_payload: bytes | None = None) -> NewDelivery:
        """Check the destination and serialize the request; nothing is written yet.

        Args:
            webhook: what is sent; the headers' variables are substituted.
            event_payload: the part of the body that the event id is derived from; ``None``: all of it.

        Raises:
            EgressRefused: the URL is missing, malformed or not allowed.
            BodyTooLarge: the body is larger than may be enqueued.
            HeadersTooLarge: the custom headers are larger than receivers accept.
        """
        with self._telemetry.spans.enqueue(webhook.organization_id, webhook.event_type) as span:
            try:
                destination, _ = await self._guard.look_up(webhook.url)
                delivery, dropped = self.serialize(webhook, destination.url, destination.key, event_payload)
            except TooLarge as exc:
                self.count_refusal(exc)
                raise
            except EgressRefused:
                self._telemetry.meters.count(names.REFUSALS, at="enqueue")
                self._telemetry.meters.count(names.REFUSED, reason="blocked_url")
                raise
            test = _test.get()
            if test is not None:
                delivery = test.applied(delivery)
            delivery = _traced(delivery, span)
        if dropped:
            log.warning(
                "webhook %s: invalid or reserved headers are left out: %r%s",
                delivery.event_id,
                dropped[:10],
                " and more" if len(dropped) > 10 else "",
                extra={"event": "webhook.headers_left_out"},
            )
        return delivery

    def new_message(self, message: OutboundWebhook) -> NewDelivery:
        """Make the delivery of a chat message: its URL is of its own kind, which no guard lets a webhook have.

        Raises:
            BodyTooLarge: the body is larger than may be enqueued.
        """
        with self._telemetry.spans.enqueue(message.organization_id, message.event_type) as span:
            delivery, _ = self.serialize(message, message.url, destination_of(message.url))
            expires_at = int((self.database.clock() + CHAT_HOURS * 3600) * 1000)
            return _traced(msgspec.structs.replace(delivery, headers=(), expires_at=expires_at), span)

    def serialize(
        self, webhook: OutboundWebhook, url: str, destination: str, event_payload: bytes | None = None
    ) -> tuple[NewDelivery, tuple[str, ...]]:
        """Fix the bytes of a webhook; a preview is made of the same.

        Args:
            webhook: what is sent.
            url: where, as the egress guard writes it.
            destination: the unit of per-destination limits.
            event_payload: as of `new_delivery`.

        Returns:
            The delivery, and the names of custom headers that are left out.

        Raises:
            BodyTooLarge: the body is larger than may be enqueued.
            HeadersTooLarge: the custom headers are larger than receivers take.
        """
        method = method_name(webhook.method) or "POST"
        body = None if method in BODYLESS_METHODS else webhook.body
        limit = self.settings.max_body_bytes
        if body is not None and len(body) > limit:
            raise BodyTooLarge(f"The body is larger than {limit} bytes (FLOWACTIONS_MAX_BODY_BYTES).")
        payload = body if event_payload is None else event_payload
        event = event_id(webhook.event_type, webhook.entity, payload or b"")
        attempts = webhook.max_attempts
        if attempts is None:
            attempts = attempts_of(self.settings.retry_schedule, DEFAULT_MAX_ATTEMPTS)
        headers, dropped = delivery_headers(
            webhook.headers,
            event_id=event,
            event_type=webhook.event_type,
            has_body=body is not None,
            standard_webhooks=self.settings.standard_webhooks,
        )
        return NewDelivery(
            id=new_id(self.database.clock()),
            organization_id=webhook.organization_id,
            agent_id=webhook.agent_id,
            origin=webhook.origin,
            event_id=event,
            event_type=webhook.event_type,
            url=url,
            destination=destination,
            lane=lane_of(webhook.organization_id, destination, url),
            method=method,
            headers=headers,
            body=body,
            max_attempts=capped_attempts(attempts),
            idempotency_key=webhook.idempotency_key,
            sequence=None
            if webhook.order_key is None
            else sequence_of(webhook.organization_id, destination, url, webhook.order_key),
        ), dropped

    async def write(
        self,
        delivery: NewDelivery,
        connection: Transaction | None = None,
        key: KeyUse | None = None,
        rate: Callable[[Connection], None] | None = None,
    ) -> FirstUse | None:
        """Write a delivery; it is due when its transaction commits (§3.1). A second time it is the same row.

        Args:
            delivery: what `new_delivery` returned.
            connection: the caller's transaction; ``None``: one of the plugin's own, which other callers may share.
            key: the idempotency key that it is written with.
            rate: as of `Item`.

        Returns:
            ``None`` when it is written; otherwise what has used the key before.

        Raises:
            StorageUnavailable: the database failed; nothing was written, unless ``may_be_written`` says otherwise.
            Exception: what ``rate`` has raised.
        """
        item, began = Item(row_of(delivery), key, rate), time.monotonic()
        writing = self._groups.write(item) if connection is None else self._join(item, connection)
        async with self.database.answering(0.0 if key is None else KEY_SECONDS):
            await (waiting_for_keys(writing) if key is not None and self.database.sql.is_server else writing)
        wakes = item.claim is None and (self.on_commit is not None or delivery.sequence is not None)
        if item.first is None and (wakes or self._telemetry.meters.is_open):
            committed = partial(self.committed, delivery, began, wakes=wakes)
            if connection is None:
                committed()
            else:
                self.database.transactions.after_commit(connection, committed)
        return item.first

    async def _join(self, item: Item, transaction: Transaction) -> None:
        """Write an item in a transaction of its caller's."""
        async with self.database.write(transaction) as joined:
            await joined.run_sync(partial(write_items, self.database), [item])

    def committed(self, delivery: NewDelivery, began: float = -math.inf, *, wakes: bool = True) -> None:
        """Count a delivery that was committed, and wake whoever delivers it; ``began`` is the monotonic time of its write."""
        kind = str(delivery.origin.__struct_config__.tag)
        self._telemetry.meters.count(names.ENQUEUED, origin=kind)
        if delivery.sequence is not None:
            self.sequences.ended([delivery.sequence])
        elif wakes and self.on_commit is not None:
            # Otherwise each of them would have its lane searched from the first index entry on.
            since = AS_KNOWN if time.monotonic() - began < SINCE_MARGIN_MS / 1000 else EVER
            self.on_commit(Due(delivery.lane, delivery.organization_id, delivery.destination, since))

    async def _write_group(self, group: Group) -> None:
        """Write the items of several callers in one transaction, and claim those that this process can send at once."""
        claimant = self.claimant
        lease_seconds = 0.0 if claimant is None else claimant.lease_seconds
        for item in group.items:
            item.claim = None if claimant is None else _reserved(claimant, item)
        reserved = [item.claim for item in group.items if item.claim is not None]
        # Another transaction may hold one of the keys for long. Then each caller waits for its own key only.
        lock_ms = GROUP_LOCK_MS if len(group.items) > 1 else 0

        def write(connection: Connection) -> Collection[str | None]:
            return write_items(self.database, connection, group.begin(), lease_seconds, lock_ms)

        several = any(item.rate for item in group.items)
        claimed: Collection[str | None] | None = None
        try:
            claimed = await self.database.in_transaction(write, group.calls[0].deadline, several=several)
        except Exception as exc:
            if not (isinstance(exc, StorageUnavailable) and exc.may_be_written):
                claimed = ()
            raise
        finally:
            for item in group.items:
                if item.claim is not None and item.claim.token not in (claimed or ()):
                    item.claim = None
            if claimant is not None and reserved:
                claimant.take(reserved, claimed)

    def count_refusal(self, exc: StorageUnavailable | TooLarge) -> None:
        """Count a webhook that was not queued because of the database, or of its size."""
        reason = "too_large" if isinstance(exc, TooLarge) else reason_of(exc)
        self._telemetry.meters.count(names.REFUSED, reason=reason)


def _traced(delivery: NewDelivery, span: Any) -> NewDelivery:
    """Return a delivery with the trace of what enqueues it, if there is one."""
    if (traceparent := traceparent_of(span)) is None:
        return delivery
    note_delivery(span, delivery.id, delivery.event_id, delivery.destination)
    return msgspec.structs.replace(delivery, trace=traceparent)


def _reserved(claimant: ContinuousClaims, item: Item) -> ClaimedDelivery | None:
    """Return the claim of a row that this process can send at once. What has a key may have to wait for others first."""
    waits = item.key is not None or item.rate is not None or item.size > MOST_CLAIMED_BYTES
    waits = waits or item.row["sequence"] is not None
    return None if waits else claimant.reserve(item.row)


def row_of(delivery: NewDelivery) -> dict[str, Any]:
    """Return the values of a row's columns."""
    origin = delivery.origin
    row = msgspec.structs.asdict(delivery)
    row["agent_id"] = delivery.agent_id or NO_AGENT
    row["flow_id"] = row["node_id"] = row["action_id"] = None
    if isinstance(origin, FlowNodeOrigin | ChatNodeOrigin | UnsignedTestOrigin):
        row["flow_id"], row["node_id"] = origin.flow_id, origin.node_id
    elif isinstance(origin, LogicActionOrigin):
        row["node_id"] = getattr(origin.ref, "node_id", None)
    row["origin"] = msgspec.json.encode(origin).decode()
    row["headers"] = msgspec.json.encode(delivery.headers).decode()
    return row
