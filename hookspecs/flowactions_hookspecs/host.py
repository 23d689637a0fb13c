"""What a host provides: an abstract base class, and the few things that its methods return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from litestar.connection import ASGIConnection
from msgspec import field

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.logic import Delivery, LogicAction, LogicActionRef, Origin
from flowactions_hookspecs.nodes import Advanced, Walk

if TYPE_CHECKING:
    import httpx
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
else:
    # msgspec resolves annotations at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = Any

State = TypeVar("State")


class DashboardPrincipal(ContractStruct, frozen=True):
    """A person signed in to the host's dashboard."""

    organization_id: str
    user_id: str
    user_name: str


class ApiPrincipal(ContractStruct, frozen=True):
    """A customer backend that calls the API.

    Args:
        agent_ids: the agents that it may address; ``None`` means all of the organization's.
    """

    organization_id: str
    agent_ids: frozenset[str] | None = None


class Agent(ContractStruct, frozen=True):
    """An agent of an organization."""

    id: str
    name: str
    organization_id: str


class AuthEvent(ContractStruct, frozen=True):
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
    """Subclass it, implement the methods, and hand an instance to `FlowActions.load` (§1.7).

    All methods are async and must be safe to call concurrently. They are asked again each time, so
    answer with what is true now; the plugin caches nothing of it beyond one batch.
    """

    settings: Mapping[str, str]
    """Setting name → text, usually ``os.environ``. Read once, at load."""

    database: AsyncEngine | None = None
    """The host's SQLAlchemy engine, to share it. ``None``: the plugin opens ``FLOWACTIONS_DATABASE_URL``."""

    transport: httpx.AsyncBaseTransport | None = None
    """Replaces the transport of outbound webhooks (an egress proxy, a test). ``None``: the plugin's own."""

    @abstractmethod
    async def dashboard_principal(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> DashboardPrincipal | None:
        """Tell who sits at the dashboard, from a bearer token or the host's session cookie; ``None``: nobody (§5.1)."""

    @abstractmethod
    async def api_principal(self, connection: ASGIConnection[Any, Any, Any, Any]) -> ApiPrincipal | None:
        """Tell which customer backend calls, from its access token; ``None``: nobody (§5.1)."""

    @abstractmethod
    async def agent(self, agent_id: str) -> Agent | None:
        """Look an agent up, whatever its organization; ``None``: there is none."""

    @abstractmethod
    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """List the organization's agents whose flows hold a node of this type (§2.2)."""

    @abstractmethod
    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """Resolve a logic action (§2.8); ``None``: the path resolves to no webhook action.

        Raises:
            QuestionRequired: the trigger is a survey question's and ``ref`` names no question.
        """

    @abstractmethod
    async def signing_secret(self, origin: Origin) -> str | None:
        """Give the signing secret on the action's config as it is now (§5.3.6); ``None``: unsigned.

        Raises:
            OriginGone: the action no longer exists; the delivery ends ``dead`` with that reason.
        """

    @abstractmethod
    async def auth_event(self, event: AuthEvent) -> None:
        """Handle an authentic, first-seen auth-provider event (§4.4). Raise to have it delivered again.

        Write through ``event.transaction`` when there is one; it may take ten seconds.
        """

    async def delivery_finished(self, delivery: Delivery) -> None:  # noqa: B027  hosts need not care
        """Learn that a webhook was delivered or is dead, for example to alert. Does nothing by default.

        Called after the outcome is written, once by the worker that wrote it; a worker that is killed in
        between does not call. What it raises is logged, and it may take five seconds.
        """

    async def nodes_recovered(self, walk: Walk, step_id: str | None, advanced: Advanced) -> None:  # noqa: B027  as above
        """Learn of deferred nodes that ran after the process that had begun to run them was gone. Does nothing by default.

        The next `FlowActions.advance` of the run knows of a halt all the same. What this raises is logged, and it may
        take five seconds; a worker that is killed in between does not call.

        Args:
            walk: the run, as it was recorded with the first of the nodes.
            step_id: the content step that they waited for; ``None`` is the end of the flow.
            advanced: what came of it.
        """

    def plugin_state(self, factory: Callable[[Host], State]) -> State:
        """Give the one object that ``factory`` made for this host, making it at the first call.

        A plugin keeps what belongs to a host here rather than at module level, so two hosts in one
        process do not see each other.
        """
        states = cast("dict[object, object]", self.__dict__.setdefault("_plugin_states", {}))
        if factory not in states:
            states[factory] = factory(self)
        return cast("State", states[factory])
