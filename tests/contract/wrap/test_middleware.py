"""What hosts put around or into their apps (login, protection against forgery, limits), and the plugin's routes beneath it."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import flask
import pytest
import quart
from a2wsgi import WSGIMiddleware
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI, HTTPException
from flask_wtf.csrf import CSRFProtect
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette_csrf.middleware import CSRFMiddleware

from flowactions_hookspecs import Agent, ApiPrincipal, LogicAction
from tests.chatting import ChatHost, chat_host
from tests.django_sites import site
from tests.host_apps import (
    AUTH_SECRET,
    Answers,
    all_requests,
    answers,
    differences,
    public_requests,
    signed_requests,
)

Added: TypeAlias = tuple[Any, dict[str, Any]]
"""A middleware with its arguments."""

PROVIDERS = ("/integrations/chat/events", "/webhooks/auth", "/v1/agents/")
PUBLIC = ("/integrations/chat/callback", "/integrations/health/")


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChatHost]:
    """A loaded host; each test makes an app around its routes."""
    async with chat_host(
        f"sqlite:///{tmp_path_factory.mktemp('middleware') / 'f.db'}",
        AUTH_WEBHOOK_SIGNING_SECRET=AUTH_SECRET,
        FLOWACTIONS_HOST_WORKER="off",
    ) as running:
        running.host.agents = [Agent(id="agent-1", name="A", organization_id="acme")]
        running.host.api = ApiPrincipal(organization_id="acme", all_agents=True)
        running.host.action = LogicAction(url="http://127.0.0.1:9/hook")
        await running.connect()
        yield running


@pytest.fixture(scope="module")
async def plain(run: ChatHost) -> Answers:
    """The answers of the plugin's routes around an app that does nothing."""
    return await answers(wrapped(run, Starlette()))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def wrapped(run: ChatHost, app: Any) -> Any:
    return run.actions.wrap(app, lifespan=False)


async def own_view(app: Any) -> int:
    """Post to a view of the host's, as somebody without a session and a token; give the status."""
    asked = signed_requests()[0]._replace(path="/own", headers={}, content=b"x" * 2000)
    ((answer, _),) = (await answers(app, lambda: [asked])).values()
    return answer.status_code


