"""The flow editor in a browser: preview, test, runs, every way out, and how it looks and reads."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

import httpx
import pytest
from playwright.async_api import Dialog, Page, Route, expect

from flowactions_conformance.demo import Demo
from tests.browser.driving import LAYOUTS, connect, overflow, save, sign_in, violations

pytestmark = [pytest.mark.browser, pytest.mark.ci]

LONG = "Unbreakable" * 30


async def open_node(page: Page, demo: Demo, kind: str, flow: str = "order-placed") -> None:
    """Open a node of a sample flow."""
    await page.goto(f"{demo.host_url}/editor?flow={flow}")
    await page.locator(f"[data-type={kind}] .choice").first.click()


async def follow_runs(page: Page, demo: Demo) -> None:
    """Run the flow that is open, with a receiver that takes its webhook and with one that does not."""
    await page.click("#save")
    await expect(page.locator("#status")).to_have_text("Saved")
    async with httpx.AsyncClient(base_url=demo.host_url, timeout=300) as client:
        opening = {"userId": "u1", "content": "x"}
        await client.post("/run/flows/order-placed/open", json=opening)
        await expect(page.locator("#items .badge")).to_have_text(["shown", "delivered", "sent"])
        await page.fill("#field-webhookUrl", f"{demo.receiver_url}/hooks/fail-first/9/x")
        await page.uncheck("#field-webhookRetryOnFailure")
        await page.keyboard.press("Control+s")
        await expect(page.locator("#status")).to_have_text("Saved")
        await client.post("/run/flows/order-placed/open", json=opening)
    await expect(page.locator("#items .badge")).to_have_text(["shown", "dead", "sent"])
    async with page.expect_popup() as opened:
        await page.locator("#items").get_by_role("link", name="Webhook: see the delivery").click()
    delivery = await opened.value
    await expect(delivery.locator("main")).to_contain_text("/hooks/fail-first/9/x")
    await delivery.close()


async def open_chat_node_named_late(page: Page, demo: Demo) -> None:
    """Open the chat node; the preview shows its channel's id until the provider has answered, then its name."""

    async def answer_late(route: Route) -> None:
        await expect(page.locator("#preview .message > p")).to_have_text("C00ORDERS")
        await route.continue_()

    await page.route("**/integrations/chat/channels?*", answer_late, times=1)
    await open_node(page, demo, "chat_message")
    await expect(page.locator("#field-chatChannelId")).to_have_value("#orders")
    await expect(page.locator("#preview .message > p")).to_have_text("#orders")


async def delete_flows(page: Page, demo: Demo) -> None:
    """Delete all flows, and begin anew."""
    await open_node(page, demo, "webhook", "onboarding")
    page.once("dialog", lambda asked: asked.accept())
    await page.click("#delete-flow")
    await page.click("[data-choice='']")
    await expect(page.locator("#flow-title")).to_have_text("Onboarding")
    for left in (1, 0):
        await page.click("#delete-flow")
        await page.click("[data-choice=delete]")
        await expect(page.locator("#flows li")).to_have_count(left)
    await expect(page.locator("#no-flows")).to_be_visible()
    await page.click("#new-flow")
    await expect(page.locator("#flow-title")).to_have_text("New flow")


async def leave(page: Page, demo: Demo) -> None:
    """Link, other flow, new flow, sign out, Run, reload and back; another node keeps them."""
    browser_asked: list[str] = []

    async def dismiss(dialog: Dialog) -> None:
        browser_asked.append(dialog.type)
        await dialog.dismiss()

    page.on("dialog", dismiss)
    await open_node(page, demo, "webhook")
    question = page.locator("dialog.question")

    async def stay() -> None:
        await expect(question).to_contain_text("not saved")
        await question.locator("[data-choice='']").click()
        await expect(question).to_have_count(0)

    await page.fill("#field-webhookUrl", "http://127.0.0.1:9/changed")
    await expect(page.locator("[data-type=webhook] .unsaved")).to_be_visible()
    await page.locator("[data-type=chat_message] .choice").click()
    await page.locator("[data-type=webhook] .choice").click()
    await expect(page.locator("#field-webhookUrl")).to_have_value("http://127.0.0.1:9/changed")
    for way in (
        "nav a[href='/integrations/webhooks/deliveries']",
        "#flows li:not(:has([aria-current=true])) button",
        "#new-flow",
        ".top button",
    ):
        await page.click(way)
        await stay()
    await page.click("#run")
    await expect(question).to_contain_text("Run the saved version?")
    await question.locator("[data-choice='']").click()
    for way in ("location.reload()", "history.back()"):
        await page.evaluate(f"setTimeout(() => {way})")
        await page.wait_for_timeout(300)
    assert browser_asked == ["beforeunload"] * 2
    await expect(page.locator("#field-webhookUrl")).to_have_value("http://127.0.0.1:9/changed")

    async with page.context.expect_page() as opened:
        await page.click("#run")
        await question.locator("[data-choice=save]").click()
    await (await opened.value).close()
    await expect(page.locator("#status")).to_have_text(
        "Saved as a draft. Chat message will not run: Connect a chat workspace first."
    )
    await page.fill("#flow-name", "Renamed")
    await page.click(".top button")
    await question.locator("[data-choice=drop]").click()
    await page.wait_for_url(
        re.compile(r"/login(\?|$)")
    )  # with the page, if the editor asked something meanwhile
    await page.goto(f"{demo.host_url}/editor")
    await page.get_by_test_id("sign-in-ada").click()
    await expect(page.locator("#flow-title")).not_to_have_text("Renamed")
    await open_node(page, demo, "webhook")
    await expect(page.locator("#field-webhookUrl")).to_have_value("http://127.0.0.1:9/changed")
    await page.fill("#flow-name", "Renamed")
    await page.fill("#flow-name", "Order placed")
    await page.click("nav a[href='/integrations/webhooks/deliveries']")  # taken back: nothing is asked
    await page.wait_for_url("**/deliveries")
    assert browser_asked == ["beforeunload"] * 2
    page.remove_listener("dialog", dismiss)


