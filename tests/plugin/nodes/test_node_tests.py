from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import func, select

from flowactions_hookspecs import (
    Agent,
    FlowActions,
    InTransaction,
    Node,
    NodeResult,
    NodeType,
    TestOutcome,
    Walk,
    hookimpl,
)
from flowactions_plugin.nodes.drafts import TESTS_A_MINUTE
from flowactions_plugin.storage.schema import halted_runs, outbox
from tests.chatting import Adopted
from tests.plugin.nodes.running import Running, a_draft, running
from tests.recorder import recorder, status
from tests.support import SmallHost, a_walk, development, services_of


class Probe:
    """A second author's plugin with two node types: one that acts outside, and one that writes."""

    def __init__(self) -> None:
        self.reached: list[tuple[Walk, Node]] = []

    @hookimpl
    def flowactions_node_types(self) -> list[NodeType]:
        async def acts(walk: Walk, node: Node) -> NodeResult:
            self.reached.append((walk, node))
            return NodeResult(status="sent")

        async def writes(walk: Walk, node: Node) -> InTransaction:
            async def write(transaction: Any) -> NodeResult:
                now = int(time.time() * 1000)  # what is older, retention removes
                values = {"organization_id": "probe", "run_id": walk.run_id, "flow_id": "f", "halted_at": now}
                await transaction.execute(halted_runs.insert().values(**values))
                if node.config.get("fails"):
                    raise RuntimeError
                return NodeResult(status="sent", message="written at 10.9.8.7")

            return InTransaction(write)

        return [
            NodeType(name="acts", title="Acts", description="…", reach=acts, secret_fields=("token",)),
            NodeType(name="writes", title="Writes", description="…", reach=writes),
        ]


async def try_out(run: Running, **config: Any) -> TestOutcome:
    return await run.actions.test(a_draft(webhookUrl=run.receiver.url, **config), a_walk())


async def count(run: Running, table: Any, *where: Any) -> int:
    async with services_of(run.host)._database.read() as connection:
        statement = select(func.count()).select_from(table).where(*where)
        return int((await connection.execute(statement)).scalar_one())


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
async def run(database_url: str, probe: Probe) -> AsyncIterator[Running]:
    async with running(SmallHost(development(database_url)), [probe]) as started:
        yield started


