"""What every route asks before it does anything: a running lifespan, a caller, a page of its own, and strict input."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from litestar import Litestar, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.routes import HTTPRoute

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    FlowActions,
    LogicAction,
    NotStarted,
)
from flowactions_plugin.http.cross_site import Fetch, is_cross_site
from flowactions_plugin.http.openapi import RouteRules
from flowactions_plugin.http.problems import HANDLERS, TITLES, Problem
from flowactions_plugin.http.query import check_query
from tests.chatting import ChatHost, chat_host
from tests.support import SmallHost

JSON = {"content-type": "application/json"}
ID = "00000000-0000-7000-8000-000000000000"
LOGIC = "/v1/agents/agent-1/experiences/e1/logic-webhook"
REPLAY = "/v1/webhooks/outbox/retry"
CHANNEL = "/integrations/chat/connection/default-channel"
SEND = "/integrations/chat/send-message"
WITH_BODY = [("POST", LOGIC), ("POST", REPLAY), ("PUT", CHANNEL), ("POST", SEND)]


class Route(NamedTuple):
    method: str
    path: str
    rules: RouteRules


def all_routes() -> Iterator[Route]:
    """Find every route that the plugin contributes."""
    app = FlowActions.load(SmallHost()).asgi_app()
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            path = route.path.replace("{delivery_id:str}", ID).replace("{agent_id:str}", "agent-1")
            for handler in route.route_handlers:
                for method in handler.http_methods:
                    if method != "OPTIONS":
                        filled = path.replace("{experience_id:str}", "e1")
                        yield Route(str(getattr(method, "value", method)), filled, RouteRules.of(handler))


ROUTES = sorted(all_routes(), key=lambda each: (each.path, each.method))


CHANGING = [each for each in ROUTES if each.rules.caller == "dashboard" and each.rules.changes]


def routes_of(*callers: str) -> list[Route]:
    return [each for each in ROUTES if each.rules.caller in callers]


STRANGE_REQUESTS: list[dict[str, Any]] = [
    {"content": b"{", "headers": JSON},
    {"content": b"\xff\xfe", "headers": JSON},
    {"content": b"[" * 60_000, "headers": JSON},
    {"content": b"x" * 11_000_000, "headers": JSON},
    {"content": b"a=b", "headers": {"content-type": "application/x-www-form-urlencoded"}},
    {"params": {"limit": "x", "nonsense": "1"}},
    {"headers": {"sec-fetch-site": "cross-site"}},
    {},
]

STRANGE_JSON = [
    b"\xff",
    b'{"\xff":1}',
    b"\xef\xbb\xbf{}",
    b"{",
    b"{} {}",
    b"[]",
    b"null",
    b'"x"',
    b"\x00",
    b'{"x":"\x00"}',
    b'{"x":"\\ud800"}',
    b'{"x":["\\udc00 and more text behind it"]}',
    b'{"\\ud800":1}',
    b'{"x":1,"x":1}',
    b'{"y":{"x":1,"x":2}}',
    b'{"x":NaN}',
    b'{"x":-Infinity}',
    b'{"x":1e400}',
    b'{"x":' + b"9" * 20_000 + b"}",
    b"[" * 60_000,
    b'{"x":' * 10_000,
    '{"x":1}'.encode("utf-16"),
]


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    """A host with chat, an agent and a logic action, connected to a workspace, with somebody signed in."""
    monkeypatch.chdir(tmp_path)
    async with chat_host(
        f"sqlite:///{tmp_path / 'f.db'}",
        AUTH_WEBHOOK_SIGNING_SECRET="whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=",
        FLOWACTIONS_DASHBOARD_ORIGINS="https://app.example.com",
        FLOWACTIONS_HOST_WORKER="off",
    ) as running:
        running.host.agents = [
            Agent(id="agent-1", name="A", organization_id="acme"),
            Agent(id="agent-2", name="B", organization_id="globex"),
        ]
        running.host.api = ApiPrincipal(organization_id="acme")
        running.host.action = LogicAction(url="http://127.0.0.1:9/hook")
        await running.connect()
        yield running


class TestOrder:
    def test_every_route_says_who_may_call(self) -> None:
        """Only the provider's way back asks for no credential, and whatever changes something is marked as such."""
        assert len(ROUTES) >= 16
        assert [each.path for each in ROUTES if each.rules.caller is None] == ["/integrations/chat/callback"]
        changing = [each for each in routes_of("dashboard", "api") if each.method != "GET"]
        assert len(changing) == 10, changing
        assert all(each.rules.changes for each in changing)
        reading = [each.path for each in ROUTES if each.rules.reads]
        assert reading == ["/integrations/nodes/check", "/integrations/nodes/preview"]

    async def test_a_stranger_is_told_so_whatever_is_sent(self, run: ChatHost) -> None:
        """On every route, 401 before 400, 403, 413 and 415."""
        run.host.principal = run.host.api = None
        for route, how in product(routes_of("dashboard", "api"), STRANGE_REQUESTS):
            answer = await run.browser.request(route.method, route.path, **how)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (route, how)
            assert answer.headers["cache-control"] == "no-store"

    async def test_an_unsigned_event_is_a_401_whatever_the_bytes(self, run: ChatHost) -> None:
        """Up to the longest body that is read; more is a 413."""
        signed = {"svix-id": "m", "svix-timestamp": "1", "svix-signature": "v1,x"}
        bodies = [b"", *STRANGE_JSON, b"\x00" * 1_000_000]
        for route, body in product(routes_of("chatSignature", "authSignature"), bodies):
            for headers in ({}, JSON, signed):
                answer = await run.browser.post(route.path, content=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (route, body[:9])

    async def test_another_tenants_agent_is_absent_before_the_body_is_read(self, run: ChatHost) -> None:
        """404 before 400, 413 and 415."""
        for agent in ("agent-2", "agent-3", "a%00b"):
            path = LOGIC.replace("agent-1", agent)
            for content in (b"{", b"\xff", b"x" * 200_000):
                for kind in ("application/json", "text/plain"):
                    answer = await run.browser.post(path, content=content, headers={"content-type": kind})
                    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    async def test_without_the_lifespan_every_route_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """503 in the words of NotStarted, before anything is asked of the host."""
        host = SmallHost()
        transport = httpx.ASGITransport(app=FlowActions.load(host).asgi_app())  # type: ignore[arg-type]
        for method in ("dashboard_principal", "api_principal", "agent"):
            monkeypatch.setattr(host, method, None)  # calling it would be an error
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for route in ROUTES:
                answer = await client.request(route.method, route.path)
                assert (answer.status_code, answer.json()["code"]) == (503, "not_started"), route
                assert answer.json()["detail"] == str(NotStarted())

    async def test_after_the_lifespan_every_route_says_so_again(self, tmp_path: Path) -> None:
        """And once it runs again, they answer."""
        host = SmallHost({"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}"})
        actions = FlowActions.load(host)
        transport = httpx.ASGITransport(app=actions.asgi_app())  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for _ in range(2):
                async with actions.lifespan():
                    assert (await client.get("/v1/webhooks/outbox")).status_code == 200
                assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "not_started"

    async def test_options_are_told_as_before(self, run: ChatHost) -> None:
        """Litestar says which methods there are; a preflight carries no credentials."""
        run.host.principal = None
        answer = await run.browser.options(REPLAY)
        assert (answer.status_code, answer.headers["allow"]) == (204, "OPTIONS, POST")

    @pytest.mark.parametrize(
        "found",
        [
            {"organization_id": "acme"},
            DashboardPrincipal(organization_id="", user_id="u", user_name="U", may_change=True),
            DashboardPrincipal(organization_id="a\x00b", user_id="u", user_name="U", may_change=True),
            DashboardPrincipal(organization_id=7, user_id="u", user_name="U", may_change=True),  # type: ignore[arg-type]
            DashboardPrincipal(organization_id="acme", user_id="\ud800", user_name="U", may_change=True),
            DashboardPrincipal(organization_id="acme", user_id="u", user_name="A\x00da", may_change=True),
        ],
    )
    async def test_a_principal_that_is_none_names_the_hosts_method(
        self, run: ChatHost, found: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is an error of the host's: 500, and one line in the log."""
        run.host.principal = found
        answer = await run.browser.get("/v1/webhooks/outbox")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "SmallHost.dashboard_principal must return" in caplog.text


NOT_JSON = [
    None,
    "text/plain",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "application/problem+json",
    "text/plain, application/json",
]

VALID: dict[str, dict[str, Any]] = {
    LOGIC: {
        "idempotencyKey": "k",
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": "t",
    },
    REPLAY: {"all": True},
    CHANNEL: {"channelId": "C0GENERAL"},
    SEND: {"text": "hello"},
}


class TestBodies:
    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_what_has_no_one_meaning_is_refused(self, run: ChatHost, method: str, path: str) -> None:
        """400 on every route with a body, and never a 500."""
        for body in STRANGE_JSON:
            answer = await run.browser.request(method, path, content=body, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body[:24]

    async def test_nor_is_it_taken_inside_a_body_that_is_right_but_for_that(self, run: ChatHost) -> None:
        """A name that occurs twice, on every route; and what is in a field that would be ignored."""
        for method, path in WITH_BODY:
            valid = json.dumps(VALID[path])
            name, value = next(iter(VALID[path].items()))
            twice = f"{valid[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"
            answer = await run.browser.request(method, path, content=twice, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), path
        for strange in ('{"x":1,"x":1}', "NaN", "1e400", '"\\ud800"', '["\\udc00 x"]', "9" * 5000, "[" * 9000):
            inside = f'{json.dumps(VALID[LOGIC])[:-1]}, "later": {strange}}}'
            answer = await run.browser.post(LOGIC, content=inside, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), strange[:9]

    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_a_body_that_is_not_there_says_what_to_send(
        self, run: ChatHost, method: str, path: str
    ) -> None:
        """With a content type and without."""
        for headers in ({}, JSON):
            answer = await run.browser.request(method, path, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith("The request has no body. Send a JSON object")

    async def test_a_dashboard_route_takes_json_only(self, run: ChatHost) -> None:
        """415 for any body that a form or a simple fetch of a foreign page can send, where none is needed too."""
        for route, kind in product(CHANGING, NOT_JSON):
            headers = {} if kind is None else {"content-type": kind}
            answer = await run.browser.request(route.method, route.path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type"), (route, kind)

    async def test_json_is_taken(self, run: ChatHost) -> None:
        """However its type is written."""
        for method, path in (("PUT", CHANNEL), *WITH_BODY):
            content = httpx.Request("POST", "http://x", json=VALID[path]).content
            for kind in ("application/json", "Application/JSON; charset=utf-8", "application/json;"):
                answer = await run.browser.request(
                    method, path, content=content, headers={"content-type": kind}
                )
                assert answer.status_code in {200, 202, 204}, (path, kind)

    @pytest.mark.parametrize(("path", "status"), [(LOGIC, 202), (REPLAY, 200)])
    async def test_backends_and_bearers_may_leave_the_type_out(
        self, run: ChatHost, path: str, status: int
    ) -> None:
        """No foreign page can send a token. A wrong type is wrong all the same."""
        content = httpx.Request("POST", "http://x", json=VALID[path]).content
        token = {"authorization": "Bearer t"}
        wrong = {**token, "content-type": "text/plain"}
        assert (await run.browser.post(path, content=content, headers=wrong)).status_code == 415
        assert (await run.browser.post(path, content=content, headers=token)).status_code == status

    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_more_than_64_kib_is_not_read(self, run: ChatHost, method: str, path: str) -> None:
        """413, and what fits is read."""
        for size, status in ((64 * 1024, 400), (64 * 1024 + 1, 413)):
            answer = await run.browser.request(method, path, content=b" " * size, headers=JSON)
            assert answer.status_code == status

    async def test_nothing_is_converted_or_guessed(self, run: ChatHost) -> None:
        """The answer names the field as the client wrote it."""
        cases: list[tuple[str, dict[str, Any], str]] = [
            (LOGIC, {"actionIndex": "0"}, "actionIndex"),
            (LOGIC, {"actionIndex": 0.0}, "actionIndex"),
            (LOGIC, {"actionIndex": True}, "actionIndex"),
            (LOGIC, {"actionIndex": None}, "actionIndex"),
            (LOGIC, {"idempotencyKey": 7}, "idempotencyKey"),
            (LOGIC, {"triggerRowId": 7}, "triggerRowId"),
            (REPLAY, {"ids": "null", "all": False}, "ids"),
            (REPLAY, {"ids": [], "all": False}, "ids"),
            (REPLAY, {"ids": [ID, 7]}, "ids[1]"),
            (REPLAY, {"all": "true"}, "all"),
            (REPLAY, {"all": 1}, "all"),
            (REPLAY, {"all": None}, "all"),
            (REPLAY, {"all": False}, "all"),
            (REPLAY, {"agentId": "a"}, "all"),
            (REPLAY, {"ids": [ID]}, "all"),
            (REPLAY, {"agentId": ""}, "agentId"),
            (REPLAY, {"limit": 1.0}, "limit"),
            (REPLAY, {"limit": "1"}, "limit"),
            (REPLAY, {"resetAttempts": 0}, "resetAttempts"),
            (REPLAY, {"nonsense": 1}, "nonsense"),
            *(
                (REPLAY, {name: value}, name)
                for name in ("finishedFrom", "finishedBefore")
                for value in ("2030", 2030, 2030.0, "2030-01-01", "2030-01-01T00:00:00", "null", True, "")
            ),
            (CHANNEL, {"channelId": 7}, "channelId"),
            (CHANNEL, {"channel": "C"}, "channel"),
            (SEND, {"text": 7}, "text"),
            (SEND, {"channel": "C"}, "channel"),
        ]
        for path, change, named in cases:
            method = "PUT" if path == CHANNEL else "POST"
            answer = await run.browser.request(method, path, json={**VALID[path], **change})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), (path, change)
            assert [error["path"] for error in answer.json()["errors"]] == [named]

    async def test_all_that_is_wrong_is_told_at_once(self, run: ChatHost) -> None:
        """Missing, wrong and unknown fields."""
        answer = await run.browser.post(LOGIC, json={"actionIndex": -1, "source": "x", "nodeId": 7})
        paths = [error["path"] for error in answer.json()["errors"]]
        assert sorted(paths) == ["actionIndex", "idempotencyKey", "nodeId", "source"]
        answer = await run.browser.post(REPLAY, json={"limit": 0, "nonsense": 1})
        assert [error["path"] for error in answer.json()["errors"]] == ["limit", "nonsense"]

    async def test_the_logic_webhook_goes_on_ignoring_what_it_does_not_know(self, run: ChatHost) -> None:
        """Callers of later releases can call this one."""
        answer = await run.browser.post(LOGIC, json={**VALID[LOGIC], "later": {"x": [1, "y"]}})
        assert answer.status_code == 202

    async def test_a_bulk_retry_without_a_filter_says_what_to_do(self, run: ChatHost) -> None:
        """Neither an empty body nor one that only sets a limit means everything."""
        for body in ({}, {"limit": 5}, {"resetAttempts": True}, {"ids": None, "agentId": None}):
            answer = await run.browser.post(REPLAY, json=body)
            assert answer.status_code == 400
            (error,) = answer.json()["errors"]
            assert error["path"] == "all"
            assert "set it to true" in error["message"]


class TestQueries:
    async def test_a_list_takes_what_it_understands_only(self, run: ChatHost) -> None:
        """Each name known, once, and with a value of its form."""
        cases = [
            ("limit=1.0", "limit"),
            ("limit=%D9%A3", "limit"),
            ("limit=+1", "limit"),
            ("limit=1_0", "limit"),
            ("limit=", "limit"),
            ("limit=1&limit=2", "limit"),
            ("limit=999999999999999999999", "limit"),
            ("status=", "status"),
            ("status=dead&status=dead", "status"),
            ("agentId=", "agentId"),
            ("cursor=", "cursor"),
            ("nonsense=1", "nonsense"),
            ("agentid=a", "agentid"),
            ("agent_id=a", "agent_id"),
            ("finishedFrom=2030", "finishedFrom"),
            ("finishedFrom=2030-01-01", "finishedFrom"),
            ("finishedFrom=2030-01-01T00:00:00", "finishedFrom"),
            ("finishedFrom=2030-01-01T00:00:00+01:00", "finishedFrom"),
            ("finishedBefore=0", "finishedBefore"),
            ("agentId=%00", "agentId"),
            ("agentId=%FF", None),
            ("flag", "flag"),
        ]
        for query, named in cases:
            answer = await run.browser.get(f"/v1/webhooks/outbox?{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), query
            assert [error["path"] for error in answer.json().get("errors", [])] == ([named] if named else [])

    def test_a_query_that_is_not_encoded_is_refused(self) -> None:
        """Bytes beyond ASCII have no one meaning in a URL."""
        for raw in (b"agentId=\xe9", "agentId=é".encode()):
            with pytest.raises(Problem):
                check_query(raw, {"agentId": lambda _: None})

    async def test_a_bulk_retry_has_no_query(self, run: ChatHost) -> None:
        """A filter in the wrong place is no wider retry."""
        answer = await run.browser.post(f"{REPLAY}?agentId=a", json={"all": True})
        assert [error["path"] for error in answer.json()["errors"]] == ["agentId"]

    async def test_what_is_understood_is_taken(self, run: ChatHost) -> None:
        """Percent-encoded, with any time zone."""
        query = {"agentId": "é", "finishedFrom": "2020-01-01T00:00:00.5+01:00", "limit": "1", "status": "dead"}
        assert (await run.browser.get("/v1/webhooks/outbox", params=query)).status_code == 200


APP = "https://app.example.com"


class TestCrossSite:
    @pytest.mark.parametrize(
        ("fetch", "refused"),
        [
            (Fetch(host="host"), False),
            (Fetch(site="same-origin", host="host"), False),
            (Fetch(site="none", host="host"), False),
            (Fetch(site="same-site", host="host"), True),
            (Fetch(site="cross-site", host="host"), True),
            (Fetch(site="", host="host"), True),
            (Fetch(site="Same-Origin,cross-site", host="host"), True),
            (Fetch(site="same-origin", origin="https://evil.example", host="host"), False),
            (Fetch(site="cross-site", origin="https://host", host="host"), True),
            (Fetch(site="cross-site", origin=APP, host="host"), False),
            (Fetch(site="same-site", origin="HTTPS://APP.example.com:443", host="host"), False),
            (Fetch(site="cross-site", origin="null", host="host"), True),
            (Fetch(origin=APP, host="host"), False),
            (Fetch(origin="http://app.example.com", host="host"), True),
            (Fetch(origin="https://app.example.com:8443", host="host"), True),
            (Fetch(origin="https://app.example.com.evil.example", host="host"), True),
            (Fetch(origin="https://app.example.com,https://app.example.com", host="host"), True),
            (Fetch(origin="null", host="host"), True),
            (Fetch(origin="", host="host"), True),
            (Fetch(origin="https://evil.example", host="host"), True),
            (Fetch(origin="http://host", host="host"), False),
            (Fetch(origin="https://host", host="host"), False),
            (Fetch(origin="https://host", host="HOST:443"), False),
            (Fetch(origin="http://host:8000", host="host:8000"), False),
            (Fetch(origin="http://host:8001", host="host:8000"), True),
            (Fetch(origin="http://localhost:8000", host="127.0.0.1:8000"), True),
            (Fetch(origin="http://host", host="host", scheme="https"), True),
            (Fetch(origin="http://host", host=None), True),
            (Fetch(origin="http://[::1]:80", host="[::1]"), False),
            (Fetch(site="cross-site", mode="navigate", dest="document", host="host"), True),
        ],
    )
    def test_the_rule(self, fetch: Fetch, *, refused: bool) -> None:
        """What the browser says decides; without it the origin; without both it is no browser."""
        assert is_cross_site(fetch, {APP}) is refused

    @pytest.mark.parametrize(
        ("fetch", "refused"),
        [
            (Fetch(site="cross-site", mode="navigate", dest="document"), False),
            (Fetch(site="same-site", mode="navigate", dest="document"), False),
            (Fetch(site="cross-site", mode="navigate", dest="iframe"), True),
            (Fetch(site="cross-site", mode="no-cors", dest="image"), True),
            (Fetch(site="cross-site", mode="cors", dest="empty", origin="https://evil.example"), True),
        ],
    )
    def test_a_link_may_lead_to_an_install(self, fetch: Fetch, *, refused: bool) -> None:
        """A person who follows it sees where it leads; a page that embeds it does not ask anybody."""
        assert is_cross_site(fetch, {APP}, navigable=True) is refused

    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site", "authorization": "Basic YTpi"},
            {"sec-fetch-site": "cross-site", "authorization": "Negotiate YTpi"},
            {"sec-fetch-site": "cross-site", "authorization": "Bearer"},
            {"origin": "https://evil.example", "authorization": "Basic YTpi"},
        ],
    )
    async def test_every_route_that_changes_something_refuses_foreign_pages(
        self, run: ChatHost, headers: dict[str, str]
    ) -> None:
        """403, with a body and without, and with credentials that a browser adds by itself."""
        for route in CHANGING:
            for body in (None, VALID.get(route.path)):
                answer = await run.browser.request(route.method, route.path, json=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (403, "cross_site"), route
        assert await run.card() is not None

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "cross-site", "origin": APP},
            {"sec-fetch-site": "same-site", "origin": "http://host"},  # BACKEND_PUBLIC_URL's
            {"origin": "http://host"},
            {"sec-fetch-site": "cross-site", "authorization": "Bearer t"},
            {"origin": "https://evil.example", "authorization": "bearer t"},
        ],
    )
    async def test_the_dashboards_own_pages_and_backends_may(
        self, run: ChatHost, headers: dict[str, str]
    ) -> None:
        """Same origin, allowed origins, tokens, and clients that are no browsers."""
        assert (await run.browser.post(REPLAY, json={"all": True}, headers=headers)).status_code == 200
        assert (await run.browser.post(f"/v1/webhooks/outbox/{ID}/retry", headers=headers)).status_code == 404
        assert (await run.browser.delete("/integrations/chat/connection", headers=headers)).status_code == 204

    async def test_reading_signed_and_backend_routes_are_not_concerned(self, run: ChatHost) -> None:
        """A foreign page cannot read an answer, and cannot sign."""
        foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        assert (await run.browser.get("/v1/webhooks/outbox", headers=foreign)).status_code == 200
        assert (await run.browser.post(LOGIC, json=VALID[LOGIC], headers=foreign)).status_code == 202
        for path in ("/webhooks/auth", "/integrations/chat/events"):
            assert (await run.browser.post(path, headers=foreign)).status_code == 401
        ended = await run.browser.get("/integrations/chat/callback?error=access_denied", headers=foreign)
        assert ended.status_code == 303


class TestProblems:
    async def test_a_title_is_constant_for_its_code(self, caplog: pytest.LogCaptureFixture) -> None:
        """For every code, for whatever Litestar or a guard of the host's raises, and with its own status."""
        caplog.set_level(logging.CRITICAL)

        @get("/problem/{code:str}", exception_handlers=HANDLERS)
        async def problem(code: FromPath[str]) -> None:
            raise Problem(code, "What is wrong.")

        @get("/status/{number:int}", exception_handlers=HANDLERS)
        async def status(number: FromPath[int]) -> None:
            raise HTTPException(status_code=number, detail="Of the host's", headers={"X-Own": "1"})

        @get("/defect", exception_handlers=HANDLERS)
        async def defect() -> None:
            raise RecursionError

        app = Litestar([problem, status, defect], logging_config=None, openapi_config=None)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for code, (number, title) in TITLES.items():
                answer = await client.get(f"/problem/{code}")
                told = answer.json()
                assert (answer.status_code, told["status"], told["code"], told["title"]) == (
                    number,
                    number,
                    code,
                    title,
                )
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["cache-control"] == "no-store"
            for number in (400, 401, 402, 403, 404, 405, 409, 413, 415, 418, 422, 429, 500, 503):
                answer = await client.get(f"/status/{number}")
                told = answer.json()
                assert (answer.status_code, told["status"]) == (number, number)
                assert told["title"] == TITLES[told["code"]][1]
                assert number >= 500 or answer.headers["x-own"] == "1"
            answer = await client.get("/defect")
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert len({title for _, title in TITLES.values()}) == len(TITLES)

    async def test_no_dashboard_answer_is_stored(self, run: ChatHost) -> None:
        """Neither a success nor a problem."""
        signed_in = run.host.principal
        for route in routes_of("dashboard"):
            run.host.principal = signed_in
            answers = [await run.browser.request(route.method, route.path, json=VALID.get(route.path))]
            answers.append(await run.browser.request(route.method, route.path, json={"wrong": 1}))
            run.host.principal = None
            answers.append(await run.browser.request(route.method, route.path))
            assert [answer.headers["cache-control"] for answer in answers] == ["no-store"] * 3, route
