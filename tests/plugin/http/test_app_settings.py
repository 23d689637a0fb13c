"""What a Litestar host sets for its whole app, setting by setting: it changes no answer of the plugin's, or a page says what to do."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar, Request, Response, Router
from litestar.config.allowed_hosts import AllowedHostsConfig
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.config.csrf import CSRFConfig
from litestar.config.response_cache import ResponseCacheConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import CacheControlHeader, Cookie, ETag, ResponseHeader, State
from litestar.di import Provide
from litestar.dto import DTOConfig, MsgspecDTO
from litestar.exceptions import HTTPException, ImproperlyConfiguredException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.logging import LoggingConfig
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.middleware.logging import LoggingMiddlewareConfig
from litestar.middleware.session.server_side import ServerSideSessionConfig
from litestar.openapi.config import OpenAPIConfig
from litestar.params import HeaderParameter
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.plugins.problem_details import ProblemDetailsConfig, ProblemDetailsPlugin
from litestar.static_files import create_static_files_router
from litestar.template.config import TemplateConfig

from flowactions_hookspecs import OPENAPI_COMPONENTS, Agent, ApiPrincipal, LogicAction
from tests.chatting import ChatHost, chat_host
from tests.host_apps import (
    AUTH_SECRET,
    Answers,
    all_requests,
    answers,
    dashboard_requests,
    differences,
    public_requests,
    signed_requests,
)


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChatHost]:
    """A host with chat, an agent and a logic action; apps of different settings mount its routes."""
    database = tmp_path_factory.mktemp("settings") / "f.db"
    host = chat_host(
        f"sqlite:///{database}", AUTH_WEBHOOK_SIGNING_SECRET=AUTH_SECRET, FLOWACTIONS_HOST_WORKER="off"
    )
    with pytest.MonkeyPatch.context() as patched:
        # Each of these apps copies the routers, as outside of tests (`tests.sharing`).
        patched.setattr("litestar.router.deepcopy", deepcopy)
        async with host as running:
            running.host.agents = [Agent(id="agent-1", name="A", organization_id="acme")]
            running.host.api = ApiPrincipal(organization_id="acme", all_agents=True)
            running.host.action = LogicAction(url="http://127.0.0.1:9/hook")
            await running.connect()
            yield running


@pytest.fixture(scope="module")
async def plain(run: ChatHost) -> Answers:
    """The answers where the app sets nothing."""
    found = await answers(app_of(run))
    assert {name: answer.status_code for name, (answer, _) in found.items()} == {
        each.name: each.status for each in all_requests()
    }
    return found


def app_of(run: ChatHost, routes: Sequence[Any] = (), **settings: Any) -> Any:
    return Litestar(
        [*run.actions.route_handlers, *routes],
        **{"openapi_config": None, "logging_config": None, **settings},
    )


class Enveloped(Response[Any]):
    """A host's form of answers."""

    def render(self, content: Any, media_type: str, enc_hook: Any = None) -> bytes:
        return super().render({"enveloped": content}, media_type, enc_hook)


class Impatient(Request[Any, Any, Any]):
    """A host's own class, which reads a body in its own way."""

    async def body(self) -> bytes:
        return b"the host's"


class Theirs(msgspec.Struct):
    """A struct of the host's."""

    name: str = ""


class TheirDTO(MsgspecDTO[msgspec.Struct]):
    """Of all structs, with names in their own style."""

    config = DTOConfig(rename_strategy="upper")


class LoggedIn(AbstractAuthenticationMiddleware):
    """Knows people by a cookie, as most hosts do."""

    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        if "session" not in connection.cookies:
            raise NotAuthorizedException("Sign in.")
        return AuthenticationResult("ada", None)


async def answer_instead(_: Any) -> dict[str, str]:
    return {"message": "sign in"}


async def envelope(response: Response[Any]) -> Response[Any]:
    return Response({"enveloped": response.content})


async def note(*_: Any) -> None:
    pass


def own_error(_: Any, exc: Exception) -> Response[str]:
    return Response("the host's", status_code=getattr(exc, "status_code", 500))


OWN_NAMES = ("db_session", "principal", "chat", "host", "actions", "ports", "context", "visit", "health")
THEIR_TYPES = (
    "Any",
    "Request",
    "Response",
    "Chat",
    "Host",
    "Ports",
    "PageContext",
    "ASGIRequest",
    "DashboardPrincipal",
)

