"""The operator pages in a real browser: accessibility, narrow and wide, light and dark, with and without JavaScript."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from litestar import Litestar
from playwright.async_api import Page, Route, expect

from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Operator
from flowactions_plugin.clock import new_id
from flowactions_plugin.deliveries import search_queries
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.resend import send_one_again
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.contact import token_prefix
from flowactions_plugin.queue.rules import transition
from tests.queueing import Queue
from tests.support import SmallHost, development, services_of

pytestmark = [pytest.mark.browser, pytest.mark.ci]

ROOT = "/integrations/webhooks"
SHOTS = os.environ.get("FLOWACTIONS_TEST_SCREENSHOTS")
"""A folder for pictures of every page; without it none are made."""

DESTINATIONS = (
    "https://hooks.acme.example:443",
    "https://api.globex.example:443",
    "https://events.initech.example:443",
    "http://127.0.0.1:9",
)
NOW_MS = int(time.time() * 1000)
ANSWERS = (
    Outcome(NOW_MS - 900, 12, status_code=200, response=b"ok"),
    Outcome(NOW_MS - 700, 40, status_code=503, response=b"<h1>Service unavailable</h1>"),
    Outcome(NOW_MS - 10_500, 10_004, error="timed out after 10 s while waiting for the answer"),
)


UNPROCESSED = (
    ("failed", 500, "Host.auth_event failed: LookupError; the log has the details"),
    ("refused", 401, "the signature does not fit the one secret of AUTH_WEBHOOK_SIGNING_SECRET"),
    ("invalid", 400, "The event has no data."),
    ("acknowledged", 200, ""),
)
"""Inbound requests that processed no event: result, status, reason."""


class WatchedHost(SmallHost):
    """Everybody operates it."""

    async def operator(self, request: Any) -> Operator | None:
        return Operator(user_id="olive", user_name="Olive", may_change=True)


class Site:
    """A served host with deliveries in every state."""

    def __init__(self, host: WatchedHost, url: str) -> None:
        self.host = host
        self.root = url + ROOT
        self.queue = Queue(services_of(host)._database)
        self.ids: list[str] = []
        self.action = ""
        self.resent = ""

    async def fill(self) -> None:
        """Write deliveries, some of which were attempted, with what is known of their destinations."""
        now = time.time()
        worker = new_id(now)
        self.queue.store.contact.token_prefix = token_prefix(worker)
        for index in range(60):
            destination = DESTINATIONS[index % 4]
            row_id = await self.queue.put(
                id=new_id(now - 60 + index),
                organization_id=("acme", "globex")[index % 2],
                agent_id="support",
                event_id=f"evt_{index:064x}",
                event_type=("order.placed", "flow.completed", "invoice.paid")[index % 3],
                url=f"{destination}/hooks?token=secret",
                destination=destination,
                headers=(("content-type", "application/json"), ("authorization", "Bearer abc")),
                body=b'{"order": 42, "note": "it\'s <b>bold</b>"}',
                idempotency_key=f"order-{index}",
            )
            self.ids.append(row_id)
        for _ in range(2):
            for claim in await self.queue.store.claim(50):
                index = self.ids.index(claim.id)
                outcome = ANSWERS[index % 3]
                await self.queue.complete(claim, outcome, transition(4 if index % 5 == 0 else 1, 4, outcome))
        for worker_id, name, seen, ahead in (
            (worker, "delivery", int(now * 1000) + 600_000, 600_000),
            (new_id(now), "frozen", int(now * 1000) - 60_000, 0),
        ):
            await self.queue.run(
                f"INSERT INTO flowactions_workers VALUES ('{worker_id}', '{name}', '0.2.0', 'web-1', 41, 'continuous', 100,"  # noqa: S608  numbers only
                f" 12, {int(now * 1000) - 9000000}, {seen}, {int(now * 1000)}, NULL, {ahead})"
            )
        await self.queue.run(
            f"UPDATE flowactions_attempts SET started_at = started_at + 600000 WHERE delivery_id = '{self.ids[2]}'"  # noqa: S608  an id
        )
        for bucket in range(288):
            at = (int(now) // 300 - bucket) * 300_000
            delivered = 16_000 + 2_800 * (bucket * 7 % 5)
            await self.queue.run(
                f"INSERT INTO flowactions_statistics VALUES ({at}, '', '', {delivered},"  # noqa: S608  numbers only
                f" {bucket % 3 * 900}, 6, 9000000)"
            )
        for index, destination in enumerate(DESTINATIONS):
            for bucket in range(12):
                at = (int(now) // 300 - bucket) * 300_000
                await self.queue.run(
                    f"INSERT INTO flowactions_statistics VALUES ({at}, 'acme', '{destination}',"  # noqa: S608  numbers only
                    f" {4000 + 700 * ((bucket * 7 + index) % 5)}, {index * 90}, {index}, {index * 500000 + 90000})"
                )
            await self.queue.run(
                f"INSERT INTO flowactions_destinations VALUES ('acme', '{destination}', {int(now * 1000) - 4000000},"  # noqa: S608  numbers only
                f" {int(now * 1000)}, {'NULL' if index < 3 else int(now * 1000) - 3000000}, {index * 9},"
                f" 'timeout', NULL, {int(now * 1000)})"
            )
        await self.queue.run(
            "INSERT INTO flowactions_chat_connections (organization_id, team_id, team_name, bot_user_id, app_id, scopes,"
            " installed_by_id, installed_by_name, installed_at, status, status_reason, sealed_token, default_channel)"
            " VALUES ('acme', 'T0ACME', 'Acme', 'b', '', '', 'ada', 'Ada', 1700000000000, 'revoked', 'token_revoked', 'x',"
            " 'C0GENERAL')"
        )
        await self.queue.run(
            "INSERT INTO flowactions_inbound_events (provider, event_id, received_at, event_type, repeats, repeated_at)"  # noqa: S608
            f" VALUES ('auth', 'msg_1', {NOW_MS - 90_000}, 'organization.deleted', 2, {NOW_MS - 30_000}),"
            " ('chat', 'Ev012', 1700000000000, NULL, 0, NULL)"
        )
        for number, (result, status, reason) in enumerate(UNPROCESSED):
            await self.queue.run(
                f"INSERT INTO flowactions_inbound_requests VALUES ('r{number}', 'auth', 'msg_2{number}', 'user.created',"  # noqa: S608
                f" {NOW_MS - 1000 * number}, '{result}', {status}, '{reason}', {number * 7})"
            )

    async def send_again(self) -> None:
        """Send a delivered webhook again, three times."""
        found = await self.queue.queries.deliveries(Scope(), Filter(status="delivered"), None, 1)
        self.resent = found.rows[0].id
        for _ in range(3):
            who = ("olive", "Olive", "operator")
            assert await send_one_again(self.queue.database, self.resent, None, who) is not None

    def pages(self) -> dict[str, str]:
        return {
            "overview": "",
            "deliveries": "/deliveries",
            "search": "/deliveries?status=dead&destination=https://hooks.acme.example",
            "delivery": f"/deliveries/{self.ids[2]}",
            "delivered": f"/deliveries/{self.resent or self.ids[0]}",
            "preview": "/actions/new?kind=replay",
            "preview-resend": "/actions/new?kind=resend&from=1d",
            "purge": "/purge?organization=acme",
            "actions": "/actions",
            "action": f"/actions/{self.action}",
            "destinations": "/destinations",
            "connections": "/connections",
            "inbound": "/inbound",
            "event": "/inbound?id=msg_1&result=repeated",
            "found": "/find?q=example",
            "nothing": "/find?q=nothing-like-this",
            "audit": "/audit",
            "missing": "/deliveries/missing",
        }


@pytest.fixture
async def site(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.chdir(tmp_path)
    host = WatchedHost(development(sqlite_url, FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    app = Litestar([*actions.route_handlers], lifespan=[actions.lifespan], logging_config=None)
    async with serve(app) as url:
        made = Site(host, url)
        await made.fill()
        async with httpx.AsyncClient() as client:
            headers = {"sec-fetch-site": "same-origin"}
            form = {"destination": DESTINATIONS[2], "reason": "their certificate is broken"}
            await client.post(f"{made.root}/destinations/pause", data=form, headers=headers)
            shown = (await client.get(f"{made.root}/actions/new?kind=replay")).text
            found = re.search(r'name="token" value="([^"]+)"', shown)
            assert found is not None, shown
            form = {"kind": "replay", "token": found[1], "reason": "the receiver is up again", "rate": "50"}
            begun = await client.post(f"{made.root}/actions", data=form, headers=headers)
            assert begun.status_code == 303, begun.text
            made.action = begun.headers["location"].rpartition("/")[2]
        yield made


@pytest.mark.node
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.full),
        pytest.param(390, "light", marks=pytest.mark.full),
    ],
)
async def test_every_page_can_be_read(
    page: Page, site: Site, axe: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    """On a desktop and a phone, light and dark: axe finds nothing, nothing is cut off, the policy refuses nothing."""
    await site.send_again()
    said: list[str] = []
    violations: list[tuple[str, ...]] = []
    page.on("console", lambda message: said.append(message.text))
    await page.set_viewport_size({"width": width, "height": 860})
    await page.emulate_media(color_scheme=scheme)
    for name, path in site.pages().items():
        answer = await page.goto(site.root + path)
        assert answer is not None
        assert answer.status == (404 if name == "missing" else 200), name
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
        for summary in await page.locator("main summary").all():
            await summary.click()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
        await page.evaluate(axe)
        found = await page.evaluate("axe.run({resultTypes: ['violations']})")
        violations += [
            (name, each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
            for each in found["violations"]
        ]
        if SHOTS:
            await page.goto(site.root + path)
            folder = Path(SHOTS)
            folder.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
    assert violations == []
    assert [text for text in said if "404" not in text] == []


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
    await expect(first).to_contain_text("dead", timeout=30_000)
    await site.queue.put(id=new_id(time.time() + 60))
    await expect(page.locator("[data-new]")).to_be_visible(timeout=30_000)
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
    await expect(page.locator(f"[data-rows] code:text-is('{rare[-12:]}')")).to_be_visible()
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
    await expect(page.locator(f"[data-rows] code:text-is('{rare[-12:]}')")).to_be_visible()


async def test_everything_works_without_javascript(page: Page, site: Site) -> None:
    """Find, filter, select, preview, confirm, undo."""
    assert page.context.browser is not None
    context = await page.context.browser.new_context(java_script_enabled=False)
    bare = await context.new_page()
    await bare.goto(f"{site.root}/deliveries?status=dead&from=2026-03-01%2014:00")
    await expect(bare.locator("time").first).to_contain_text("UTC")
    await expect(bare.locator(".zone")).to_have_text("Times: UTC")
    await expect(bare.locator("label[for=f-from]")).to_have_text("Enqueued from (UTC)")
    await expect(bare.locator("#f-from")).to_have_value("2026-03-01T14:00:00.000Z")
    await bare.locator("[data-rows] input").first.check()
    await bare.click("button[value=replay]")
    await expect(bare.locator("h1")).to_have_text("Replay 1 delivery?")
    await bare.fill("#reason", "by hand")
    await bare.click("button.primary")
    await expect(bare.locator("main")).to_contain_text("by hand")
    await bare.click("button.primary")
    await expect(bare.locator("h1")).to_contain_text("undone")
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
    await expect(berlin.locator("label[for=f-from]")).to_have_text("Enqueued from (Europe/Berlin)")
    await berlin.get_by_role("button", name="Pick: Enqueued before").click()
    await berlin.get_by_label("Date and time: Enqueued before").fill("2026-07-01T14:30:00")
    if SHOTS:
        await berlin.screenshot(path=Path(SHOTS) / "times-1280-light.png")
    sent = await search(berlin, **{"from": "2026-03-01 14:00"})
    times = {"from": "2026-03-01T14:00:00+01:00", "before": "2026-07-01T14:30:00+02:00"}
    assert {name: sent[name] for name in times} == {name: [value] for name, value in times.items()}
    await expect(berlin.locator("#f-before")).to_have_value("2026-07-01 14:30:00")
    await york.goto(berlin.url)
    await expect(york.locator("#f-from")).to_have_value("2026-03-01 08:00:00")
    await expect(york.locator("#f-before")).to_have_value("2026-07-01 08:30:00")
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
        assert (await search(berlin, **{"from": text}))["from"] == [sent], text


async def test_a_bulk_action_shows_its_window_in_the_readers_zone_and_in_utc(page: Page, site: Site) -> None:
    """In the preview, on its own page, in the list and in the audit."""
    berlin = await in_zone(page, "Europe/Berlin")
    await berlin.goto(f"{site.root}/actions/new?kind=replay&from=2026-03-01T14:00:00%2B01:00&before=1s")
    shown = berlin.locator(".chips li", has_text="from")
    await expect(shown).to_contain_text("14:00:00")
    await expect(shown).to_contain_text("2026-03-01 13:00:00 UTC")
    if SHOTS:
        await berlin.screenshot(path=Path(SHOTS) / "window-1280-light.png")
    await berlin.click("button.primary")
    for path in ("", "/actions", "/audit"):
        if path:
            await berlin.goto(site.root + path)
        await expect(berlin.locator(".chips li", has_text="13:00:00 UTC").first).to_contain_text("14:00:00")