async def view(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def login(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request) if "session" in request.cookies else Response(status_code=401)


async def login_where_needed(request: Request, call_next: RequestResponseEndpoint) -> Response:
    if request.url.path.startswith((*PROVIDERS, *PUBLIC)):
        return await call_next(request)
    return await login(request, call_next)


class SmallBodies:
    """Refuses what is longer than a kilobyte, as limits of bodies do."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        lengths = [int(value) for name, value in scope.get("headers", ()) if name == b"content-length"]
        app = Response(status_code=413) if max(lengths, default=0) > 1000 else self.app
        await app(scope, receive, send)


class Strict(AuthenticationBackend):
    """Refuses who has no session."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        raise AuthenticationError("sign in")


class Lenient(AuthenticationBackend):
    """Knows everybody."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        return AuthCredentials(["authenticated"]), SimpleUser("ada")


REFUSING: dict[str, tuple[Added, int]] = {
    "login": ((BaseHTTPMiddleware, {"dispatch": login}), 401),
    "csrf": ((CSRFMiddleware, {"secret": "s"}), 403),
    "authentication": ((AuthenticationMiddleware, {"backend": Strict()}), 400),
    "trusted host": ((TrustedHostMiddleware, {"allowed_hosts": ["elsewhere"]}), 400),
    "https": ((HTTPSRedirectMiddleware, {}), 307),
    "body limit": ((SmallBodies, {}), 413),
}
"""Middleware, and the status with which it refuses a request to a view of the host's."""

HARMLESS: dict[str, Added] = {
    "session": (SessionMiddleware, {"secret_key": "s"}),
    "authentication": (AuthenticationMiddleware, {"backend": Lenient()}),
    "cors": (CORSMiddleware, {"allow_origins": ["http://app.test"], "allow_credentials": True}),
    "gzip": (GZipMiddleware, {"minimum_size": 1}),
    "trusted host": (TrustedHostMiddleware, {"allowed_hosts": ["host"]}),
}
"""Middleware that may run around the plugin's routes."""


def starlette(*added: Added) -> Any:
    """Make a host with one view, and middleware in the order in which it is added: the last one is the outermost."""
    app = Starlette()
    app.router.routes.append(Route("/own", view, methods=["POST"]))
    for middleware, options in added:
        app.add_middleware(middleware, **options)
    return app


def plugins(run: ChatHost) -> Added:
    return run.actions.wrap, {"lifespan": False}


@pytest.mark.parametrize("name", REFUSING)
async def test_what_is_added_before_the_plugins_does_not_reach_them(
    name: str, run: ChatHost, plain: Answers
) -> None:
    """It protects the host's own views alone."""
    middleware, status = REFUSING[name]
    app = starlette(middleware, plugins(run))
    assert await own_view(app) == status
    assert differences(await answers(app), plain) == []


async def test_what_serves_people_goes_around_the_plugins(run: ChatHost, plain: Answers) -> None:
    """Sessions, users, CORS and compression: all of them together."""
    app = starlette(plugins(run), *HARMLESS.values())
    assert differences(await answers(app), plain) == []


@pytest.mark.parametrize(
    ("added", "asked"),
    [
        (
            (CSRFMiddleware, {"secret": "s", "exempt_urls": [re.compile("^/(integrations|v1|webhooks)/")]}),
            all_requests,
        ),
        ((CSRFMiddleware, {"secret": "s", "sensitive_cookies": {"session"}}), all_requests),
        (
            (BaseHTTPMiddleware, {"dispatch": login_where_needed}),
            lambda: [*signed_requests(), *public_requests()],
        ),
    ],
)
async def test_what_must_stand_around_leaves_these_paths_out(
    added: Added, asked: Callable[[], Any], run: ChatHost, plain: Answers
) -> None:
    """Where login or protection against forgery cannot be added before the plugins, the paths of the page are left out."""
    app = starlette(plugins(run), added)
    assert await own_view(app) == (
        200 if "sensitive_cookies" in added[1] else 401 if "dispatch" in added[1] else 403
    )
    assert differences(await answers(app, asked), plain) == []


async def test_dependencies_of_a_fastapi_app_do_not_reach_them(run: ChatHost, plain: Answers) -> None:
    """They belong to FastAPI's own routes."""

    def refuse() -> None:
        raise HTTPException(401)

    app = FastAPI(dependencies=[Depends(refuse)])
    app.post("/own")(view)
    app.add_middleware(run.actions.wrap, lifespan=False)
    assert await own_view(app) == 401
    assert differences(await answers(app), plain) == []


async def test_djangos_middleware_does_not_reach_them(run: ChatHost, plain: Answers) -> None:
    """It stands inside the app that is wrapped."""

    def own(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(len(request.body)))

    app = wrapped(run, site([path("own", own)], ["django.middleware.csrf.CsrfViewMiddleware"]))
    assert await own_view(app) == 403
    assert differences(await answers(app), plain) == []


async def test_flasks_extensions_do_not_reach_them(run: ChatHost, plain: Answers) -> None:
    """They stand inside the WSGI app, as Flask-WTF's protection does."""
    core = flask.Flask("core")
    core.secret_key = "not a secret"
    CSRFProtect(core)
    core.post("/own")(lambda: str(len(flask.request.get_data())))
    app = wrapped(run, WSGIMiddleware(core))  # type: ignore[arg-type]  # its own types of WSGI
    assert await own_view(app) == 400
    assert differences(await answers(app), plain) == []


async def test_quarts_hooks_do_not_reach_them(run: ChatHost, plain: Answers) -> None:
    """They stand inside the app that is wrapped."""
    app = quart.Quart("host")

    async def refuse() -> quart.Response:
        return quart.Response(status=401)

    async def own() -> str:
        return "own"

    app.before_request(refuse)
    app.post("/own")(own)
    app.asgi_app = wrapped(run, app.asgi_app)  # type: ignore[method-assign]
    assert await own_view(app) == 401
    assert differences(await answers(app), plain) == []
