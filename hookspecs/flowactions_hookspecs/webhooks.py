"""Webhooks on their way through the outbox: what is enqueued, the receipt, and how a delivery ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.origins import Origin

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from flowactions_hookspecs.nodes import NodeResult
else:
    # The contract imports no SQLAlchemy, and nodes.py imports this module.
    AsyncConnection = NodeResult = Any


class Header(ContractStruct, frozen=True, kw_only=True):
    """A custom header of a webhook. Its value may be a credential, so it is left out of the repr."""

    key: str = ""
    value: str = ""

    def __repr__(self) -> str:
        return f"Header(key={self.key!r}, value=…)"


class OutboundWebhook(ContractStruct, frozen=True, kw_only=True):
    """A webhook of the host's or another plugin's own, for `FlowActions.enqueue` and `FlowActions.prepare`.

    Args:
        organization_id: the tenant.
        agent_id: the agent that it belongs to; ``None``: none.
        event_type: as receivers see it (§6.1): ``[a-z0-9][a-z0-9_.-]{0,63}``; all of ``experience.*`` is reserved.
        entity: what the event is about. With type and body it makes the event id, by which receivers dedupe.
        url: the destination; the egress rules are applied before anything is written (§5.2).
        method: the name of an HTTP method; GET and HEAD are sent without a body.
        headers: stored as they are until the delivery is deleted, so they hold no secrets. Those with an invalid or
            reserved name are dropped (§2.6).
        body: sent verbatim.
        origin: where its signing secret is found: a `HostOrigin` of the host's, a `PluginOrigin` of the plugin's.
        max_attempts: 1 to 10. ``None``: 5, or as many as the operator's retry schedule has.
        idempotency_key: 1 to 200 characters, unique per organization and caller (the host, or the plugin) within the
            dedupe window.
    """

    organization_id: str
    event_type: str
    entity: str
    url: str
    origin: Origin
    agent_id: str | None = None
    method: str = "POST"
    headers: Sequence[Header] = ()
    body: bytes | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None

    def __repr__(self) -> str:
        return f"OutboundWebhook(event_type={self.event_type!r}, entity={self.entity!r}, …)"


class Receipt(ContractStruct, frozen=True, kw_only=True):
    """The result of enqueuing a webhook, or of dispatching a logic action.

    Args:
        status: ``queued`` (in the outbox), ``duplicate`` (the same key was used within the dedupe
            window; the ids are those of the first delivery), ``skipped`` (refused URL, too large), ``failed``.
        reason: a stable word for programs, ``None`` when all went well.
        message: what a person should know or do.
        delivery_id: the outbox row's id, when there is one.
        event_id: the event id that receivers see, when there is one.
    """

    status: Literal["queued", "duplicate", "skipped", "failed"]
    reason: str | None = None
    message: str | None = None
    delivery_id: str | None = None
    event_id: str | None = None


class PreparedWebhook(Protocol):
    """A webhook that has passed the egress rules and whose bytes are fixed; nothing is written yet."""

    @property
    def refused(self) -> Receipt | None:
        """Why it may not be sent; ``None`` when it may. `write` then writes nothing."""
        ...

    async def write(self, transaction: AsyncConnection) -> NodeResult:
        """Writes the delivery in a transaction; it is due when that commits. `InTransaction` takes this method."""
        ...


class Delivery(ContractStruct, frozen=True, kw_only=True):
    """A webhook delivery that has ended.

    Args:
        id: the outbox row's id.
        agent_id: the agent that it belongs to, if there is one.
        origin: where it came from.
        event_id: the id by which receivers dedupe.
        status: ``delivered`` or ``dead``.
        attempts: how many were made.
        status_code: the last answer, if there was one.
        error: why the last attempt got no answer, or why the delivery ended without one.
    """

    id: str
    organization_id: str
    agent_id: str | None
    origin: Origin
    event_id: str
    event_type: str
    url: str
    status: Literal["delivered", "dead"]
    attempts: int
    status_code: int | None = None
    error: str | None = None


class DeliveryAlert(ContractStruct, frozen=True, kw_only=True):
    """A destination that fails, or works again, or has ended deliveries, or is paused automatically.

    Args:
        organization_id: the tenant whose deliveries it concerns.
        destination: scheme, host and port.
        kind: ``failing``: all attempts have failed for an hour, or twenty in a row; ``recovered``: one has succeeded
            since; ``gone``: deliveries ended because the receiver answered 410, where the operator has set a retry schedule.
            With automatic pauses: ``paused``: it has failed for so long that its deliveries wait now; ``probed``: one of
            them is sent to see whether it works again; ``resumed``: it does.
        failing_since: of ``failing`` and ``paused``, the first failure since the last success, with time zone; else ``None``.
        failures: of ``failing`` and ``paused``, how many in a row; of ``gone``, how many deliveries ended so; else 0.
        last_error: the kind of the last failure, for example ``http_5xx`` or ``timeout``.
        origin: of ``gone``, where these deliveries came from; else ``None``.
    """

    organization_id: str
    destination: str
    kind: Literal["failing", "recovered", "gone", "paused", "probed", "resumed"]
    failing_since: datetime | None = None
    failures: int = 0
    last_error: str | None = None
    origin: Origin | None = None
