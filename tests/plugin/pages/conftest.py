from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from flowactions_hookspecs import DashboardPrincipal, FlowActions, Operator, Request
from flowactions_plugin.clock import new_id
from flowactions_plugin.storage.schema import outbox
from tests.queueing import Queue
from tests.support import SmallHost, development, services_of, transport_of

ROOT = "/integrations/webhooks"
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


class OperatedHost(SmallHost):
    """A host with an operator, who is nobody at first. It keeps what it was asked with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.person: Operator | None = None
        self.token: str | None = None
        self.asked: list[Request] = []

    def _knows(self, request: Request) -> bool:
        """Tell whether a request has the token, when one is needed."""
        self.asked.append(request)
        return self.token is None or request.headers.get("authorization") == f"Bearer {self.token}"

    async def operator(self, request: Request) -> Operator | None:
        return self.person if self._knows(request) else None

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        return self.principal if self._knows(request) else None


class Site:
    """The pages of a host, a browser for them, and its queue."""

    def __init__(self, host: OperatedHost, actions: FlowActions) -> None:
        self.host = host
        self.actions = actions
        self.queue = Queue(services_of(host)._database)
        self.browser = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")

    def sign_in(self, role: str) -> None:
        """Become somebody: ``nobody``, ``reader``, ``changer``, ``operator reader``, ``operator``, ``other``."""
        self.host.person = self.host.principal = None
        changes = "reader" not in role
        if role.startswith("operator"):
            self.host.person = Operator(user_id="olive", user_name="Olive", may_change=changes)
        elif role != "nobody":
            self.host.principal = DashboardPrincipal(
                organization_id="globex" if role == "other" else "acme",
                user_id="ada",
                user_name="Ada",
                may_change=changes,
            )

    async def get(self, path: str = "", **options: Any) -> httpx.Response:
        return await self.browser.get(ROOT + path, **options)

    async def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> httpx.Response:
        return await self.browser.post(ROOT + path, data=form or {}, headers={**SAME_ORIGIN, **FORM, **headers})

    async def put(self, status: str = "pending", **changes: Any) -> str:
        """Write a row; give its id."""
        state: dict[str, Any] = {"status": status} | ({"attempts": 1} if status != "pending" else {})
        if status in {"dead", "delivered"}:
            state["finished_at"] = outbox.c.updated_at
        if status in {"dead", "retrying"}:
            state["error_class"] = "http_5xx"
        hook = {"id": new_id(time.time()), "url": "http://127.0.0.1:9/hook"}
        return await self.queue.put(**hook, **changes, state=state)

    async def execute(self, statement: str, **parameters: Any) -> list[Any]:
        async with self.queue.database.write() as connection:
            found = await connection.execute(text(statement), parameters)
            return list(found.all()) if found.returns_rows else []

    async def statuses(self) -> dict[str, str]:
        rows = await self.execute("SELECT id, status FROM flowactions_outbox ORDER BY id")
        return {row.id: row.status for row in rows}


FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def site(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """A running host whose own process delivers nothing, on each of the two databases; a parameter holds more settings."""
    monkeypatch.chdir(tmp_path)
    more = getattr(request, "param", {})
    settings = development(database_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_ENCRYPTION_KEYS=KEY, **more)
    async with a_site(settings) as made:
        yield made


@asynccontextmanager
async def a_site(settings: dict[str, str]) -> AsyncIterator[Site]:
    """Run a host with these settings."""
    host = OperatedHost(settings)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        made = Site(host, actions)
        async with made.browser:
            yield made
