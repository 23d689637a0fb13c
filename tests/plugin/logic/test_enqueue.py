from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    ExperienceTriggerRef,
    Header,
    LogicAction,
    LogicActionRef,
    NodeTriggerRef,
    QuestionRequired,
)
from flowactions_plugin.logic.store import LIMIT, WINDOW_MS, admit
from flowactions_plugin.queue.keys import FirstUse, IdempotencyKeys, KeyUse
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import enqueue_rates
from tests.outages import Outage
from tests.plugin.nodes import running as hosting
from tests.support import SmallHost, development, services_of
from tests.telemetry import Recorded
from tests.triggers import EXPERIENCE as EXPERIENCE_TRIGGER
from tests.waiting import SAFETY_SECONDS, until

PATH = "/v1/agents/agent-1/experiences/survey/logic-webhook"
OF_EXPERIENCE: dict[str, Any] = {"source": "experience_trigger", "actionIndex": 0, "triggerRowId": "submitted"}
OF_NODE: dict[str, Any] = {
    "source": "node_trigger",
    "actionIndex": 1,
    "nodeId": "rating",
    "nodeTriggerGroupId": "low",
}


OLDER = "UPDATE flowactions_enqueue_keys SET created_at = created_at - {} * 3600000 - 60000"


class LogicHost(SmallHost):
    """A host that notes which actions it was asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[LogicActionRef] = []
        self.agents = [
            Agent(id="agent-1", name="One", organization_id="acme"),
            Agent(id="agent-2", name="Two", organization_id="acme"),
            Agent(id="agent-3", name="Three", organization_id="globex"),
        ]
        self.api = ApiPrincipal(organization_id="acme", all_agents=True)

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        self.asked.append(ref)
        return await super().logic_action(ref)


class Running(hosting.Running):
    async def call(self, key: str = "k", path: str = PATH, **body: Any) -> httpx.Response:
        return await self.client.post(path, json={"idempotencyKey": key, **(body or OF_EXPERIENCE)})

    async def count(self, table: str) -> int:
        async with services_of(self.host)._database.read() as connection:
            query = text(f"SELECT count(*) FROM {table}")  # noqa: S608  our own words
            return int((await connection.execute(query)).scalar_one())

    async def run(self, statement: str) -> None:
        async with services_of(self.host)._database.write() as connection:
            await connection.execute(text(statement))


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    host = LogicHost(development(database_url))
    host.secret = "s"
    async with hosting.running(host) as started:
        host.action = LogicAction(
            url=started.receiver.url, method="PUT", headers=[Header(key="x-shop", value="1")], secret="s"
        )
        yield Running(host, started.actions, started.receiver, started.client)


class TestEnqueue:
    async def test_a_call_is_delivered_with_its_envelope(self, run: Running) -> None:
        """202 with the delivery, and the receiver gets what the action says (§4.2)."""
        answer = await run.call("order-1")
        assert answer.status_code == 202
        data = answer.json()["data"]
        assert data.keys() == {"id", "eventId", "status"}
        assert data["status"] == "pending"
        (request,) = await until(lambda: run.receiver.requests)
        assert request.line == "PUT /hook HTTP/1.1"
        assert request.header("x-shop") == "1"
        assert request.header("x-service-webhook-id") == data["eventId"]
        occurred = datetime.fromisoformat(json.loads(request.body)["data"]["occurredAt"])
        assert abs(occurred - datetime.now(UTC)) < timedelta(seconds=SAFETY_SECONDS)
        detail = (await run.client.get(f"/v1/webhooks/outbox/{data['id']}")).json()["data"]
        assert (detail["idempotencyKey"], detail["maxAttempts"]) == ("order-1", 5)

    async def test_the_ids_lead_to_the_action(self, run: Running) -> None:
        """The host is asked for exactly what the path and the body name, within the caller's organization (§2.8, §4.2)."""
        await run.call("1")
        await run.call("2", **OF_NODE)
        await run.call("3", **OF_NODE, questionId="q1")
        common: dict[str, Any] = {"organization_id": "acme", "agent_id": "agent-1", "experience_id": "survey"}
        of_node: dict[str, Any] = {"node_id": "rating", "node_trigger_group_id": "low", "action_index": 1}
        assert run.host.asked == [
            ExperienceTriggerRef(**common, trigger_row_id="submitted", action_index=0),
            NodeTriggerRef(**common, **of_node),
            NodeTriggerRef(**common, **of_node, question_id="q1"),
        ]

    async def test_nothing_of_the_action_comes_from_the_client(self, run: Running) -> None:
        """Unknown fields are ignored, whatever they are called (§2.8)."""
        stranger: dict[str, Any] = {"url": "http://evil.example/", "method": "DELETE", "secret": "x"}
        stranger |= {"headers": [{"key": "x-evil"}], "organizationId": "globex", "agentId": "agent-3"}
        answer = await run.call("k", **OF_EXPERIENCE, **stranger, action=stranger, body="x")
        assert answer.status_code == 202
        (request,) = await until(lambda: run.receiver.requests)
        assert request.line == "PUT /hook HTTP/1.1"
        assert "evil" not in str(request)
        assert json.loads(request.body)["data"]["agentId"] == "agent-1"

    async def test_a_duplicate_enqueues_nothing(self, run: Running) -> None:
        """204 without a body, and the host is not even asked for the action (§4.2)."""
        assert (await run.call("k")).status_code == 202
        asked = len(run.host.asked)
        run.host.action = None
        answer = await run.call("k", **OF_NODE)
        assert (answer.status_code, answer.content) == (204, b"")
        assert len(run.host.asked) == asked
        assert await run.count("flowactions_outbox") == 1

    async def test_keys_belong_to_an_agent(self, run: Running) -> None:
        """Another agent with the same key is another call."""
        assert (await run.call("k")).status_code == 202
        assert (await run.call("k", PATH.replace("agent-1", "agent-2"))).status_code == 202
        assert await run.count("flowactions_outbox") == 2

    async def test_any_text_is_a_key(self, run: Running) -> None:
        """Up to 200 characters of whatever the caller has."""
        for key in ("k" * 200, "ключ 🔑", "a\nb", " ", "'; --"):
            assert [(await run.call(key)).status_code for _ in range(2)] == [202, 204], key

    async def test_a_key_is_forgotten_after_its_window(self, run: Running) -> None:
        """24 hours by default; then the key is free, and is pruned (§8)."""
        assert (await run.call("k")).status_code == 202
        for hours, expected in ((23, 204), (24, 202)):
            await run.run(OLDER.format(hours))
            assert (await run.call("k")).status_code == expected
            await run.run("UPDATE flowactions_enqueue_rates SET times = '[]'")
        services = services_of(run.host)
        updated_at, database, keys = enqueue_rates.c.updated_at, services._database, services._outbox.keys
        assert [await keys.prune(10), await database.prune(updated_at, 3600_000, 10)] == [0, 0]
        await run.run("UPDATE flowactions_enqueue_keys SET created_at = 1")
        await run.run("UPDATE flowactions_enqueue_rates SET updated_at = 1")
        for prune in services._prunes():
            await prune(10)
        async with database.read() as connection:
            for table in ("keys", "rates"):
                left = await connection.execute(text(f"SELECT 1 FROM flowactions_enqueue_{table}"))  # noqa: S608
                assert left.all() == []

    async def test_a_look_and_a_use_agree_on_when_a_key_is_free(self, tmp_path: Path) -> None:
        """It is when the window has passed, to the millisecond (§8)."""
        now = [0.0]
        url = read_settings({"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}"}).database_url
        async with Database(url, clock=lambda: now[0]) as database:
            keys = IdempotencyKeys(database, 1000)
            for milliseconds, is_free in ((1_000_000, True), (1_000_500, False), (1_001_000, True)):
                now[0] = milliseconds / 1000
                async with database.write() as connection:
                    use = KeyUse(keys, "acme", "host", "k")
                    found = await keys.find(use, connection)
                    (used,) = await connection.run_sync(keys.use_all, [(use, FirstUse(str(milliseconds), "e"))])
                assert (found is None, used is None) == (is_free, is_free), milliseconds

    async def test_the_window_is_a_setting(self, database_url: str) -> None:
        """FLOWACTIONS_IDEMPOTENCY_HOURS."""
        host = LogicHost(development(database_url, FLOWACTIONS_IDEMPOTENCY_HOURS="1"))
        host.action = LogicAction(url="http://127.0.0.1:9/")
        async with hosting.running(host) as started:
            run = Running(host, started.actions, started.receiver, started.client)
            assert [(await run.call("k")).status_code for _ in range(2)] == [202, 204]
            await run.run("UPDATE flowactions_enqueue_keys SET created_at = created_at - 3600001")
            assert (await run.call("k")).status_code == 202


