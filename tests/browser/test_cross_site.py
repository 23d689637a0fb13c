"""Pages of other origins against a dashboard whose session cookie a browser sends along whatever the site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, MediaType, Response, get
from litestar.datastructures import Cookie
from playwright.async_api import Page
from sqlalchemy import insert, text

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.serving import listen, serve, url_of
from flowactions_hookspecs import DashboardPrincipal, FlowActions, Node
from flowactions_plugin.storage.schema import chat_connections
from tests.chatting import chat_settings
from tests.plugin.stored import a_connection
from tests.queueing import Queue
from tests.support import SmallHost, a_walk, services_of
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.ci]

ATTACK = """
async ({ host, dead, waiting }) => {
  const outbox = `${host}/v1/webhooks/outbox`;
  const chat = `${host}/integrations/chat`;
  const posts = [
    [`${outbox}/${dead}/retry`, ""],
    [`${outbox}/${waiting}/cancel`, ""],
    [`${outbox}/retry`, '{"all":true}'],
    [`${chat}/send-message`, '{"text":"hello"}'],
  ];
  const quietly = (call) => call.catch(() => {});
  const submit = (action, enctype, fields) => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = `f${Math.random()}`;
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, { action, enctype, method: "POST", target: frame.name });
    for (const [name, value] of Object.entries(fields)) {
      const input = document.createElement("input");
      Object.assign(input, { name, value, type: "hidden" });
      form.append(input);
    }
    document.body.append(form);
    frame.onload = () => done();
    form.submit();
  });
  for (const [url, body] of posts) {
    const options = { method: "POST", credentials: "include" };
    await quietly(fetch(url, { ...options, body, headers: { "content-type": "text/plain" } }));
    await quietly(fetch(url, { ...options, body, mode: "no-cors" }));
    await quietly(fetch(url, { ...options, body: new Blob([body]), mode: "no-cors" }));
    await quietly(fetch(url, { ...options, body: new URLSearchParams({ all: "true", text: "x" }), mode: "no-cors" }));
    await quietly(fetch(url, { ...options, body, headers: { "content-type": "application/json" } }));
    await quietly(fetch(url, { ...options, mode: "no-cors" }));
    navigator.sendBeacon(url, new Blob([body], { type: "text/plain" }));
    await submit(url, "application/x-www-form-urlencoded", { all: "true", text: "hello" });
    await submit(url, "multipart/form-data", { all: "true", text: "hello" });
    await submit(url, "text/plain", { '{"all":true,"text":"hello","x":"': '"}' });
    await new Promise((done) => Object.assign(new Image(), { onload: done, onerror: done, src: url }));
  }
  await quietly(fetch(`${chat}/connection`, { method: "DELETE", credentials: "include" }));
  const channel = { method: "PUT", credentials: "include", body: '{"channelId":"C00RANDOM"}' };
  await quietly(fetch(`${chat}/connection/default-channel`, channel));
  const install = `${chat}/install`;
  await new Promise((done) => Object.assign(new Image(), { onload: done, onerror: done, src: install }));
}
"""
EMBEDDED = 9 * 4
NAVIGATE = """
([action, enctype]) => {
  const form = Object.assign(document.createElement("form"), { action, enctype, method: "POST" });
  const [name, value] = ['{"all":true,"x":"', '"}'];
  if (enctype) form.append(Object.assign(document.createElement("input"), { name, value, type: "hidden" }));
  document.body.append(form);
  form.submit();
}
"""
FORMS = ["", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]


class CookieHost(SmallHost):
    """Knows people by a cookie only."""

    async def dashboard_principal(self, connection: Any) -> DashboardPrincipal | None:
        return self.principal if connection.cookies.get("session") == "ada" else None


class Site:
    """A served dashboard with two deliveries and a connected workspace, and what was asked of it."""

    def __init__(self, host: CookieHost, provider: FakeChatProvider) -> None:
        self.host = host
        self.provider = provider
        self.actions = FlowActions.load(host)
        self.url = ""
        self.dead = ""
        self.waiting = ""
        self.asked: list[tuple[str, str, bool, int]] = []
        self.app = Litestar([*self.actions.route_handlers, page, login], lifespan=[self.actions.lifespan])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def watch(message: Any) -> None:
            if message["type"] == "http.response.start":
                signed_in = any(
                    name == b"cookie" and b"session=ada" in value for name, value in scope["headers"]
                )
                self.asked.append((scope["method"], scope["path"], signed_in, message["status"]))
            await send(message)

        await self.app(scope, receive, watch)

    async def prepare(self) -> None:
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/hook"})
        for name in ("dead", "waiting"):
            setattr(self, name, str((await self.actions.reach(a_walk(), node)).delivery_id))
        await self.execute(
            "UPDATE flowactions_outbox SET status = 'dead', finished_at = 1 WHERE id = :id", id=self.dead
        )
        connection = a_connection("acme", default_channel="C0GENERAL")
        await Queue(services_of(self.host)._database).run(insert(chat_connections).values(connection))

    async def execute(self, statement: str, **parameters: Any) -> list[Any]:
        async with services_of(self.host)._database.write() as connection:
            found = await connection.execute(text(statement), parameters)
            return list(found.all()) if found.returns_rows else []

    async def state(self) -> Any:
        """Give all that an attack could have changed."""
        rows = await self.execute("SELECT id, status, next_attempt_at FROM flowactions_outbox ORDER BY id")
        connections = await self.execute("SELECT default_channel, status FROM flowactions_chat_connections")
        return rows, connections, self.provider.calls


@get("/page", media_type=MediaType.HTML, sync_to_thread=False)
def page() -> str:
    return "<!doctype html><title>A page</title><link rel=icon href=data:,>"


@get("/login", media_type=MediaType.HTML, sync_to_thread=False)
def login() -> Response[str]:
    cookie = Cookie(key="session", value="ada", samesite="none", secure=True, httponly=True)
    return Response("<!doctype html><link rel=icon href=data:,>", media_type=MediaType.HTML, cookies=[cookie])


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.chdir(tmp_path)
    provider = FakeChatProvider([sample_workspace()])
    async with AsyncExitStack() as stack:
        provider_url = await stack.enter_async_context(serve(provider.app))
        listener = listen()
        settings = chat_settings(f"sqlite:///{tmp_path / 'f.db'}", provider_url, FLOWACTIONS_HOST_WORKER="off")
        host = CookieHost({**settings, "BACKEND_PUBLIC_URL": url_of(listener)})
        made = Site(host, provider)
        made.url = await stack.enter_async_context(serve(made, listener))
        await made.prepare()
        yield made


async def signed_in(page: Page, site: Site) -> None:
    """Give the browser a session cookie that it sends whoever asks, as hosts with embedded dashboards have it."""
    await page.goto(f"{site.url}/login")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_no_page_of_another_origin_has_an_effect(page: Page, site: Site, name: str) -> None:
    """Forms, fetches without a preflight, beacons and images, of another port and of another host name."""
    await signed_in(page, site)
    before = await site.state()
    evil = Litestar([globals()["page"]], logging_config=None, openapi_config=None)
    async with serve(evil) as url:
        foreign = f"{url.replace('127.0.0.1', name)}/page"
        await page.goto(foreign)
        await page.evaluate(ATTACK, {"host": site.url, "dead": site.dead, "waiting": site.waiting})
        await until(lambda: len([each for each in site.asked if each[0] == "POST"]) >= EMBEDDED)
        embedded = list(site.asked)
        site.asked.clear()
        outbox = f"{site.url}/v1/webhooks/outbox"
        targets = [f"{outbox}/{site.dead}/retry", f"{outbox}/{site.waiting}/cancel", f"{outbox}/retry"]
        for target, kind in product(targets, FORMS):
            await page.goto(foreign)
            await page.evaluate(NAVIGATE, [target, kind])
            await page.wait_for_url(target)
    assert "DELETE" not in {method for method, *_ in (*embedded, *site.asked)}
    assert await site.state() == before
    # The cookie came along, so it was not SameSite that stopped them: with forms that navigate always, with what is
    # embedded where the other origin is of the same site.
    posts = [each[2:] for each in site.asked if each[0] == "POST"]
    assert posts == [(True, 403)] * len(targets) * len(FORMS)
    expected = (True, 403) if name == "127.0.0.1" else (False, 401)
    posts_and_image = [each for each in embedded if each[0] == "POST" or each[1].endswith("/install")]
    assert {each[2:] for each in posts_and_image} == {expected}


async def test_the_dashboards_own_page_has_one(page: Page, site: Site) -> None:
    """The control: what an own page sends is done."""
    await signed_in(page, site)
    await page.goto(f"{site.url}/page")
    status = await page.evaluate(
        """async ({ dead, waiting }) => {
          const json = { "content-type": "application/json" };
          const statuses = [];
          for (const [path, options] of [
            [`/${waiting}/cancel`, {}],
            ["/retry", { headers: json, body: '{"all":true}' }],
            [`/${dead}/retry`, {}],
          ])
            statuses.push((await fetch(`/v1/webhooks/outbox${path}`, { method: "POST", ...options })).status);
          return statuses;
        }""",
        {"dead": site.dead, "waiting": site.waiting},
    )
    assert status == [200, 202, 200]


async def test_a_link_on_a_foreign_page_leads_to_an_install(page: Page, site: Site) -> None:
    """A person who follows it comes to the provider's consent page, and decides there."""
    await signed_in(page, site)
    evil = Litestar([globals()["page"]], logging_config=None, openapi_config=None)
    async with serve(evil) as url:
        await page.goto(f"{url.replace('127.0.0.1', 'localhost')}/page")
        await page.evaluate("(url) => location.assign(url)", f"{site.url}/integrations/chat/install")
        await page.wait_for_selector("#allow")
