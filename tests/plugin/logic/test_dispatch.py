from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import (
    FlowActions,
    Header,
    LogicAction,
    LogicActionRef,
    QuestionRequired,
    Receipt,
)
from flowactions_plugin.settings.model import read_settings
from tests import triggers
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, development
from tests.triggers import NODE_TRIGGER as NODE
from tests.waiting import until

EXPERIENCE = replace(triggers.EXPERIENCE, action_index=2)


async def fired(actions: FlowActions, ref: LogicActionRef, transaction: Any = None) -> Receipt:
    return await actions.dispatch(
        ref, firing_id=uuid4().hex, occurred_at=datetime.now(UTC), transaction=transaction
    )


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


async def test_in_the_hosts_transaction_it_commits_or_rolls_back_with_it(
    tmp_path: Path, postgres_url: str
) -> None:
    """Nothing is in the outbox before the host commits, nor after it rolls back, on both databases."""
    for url in (f"sqlite:///{tmp_path / 'shared.db'}", postgres_url):
        engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
        settings = {"FLOWACTIONS_ENVIRONMENT": "development", "FLOWACTIONS_HOST_WORKER": "off"}
        host = SmallHost(settings, database=engine)
        host.action = LogicAction(url="http://127.0.0.1:9/")
        actions = FlowActions.load(host)
        async with actions.lifespan():
            for commit, rows in ((False, 0), (True, 1)):
                async with engine.connect() as connection:
                    receipt = await fired(actions, EXPERIENCE, connection)
                    assert receipt.status == "queued"
                    await (connection.commit() if commit else connection.rollback())
                async with engine.connect() as connection:
                    count = await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))
                    assert count.scalar_one() == rows
        await engine.dispose()
