"""Mistakes that an author of a flow makes: each is told at its field while typing, before anything is saved."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from playwright.async_api import Error, Page, Route, expect

from flowactions_conformance.demo import Demo, running_demo
from tests.browser.driving import connect

pytestmark = [pytest.mark.browser, pytest.mark.ci]

PRODUCTION = {
    "FLOWACTIONS_ENVIRONMENT": "production",
    "FLOWACTIONS_ENCRYPTION_KEYS": base64.b64encode(bytes(32)).decode(),
}
FINE = "https://192.88.98.1/hooks"
"""An address, so that nothing depends on a name server."""

URL, METHOD, BODY, SECRET = ("webhookUrl", "webhookMethod", "webhookBody", "webhookSecret")
KEY, VALUE = "webhookHeaders-0-key", "webhookHeaders-0-value"
TEXT, CHANNEL, MEMBER = "chatMessageText", "chatChannelId", "chatUserId"


class Mistake(NamedTuple):
    """What an author writes into a field, what the field then says, and what is marked as wrong; empty: nothing is."""

    written: str
    said: str
    marked: str = ""


URLS = [
    Mistake("", "The URL is missing"),
    Mistake("http://10.1.2.3/hooks", "Requests to 10.1.2.3 are not allowed (private)", "10.1.2.3"),
    Mistake("https://ada:secret@example.com/", "must not contain a user name or password", "ada:secret"),
    Mistake(f"{FINE}/{{{{userId}}}}", "{{userId}} is not substituted here", "{{userId}}"),
]
BODIES = [
    Mistake('{\n  "a": 1,\n  "b": ,\n  "c": 2\n}', "line 3, column 8", ","),
    Mistake('{"a": "x}', "line 1, column 7", '"x}'),
    Mistake('{"a": {{name}}}', "{{name}} is not a variable", "{{name}}"),
]
METHODS = [Mistake("a b", "not the name of an HTTP method")]
KEYS = [
    Mistake("Host", "We set Host. Your value is ignored."),
    Mistake("a\u200bb", "an invisible character (U+200B)", "\u200b"),
    Mistake("", "A header without a name is left out"),
]
VALUES = [
    Mistake("{{name}}", "{{name}} is not a variable", "{{name}}"),
]
TEXTS = [
    Mistake(" ", "The message is empty"),
    Mistake("Hello\nby {content}", "{content} is not a variable: write {{content}}"),
]
CHANNELS = [
    Mistake("C0FOREIGN", "The channel does not exist"),
    Mistake("#nowhere", "This is no id"),
    Mistake("", "Choose a channel"),
]
MEMBERS = [
    Mistake("U000ROBOT", "Direct messages to bots"),
    Mistake("", "Choose a person"),
]
"""Some of each field; what is said of all others is `tests/plugin/nodes/test_author_inputs.py`'s."""


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[Demo]:
    """The demo with the rules of production."""
    async with running_demo({}, tmp_path, settings=PRODUCTION) as running:
        yield running


async def write(page: Page, field: str, text: str) -> None:
    """Write into a field, and leave it as it is then."""
    if field == METHOD:
        await page.select_option(f"#field-{METHOD}", label="Other …")
        await page.fill(f"#field-{METHOD}-other", text)
    else:
        await page.fill(f"#field-{field}", text)
    if field in {CHANNEL, MEMBER}:
        await page.keyboard.press("Enter")


async def expect_told(page: Page, field: str, said: str) -> None:
    """Wait for what a field says, looking at every frame: there are many."""
    place = f"field-{field}-error"
    there = "([id, said]) => document.getElementById(id)?.textContent.includes(said)"
    with suppress(Error):
        await page.wait_for_function(there, arg=[place, said], timeout=300_000)
    await expect(page.locator(f"#{place}")).to_contain_text(said, timeout=1)


async def expect_marked(page: Page, field: str, piece: str) -> None:
    """Wait until exactly this piece is marked: in the field, or in an excerpt of it where a field can mark nothing."""
    place = "#field-webhookBody .cm-mistake" if field == BODY else f"#field-{field}-error mark"
    joined = "([place, piece]) => [...document.querySelectorAll(place)].map((each) => each.textContent).join('') === piece"
    with suppress(Error):
        await page.wait_for_function(joined, arg=[place, piece], timeout=300_000)
    assert "".join(await page.locator(place).all_text_contents()) == piece


async def try_all(page: Page, lists: Mapping[str, list[Mistake]]) -> None:
    """Make the mistakes of several fields, one in each at a time, and see each told at its own field."""
    for number in range(max(map(len, lists.values()))):
        made = {field: found[number] for field, found in lists.items() if number < len(found)}
        for field, mistake in made.items():
            await write(page, field, mistake.written)
        for field, mistake in made.items():
            await expect_told(page, field, mistake.said)
            await expect_marked(page, field, mistake.marked)


