"""Webhooks in the outbox: what is enqueued, the receipt, and the result of a delivery."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.origins import Origin


class Header(ContractStruct, frozen=True, kw_only=True):
    """A custom header of a webhook. Its value may be a credential, so the repr omits it."""

    key: str = ""
    value: str = ""

    def __repr__(self) -> str:
        return f"Header(key={self.key!r}, value=…)"


class OutboundWebhook(ContractStruct, frozen=True, kw_only=True):
    """A webhook of the host's or another plugin's own, for `FlowActions.enqueue` and `FlowActions.prepare`.

    Args:
        organization_id: the tenant.
        agent_id: the agent that it belongs to; ``None``: it belongs to no agent.
        event_type: the type that receivers see (§6.1): ``[a-z0-9][a-z0-9_.-]{0,63}``; all of ``experience.*``
            is reserved.
        entity: what the event is about. The event id, by which receivers dedupe, is made of it and of type and
            body.
        url: the destination; the egress rules are applied before anything is written (§5.2).
        method: the name of an HTTP method; GET and HEAD are sent without a body.
        headers: custom headers. They are stored unencrypted until the delivery is deleted, so put no secrets in
            them. Headers with an invalid or reserved name are dropped (§2.6).
        body: the body, sent verbatim.
        origin: by it, the signing secret is found: a `HostOrigin` of the host's, a `PluginOrigin` of the
            plugin's.
        max_attempts: 1 to 10. ``None``: 5, or as many as the operator's retry schedule has.
        idempotency_key: 1 to 200 characters, unique per organization and caller (the host, or the plugin) within the
            dedupe window.
        order_key: 1 to 200 characters, what the order is about, for example a user. Webhooks of the same organization,
            endpoint (scheme, host, port and path) and key are sent one after another, in the order of writing. Each waits
            until the one before was delivered or given up. ``None``: it waits for no other.
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
    order_key: str | None = None

    def __repr__(self) -> str:
        return f"OutboundWebhook(event_type={self.event_type!r}, entity={self.entity!r}, …)"


class Receipt(ContractStruct, frozen=True, kw_only=True):
    """The result of enqueuing a webhook, or of dispatching a logic action.

    Args:
        status: ``queued`` (in the outbox), ``duplicate`` (the same key was used within the dedupe window; the
            ids are those of the first delivery), ``skipped`` (refused URL, too large), ``failed``.
        reason: a stable word for programs; ``None``: no failure.
        message: what a person should know or do.
        delivery_id: the outbox row's id; ``None``: no row was written.
        event_id: the event id that receivers see; ``None``: no row was written.
    """

    status: Literal["queued", "duplicate", "skipped", "failed"]
    reason: str | None = None
    message: str | None = None
    delivery_id: str | None = None
    event_id: str | None = None


class Delivery(ContractStruct, frozen=True, kw_only=True):
    """A webhook delivery that has ended.

    Args:
        id: the outbox row's id.
        agent_id: the agent that it belongs to; ``None``: it belongs to no agent.
        origin: the node, action, host or plugin that enqueued it.
        event_id: the id by which receivers dedupe.
        status: ``delivered`` or ``dead``.
        attempts: number of attempts.
        status_code: HTTP status of the last answer; ``None``: the last attempt got no answer.
        error: why the last attempt got no answer, or why the delivery ended without an answer.
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
        destination: scheme, host and port; of queued chat messages, ``chat://`` and the workspace's id.
        kind: ``failing``: all attempts have failed for an hour, or twenty in a row. ``recovered``: an attempt
            has succeeded since. ``gone``, only with a retry schedule: deliveries ended because the receiver
            answered 410. The others are of automatic pauses. ``paused``: the destination has failed for so long
            that its deliveries wait now. ``probed``: one of them is sent to see whether the destination works
            again. ``resumed``: it works again.
        failing_since: for ``failing`` and ``paused``: the first failure since the last success, with time zone.
        failures: for ``failing`` and ``paused``: failures in a row; for ``gone``: deliveries that ended; else
            0.
        last_error: the kind of the last failure, for example ``http_5xx`` or ``timeout``.
        origin: for ``gone``: the origin of these deliveries. Else the origin of the failures in a row, a `FlowNodeOrigin` for
            example; ``None`` if they have several, and for ``probed``. Tests of drafts are left out.
    """

    organization_id: str
    destination: str
    kind: Literal["failing", "recovered", "gone", "paused", "probed", "resumed"]
    failing_since: datetime | None = None
    failures: int = 0
    last_error: str | None = None
    origin: Origin | None = None
