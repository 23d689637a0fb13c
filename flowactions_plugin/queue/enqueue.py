"""The one way into the outbox: check the destination, serialize the request, write the row."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin, PluginOrigin, UnsignedTestOrigin
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.errors import BodyTooLarge, EgressRefused, StorageUnavailable, TooLarge
from flowactions_plugin.queue.group_commit import Group, GroupCommit
from flowactions_plugin.queue.keys import KeyUse, Use
from flowactions_plugin.queue.lanes import lane_of
from flowactions_plugin.queue.new_rows import NewRows, enqueuing
from flowactions_plugin.queue.rules import (
    BODYLESS_METHODS,
    DEFAULT_MAX_ATTEMPTS,
    NewDelivery,
    attempts_of,
    capped_attempts,
    delivery_headers,
    event_id,
    method_name,
)
from flowactions_plugin.settings.model import DEFAULT_MAX_BODY_BYTES
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.outages import reason_of
from flowactions_plugin.storage.schema import NO_AGENT
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions.outbox")

T = TypeVar("T")

DROPPED_LOGGED: Final = 10

GROUP_WORKS: Final = 32
"""Callers with keys that share a transaction at the most. Each has statements of its own, during which it holds locks."""

GROUP_LOCK_MS: Final = 100
"""How long a transaction of several callers waits for a lock on PostgreSQL. It is less than the server takes to find a
deadlock, so that it is this transaction that gives way."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as a node or a logic action describes it.

    Args:
        organization_id: the tenant.
        agent_id: the agent that it belongs to; ``None``: none.
        origin: where the host finds its signing secret.
        event_type: as in ``x-service-webhook-event`` (§6.1).
        entity: what the event is about; the event id is derived from it, the type and the body.
        url: the destination, checked before anything is written.
        method: the HTTP method; GET and HEAD are sent without a body.
        headers: custom headers, variables already substituted.
        body: the exact bytes.
        event_payload: the part of the body that the event id is derived from; ``None``: all of it.
        max_attempts: wanted attempts, kept within 1 and 10.
        by_schedule: whether a retry schedule that an operator has set says how many instead.
    """

    organization_id: str
    agent_id: str | None
    origin: Origin
    event_type: str
    entity: str
    url: str
    method: str = "POST"
    headers: tuple[Header, ...] = ()
    body: bytes | None = None
    event_payload: bytes | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    by_schedule: bool = True


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
        return msgspec.structs.replace(delivery, origin=self.origin)


_test: Final[ContextVar[UnsignedTest | None]] = ContextVar("flowactions_unsigned_test", default=None)


@contextmanager
def unsigned_test(origin: UnsignedTestOrigin) -> Iterator[UnsignedTest]:
    """Mark the webhooks that a draft enqueues, by whichever way, as those of an unsigned test.

    Args:
        origin: of the draft.
    """
    test = UnsignedTest(origin)
    token = _test.set(test)
    try:
        yield test
    finally:
        test.is_open = False
        _test.reset(token)


class _Work(Generic[T]):
    """What a caller writes with its row.

    Attributes:
        order: what is locked first.
        size: the bytes of the row.
        run: executes the statements.
        delivery: the row.
        use: its idempotency key, where this is all that is written with it; ``None``: ``run`` has to be called.
        result: what ``run`` returned last.
    """

    __slots__ = ("delivery", "order", "result", "run", "use")

    result: T

    def __init__(
        self,
        order: tuple[str, ...],
        run: Callable[[Transaction], Awaitable[T]],
        delivery: NewDelivery,
        use: KeyUse | None,
    ) -> None:
        self.order = order
        self.run = run
        self.delivery = delivery
        self.use = use


class Outbox:
    """Enqueues webhooks in two steps, so that no transaction waits for a name to resolve (§1.4).

    Args:
        database: where the queue is.
        guard: decides where requests may go.
        max_body_bytes: of a body.
        telemetry: counts what is enqueued and refused, and traces it; ``None``: nothing does.
        standard_webhooks: whether the names of that scheme's headers are reserved, too.
        retry_schedule: the one that an operator has set; empty: the rule of §8.

    Attributes:
        database: the same.
        rows: writes what needs no transaction of others.
        on_commit: called with each row that was committed and not claimed; ``None``: nobody waits for these.
    """

    def __init__(
        self,
        database: Database,
        guard: EgressGuard,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        telemetry: Telemetry | None = None,
        *,
        standard_webhooks: bool = False,
        retry_schedule: tuple[int, ...] = (),
    ) -> None:
        self.database = database
        self._guard = guard
        self.max_body_bytes = max_body_bytes
        self._telemetry = telemetry or Telemetry()
        self.standard_webhooks = standard_webhooks
        self.retry_schedule = retry_schedule
        self.on_commit: Callable[[NewDelivery], None] | None = None
        self.rows = NewRows(database)
        self._works = GroupCommit(
            self._run_group,
            lambda work: len(work.delivery.body or b""),
            is_interruptible=lambda: database.sql.is_server,
            rows=GROUP_WORKS,
        )

    async def new_delivery(self, webhook: Webhook) -> NewDelivery:
        """Check the destination and serialize the request; nothing is written yet.

        Raises:
            EgressRefused: the URL is missing, malformed or not allowed.
            BodyTooLarge: the body is larger than may be enqueued.
            HeadersTooLarge: the custom headers are larger than receivers accept.
        """
        with self._telemetry.spans.enqueue(webhook.organization_id, webhook.event_type) as span:
            try:
                request = self._request(webhook)
                destination = await self._guard.check(webhook.url)
                delivery, dropped = self._serialize(webhook, request, destination.url, destination.key)
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
            if span.traceparent is not None:
                delivery = msgspec.structs.replace(delivery, trace=span.traceparent)
                span.made(delivery.id, delivery.event_id, delivery.destination)
        if dropped:
            log.warning(
                "webhook %s: invalid or reserved headers are left out: %r%s",
                delivery.event_id,
                dropped[:DROPPED_LOGGED],
                " and more" if len(dropped) > DROPPED_LOGGED else "",
                extra={"event": "webhook.headers_left_out"},
            )
        return delivery

    def serialize(self, webhook: Webhook, url: str, destination: str) -> tuple[NewDelivery, tuple[str, ...]]:
        """Fix the bytes of a webhook; a preview is made of the same.

        Args:
            webhook: what is sent.
            url: where, as the egress guard writes it.
            destination: the unit of per-destination limits.

        Returns:
            The delivery, and the names of custom headers that are left out.

        Raises:
            BodyTooLarge: the body is larger than may be enqueued.
            HeadersTooLarge: the custom headers are larger than receivers take.
        """
        return self._serialize(webhook, self._request(webhook), url, destination)

    def _serialize(
        self, webhook: Webhook, request: tuple[str, bytes | None], url: str, destination: str
    ) -> tuple[NewDelivery, tuple[str, ...]]:
        method, body = request
        payload = body if webhook.event_payload is None else webhook.event_payload
        event = event_id(webhook.event_type, webhook.entity, payload or b"")
        attempts = webhook.max_attempts
        if webhook.by_schedule:
            attempts = attempts_of(self.retry_schedule, attempts)
        headers, dropped = delivery_headers(
            webhook.headers,
            event_id=event,
            event_type=webhook.event_type,
            has_body=body is not None,
            standard_webhooks=self.standard_webhooks,
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
        ), dropped

    def _request(self, webhook: Webhook) -> tuple[str, bytes | None]:
        """Return method and body as they are sent.

        Raises:
            BodyTooLarge: the body is larger than may be enqueued.
        """
        method = method_name(webhook.method) or "POST"
        body = None if method in BODYLESS_METHODS else webhook.body
        if body is not None and len(body) > self.max_body_bytes:
            raise BodyTooLarge(
                f"The body is larger than {self.max_body_bytes} bytes (FLOWACTIONS_MAX_BODY_BYTES)."
            )
        return method, body

    async def write(self, delivery: NewDelivery, connection: Transaction | None = None) -> None:
        """Write a delivery within the caller's transaction; it is due when that commits (§3.1).

        Args:
            delivery: what `new_delivery` returned.
            connection: the transaction's; ``None``: a transaction of its own.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        row = _row(delivery)
        is_claimed = False
        if connection is None:
            is_claimed = await self.rows.write(row)
        else:
            async with self.database.write(connection) as joined:
                await joined.execute(self.database.built(enqueuing), row)
        call = self._call(delivery, wakes=not is_claimed)
        if call is None:
            return
        if connection is None:
            call()
        else:
            self.database.after_commit(connection, call)

    def _call(self, delivery: NewDelivery, *, wakes: bool = True) -> Callable[[], None] | None:
        """Return what is called when a delivery was committed; ``None``: nothing."""
        call = None
        if self.on_commit is not None and wakes:
            call = partial(self.on_commit, delivery)
        if self._telemetry.meters.is_open:
            call = partial(self._count, origin_kind(delivery.origin), call)
        return call

    def _count(self, origin: str, then: Callable[[], None] | None) -> None:
        self._telemetry.meters.count(names.ENQUEUED, origin=origin)
        if then is not None:
            then()

    async def together(
        self,
        delivery: NewDelivery,
        order: tuple[str, ...],
        run: Callable[[Transaction], Awaitable[T]],
        connection: Transaction | None = None,
        use: KeyUse | None = None,
    ) -> T:
        """Run `write` and what belongs to it, in one transaction.

        Args:
            delivery: what is written.
            order: what is locked first, where callers share a transaction.
            run: writes it, and what belongs to it. It may be run again, after a rollback.
            connection: the caller's transaction; ``None``: one of the plugin's own, which other callers may share.
            use: the idempotency key, where this is all that is written with the row. Callers that share a transaction then
                share its statements, and ``run`` is not called.

        Returns:
            What ``run`` returned; where the transaction is the plugin's own, when that has committed.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        if connection is None:
            work = _Work(order, run, delivery, use)
            await self._works.write(work)
            return work.result
        async with self.database.write(connection) as joined:
            return await run(joined)

    @repeated
    async def _run_group(self, group: Group[_Work[Any]]) -> None:
        async with self.database.write(deadline=group.deadline) as connection:
            works = sorted(group.begin(), key=lambda work: work.order)
            if len(works) > 1:
                # Another transaction may hold one of the keys for long. Then each caller waits for its own key only.
                await self.database.limit_lock_waits(connection, GROUP_LOCK_MS)
            alike = [work for work in works if work.use is not None]
            if len(alike) > 1:
                await self._use_keys(alike, connection)
                works = [work for work in works if work.use is None]
            for work in works:
                work.result = await work.run(connection)

    async def _use_keys(self, works: Sequence[_Work[Any]], connection: Transaction) -> None:
        """Write the rows of those whose key is free, in as many statements as for one."""
        uses = [
            Use(use.owner, use.key, work.delivery.id, work.delivery.event_id)
            for work in works
            if (use := work.use) is not None
        ]
        keys = works[0].use
        assert keys is not None  # noqa: S101  all of them have one
        firsts = await connection.run_sync(keys.keys.use_all, uses)
        free = []
        for work, first in zip(works, firsts, strict=True):
            work.result = first
            if first is None:
                free.append(work.delivery)
        if free:
            await connection.execute(self.database.built(enqueuing), [_row(each) for each in free])
        for each in free:
            call = self._call(each)
            if call is not None:
                self.database.after_commit(connection, call)

    def count_refusal(self, exc: StorageUnavailable | TooLarge) -> None:
        """Count a webhook that was not queued because of the database, or of its size."""
        reason = "too_large" if isinstance(exc, TooLarge) else reason_of(exc)
        self._telemetry.meters.count(names.REFUSED, reason=reason)


def origin_kind(origin: Origin) -> str:
    """Return the kind of an origin, as it is stored and as metrics have it."""
    return str(origin.__struct_config__.tag)


def _row(delivery: NewDelivery) -> dict[str, Any]:
    """Return the values of a row's columns."""
    row = msgspec.structs.asdict(delivery)
    row["agent_id"] = delivery.agent_id or NO_AGENT
    row["flow_id"], row["node_id"] = delivery.flow_and_node
    row["origin"] = msgspec.json.encode(delivery.origin).decode()
    row["headers"] = msgspec.json.encode(delivery.headers).decode()
    return row
