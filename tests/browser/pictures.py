"""Takes pictures of all pages, wide and narrow, light and dark, with few and with many rows, and says what is wrong with them.

    python -m tests.browser.pictures OUT [--rows 0 1 100000] [--database sqlite|postgres] [--only PAGE …] [--docs]

The operator pages are those of a host in a process of its own, as its operator and as a person of a dashboard sees them; the
editor's are those of the demo. Printed are, by page, the milliseconds until the answer, those of processor time in the host's process, the size, by how many pixels
the page is wider than its window, and what axe-core finds. ``--docs`` also writes the pictures that the docs show, with
the last of the numbers of rows; if Pillow is installed (``pip install pillow``), they are small.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import httpx
from playwright.async_api import Page, expect

from flowactions_conformance.reference_host.sample import Sample, load_sample
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.variables import DATABASE
from flowactions_plugin.settings.model import read_settings
from tests.benchmarks.field import DATABASES, ROOT, a_database, opened
from tests.benchmarks.processor import tree_seconds
from tests.browser.driving import (
    LIMIT_MS,
    SCHEMES,
    Scheme,
    a_browser,
    axe_core,
    chromium,
    overflow,
    violations,
)
from tests.browser.rows import fill
from tests.browser.tours import tour_of_authors, tour_of_operators
from tests.conformance.served import process, serves, until, url_of, uvicorn
from tests.loopback import held_port

IMAGES = ROOT / "docs/images"
DOCS: dict[str, tuple[str, int, Scheme]] = {
    "operator-overview-1280-light": ("overview", 1280, "light"),
    "operator-deliveries-1280-dark": ("deliveries", 1280, "dark"),
    "operator-deliveries-390-light": ("deliveries", 390, "light"),
    "operator-delivery-1280-light": ("dead", 1280, "light"),
    "operator-inbound-1280-light": ("inbound", 1280, "light"),
    "operator-resend-1280-light": ("resend-one", 1280, "light"),
    "editor": ("editor", 1280, "light"),
}
"""The pictures of the docs, by their file names: which page they show, how wide and in which scheme."""

SIZES = ((1280, 860), (1600, 1000), (768, 1024), (390, 860))
"""Of the windows in which each page is taken, the first one at the end again."""

ASKED = 7
"""How often a page is asked for; the fastest answer counts, because other programs slow the others down."""


class Answer(NamedTuple):
    """How a page was answered."""

    took_ms: float
    processor_ms: float
    kilobytes: float

    def __str__(self) -> str:
        return f"{self.took_ms:.0f}, {self.processor_ms:.0f}, {self.kilobytes:.0f}"


class Seen(NamedTuple):
    """What was found of a page; ``answer`` is that of a page with an address."""

    rows: int
    name: str
    answer: Answer | None
    overflow: int
    found: list[str]


class Pictures:
    """Takes the pictures of one number of rows.

    Args:
        page: of the browser.
        axe: the script of axe-core.
        folder: where pictures go.
        rows: the number.
        pid: the host's process.
        docs: whether the docs get theirs.
        only: the names of the pages that are taken; empty: all.
    """

    def __init__(
        self, page: Page, axe: str, folder: Path, rows: int, pid: int, *, docs: bool, only: Sequence[str]
    ) -> None:
        self.page = page
        self.seen: list[Seen] = []
        self._axe, self._folder, self._rows, self._pid = axe, folder, rows, pid
        self._docs, self._only = docs, only
        folder.mkdir(parents=True, exist_ok=True)

    def _takes(self, name: str) -> bool:
        return not self._only or name in self._only

    async def visit(self, url: str, pages: dict[str, str]) -> None:
        """Take pages by their addresses, which the server is asked for apart from the browser, too."""
        cookies = {each["name"]: each["value"] for each in await self.page.context.cookies()}
        async with httpx.AsyncClient(cookies=cookies, timeout=300) as client:
            for name, path in pages.items():
                if not self._takes(name):
                    continue
                first = await client.get(url + path)  # which reads templates and opens connections
                assert first.status_code < 500, (name, first.text)
                took, before = [], tree_seconds(self._pid)
                for _ in range(ASKED):
                    started = time.perf_counter()
                    await client.get(url + path)
                    took.append((time.perf_counter() - started) * 1000)
                processor = (tree_seconds(self._pid) - before) * 1000 / ASKED
                await self.page.goto(url + path)
                await self.take(name, Answer(min(took), processor, len(first.content) / 1024))

    async def take(self, name: str, answer: Answer | None = None) -> None:
        """Take what the browser shows."""
        if not self._takes(name):
            return
        page, wider, found = self.page, 0, set[str]()
        for width, height in SIZES:
            for scheme in SCHEMES:
                await page.set_viewport_size({"width": width, "height": height})
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                await page.mouse.move(0, 0)
                wider = max(wider, await overflow(page))
                found |= {
                    f"{rule} ({width} {scheme}): {html[:90]}"
                    for rule, html, _ in await violations(page, self._axe)
                }
                await page.screenshot(
                    path=self._folder / f"{name}-{width}-{scheme}.png",
                    full_page=not await page.locator(":modal").count(),
                    animations="disabled",
                )
                for file, wanted in DOCS.items() if self._docs else ():
                    if wanted == (name, width, scheme):
                        await page.screenshot(path=IMAGES / f"{file}.png", animations="disabled")
                        shrink(IMAGES / f"{file}.png")
        await page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
        # The editor's form stands beside the flow again.
        await expect(page.locator("#settings:modal")).to_have_count(0)
        self.seen.append(Seen(self._rows, name, answer, wider, sorted(found)))


def shrink(picture: Path) -> None:
    """Write a picture again with 256 colours, in a third of the bytes, if Pillow is installed."""
    try:
        images = import_module("PIL.Image")
    except ModuleNotFoundError:
        return
    with images.open(picture) as taken:
        small = taken.convert("RGB").quantize(256)
    small.save(picture, optimize=True)


async def take_all(options: argparse.Namespace, axe: str, folder: Path) -> list[Seen]:
    """Take all pictures, and give what was found."""
    executable = chromium()
    if executable is None:
        raise SystemExit("There is no Chromium on this machine.")
    seen: list[Seen] = []
    async with a_browser(executable) as browser:
        for rows in options.rows:
            with ExitStack() as stack:
                page = await (await browser.new_context()).new_page()
                page.set_default_timeout(LIMIT_MS)
                last = options.docs and rows == options.rows[-1]
                where = options.out / str(rows)
                url = stack.enter_context(a_database(options.database))
                store_url = read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url
                store, port = Store(store_url), stack.enter_context(held_port())
                async with store.open():
                    hook = Sample(webhook_url=url_of(port), webhook_secret="s" * 24, channel_id="C00ORDERS")
                    await load_sample(store, hook)
                environment = {
                    DATABASE: store_url,
                    "FLOWACTIONS_ENVIRONMENT": "development",
                    "FLOWACTIONS_HOST_WORKER": "off",
                }
                command, log = uvicorn(port, 1), folder / "host.log"
                running = stack.enter_context(process(command, {**os.environ, **environment}, log))
                await asyncio.to_thread(until, lambda: serves(url_of(port)), running)  # noqa: B023  it ends before the next
                camera = Pictures(page, axe, where, rows, running.pid, docs=last, only=options.only)
                async with opened(url) as database:
                    ids = await fill(database, rows)
                await tour_of_operators(camera, url_of(port), ids)
                if rows == options.rows[-1] and any(
                    each.startswith("editor") for each in options.only or ["editor"]
                ):
                    await tour_of_authors(camera, folder)
                seen += camera.seen
    return seen


def table(seen: Sequence[Seen], rows: Sequence[int]) -> str:
    """Return what was found as a table of Markdown, a line a page."""
    lines = [
        "| page | "
        + " | ".join(f"{each:,} rows: ms, of processor, KB" for each in rows)
        + " | overflow | axe |",
        "|" + "---|" * (len(rows) + 3),
    ]
    for name in dict.fromkeys(each.name for each in seen):
        of = {each.rows: each for each in seen if each.name == name}
        cells = [str(one.answer) if one and one.answer else "–" for one in map(of.get, rows)]
        found = sum(len(each.found) for each in of.values())
        lines.append(
            f"| {name} | {' | '.join(cells)} | {max(each.overflow for each in of.values())} | {found} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Be the command; its exit status is 1 if a page is too wide or breaks a rule of axe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--rows", type=int, nargs="+", default=[0, 1, 100_000])
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--only", nargs="+", default=[], help="names of pages, which alone are taken")
    parser.add_argument("--docs", action="store_true", help="write the pictures of docs/images, too")
    options = parser.parse_args()
    expect.set_options(timeout=LIMIT_MS)
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(take_all(options, axe_core(Path(folder)), Path(folder)))
    wrong = [each for each in seen if each.found or each.overflow]
    lines = [table(seen, options.rows)]
    for each in wrong:
        lines += [f"{each.name}, {each.rows} rows: {each.overflow} pixels too wide", *each.found]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
