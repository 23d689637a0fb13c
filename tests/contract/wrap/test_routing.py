"""Which requests are the plugins', and what their routes and the host find in the scope."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test.utils import override_settings
from hypothesis import example, given
from hypothesis import strategies as st
from litestar import Litestar, get, post, route
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.routes import HTTPRoute
from litestar.utils import normalize_path
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.routing import Mount

from flowactions_hookspecs import FlowActions
from flowactions_hookspecs.routes import check_prefix, prefixed
from flowactions_hookspecs.wrap import Wrapped
from tests.contract.wrap.django_host import django_host
from tests.contract.wrap.probe import SessionHost, loaded
from tests.contract.wrap.quart_host import quart
from tests.contract.wrap.starlette_hosts import ORIGIN, fastapi, starlette
from tests.rings import sampled
from tests.support import app_with_routes

KNOWN = {"x-user": "ada"}


@asynccontextmanager
async def client_of(app: Any, root_path: str = "") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://host.test") as client:
        yield client


def wrapped(actions: FlowActions, app: Any, prefix: str = "") -> Wrapped:
    """Wrap with the routes under a prefix."""
    return Wrapped(app, prefixed(actions.route_handlers, prefix), None)


async def passed(scope: Any, receive: Any, send: Any) -> None:
    """A host that says what it was asked."""
    body = f"{scope['root_path']}|{scope['path']}".encode()
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": body})


@get("/a")
async def _plain() -> None: ...
@post("/a/b/{x:int}")
async def _typed(x: FromPath[int]) -> None: ...
@get("/a/{x:str}/c")
async def _middle(x: FromPath[str]) -> None: ...
@get("/{x:str}/root")
async def _first(x: FromPath[str]) -> None: ...
@get("/f/{x:path}")
async def _rest(x: FromPath[Path]) -> None: ...
@route("/b/{x:str}", http_method=["OPTIONS"])
async def _own_options(x: FromPath[str]) -> None: ...
@get("/", name="index")
async def _index() -> None: ...


HANDLERS = [_plain, _typed, _middle, _first, _rest, _own_options, _index]
SHAPES = Litestar([*HANDLERS], openapi_config=None, logging_config=None)
SHAPES_WRAPPED = Wrapped(passed, HANDLERS, None)
PATHS = st.lists(st.sampled_from(["a", "b", "c", "f", "root", "7", "x", "é", "", "/", "//", ".", "%2F"])).map(
    "/".join
)


@example(path="7/root", slash=True, method="OPTIONS")
@example(path="b/7", slash=True, method="OPTIONS")
@given(
    path=PATHS,
    slash=st.booleans(),
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "get", "X"]),
)
def test_litestars_router_decides(path: str, slash: bool, method: str) -> None:
    """For any path and method: served exactly when Litestar routes it to a handler of a plugin's."""
    path = f"/{path}" if slash else path
    try:
        handler: Any = SHAPES.asgi_router.handle_routing(path=normalize_path(path), method=method)[1]
        served = handler.fn.__name__ != "options_handler"
    except HTTPException:
        served = False
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    assert (SHAPES_WRAPPED._own_scope(scope) is not None) == served


def test_every_route_of_the_installed_plugin_is_served(tmp_path: Path) -> None:
    """Each path with each of its methods, and no other method."""
    actions = loaded(tmp_path)
    around = wrapped(actions, passed)
    served = 0
    for each in app_with_routes(actions).routes:
        assert isinstance(each, HTTPRoute)
        path = re.sub(r"\{.*?\}", "7", each.path)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"):
            found = around._own_scope({"type": "http", "path": path, "method": method})
            assert (found is not None) == (method in each.methods), (method, path)
            served += found is not None
    assert served > 20


async def test_what_is_added_after_the_wrapper_runs_around_the_plugins(tmp_path: Path) -> None:
    """Sessions, CORS headers, preflights and the host's own middleware hold for the plugins' routes, too."""
    actions = loaded(tmp_path)
    async with (
        actions.lifespan(),
        client_of(starlette(lambda app: actions.wrap(app, lifespan=False))) as client,
    ):
        assert (await client.get("/v1/webhooks/outbox")).status_code == 401
        assert (await client.post("/login", content="ada")).text == "welcome"
        assert (await client.get("/v1/webhooks/outbox")).status_code == 200
        answer = await client.get("/integrations/probe/seen/7", headers={"origin": ORIGIN})
        assert answer.json()["number"] == 7
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.headers["x-stamp"] == "stamped"
        asked = {"origin": ORIGIN, "access-control-request-method": "GET"}
        answer = await client.options("/integrations/probe/seen/7", headers=asked)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)


