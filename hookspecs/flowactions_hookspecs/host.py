"""What a host provides: the base class `Host`, and the structs that its methods return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import field

from flowactions_hookspecs.base import AsyncConnection, AsyncEngine, ContractStruct
from flowactions_hookspecs.errors import OriginUnknown
from flowactions_hookspecs.logic import LogicAction
from flowactions_hookspecs.nodes import Advanced, Node, Walk
from flowactions_hookspecs.origins import FlowNodeOrigin, LogicActionOrigin, LogicActionRef, Origin
from flowactions_hookspecs.request import Request
from flowactions_hookspecs.webhooks import Delivery, DeliveryAlert

if TYPE_CHECKING:

    class AsyncBaseTransport(Protocol):
        """What the classes of this name of httpx and of httpx2 have in common."""

        async def handle_async_request(self, request: Any) -> Any:
            """Send a request of the library; return its response."""

        async def aclose(self) -> None:
            """Close all connections."""

else:
    AsyncBaseTransport = Any  # annotations are resolved at run time


class DashboardPrincipal(ContractStruct, frozen=True, kw_only=True):
    """A person signed in to the host's dashboard.

    Args:
        organization_id: the tenant; the person sees no data of other tenants.
        user_id: the person's id.
        user_name: the person's name, shown to others of the organization.
        may_change: whether the person may change anything; if not, routes that change something answer 403.
    """

    organization_id: str
    user_id: str
    user_name: str
    may_change: bool


class Operator(ContractStruct, frozen=True, kw_only=True):
    """A person who operates the host, and sees the data of every organization.

    Args:
        user_id: the person's id.
        user_name: the person's name, written into the audit log.
        may_change: whether the person may change anything, or only look.
    """

    user_id: str
    user_name: str
    may_change: bool


class ApiPrincipal(ContractStruct, frozen=True, kw_only=True):
    """A customer backend that calls the API.

    Args:
        agent_ids: the agents that it may address; without any, it may address none.
        all_agents: whether it may address all agents of the organization; then ``agent_ids`` is not read.
    """

    organization_id: str
    agent_ids: frozenset[str] = frozenset()
    all_agents: bool = False


class Agent(ContractStruct, frozen=True, kw_only=True):
    """An agent of an organization."""

    id: str
    name: str
    organization_id: str


class AuthEvent(ContractStruct, frozen=True, kw_only=True):
    """A verified event of the auth provider that was not processed before (§4.4).

    Args:
        provider: the auth provider's name.
        event_id: the provider's id of the event.
        kind: the kind of object that the event is about.
        action: what happened to the object, for example ``created``.
        occurred_at: when the event was signed, with time zone.
        data: the provider's own fields.
        transaction: an open SQLAlchemy ``AsyncConnection`` in the transaction that records the event as
            processed; ``None`` if the host does not share its engine. What you write through it is committed
            together with that record. On SQLite, use no other connection to write: only one can write at a
            time, so the other one would wait until it fails.
    """

    provider: str
    event_id: str
    kind: Literal["organization", "user", "session", "other"]
    action: str
    occurred_at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)
    transaction: AsyncConnection | None = None


class Host(ABC):
    """Base class of a host: subclass it, implement the methods, and give an instance to `FlowActions.load`.

    `settings`, `dashboard_principal` and `node` are required. The docstring of each other method says what is
    missing without it. All methods are async and must be safe to call concurrently. They are called again each time, so
    return what is true now; the plugin caches nothing beyond one batch. The plugin checks what they return: a wrong type
    is logged with host and method.

    Public names belong to the contract. Start the names of your own methods with an underscore.
    """

    settings: Mapping[str, str]
    """Required. Setting name → text, usually ``os.environ``. Read once, at load."""

    database: AsyncEngine | None = None
    """The host's SQLAlchemy engine, if the plugin shall use it. ``None``: the plugin opens ``FLOWACTIONS_DATABASE_URL``.

    Read when the lifespan opens.
    """

    transport: AsyncBaseTransport | None = None
    """Replaces the transport of outbound webhooks (an egress proxy, a test). ``None``: the plugin's own.

    An ``AsyncBaseTransport`` of httpx, or of its successor httpx2. Read when the lifespan opens.
    """

    @abstractmethod
    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Required. Return the person of a request, from a bearer token or the host's session cookie (§5.1).

        Returns:
            The person; ``None``: nobody is signed in, so the answer is a 401.
        """

    @abstractmethod
    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Required. Return a node as its flow has it now, secret fields included; ``None``: the organization has no such node.

        Its ``webhookSecret`` signs the node's webhooks, and its URL decides whether a test is signed. After ``None``, a
        delivery of the node waits, without an attempt. It is ``dead`` when four questions, a minute apart, had that answer.
        """

    async def signing_secret(self, origin: Origin) -> str | None:
        """Return the signing secret that the action's config has now (§5.3.6); ``None``: send unsigned.

        By default: the ``webhookSecret`` of the webhook that `node` returns, or the secret of the action that
        `logic_action` returns. Override it if you keep secrets elsewhere, or to send webhooks of your own (`HostOrigin`).

        Raises:
            OriginGone: the action no longer exists; the delivery ends ``dead`` at once, with that reason. If the default
                raises it, the delivery waits and asks again, as `node` says.
        """
        if isinstance(origin, LogicActionOrigin):
            action = await self.logic_action(origin.ref)
            if action is not None:
                return action.secret
        elif isinstance(origin, FlowNodeOrigin):
            node = await self.node(origin.organization_id, origin.flow_id, origin.node_id)
            if node is not None and node.type == "webhook":
                # A node reads a secret that is not text as none, and says so to its author.
                secret = node.config.get("webhookSecret")
                return secret if isinstance(secret, str) else None
        raise OriginUnknown

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Return the customer backend of a request, by its access token (§5.1). Without it, routes for backends answer 401."""

    async def agent(self, agent_id: str) -> Agent | None:
        """Return an agent of any organization. Without it, no agent exists for the plugin."""

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:  # noqa: ARG002
        """Return the organization's agents whose flows have a node of this type (§2.2), each once. Without it, none are shown."""
        return ()

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """Return a logic action (§2.8). ``None``, or a host without this method: the action does not exist; the answer is a 400.

        After ``None``, deliveries of the action wait and end as those of a node.

        Raises:
            QuestionRequired: the trigger is a survey question's and ``ref`` names no question.
        """

    async def auth_event(self, event: AuthEvent) -> None:
        """Handle a verified event of the auth provider that was not processed before (§4.4).

        If this raises, the provider sends the event again. If ``event.transaction`` is not ``None``, write through it. It
        may take ten seconds. Without this method, the route answers 503, and a secret for the events in the settings
        is an error at load.
        """

    async def delivery_finished(self, delivery: Delivery) -> None:
        """Handle the end of a delivery: a webhook, or a queued chat message, was delivered or is dead. Without it, the host does not learn this.

        The worker that wrote the outcome calls it once, after the write. If the worker is killed in between, it does not
        call. What this raises is logged, and it may take five seconds. If the organization is purged while the delivery
        is sent, it is called with ``dead`` and the error ``purged``, with any answer of the receiver.
        """

    async def delivery_alert(self, alert: DeliveryAlert) -> None:
        """Handle an alert: a destination fails, or works again. Without it, the host does not learn this.

        One of the workers calls it once for each alert. With a retry schedule, it is also called when a receiver has
        ended deliveries by a 410: in each worker, at most once in five seconds for each origin. With automatic pauses, it
        is also called when a destination is paused, probed and resumed automatically. What this raises is logged, and it
        may take five seconds. If the worker is killed before the call, it does not call.
        """

    async def nodes_recovered(self, walk: Walk, step_id: str | None, advanced: Advanced) -> None:
        """Handle the results of deferred nodes that another process ran after their own process had died.

        The next `FlowActions.advance` of the run also reports a halt of these nodes. What this raises is logged, and it
        may take five seconds. If the worker is killed before the call, it does not call. Without it, the host does
        not learn these results.

        Args:
            walk: the run, as it was recorded with the first of the nodes.
            step_id: the content step that they waited for; ``None`` is the end of the flow.
            advanced: the result.
        """

    async def operator(self, request: Request) -> Operator | None:
        """Return the operator of a request. Without it, nobody can see more than one organization."""


def provides(host: Host, method: str) -> bool:
    """Return whether a host overrides an optional method of the contract."""
    return method in vars(host) or getattr(type(host), method) is not getattr(Host, method)
