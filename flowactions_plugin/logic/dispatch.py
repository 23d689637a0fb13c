"""Dispatch of a logic action that fired on the server."""

from __future__ import annotations

import logging
from datetime import datetime

import msgspec

from flowactions_hookspecs import (
    Firing,
    FlowActionsError,
    Host,
    LogicAction,
    LogicActionOrigin,
    LogicActionRef,
    QuestionRequired,
    Receipt,
)
from flowactions_plugin.errors import EgressRefused, HostAnswerInvalid, HostFailed, StorageUnavailable, TooLarge
from flowactions_plugin.host_answers import ask
from flowactions_plugin.logic.envelope import EVENT_TYPE, Occasion, entity, envelope, event_payload
from flowactions_plugin.queue.enqueue import Outbox, Webhook
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.outages import answer_to

log = logging.getLogger("flowactions")


class ActionUnusable(FlowActionsError):
    """A logic action cannot be enqueued; the message says what to do.

    Attributes:
        reason: ``question_required``, ``unknown_action``, ``blocked_url``, ``body_too_large`` or
            ``headers_too_large``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Dispatcher:
    """Enqueues the webhooks of logic actions; everything about them comes from the host (§2.7, §2.8).

    Args:
        host: resolves the action.
        outbox: takes the webhook in.
    """

    def __init__(self, host: Host, outbox: Outbox) -> None:
        self._host = host
        self._outbox = outbox

    async def resolve(self, ref: LogicActionRef, occurred_at: datetime, occasion: Occasion) -> NewDelivery:
        """Resolve an action and make its delivery; nothing is written yet.

        Args:
            ref: where the action is.
            occurred_at: when it fired, with time zone.
            occasion: what made it fire.

        Raises:
            ActionUnusable: there is no such action, or it may not be sent.
            HostFailed: the host could not resolve it.
        """
        action = await self._action(ref)
        if action is None:
            raise ActionUnusable("unknown_action", "There is no webhook action at this place.")
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
                async with self._outbox.database.answering():
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
        try:
            found: LogicAction | None = await ask(self._host, "logic_action", LogicAction | None, ref)
        except QuestionRequired as exc:
            raise ActionUnusable("question_required", str(exc)) from None
        except HostAnswerInvalid:
            raise
        except Exception as exc:
            method = f"{type(self._host).__name__}.logic_action"
            log.exception("%s failed", method, extra={"event": "host.method_failed"})
            raise HostFailed(f"{method} failed; the server's log has the details.") from exc
        return found


def _webhook(ref: LogicActionRef, action: LogicAction, occurred_at: datetime, occasion: Occasion) -> Webhook:
    body = envelope(ref, occurred_at)
    return Webhook(
        organization_id=ref.organization_id,
        agent_id=ref.agent_id,
        origin=LogicActionOrigin(ref=ref),
        event_type=EVENT_TYPE,
        entity=entity(ref, occasion),
        url=action.url.strip(),
        method=action.method,
        headers=tuple(action.headers),
        body=msgspec.json.encode(body),
        event_payload=event_payload(body),
    )
