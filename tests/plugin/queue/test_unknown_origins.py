"""A node or an action that the host does not know may be a fault of the host's: it is asked again before anything ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import (
    ExperienceTriggerRef,
    Host,
    LogicAction,
    LogicActionOrigin,
    Node,
    Origin,
    OriginGone,
)
from flowactions_plugin.queue.rules import UNKNOWN, UNKNOWN_SECONDS
from tests.queueing import ORIGIN, Queue, a_schedule, continuously, delivering
from tests.support import SmallHost
from tests.waiting import until

ACTION = LogicActionOrigin(
    ref=ExperienceTriggerRef(
        organization_id="acme", agent_id="a", experience_id="e", trigger_row_id="t", action_index=0
    )
)
Answer = Callable[[], Any]


class Shop(SmallHost):
    """A host whose nodes and actions are what a test says, with the secrets of the default."""

    answer: Answer = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def _found(self) -> Any:
        self.asked += 1
        return self.answer()

    async def node(self, *ids: str) -> Node | None:
        found: Node | None = self._found()
        return found

    async def logic_action(self, ref: object) -> LogicAction | None:
        found: LogicAction | None = self._found()
        return found

    signing_secret = Host.signing_secret


def fails() -> None:
    raise RuntimeError("down")


def refuses(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500)


def is_there() -> Node:
    return Node(id="n", type="webhook", config={"webhookSecret": "s3cret"})


async def asked_once(queue: Queue, host: Host, row_id: str, mode: str = "scheduled") -> Any:
    """Let a row be due, and a worker that was just started ask for its secret once; return the row."""
    told: list[Any] = []

    async def finished(delivery: Any) -> None:
        told.append(delivery)

    await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
    before = (await queue.row(row_id)).updated_at
    options: dict[str, Any] = {"signing_secret": host.signing_secret, "delivery_finished": finished}
    if mode == "scheduled":
        await a_schedule(queue, refuses, **options).tick()
    else:

        async def is_back() -> bool:
            row = await queue.row(row_id)
            return row.claimed_by is None and row.updated_at > before and row.next_attempt_at > 0

        async with delivering(queue, continuously(queue, refuses, **options)):
            await until(is_back)
    row = await queue.row(row_id)
    assert [each.status for each in told] == ["dead"] * (row.status == "dead")
    return row


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
@pytest.mark.parametrize("origin", [ORIGIN, ACTION], ids=["node", "action"])
async def test_four_answers_a_minute_apart_end_a_delivery(queue: Queue, origin: Origin, mode: str) -> None:
    """Across restarts, and however late a worker asks; no attempt is made, and the reason says what the row waits for."""
    host = Shop()
    row_id = await queue.put(origin=origin)
    for number in range(1, 4):
        row = await asked_once(queue, host, row_id, mode)
        assert (row.status, row.attempts, row.error_class) == ("pending", 0, "waits")
        assert row.last_error == f"the host does not know this node or action; asked {number} of 4 times"
        assert row.next_attempt_at - row.updated_at == UNKNOWN_SECONDS * 1000
        assert row.waiting_since is not None
        assert host.asked == number
    row = await asked_once(queue, host, row_id, mode)
    assert (row.status, row.attempts, row.error_class, row.waiting_since) == ("dead", 0, "not_sent", None)
    assert (row.last_error, host.asked) == (UNKNOWN[-1], 4)
    # Retried, it is asked for four times again.
    assert await queue.queries.retry(row_id, "acme")
    assert (await asked_once(queue, host, row_id, mode)).last_error == UNKNOWN[0]


async def test_what_the_host_knows_again_is_sent_and_signed(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """After a deployment that answered None, nothing is lost; one line says that its deliveries wait, one that they go on."""
    caplog.set_level(logging.INFO)
    host, sent = Shop(), list[httpx.Request]()

    def accepts(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    rows = [await queue.put(), await queue.put()]
    claims = a_schedule(queue, accepts, signing_secret=host.signing_secret)
    for _ in range(3):
        await claims.tick()
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
    assert caplog.text.count("waits: the host does not know FlowNodeOrigin(") == 1
    assert (host.asked, sent) == (3, [])  # once for both rows
    host.answer = is_there
    await claims.tick()
    assert [(await queue.row(each)).status for each in rows] == ["delivered"] * 2
    assert all("x-service-webhook-signature" in request.headers for request in sent)
    assert caplog.text.count("deliveries continue") == 1


@pytest.mark.parametrize("between", [fails, is_there], ids=["a failure", "the node"])
async def test_only_answers_in_a_row_count(queue: Queue, between: Answer) -> None:
    """A host that fails in between, or knows the node, is asked four times from then on."""
    host = Shop()
    row_id = await queue.put()
    for _ in range(3):
        await asked_once(queue, host, row_id)
    host.answer = between
    row = await asked_once(queue, host, row_id)
    assert row.last_error != UNKNOWN[2] or row.waiting_since is None
    host.answer = lambda: None
    for number in range(3):
        assert (await asked_once(queue, host, row_id)).last_error == UNKNOWN[number]
    assert (await asked_once(queue, host, row_id)).status == "dead"


async def test_an_error_of_the_hosts_own_is_final(queue: Queue) -> None:
    """`OriginGone` of an own `signing_secret` ends a delivery at once, with its reason; what the default raises does not."""

    class Own(Shop):
        async def signing_secret(self, origin: Origin) -> str | None:
            if self.answer() == "gone":
                raise OriginGone("it was deleted")
            return await super().signing_secret(origin)

    host = Own()
    row_id = await queue.put()
    assert (await asked_once(queue, host, row_id)).last_error == UNKNOWN[0]
    host.answer = lambda: "gone"
    row = await asked_once(queue, host, row_id)
    assert (row.status, row.attempts, row.last_error) == ("dead", 0, "it was deleted")