async def test_what_the_hosts_middleware_put_into_the_scope_is_found(tmp_path: Path) -> None:
    """Session, user, state and the host's app: a host makes its own framework's request of the scope."""
    actions = loaded(tmp_path)
    host = actions.host
    assert isinstance(host, SessionHost)
    app = Starlette()
    app.state.name = "the host"

    class Everybody(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            conn.state.asked = "by the middleware"
            return AuthCredentials(["all"]), SimpleUser("ada")

    app.add_middleware(actions.wrap, lifespan=False)
    app.add_middleware(AuthenticationMiddleware, backend=Everybody())
    async with actions.lifespan(), client_of(app) as client:
        assert (await client.get("/v1/webhooks/outbox", headers=KNOWN)).status_code == 200
    request = Request(host.scopes[0])
    assert request.user.username == "ada"
    assert request.state.asked == "by the middleware"
    assert request.app is app
    assert request.app.state.name == "the host"


async def test_a_plugins_request_leaves_the_servers_scope_as_it_was(tmp_path: Path) -> None:
    """Litestar writes into a copy of scope and state."""
    actions = loaded(tmp_path)
    around = wrapped(actions, passed)
    state = {"pool": 1}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/integrations/probe/seen/7/",
        "raw_path": b"/integrations/probe/seen/7/",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "state": state,
        "app": "the host's",
    }
    before = dict(scope)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    await around(scope, receive, send)
    assert sent[0]["status"] == 200
    assert scope == before
    assert scope["state"] is state
    assert state == {"pool": 1}


@pytest.mark.parametrize("kind", ["http", "websocket", "lifespan", "mqtt"])
async def test_what_is_passed_on_is_passed_on_untouched(kind: str, tmp_path: Path) -> None:
    """The same scope, receive and send, for every type of scope, known or not; and what the app raises."""
    given: list[Any] = []
    error = RuntimeError("the host's")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given.extend((scope, receive, send))
        raise error

    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    around = loaded(tmp_path).wrap(app, lifespan=False)
    scope = {"type": kind, "path": "/elsewhere", "method": "GET", "root_path": ""}
    before = dict(scope)
    with pytest.raises(RuntimeError) as raised:
        await around(scope, receive, send)
    assert raised.value is error
    assert [id(each) for each in given] == [id(each) for each in (scope, receive, send)]
    assert scope == before


async def test_a_disconnect_passes_through(tmp_path: Path) -> None:
    """The host and a plugin's route both hear ``http.disconnect``; neither is answered for the other."""
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.append((await receive())["type"])

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    around = loaded(tmp_path).wrap(app, lifespan=False)
    scope = {"type": "http", "path": "/x", "method": "GET", "headers": [], "query_string": b""}
    await around(scope, gone, send)
    assert heard == ["http.disconnect"]
    echo = {**scope, "path": "/integrations/probe/echo", "method": "POST"}
    await asyncio.wait_for(around(echo, gone, send), 300)
    assert heard == ["http.disconnect"]
    assert sent[0]["status"] >= 400


