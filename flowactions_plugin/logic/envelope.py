"""What a logic action's webhook says, and what makes it this event and no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from flowactions_hookspecs import ExperienceTriggerRef, LogicActionRef
from flowactions_plugin.clock import to_iso

EVENT_TYPE: Final = "experience.logic_action.webhook"
ENVELOPE_VERSION: Final = 1
EPOCH: Final = datetime.fromtimestamp(0, UTC)


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


class Occasion(NamedTuple):
    """What made a logic action fire, told apart from everything else that did.

    Attributes:
        kind: who gave the id: the caller of the endpoint (``key``) or of `FlowActions.dispatch` (``firing``).
        id: the idempotency key or the firing id.
    """

    kind: Literal["key", "firing"]
    id: str


def envelope(ref: LogicActionRef, occurred_at: datetime) -> Envelope:
    """Make the envelope.

    Args:
        ref: where the action is.
        occurred_at: when it fired, with time zone.
    """
    if isinstance(ref, ExperienceTriggerRef):
        source, entity_id = "experience_trigger", ref.trigger_row_id
    else:
        source, entity_id = "node_trigger", ref.node_id
    return Envelope(
        type=EVENT_TYPE,
        version=ENVELOPE_VERSION,
        data=EnvelopeData(
            entity_id=entity_id,
            occurred_at=to_iso((occurred_at - EPOCH) // timedelta(milliseconds=1)),
            agent_id=ref.agent_id,
            experience_id=ref.experience_id,
            source=source,
            action_index=ref.action_index,
        ),
    )


def event_payload(of: Envelope) -> bytes:
    """Give what of the envelope makes the event id: all but the time.

    A call that is repeated with its key gets the time of its repetition, and is the same event.
    """
    return msgspec.json.encode(replace(of, data=replace(of.data, occurred_at="")))


def entity(ref: LogicActionRef, occasion: Occasion) -> str:
    """Name what the event is about: the action, its organization first, and what made it fire (§2.5).

    A JSON array keeps the parts apart, whatever is in them.
    """
    where: tuple[str | None, ...]
    if isinstance(ref, ExperienceTriggerRef):
        where = ("experience_trigger", ref.trigger_row_id)
    else:
        where = ("node_trigger", ref.node_id, ref.node_trigger_group_id, ref.question_id)
    parts = (ref.organization_id, ref.agent_id, ref.experience_id, *where, ref.action_index, *occasion)
    return msgspec.json.encode(parts).decode()
