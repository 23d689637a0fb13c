"""Wherever the pages are mounted, their links, forms, redirects, style and session lead to the right place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from litestar import Litestar
from starlette.applications import Starlette
from starlette.routing import Mount

from flowactions_hookspecs import FlowActions
from tests.plugin.cli.test_doctor_now import CHAT
from tests.plugin.pages.conftest import FORM, KEY, ROOT, SAME_ORIGIN, OperatedHost
from tests.support import development


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def in_litestar(actions: FlowActions) -> Any:
    return Litestar([*actions.route_handlers], openapi_config=None, logging_config=None)


def wrapped(actions: FlowActions) -> Any:
    return actions.wrap(nothing, lifespan=False)


def wrapped_below(actions: FlowActions) -> Any:
    return Starlette(routes=[Mount("/below", app=actions.wrap(nothing, lifespan=False))])


def behind_a_cutting_proxy(actions: FlowActions) -> Any:
    """A proxy that cuts the start of the path, and tells nobody."""
    inner = actions.wrap(nothing, lifespan=False)

    async def cut(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/cut")
        await inner({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return cut


PLACES = [
    pytest.param(in_litestar, "", "", id="Litestar"),
    pytest.param(in_litestar, "/api/v2", "/api/v2", id="Litestar with a prefix"),
    pytest.param(wrapped, "", "", id="wrapped"),
    pytest.param(wrapped, "/api", "/api", id="wrapped with a prefix"),
    pytest.param(wrapped_below, "", "/below", id="mounted"),
    pytest.param(wrapped_below, "/api", "/below/api", id="mounted with a prefix"),
    pytest.param(behind_a_cutting_proxy, "/api", "/cut/api", id="behind a proxy"),
]


@pytest.mark.parametrize(("build", "prefix", "start"), PLACES)
async def test_every_link_leads_to_a_page(
    build: Callable[[FlowActions], Any], prefix: str, start: str, sqlite_url: str
) -> None:
    """From every page, also with a slash at the end of the overview's address."""
    host = OperatedHost(development(sqlite_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_ENCRYPTION_KEYS=KEY))
    host.token = "t0ken"
    actions = FlowActions.load(host, prefix=prefix)
    app = build(actions)
    root = f"http://host{start}{ROOT}"
    async with actions.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as browser:
        answer = await browser.post(f"{root}/session", headers={"authorization": "Bearer t0ken"})
        assert answer.status_code == 204
        waiting, seen = [root, f"{root}/"], set()
        while waiting:
            url = waiting.pop()
            if url in seen:
                continue
            seen.add(url)
            answer = await browser.get(url)
            assert answer.status_code == 200, url
            links = re.findall(r'(?:href|src)="([^"#]+)"', answer.text)
            waiting += [urljoin(url, link.replace("&amp;", "&")) for link in links if link != "data:,"]
        names = {url.removeprefix(root).partition("?")[0] for url in seen}
        assert {"", "/deliveries", "/destinations", "/actions", "/audit"} <= names
        assert any(name.startswith("/static/style.") for name in names)
        headers = {**SAME_ORIGIN, **FORM}
        form = {"destination": "https://hooks.example.com"}
        answer = await browser.post(f"{root}/destinations/pause", data=form, headers=headers)
        assert urljoin(str(answer.url), answer.headers["location"]) == f"{root}/destinations"
        answer = await browser.post(f"{root}/sign-out", headers=headers, data={})
        assert urljoin(str(answer.url), answer.headers["location"]) == root
        assert (await browser.get(root)).status_code == 401


@pytest.mark.parametrize("settings", [{}, CHAT], ids=["no chat", "chat"])
async def test_they_lead_back_to_the_dashboard(settings: dict[str, str], sqlite_url: str) -> None:
    """To the page on which an install of chat ends, which exists where chat is set up."""
    host = OperatedHost(development(sqlite_url, FLOWACTIONS_HOST_WORKER="off", **settings))
    actions = FlowActions.load(host)
    transport = httpx.ASGITransport(in_litestar(actions))
    async with actions.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://host") as browser:
        page = (await browser.get(ROOT)).text
    assert ('<a href="https://host.example/connections">Back to the dashboard</a>' in page) is bool(settings)
