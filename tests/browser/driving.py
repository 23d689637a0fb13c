"""A browser, and what tests and pictures do with pages in it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from playwright.async_api import Browser, Page, async_playwright, expect

from flowactions_conformance.demo import Demo
from tests import npm

Scheme: TypeAlias = Literal["light", "dark"]

LIMIT_MS: Final = 60_000
"""For what a page is about to show: only what never comes takes so long."""

WIDTHS: Final = (390, 1024, 1280, 1440, 1920)
"""At which no table is wider than its window."""

SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")

LAYOUTS: Final[dict[tuple[int, Scheme], tuple[str, ...]]] = {
    (1280, "light"): (),
    (1280, "dark"): ("color-contrast",),
    (768, "light"): ("color-contrast",),
    (390, "dark"): (),
}
"""The layouts that pages have, in both colour schemes, and the rules of axe that are checked there; none: all of them."""

_QUIET: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """Return where Chromium is; ``None``: this machine has none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@asynccontextmanager
async def a_browser(executable: str) -> AsyncIterator[Browser]:
    """A headless browser that talks to nobody of its own accord, until the block is left."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=list(_QUIET))
        try:
            yield browser
        finally:
            await browser.close()


async def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window, or one of its tables than its place."""
    found: int = await page.evaluate(
        "Math.max(...[document.documentElement, ...document.querySelectorAll('.scroll')]"
        ".map((each) => each.scrollWidth - each.clientWidth))"
    )
    return found


def axe_core(folder: Path) -> str:
    """Return the script of axe-core, which npm installs into a folder."""
    npm.install(folder, "axe-core@4", module=False)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


async def violations(page: Page, axe: str, rules: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Return what axe finds wrong with a page: the rule, the first element and what is wrong with it.

    Args:
        page: the page.
        axe: the script of axe-core.
        rules: only these rules; empty: all.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(axe)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found = await page.evaluate("(options) => axe.run(options)", options)
    return [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in found["violations"]
    ]


async def sign_in(page: Page, url: str, path: str, who: str = "ada") -> None:
    """Open a page of the reference host as one of its people.

    Args:
        page: where.
        url: the host's.
        path: the page's.
        who: their id.
    """
    await page.goto(f"{url}{path}")
    await page.get_by_test_id(f"sign-in-{who}").click()
    await page.wait_for_url(f"**{path}**")


async def connect(page: Page, demo: Demo) -> None:
    """Connect the fake workspace, by clicking."""
    await sign_in(page, demo.host_url, "/connections")
    await page.click("#connect")
    await page.click("#allow")
    await expect(page.locator("#notice")).to_have_text("The workspace is connected.")


async def other_tab(page: Page, demo: Demo, who: str) -> Page:
    """Open the sample flow in a browser of its own."""
    browser = page.context.browser
    assert browser is not None
    context = await browser.new_context(viewport={"width": 1360, "height": 860})
    context.set_default_timeout(LIMIT_MS)
    other = await context.new_page()
    await other.goto(f"{demo.host_url}/editor?flow=order-placed")
    await other.get_by_test_id(f"sign-in-{who}").click()
    await expect(other.locator("#items .choice > span")).to_have_count(3)
    return other


async def rewrite(page: Page, kind: str, field: str, value: str) -> None:
    """Write into a field of a node."""
    await page.locator(f"[data-type={kind}] .choice").click()
    await page.fill(f"#field-{field}", value)


async def save(page: Page, said: str = "Saved") -> None:
    """Save by keyboard, and wait for what the page says of it."""
    await page.keyboard.press("Control+s")
    await expect(page.locator("#status")).to_contain_text(said)


def operator_pages(deliveries: Sequence[str], action: str | None) -> dict[str, str]:
    """Return the operator pages by name, below their root, so far as their rows are there.

    Args:
        deliveries: the ids that `rows.fill` returned.
        action: the id of a bulk action.
    """
    pages = {
        "overview": "",
        "deliveries": "/deliveries",
        "search": "/deliveries?status=dead&destination=https://hooks.acme.example",
        "filter-wrong": "/deliveries?since=soon",
        "preview": "/actions/new?kind=retry",
        "preview-resend": "/actions/new?kind=resend&since=1d",
        "actions": "/actions",
        "destinations": "/destinations",
        "connections": "/connections",
        "inbound": "/inbound",
        "event": "/inbound?id=msg_1",
        "found": "/find?q=example",
        "nothing": "/find?q=nothing-like-this",
        "audit": "/audit",
        "missing": "/deliveries/missing",
    }
    named = {"delivery": 0, "dead": 1, "delivered": 2, "pending": 4}
    pages |= {
        name: f"/deliveries/{deliveries[number]}" for name, number in named.items() if number < len(deliveries)
    }
    if len(deliveries) > named["delivered"]:
        pages["resend-one"] = f"/actions/new?kind=resend&id={deliveries[named['delivered']]}"
    if action is not None:
        pages["action"] = f"/actions/{action}"
    return pages