class TestWebhook:
    async def test_a_test_is_a_delivery_and_waits_for_its_end(self, run: Running) -> None:
        """The outcome has the answer's status and beginning, the duration, and the delivery's id."""
        outcome = await try_out(run, webhookBody='{"user": {{userId}}}')
        assert (outcome.status, outcome.status_code, outcome.response) == ("delivered", 200, "ok")
        assert outcome.delivery_id is not None
        assert outcome.duration_ms is not None
        (request,) = run.receiver.requests
        assert request.body == b'{"user": "user-1"}'

    async def test_two_tests_are_two_events(self, run: Running) -> None:
        """No receiver takes the second for a repetition of the first, nor for the event of a walk."""
        draft, walk = a_draft(webhookUrl=run.receiver.url), a_walk()
        await run.actions.test(draft, walk)
        await run.actions.test(draft, walk)
        (shown,) = {
            header.value
            for header in (await run.actions.preview(draft, walk)).headers
            if header.key == "x-service-webhook-id"
        }
        ids = {request.header("x-service-webhook-id") for request in run.receiver.requests}
        assert len(ids | {shown}) == 3

    async def test_a_failing_receiver_is_asked_once(self, run: Running) -> None:
        """Whatever the config says of retries, a test makes one attempt, and tells the answer."""
        run.receiver.answer = lambda number: status(500, body=b"broken")
        outcome = await try_out(run, webhookRetryOnFailure=True)
        assert (outcome.status, outcome.reason, outcome.status_code) == ("failed", "bad_status", 500)
        assert (outcome.response, len(run.receiver.requests)) == ("broken", 1)
        async with services_of(run.host)._database.read() as connection:
            row = (await connection.execute(select(outbox))).one()
        assert (row.status, row.attempts, row.max_attempts) == ("dead", 1, 1)

    async def test_no_answer_is_told_without_the_address(self, run: Running) -> None:
        """What the host's name leads to is not in the message."""
        outcome = await run.actions.test(a_draft(webhookUrl="http://localhost:1/"), a_walk())
        assert (outcome.status, outcome.reason) == ("failed", "no_answer")
        assert "127.0.0.1" not in repr(outcome)
        assert "::1" not in repr(outcome)

    async def test_a_config_with_an_error_is_skipped(self, run: Running) -> None:
        """With the reason of a walk."""
        outcome = await try_out(run, webhookBody="nope")
        assert (outcome.status, outcome.reason, outcome.delivery_id) == ("skipped", "invalid_body", None)
        assert await count(run, outbox) == 0

    async def test_an_attempt_that_takes_too_long_is_pending(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a worker nothing ends; the outcome names the delivery, which stays in the queue."""
        host = SmallHost(development(database_url))
        actions = FlowActions.load(host)
        services_of(host).tests._wait_seconds = 0.2
        async with actions.lifespan(tasks=False):
            outcome = await actions.test(a_draft(webhookUrl="http://127.0.0.1:9/"), a_walk())
            assert (outcome.status, outcome.delivery_id is not None) == ("pending", True)

    async def test_a_worker_of_another_process_delivers(self, database_url: str) -> None:
        """Whoever claims the delivery, the outcome is found in the database."""
        asks, works = (SmallHost(development(database_url)) for _ in range(2))
        asking, working = FlowActions.load(asks), FlowActions.load(works)
        async with recorder() as receiver, asking.lifespan(tasks=False), working.lifespan():
            outcome = await asking.test(a_draft(webhookUrl=receiver.url), a_walk())
        assert outcome.status == "delivered"


class TestRate:
    async def test_ten_a_minute_and_organization_in_all_processes(self, database_url: str) -> None:
        """However many race in however many processes, ten are made; another organization has its own ten."""
        hosts = [SmallHost(development(database_url)) for _ in range(2)]
        first, second = (FlowActions.load(host) for host in hosts)
        async with first.lifespan(tasks=False), second.lifespan(tasks=False):
            draft = a_draft(webhookUrl="")
            tests = [actions.test(draft, a_walk()) for actions in (first, second) for _ in range(9)]
            outcomes = await asyncio.gather(*tests)
            hosts[0].agents = [Agent(id="agent-1", name="A", organization_id="globex")]
            other = a_draft(organization="globex", webhookUrl="")
            apart = await first.test(other, a_walk(organization_id="globex"))
        statuses = [outcome.status for outcome in outcomes]
        assert statuses.count("skipped") == TESTS_A_MINUTE
        assert statuses.count("limited") == 18 - TESTS_A_MINUTE
        assert {outcome.reason for outcome in outcomes} == {"missing_url", "rate_limited"}
        assert apart.status == "skipped"

    async def test_a_database_that_fails_makes_no_test(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What cannot be counted is not sent."""
        from flowactions_plugin.errors import StorageUnavailable  # noqa: PLC0415

        async def fails(_: str) -> int:
            raise StorageUnavailable("gone")

        monkeypatch.setattr(services_of(run.host).tests, "_admit", fails)
        outcome = await try_out(run)
        assert (outcome.status, outcome.reason) == ("failed", "storage_unavailable")
        assert run.receiver.requests == []


class TestOtherTypes:
    async def test_a_type_of_another_plugin_is_run_as_reached(self, run: Running, probe: Probe) -> None:
        """With the draft's config, secret fields too, eagerly, at a visit of its own."""
        draft = a_draft("acts", token="T", a=1)
        outcome = await run.actions.test(draft, a_walk(visit="7"))
        assert outcome.status == "sent"
        ((walk, node),) = probe.reached
        assert node.config == {"token": "T", "a": 1}
        assert walk.visit != "7"

    async def test_what_it_writes_is_in_a_transaction_of_its_own(self, run: Running) -> None:
        """Committed when it succeeds, and rolled back when it does not."""
        outcome = await run.actions.test(a_draft("writes"), a_walk())
        assert (outcome.status, outcome.message) == ("sent", "written at (an address)")
        assert await count(run, halted_runs, halted_runs.c.organization_id == "probe") == 1
        outcome = await run.actions.test(a_draft("writes", fails=True), a_walk())
        assert (outcome.status, outcome.reason) == ("failed", "plugin_error")
        assert await count(run, halted_runs, halted_runs.c.organization_id == "probe") == 1


class TestChat:
    async def test_a_message_is_posted(self, chat: Adopted) -> None:
        """The outcome is that of the send, and how long it took."""
        draft = a_draft("chat_message", chatChannelId="C00ORDERS", chatMessageText="hi {{userId}}")
        outcome = await chat.actions.test(draft, a_walk())
        assert (outcome.status, outcome.duration_ms is not None) == ("sent", True)
        assert chat.texts == [("#orders", "hi user-1")]
        draft = a_draft("chat_message", chatChannelId="C00RANDOM", chatMessageText="hi")
        outcome = await chat.actions.test(draft, a_walk())
        assert (outcome.status, outcome.reason) == ("failed", "send_failed")
        assert outcome.message == "Invite the app to the channel first."
