"""What a host provides: a base class, and the few things that its methods return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.logic import LogicAction
from flowactions_hookspecs.nodes import Advanced, Node, Walk
from flowactions_hookspecs.origins import LogicActionRef, Origin
from flowactions_hookspecs.request import Request
from flowactions_hookspecs.webhooks import Delivery, DeliveryAlert

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
else:
    # msgspec resolves annotations at run time, and the contract imports neither httpx nor SQLAlchemy.
    AsyncBaseTransport = AsyncConnection = AsyncEngine = Any


class DashboardPrincipal(ContractStruct, frozen=True, kw_only=True):
    """A person signed in to the host's dashboard.

    Args:
        organization_id: the tenant; the person sees nothing of another one.
        user_id: the person.
        user_name: shown to others of the organization.
        may_change: whether the person may change anything; without it, changing answers 403.
    """

    organization_id: str
    user_id: str
    user_name: str
    may_change: bool


class Operator(ContractStruct, frozen=True, kw_only=True):
    """A person who operates the host, and sees what belongs to every organization.

    Args:
        user_id: the person.
        user_name: written into the audit log.
        may_change: whether the person may change anything, or only look.
    """

    user_id: str
    user_name: str
    may_change: bool


class ApiPrincipal(ContractStruct, frozen=True, kw_only=True):
    """A customer backend that calls the API.

    Args:
        agent_ids: the agents that it may address; ``None`` means all of the organization's.
    """

    organization_id: str
    agent_ids: frozenset[str] | None = None


class Agent(ContractStruct, frozen=True, kw_only=True):
    """An agent of an organization."""

    id: str
    name: str
    organization_id: str


class AuthEvent(ContractStruct, frozen=True, kw_only=True):
    """An authentic auth-provider event that was not seen before (§4.4).

    Args:
        provider: the auth provider's name.
        event_id: the provider's id of the event.
        kind: what it is about.
        action: what happened to it, for example ``created``.
        occurred_at: when it was signed, with time zone.
        data: the provider's own fields.
        transaction: when the host shares its engine: an open SQLAlchemy ``AsyncConnection`` in the transaction that
            notes the event as seen. Write through it, and both are there or neither is. On SQLite, whose one writer
            this transaction is, a write on any other connection would wait for it in vain.
    """

    provider: str
    event_id: str
    kind: Literal["organization", "user", "session", "other"]
    action: str
    occurred_at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)
    transaction: AsyncConnection | None = None


class Host(ABC):
    """Subclass it, implement the methods, and give an instance to `FlowActions.load` (§1.7).

    Required are `settings`, `dashboard_principal` and `signing_secret`; each of the others says what is missing
    without it. All methods are async and must be safe to call concurrently. They are asked again each time, so
    answer with what is true now; the plugin caches nothing of it beyond one batch. What they return is checked: a
    wrong type is logged with host and method.

    Public names belong to the contract. Start the names of your own methods with an underscore.
    """

    settings: Mapping[str, str]
    """Required. Setting name → text, usually ``os.environ``. Read once, at load."""

    database: AsyncEngine | None = None
    """The host's SQLAlchemy engine, to share it. ``None``: the plugin opens ``FLOWACTIONS_DATABASE_URL``.

    Read when the lifespan opens.
    """

    transport: AsyncBaseTransport | None = None
    """Replaces the transport of outbound webhooks (an egress proxy, a test). ``None``: the plugin's own.

    Read when the lifespan opens.
    """

    @abstractmethod
    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Required. Returns who sits at the dashboard, from a bearer token or the host's session cookie (§5.1).

        Returns:
            The person; ``None`` for nobody, which answers 401.
        """

    @abstractmethod
    async def signing_secret(self, origin: Origin) -> str | None:
        """Required. Returns the signing secret on the action's config as it is now (§5.3.6); ``None``: unsigned.

        Raises:
            OriginGone: the action no longer exists; the delivery ends ``dead`` with that reason.
        """

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Returns a node as its flow has it now, secret fields included.

        Without it, deferred nodes run without their secret fields; ``webhook`` and ``chat_message`` need none then.
        """

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Returns which customer backend calls, from its access token (§5.1). Without it, its routes answer 401."""

    async def agent(self, agent_id: str) -> Agent | None:
        """Returns an agent, whatever its organization. Without it, there is none."""

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:  # noqa: ARG002
        """Returns the organization's agents whose flows hold a node of this type (§2.2). Without it, there are none."""
        return ()

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """Returns a logic action (§2.8). Without it, or with ``None``, there is no such action, which answers 400.

        Raises:
            QuestionRequired: the trigger is a survey question's and ``ref`` names no question.
        """

    async def auth_event(self, event: AuthEvent) -> None:
        """Handles an authentic, first-seen auth-provider event (§4.4). Raise to have it delivered again.

        Write through ``event.transaction`` when there is one; it may take ten seconds. Without this method the route
        answers 503, and a secret for the events in the settings is an error at load.
        """

    async def delivery_finished(self, delivery: Delivery) -> None:
        """Learns that a webhook was delivered or is dead, for example to alert. Without it, nobody is told.

        Called after the outcome is written, once by the worker that wrote it; a worker that is killed in
        between does not call. What it raises is logged, and it may take five seconds. If the organization is purged while
        the delivery is sent, it is called with ``dead`` and the error ``purged``, whatever was answered.
        """

    async def delivery_alert(self, alert: DeliveryAlert) -> None:
        """Learns that a destination fails, or works again, for example to page somebody. Without it, nobody is told.

        Called once for each, by one of the workers. With a retry schedule, also called when a receiver has ended deliveries
        by a 410: in each worker, once in five seconds for each origin at the most. With automatic pauses, also called when a
        destination is paused, probed and resumed by itself. What it raises is logged, and it may
        take five seconds; a worker that is killed in between does not call.
        """

    async def nodes_recovered(self, walk: Walk, step_id: str | None, advanced: Advanced) -> None:
        """Learns of deferred nodes that ran after the process that had begun to run them was gone.

        The next `FlowActions.advance` of the run knows of a halt all the same. What this raises is logged, and it may
        take five seconds; a worker that is killed in between does not call. Without it, nobody is told.

        Args:
            walk: the run, as it was recorded with the first of the nodes.
            step_id: the content step that they waited for; ``None`` is the end of the flow.
            advanced: the result.
        """

    async def operator(self, request: Request) -> Operator | None:
        """Returns who operates this host. Without it, there is no view across organizations."""


def provides(host: Host, method: str) -> bool:
    """Returns whether a host has a method of its own where the contract has one that does nothing."""
    return method in vars(host) or getattr(type(host), method) is not getattr(Host, method)
