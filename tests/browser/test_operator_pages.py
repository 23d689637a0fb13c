"""The operator pages in a real browser: accessibility, narrow and wide, light and dark, with and without JavaScript."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from litestar import Litestar
from playwright.async_api import Page, Route, expect

from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Operator
from flowactions_plugin.clock import new_id
from flowactions_plugin.insights import search as search_queries
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.operations.resend import send_one_again
from flowactions_plugin.operators.scope import Actor, Scope
from tests.browser.driving import LAYOUTS, SCHEMES, WIDTHS, operator_pages, overflow, violations
from tests.browser.rows import DESTINATIONS, fill
from tests.queueing import Queue
from tests.support import SmallHost, development, services_of

pytestmark = [pytest.mark.browser, pytest.mark.ci]

ROOT = "/integrations/webhooks"


class WatchedHost(SmallHost):
    """Everybody operates it, until a test says otherwise."""

    person: Operator | None = Operator(user_id="olive", user_name="Olive", may_change=True)

    async def operator(self, request: Any) -> Operator | None:
        return self.person


COUNT = 60
"""Deliveries of a site with rows."""


class Site:
    """A served host, at first without rows."""

    def __init__(self, host: WatchedHost, url: str) -> None:
        self.host = host
        self.root = url + ROOT
        self.queue = Queue(services_of(host)._database)
        self.ids: list[str] = []
        self.action = ""

    async def fill(self) -> None:
        """Write deliveries in every state, pause a destination, and begin a bulk action."""
        self.ids = await fill(self.queue.database, COUNT)
        async with httpx.AsyncClient(
            base_url=self.root, headers={"sec-fetch-site": "same-origin"}, timeout=300
        ) as client:
            form = {"destination": DESTINATIONS[2], "reason": "their certificate is broken"}
            await client.post("/destinations/pause", data=form)
            shown = (await client.get("/actions/new?kind=retry")).text
            hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', shown))
            form = {**hidden, "reason": "the receiver is up again", "rate": "50"}
            begun = await client.post("/actions", data=form)
            assert begun.status_code == 303, begun.text
            self.action = begun.headers["location"].rpartition("/")[2]

    async def send_again(self) -> str:
        """Send a delivered webhook again, three times, and give its id."""
        found = await self.queue.queries.deliveries(Scope(), Filter.of(status="delivered"), None, 1)
        who = Actor("olive", "Olive", "operator")
        for _ in range(3):
            assert await send_one_again(self.queue.database, found.rows[0].id, Scope(), who) is not None
        return found.rows[0].id


@pytest.fixture
async def bare(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A site without rows."""
    monkeypatch.chdir(tmp_path)
    host = WatchedHost(development(sqlite_url, FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    app = Litestar([*actions.route_handlers], lifespan=[actions.lifespan], logging_config=None)
    async with serve(app) as url:
        yield Site(host, url)


@pytest.fixture
async def site(bare: Site) -> Site:
    """A site with rows."""
    await bare.fill()
    return bare


async def look(page: Page, axe: str, name: str) -> list[tuple[str, ...]]:
    """Return what is wrong with a page that is open: wide and narrow, light and dark, with what it folds away."""
    wrong: list[tuple[str, ...]] = []
    await page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 860})
        if wider := await overflow(page):
            wrong.append((name, str(width), f"{wider} pixels too wide"))
    for (width, scheme), rules in LAYOUTS.items():
        await page.set_viewport_size({"width": width, "height": 860})
        await page.emulate_media(color_scheme=scheme)
        wrong += [(name, str(width), scheme, *each) for each in await violations(page, axe, rules)]
    return wrong


