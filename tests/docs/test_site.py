from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Page

from flowactions_conformance.kit import under_test
from tests.docs.environments import INSTALL
from tests.docs.links import ROOT
from tests.docs.tutorials import browser_page, chromium

pytestmark = pytest.mark.ci

SAFETY_SECONDS = 1500
OPTIONS = ("-W", "--keep-going", "-n", "-q", "-b", "html", "-c", "docs")


SEARCHED = {
    "401": "signature-does-not-verify.html",
    "429": "receive-webhooks.html",
    "uninstall": "operate.html",
}
"""Words that a reader searches for, with a page that must be among the first ten."""


def build(output: Path, root: Path = ROOT, repository: str = "") -> subprocess.CompletedProcess[str]:
    """Build the site as its configuration says."""
    environment = {**os.environ, "DOCS_REPOSITORY": repository}
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *OPTIONS, "-d", f"{output}.doctrees", ".", str(output)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SAFETY_SECONDS,
        check=False,
    )


class _Page(HTMLParser):
    """Reads what a page of the site leads to, and what can be led to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.links.append(value)
            elif name == "id" and value:
                self.ids.add(value)


def not_built(site: Path) -> list[Path]:
    """Give the Markdown files of the documentation that are no page of the site."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "CHANGELOG.md"]
    assert len(pages) > 75
    return [page for page in pages if not (site / page.relative_to(ROOT).with_suffix(".html")).exists()]


def lost_links(site: Path) -> list[str]:
    """List the links that lead nowhere: to pages, anchors, images and downloads, those of the theme among them."""
    built = {path: _Page(path) for path in site.rglob("*.html") if path.parent.name != "_static"}
    lost = []
    for path, page in built.items():
        for link in page.links:
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            where, anchor = urldefrag(link)
            target = (path.parent / unquote(where.partition("?")[0])).resolve() if where else path
            if not target.exists():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif anchor and target in built and unquote(anchor) not in built[target].ids:
                lost.append(f"{path.relative_to(site)}: {link} has no such anchor")
    return lost


def fetched_from_elsewhere(site: Path) -> list[str]:
    """List the fonts, scripts and styles of others that a reader's browser would ask for."""
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    elements = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", text)
    return [each for each in elements if re.search(r"(?:src|href)=\"(?:https?:)?//", each)]


@contextmanager
def browsing(site: Path) -> Iterator[tuple[Page, str]]:
    """Open a browser that may use the clipboard; give it with the site's URL."""
    handler = partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser_page() as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield page, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of requests."""


def copied(page: Page, url: str) -> list[str]:
    """Press the button of each block of a page; give what is then in the clipboard."""
    page.goto(url)
    texts = []
    for button in page.locator("button.copy").all():
        button.click()
        page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
        texts.append(page.evaluate("navigator.clipboard.readText()"))
    return texts


def found(page: Page, url: str, words: str) -> list[str]:
    """Search the site; give the pages that are found, the first one first."""
    page.goto(f"{url}/search.html?q={words}")
    page.wait_for_function("document.querySelector('.search-summary')?.textContent.includes('found')")
    links = page.locator("#search-results ul.search li a").all()
    return [(link.get_attribute("href") or "").partition("#")[0] for link in links]


def test_the_site_is_whole(tmp_path: Path) -> None:
    """Built without a warning, it has every page; each link and anchor leads somewhere; nothing is fetched elsewhere.

    In a browser, a block's button copies what is typed, and guides are found before decisions. One test, because the site takes most of its time: processes that share the tests would each build it.
    """
    site = tmp_path / "html"
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert not_built(site) == []
    assert lost_links(site) == []
    assert fetched_from_elsewhere(site) == []
    driver = (site / "docs" / "reference" / "driver.html").read_text()
    assert [
        name
        for name, member in vars(under_test.HostDriver).items()
        if callable(member) and f'id="{under_test.__name__}.HostDriver.{name}"' not in driver
    ] == []
    if chromium() is None:
        assert os.environ.get("CI") != "true", "in CI the site must be looked at: install chromium"
        return
    with browsing(site) as (page, url):
        texts = copied(page, f"{url}/docs/tutorials/fastapi-host.html")
        assert texts[0].splitlines() == [
            "python3 -m venv .venv",
            INSTALL,
            ".venv/bin/pip install --quiet fastapi",
        ]
        assert not any(text.startswith("$ ") or "listening at" in text for text in texts)
        for words, page_of_it in SEARCHED.items():
            assert any(each.endswith(page_of_it) for each in found(page, url, words)[:10]), words
        for words in ("replay", "retry", "secret", "proxy"):
            pages = found(page, url, words)
            places = ["docs/decisions" in each for each in pages[:10]]
            assert places == sorted(places), (words, pages[:10])
            assert not places[0]


def test_links_lead_to_the_repository_or_fail_the_build(tmp_path: Path) -> None:
    """A missing page, anchor or image is a warning, and warnings are errors; a folder is shown where DOCS_REPOSITORY says."""
    (tmp_path / "docs" / "site").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1"\n')
    (tmp_path / "docs" / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    shutil.copytree(ROOT / "docs" / "static", tmp_path / "docs" / "static")
    (tmp_path / "docs" / "glossary.md").write_text("# Words\n")
    lost = ["[a](nowhere-1.md)", "[a](glossary.md#nowhere-2)", "[a](#nowhere-3)", "![a](images/nowhere-4.png)"]
    text = "\n\n".join(["# A page", "[words](glossary.md)", "[the folder](site/)", *lost])
    (tmp_path / "docs" / "index.md").write_text(f"{text}\n")
    done = build(tmp_path / "html", tmp_path, "https://example.com/project/tree/main")
    assert done.returncode == 1
    expected = [f"nowhere-{number}" for number in range(1, 5)]
    assert sorted(set(re.findall(r"nowhere-\d", done.stderr))) == expected
    page = (tmp_path / "html" / "docs" / "index.html").read_text()
    assert 'href="https://example.com/project/tree/main/docs/site"' in page
