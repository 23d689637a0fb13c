from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from flowactions_conformance.demo import Demo, running_demo
from tests.browser.driving import connect, sign_in
from tests.waiting import until

pytestmark = pytest.mark.browser


async def build_flow(page: Page, demo: Demo) -> None:
    """Build and save a flow with a step and both nodes, as an author would."""
    await page.click("#new-flow")
    await expect(page.locator("#flow-title")).to_have_text("New flow")
    await page.fill("#flow-name", "Lemonade")

    await page.get_by_test_id("add-step").click()
    await page.fill("#field-title", "Coming up")

    await page.get_by_test_id("add-webhook").click()
    await page.fill("#field-webhookUrl", f"{demo.receiver_url}/hooks/lemonade")
    await page.click("#field-webhookHeaders-add")
    await page.fill("#field-webhookHeaders-0-key", "x-user")
    await page.fill("#field-webhookHeaders-0-value", "{{userId}}")
    await page.fill("#field-webhookBody", '{"said": ')
    await page.locator("[data-field=webhookBody] .chips button").nth(1).click()
    await page.locator("#field-webhookBody").press_sequentially("}")
    await expect(page.locator("#field-webhookBody")).to_have_text('{"said": {{content}}}')

    await page.get_by_test_id("add-chat_message").click()
    await expect(page.locator("#field-chatUserId")).to_have_count(0)
    await page.select_option("#field-chatActionType", "dm")
    await expect(page.locator("#field-chatChannelId")).to_have_count(0)
    await expect(page.locator("#field-chatUserId")).to_be_visible()
    await page.select_option("#field-chatActionType", "channel")
    await page.fill("#field-chatChannelId", "ord")
    await page.locator("#field-chatChannelId-choices [data-id=C00ORDERS]").click()
    await expect(page.locator("#field-chatChannelId")).to_have_value("#orders")
    await expect(page.locator("[data-field=chatChannelId]")).to_contain_text("ID C00ORDERS")
    await page.fill("#field-chatMessageText", "*{{userId}}* wants {{content}}")
    await page.click("#save")
    await expect(page.locator("#status")).to_have_text("Saved")


async def run_flow(page: Page, demo: Demo) -> None:
    """Run the editor's flow in another tab, see beside it what it does, and follow it to its delivery."""
    widget = await page.context.new_page()
    await widget.goto(f"{demo.host_url}{await page.get_attribute('#run', 'href')}")
    await widget.fill("#user", "user-7")
    await widget.fill("#content", "a <big> lemonade")
    await widget.click("#start")
    await expect(widget.locator("#done")).to_be_visible()
    await expect(widget.locator("#steps")).to_contain_text("Coming up")
    await expect(widget.locator("#run li li")).to_contain_text(["Coming up", "Webhook", "Chat message"])
    await expect(widget.locator("#run .badge")).to_have_text(["shown", "delivered", "sent"])
    async with widget.expect_popup() as opened:
        await widget.get_by_role("link", name="Webhook: see the delivery").click()
    delivery = await opened.value
    await expect(delivery.locator("main")).to_contain_text('{"said": "a <big> lemonade"}')
    await expect(delivery.locator("ol.attempts")).to_contain_text("200")
    await delivery.close()
    await widget.close()


async def test_a_flow_with_both_nodes_is_built_run_and_seen(page: Page, demo: Demo) -> None:
    """An author connects chat, builds a flow, runs it as an end user, and sees delivery and message."""
    await connect(page, demo)
    await page.goto(f"{demo.host_url}/editor")
    await build_flow(page, demo)
    await page.reload()
    await page.locator("[data-type=webhook] .choice").click()
    await expect(page.locator("#field-webhookHeaders-0-key")).to_have_value("x-user")

    await run_flow(page, demo)
    await expect(page.locator("#items .badge")).to_have_text(["shown", "delivered", "sent"])

    await page.goto(demo.receiver_url)
    arrival = page.locator("#arrivals details").first
    await expect(arrival).to_contain_text("/hooks/lemonade")
    await arrival.locator("summary").click()
    await expect(arrival).to_contain_text("x-user: user-7")

    await page.goto(demo.provider_url or "")
    await expect(page.locator("li.message .text").first).to_have_text("user-7 wants a <big> lemonade")
    await expect(page.locator("li.message .channel").first).to_have_text("#orders")