async def test_a_node_is_edited_tried_and_followed_and_no_change_is_lost(page: Page, demo: Demo) -> None:
    """Every way out asks; sample values, chips, names of channels, one real send, and runs that lead to deliveries."""
    await sign_in(page, demo.host_url, "/connections")
    await leave(page, demo)
    await page.goto(f"{demo.host_url}/connections")
    await page.click("#connect")
    await page.click("#allow")
    await expect(page.locator("#notice")).to_have_text("The workspace is connected.")
    await open_chat_node_named_late(page, demo)
    await page.fill("#sample-userId", "zoe")
    await page.fill("#sample-content", "two <pizzas>")
    await expect(page.locator("#preview")).to_contain_text("#orders")
    await expect(page.locator("#preview blockquote")).to_have_text("New order from zoe: two <pizzas>")
    await expect(page.locator("#preview blockquote strong")).to_have_text("zoe")
    await page.fill("#field-chatChannelId", "gen")
    await page.keyboard.press("Tab")  # before the list is there: the only match is taken
    await expect(page.locator("#field-chatChannelId")).to_have_value("#general")
    await page.fill("#field-chatChannelId", "orders")
    await expect(page.locator("#field-chatChannelId-choices li")).to_have_text(["#orders"])
    await page.keyboard.press("Tab")
    await expect(page.locator("#field-chatChannelId")).to_have_value("#orders")
    await page.fill("#field-chatChannelId", "gen")
    await expect(page.locator("#field-chatChannelId-choices li")).to_have_text(["#general"])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.locator("#field-chatChannelId")).to_have_value("#general")
    await page.click("#test")
    await expect(page.locator("#test-outcome .badge")).to_have_text("sent")
    assert demo.provider is not None
    assert [(each.channel, each.text[:3]) for each in demo.provider.messages] == [("#general", "New")]

    await page.locator("[data-type=webhook] .choice").click()
    await page.fill("#field-webhookUrl", f"{demo.receiver_url}/hooks/orders")
    # A variable goes where the caret is, by mouse or keyboard, and Undo takes it back.
    await page.fill("#field-webhookHeaders-0-value", "ab")
    await page.locator("#field-webhookHeaders-0-value").press("ArrowLeft")
    await page.locator("[data-field=webhookHeaders] .chips button").first.press("Enter")
    await expect(page.locator("#field-webhookHeaders-0-value")).to_have_value("a{{userId}}b")
    await page.keyboard.press("Control+z")
    await expect(page.locator("#field-webhookHeaders-0-value")).to_have_value("ab")
    await page.fill("#field-webhookBody", '{"said": }')
    await page.keyboard.press("ArrowLeft")
    await page.locator("[data-field=webhookBody] .chips button").nth(1).click()
    await expect(page.locator("#preview pre")).to_have_text('{"said": "two <pizzas>"}')
    await page.locator("#preview summary").click()
    await expect(page.locator("#preview dl")).to_contain_text("v1,…")
    await page.click("#test")
    await expect(page.locator("#test-outcome")).to_contain_text("It answered 200 after")
    assert demo.receiver.arrivals[-1].body == '{"said": "two <pizzas>"}'

    await follow_runs(page, demo)
    await delete_flows(page, demo)


CUT_OFF = """() => {
  const seen = (element) => element.getClientRects().length > 0;
  const cut = [...document.querySelectorAll('button, select, label, legend, h1, h2, a, small, .problem')]
    .filter((element) => seen(element) && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== 'inline');
  const canvas = document.createElement('canvas').getContext('2d');
  const narrow = [...document.querySelectorAll('select')].filter((select) => {
    if (!seen(select)) return false;
    canvas.font = getComputedStyle(select).font;
    return canvas.measureText(select.selectedOptions[0]?.text ?? '').width + 40 > select.clientWidth;
  });
  return [...cut, ...narrow].map((element) => element.outerHTML.slice(0, 120));
}"""


