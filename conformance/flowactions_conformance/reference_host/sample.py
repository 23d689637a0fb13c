"""Sample data: two organizations, so that tenancy can be seen, and flows that use both node types."""

from __future__ import annotations

from typing import Any

import msgspec

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.store import Flow, Store


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What the sample data points at.

    Args:
        webhook_url: where webhooks go.
        webhook_secret: what they are signed with.
        channel_id: the chat channel that messages go to.
        dashboard_token: a bearer token for Acme's dashboard; ``None`` issues none.
        api_token: a bearer token for Acme's backend; ``None`` issues none.
    """

    webhook_url: str
    webhook_secret: str
    channel_id: str
    dashboard_token: str | None = None
    api_token: str | None = None


async def load_sample(store: Store, sample: Sample) -> None:
    """Write the sample data; what is there under the same ids is replaced."""
    for organization, person in (("acme", "Ada"), ("globex", "Grace")):
        await store.put(tables.organizations, id=organization, name=organization.title())
        await store.put(tables.people, id=person.lower(), name=person, organization_id=organization)
        await store.put(
            tables.agents,
            id=f"{organization}-support",
            name=f"{organization.title()} Support",
            organization_id=organization,
        )
    await store.put(tables.people, id="olive", name="Olive", organization_id="acme")
    await store.put(tables.operators, id="olive")
    for flow in (_order_placed(sample), _onboarding(sample)):
        await store.save_flow(flow)
    action = {"url": sample.webhook_url, "secret": sample.webhook_secret, "headers": []}
    await store.put(
        tables.experiences,
        id="survey",
        organization_id="acme",
        agent_id="acme-support",
        triggers={"submitted": {"actions": [action]}},
        node_triggers={
            "rating/low": {"actions": [action]},
            "rating/answered": {"questionId": "q1", "actions": [action]},
        },
    )
    if sample.dashboard_token:
        await store.issue_token("dashboard", "acme", token=sample.dashboard_token, person_id="ada")
    if sample.api_token:
        await store.issue_token("api", "acme", token=sample.api_token)


def _webhook(sample: Sample, node_id: str, event: str) -> dict[str, Any]:
    return {
        "id": node_id,
        "kind": "action",
        "type": "webhook",
        "config": {
            "webhookUrl": sample.webhook_url,
            "webhookMethod": "POST",
            "webhookSecret": sample.webhook_secret,
            "webhookHeaders": [{"key": "x-flow-user", "value": "{{userId}}"}],
            "webhookBody": f'{{"event": "{event}", "user": {{{{userId}}}}, "message": {{{{content}}}}}}',
            "webhookRetryOnFailure": True,
            "webhookContinueOnFailure": True,
        },
    }


def _chat(sample: Sample, node_id: str, text: str) -> dict[str, Any]:
    return {
        "id": node_id,
        "kind": "action",
        "type": "chat_message",
        "config": {
            "chatActionType": "channel",
            "chatChannelId": sample.channel_id,
            "chatMessageText": text,
            "chatRetryOnFailure": True,
            "chatContinueOnFailure": True,
        },
    }


def _step(step_id: str, title: str, text: str) -> dict[str, Any]:
    return {"id": step_id, "kind": "step", "title": title, "text": text}


def _order_placed(sample: Sample) -> Flow:
    return Flow(
        id="order-placed",
        organization_id="acme",
        agent_id="acme-support",
        name="Order placed",
        kind="single_shot",
        items=[
            _step("thanks", "Thank you!", "Your order is on its way to our kitchen."),
            _webhook(sample, "notify-backend", "order.placed"),
            _chat(sample, "tell-team", "New order from *{{userId}}*: {{content}}"),
        ],
    )


def _onboarding(sample: Sample) -> Flow:
    return Flow(
        id="onboarding",
        organization_id="acme",
        agent_id="acme-support",
        name="Onboarding",
        kind="client_paced",
        items=[
            _step("welcome", "Welcome", "Let us get you started in two steps."),
            _webhook(sample, "started", "onboarding.started"),
            _step("profile", "Your profile", "Tell us a little about yourself."),
            _chat(sample, "say-hello", "*{{userId}}* has finished onboarding: {{content}}"),
            _step("ready", "You are ready", "That was all. Have fun!"),
            _webhook(sample, "finished", "onboarding.finished"),
        ],
    )