@pytest.mark.ci
async def test_a_client_paced_flow_sends_as_the_user_gets_there(page: Page, demo: Demo) -> None:
    """Nothing is sent on opening; each press of Next sends what precedes that step."""
    await connect(page, demo)
    await page.goto(f"{demo.host_url}/run/onboarding")
    await page.click("#start")
    await expect(page.locator("#steps")).to_contain_text("Welcome")
    assert len(demo.receiver.arrivals) == 0
    for title in ("Your profile", "You are ready"):
        await page.click("#next")
        await expect(page.locator("#steps")).to_contain_text(title)
    assert demo.provider is not None
    assert [message.channel for message in demo.provider.messages] == ["#orders"]
    await page.click("#next")
    await expect(page.locator("#done")).to_be_visible()
    await page.goto(demo.receiver_url)
    await expect(page.locator("#arrivals details[data-signature=verified]")).to_have_count(2)


@pytest.mark.ci
async def test_dead_deliveries_are_retried_together(page: Page, demo: Demo) -> None:
    """A member looks at what is dead, on the operator pages, retries all of it, and sees it delivered."""
    headers = {"authorization": f"Bearer {demo.dashboard_token}"}
    async with httpx.AsyncClient(base_url=demo.host_url, headers=headers, timeout=300) as client:
        opened = await client.get("/api/flows/order-placed")
        shown, version = opened.json()["data"], {"if-match": opened.headers["etag"]}
        for item in shown["items"]:
            if item.get("type") == "webhook":
                item["config"]["webhookUrl"] = f"{demo.receiver_url}/hooks/fail-first/1/x"
                item["config"]["webhookRetryOnFailure"] = False
        flow = {name: shown[name] for name in ("name", "kind", "items")} | {"agentId": shown["agentId"]}
        assert (await client.put("/api/flows/order-placed", json=flow, headers=version)).status_code == 200
        for user in ("u1", "u2"):
            opening = {"userId": user, "content": "x"}
            assert (await client.post("/run/flows/order-placed/open", json=opening)).status_code == 200
    await sign_in(page, demo.host_url, "/editor")
    await page.get_by_role("link", name="Deliveries").click()
    await page.goto(f"{page.url}?status=dead")
    await expect(page.locator("tbody tr")).to_have_count(2)
    await page.get_by_role("link", name="Retry all").click()
    await page.click("button.primary")
    await expect(page.locator("h1")).to_contain_text("waiting")
    await page.goto(f"{demo.host_url}/integrations/webhooks/deliveries")
    await expect(page.locator("tbody .badge")).to_have_text(["delivered"] * 2)
    await page.locator("tbody a").first.click()
    await expect(page.locator("ol.attempts > li")).to_contain_text(["500", "200"])


@pytest.mark.ci
async def test_the_connection_is_used_and_ended(page: Page, demo: Demo) -> None:
    """An administrator sets a default channel, sends a test message, and disconnects."""
    await connect(page, demo)
    await expect(page.locator("#chat")).to_contain_text("Acme Support")
    await page.fill("#test-text", "hello there")
    await page.click("#send-test")
    await expect(page.locator("#test-outcome")).to_contain_text("no default channel")
    await page.click("#default-channel")
    await page.locator("#default-channel-choices [data-id=C0GENERAL]").click()
    await page.click("#save-channel")
    await expect(page.locator("#chat")).to_contain_text("Saved.")
    await page.click("#send-test")
    await expect(page.locator("#test-outcome")).to_contain_text("Sent (")
    assert demo.provider is not None
    assert [message.text for message in demo.provider.messages] == ["hello there"]
    await page.click("#disconnect")
    await page.click("#really")
    await expect(page.locator("#chat")).to_contain_text("No workspace is connected")


async def open_order(page: Page, demo: Demo, content: str) -> None:
    """Open the sample flow in another tab, as an end user who never learns what became of its actions."""
    widget = await page.context.new_page()
    await widget.goto(f"{demo.host_url}/run/order-placed")
    await widget.fill("#content", content)
    await widget.click("#start")
    await expect(widget.locator("#done")).to_be_visible()
    text = await widget.inner_text("body")
    assert not {word for word in ("sent", "failed", "Reconnect", "chat_message") if word in text}
    await widget.close()


