"""The demo in a browser: signing in, and what a picture is kept as."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.async_api import Page, expect

from flowactions_conformance.demo import Demo

SHOTS = os.environ.get("FLOWACTIONS_TEST_SCREENSHOTS")
"""A folder for pictures of pages; without it none are made."""


async def sign_in(page: Page, demo: Demo, path: str) -> None:
    """Open a page as Ada."""
    await page.goto(f"{demo.host_url}{path}")
    await page.get_by_test_id("sign-in-ada").click()
    await page.wait_for_url(f"**{path}**")


async def connect(page: Page, demo: Demo) -> None:
    """Connect the fake workspace, by clicking."""
    await sign_in(page, demo, "/connections")
    await page.click("#connect")
    await page.click("#allow")
    await expect(page.locator("#notice")).to_have_text("The workspace is connected.")


async def picture(page: Page, name: str) -> None:
    """Keep what is seen, when pictures are wanted."""
    if SHOTS:
        folder = Path(SHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        await page.mouse.move(0, 0)
        await page.screenshot(path=folder / f"{name}.png")
