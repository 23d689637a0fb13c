"""Who may see and do what on the operator pages: every handler, every role."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
import pytest
from litestar.routes import HTTPRoute
from sqlalchemy import insert

from flowactions_hookspecs import FlowActions
from flowactions_plugin.pages.routes import PAGES
from flowactions_plugin.storage.schema import workers
from tests.plugin.pages.conftest import FORM, ROOT, SAME_ORIGIN, OperatedHost, Site, a_site
from tests.plugin.stored import a_worker
from tests.support import app_with_routes, transport_of

ID = "00000000-0000-7000-8000-000000000000"
ROLES = ("nobody", "reader", "changer", "operator reader", "operator", "other")
PUBLIC = {"/static/{name}", "/session"}


class Page(NamedTuple):
    method: str
    path: str
    template: str


def all_pages() -> Iterator[Page]:
    """Find every route below the root of the pages."""
    for route in app_with_routes(FlowActions.load(OperatedHost())).routes:
        if isinstance(route, HTTPRoute) and route.path.startswith(ROOT):
            path = route.path_format.removeprefix(ROOT)
            for handler in route.route_handlers:
                for method in set(handler.http_methods) - {"OPTIONS"}:
                    filled = path.replace("{delivery_id}", ID).replace("{action_id}", ID)
                    yield Page(str(getattr(method, "value", method)), filled, path)


ROUTES = sorted(all_pages())
GUARDED = [each for each in ROUTES if each.template not in PUBLIC]
CHANGING = [each for each in GUARDED if each.method == "POST" and each.path != "/sign-out"]
PREPARING = [each for each in GUARDED if each.method == "GET" and each.path == "/actions/new"]
READING = [each for each in GUARDED if each.method == "GET" and each not in PREPARING]

FORMS: dict[str, dict[str, str]] = {
    "/destinations/pause": {"destination": "https://hooks.example.com"},
    "/destinations/resume": {"destination": "https://hooks.example.com"},
    "/actions": {"kind": "retry", "token": "x"},
}


async def ask(site: Site, page: Page, **headers: str) -> httpx.Response:
    if page.method == "GET":
        query = "?kind=retry" if page.path == "/actions/new" else ""
        return await site.get(page.path + query, headers=headers)
    return await site.post(page.path, FORMS.get(page.path), **headers)


def test_every_handler_of_the_pages_is_tested_here() -> None:
    """Each stands behind the guard, but for the style and the session, which have their own checks."""
    assert len(GUARDED) == len(PAGES) == 16
    assert {each.template for each in ROUTES} - {each.template for each in GUARDED} == PUBLIC


async def test_nobody_sees_or_does_anything(site: Site) -> None:
    """401 on every page, whatever is sent, and before anything else is looked at."""
    site.sign_in("nobody")
    for page, headers in product(
        GUARDED, ({}, {"sec-fetch-site": "cross-site"}, {"content-type": "text/plain"})
    ):
        answer = await ask(site, page, **headers)
        assert answer.status_code == 401, (page, headers)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "nav" not in answer.text


@pytest.mark.parametrize("role", [role for role in ROLES if role != "nobody"])
async def test_everybody_who_is_signed_in_may_look(site: Site, role: str) -> None:
    """Every page that only shows; what does not exist is a 404."""
    site.sign_in(role)
    for page in READING:
        answer = await ask(site, page)
        expected = {303} if page.path == "/find" else {404} if ID in page.path else {200}
        assert answer.status_code in expected, page


@pytest.mark.parametrize("role", ["reader", "operator reader"])
async def test_readers_change_nothing(site: Site, role: str) -> None:
    """403 on every handler that changes something, and on the pages that prepare it; no page offers it to them."""
    dead = await site.put("dead")
    site.sign_in(role)
    for page in (*CHANGING, *PREPARING):
        answer = await ask(site, page)
        assert (answer.status_code, "You may look at this" in answer.text) == (403, True), page
    for path in ("/deliveries", f"/deliveries/{dead}", "/destinations"):
        shown = (await site.get(path)).text
        assert "actions/new" not in shown
        assert 'method="post"' not in shown
    assert await site.statuses() == {dead: "dead"}
    assert await site.execute("SELECT 1 FROM flowactions_audit") == []


@pytest.mark.parametrize("role", ["changer", "operator"])
async def test_changers_come_to_every_handler(site: Site, role: str) -> None:
    """The control: it answers what it answers, and not 401 or 403."""
    site.sign_in(role)
    for page in CHANGING:
        assert (await ask(site, page)).status_code in {200, 303, 400, 404, 409}, page


CROSS: list[tuple[dict[str, str], bool]] = [
    ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, True),
    ({"sec-fetch-site": "cross-site", "origin": "http://host"}, False),
    ({"sec-fetch-site": "none"}, False),
    ({"origin": "https://host"}, True),  # behind a proxy that terminates TLS
    ({"origin": "http://evil.example"}, False),
    ({"referer": "http://host/integrations/webhooks"}, False),
    ({"authorization": "Bearer x"}, False),
]
"""Which headers say so is `tests/plugin/http/test_cross_site.py`'s; here, what says nothing is refused, too."""


