from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from msgspec.structs import replace

from flowactions_hookspecs import (
    FlowActions,
    Header,
    LogicAction,
    LogicActionRef,
    QuestionRequired,
    Receipt,
)
from tests import triggers
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, development
from tests.triggers import NODE_TRIGGER as NODE
from tests.waiting import until

EXPERIENCE = replace(triggers.EXPERIENCE, action_index=2)


async def fired(actions: FlowActions, ref: LogicActionRef) -> Receipt:
    return await actions.dispatch(ref, firing_id=uuid4().hex, occurred_at=datetime.now(UTC))


@pytest.fixture
async def started(database_url: str) -> AsyncIterator[tuple[FlowActions, SmallHost, Recorder]]:
    host = SmallHost(development(database_url))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        yield actions, host, receiver


@pytest.mark.parametrize(
    ("ref", "source", "entity", "index"),
    [(EXPERIENCE, "experience_trigger", "t1", 2), (NODE, "node_trigger", "n1", 0)],
)
async def test_a_logic_action_sends_its_envelope(
    started: tuple[FlowActions, SmallHost, Recorder], ref: LogicActionRef, source: str, entity: str, index: int
) -> None:
    """The action's own url, method, headers and secret are used, and the body is §2.7's envelope (§2.8)."""
    actions, host, receiver = started
    host.secret = "s3cret"
    headers = (Header(key="x-one", value="{{userId}}"),)
    host.action = LogicAction(url=receiver.url, method="PUT", headers=headers, secret="s3cret")
    receipt = await fired(actions, ref)
    assert receipt.status == "queued"
    (request,) = await until(lambda: receiver.requests)
    assert request.line.startswith("PUT ")
    assert request.header("x-service-webhook-event") == "experience.logic_action.webhook"
    assert request.header("x-service-webhook-id") == receipt.event_id
    assert request.header("x-service-webhook-signature").startswith("v1,")
    assert request.header("x-one") == "{{userId}}"
    envelope = json.loads(request.body)
    occurred = datetime.fromisoformat(envelope["data"].pop("occurredAt"))
    assert occurred.tzinfo is not None
    assert envelope == {
        "type": "experience.logic_action.webhook",
        "version": 1,
        "data": {
            "entityId": entity,
            "agentId": "a1",
            "experienceId": "e1",
            "source": source,
            "actionIndex": index,
        },
    }


async def test_what_cannot_be_dispatched_says_why(
    started: tuple[FlowActions, SmallHost, Recorder],
) -> None:
    """No action, an unnamed question and a forbidden destination are answers with a reason."""
    actions, host, receiver = started
    assert (await fired(actions, NODE)).reason == "unknown_action"
    host.action = LogicAction(url="http://169.254.169.254/")
    assert (await fired(actions, NODE)).reason == "blocked_url"
    host.action_error = QuestionRequired()
    receipt = await fired(actions, NODE)
    assert (receipt.status, receipt.reason) == ("skipped", "question_required")
    assert receiver.requests == []