@pytest.mark.parametrize(
    "scope",
    [
        {"path": None, "method": "GET"},
        {"path": b"/v1/webhooks/outbox", "method": "GET"},
        {"method": "GET"},
        {"path": "/v1/webhooks/outbox"},
        {"path": "/v1/webhooks/outbox", "method": None},
        {"path": "/v1/webhooks/outbox", "method": "GET", "root_path": 7},
    ],
)
async def test_a_request_that_cannot_be_routed_is_the_hosts(
    scope: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a server puts into the scope, nothing is raised before the host has it."""
    given = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given.append(scope)

    around: Any = loaded(tmp_path).wrap(app, lifespan=False)
    caplog.set_level(logging.CRITICAL, "flowactions")
    asked = {"type": "http", **scope}
    await around(asked, None, None)
    assert given == [asked]


ROOT_PATHS = [
    ("/api", "/api/v1/webhooks/outbox"),  # as the protocol says: the path holds the root path
    ("/api", "/v1/webhooks/outbox"),  # older servers: it does not
    ("/api/", "/api/v1/webhooks/outbox"),
    ("/", "/v1/webhooks/outbox"),
    ("/v1", "/v1/v1/webhooks/outbox"),
    ("/webhooks", "/v1/webhooks/outbox"),  # the root path stands within the path
    ("/webhooks", "/webhooks/v1/webhooks/outbox"),
]


@sampled("asked", ROOT_PATHS, size=3)
async def test_the_root_path_is_taken_off(asked: tuple[str, str], tmp_path: Path) -> None:
    """At the front, once, and only as whole segments."""
    root_path, path = asked
    actions = loaded(tmp_path)
    async with actions.lifespan(), client_of(wrapped(actions, passed), root_path) as client:
        assert (await client.get(path, headers=KNOWN)).status_code == 200
        assert (await client.put(path)).text == f"{root_path}|{path}"
        for other in ("/apiv1/webhooks/outbox", "/api/api/v1/webhooks/outbox", "/other/v1/webhooks/outbox"):
            assert (await client.get(other)).text == f"{root_path}|{other}"


@pytest.mark.parametrize("root_path", ["", "/api"])
@sampled("prefix", ["", "/flows", "/a/b"], size=2)
@sampled("make", [fastapi, starlette, quart, django_host], size=2)
async def test_prefix_and_root_path_go_together(make: Any, prefix: str, root_path: str, tmp_path: Path) -> None:
    """The plugins' routes are below both, the host's below the root path; links hold them."""
    actions = loaded(tmp_path)
    host = make(lambda app: wrapped(actions, app, prefix))
    async with actions.lifespan(), client_of(host, root_path) as client:
        assert (await client.get(f"{root_path}{prefix}/v1/webhooks/outbox", headers=KNOWN)).status_code == 200
        seen = (await client.get(f"{root_path}{prefix}/integrations/probe/seen/7")).json()
        assert seen["url"] == f"http://host.test{root_path}{prefix}/integrations/probe/seen/7"
        item = await client.get(f"{root_path}/items/7")
        assert (item.status_code, item.json()["item"]) == (200, "7")
        if prefix:
            assert (await client.get(f"{root_path}/integrations/probe/seen/7")).status_code != 200 or make in {
                fastapi,
                starlette,
            }  # where the host has this path


async def test_a_mounted_app(tmp_path: Path) -> None:
    """Mounted in another app, it serves below the mount; its lifespan is entered by hand."""
    actions = loaded(tmp_path)
    outer = Starlette(routes=[Mount("/inner/{tenant}", app=starlette(actions.wrap))])
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(outer))
        await stack.enter_async_context(actions.lifespan())
        assert (await client.get("/inner/acme/v1/webhooks/outbox", headers=KNOWN)).status_code == 200
        assert (await client.get("/inner/acme/items/7")).json()["item"] == "7"
        assert (await client.get("/v1/webhooks/outbox")).status_code == 404


async def test_djangos_script_name(tmp_path: Path) -> None:
    """Django may have a prefix that the server does not know: the same prefix puts the plugins' routes below it."""
    actions = loaded(tmp_path)
    django_host(None)  # it configures Django, which the next line needs
    with override_settings(FORCE_SCRIPT_NAME="/shop"):
        async with actions.lifespan(), client_of(wrapped(actions, django_host(None), "/shop")) as client:
            assert (await client.get("/shop/v1/webhooks/outbox", headers=KNOWN)).status_code == 200
            assert (await client.get("/shop/items/7")).json() == {
                "item": "7",
                "url": "http://host.test/shop/items/7",
                "prefix": "/shop",
            }
            assert (await client.get("/v1/webhooks/outbox")).status_code == 405  # Django's own view


class TestPrefix:
    def test_one_that_could_never_be_asked_for_is_refused(self) -> None:
        """The message shows what was given, and what it should be."""
        bad = ["flows", "/", "/flows/", "/a//b", "/{x}", "/a/{x:int}", "/a?b", "/a#b", "/..", "/./a", "/%41"]
        for prefix in (*bad, "/a b", "/a\n"):
            with pytest.raises(ValueError, match="begins with a slash") as refused:
                check_prefix(prefix)
            assert repr(prefix) in str(refused.value)
        with pytest.raises(ValueError, match="begins with a slash"):
            FlowActions.load(SessionHost({}), prefix="flows")
        for other in (None, 7, b"/flows"):
            with pytest.raises(TypeError, match=type(other).__name__):
                check_prefix(other)  # type: ignore[arg-type]

    @sampled("prefix", ["", "/flows", "/a/b", "/a-b.c_d~1", "/é", "/@me"], size=3)
    async def test_a_litestar_host_has_the_routes_below_it(self, prefix: str, tmp_path: Path) -> None:
        """Every route, and the same ones can be put below another prefix."""
        actions = loaded(tmp_path)
        plain = {route.path for route in app_with_routes(actions).routes}
        for each in (prefix, "/other"):
            app = Litestar([*prefixed(actions.route_handlers, each)], openapi_config=None, logging_config=None)
            assert {route.path for route in app.routes} == {each + path for path in plain}
        app = Litestar([*prefixed(actions.route_handlers, prefix)], openapi_config=None, logging_config=None)
        async with actions.lifespan(), client_of(app) as client:
            assert (await client.get(f"{prefix}/v1/webhooks/outbox", headers=KNOWN)).status_code == 200


def test_the_openapi_document_is_json_and_names_its_credentials(tmp_path: Path) -> None:
    """For hosts that are not Litestar apps: paths, and the security schemes that they name."""
    actions = loaded(tmp_path)
    document = actions.openapi()
    assert document["openapi"].startswith("3.")
    assert {"/v1/webhooks/outbox", "/integrations/probe/echo"} <= document["paths"].keys()
    assert {"dashboard", "api"} <= document["components"]["securitySchemes"].keys()
    document["paths"].clear()
    assert actions.openapi()["paths"]