async def test_a_form_is_taken_from_a_page_of_the_same_origin_only(site: Site) -> None:
    """On every handler that takes one, also on plain http, where browsers send no ``Sec-Fetch-Site``."""
    for (headers, allowed), page in product(CROSS, (*CHANGING, Page("POST", "/sign-out", ""))):
        site.sign_in("changer")
        answer = await site.browser.post(
            ROOT + page.path, data=FORMS.get(page.path, {}), headers={**FORM, **headers}
        )
        assert (answer.status_code != 403) is allowed, (headers, page)


async def test_a_form_is_nothing_else(site: Site) -> None:
    """JSON, text and files are 415; a body that is too long, fields that are unknown, repeated or not UTF-8 are refused."""
    site.sign_in("operator")
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x", ""):
        for page in CHANGING:
            answer = await site.browser.post(
                ROOT + page.path, content=b"a=b", headers={**SAME_ORIGIN, "content-type": kind}
            )
            assert answer.status_code == 415, (page, kind)
    bodies = {
        b"x" * 100_000: 413,
        b"nothing=1": 400,
        b"reason=%ff": 400,
        b"reason=\xff": 400,
        b"a=" * 3000: 400,
    }
    for (body, status), page in product(bodies.items(), CHANGING):
        answer = await site.browser.post(ROOT + page.path, content=body, headers={**SAME_ORIGIN, **FORM})
        assert answer.status_code == status, (page, body[:20])


async def test_every_answer_has_the_headers_of_a_page(site: Site) -> None:
    """A strict policy, nothing stored, nothing framed; pages, refusals and redirects alike."""
    for role, page in product(("nobody", "reader", "operator"), GUARDED):
        site.sign_in(role)
        answer = await ask(site, page)
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:;"
            " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ), page
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.status_code != 303:
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            for inline in ("<style", "style=", "onclick", "javascript:"):
                assert inline not in answer.text


async def test_without_the_lifespan_pages_answer_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a method of the host is called; the style is there all the same."""
    host = OperatedHost()
    transport = transport_of(FlowActions.load(host))
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        for page in (*GUARDED, Page("POST", "/session", "")):
            answer = await client.request(page.method, ROOT + page.path)
            assert answer.status_code == 503, page
        style = (await client.get(ROOT)).text.partition('href="webhooks/static/')[2].partition('"')[0]
        assert (await client.get(f"{ROOT}/static/{style}")).status_code == 200
    assert host.asked == []


async def test_the_operator_is_asked_before_the_dashboard(site: Site) -> None:
    """Who is both sees everything."""
    await site.put(organization_id="globex")
    site.sign_in("changer")
    principal = site.host.principal
    site.sign_in("operator")
    site.host.principal = principal
    assert "globex" in (await site.get("/deliveries")).text


@pytest.mark.parametrize("wrong", ["yes", {"user_id": "u"}, 7], ids=["text", "mapping", "number"])
async def test_an_operator_of_a_wrong_type_names_the_hosts_method(
    site: Site, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with nothing of it on the page, and one line in the log."""
    site.host.person = wrong
    answer = await site.get()
    assert answer.status_code == 500
    assert "OperatedHost.operator must return" in caplog.text
    assert "Look" in answer.text or "log" in answer.text


