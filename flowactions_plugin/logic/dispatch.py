"""Dispatch of a logic action that fired on the server (§2.7, §2.8)."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from flowactions_hookspecs import (
    ExperienceTriggerRef,
    FlowActionsError,
    Host,
    LogicAction,
    LogicActionOrigin,
    LogicActionRef,
    QuestionRequired,
    Receipt,
    Walk,
)
from flowactions_plugin.clock import Clock, to_iso
from flowactions_plugin.errors import EgressRefused, StorageUnavailable
from flowactions_plugin.outbox.delivery import NewDelivery
from flowactions_plugin.outbox.queue import Outbox, Webhook

log = logging.getLogger("flowactions")

EVENT_TYPE: Final = "experience.logic_action.webhook"
ENVELOPE_VERSION: Final = 1


class EnvelopeData(msgspec.Struct, frozen=True, rename="camel"):
    """What happened, and where.

    Args:
        entity_id: the trigger row, or the node of a node trigger.
        occurred_at: ISO 8601, UTC.
        source: ``experience_trigger`` or ``node_trigger``.
    """

    entity_id: str
    occurred_at: str
    agent_id: str
    experience_id: str
    source: str
    action_index: int


class Envelope(msgspec.Struct, frozen=True):
    """The body of a logic action's webhook (§2.7)."""

    type: str
    version: int
    data: EnvelopeData


class ActionUnusable(FlowActionsError):
    """A logic action cannot be enqueued; the message says what to do.

    Attributes:
        reason: ``question_required``, ``unknown_action`` or ``blocked_url``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Dispatcher:
    """Enqueues the webhooks of logic actions; everything about them comes from the host.

    Args:
        host: resolves the action.
        outbox: takes the webhook in.
        clock: Unix seconds, for the envelope.
    """

    def __init__(self, host: Host, outbox: Outbox, clock: Clock) -> None:
        self._host = host
        self._outbox = outbox
        self._clock = clock

    async def prepare(self, ref: LogicActionRef, idempotency_key: str | None = None) -> NewDelivery:
        """Resolve an action and make its delivery; nothing is written yet.

        Args:
            ref: where the action is.
            idempotency_key: what the caller knows the call by, if it is one.

        Raises:
            ActionUnusable: there is no such action, or it may not be sent.
        """
        try:
            action = await self._host.logic_action(ref)
        except QuestionRequired as exc:
            raise ActionUnusable("question_required", str(exc)) from None
        if action is None:
            raise ActionUnusable("unknown_action", "There is no webhook action at this place.")
        try:
            delivery = await self._outbox.prepare(_webhook(ref, action, self._clock()))
        except EgressRefused as exc:
            raise ActionUnusable("blocked_url", str(exc)) from None
        return msgspec.structs.replace(delivery, idempotency_key=idempotency_key)

    async def dispatch(self, walk: Walk, ref: LogicActionRef) -> Receipt:
        """Enqueue the action's webhook, within the host's transaction when the walk has one."""
        self._outbox.check_transaction(walk.connection)
        try:
            delivery = await self.prepare(ref)
            await self._outbox.write(delivery, walk.connection)
        except ActionUnusable as exc:
            return Receipt(status="skipped", reason=exc.reason, message=str(exc))
        except StorageUnavailable as exc:
            log.error("a logic action was not queued: %s", exc)  # noqa: TRY400
            message = "The database did not answer, so nothing was queued."
            return Receipt(status="failed", reason="storage_unavailable", message=message)
        return Receipt(status="queued", delivery_id=delivery.id, event_id=delivery.event_id)


def _webhook(ref: LogicActionRef, action: LogicAction, now: float) -> Webhook:
    if isinstance(ref, ExperienceTriggerRef):
        source, entity_id = "experience_trigger", ref.trigger_row_id
    else:
        source, entity_id = "node_trigger", ref.node_id
    envelope = Envelope(
        type=EVENT_TYPE,
        version=ENVELOPE_VERSION,
        data=EnvelopeData(
            entity_id=entity_id,
            occurred_at=to_iso(int(now * 1000)),
            agent_id=ref.agent_id,
            experience_id=ref.experience_id,
            source=source,
            action_index=ref.action_index,
        ),
    )
    return Webhook(
        organization_id=ref.organization_id,
        agent_id=ref.agent_id,
        origin=LogicActionOrigin(ref=ref),
        event_type=EVENT_TYPE,
        entity=msgspec.json.encode(ref, order="sorted").decode(),
        url=action.url.strip(),
        method=action.method,
        headers=tuple(action.headers),
        body=msgspec.json.encode(envelope),
    )