class TestWhoMayCall:
    async def test_a_token_may_be_for_some_agents_only(self, run: Running) -> None:
        """agent_ids of the principal is heeded (§5.1)."""
        run.host.api = ApiPrincipal(organization_id="acme", agent_ids=frozenset({"agent-2"}))
        assert (await run.call("k")).status_code == 404
        assert (await run.call("k", PATH.replace("agent-1", "agent-2"))).status_code == 202

    async def test_anothers_agent_is_as_if_it_were_not_there(self, run: Running) -> None:
        """The host is not asked for its action."""
        for agent in ("agent-3", "nobody"):
            answer = await run.call("k", PATH.replace("agent-1", agent))
            assert (answer.status_code, run.host.asked) == (404, []), agent


async def test_all_ids_that_do_not_go_with_the_source_are_told_at_once(run: Running) -> None:
    """A caller need not try again and again."""
    answer = await run.call("k", source="node_trigger", actionIndex=0, triggerRowId="r")
    named = [error["path"] for error in answer.json()["errors"]]
    assert named == ["nodeId", "nodeTriggerGroupId", "triggerRowId"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"idempotencyKey": None}, "idempotencyKey"),
    ({"idempotencyKey": ""}, "idempotencyKey"),
    ({"idempotencyKey": 7}, "idempotencyKey"),
    ({"idempotencyKey": "k" * 201}, "idempotencyKey"),
    ({"idempotencyKey": "k\0"}, "idempotencyKey"),
    ({"source": None}, "source"),
    ({"source": "trigger"}, "source"),
    ({"actionIndex": None}, "actionIndex"),
    ({"actionIndex": -1}, "actionIndex"),
    ({"actionIndex": 0.0}, "actionIndex"),
    ({"actionIndex": "0"}, "actionIndex"),
    ({"actionIndex": True}, "actionIndex"),
    ({"actionIndex": 2**31}, "actionIndex"),
    ({"actionIndex": 10**400}, "actionIndex"),
    ({"triggerRowId": None}, "triggerRowId"),
    ({"triggerRowId": ""}, "triggerRowId"),
    ({"triggerRowId": "r" * 256}, "triggerRowId"),
    ({"triggerRowId": "r\0"}, "triggerRowId"),
    ({"nodeId": "n"}, "nodeId"),
    ({"nodeTriggerGroupId": "g"}, "nodeTriggerGroupId"),
    ({"questionId": "q"}, "questionId"),
    ({"source": "node_trigger", "nodeId": "n", "nodeTriggerGroupId": "g"}, "triggerRowId"),
    ({"source": "node_trigger", "triggerRowId": None, "nodeTriggerGroupId": "g"}, "nodeId"),
    ({"source": "node_trigger", "triggerRowId": None, "nodeId": "n"}, "nodeTriggerGroupId"),
    ({"source": "node_trigger", "triggerRowId": None, "questionId": "q"}, "nodeId"),
]
"""Changes of a body that is right, and the field that the answer names."""