HARMLESS: dict[str, dict[str, Any]] = {
    "after_exception": {"after_exception": [note]},
    "after_request": {"after_request": envelope},
    "after_response": {"after_response": note},
    "allowed_hosts": {"allowed_hosts": ["host"]},
    "before_request": {"before_request": answer_instead},
    "before_send": {"before_send": [note]},
    "cache_control": {"cache_control": CacheControlHeader(public=True, max_age=600)},
    "compression_config": {"compression_config": CompressionConfig(backend="gzip", minimum_size=1)},
    "cors_config": {"cors_config": CORSConfig(allow_origins=["http://app.test"], allow_credentials=True)},
    "csrf_config": {"csrf_config": CSRFConfig(secret="a secret of thirty-two characters")},
    "debug": {"debug": True},
    "dependencies": {
        "dependencies": {name: Provide(lambda: "theirs", sync_to_thread=False) for name in OWN_NAMES}
    },
    "dto": {"dto": TheirDTO},
    "etag": {"etag": ETag(value="of-all")},
    "exception_handlers by status": {"exception_handlers": dict.fromkeys(range(400, 600), own_error)},
    "exception_handlers by type": {"exception_handlers": {HTTPException: own_error, Exception: own_error}},
    "logging_config": {
        "logging_config": LoggingConfig(configure_root_logger=False),
        "middleware": [LoggingMiddlewareConfig().middleware],
    },
    "middleware": {"middleware": [ServerSideSessionConfig().middleware]},
    "multipart_form_part_limit": {"multipart_form_part_limit": 0},
    "openapi_config": {
        "openapi_config": OpenAPIConfig("Theirs", "1", components=OPENAPI_COMPONENTS, create_examples=True)
    },
    "opt": {"opt": {"exclude_from_csrf": False, "exclude_from_auth": False, "flowactions_rules": None}},
    "parameters": {"parameters": {"tenant": HeaderParameter(annotation=str, name="X-Tenant", required=False)}},
    "plugins": {"plugins": [ProblemDetailsPlugin(ProblemDetailsConfig(enable_for_all_http_exceptions=True))]},
    "request_class": {"request_class": Impatient},
    "request_max_body_size": {"request_max_body_size": 1},
    "response_cache_config": {"response_cache_config": ResponseCacheConfig(default_expiration=600)},
    "response_class": {"response_class": Enveloped},
    "response_cookies": {"response_cookies": [Cookie(key="theirs", value="1")]},
    "response_headers": {
        "response_headers": [ResponseHeader(name="strict-transport-security", value="max-age=1")]
    },
    "return_dto": {"return_dto": TheirDTO},
    "security": {"security": [{"theirs": []}]},
    "signature_namespace": {"signature_namespace": dict.fromkeys(THEIR_TYPES, Theirs)},
    "signature_types": {"signature_types": [type("Chat", (), {}), type("Response", (), {})]},
    "state": {"state": State({"chat": "theirs"})},
    "static_files_config": {
        "routes": [create_static_files_router("/", [Path(__file__).parent], html_mode=True)]
    },
    "tags": {"tags": ["theirs"]},
    "template_config": {
        "template_config": TemplateConfig(engine=JinjaTemplateEngine, directory=Path(__file__).parent)
    },
    "type_decoders": {"type_decoders": [(lambda kind: kind is Theirs, lambda kind, _: kind())]},
    "type_encoders": {
        "type_encoders": {datetime: lambda _: "theirs", str: lambda _: "theirs", dict: lambda _: "theirs"}
    },
}
"""Setting → a value that reaches what is below it."""

NOT_OF_REQUESTS = {
    *(
        "event_emitter_backend",
        "experimental_features",
        "listeners",
        "on_app_init",
        "on_shutdown",
        "on_startup",
    ),
    *("debugger_module", "include_in_schema", "lifespan", "pdb_on_exception", "stores", "websocket_class"),
}
"""What has nothing to do with the answer to a request, or does it through another setting."""


def test_all_settings_of_an_app_are_in_these_tables() -> None:
    """A release of Litestar with another setting fails here, so that somebody looks at it."""
    known = {name.partition(" ")[0] for name in HARMLESS} | {"guards", "path"} | NOT_OF_REQUESTS
    assert known == inspect.signature(Litestar.__init__).parameters.keys() - {"self", "route_handlers"}