async def open_what_a_form_cannot_write(page: Page, demo: Demo) -> None:
    """A config from elsewhere is checked when it is opened; saving what cannot run says so, and Run asks."""
    header = {"key": "x-note", "value": "two\nlines"}
    config: dict[str, Any] = {"webhookUrl": "http://127.0.0.1/", "webhookHeaders": [header], "webhookMethod": 5}
    body = {
        "name": "Imported",
        "agentId": "acme-support",
        "kind": "single_shot",
        "items": [{"id": "w", "kind": "action", "type": "webhook", "config": config}],
    }
    headers = {"authorization": f"Bearer {demo.dashboard_token}", "if-none-match": "*"}
    async with httpx.AsyncClient(base_url=demo.host_url, headers=headers, timeout=300) as client:
        saved = (await client.put("/api/flows/imported", json=body)).json()
    assert {problem["nodeId"] for problem in saved["problems"]} == {"w"}
    page.once("dialog", lambda asked: asked.accept())
    await page.goto(f"{demo.host_url}/editor?flow=imported")
    await expect(page.locator("[data-type=webhook] .problem.error")).to_contain_text("127.0.0.1")
    await page.click("#run")
    await expect(page.locator("dialog.question")).to_contain_text("Webhook will not run: Requests to 127.0.0.1")
    await page.keyboard.press("Escape")
    await page.locator("[data-type=webhook] .choice").click()
    await expect(page.locator("#field-webhookHeaders-0-value-error")).to_contain_text("Line breaks")
    await expect(page.locator("#field-webhookMethod-error")).to_contain_text("counts as not set")
    await page.click("#save")
    await expect(page.locator("#status")).to_contain_text("Saved as a draft. Webhook will not run: Requests to")


async def an_answer_that_is_out_of_date_is_dropped(page: Page) -> None:
    """Of two questions the first is answered last: only the second one's answer is shown."""
    asked = asyncio.Event()

    async def hold(route: Route) -> None:
        if "ftp:" in (route.request.post_data or ""):
            asked.set()
            await asyncio.sleep(1)
        with suppress(Error):  # the page waits for it no more
            await route.continue_()

    await page.route("**/nodes/check", hold)
    await page.fill("#field-webhookUrl", "ftp://192.88.98.1/")
    await asked.wait()
    await page.fill("#field-webhookUrl", FINE)
    await expect(page.locator("#field-webhookUrl-error .problem")).to_have_count(0)
    await page.wait_for_timeout(1200)  # until after the first answer
    await expect(page.locator("#field-webhookUrl-error .problem")).to_have_count(0, timeout=1)
    await page.unroute_all()


async def test_every_mistake_is_told_at_its_field_before_saving(page: Page, demo: Demo) -> None:
    """In words, where it was made, while typing; what is right afterwards is told nothing."""
    changes: list[str] = []
    page.on("request", lambda sent: changes.append(sent.url) if sent.method == "PUT" else None)
    await connect(page, demo)
    changes.clear()
    await page.goto(f"{demo.host_url}/editor")

    await page.get_by_test_id("add-webhook").click()
    await expect(page.locator(".form .problem")).to_have_count(
        0
    )  # nothing is told of what nobody has filled in yet
    await page.click("#field-webhookHeaders-add")
    await write(page, VALUE, "1")
    secrets = [Mistake("{{userId}}" + "s" * 9, "is not substituted here")]
    await try_all(page, {URL: URLS, BODY: BODIES, KEY: KEYS, SECRET: secrets})
    await write(page, KEY, "x-a")
    await try_all(page, {METHOD: METHODS, VALUE: VALUES})
    await write(page, VALUE, "1")
    await page.select_option("#field-webhookMethod", "GET")
    await expect(page.locator("#field-webhookBody-error")).to_contain_text("GET is sent without a body")
    await page.select_option("#field-webhookMethod", "POST")
    await page.click("#field-webhookHeaders-add")
    await page.fill("#field-webhookHeaders-1-key", "Host")
    await expect(page.locator("#field-webhookHeaders-1-key-error")).to_have_text(
        "We set Host. Your value is ignored."
    )
    await page.locator(".entry").last.get_by_role("button").click()
    await write(page, BODY, '{\n  "order": {{content}},\n  "user": {{userId}\n}')
    await write(page, URL, "http://10.1.2.3/orders")
    await expect(page.locator("#field-webhookBody-error")).to_contain_text("line 3, column 11")
    # The place leads there.
    await page.locator("#field-webhookBody-error .link").click()
    await page.keyboard.type("X")
    await expect(page.locator("#field-webhookBody")).to_contain_text('"user": X{{userId}')
    for field, text in ((URL, FINE), (BODY, '{"user": {{userId}}}'), (SECRET, "s" * 16)):
        await write(page, field, text)
    await expect(page.locator(".form .problem")).to_have_count(0)
    assert await page.get_attribute("#field-webhookUrl", "aria-invalid") == "false"

    await page.get_by_test_id("add-chat_message").click()
    await try_all(page, {TEXT: TEXTS, CHANNEL: CHANNELS})
    await page.select_option("#field-chatActionType", "A person (direct message)")
    await try_all(page, {MEMBER: MEMBERS})
    await page.fill("#flow-name", " ")
    await expect(page.locator("#name-error")).to_have_text("Give the flow a name.")
    await expect(page.locator("#status")).to_have_text("Not saved yet")
    assert changes == []
    await open_what_a_form_cannot_write(page, demo)
    await an_answer_that_is_out_of_date_is_dropped(page)
