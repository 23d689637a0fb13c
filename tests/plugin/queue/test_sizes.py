"""How large a webhook may be, whoever enqueues it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    ExperienceTriggerRef,
    FlowActions,
    Header,
    LogicAction,
    Node,
    OutboundWebhook,
)
from flowactions_plugin.errors import HeadersTooLarge
from flowactions_plugin.queue.rules import MAX_HEADER_VALUE_BYTES, MAX_HEADERS_BYTES, delivery_headers
from tests.queueing import ORIGIN
from tests.recorder import Recorder, recorder
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.waiting import until

LIMIT = 2048


@asynccontextmanager
async def running(
    database_url: str, limit: int = LIMIT, *, tasks: bool = False
) -> AsyncIterator[tuple[SmallHost, FlowActions, Recorder]]:
    host = SmallHost(development(database_url, FLOWACTIONS_MAX_BODY_BYTES=str(limit)))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan(tasks=tasks):
        yield host, actions, receiver


async def enqueued(host: SmallHost) -> int:
    async with services_of(host)._database.read() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))).scalar_one())


class TestNode:
    @sampled("proceed", [None, True, False], size=2)
    @pytest.mark.parametrize(
        ("config", "content", "reason"),
        [
            ({"webhookBody": '{"said": {{content}}}'}, "x" * LIMIT, "body_too_large"),
            ({"webhookBody": "{{content}}," * 10_000}, "x" * 100_000, "body_too_large"),
            ({"webhookHeaders": [{"key": "x", "value": "{{content}}"}]}, "x" * 8193, "headers_too_large"),
        ],
    )
    async def test_what_is_too_large_skips_the_node(
        self, database_url: str, config: dict[str, Any], content: str, reason: str, proceed: bool | None
    ) -> None:
        """Nothing is enqueued, the result says what is too large, and the walk halts as for a body that is no JSON (§7.2)."""
        async with running(database_url) as (host, actions, receiver):
            options = {} if proceed is None else {"webhookContinueOnFailure": proceed}
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url, **config, **options})
            result = await actions.reach(a_walk(content=content), node)
            assert (result.status, result.reason, result.delivery_id) == ("skipped", reason, None)
            assert result.halt is (proceed is False)
            assert "larger than" in (result.message or "")
            assert await enqueued(host) == 0

    @pytest.mark.parametrize("over", [0, 1])
    async def test_the_limit_itself_is_delivered(self, database_url: str, over: int) -> None:
        """A body of exactly the limit arrives whole; with one byte more, the node is skipped."""
        async with running(database_url, tasks=True) as (_, actions, receiver):
            node = Node(
                id="n", type="webhook", config={"webhookUrl": receiver.url, "webhookBody": "{{content}}"}
            )
            content = "é" * (LIMIT // 2 - 1) + "x" * over
            result = await actions.reach(a_walk(content=content), node)
            if over:
                assert result.reason == "body_too_large"
            else:
                (request,) = await until(lambda: receiver.requests)
                assert len(request.body) == LIMIT


class TestLogicAction:
    async def test_headers_that_are_too_large_are_a_problem_of_the_action(self, database_url: str) -> None:
        """The endpoint answers 400 with the code, dispatch skips with the reason, and the key stays free."""
        async with running(database_url) as (host, actions, receiver):
            host.agents = [Agent(id="a1", organization_id="acme", name="A")]
            host.api = ApiPrincipal(organization_id="acme", all_agents=True)
            host.action = LogicAction(url=receiver.url, headers=[Header(key="x", value="y" * 8193)])
            ref = ExperienceTriggerRef(
                organization_id="acme", agent_id="a1", experience_id="e1", trigger_row_id="t1", action_index=0
            )
            receipt = await actions.dispatch(ref, firing_id="f", occurred_at=datetime.now(UTC))
            assert (receipt.status, receipt.reason) == ("skipped", "headers_too_large")
            transport = transport_of(actions)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                call = {
                    "idempotencyKey": "k",
                    "source": "experience_trigger",
                    "triggerRowId": "t1",
                    "actionIndex": 0,
                }
                path = "/v1/agents/a1/experiences/e1/logic-webhook"
                answer = await client.post(path, json=call)
                assert (answer.status_code, answer.json()["code"]) == (400, "headers_too_large")
                host.action = LogicAction(url=receiver.url)
                assert (await client.post(path, json=call)).status_code == 202

    async def test_an_envelope_that_is_too_large_is_refused(self, database_url: str) -> None:
        """Ids of a host may be long; the limit holds for what is made of them, too."""
        async with running(database_url, 1024) as (host, actions, receiver):
            host.action = LogicAction(url=receiver.url)
            ref = ExperienceTriggerRef(
                organization_id="acme",
                agent_id="a1",
                experience_id="é" * 255,
                trigger_row_id="é" * 255,
                action_index=0,
            )
            receipt = await actions.dispatch(ref, firing_id="f", occurred_at=datetime.now(UTC))
            assert (receipt.status, receipt.reason) == ("skipped", "body_too_large")


class TestOutbox:
    @staticmethod
    def webhook(url: str, **changes: Any) -> OutboundWebhook:
        values: dict[str, Any] = {"body": b"x" * LIMIT, **changes}
        return OutboundWebhook(
            organization_id="acme", agent_id="a", origin=ORIGIN, event_type="t", entity="e", url=url, **values
        )

    async def test_names_that_are_dropped_are_logged_in_short(
        self, database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A hundred headers with names of a megabyte are one line of a readable length."""
        async with running(database_url) as (host, _, receiver):
            headers = tuple(Header(key=f"{number}" + "x" * 1_000_000, value="") for number in range(100))
            with caplog.at_level(logging.WARNING):
                await services_of(host)._outbox.new_delivery(self.webhook(receiver.url, headers=headers))
            (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
            assert len(line) < 1500
            assert line.endswith(" and more")


def sent_headers(headers: Sequence[Header]) -> tuple[list[str], tuple[str, ...]]:
    kept, dropped = delivery_headers(headers, event_id="e", event_type="t", has_body=False)
    return [name for name, _ in kept if name.startswith("x-n")], dropped


def test_a_header_name_has_256_bytes_at_the_most() -> None:
    """A longer one is dropped as an invalid one is."""
    fits, too_long = "x-n" + "a" * 253, "x-n" + "b" * 254
    assert sent_headers([Header(key=fits, value=""), Header(key=too_long, value="")]) == (
        [fits],
        (too_long[:80],),
    )


@pytest.mark.parametrize("character", ["x", "é", "😀"])
def test_a_header_value_is_measured_as_it_is_sent(character: str) -> None:
    """In bytes of UTF-8, without the space around it that is not sent."""
    fits = character * (MAX_HEADER_VALUE_BYTES // len(character.encode()))
    assert sent_headers([Header(key="x-n", value=f"  {fits} ")]) == (["x-n"], ())
    with pytest.raises(HeadersTooLarge):
        sent_headers([Header(key="x-n", value=fits + character)])


def test_all_headers_together_are_measured() -> None:
    """Names count as values do; what is dropped does not."""
    each = 1024
    headers = [
        Header(key=f"x-n{number:04}", value="x" * (each - 7)) for number in range(MAX_HEADERS_BYTES // each)
    ]
    sent_headers([*headers, Header(key="not valid", value="x" * 8192)])
    with pytest.raises(HeadersTooLarge, match="in all"):
        sent_headers([*headers, Header(key="x", value="")])