@pytest.mark.node
async def test_it_can_be_read_by_everybody_everywhere(page: Page, demo: Demo, axe: str) -> None:
    """Wide and on a phone, light and dark: axe finds nothing, nothing is cut off, and no text widens the page."""
    await connect(page, demo)
    wrong: list[tuple[str, ...]] = []

    async def look(name: str, width: int, scheme: str, rules: Sequence[str] = ()) -> None:
        assert await overflow(page) == 0, (name, width)
        assert await page.evaluate(CUT_OFF) == [], (name, width)
        wrong.extend((name, str(width), scheme, *each) for each in await violations(page, axe, rules))

    await page.goto(f"{demo.host_url}/run/order-placed?author")
    await page.click("#start")
    await expect(page.locator("#run .badge")).to_have_count(3)
    for width in sorted({width for width, _ in LAYOUTS}, reverse=True):
        await page.set_viewport_size({"width": width, "height": 860})
        await look("run", width, "as it is")
    await page.goto(f"{demo.host_url}/editor?flow=order-placed")
    for (width, scheme), rules in LAYOUTS.items():
        await page.set_viewport_size({"width": width, "height": 860})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        over = width < 960
        if width == 768:  # what was edited beside the flow is edited over it
            await expect(page.locator("#close-settings")).to_be_visible()
            await page.click("#close-settings")
        if over:
            await expect(page.locator("#settings")).to_be_hidden()
            await look("editor-flow", width, scheme, rules)
        for kind in ("chat_message", "webhook"):
            await page.locator(f"[data-type={kind}] .choice").click()
            await expect(page.locator("#preview > *").first).to_be_visible()
            if over:
                assert await page.evaluate("document.querySelector('#settings').matches(':modal')")
            await look(f"editor-{kind}", width, scheme, rules)
            if over:
                await page.keyboard.press("Escape")
                await expect(page.locator(f"[data-type={kind}] .choice")).to_be_focused()
    # Long text of every kind, mistakes and an answer with it.
    await page.fill("#flow-name", LONG[:200])
    await page.locator("[data-type=step] .choice").click()
    await page.fill("#field-title", LONG)
    await page.fill("#field-text", LONG)
    await page.keyboard.press("Escape")
    await page.locator("[data-type=webhook] .choice").click()
    await page.fill("#field-webhookUrl", f"{demo.receiver_url}/{LONG}")
    await page.fill("#field-webhookBody", f'{{"{LONG}": "{{{{{LONG[:90]}}}}}"}}')
    await page.fill("#sample-content", LONG)
    await expect(page.locator("#field-webhookBody-error")).to_contain_text("is not a variable")
    await page.click("#test")
    await expect(page.locator("#test-outcome .badge")).to_be_visible()
    await page.keyboard.press("Control+s")
    await look("editor-long", 390, "dark")
    await page.keyboard.press("Escape")
    await look("editor-long-flow", 390, "dark")
    await page.set_viewport_size({"width": 1280, "height": 860})
    await expect(page.locator("#settings")).to_be_visible()
    await look("editor-long", 1280, "dark")
    assert wrong == []


async def test_a_click_is_not_lost_while_the_list_is_drawn_anew(page: Page, demo: Demo) -> None:
    """What has changed between pressing and releasing the button is shown afterwards."""
    await sign_in(page, demo.host_url, "/editor")
    await page.goto(f"{demo.host_url}/editor?flow=order-placed")
    await page.locator("[data-type=webhook] .choice").first.hover()
    await page.mouse.down()
    async with httpx.AsyncClient(base_url=demo.host_url, timeout=300) as client:
        await client.post("/run/flows/order-placed/open", json={"userId": "u1", "content": "x"})
    for _ in range(2):
        async with page.expect_response("**/api/flows/order-placed/runs?session="):
            pass
    await page.mouse.up()
    await expect(page.locator("#field-webhookUrl")).to_be_visible()
    await expect(page.locator("#items .badge").first).to_have_text("shown")


async def test_a_signing_secret_can_be_made(page: Page, demo: Demo) -> None:
    """It is shown, so that the author can hand it over, and saved; each is another."""
    await sign_in(page, demo.host_url, "/editor")
    await open_node(page, demo, "webhook")
    made = []
    for _ in range(2):
        await page.click("[aria-label='Generate Signing secret']")
        made.append(await page.input_value("#field-webhookSecret"))
        await expect(page.locator("#field-webhookSecret")).to_have_attribute("type", "text")
    assert made[0] != made[1]
    assert {len(base64.b64decode(each.removeprefix("whsec_"), validate=True)) for each in made} == {24}
    await save(page)
    await open_node(page, demo, "webhook")
    await expect(page.locator("#field-webhookSecret")).to_have_attribute("type", "password")
    await expect(page.locator("#field-webhookSecret")).to_have_value(made[1])