@pytest.mark.parametrize("setting", HARMLESS)
async def test_a_setting_of_the_app_changes_no_answer(
    setting: str, run: ChatHost, plain: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests of every kind are answered as if the app had set nothing."""
    caplog.set_level(logging.CRITICAL)
    app = app_of(run, **HARMLESS[setting])
    if app.openapi_config is not None:
        assert "/v1/webhooks/outbox" in app.openapi_schema.to_schema()["paths"]
    assert differences(await answers(app), plain) == []


async def test_no_store_stands_beside_what_the_app_says(run: ChatHost) -> None:
    """Where an app has this header in its own form, an answer has both, and caches obey the stricter one (RFC 9111 §5.2.2.5)."""
    app = app_of(run, response_headers=[ResponseHeader(name="Cache-Control", value="public")])
    for name, (answer, _) in (await answers(app, dashboard_requests)).items():
        assert "no-store" in answer.headers["cache-control"], name


SIGN_IN = NotAuthorizedException("Sign in.")


async def everywhere(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """A guard as people first write it."""
    if "session" not in connection.cookies:
        raise SIGN_IN


async def where_needed(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard as the page says."""
    if not handler.opt.get("exclude_from_auth"):
        await everywhere(connection, handler)


class OfPeople(LoggedIn):
    """Authentication that leaves the routes of backends out."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, exclude=["^/v1/agents/"])


@pytest.mark.parametrize("settings", [{"guards": [where_needed]}, {"middleware": [LoggedIn]}])
async def test_who_has_a_signature_needs_no_session(settings: Any, run: ChatHost, plain: Answers) -> None:
    """Litestar's authentication leaves these routes out, and so does a guard that reads the same mark; people sign in."""
    app = app_of(run, **settings)
    without = [each for each in signed_requests() if each.name != "logic webhook"]
    assert differences(await answers(app, lambda: [*without, *public_requests()]), plain) == []
    statuses = {answer.status_code for answer, _ in (await answers(app, dashboard_requests)).values()}
    assert statuses == {401, 404}  # the file of the pages' style needs no session


async def test_backends_need_a_rule_of_their_own(run: ChatHost, plain: Answers) -> None:
    """Their token is the host's, so authentication of people refuses it, unless the host leaves the path out."""
    for settings in ({"guards": [everywhere]}, {"guards": [where_needed]}, {"middleware": [LoggedIn]}):
        answer, _ = (await answers(app_of(run, **settings), signed_requests))["logic webhook"]
        assert answer.status_code == 401
    assert differences(await answers(app_of(run, middleware=[OfPeople]), signed_requests), plain) == []


async def test_hosts_that_probes_name_otherwise_are_left_out(run: ChatHost, plain: Answers) -> None:
    """An orchestrator asks by address: the health routes are left out of the check of hosts."""
    for excluded, expected in ((None, {400}), (["^/integrations/health/"], {200})):
        app = app_of(run, allowed_hosts=AllowedHostsConfig(["host"], exclude=excluded))
        probes = await answers(app, lambda: public_requests()[:2], host="http://10.0.0.7:8000")
        assert {answer.status_code for answer, _ in probes.values()} == expected
        assert differences(await answers(app), plain) == []


NAMES = ("limit", "cursor", "agent_id")
REQUIRED = {"tenant": HeaderParameter(annotation=str, name="X-Tenant", required=True)}


@pytest.mark.parametrize("name", NAMES)
async def test_a_dependency_with_the_name_of_a_parameter_is_declared_elsewhere(
    name: str, run: ChatHost, plain: Answers
) -> None:
    """Litestar does not start the app; on a router of the host's, the dependency disturbs nobody."""
    theirs = {name: Provide(lambda: "theirs", sync_to_thread=False)}
    with pytest.raises(ImproperlyConfiguredException, match=name):
        app_of(run, dependencies=theirs)
    own = Router("/theirs", route_handlers=[], dependencies=theirs)
    assert differences(await answers(app_of(run, [own])), plain) == []


async def test_a_required_parameter_of_all_routes_is_declared_elsewhere(run: ChatHost, plain: Answers) -> None:
    """It is required of the plugin's routes, too; on a router of the host's, it is not."""
    refused = await answers(app_of(run, parameters=REQUIRED), signed_requests)
    assert {answer.status_code for answer, _ in refused.values()} == {400}
    own = Router("/theirs", route_handlers=[], parameters=REQUIRED)
    assert differences(await answers(app_of(run, [own])), plain) == []


async def test_a_wrapped_app_keeps_all_of_its_settings_to_itself(run: ChatHost, plain: Answers) -> None:
    """`wrap` is the way out for settings that no route can be left out of."""
    settings: dict[str, Any] = {"guards": [everywhere], "parameters": REQUIRED, "allowed_hosts": ["elsewhere"]}
    app = Litestar([], openapi_config=None, logging_config=None, **settings)
    assert differences(await answers(run.actions.wrap(app, lifespan=False)), plain) == []


async def test_the_path_of_an_app_is_before_the_routes(run: ChatHost, plain: Answers) -> None:
    """They answer below it, as all other routes of the app do."""
    app = app_of(run, path="/api")
    assert {answer.status_code for answer, _ in (await answers(app)).values()} == {404}
    below = [each._replace(path=f"/api{each.path}") for each in all_requests()]
    assert differences(await answers(app, lambda: below), plain) == []
