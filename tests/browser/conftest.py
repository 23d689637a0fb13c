from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from flowactions_conformance.demo import Demo, running_demo
from tests.browser.driving import LIMIT_MS, a_browser, axe_core, chromium

expect.set_options(timeout=LIMIT_MS)


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[Demo]:
    """The reference host, the fake provider and the receiver, running."""
    async with running_demo({}, tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core, from npm."""
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page of a real, headless Chromium. Any error on it fails the test."""
    executable = chromium()
    if executable is None:
        assert os.environ.get("CI") != "true", "in CI the browser tests must run: install chromium"
        pytest.skip("there is no Chromium on this machine")
    errors: list[str] = []
    async with a_browser(executable) as browser:
        context = await browser.new_context(viewport={"width": 1360, "height": 860})
        context.on("weberror", lambda error: errors.append(str(error.error)))
        context.set_default_timeout(LIMIT_MS)
        yield await context.new_page()
    assert errors == []
