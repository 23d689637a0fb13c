"""Two tabs with one flow, and what an author does with nodes: copied, renamed, moved, removed and taken back."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Page, expect

from flowactions_conformance.demo import Demo
from tests.browser.driving import (
    LAYOUTS,
    connect,
    other_tab,
    overflow,
    rewrite,
    save,
    sign_in,
    violations,
)

pytestmark = [pytest.mark.browser, pytest.mark.ci]

ITEMS = "#items .choice > span"
CONFLICT = "dialog.question.wide"
THANKS, WEBHOOK, MESSAGE = "Thank you!", "Webhook", "Chat message"


async def open_flow(page: Page, demo: Demo) -> None:
    """Open the sample flow as Ada."""
    await sign_in(page, demo.host_url, "/editor?flow=order-placed")
    await expect(page.locator(ITEMS)).to_have_count(3)


async def saved_url(page: Page, demo: Demo) -> str:
    """Give the URL of the webhook as the server has it."""
    headers = {"authorization": f"Bearer {demo.dashboard_token}"}
    async with httpx.AsyncClient(base_url=demo.host_url, headers=headers, timeout=300) as client:
        flow = (await client.get("/api/flows/order-placed")).json()["data"]
    url: str = next(item for item in flow["items"] if item.get("type") == "webhook")["config"]["webhookUrl"]
    return url


async def test_a_save_over_somebody_elses_change_shows_both_and_asks(page: Page, demo: Demo) -> None:
    """Cancel changes nothing, theirs can be taken and that taken back, and mine replaces what was shown only."""
    await open_flow(page, demo)
    other = await other_tab(page, demo, "olive")
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/olive")
    await rewrite(other, "webhook", "webhookSecret", "secret-of-olive")
    await other.locator("[data-type=step] .choice").click()
    await other.fill("#field-title", "Thanks a lot!")
    await save(other)

    await rewrite(page, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/ada")
    await page.locator("[data-type=chat_message]").get_by_label("Remove").click()
    await page.keyboard.press("Control+s")
    conflict = page.locator(CONFLICT)
    await expect(conflict).to_contain_text("Olive has saved this flow since you opened it here")
    sections = conflict.locator("section")
    await expect(sections.locator("h3")).to_have_text(
        [
            f"{THANKS}changed by Olive",
            f"{WEBHOOK}changed by both",
            f"{MESSAGE}changed by you",
        ]
    )
    await expect(sections.nth(0).locator("pre")).to_have_text([THANKS, "Thanks a lot!"])
    await expect(sections.nth(1).locator("pre").first).to_contain_text("/hooks/ada")
    await expect(sections.nth(1).locator("pre").nth(1)).to_contain_text("/hooks/olive")
    await expect(conflict).not_to_contain_text("secret-of-olive")
    await expect(sections.nth(2).locator("pre").first).to_have_text("Not in the flow")
    await page.keyboard.press("Escape")
    await expect(page.locator("#status")).to_contain_text("Not saved: the flow was changed meanwhile")
    await expect(page.locator("#items .unsaved")).to_have_count(1)
    assert (await saved_url(page, demo)).endswith("/hooks/olive")

    # Theirs, and back again: what one had is not lost.
    await page.keyboard.press("Control+s")
    await conflict.locator("[data-choice=theirs]").click()
    await expect(page.locator(ITEMS)).to_have_text(["Thanks a lot!", WEBHOOK, MESSAGE])
    await expect(page.locator("#items .unsaved")).to_have_count(0)
    await page.click("#undo")
    await expect(page.locator("#status")).to_have_text("Your version is back. Not saved yet")
    await expect(page.locator("[data-type=step] .choice > span")).to_contain_text(THANKS)

    # What was replaced meanwhile is shown again, and not replaced unseen.
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/olive-again")
    await save(other)
    await page.keyboard.press("Control+s")
    await expect(conflict).to_contain_text("/hooks/olive-again")
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/olive-too")
    await save(other)
    await conflict.locator("[data-choice=mine]").click()
    await expect(conflict).to_contain_text("/hooks/olive-too")
    await conflict.locator("[data-choice=mine]").click()
    await expect(page.locator("#status")).to_have_text("Saved")
    assert (await saved_url(page, demo)).endswith("/hooks/ada")
    await other.context.close()


async def test_channels_that_differ_are_shown_by_their_names(page: Page, demo: Demo) -> None:
    """The name comes first, then the id. If the provider does not know the id, only the id is shown."""
    await connect(page, demo)
    await page.goto(f"{demo.host_url}/editor?flow=order-placed")
    other = await other_tab(page, demo, "olive")
    for tab, channel in ((page, "C0GENERAL"), (other, "C0UNKNOWN")):
        await rewrite(tab, "chat_message", "chatChannelId", channel)
        await tab.keyboard.press("Enter")
    await save(other)
    await page.keyboard.press("Control+s")
    sides = page.locator(f"{CONFLICT} section pre")
    await expect(sides).to_have_text(["#general (ID C0GENERAL)", "C0UNKNOWN"])
    await other.context.close()


async def test_a_deleted_flow_and_a_new_one(page: Page, demo: Demo) -> None:
    """A flow that was deleted meanwhile can be made again; a new one is made by its first save, and by nothing else."""
    await open_flow(page, demo)
    other = await other_tab(page, demo, "ada")
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/again")
    await page.fill("#flow-name", "Changed")
    await save(page, "Saved")
    await other.click("#delete-flow")
    await other.click("[data-choice=delete]")
    await expect(other.locator("#status")).to_contain_text("Not deleted: Somebody else has saved this flow")
    await page.click("#delete-flow")
    await page.click("[data-choice=delete]")
    await expect(page.locator("#flows li")).to_have_count(1)
    await other.keyboard.press("Control+s")
    await expect(other.locator("dialog.question")).to_contain_text("Somebody has deleted this flow")
    await other.locator("[data-choice=again]").click()
    await expect(other.locator("#status")).to_contain_text("Saved")
    assert (await saved_url(other, demo)).endswith("/hooks/again")

    for tab in (page, other):
        await tab.click("#new-flow")
        await expect(tab.locator("#status")).to_have_text("This flow is made when you save it.")
    await page.click("#run")
    await expect(page.locator("#status")).to_contain_text("Save the flow first")
    await page.fill("#flow-name", " ")
    await save(page, "Not saved: give the flow a name.")
    await page.fill("#flow-name", "New flow")
    for tab in (page, other):
        await save(tab)
    await page.reload()
    await expect(page.locator("#flow-title")).to_have_text("New flow")
    await expect(page.locator("#flows li")).to_have_count(4)
    await page.click("#new-flow")
    await page.click("#delete-flow")  # nothing was written: nothing is asked
    await expect(page.locator("#flows li")).to_have_count(4)
    await other.context.close()


async def test_nodes_are_copied_renamed_moved_and_removed_by_keyboard(page: Page, demo: Demo) -> None:
    """The focus stays with the node, and what was removed comes back with all that it had."""
    await open_flow(page, demo)
    webhook = page.locator("[data-type=webhook]")
    await webhook.get_by_label("Copy").press("Enter")
    await expect(page.locator(ITEMS)).to_have_text([THANKS, WEBHOOK, "Copy of Webhook", MESSAGE])
    await expect(page.locator("#items .choice:has-text('Copy of') .unsaved")).to_have_text("not saved")
    await expect(page.locator("[data-item-id] .choice:focus > span")).to_contain_text("Copy of Webhook")
    await page.fill("#item-name", "Tell the warehouse")
    await expect(page.locator(ITEMS).nth(2)).to_contain_text("Tell the warehouse")
    focused = page.locator("[data-item-id]:has(.choice:focus) .choice > span")
    await page.locator(".choice", has_text="Tell the warehouse").focus()
    await page.keyboard.press("Alt+ArrowUp")
    await expect(page.locator("#status")).to_have_text("Tell the warehouse is 2 of 4. Not saved yet")
    await expect(focused).to_contain_text("Tell the warehouse")
    up = page.get_by_label("Move up: Tell the warehouse")
    await up.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(ITEMS).first).to_contain_text("Tell the warehouse")
    await expect(page.get_by_label("Copy: Tell the warehouse")).to_be_focused()
    await save(page)

    await page.get_by_label("Remove: Tell the warehouse").focus()
    await page.keyboard.press("Enter")
    await expect(focused).to_contain_text(THANKS)
    await page.get_by_label(f"Remove: {MESSAGE}").press("Enter")
    await expect(page.locator("#undo-text")).to_have_text(f"{MESSAGE} is removed.")
    await page.keyboard.press("Control+z")
    await expect(focused).to_contain_text(MESSAGE)
    await expect(page.locator("#undo-text")).to_have_text("Tell the warehouse is removed.")
    await page.locator("#undo").press("Enter")
    await expect(page.locator(ITEMS)).to_have_text(["Tell the warehouse", THANKS, WEBHOOK, MESSAGE])
    await expect(page.locator("#status")).to_have_text("Tell the warehouse is back.")  # as it is saved
    await expect(page.locator("#undo")).to_be_hidden()
    await page.get_by_label("Remove: Tell the warehouse").click()
    await save(page)
    await expect(page.locator("#undo")).to_be_hidden()


async def test_a_default_channel_that_somebody_else_chose_is_shown_first(page: Page, demo: Demo) -> None:
    """So is a connection that was changed, to whoever disconnects; nothing of it is replaced unseen."""
    await connect(page, demo)
    other = await page.context.new_page()
    await other.goto(f"{demo.host_url}/connections")
    for tab, channel in ((page, "C0GENERAL"), (other, "C00ORDERS")):
        await tab.click("#default-channel")
        await tab.locator(f"#default-channel-choices [data-id={channel}]").click()
    await page.click("#save-channel")
    await expect(page.locator("[role=status]", has_text="Saved.")).to_be_visible()
    await other.click("#save-channel")
    await expect(other.locator("#refused")).to_contain_text("You had chosen #orders")
    await expect(other.locator("#default-channel")).to_have_value("#general")
    await other.click("#default-channel")
    await other.locator("#default-channel-choices [data-id=C00ORDERS]").click()
    await other.click("#save-channel")
    await expect(other.locator("[role=status]", has_text="Saved.")).to_be_visible()
    await page.click("#disconnect")
    await page.click("#confirm [value=yes]")
    await expect(page.locator("#refused")).to_contain_text("Not disconnected")
    await expect(page.locator("#default-channel")).to_have_value("#orders")


@pytest.mark.node
async def test_a_conflict_can_be_read_by_everybody_everywhere(page: Page, demo: Demo, axe: str) -> None:
    """Wide and on a phone, light and dark: axe finds nothing, nothing widens the page, and the buttons are in sight."""
    await open_flow(page, demo)
    other = await other_tab(page, demo, "olive")
    await rewrite(other, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/{'olive' * 60}")
    await rewrite(other, "chat_message", "chatMessageText", "A new order! " * 30)
    await save(other, "Saved as a draft")
    await rewrite(page, "webhook", "webhookUrl", f"{demo.receiver_url}/hooks/ada")
    await page.locator("[data-type=step]").get_by_label("Remove").click()
    for (width, scheme), rules in LAYOUTS.items():
        await page.set_viewport_size({"width": width, "height": 860})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        if await page.locator("#settings:modal").count():
            await page.click("#close-settings")
        assert await violations(page, axe, rules) == []
        await page.keyboard.press("Control+s")
        for choice in ("", "theirs", "mine"):
            await expect(page.locator(f"{CONFLICT} [data-choice='{choice}']")).to_be_in_viewport()
        assert await violations(page, axe, rules) == []
        assert await overflow(page) == 0
        inside = (
            "(place) => document.querySelector(place).scrollWidth - document.querySelector(place).clientWidth"
        )
        assert await page.evaluate(inside, ".differences") <= 0
        await page.keyboard.press("Escape")
        await expect(page.locator(CONFLICT)).to_have_count(0)
    await other.context.close()
