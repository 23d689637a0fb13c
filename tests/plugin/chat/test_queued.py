"""Chat messages that wait in the outbox (``FLOWACTIONS_CHAT_DELIVERY=queued``)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import pytest
from sqlalchemy import text

from flowactions_conformance.chat_provider import Fault, Workspace, sample_workspace
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_hookspecs import Deferred, HostOrigin, Node, NodeDraft, OutboundWebhook
from flowactions_plugin.chat.queued import NOT_CONNECTED, pause_after, url_of
from flowactions_plugin.errors import ActionInvalid, NotConfigured, StorageUnavailable
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.resend import send_again
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue import continuous, sequences
from flowactions_plugin.queue.rules import TOO_LATE
from flowactions_plugin.queue.sequences import Sequences
from tests.auth_provider import NEW, signed
from tests.chatting import JSON, ChatHost, chat_host, refusing
from tests.pausing import OLIVE
from tests.recorder import recorder
from tests.support import a_walk, hurry, services_of
from tests.telemetry import Recorded
from tests.waiting import until

QUEUED: Final = {"FLOWACTIONS_CHAT_DELIVERY": "queued", "FLOWACTIONS_DELIVERY": "continuous"}
NODE: Final = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}
UNAVAILABLE: Final = refusing("service_unavailable", 503)
LIMITED: Final = RATE_LIMITED._replace(headers=(("retry-after", "600"), *JSON))
"""For longer than a test takes: what waits for that is due when the test says so."""


class Queued:
    """A host whose chat messages are queued, and its rows."""

    def __init__(self, run: ChatHost) -> None:
        self.run = run
        self.provider = run.provider
        self.services = services_of(run.host)
        self.database = self.services._database
        self.operations = Operations(self.database)

    async def message(self, **config: Any) -> str:
        """Queue a message; give its row's id."""
        result = await self.run.message(**config)
        assert (result.status, result.reason, result.halt) == ("queued", None, False)
        assert result.delivery_id is not None
        return result.delivery_id

    async def execute(self, statement: str, **given: Any) -> list[Any]:
        async with self.database.write() as connection:
            found = await connection.execute(text(statement), given)
            return list(found.all()) if found.returns_rows else []

    async def rows(self) -> list[Any]:
        return await self.execute("SELECT * FROM flowactions_outbox ORDER BY id")

    async def row(self, row_id: str) -> Any:
        return (await self.execute("SELECT * FROM flowactions_outbox WHERE id = :id", id=row_id))[0]

    async def when(self, row_id: str, so: Callable[[Any], bool]) -> Any:
        """Wait until a row is so; give it."""

        async def found() -> Any:
            row = await self.row(row_id)
            return row if so(row) else None

        return await until(found)

    async def ended(self, row_id: str) -> Any:
        """Wait for the end of a row, and until its worker has said so: that comes after the row is written."""
        row = await self.when(row_id, lambda row: row.status in {"delivered", "dead"})
        if (probes := self.services._delivery._probes) is not None:
            await probes._executor.completer.flush()
        return row

    async def retrying(self, row_id: str) -> Any:
        """Wait until a row is tried again."""
        return await self.when(row_id, lambda row: row.status == "retrying")

    async def waits(self, row_id: str, error_class: str) -> Any:
        """Wait until a row waits for this kind of reason."""
        return await self.when(row_id, lambda row: row.status == "pending" and row.error_class == error_class)

    async def due(self, row_id: str) -> None:
        """Let a row that waits be due now."""
        await self.execute("UPDATE flowactions_outbox SET next_attempt_at = 1 WHERE id = :id", id=row_id)

    async def waits_again(self, row_id: str) -> Any:
        """Let a row that waits be looked at once more; give it as it waits then."""
        await self.due(row_id)
        return await self.when(row_id, lambda row: row.next_attempt_at > 1 and row.claimed_by is None)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.provider.messages]

    def fault(self, *faults: Fault) -> None:
        self.provider.faults["chat.postMessage"].extend(faults)


