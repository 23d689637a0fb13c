"""What many tests share: a small host, and a walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import httpx
from litestar import Litestar
from sqlalchemy.ext.asyncio import AsyncEngine

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    AuthEvent,
    DashboardPrincipal,
    Delivery,
    DeliveryAlert,
    FlowActions,
    Host,
    LogicAction,
    LogicActionRef,
    Node,
    Origin,
    Request,
    Walk,
)
from flowactions_hookspecs.core import LOADED
from flowactions_plugin.housekeeper import Entry
from flowactions_plugin.services import Services

if TYPE_CHECKING:
    import pytest

__all__ = [
    "AlertedHost",
    "SmallHost",
    "a_walk",
    "app_with_routes",
    "development",
    "hurry",
    "services_of",
    "transport_of",
]


class SmallHost(Host):
    """A host whose answers a test sets as attributes."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        database: AsyncEngine | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings or {}
        self.database = database
        self.transport = transport
        self.secret: str | None = None
        self.secret_error: Exception | None = None
        self.action: LogicAction | None = None
        self.action_error: Exception | None = None
        self.principal: DashboardPrincipal | None = DashboardPrincipal(
            organization_id="acme", user_id="ada", user_name="Ada", may_change=True
        )
        self.api: ApiPrincipal | None = None
        self.agents = [Agent(id="agent-1", name="A", organization_id="acme")]
        self.auth_events: list[AuthEvent] = []
        self.finished: list[Delivery] = []

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        return self.principal

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        return self.api

    async def agent(self, agent_id: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.id == agent_id), None)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        return [agent for agent in self.agents if agent.organization_id == organization_id]

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        if self.action_error is not None:
            raise self.action_error
        return self.action

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        return None

    async def signing_secret(self, origin: Origin) -> str | None:
        if self.secret_error is not None:
            raise self.secret_error
        return self.secret

    async def delivery_finished(self, delivery: Delivery) -> None:
        self.finished.append(delivery)

    async def auth_event(self, event: AuthEvent) -> None:
        self.auth_events.append(event)


class AlertedHost(SmallHost):
    """A small host that takes note of alerts, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alerts: list[DeliveryAlert] = []

    async def delivery_alert(self, alert: DeliveryAlert) -> None:
        self.alerts.append(alert)


def development(database_url: str, **settings: str) -> dict[str, str]:
    """Give the settings of a development host whose worker ticks often."""
    return {
        "FLOWACTIONS_ENVIRONMENT": "development",
        "FLOWACTIONS_DATABASE_URL": database_url,
        "FLOWACTIONS_TICK_SECONDS": "0.05",
        **settings,
    }


def a_walk(**changes: Any) -> Walk:
    """Make a walk of a new run."""
    values: dict[str, Any] = {
        "organization_id": "acme",
        "agent_id": "agent-1",
        "flow_id": "flow-1",
        "run_id": uuid4().hex,
        "user_id": "user-1",
        "content": "hello",
    }
    return Walk(**{**values, **changes})


def services_of(host: Host) -> Services:
    """Give what the plugin holds for a host, loading it when it was not."""
    loaded = vars(host).get(LOADED)
    return FlowActions.load(host).plugin_state(Services) if loaded is None else loaded.states[Services]


def hurry(monkeypatch: pytest.MonkeyPatch, *names: str, seconds: float = 0.05) -> None:
    """Have the housekeepers of workers do these entries more often."""
    usual = Services.housekeeping

    def hurried(services: Services) -> list[Entry]:
        entries = usual(services)
        assert set(names) <= {each.name for each in entries}
        return [each._replace(seconds=seconds) if each.name in names else each for each in entries]

    monkeypatch.setattr(Services, "housekeeping", hurried)


def app_with_routes(actions: FlowActions) -> Litestar:
    """Give a Litestar app that has the plugins' routes and nothing else."""
    return Litestar(route_handlers=[*actions.route_handlers], openapi_config=None, logging_config=None)


def transport_of(actions: FlowActions) -> httpx.AsyncBaseTransport:
    """Give a client's way to the plugins' routes, around an app that has none itself."""
    return _Routes(actions)


class _Routes(httpx.AsyncBaseTransport):
    """The routes of loaded plugins, built for the first request: building takes longer than most tests, and many ask nothing."""

    _built: ClassVar[WeakKeyDictionary[FlowActions, httpx.ASGITransport]] = WeakKeyDictionary()

    def __init__(self, actions: FlowActions) -> None:
        self._actions = actions

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        built = self._built.get(self._actions)
        if built is None:
            built = self._built[self._actions] = httpx.ASGITransport(
                app=self._actions.wrap(_nothing_here, lifespan=False)
            )
        return await built.handle_async_request(request)


async def _nothing_here(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"the host has no such route"})