class TestValidation:
    async def test_every_field_and_combination_is_checked(self, run: Running) -> None:
        """400 with the field's path; an optional field that is null counts as absent (§4.2, §7.3)."""
        required = {"idempotencyKey", "source", "actionIndex"}
        for changes, path in WRONG:
            body = {"idempotencyKey": "k", **OF_EXPERIENCE, **changes}
            if changes.get(path, "") is None and path in required:
                del body[path]
            answer = await run.client.post(PATH, json=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
            paths = [error["path"] for error in answer.json().get("errors", [])]
            is_absent = path in required and path not in body
            assert path in paths or (is_absent and path in answer.text), (changes, answer.text)
        assert run.host.asked == []

    async def test_an_action_that_is_not_there_is_told(self, run: Running) -> None:
        """400, and the key is still free (§7.3)."""
        action, run.host.action = run.host.action, None
        answer = await run.call("k")
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_action")
        run.host.action = action
        answer = await run.call("k", PATH.replace("survey", "%00"))
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_action")
        assert (await run.call("k")).status_code == 202

    async def test_a_survey_question_has_to_be_named(self, run: Running) -> None:
        """Where the host says so, questionId is required."""
        run.host.action_error = QuestionRequired()
        answer = await run.call("k", **OF_NODE)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert [error["path"] for error in answer.json()["errors"]] == ["questionId"]

    async def test_an_action_may_not_lead_where_webhooks_may_not(self, run: Running) -> None:
        """The egress guard is asked, as for every other webhook."""
        for url in ("", "ftp://example.com/", "http://169.254.169.254/latest", "http://user@x/"):
            run.host.action = LogicAction(url=url)
            answer = await run.call("k")
            assert (answer.status_code, answer.json()["code"]) == (400, "blocked_url"), url
        assert await run.count("flowactions_enqueue_keys") == 0

    async def test_a_host_that_fails_is_a_500_that_tells_nothing(self, run: Running) -> None:
        """And nothing is written."""
        run.host.action_error = RuntimeError("the host's own secret")
        answer = await run.call("k")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "secret" not in answer.text
        assert await run.count("flowactions_enqueue_keys") == 0

    @pytest.mark.parametrize("outage", ["read-only file"], indirect=True)
    async def test_a_database_that_takes_no_call_is_a_503_and_counted(self, outage: Outage) -> None:
        """As any webhook that is not queued because of the database."""
        engine, recorded = outage.engine(), Recorded()
        assert engine is not None
        host = LogicHost(development(outage.url))
        host.database = engine
        host.action = LogicAction(url="http://127.0.0.1:9/")
        recorded.listen_to(host)
        async with hosting.running(host) as started, outage.lasting():
            answer = await started.client.post(PATH, json={"idempotencyKey": "k", **OF_EXPERIENCE})
            fired = await started.actions.dispatch(
                EXPERIENCE_TRIGGER, firing_id="f", occurred_at=datetime.now(UTC)
            )
        await engine.dispose()
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert (fired.status, fired.reason) == ("failed", "storage_unavailable")
        assert recorded.value("flowactions.outbox.refused", reason="read_only") == 2


class TestRate:
    async def test_the_sixty_first_call_within_a_minute_waits(self, run: Running) -> None:
        """60 are taken, the 61st is a 429 with Retry-After; repeated keys and refused calls do not count (§8)."""
        answers = [await run.call("k0")]
        # The minute does not pass while they are made: a clock that was set back counts as standing still.
        await self.age(run, -600_000)
        answers += await asyncio.gather(*(run.call(f"k{number}") for number in range(1, 75)))
        assert Counter(answer.status_code for answer in answers) == {202: 60, 429: 15}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["code"] == "rate_limited"
        assert int(refused.headers["retry-after"]) == 60
        taken = next(number for number, answer in enumerate(answers) if answer.status_code == 202)
        assert (await run.call(f"k{taken}")).status_code == 204
        assert await run.count("flowactions_outbox") == 60
        assert await run.count("flowactions_enqueue_keys") == 60
        asked = len(run.host.asked)
        assert (await run.call("k")).status_code == 429
        assert len(run.host.asked) == asked
        assert (await run.call("other", PATH.replace("agent-1", "agent-2"))).status_code == 202

        await self.age(run, 1_000)
        assert (await run.call("later")).status_code == 429
        await self.age(run, 60_000)
        assert (await run.call("later")).status_code == 202

    @staticmethod
    async def age(run: Running, milliseconds: int) -> None:
        """Let all calls that count have been made so long ago."""
        async with services_of(run.host)._database.write() as connection:
            query = text("SELECT times FROM flowactions_enqueue_rates WHERE agent_id = 'agent-1'")
            times = json.loads((await connection.execute(query)).scalar_one())
            older = json.dumps([int(time.time() * 1000) - milliseconds for _ in times])
            changed = text("UPDATE flowactions_enqueue_rates SET times = :times WHERE agent_id = 'agent-1'")
            await connection.execute(changed, {"times": older})

    async def test_a_count_that_was_spoilt_begins_anew(self, run: Running) -> None:
        """Whatever is in the row, calls are taken."""
        assert (await run.call("first")).status_code == 202
        for number, spoilt in enumerate(("", "{", "7", '["x"]', "[null]")):
            await run.run(f"UPDATE flowactions_enqueue_rates SET times = '{spoilt}'")  # noqa: S608  our own words
            assert (await run.call(f"k{number}")).status_code == 202

    async def test_a_call_that_is_not_enqueued_does_not_count(self, run: Running) -> None:
        """Mistakes cost nothing."""
        action, run.host.action = run.host.action, None
        for number in range(70):
            assert (await run.call(f"k{number}")).status_code == 400
        run.host.action = action
        assert (await run.call("k")).status_code == 202

    @given(st.lists(st.integers(0, 4000) | st.integers(-50, 50) | st.integers(0, 70_000), max_size=400))
    def test_never_more_than_sixty_in_any_minute(self, pauses: list[int]) -> None:
        """With any pauses, clocks that are set back included; and a call that waits as told is admitted."""
        times: list[int] = []
        admitted: list[int] = []
        now = 1_000_000
        for pause in pauses:
            now += pause
            counting, wait_ms = admit(times, now)
            assert len(counting) <= LIMIT
            if wait_ms == 0:
                times = list(counting)
                admitted.append(times[-1])
            else:
                assert 0 < wait_ms <= WINDOW_MS
                later = max(now, times[-1]) + wait_ms
                assert admit(times, later)[1] == 0
                assert admit(times, later - 1)[1] > 0
        for first, last in zip(admitted, admitted[LIMIT:], strict=False):
            assert last - first >= WINDOW_MS