@pytest.mark.ci
async def test_a_workspace_that_takes_the_app_out_is_connected_again(page: Page, demo: Demo) -> None:
    """Connected, used, uninstalled at the provider, seen to be, connected again, used again."""
    assert demo.provider is not None
    await connect(page, demo)
    await expect(page.locator("#chat .badge")).to_have_text("active")
    await open_order(page, demo, "one")
    await until(lambda: demo.provider and len(demo.provider.messages) == 1)

    provider = await page.context.new_page()
    await provider.goto(demo.provider_url or "")
    await provider.locator("#workspaces [data-id=T0000ACME] button").click()
    await expect(provider.locator("#workspaces [data-id=T0000ACME]")).to_contain_text("not installed")

    await page.reload()
    await expect(page.locator("#chat .badge")).to_have_text("revoked")
    await expect(page.locator("#advice")).to_contain_text("Reconnect the chat workspace.")
    await expect(page.locator("#send-test")).to_have_count(0)
    await open_order(page, demo, "two")
    editor = await page.context.new_page()
    await editor.goto(f"{demo.host_url}/editor")
    await editor.get_by_text("Order placed").first.click()
    await expect(editor.locator("#runs .run").first).to_contain_text("send_failed")
    assert len(demo.provider.messages) == 1

    await page.click("#connect")
    await page.click("#allow")
    await expect(page.locator("#notice")).to_have_text("The workspace is connected.")
    await expect(page.locator("#chat .badge")).to_have_text("active")
    await open_order(page, demo, "three")
    await until(lambda: demo.provider and len(demo.provider.messages) == 2)
    assert [message.text[-5:] for message in demo.provider.messages] == [": one", "three"]


@pytest.mark.ci
async def test_cancelling_at_the_provider_is_said_plainly(page: Page, demo: Demo) -> None:
    """Cancel on the consent page leads back to a sentence that a person understands."""
    await sign_in(page, demo.host_url, "/connections")
    await page.click("#connect")
    await page.click("button[value=cancel]")
    await expect(page.locator("#notice")).to_contain_text("You cancelled at the chat provider")


@pytest.mark.ci
async def test_the_editor_works_by_keyboard(page: Page, demo: Demo) -> None:
    """Adding, editing and saving need no mouse."""
    await sign_in(page, demo.host_url, "/editor")
    await expect(page.locator("#items li").first).to_be_visible()
    before = await page.locator("#items li").count()
    await page.get_by_test_id("add-chat_message").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#field-chatActionType")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.type("C0GENERAL")
    await page.keyboard.press("Tab")
    await page.keyboard.type("typed")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#field-chatMessageText")).to_have_value("typed{{userId}}")
    await page.keyboard.press("Control+s")
    # No workspace is connected, which the author is told beside the node, and of the whole flow.
    await expect(page.locator("#status")).to_contain_text(
        "Saved as a draft. Chat message will not run: Connect"
    )
    await expect(page.locator("#items li").last.locator(".problem")).to_contain_text("chat workspace")
    assert await page.locator("#items li").count() == before + 1


@pytest.mark.ci
async def test_authors_are_shown_no_setting_where_chat_is_not_set_up(page: Page, tmp_path: Path) -> None:
    """On the connections' page, in the palette and beside a channel's field."""
    async with running_demo({}, tmp_path, settings={"CHAT_CLIENT_ID": ""}) as demo:
        await sign_in(page, demo.host_url, "/connections")
        await expect(page.locator("#chat")).to_contain_text("Ask the people who operate it.")
        await expect(page.locator("body")).not_to_contain_text("CHAT_")
        await page.goto(f"{demo.host_url}/editor?flow=order-placed")
        await expect(page.get_by_test_id("add-chat_message")).to_contain_text("Ask the people who operate it.")
        await page.locator("[data-type=chat_message] .choice").click()
        await page.click("#field-chatChannelId")
        await expect(page.locator("[data-field=chatChannelId]")).to_contain_text(
            "Ask the people who operate it."
        )
        await expect(page.locator("body")).not_to_contain_text("CHAT_")
