"""Walks through all pages, each of which a camera takes as it is then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import httpx
from playwright.async_api import Page, expect

from flowactions_conformance.demo import Demo, running_demo
from tests.browser.driving import connect, operator_pages, other_tab, rewrite, save, sign_in
from tests.browser.rows import DESTINATIONS

PAGES = "/integrations/webhooks"
OF_A_DASHBOARD = ("overview", "deliveries", "destinations", "inbound", "audit")


class Camera(Protocol):
    """Takes pages.

    Attributes:
        page: of the browser.
    """

    page: Page

    async def visit(self, url: str, pages: dict[str, str]) -> None:
        """Take pages by their names and addresses below a URL."""

    async def take(self, name: str) -> None:
        """Take what the browser shows."""


async def tour_of_operators(camera: Camera, url: str, ids: Sequence[str]) -> None:
    """Show the pages to nobody, to a person of a dashboard and to the operator, who then changes something.

    Args:
        camera: takes them.
        url: the host's.
        ids: of deliveries, as `rows.fill` returned them.
    """
    page, root = camera.page, url + PAGES
    await camera.visit(url, {"sign-in": PAGES, "host-login": "/login"})
    await sign_in(page, url, "/editor")
    pages = operator_pages((), None)
    await camera.visit(root, {f"{name}-ada": pages[name] for name in OF_A_DASHBOARD})
    await page.context.clear_cookies()
    await sign_in(page, url, "/editor", "olive")
    await page.goto(f"{root}/actions")
    link = await page.locator("tbody a").first.get_attribute("href") if ids else None
    await camera.visit(root, operator_pages(ids, None if link is None else link.rpartition("/")[2]))
    await camera.visit(url, {"host-connections": "/connections"})
    for name, reason, said in (
        ("paused", "their certificate is broken", "their certificate is broken"),
        ("replaced", "another reason", "another reason"),
    ):
        await page.goto(f"{root}/destinations")
        await page.fill("#destination", DESTINATIONS[2])
        await page.fill("#why", reason)
        await page.click(".confirm button.danger")
        await expect(page.locator("main")).to_contain_text(said)
        await camera.take(f"destinations-{name}")
    if len(ids) > 1:
        await page.goto(f"{root}/actions/new?kind=retry&status=dead")
        await page.fill("#reason", "the receiver is up again")
        await page.click("button.primary")
        await expect(page.locator("h1")).to_contain_text("waiting")
        await camera.take("action-waiting")
    await page.context.clear_cookies()


async def tour_of_authors(camera: Camera, folder: Path) -> None:
    """Show the demo's chat connection, and its editor in all that authors do with it.

    Args:
        camera: takes them.
        folder: for the demo's database.
    """
    page = camera.page
    async with running_demo({}, folder) as demo:
        await sign_in(page, demo.host_url, "/connections")
        await camera.take("connections-none")
        await page.context.clear_cookies()
        await connect(page, demo)
        await camera.take("connections-host")
        await _write(camera, demo)
        await _disagree(camera, demo)
        for left in (1, 0):
            await page.click("#delete-flow")
            await page.click("[data-choice=delete]")
            await expect(page.locator("#flows li")).to_have_count(left)
        await camera.take("editor-empty")
        await page.context.clear_cookies()


async def _open_flow(page: Page, demo: Demo) -> None:
    await page.goto(f"{demo.host_url}/editor?flow=order-placed")
    await expect(page.locator("#items .choice")).to_have_count(3)


async def _write(camera: Camera, demo: Demo) -> None:
    """Run a flow that is delivered and one that is retried; then preview, test, and make mistakes."""
    page = camera.page
    async with httpx.AsyncClient(base_url=demo.host_url, timeout=300) as client:
        for path in ("orders", "fail-first/9/x"):
            await page.goto(f"{demo.host_url}/editor?flow=order-placed")
            await rewrite(page, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/{path}")
            await save(page)
            await client.post("/run/flows/order-placed/open", json={"userId": "u1", "content": "x"})
    await page.goto(f"{demo.host_url}/run/order-placed?author")
    await page.click("#start")
    await expect(page.locator("#run [data-status=retrying]")).to_be_visible()
    await camera.take("run")
    await _open_flow(page, demo)
    await expect(page.locator("#runs .run")).to_have_count(3)
    await expect(page.locator("#items [data-status=retrying]")).to_be_visible()
    await camera.take("editor-runs")
    await _open_flow(page, demo)
    await camera.take("editor-flow")
    await page.locator("[data-type=chat_message] .choice").click()
    await expect(page.locator("#preview .message > p")).to_have_text("#orders")
    await camera.take("editor-chat")
    await rewrite(page, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/orders")
    await expect(page.locator("#preview .line")).to_contain_text("/hooks/orders")
    await camera.take("editor")
    await page.click("#test")
    await expect(page.locator("#test-outcome")).to_contain_text("It answered 200 after")
    await camera.take("editor-test")
    await page.fill("#field-webhookBody", '{\n  "order": {{content}},\n  "user": {{userId}\n}')
    await page.fill("#field-webhookUrl", "http://169.254.169.254/orders")
    await expect(page.locator("#field-webhookBody-error")).to_contain_text("line 3, column 11")
    await camera.take("editor-mistake")


async def _disagree(camera: Camera, demo: Demo) -> None:
    """Change what somebody else has changed, and remove a node."""
    page = camera.page
    page.once("dialog", lambda asked: asked.accept())  # what was not saved is left
    await _open_flow(page, demo)
    other = await other_tab(page, demo, "olive")
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/olive")
    await other.locator("[data-type=step] .choice").click()
    await other.fill("#field-title", "Thanks a lot!")
    await save(other)
    await other.context.close()
    await rewrite(page, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/ada")
    await page.locator("[data-type=chat_message]").get_by_label("Remove").click()
    await camera.take("editor-undo")
    await page.keyboard.press("Control+s")
    await expect(page.locator("dialog.question.wide")).to_be_visible()
    await camera.take("editor-conflict")
    await page.locator("[data-choice=theirs]").click()
