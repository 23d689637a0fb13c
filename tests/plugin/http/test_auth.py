"""What every route asks before it does anything: a running lifespan, a caller, a page of its own, and strict input."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from flowactions_hookspecs import (
    DashboardPrincipal,
    FlowActions,
    NotStarted,
)
from tests.chatting import ChatHost
from tests.routes import (
    HEALTH,
    JSON,
    LOGIC,
    REPLAY,
    ROUTES,
    STRANGE_JSON,
    STRANGE_REQUESTS,
    routes_of,
)
from tests.support import SmallHost, app_with_routes, transport_of


class TestOrder:
    def test_every_route_declares_its_caller(self) -> None:
        """Only the OAuth callback and the health of the process are public, and what changes something is marked."""
        assert len(ROUTES) >= 16
        public = ["/integrations/chat/callback", *HEALTH]
        assert [each.path for each in ROUTES if each.rules.caller is None] == public
        changing = [each for each in routes_of("dashboard", "api") if each.method != "GET"]
        assert len(changing) == 12, changing
        assert all(each.rules.changes for each in changing)
        reading = [each.path for each in ROUTES if each.rules.reads]
        assert reading == ["/integrations/nodes/check", "/integrations/nodes/preview"]

    def test_two_endpoints_take_signed_events(self) -> None:
        """One for the chat provider, one for the auth provider, and no other route takes events from outside (§4.4)."""
        signed = {
            each.path: each.method for each in ROUTES if each.rules.caller not in {"dashboard", "api", None}
        }
        assert signed == {"/integrations/chat/events": "POST", "/webhooks/auth": "POST"}

    async def test_an_unauthenticated_request_is_a_401_whatever_it_sends(self, run: ChatHost) -> None:
        """On every route, before 400, 403, 413 and 415 (§4, §5.1)."""
        run.host.principal = run.host.api = None
        for route, how in product(routes_of("dashboard", "api"), STRANGE_REQUESTS):
            answer = await run.browser.request(route.method, route.path, **how)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (route, how)
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["www-authenticate"].startswith("Bearer")

    async def test_who_may_only_look_is_a_403_where_something_changes(self, run: ChatHost) -> None:
        """On every route of the dashboard that changes something, whatever is sent; what reads is not refused."""
        assert run.host.principal is not None
        run.host.principal = msgspec.structs.replace(run.host.principal, may_change=False)
        for route in routes_of("dashboard"):
            changes = route.rules.changes and not route.rules.reads
            for how in STRANGE_REQUESTS if changes else [{}]:
                answer = await run.browser.request(route.method, route.path, **how)
                assert (answer.status_code == 403) is changes, (route, how, answer.text)

    async def test_an_unsigned_event_is_a_401_whatever_the_bytes(self, run: ChatHost) -> None:
        """Up to the size limit; a larger body is a 413."""
        signed = {"svix-id": "m", "svix-timestamp": "1", "svix-signature": "v1,x"}
        bodies = [b"", *STRANGE_JSON, b"\x00" * 1_000_000]
        for route, body in product(routes_of("chatSignature", "authSignature"), bodies):
            for headers in ({}, JSON, signed):
                answer = await run.browser.post(route.path, content=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (route, body[:9])

    async def test_another_tenants_agent_is_absent_before_the_body_is_read(self, run: ChatHost) -> None:
        """404 before 400, 413 and 415."""
        for agent in ("agent-2", "agent-3", "a%00b", "%00", "%ED%A0%80", "x" * 5000):
            path = LOGIC.replace("agent-1", agent)
            for content in (b"{", b"\xff", b"x" * 200_000):
                for kind in ("application/json", "text/plain"):
                    answer = await run.browser.post(path, content=content, headers={"content-type": kind})
                    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    async def test_without_the_lifespan_every_route_answers_503(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the message of NotStarted, before a method of the host is called; of the health, one word."""
        host = SmallHost()
        transport = transport_of(FlowActions.load(host))
        for method in ("dashboard_principal", "api_principal", "agent"):
            monkeypatch.setattr(host, method, None)  # calling it would be an error
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for route in ROUTES:
                answer = await client.request(route.method, route.path)
                if route.path in HEALTH:
                    continue  # tested where health is
                assert (answer.status_code, answer.json()["code"]) == (503, "not_started"), route
                assert answer.json()["detail"] == str(NotStarted())

    async def test_after_the_lifespan_every_route_answers_503_again(self, tmp_path: Path) -> None:
        """And when it runs again, they work."""
        host = SmallHost({"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}"})
        actions = FlowActions.load(host)
        transport = transport_of(actions)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for _ in range(2):
                async with actions.lifespan():
                    assert (await client.get("/v1/webhooks/outbox")).status_code == 200
                assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "not_started"

    async def test_options_requests_are_answered_by_litestar(self, run: ChatHost) -> None:
        """With the allowed methods; a preflight has no credentials."""
        run.host.principal = None
        transport = httpx.ASGITransport(app=app_with_routes(run.actions))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            answer = await client.options(REPLAY)
        assert (answer.status_code, answer.headers["allow"]) == (204, "OPTIONS, POST")

    @pytest.mark.parametrize(
        "found",
        [
            {"organization_id": "acme"},
            DashboardPrincipal(organization_id="", user_id="u", user_name="U", may_change=True),
            DashboardPrincipal(organization_id="a\x00b", user_id="u", user_name="U", may_change=True),
            DashboardPrincipal(organization_id=7, user_id="u", user_name="U", may_change=True),  # type: ignore[arg-type]
            DashboardPrincipal(organization_id="acme", user_id="\ud800", user_name="U", may_change=True),
        ],
    )
    async def test_a_principal_of_a_wrong_type_names_the_hosts_method(
        self, run: ChatHost, found: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """500, and one line in the log."""
        run.host.principal = found
        answer = await run.browser.get("/v1/webhooks/outbox")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "SmallHost.dashboard_principal must return" in caplog.text