@pytest.mark.node
@pytest.mark.parametrize("filled", [False, True], ids=["no rows", "rows"])
async def test_every_page_can_be_read(page: Page, bare: Site, axe: str, *, filled: bool) -> None:
    """On a desktop and a phone, light and dark: axe finds nothing, nothing is cut off, the policy refuses nothing."""
    pages = operator_pages((), None)
    if filled:
        await bare.fill()
        resent = await bare.send_again()
        pages = operator_pages(bare.ids, bare.action) | {"resent": f"/deliveries/{resent}"}
    said: list[str] = []
    wrong: list[tuple[str, ...]] = []
    page.on("console", lambda message: said.append(message.text))
    for name, path in pages.items():
        answer = await page.goto(bare.root + path)
        assert answer is not None
        assert answer.status == {"missing": 404, "filter-wrong": 400}.get(name, 200), name
        wrong += await look(page, axe, name)
    if filled:
        await page.goto(f"{bare.root}/destinations")
        await page.fill("#destination", DESTINATIONS[2])
        await page.click(".confirm button.danger")
        await expect(page.locator("main")).to_contain_text("Paused")
        wrong += await look(page, axe, "paused again")
    bare.host.person = None
    for person in (bare.host.principal, *(() if filled else (None,))):
        bare.host.principal = person
        for path in ("", "/inbound"):
            await page.goto(bare.root + path)
            wrong += await look(page, axe, f"{path} of {person}")
    assert wrong == []
    assert [text for text in said if "status of 40" not in text] == []


async def test_pages_stay_up_to_date_and_move_nothing(page: Page, site: Site) -> None:
    """A row that changes is shown anew where it stands, a new one is announced; nothing happens while one selects."""
    await page.goto(f"{site.root}/deliveries")
    first = page.locator("[data-rows] tr").first
    await expect(first).to_contain_text("retrying")
    rows = await page.locator("[data-rows] tr").count()
    await first.locator("input").check()
    await site.queue.run("UPDATE flowactions_outbox SET status = 'dead', finished_at = 1")
    await page.wait_for_timeout(6_000)  # longer than from one refresh to the next
    await expect(first).to_contain_text("retrying")
    await first.locator("input").uncheck()
    await expect(first).to_contain_text("dead", timeout=300_000)
    await site.queue.put(id=new_id(time.time() + 60))
    await expect(page.locator("[data-new]")).to_be_visible(timeout=300_000)
    assert await page.locator("[data-rows] tr").count() == rows


