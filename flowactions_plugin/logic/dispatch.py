"""Dispatch of a logic action: what its webhook says, and what makes it this event and no other."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, cast

import msgspec

from flowactions_hookspecs import (
    ExperienceTriggerRef,
    Firing,
    FlowActionsError,
    Host,
    LogicAction,
    LogicActionOrigin,
    LogicActionRef,
    QuestionRequired,
    Receipt,
)
from flowactions_plugin.clock import to_iso
from flowactions_plugin.errors import EgressRefused, HostFailed, StorageUnavailable, TooLarge
from flowactions_plugin.host_answers import ask, failing
from flowactions_plugin.queue.enqueue import Outbox, Webhook
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.outages import answer_to

log = logging.getLogger("flowactions")

EVENT_TYPE: Final = "experience.logic_action.webhook"
ENVELOPE_VERSION: Final = 1
EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Occasion(NamedTuple):
    """What made a logic action fire, told apart from everything else that did.

    Attributes:
        kind: who gave the id: the caller of the endpoint (``key``) or of `FlowActions.dispatch` (``firing``).
        id: the idempotency key or the firing id.
    """

    kind: Literal["key", "firing"]
    id: str


class ActionUnusable(FlowActionsError):
    """A logic action cannot be enqueued; the message says what to do.

    Attributes:
        reason: ``question_required``, ``unknown_action``, ``blocked_url``, ``body_too_large`` or ``headers_too_large``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Dispatcher:
    """Enqueues the webhooks of logic actions; everything about them comes from the host (§2.7, §2.8)."""

    def __init__(self, host: Host, outbox: Outbox) -> None:
        self._host = host
        self._outbox = outbox

    async def resolve(self, ref: LogicActionRef, occurred_at: datetime, occasion: Occasion) -> NewDelivery:
        """Resolve an action that has fired, and make its delivery; nothing is written yet.

        Raises:
            ActionUnusable: there is no such action, or it may not be sent.
            HostFailed: the host could not resolve it.
        """
        action = await self._action(ref)
        if action is None:
            raise ActionUnusable("unknown_action", "The reference names no webhook action.")
        try:
            delivery = await self._outbox.new_delivery(_webhook(ref, action, occurred_at, occasion))
        except EgressRefused as exc:
            raise ActionUnusable("blocked_url", str(exc)) from None
        except TooLarge as exc:
            raise ActionUnusable(exc.reason, str(exc)) from None
        key = occasion.id if occasion.kind == "key" else None
        return msgspec.structs.replace(delivery, idempotency_key=key)

    async def dispatch(self, firing: Firing, transaction: Transaction | None = None) -> Receipt:
        """Enqueue the action's webhook, within the host's transaction when one is given."""
        try:
            with self._outbox.database.using(transaction):
                occasion = Occasion("firing", firing.firing_id)
                delivery = await self.resolve(firing.ref, firing.occurred_at, occasion)
                await self._outbox.write(delivery, transaction)
        except ActionUnusable as exc:
            return Receipt(status="skipped", reason=exc.reason, message=str(exc))
        except HostFailed as exc:
            return Receipt(status="failed", reason="host_error", message=str(exc))
        except StorageUnavailable as exc:
            self._outbox.count_refusal(exc)
            log.error("a logic action was not queued: %s", exc, extra={"event": "logic_action.not_queued"})  # noqa: TRY400
            return Receipt(status="failed", reason="storage_unavailable", message=answer_to(exc))
        return Receipt(status="queued", delivery_id=delivery.id, event_id=delivery.event_id)

    async def _action(self, ref: LogicActionRef) -> LogicAction | None:
        """Ask the host for an action."""
        try:
            with failing(self._host, "logic_action", QuestionRequired):
                return cast(
                    "LogicAction | None", await ask(self._host, "logic_action", LogicAction | None, ref)
                )
        except QuestionRequired as exc:
            raise ActionUnusable("question_required", str(exc)) from None


def _webhook(ref: LogicActionRef, action: LogicAction, occurred_at: datetime, occasion: Occasion) -> Webhook:
    """Make the webhook of an action."""
    return Webhook(
        organization_id=ref.organization_id,
        agent_id=ref.agent_id,
        origin=LogicActionOrigin(ref=ref),
        event_type=EVENT_TYPE,
        entity=_entity(ref, occasion),
        url=action.url.strip(),
        method=action.method,
        headers=tuple(action.headers),
        body=_envelope(ref, to_iso((occurred_at - EPOCH) // timedelta(milliseconds=1))),
        # A call that is repeated with its key gets the time of its repetition, and is the same event.
        event_payload=_envelope(ref, ""),
    )


def _envelope(ref: LogicActionRef, occurred_at: str) -> bytes:
    """Make the body of a logic action's webhook (§2.7). The time is ISO 8601, UTC."""
    data = {
        "entityId": ref.trigger_row_id if isinstance(ref, ExperienceTriggerRef) else ref.node_id,
        "occurredAt": occurred_at,
        "agentId": ref.agent_id,
        "experienceId": ref.experience_id,
        "source": ref.__struct_config__.tag,
        "actionIndex": ref.action_index,
    }
    return msgspec.json.encode({"type": EVENT_TYPE, "version": ENVELOPE_VERSION, "data": data})


def _entity(ref: LogicActionRef, occasion: Occasion) -> str:
    """Name what the event is about: the action, its organization first, and what made it fire (§2.5).

    A JSON array keeps the parts apart, whatever is in them.
    """
    where: tuple[str | None, ...] = (
        (ref.trigger_row_id,)
        if isinstance(ref, ExperienceTriggerRef)
        else (ref.node_id, ref.node_trigger_group_id, ref.question_id)
    )
    source = ref.__struct_config__.tag
    parts = (ref.organization_id, ref.agent_id, ref.experience_id, source, *where, ref.action_index, *occasion)
    return msgspec.json.encode(parts).decode()
