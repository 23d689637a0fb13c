"""A host answers around the plugins' routes as it does without them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from starlette.applications import Starlette
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from flowactions_conformance.serving import serve
from tests.contract.wrap.bare_host import bare
from tests.contract.wrap.django_host import django_host
from tests.contract.wrap.probe import loaded
from tests.contract.wrap.quart_host import quart
from tests.contract.wrap.starlette_hosts import ORIGIN, fastapi, make, starlette
from tests.rings import sampled
from tests.waiting import SAFETY_SECONDS, until

HOSTS: dict[str, Callable[..., Any]] = {
    "fastapi": fastapi,
    "starlette": starlette,
    "quart": quart,
    "django": django_host,
    "bare": bare,
}
PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "GET"}


class Ask(NamedTuple):
    """A request of a test."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  not changed


ASKS = [
    Ask("GET", "/items/7"),
    Ask("GET", "/items/caf%C3%A9?q=1&q=2"),
    Ask("HEAD", "/items/7"),
    Ask("POST", "/items", b'{"a": 1}', {"content-type": "application/json"}),
    Ask("DELETE", "/items"),
    Ask("GET", "/nothing"),
    Ask("GET", "/"),
    Ask("GET", "//items//7"),
    Ask("GET", "/slash"),
    Ask("GET", "/slash/"),
    Ask("GET", "/items/7/"),
    Ask("GET", "/boom"),
    Ask("GET", "/refuse"),
    Ask("GET", "/teapot"),
    Ask("GET", "/who"),
    Ask("POST", "/login", b"ada"),
    Ask("GET", "/who"),
    Ask("GET", "/stream"),
    Ask("POST", "/upload", b"x" * 300_000),
    Ask("GET", "/background"),
    Ask("GET", "/typed/7"),
    Ask("GET", "/typed/seven"),
    Ask("GET", "/openapi.json"),
    Ask("GET", "/items/7", b"", {"origin": ORIGIN}),
    Ask("GET", "/items/7", b"", {"origin": "http://elsewhere.test"}),
    Ask("OPTIONS", "/items/7", b"", PREFLIGHT),
    Ask("OPTIONS", "/items/7"),
    # On the plugins' paths, what is not theirs:
    Ask("PUT", "/v1/webhooks/outbox", b"{}", {"content-type": "application/json"}),
    Ask("DELETE", "/v1/webhooks/outbox"),
    Ask("HEAD", "/v1/webhooks/outbox"),
    Ask("OPTIONS", "/v1/webhooks/outbox"),
    Ask("OPTIONS", "/v1/webhooks/outbox", b"", PREFLIGHT),
    Ask("OPTIONS", "/integrations/probe/removed/x"),
    Ask("GET", "/v1/agents/7"),
    Ask("GET", "/v1/agents/7/experiences/8/logic-webhook"),
    Ask("GET", "/v1/webhooks"),
    Ask("GET", "/v1/webhooks/outbox2"),
    Ask("GET", "/integrations/probe/seen/seven"),
    Ask("PATCH", "/integrations/probe/seen/7"),
    Ask("GET", "/integrations/probe/seen"),
    Ask("GET", "/integrations"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The errors that hosts raise on purpose are not logged, in this test."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "django", "host", "quart.app")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an app, in Django's case one without a lifespan."""
    async with serve(without_lifespan(app) if isinstance(app, ASGIHandler) else app) as url:
        yield url


def without_lifespan(app: Any) -> Any:
    """Answer the lifespan for Django, as a server does that goes on without."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})

    return served


async def answers(url: str, asks: list[Ask]) -> list[Any]:
    """Ask in turn, as one browser with cookies."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for ask in asks:
            answer = await client.request(ask.method, ask.path, content=ask.body, headers=ask.headers)
            headers = {
                name: value.replace(url, "URL")
                for name, value in answer.headers.multi_items()
                if name != "date"
            }
            if "set-cookie" in headers:  # signed with the time
                headers["set-cookie"] = headers["set-cookie"].partition("=")[0]
            found.append((ask.method, ask.path, answer.status_code, headers, answer.text.replace(url, "URL")))
        if any(ask.path == "/background" for ask in asks) and answer_of(found, "/background") == "0 done":
            # The task that the first of these began ends in its own time.
            async with asyncio.timeout(SAFETY_SECONDS):
                while (await client.get("/background")).text == "0 done":  # noqa: ASYNC110  the task is the framework's
                    await asyncio.sleep(0.01)
    return found


def answer_of(found: list[Any], path: str) -> str:
    """Give the body of the answer for a path."""
    return next(str(each[4]) for each in found if each[1] == path)


@sampled("host", HOSTS, size=3)
async def test_a_host_answers_as_without_the_plugins(host: str, tmp_path: Path) -> None:
    """Every status, header and body is the same: errors, redirects, sessions, CORS, state, streams, other methods."""
    async with serving(HOSTS[host](None)) as url:
        alone = await answers(url, ASKS)
    async with serving(HOSTS[host](loaded(tmp_path).wrap)) as url:
        wrapped = await answers(url, ASKS)
        async with httpx.AsyncClient(base_url=url, timeout=SAFETY_SECONDS) as client:
            ours = await client.get("/v1/webhooks/outbox", headers={"x-user": "ada"})
    assert wrapped == alone
    statuses = {status for _, _, status, _, _ in alone}
    assert statuses >= ({203, 500} if host == "bare" else {200, 201, 404, 405, 500})
    assert (ours.status_code, ours.json()["data"]) == (200, [])


@pytest.mark.parametrize("host", ["starlette", "bare"])
@pytest.mark.parametrize("path", ["/ws", "/v1/webhooks/outbox"])
async def test_websockets_are_the_hosts(host: str, path: str, tmp_path: Path) -> None:
    """Also on a path that is a plugin's for HTTP."""
    async with serving(HOSTS[host](loaded(tmp_path).wrap)) as url:
        protocols: Any = None if host == "bare" else ["echo"]
        async with connect(
            url.replace("http", "ws") + path, subprotocols=protocols, proxy=None, open_timeout=SAFETY_SECONDS
        ) as socket:
            for text in ("one", "two"):
                await socket.send(text)
                assert str(await socket.recv()).endswith(f": {text}")
            assert socket.subprotocol == (protocols and "echo")


@pytest.mark.parametrize("host", ["starlette", "django"])
async def test_a_websocket_that_the_host_refuses_is_refused(host: str, tmp_path: Path) -> None:
    """With the status that the host alone gives."""
    refusals = []
    for wrap in (None, loaded(tmp_path).wrap):
        async with serving(HOSTS[host](wrap)) as url:
            with pytest.raises(InvalidStatus) as refused:
                await connect(
                    url.replace("http", "ws") + "/integrations/probe/echo",
                    proxy=None,
                    open_timeout=SAFETY_SECONDS,
                )
            refusals.append(refused.value.response.status_code)
    assert refusals[0] == refusals[1]


async def test_a_host_hears_that_its_client_is_gone(tmp_path: Path) -> None:
    """A disconnect reaches the host's own routes."""
    app = make(Starlette, loaded(tmp_path).wrap, stamped=False)
    async with serving(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=SAFETY_SECONDS) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get("/slow", timeout=httpx.Timeout(SAFETY_SECONDS, read=0.2))
        await until(lambda: app.state.gone == ["client"])


async def test_a_stream_arrives_as_it_is_made(tmp_path: Path) -> None:
    """A request's body is streamed into the host, and its answer out of it."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"y" * 10_000

    async with (
        serving(fastapi(loaded(tmp_path).wrap)) as url,
        httpx.AsyncClient(base_url=url, timeout=300) as client,
    ):
        assert (await client.post("/upload", content=body())).json() == {"total": 200_000}
        async with client.stream("GET", "/stream") as answer:
            assert "".join([part async for part in answer.aiter_text()]).count("part") == 5


@sampled("host", HOSTS, size=3)
async def test_the_plugins_routes_are_reached_in_every_host(host: str, tmp_path: Path) -> None:
    """By path and method, with parameters and trailing slash, as Litestar routes them; a broken one breaks no host."""
    async with (
        serving(HOSTS[host](loaded(tmp_path).wrap)) as url,
        httpx.AsyncClient(base_url=url, timeout=300) as client,
    ):
        seen = await client.get("/integrations/probe/seen/7/?q=1")
        assert seen.json() == {
            "number": 7,
            "url": f"{url}/integrations/probe/seen/7?q=1",
            "path": "/integrations/probe/seen/7",
        }
        assert (await client.post("/integrations/probe/echo", content=b"z" * 200_000)).json() == {
            "length": 200_000
        }
        assert (await client.get("/integrations/probe/files/a/b/c.txt")).text == "/a/b/c.txt"
        assert (await client.head("/integrations/probe/both")).status_code == 200
        assert (await client.get("/integrations/probe/both")).text == "both"
        assert (await client.delete("/integrations/probe/removed/x")).status_code == 204
        assert (await client.options("/integrations/probe/options")).text == "the plugin's own"
        assert (await client.get("/integrations/probe/broken")).status_code == 500
        assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "unauthorized"
        known = await client.get("/v1/webhooks/outbox", headers={"x-user": "ada"})
        assert (known.status_code, known.json()["data"]) == (200, [])
