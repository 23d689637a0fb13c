"""Logic actions: enqueue their webhooks, for the endpoint once per key and at a bounded rate, and for `FlowActions.dispatch`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from flowactions_hookspecs import (
    ExperienceTriggerRef,
    Firing,
    FlowActionsError,
    Host,
    LogicAction,
    LogicActionOrigin,
    LogicActionRef,
    OutboundWebhook,
    QuestionRequired,
    Receipt,
)
from flowactions_plugin.clock import to_iso
from flowactions_plugin.errors import EgressRefused, HostFailed, StorageUnavailable, TooLarge
from flowactions_plugin.host_answers import ask, failing
from flowactions_plugin.logic.store import CallStore
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Connection, Transaction
from flowactions_plugin.storage.outages import answer_to

log = logging.getLogger("flowactions")

EVENT_TYPE: Final = "experience.logic_action.webhook"

Occasion: TypeAlias = tuple[Literal["key", "firing"], str]
"""What made an action fire, and no other did: a caller's idempotency key, or the id of a `Firing`."""


class ActionUnusable(FlowActionsError):
    """A logic action cannot be enqueued; the message says what to do.

    Attributes:
        reason: ``question_required``, ``unknown_action``, ``blocked_url``, ``body_too_large`` or ``headers_too_large``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RateExceeded(FlowActionsError):
    """The agent has made as many calls as a minute admits.

    Attributes:
        wait_ms: when the next call will be admitted.
    """

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"the next call is admitted in {wait_ms} ms")
        self.wait_ms = wait_ms


class LogicActions:
    """Enqueues the webhooks of logic actions; everything about them comes from the host (§2.7, §2.8)."""

    def __init__(self, host: Host, outbox: Outbox, calls: CallStore) -> None:
        self._host = host
        self._outbox = outbox
        self._calls = calls

    async def call(self, ref: LogicActionRef, key: str) -> NewDelivery | None:
        """Enqueue the action that ``ref`` points at, unless the key was used within the window (§4.2).

        Of any number of simultaneous calls with one key, one enqueues. Only that one counts towards the
        agent's rate.

        Args:
            ref: where the action is; tenancy was checked.
            key: the caller's idempotency key, unique within the agent.

        Returns:
            What was enqueued; ``None`` for a duplicate.

        Raises:
            RateExceeded: sixty calls were admitted within the last minute.
            ActionUnusable: there is no such action, or it may not be sent.
            HostFailed: the host could not resolve it.
            StorageUnavailable: the database failed; nothing was written.
        """
        database = self._outbox.database
        use = KeyUse(self._outbox.keys, ref.organization_id, f"api:{ref.agent_id}", key)

        def count(connection: Connection) -> None:
            wait_ms = self._calls.count(connection, ref.organization_id, ref.agent_id)
            if wait_ms:
                raise RateExceeded(wait_ms)

        try:
            # Looked at first, so that a repeated or throttled call costs the host nothing.
            async with database.answering():
                wait_ms = await self._calls.look_up(use, ref.agent_id)
            if wait_ms is None:
                return None
            if wait_ms:
                raise RateExceeded(wait_ms)
            delivery = await self._resolve(ref, int(database.clock() * 1000), ("key", key))
            first = await self._outbox.write(delivery, key=use, rate=count)
        except StorageUnavailable as exc:
            self._outbox.count_refusal(exc)
            raise
        return delivery if first is None else None

    async def dispatch(self, firing: Firing, transaction: Transaction | None = None) -> Receipt:
        """Enqueue the action's webhook, within the host's transaction when one is given."""
        try:
            with self._outbox.database.transactions.using(transaction):
                at = (firing.occurred_at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
                delivery = await self._resolve(firing.ref, at, ("firing", firing.firing_id))
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

    async def _resolve(self, ref: LogicActionRef, at: int, occasion: Occasion) -> NewDelivery:
        """Ask the host for an action that has fired, and make its delivery; nothing is written yet."""
        try:
            with failing(self._host, "logic_action", QuestionRequired):
                action: LogicAction | None = await ask(self._host, "logic_action", ref)
            if action is None:
                raise ActionUnusable("unknown_action", "The reference names no webhook action.")
            webhook = OutboundWebhook(
                organization_id=ref.organization_id,
                agent_id=ref.agent_id,
                origin=LogicActionOrigin(ref=ref),
                event_type=EVENT_TYPE,
                entity=_entity(ref, occasion),
                url=action.url.strip(),
                method=action.method,
                headers=action.headers,
                body=_envelope(ref, to_iso(at)),
                idempotency_key=occasion[1] if occasion[0] == "key" else None,
                order_key=action.order_key,
            )
            # A call that is repeated with its key gets the time of its repetition, and is the same event.
            return await self._outbox.new_delivery(webhook, _envelope(ref, ""))
        except QuestionRequired as exc:
            raise ActionUnusable("question_required", str(exc)) from None
        except EgressRefused as exc:
            raise ActionUnusable("blocked_url", str(exc)) from None
        except TooLarge as exc:
            raise ActionUnusable(exc.reason, str(exc)) from None


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
    return msgspec.json.encode({"type": EVENT_TYPE, "version": 1, "data": data})


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