async def test_a_search_goes_on_until_something_is_found(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request by request, each of which reads a few rows back; it says how far, and can be stopped."""
    monkeypatch.setattr(search_queries, "READ_BACK", 7)
    rare = await site.queue.put(id=new_id(time.time() - 600), event_type="rare")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{site.root}/deliveries?type=rare")
    await expect(page.locator(f"[data-rows] code:text-is('{rare}')")).to_be_visible()
    assert sum("cursor=" in url for url in asked) >= 60 // 7
    await page.goto(f"{site.root}/deliveries?type=none")
    await expect(page.get_by_text("No delivery matches.")).to_be_visible()
    stopped = asyncio.Event()

    async def late(route: Route) -> None:
        await stopped.wait()
        await route.continue_()

    await page.route("**/deliveries?*cursor=*", late)
    await page.goto(f"{site.root}/deliveries?type=rare")
    since = page.locator("[data-searching] time")
    before = await since.get_attribute("datetime")
    await page.get_by_role("button", name="Stop searching").click()
    async with page.expect_response("**/deliveries?*cursor=*"):
        stopped.set()
    await expect(page.get_by_role("button", name="Stop searching")).to_have_count(0)
    assert await since.get_attribute("datetime") == before
    await page.get_by_role("link", name="Older").click()
    await expect(page.locator(f"[data-rows] code:text-is('{rare}')")).to_be_visible()


async def test_everything_works_without_javascript(page: Page, site: Site) -> None:
    """Find, filter, select, preview, confirm, stop."""
    assert page.context.browser is not None
    context = await page.context.browser.new_context(java_script_enabled=False)
    bare = await context.new_page()
    await bare.goto(f"{site.root}/deliveries?status=dead&since=2026-03-01%2014:00")
    await expect(bare.locator("time").first).to_contain_text("UTC")
    await expect(bare.locator(".zone")).to_have_text("Times: UTC")
    await expect(bare.locator("label[for=f-since]")).to_have_text("Enqueued from (UTC)")
    await expect(bare.locator("#f-since")).to_have_value("2026-03-01T14:00:00.000Z")
    for number in range(2):
        await bare.locator("[data-rows] input").nth(number).check()
    await bare.click("button[value=retry]")
    await expect(bare.locator("h1")).to_have_text("Retry 2 deliveries?")
    await bare.fill("#reason", "by hand")
    await bare.click("button.primary")
    await expect(bare.locator("main")).to_contain_text("by hand")
    await bare.click("button.danger")
    await expect(bare.locator("h1")).to_contain_text("stopped")
    await context.close()


async def test_a_chart_tells_its_values(page: Page, site: Site) -> None:
    """One stop of the Tab key a chart; arrow keys, a tap and the mouse show the numbers of one interval, without JavaScript."""
    assert page.context.browser is not None
    context = await page.context.browser.new_context(java_script_enabled=False)
    bare = await context.new_page()
    await bare.goto(site.root)
    hour = bare.locator(".bars").first
    last = hour.get_by_role("radio", name=re.compile(r"UTC: [\d,]+ delivered, [\d,]+ failed.*, so far$"))
    await last.focus()
    await bare.keyboard.press("ArrowLeft")
    before = hour.get_by_role("radio").nth(10)
    await expect(before).to_be_focused()
    values = hour.locator(".value")
    assert await values.nth(10).evaluate("each => getComputedStyle(each).clipPath") == "none"
    assert await values.nth(11).evaluate("each => getComputedStyle(each).clipPath") != "none"
    await hour.locator("label").nth(2).hover()
    shown = [
        await each.evaluate("each => getComputedStyle(each).clipPath") == "none" for each in await values.all()
    ]
    assert [index for index, each in enumerate(shown) if each] == [2]
    await bare.keyboard.press("Tab")
    await expect(hour.locator("input:focus")).to_have_count(0)
    await context.close()
    kathmandu = await in_zone(page, "Asia/Kathmandu")
    await kathmandu.goto(site.root)
    tick = kathmandu.locator(".times time").first
    at = datetime.fromisoformat(str(await tick.get_attribute("datetime")))
    there = at.astimezone(timezone(timedelta(hours=5, minutes=45)))
    await expect(tick).to_have_text(f"{there:%H:%M}")


async def in_zone(page: Page, zone: str) -> Page:
    """Open a page of another reader."""
    assert page.context.browser is not None
    context = await page.context.browser.new_context(timezone_id=zone)
    return await context.new_page()


async def search(page: Page, **fields: str) -> dict[str, list[str]]:
    """Search deliveries by the form; give the query that was sent."""
    for name, value in fields.items():
        await page.fill(f"#f-{name}", value)
    async with page.expect_navigation():
        await page.click(".filters button:text-is('Search')")
    return parse_qs(urlsplit(page.url).query)


async def test_a_time_means_the_same_in_every_zone(page: Page, site: Site) -> None:
    """What is typed or picked is of the reader's zone, which is named; the link has the offset, in summer and in winter."""
    berlin, york = await in_zone(page, "Europe/Berlin"), await in_zone(page, "America/New_York")
    await berlin.goto(f"{site.root}/deliveries")
    await expect(berlin.locator(".zone")).to_have_text(re.compile(r"Times: Europe/Berlin \(UTC\+0[12]:00\)"))
    await berlin.click(".filters summary")
    await expect(berlin.locator("label[for=f-since]")).to_have_text("Enqueued from (Europe/Berlin)")
    await berlin.get_by_role("button", name="Pick: Enqueued before").click()
    await berlin.get_by_label("Date and time: Enqueued before").fill("2026-07-01T14:30:00")
    sent = await search(berlin, since="2026-03-01 14:00")
    times = {"since": "2026-03-01T14:00:00+01:00", "before": "2026-07-01T14:30:00+02:00"}
    assert {name: sent[name] for name in times} == {name: [value] for name, value in times.items()}
    await expect(berlin.locator("#f-before")).to_have_value("2026-07-01 14:30:00")
    await york.goto(berlin.url)
    await expect(york.locator("#f-since")).to_have_value("2026-03-01 08:00:00")
    await expect(york.locator("#f-before")).to_have_value("2026-07-01 08:30:00")
    await york.click(".filters summary")
    again = await search(york)
    assert [datetime.fromisoformat(again[name][0]) for name in times] == [
        datetime.fromisoformat(value) for value in times.values()
    ]


async def test_words_for_times_are_of_the_readers_day(page: Page, site: Site) -> None:
    """A time without a day is the last one that was; what names no time of a zone is left to the server."""
    berlin = await in_zone(page, "Europe/Berlin")
    await berlin.clock.set_fixed_time(datetime(2026, 7, 1, 22, 30, tzinfo=UTC))
    for text, sent in (
        ("0:15", "2026-07-02T00:15:00+02:00"),
        ("14:00", "2026-07-01T14:00:00+02:00"),
        ("Yesterday", "2026-07-01T00:00:00+02:00"),
        ("today", "2026-07-02T00:00:00+02:00"),
        ("yesterday 9:05", "2026-07-01T09:05:00+02:00"),
        ("2026-03-29 02:30", "2026-03-29T03:30:00+02:00"),
        ("2h", "2h"),
        ("2026-07-01T12:00Z", "2026-07-01T12:00Z"),
        ("2026-02-30", "2026-02-30"),
    ):
        await berlin.goto(f"{site.root}/deliveries")
        await berlin.click(".filters summary")
        assert (await search(berlin, since=text))["since"] == [sent], text


async def test_a_bulk_action_shows_its_window_in_the_readers_zone_and_in_utc(page: Page, site: Site) -> None:
    """In the preview, on its own page, in the list and in the audit."""
    berlin = await in_zone(page, "Europe/Berlin")
    await berlin.goto(f"{site.root}/actions/new?kind=retry&since=2026-03-01T14:00:00%2B01:00&before=1s")
    shown = berlin.locator(".chips li", has_text="since")
    await expect(shown).to_contain_text("14:00:00")
    await expect(shown).to_contain_text("2026-03-01 13:00:00 UTC")
    await berlin.click("button.primary")
    for path in ("", "/actions", "/audit"):
        if path:
            await berlin.goto(site.root + path)
        await expect(berlin.locator(".chips li", has_text="13:00:00 UTC").first).to_contain_text("14:00:00")


LOOKS = """() => {
  const look = (element) => {
    const { color, backgroundColor, borderTopColor, opacity, cursor } = getComputedStyle(element);
    return { color, backgroundColor, borderTopColor, opacity: Number(opacity), cursor };
  };
  const looks = {};
  for (const kind of ["select", "textarea"]) document.querySelector("main").append(document.createElement(kind));
  for (const element of document.querySelectorAll("button, .button, input:not([type=hidden]), select, textarea")) {
    const own = `${element.localName}${element.type ?? ""}.${element.className}`;
    const [on, off] = [element.cloneNode(true), element.cloneNode(true)];
    [on.disabled, off.disabled] = [false, true];
    if (element.localName === "a") off.setAttribute("aria-disabled", "true");
    element.after(on, off);
    looks[own] = [look(on), look(off)];
    on.remove();
    off.remove();
  }
  return looks;
}"""


async def test_what_is_disabled_looks_so(page: Page, site: Site) -> None:
    """Each kind of button, field, and link that looks like a button, light and dark; also below the pointer."""
    pages = operator_pages(site.ids, site.action)
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        kinds: dict[str, list[dict[str, Any]]] = {}
        for name in ("deliveries", "destinations", "preview", "dead", "action"):
            await page.goto(site.root + pages[name])
            kinds |= await page.evaluate(LOOKS)
        assert {each.rpartition(".")[2] for each in kinds} >= {"", "primary", "danger", "quiet", "button"}
        assert {each.partition(".")[0] for each in kinds} >= {
            "buttonsubmit",
            "inputcheckbox",
            "inputtext",
            "selectselect-one",
            "a",
        }
        for kind, (on, off) in kinds.items():
            assert (on["opacity"], off["cursor"]) == (1, "not-allowed"), (scheme, kind)
            assert off["opacity"] <= 0.7, (scheme, kind)
            assert {off["color"], off["backgroundColor"]} != {on["color"], on["backgroundColor"]}, (
                scheme,
                kind,
            )
        await page.goto(site.root + pages["deliveries"])
        button = page.locator(".bulk button").first
        await expect(button).to_be_disabled()
        look = "(element) => { const style = getComputedStyle(element); return [style.backgroundColor, style.opacity]; }"
        before = await button.evaluate(look)
        await button.hover(force=True)
        assert await button.evaluate(look) == before
        await page.locator("td.check input").first.check()
        await expect(button).to_be_enabled()
        assert await button.evaluate(look) != before