@asynccontextmanager
async def queued_host(
    database_url: str,
    workspaces: Sequence[Workspace] | None = None,
    recorded: Recorded | None = None,
    **settings: str,
) -> AsyncIterator[Queued]:
    async with chat_host(database_url, workspaces, recorded, **QUEUED | settings) as run:
        await run.connect()
        run.provider.calls.clear()
        yield Queued(run)


@pytest.fixture
async def queued(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queued]:
    """A host whose worker looks often, and waits little between messages of a channel."""
    hurry(monkeypatch, "deliveries one after another", seconds=0.1)
    monkeypatch.setattr(continuous, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(sequences, "CHAT_PACE_SECONDS", 0.3)
    async with queued_host(database_url) as running:
        yield running


class TestQueueing:
    async def test_a_message_is_written_and_posted(
        self, queued: Queued, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The node answers at once; the log line of §6.3 comes when the message was posted."""
        caplog.set_level("INFO")
        row = await queued.ended(await queued.message(chatMessageText="*{{userId}}*: {{content}}"))
        assert queued.texts == ["*user-1*: hello"]
        assert (row.status, row.attempts, row.max_attempts, row.last_error) == ("delivered", 1, 1, None)
        assert (row.url, row.destination) == ("chat://T0000ACME/C00ORDERS", "chat://T0000ACME")
        assert row.event_type == "experience.flow_node.chat_message"
        assert (row.flow_id, row.node_id, row.headers) == ("flow-1", "n", "[]")
        assert json.loads(row.body) == {"text": "*user-1*: hello"}
        assert "chat_message node n sent" in caplog.messages

    async def test_a_person_gets_a_direct_message(self, queued: Queued) -> None:
        """Its channel is opened by the worker (§2.1)."""
        config = {"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": "psst"}
        assert (await queued.ended(await queued.message(**config))).status == "delivered"
        assert [(each.channel, each.text) for each in queued.provider.messages] == [("@grace", "psst")]

    async def test_the_checks_are_made_before(self, queued: Queued) -> None:
        """What has no target, no text or no connection is answered at once, with its halting (§7.1)."""
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("missing_target", {"chatChannelId": " "}),
            ("empty_message", {"chatMessageText": " "}),
            ("send_failed", {"chatChannelId": "no such id"}),
            ("send_failed", {"chatChannelId": "C" * 256}),
            ("not_connected", {"organization": "globex"}),
        ]
        for reason, config in wrong:
            result = await queued.run.message(**{"chatContinueOnFailure": False, **config})
            assert (result.status, result.reason, result.halt) == ("failed", reason, True)
        assert await queued.rows() == []

    async def test_a_message_that_is_cut_says_so(self, queued: Queued) -> None:
        """As when it is posted at once (§2.1)."""
        result = await queued.run.message(chatMessageText="x" * 4001)
        assert (result.status, result.message) == ("queued", "The message is cut at 4000 characters.")

    async def test_it_is_part_of_the_hosts_transaction(self, queued: Queued) -> None:
        """What is rolled back is never posted."""
        reach, node = queued.run.actions.reach, Node(id="n", type="chat_message", config=NODE)

        async def roll_back() -> None:
            async with queued.database.write(as_host=True) as transaction:
                assert (await reach(a_walk(), node, transaction)).status == "queued"
                raise KeyError

        with pytest.raises(KeyError):
            await roll_back()
        async with queued.database.write(as_host=True) as transaction:
            kept = await reach(a_walk(), node, transaction)
        assert (await queued.ended(str(kept.delivery_id))).status == "delivered"
        assert queued.texts == ["hi"]

    async def test_a_deferred_message_is_queued_when_its_step_is_reached(self, queued: Queued) -> None:
        """With the note that its node has run (§3.2)."""
        walk = a_walk(pacing=Deferred("s"))
        assert (
            await queued.run.actions.reach(walk, Node(id="n", type="chat_message", config=NODE))
        ).status == ("recorded")
        (result,) = (await queued.run.actions.advance(walk, "s")).results
        assert (await queued.ended(str(result.delivery_id))).status == "delivered"
        assert queued.texts == ["hi"]

    @pytest.mark.parametrize("proceeds", [True, False])
    async def test_what_cannot_be_written_is_not_sent(
        self, queued: Queued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, proceeds: bool
    ) -> None:
        """`send_failed`, with the node's halting (§7.1)."""

        async def fail(*_: Any) -> None:
            raise StorageUnavailable("the database is away")

        monkeypatch.setattr(queued.services._outbox, "write", fail)
        result = await queued.run.message(chatContinueOnFailure=proceeds)
        assert (result.status, result.reason, result.halt) == ("failed", "send_failed", not proceeds)
        assert "chat_message node n not sent: send_failed" in caplog.messages

    async def test_a_test_of_a_draft_is_posted_at_once(self, queued: Queued) -> None:
        """Its author waits for what becomes of it."""
        node = Node(id="n", type="chat_message", config=NODE)
        draft = NodeDraft(organization_id="acme", agent_id="a1", node=node)
        outcome = await queued.run.actions.test(draft, a_walk())
        assert (outcome.status, queued.texts, await queued.rows()) == ("sent", ["hi"], [])

    async def test_no_webhook_may_go_to_a_workspace(self, queued: Queued) -> None:
        """A host's own webhook with such a URL is refused: the message of another organization would be posted."""
        webhook = OutboundWebhook(
            organization_id="globex",
            origin=HostOrigin(organization_id="globex", name="n", id="1"),
            event_type="t",
            entity="e",
            url="chat://T0000ACME/C00ORDERS",
            body=b"{}",
        )
        assert (await queued.run.actions.enqueue(webhook)).reason == "blocked_url"

    async def test_it_is_counted_when_it_has_ended(self, sqlite_url: str) -> None:
        """By result and target, once each (§6.3)."""
        recorded = Recorded()
        async with queued_host(sqlite_url, recorded=recorded) as queued:
            await queued.ended(await queued.message())
            member = {"chatActionType": "dm", "chatUserId": "U000ROBOT"}
            await queued.ended(await queued.message(**member))
        assert sends(recorded) == {("channel", "sent"): 1, ("member", "send_failed"): 1}


def sends(recorded: Recorded) -> dict[tuple[str, str], float]:
    found = [each for each in recorded.points() if each.name == "flowactions.chat.sends"]
    return {(each.labels["target"], each.labels["result"]): each.value for each in found}


class TestOrder:
    async def test_messages_to_a_channel_arrive_in_order_and_at_its_pace(self, database_url: str) -> None:
        """Also where the provider takes one a second: none of them uses up an attempt, and all arrive."""
        async with queued_host(database_url, [sample_workspace(limited=True)]) as queued:
            ids = [await queued.message(chatMessageText=str(number)) for number in range(4)]
            ends = [await queued.ended(row_id) for row_id in ids]
        assert queued.texts == [str(number) for number in range(4)]
        assert {(row.status, row.attempts) for row in ends} == {("delivered", 1)}
        posted = [row.delivered_started_at for row in ends]
        # What another connection has begun to release before one had ended may follow earlier, once.
        assert sorted(later - earlier for earlier, later in pairwise(posted))[1] > 900

    async def test_channels_do_not_wait_for_each_other(self, queued: Queued) -> None:
        """Of each, the first is posted while the others wait."""
        slow = [await queued.message(chatMessageText=f"slow {number}") for number in range(3)]
        person = {"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": "quick"}
        await queued.ended(await queued.message(**person))
        assert (await queued.row(slow[2])).status == "pending"
        await queued.ended(slow[2])
        assert [each for each in queued.texts if each != "quick"] == ["slow 0", "slow 1", "slow 2"]

    async def test_a_look_of_another_worker_goes_on_with_them(self, queued: Queued) -> None:
        """It knows nothing of the pace: then the provider's answer holds it."""
        other = Sequences(queued.database, lambda _due: None)
        ids = [await queued.message(chatMessageText=str(number)) for number in range(3)]
        for row_id in ids:
            await other.look()
            await queued.ended(row_id)
        assert queued.texts == ["0", "1", "2"]


class TestRefusals:
    async def test_a_channel_at_its_limit_uses_up_no_attempt(self, queued: Queued) -> None:
        """The row waits as long as the provider says, and operators read why."""
        queued.fault(RATE_LIMITED._replace(headers=(("retry-after", "7"), *JSON)))
        row_id = await queued.message()
        row = await queued.waits(row_id, "chat_limited")
        assert (row.attempts, row.waiting_since) == (0, None)
        assert row.next_attempt_at - row.updated_at == 7000
        assert "throttling" in row.last_error
        await queued.due(row_id)
        assert ((await queued.ended(row_id)).attempts, queued.texts) == (1, ["hi"])
        assert (await queued.run.card())["lastError"] is None

    async def test_a_transient_failure_is_tried_again_if_the_node_says_so(self, queued: Queued) -> None:
        """Four attempts by the delays of §8, otherwise one (§2.1)."""
        queued.fault(UNAVAILABLE, UNAVAILABLE)
        once = await queued.ended(await queued.message())
        assert (once.status, once.attempts, once.error_class) == ("dead", 1, "chat_unreachable")
        row_id = await queued.message(chatRetryOnFailure=True)
        row = await queued.retrying(row_id)
        assert (row.attempts, row.max_attempts) == (1, 4)
        assert row.next_attempt_at - row.updated_at == 5000
        await queued.due(row_id)
        assert (await queued.ended(row_id)).attempts == 2
        assert queued.texts == ["hi"]

    async def test_a_refusal_ends_it(self, queued: Queued, caplog: pytest.LogCaptureFixture) -> None:
        """At once, with the advice of §7.1; the next one goes on."""
        config = {"chatChannelId": "C00RANDOM", "chatRetryOnFailure": True}
        ends = [await queued.ended(await queued.message(**config)) for _ in range(2)]
        for row in ends:
            assert (row.status, row.attempts, row.error_class) == ("dead", 1, "chat_refused")
            assert row.last_error == "not_in_channel: Invite the app to the channel first."
        assert caplog.messages.count("chat_message node n not sent: send_failed") == 2
        because = (
            "chat_message node n of organization acme: not_in_channel: Invite the app to the channel first."
        )
        assert caplog.messages.count(because) == 2

    async def test_it_says_nothing_about_the_workspace(self, queued: Queued) -> None:
        """Of a channel that is refused, nobody is alerted, and nothing is paused; a workspace that does not answer fails."""
        for _ in range(2):
            await queued.ended(await queued.message(chatChannelId="C00RANDOM"))
        await queued.services._monitor.report()
        read = "SELECT failures_in_row, failing_since FROM flowactions_destinations"
        assert [tuple(row) for row in await queued.execute(read)] == [(0, None)]
        queued.fault(UNAVAILABLE)
        await queued.ended(await queued.message())
        await queued.services._monitor.report()
        ((failures, _),) = await queued.execute(read)
        assert failures == 1

    async def test_the_host_is_not_asked_for_a_secret_and_no_operator_has_a_schedule_for_it(
        self, sqlite_url: str
    ) -> None:
        """A secret would sign nothing, and a schedule of hours is for receivers."""
        async with queued_host(sqlite_url, FLOWACTIONS_RETRY_SCHEDULE="1h,2h") as queued:
            queued.run.host.secret_error = RuntimeError("asked")
            queued.fault(UNAVAILABLE)
            row_id = await queued.message(chatRetryOnFailure=True)
            row = await queued.retrying(row_id)
            assert row.next_attempt_at - row.updated_at == 5000
            await queued.due(row_id)
            await queued.ended(row_id)
            logged = await queued.execute("SELECT phases FROM flowactions_attempts")
        assert [each.phases for each in logged] == [None]


class TestConnections:
    async def test_without_a_usable_token_it_waits_without_an_attempt(self, queued: Queued) -> None:
        """Until the workspace is connected again; nobody has to retry anything."""
        (token,) = queued.provider.state.tokens_of(queued.provider.state.workspaces[0])
        token.dead = "token_revoked"
        first, second = [await queued.message(chatMessageText=each) for each in ("one", "two")]
        row = await queued.waits(first, "waits")
        assert (row.attempts, row.waiting_since, row.last_error[:13]) == (0, None, "token_revoked")
        await queued.run.settled()
        row = await queued.waits_again(first)
        assert (row.attempts, row.waiting_since, row.error_class) == (0, None, "waits")
        assert row.next_attempt_at - row.updated_at >= 5000
        await queued.run.connect()
        await queued.due(first)
        await queued.ended(second)
        assert queued.texts == ["one", "two"]

    async def test_to_disconnect_ends_what_waits(
        self, queued: Queued, caplog: pytest.LogCaptureFixture
    ) -> None:
        """At once: what is disconnected is to post nothing more. Others go on."""
        queued.fault(LIMITED)
        ids = [await queued.message() for _ in range(3)]
        await queued.waits(ids[0], "chat_limited")
        assert (await queued.run.browser.delete("/integrations/chat/connection")).status_code == 204
        for row_id in ids:
            row = await queued.row(row_id)
            assert (row.status, row.attempts, row.last_error) == ("dead", 0, NOT_CONNECTED)
        assert caplog.messages.count("chat_message node n not sent: not_connected") == 3
        await queued.run.connect()
        await queued.ended(await queued.message(chatMessageText="after"))
        assert queued.texts == ["after"]

    async def test_a_deleted_organization_posts_nothing_more(self, sqlite_url: str) -> None:
        """What waits ends with its connection (§4.4)."""
        async with queued_host(sqlite_url, AUTH_WEBHOOK_SIGNING_SECRET=NEW) as queued:
            queued.fault(LIMITED)
            row_id = await queued.message()
            await queued.waits(row_id, "chat_limited")
            event = json.dumps({"type": "organization.deleted", "data": {"id": "acme"}}).encode()
            answer = await queued.run.browser.post("/webhooks/auth", content=event, headers=signed(event))
            assert answer.status_code == 200
            assert (await queued.row(row_id)).last_error == NOT_CONNECTED

    @pytest.mark.parametrize("change", ["gone", "another workspace"])
    async def test_of_a_workspace_that_is_not_the_organizations_any_more_none_is_posted(
        self, queued: Queued, change: str
    ) -> None:
        """A worker ends what was written while the connection was removed or replaced."""
        pauser = await pausing(queued, "pause")
        row_id = await queued.message()
        if change == "gone":
            await queued.execute("DELETE FROM flowactions_chat_connections")
        else:
            await queued.run.connect(workspace="T00GLOBEX")
        await pauser("resume")
        row = await queued.ended(row_id)
        assert (row.status, row.attempts, row.last_error) == ("dead", 0, NOT_CONNECTED)
        assert queued.texts == []

    async def test_a_process_without_the_settings_lets_it_wait(self, queued: Queued) -> None:
        """As a worker that lacks them, or the keys; it is found as a fault of this side."""
        sender = queued.services._delivery._others["chat"].__self__  # type: ignore[attr-defined]
        chat, sender._chat = sender._chat, NotConfigured("Set CHAT_CLIENT_ID")
        row_id = await queued.message()
        row = await queued.waits(row_id, "waits")
        assert row.attempts == 0
        assert row.waiting_since is not None
        await queued.execute("UPDATE flowactions_outbox SET waiting_since = waiting_since - 3600000")
        row = await queued.waits_again(row_id)
        assert row.next_attempt_at - row.updated_at == 60_000  # once a minute at the least
        sender._chat = chat
        await queued.due(row_id)
        assert (await queued.ended(row_id)).status == "delivered"


async def pausing(queued: Queued, what: str) -> Any:
    """Pause or resume the workspace as an operator; give what does it again."""

    async def change(what: str) -> None:
        call = queued.operations.pause if what == "pause" else queued.operations.resume
        assert await call(Scope("acme"), "chat://T0000ACME/C00ORDERS", OLIVE, "test")

    await change(what)
    return change


class TestTooLate:
    async def test_a_message_that_waited_for_a_day_is_dead(
        self, queued: Queued, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A person's retry gives it another day."""
        queued.fault(LIMITED)
        row_id = await queued.message()
        row = await queued.waits(row_id, "chat_limited")
        assert abs(row.expires_at - row.created_at - 24 * 3_600_000) < 60_000
        late = "UPDATE flowactions_outbox SET expires_at = 1, next_attempt_at = 1"
        await queued.execute(late)
        row = await queued.ended(row_id)
        assert (row.status, row.attempts, row.last_error) == ("dead", 0, TOO_LATE)
        assert "chat_message node n not sent: send_failed" in caplog.messages
        assert await queued.operations.one(Scope("acme"), "retry", row_id, OLIVE) is not None
        row = await queued.ended(row_id)
        assert (row.status, queued.texts) == ("delivered", ["hi"])
        assert row.expires_at > row.created_at

    async def test_what_is_behind_it_is_posted(self, queued: Queued) -> None:
        """Each has its own time."""
        queued.fault(LIMITED)
        first, second = await queued.message(), await queued.message(chatMessageText="second")
        await queued.waits(first, "chat_limited")
        await queued.execute("UPDATE flowactions_outbox SET expires_at = 1 WHERE id = :id", id=first)
        await queued.due(first)
        assert (await queued.ended(second)).status == "delivered"
        assert queued.texts == ["second"]


class TestPeople:
    async def test_a_posted_message_is_not_sent_again(self, queued: Queued) -> None:
        """The provider knows no ids: the person would get it twice."""
        row_id = await queued.message()
        await queued.ended(row_id)
        with pytest.raises(ActionInvalid, match="A chat message is not sent again"):
            await queued.operations.one(Scope("acme"), "resend", row_id, OLIVE)
        counted = await queued.operations.preview(Scope("acme"), "resend", Filter.of(id=row_id))
        assert counted.count == 0
        async with queued.database.write() as connection:
            again = partial(send_again, queued.database, ids=[row_id])
            assert await connection.run_sync(again) == {}
        assert len(await queued.rows()) == 1

    async def test_a_paused_workspace_gets_nothing(self, queued: Queued) -> None:
        """As any destination; webhooks beside it go on."""
        pauser = await pausing(queued, "pause")
        row_id = await queued.message()
        async with recorder() as receiver:
            config = {"webhookUrl": receiver.url, "webhookBody": "{}"}
            await queued.run.actions.reach(a_walk(), Node(id="w", type="webhook", config=config))
            await until(lambda: receiver.requests)
        assert (await queued.row(row_id)).attempts == 0
        await pauser("resume")
        assert (await queued.ended(row_id)).status == "delivered"


class TestScheduled:
    async def test_a_tick_posts_one_to_each_channel(self, sqlite_url: str) -> None:
        """The next one follows in a later tick."""
        async with queued_host(sqlite_url, FLOWACTIONS_DELIVERY="scheduled") as queued:
            ids = [await queued.message(chatMessageText=str(number)) for number in range(3)]
            for row_id in ids:
                assert (await queued.ended(row_id)).attempts == 1
        assert queued.texts == ["0", "1", "2"]


def test_a_url_has_exactly_two_ids() -> None:
    """Whatever characters they have, so that no channel can be taken for one of another workspace."""
    assert url_of("T1", "C1") == "chat://T1/C1"
    assert url_of("T/1", "a/b?c#d%") == "chat://T%2F1/a%2Fb%3Fc%23d%25"
    for target in ("", " ", "a b", "é", "x" * 256, "\ud800", "a\n"):
        assert url_of("T1", target) is None


@pytest.mark.parametrize(("waited", "pause"), [(0, 5), (20, 5), (100, 25), (240, 60), (86_000, 60)])
def test_a_revoked_connection_is_looked_at_less_often_with_time(waited: int, pause: int) -> None:
    """From five seconds to a minute, however many messages wait."""
    assert pause_after(SimpleNamespace(left_ms=86_400_000 - waited * 1000)) == pause