async def test_an_organization_sees_and_changes_nothing_of_another(site: Site) -> None:
    """Rows, single deliveries, actions and pauses; named outright, they are absent."""
    own = await site.put("dead", event_type="own.event")
    site.sign_in("other")
    assert "own.event" not in (await site.get("/deliveries")).text
    assert "own.event" not in (await site.get("/deliveries?organization=acme")).text
    assert (await site.get(f"/deliveries/{own}")).status_code == 404
    preview = await site.get(f"/actions/new?kind=delete&id={own}")
    assert (preview.status_code, 'name="token"' in preview.text) == (200, False)
    form = {"destination": "https://hooks.example.com", "organization": "acme"}
    assert (await site.post("/destinations/pause", form)).status_code == 400
    assert await site.execute("SELECT 1 FROM flowactions_pauses") == []
    assert await site.statuses() == {own: "dead"}


async def test_what_others_have_waiting_changes_nothing_that_an_organization_is_shown(site: Site) -> None:
    """Older rows of theirs to the same destination, due and claimed, are counted on none of its pages and routes."""
    own = await site.put(organization_id="acme")
    site.sign_in("changer")
    now = int(time.time() * 1000)
    later = now + 3_600_000
    await site.queue.run(insert(workers).values(a_worker(later, slots=9, last_claim_at=later)))

    async def shown() -> list[str]:
        paths = [page.path for page in all_pages() if page.method == "GET" and page.path != "/static/{name}"]
        answers = [await site.get(path.replace(ID, own)) for path in paths]
        answers += [await site.browser.get(f"/v1/webhooks/outbox{path}") for path in ("", f"/{own}")]
        moving = r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\d{13}|(\d+ (ms|s|min|h)\b ?)+|\d+:\d\d|nonce=\S+"
        return [re.sub(moving, "…", answer.text) for answer in answers]

    await site.execute("UPDATE flowactions_outbox SET next_attempt_at = :due", due=now - 60_000)
    before = await shown()
    assert any("a worker claims it" in text for text in before)
    others = [await site.put(organization_id="globex") for _ in range(40)]
    due = "UPDATE flowactions_outbox SET next_attempt_at = :due WHERE organization_id = 'globex'"
    await site.execute(due, due=now - 70_000)
    held = "UPDATE flowactions_outbox SET claimed_by = :token, claimed_until = :until WHERE id = :id"
    for row_id in others[:20]:
        await site.execute(held, token="t" * 32, until=later, id=row_id)
    await site.execute("UPDATE flowactions_workers SET in_flight = 7")
    assert await shown() == before


async def test_nobody_is_led_to_the_login_path(sqlite_url: str) -> None:
    """With the page that was asked for; a form is not led anywhere."""
    settings = {"FLOWACTIONS_DATABASE_URL": sqlite_url, "FLOWACTIONS_HOST_WORKER": "off"}
    settings |= {"FLOWACTIONS_LOGIN_PATH": "/login", "BACKEND_PUBLIC_URL": "https://app.example.com"}
    async with a_site(settings) as site:
        site.sign_in("nobody")
        answer = await site.get("/deliveries?status=dead")
        assert answer.status_code == 303
        there = "https://app.example.com/login?next=%2Fintegrations%2Fwebhooks%2Fdeliveries%3Fstatus%3Ddead"
        assert answer.headers["location"] == there
        doubled = await site.browser.get(f"http://host/{ROOT}/deliveries")
        assert doubled.headers["location"].partition("?")[2].startswith("next=%2Fintegrations")
        odd = await site.get("/deliveries/a%3Fb%23Z%C3%B6e")
        encoded = odd.headers["location"].partition("next=")[2]
        assert unquote(encoded) == f"{ROOT}/deliveries/a%3Fb%23Z%C3%B6e"
        assert (await site.browser.post(f"{ROOT}/actions", data={"a": "b"})).status_code == 401
