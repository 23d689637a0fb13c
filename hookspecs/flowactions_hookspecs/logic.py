"""Logic actions: what points at one, what it says, and what came of dispatching it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flowactions_hookspecs.base import ContractStruct

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
else:
    # msgspec resolves annotations at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = Any


class ExperienceTriggerRef(ContractStruct, frozen=True, tag_field="source", tag="experience_trigger"):
    """Points at ``settings.triggers[triggerRowId].actions[actionIndex]`` of an experience (§2.8)."""

    organization_id: str
    agent_id: str
    experience_id: str
    trigger_row_id: str
    action_index: int


class NodeTriggerRef(ContractStruct, frozen=True, tag_field="source", tag="node_trigger"):
    """Points at an action in a flow node's trigger group (§2.8).

    Args:
        question_id: additionally names the question of a survey-question trigger (§4.2).
    """

    organization_id: str
    agent_id: str
    experience_id: str
    node_id: str
    node_trigger_group_id: str
    action_index: int
    question_id: str | None = None


LogicActionRef: TypeAlias = ExperienceTriggerRef | NodeTriggerRef


class Firing(ContractStruct, frozen=True):
    """A logic action fired on the server.

    Args:
        ref: the action.
        firing_id: names this firing among all of the action's: the same when it is dispatched again.
        occurred_at: when it fired, with time zone; the envelope says so (§2.7).
    """

    ref: LogicActionRef
    firing_id: str
    occurred_at: datetime


class FlowNodeOrigin(ContractStruct, frozen=True, tag_field="kind", tag="flow_node"):
    """A delivery came from a webhook node of a flow."""

    organization_id: str
    agent_id: str
    flow_id: str
    node_id: str


class LogicActionOrigin(ContractStruct, frozen=True, tag_field="kind", tag="logic_action"):
    """A delivery came from a logic action."""

    ref: LogicActionRef


Origin: TypeAlias = FlowNodeOrigin | LogicActionOrigin
"""Where a delivery came from: the host finds the signing secret by it (§5.3.6)."""


class Delivery(ContractStruct, frozen=True):
    """A webhook delivery that has ended.

    Args:
        id: the outbox row's id.
        origin: where it came from.
        event_id: the id by which receivers dedupe.
        status: ``delivered`` or ``dead``.
        attempts: how many were made.
        status_code: the last answer, if there was one.
        error: why the last attempt got no answer, or why the delivery ended without one.
    """

    id: str
    organization_id: str
    agent_id: str
    origin: Origin
    event_id: str
    event_type: str
    url: str
    status: Literal["delivered", "dead"]
    attempts: int
    status_code: int | None = None
    error: str | None = None


class Header(ContractStruct, frozen=True):
    """A custom header of a webhook. Its value may be a credential, so it is left out of the repr."""

    key: str = ""
    value: str = ""

    def __repr__(self) -> str:
        return f"Header(key={self.key!r}, value=…)"


class LogicAction(ContractStruct, frozen=True):
    """A webhook action as the host has it configured (§2.8). Only the destination shows in the repr."""

    url: str
    method: str = "POST"
    headers: Sequence[Header] = ()
    secret: str | None = None

    def __repr__(self) -> str:
        return f"LogicAction(url={self.url!r}, method={self.method!r}, …)"


class Receipt(ContractStruct, frozen=True):
    """What came of dispatching a logic action.

    Args:
        status: ``queued`` (in the outbox), ``duplicate`` (the same key was used within the dedupe
            window), ``skipped`` (the action may not be sent), ``failed``.
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


class LogicActionType(ContractStruct, frozen=True):
    """A kind of logic action.

    Args:
        name: unique in a host, for example ``webhook``.
        dispatch: async callable that enqueues or runs an action that fired, within the host's transaction when it is
            given one.
    """

    name: str
    dispatch: Callable[[Firing, AsyncConnection | None], Awaitable[Receipt]]
