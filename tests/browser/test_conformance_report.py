from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.report.written import write_report
from tests.conformance.test_reports import FAILED, HOSTILE, a_report, a_result

pytestmark = [pytest.mark.browser, pytest.mark.ci]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_report_is_readable(
    page: Page, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    """On a desktop and a phone, light and dark: nothing is cut off, the policy refuses nothing that the page has."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    await page.set_viewport_size({"width": width, "height": 900})
    await page.emulate_media(color_scheme=scheme)
    await page.goto(write_report(FAILED, tmp_path).as_uri())
    await expect(page.locator("h1")).to_contain_text("NOT PROVED: 1 failed")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")
    failure = page.locator("#EAGER-2")
    for text in (
        "contract: Advancing",
        "what is wrong in EAGER-2",
        "two requests",
        "the host calls advance() twice",
    ):
        await expect(failure).to_contain_text(text)
    await expect(failure).to_contain_text("--check EAGER-2")
    await expect(failure).to_contain_text("open flow-1")
    assert said == []


async def test_a_check_leads_to_what_is_known_of_it(page: Page, tmp_path: Path) -> None:
    """All checks are listed; those that did not simply pass are links."""
    await page.goto(write_report(FAILED, tmp_path).as_uri())
    assert await page.locator("#checks + table tr").count() == 6
    await page.click("#checks + table a[href='#HALT-2']")
    await expect(page.locator("#HALT-2")).to_be_in_viewport()


async def test_what_a_host_says_is_only_text(page: Page, tmp_path: Path) -> None:
    """Markup in a title is shown, and runs nothing."""
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    report = a_report(a_result("EAGER-1", Status.FAIL, title=HOSTILE), host=HOSTILE, output=HOSTILE)
    await page.goto(write_report(report, tmp_path).as_uri())
    await expect(page.locator("h3")).to_contain_text("<script>alert(1)</script>")
    assert await page.locator("script, img").count() == 0
    assert dialogs == []
