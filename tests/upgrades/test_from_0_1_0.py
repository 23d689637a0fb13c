from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import svix.webhooks
from sqlalchemy.exc import DBAPIError

from flowactions_hookspecs import (
    StartFailed,
)
from flowactions_plugin.storage.migrations import head
from tests.recorder import Recorder, recorder
from tests.upgrades.released import every_row, load, run
from tests.upgrades.shop import (
    AUTH_SECRET,
    chatting,
    command,
    decoded,
    event_ids,
    is_sqlite,
    live,
    migrate,
    rows_of,
    started,
    upgrade,
)
from tests.waiting import until

# As in the script that filled the databases.
ODD_ORGANIZATION = "zoë & söhne \U0001f6b2"

CARRIED_ON = (
    "flowactions_attempts",
    "flowactions_chat_connections",
    "flowactions_deferred",
    "flowactions_inbound_events",
    "flowactions_outbox",
)
UNREADABLE = {"no-walk", "no-fields"}
NO_FLOW = {"odd-0", "odd-1", "odd-2"}
"""Records of flows whose ids no walk may have: with NUL, with a lone surrogate, longer than an index holds."""

NOT_DUE = (
    "UPDATE flowactions_outbox SET next_attempt_at = {} WHERE claim_token IS NOT NULL OR status = 'retrying'"
)
HELD = "UPDATE flowactions_deferred SET held_until = {} WHERE held_until IS NOT NULL"
DUE = "UPDATE flowactions_outbox SET next_attempt_at = 0, claimed_until = NULL"
CLAIM_OF_BEFORE = """UPDATE flowactions_outbox SET claim_token = 'token', next_attempt_at = 9000000000000,
    takeovers = takeovers + CASE WHEN claim_token IS NULL THEN 0 ELSE 1 END
    WHERE status IN ('pending', 'retrying') AND next_attempt_at <= 8000000000000"""
RENAMED = {"claim_token": "claimed_by"}
SPOILT = "UPDATE flowactions_deferred SET walk = CAST(X'7bff' AS TEXT), node = CAST(X'7bff' AS TEXT) WHERE node_id = 'odd-2'"


@pytest.fixture
async def receiver() -> AsyncIterator[Recorder]:
    async with recorder() as recording:
        yield recording


@pytest.fixture
async def old(database_url: str, receiver: Recorder) -> str:
    """The URL of a database as 0.1.0 left it; its deliveries go to the receiver."""
    await load(database_url, receiver.url.removeprefix("http://").removesuffix("/hook"))
    if is_sqlite(database_url):
        # Text that is not UTF-8 cannot be part of a dump.
        await run(database_url, SPOILT)
    return database_url


class TestRows:
    async def test_every_row_is_carried_on(self, old: str) -> None:
        """What stood in a row stands there still, and each new column holds what it means for an old row (§9)."""
        before = await every_row(old)
        await upgrade(old)
        after = await every_row(old)
        for table in CARRIED_ON:
            assert len(before[table]) == len(after[table]) > 0
            for was, stands in zip(before[table], after[table], strict=True):
                assert {name: stands[RENAMED.get(name, name)] for name in was} == was
        new = (
            "quarantine_rounds",
            "settled_token",
            "waiting_since",
            "delivered_started_at",
            "flow_id",
            "node_id",
        )
        assert {tuple(row[name] for name in new) for row in after["flowactions_outbox"]} == {
            (0, None, None, None, None, None)
        }
        for row in map(decoded, after["flowactions_outbox"]):
            held = row["claimed_by"] is not None
            assert row["claimed_until"] == (row["next_attempt_at"] if held else None)
            failed = row["status"] != "delivered" and (row["last_status_code"] or row["last_error"])
            assert (row["error_class"] is not None) == bool(failed)
        for row in map(decoded, after["flowactions_deferred"]):
            named = row["node_id"] not in UNREADABLE | NO_FLOW
            assert row["flow_id"] == ("flow-1" if named else "")
            assert row["visit"] == "1"
            typed = row["node_id"] != "no-node" and not isinstance(row["walk"], bytes)
            assert row["node_type"] == (json.loads(row["node"])["type"] if typed else "")
        assert {
            decoded(row)[name]
            for row in after["flowactions_chat_connections"]
            for name in ("install_id", "missing_scopes")
        } == {""}

    async def test_a_worker_of_before_claims_nothing(self, old: str) -> None:
        """Its claim does not know the leases of this release, and must fail rather than take what others hold."""
        await upgrade(old)
        before = await every_row(old)
        with pytest.raises(DBAPIError, match="claim_token"):
            await run(old, CLAIM_OF_BEFORE)
        assert await every_row(old) == before

    async def test_a_key_belongs_to_the_organization_of_its_delivery(self, old: str) -> None:
        """Equal agent ids are told apart; where the delivery is gone, organization and event id are open."""
        before = await rows_of(old, "flowactions_idempotency_keys")
        deliveries = {row["id"]: row for row in await rows_of(old, "flowactions_outbox")}
        await upgrade(old)
        after = await rows_of(old, "flowactions_enqueue_keys")
        expected = [
            {
                "organization_id": deliveries.get(row["delivery_id"], {}).get("organization_id", ""),
                "caller": f"api:{row['agent_id']}",
                **{name: row[name] for name in ("idempotency_key", "delivery_id", "created_at")},
                "event_id": deliveries.get(row["delivery_id"], {}).get("event_id"),
            }
            for row in before
        ]
        key = str
        assert sorted(after, key=key) == sorted(expected, key=key)
        assert {row["organization_id"] for row in after} == {"acme", "globex", ""}

    async def test_the_tables_of_before_are_gone(self, old: str) -> None:
        """Nothing is left that nobody reads; installs that were under way begin anew."""
        await upgrade(old)
        after = await every_row(old)
        assert not {"flowactions_idempotency_keys", "flowactions_call_rates"} & after.keys()
        assert after["flowactions_oauth_states"] == []


class TestDelivering:
    async def test_live_rows_arrive_as_they_were_enqueued(self, old: str, receiver: Recorder) -> None:
        """Pending, retrying and claimed rows: bytes, method and event id are those that 0.1.0 has written."""
        later_on = int(time.time() * 1000) + 300_000
        await run(old, NOT_DUE.format(later_on), HELD.format(later_on))
        rows = {row["id"]: row for row in await live(old)}
        later = {row["id"] for row in rows.values() if row["claim_token"] or row["status"] == "retrying"}
        assert len(later) == 4
        assert sorted(row["takeovers"] for row in rows.values() if row["claim_token"]) == [0, 1, 2]
        at_once = Counter(row["event_id"] for row in rows.values() if row["id"] not in later)
        await upgrade(old)
        async with started(old, FLOWACTIONS_HOST_WORKER="on"):

            async def only_later() -> bool:
                return {row["id"] for row in await live(old)} == later

            await until(only_later)
            assert event_ids(receiver.requests) == at_once
            await run(old, DUE + " WHERE status IN ('pending', 'retrying')")

            async def none() -> bool:
                return not await live(old)

            await until(none)
        assert event_ids(receiver.requests) == Counter(row["event_id"] for row in rows.values())
        sent = Counter((request.header("x-service-webhook-id"), request.body) for request in receiver.requests)
        assert sent == Counter((row["event_id"], row["body"] or b"") for row in rows.values())
        assert any(request.body.startswith(b"\xff\x00\xfe") for request in receiver.requests)
        ended = {row["id"]: row for row in await rows_of(old, "flowactions_outbox")}
        assert {ended[row_id]["status"] for row_id in rows} == {"delivered"}

    async def test_what_was_sent_is_not_sent_again(self, old: str, receiver: Recorder) -> None:
        """Delivered and dead rows stay as they are, with their attempts."""
        before = [row for row in await rows_of(old, "flowactions_outbox") if row["finished_at"]]
        log = await rows_of(old, "flowactions_attempts")
        await upgrade(old)
        async with started(old, FLOWACTIONS_HOST_WORKER="on"):
            await until(lambda: receiver.requests)
        after = {row["id"]: row for row in await rows_of(old, "flowactions_outbox")}
        assert {row["status"] for row in before} == {"delivered", "dead"}
        for row in before:
            assert {name: after[row["id"]][RENAMED.get(name, name)] for name in row} == row
        logged = await rows_of(old, "flowactions_attempts")
        assert [row for row in log if not any(row.items() <= each.items() for each in logged)] == []

    async def test_dead_rows_can_be_retried(self, old: str, receiver: Recorder) -> None:
        """Attempts used up, refused, or without their action: each is delivered under its old id."""
        dead = [row for row in await rows_of(old, "flowactions_outbox") if row["status"] == "dead"]
        assert len(dead) == 4
        await upgrade(old)
        async with started(old, FLOWACTIONS_HOST_WORKER="on") as shop:
            for row in dead:
                path = f"/v1/webhooks/outbox/{row['id']}"
                detail = (await shop.client.get(path)).json()["data"]
                error = row["last_error"] or f"it answered {row['last_status_code']}"
                assert (detail["eventId"], detail["lastError"]) == (row["event_id"], error)
                assert (await shop.client.post(f"{path}/retry")).json()["data"]["requeued"]

            async def all_delivered() -> bool:
                ids = {row["id"] for row in dead}
                rows = await rows_of(old, "flowactions_outbox")
                return {row["status"] for row in rows if row["id"] in ids} == {"delivered"}

            await until(all_delivered)
        assert {row["event_id"] for row in dead} <= event_ids(receiver.requests).keys()


class TestDeferred:
    async def test_each_step_runs_once_and_in_order(self, old: str) -> None:
        """Steps, the end of the flow, and the equal run of another organization are told apart."""
        await upgrade(old)
        async with chatting(old) as (shop, provider):
            assert await shop.advance("acme", "run-1", "s1") == [
                ("first", "queued"),
                ("second", "sent"),
                ("third", "queued"),
            ]
            assert await shop.advance("acme", "run-1", "s1") == []
            assert await shop.advance("acme", "run-1", None) == [("at-the-end", "queued")]
            assert await shop.advance("globex", "run-1", "s1") == [("first", "queued")]
            assert await shop.advance("acme", "run-1", "s2") == [("later", "queued")]
            assert [(message.workspace, message.text) for message in provider.messages] == [
                ("Acme", "second: Grüße &lt;b&gt;&amp;&lt;/b&gt; \U0001f6b2")
            ]

    @pytest.mark.parametrize("worker", ["off", "on"])
    async def test_a_step_whose_process_was_killed_goes_on(self, old: str, worker: str) -> None:
        """What 0.1.0 held when it died is run after its hold, by the next call or by the worker."""
        await run(old, HELD.format(0))
        await upgrade(old)
        async with chatting(old, FLOWACTIONS_HOST_WORKER=worker) as (shop, provider):
            if worker == "off":
                assert await shop.advance("acme", "run-held", "s1") == [("held", "sent"), ("after", "queued")]

            async def none_is_held() -> bool:
                rows = await rows_of(old, "flowactions_deferred")
                return not [row for row in rows if row["run_id"] == "run-held" and row["flow_id"]]

            await until(none_is_held)
            assert [message.text.partition(":")[0] for message in provider.messages] == ["held"]

    async def test_spoilt_records_harm_nobody(self, old: str, caplog: pytest.LogCaptureFixture) -> None:
        """The good record of their step runs; the worker, retention included, goes on."""
        await upgrade(old)
        async with started(old, FLOWACTIONS_HOST_WORKER="on") as shop:
            assert ("good", "queued") in await shop.advance("acme", "run-spoilt", "s1")
            await shop.advance("acme", "run-odd", "s1")

            async def nothing_is_due() -> bool:
                return not [
                    row for row in await live(old) if row["next_attempt_at"] < time.time() * 1000 - 1000
                ]

            await until(nothing_is_due)
        assert "crashed" not in caplog.text


class TestCalls:
    async def test_a_key_of_before_is_a_duplicate(self, old: str) -> None:
        """204 for whom it belongs to; where its delivery is gone, for whoever calls for that agent, as before."""
        await upgrade(old)
        async with started(old) as shop:
            for key in ("order-1", "bestellung \U0001f6b2", "pruned"):
                assert await shop.call(key) == 204
            assert await shop.call("pruned too", agent="lonely") == 204
            assert await shop.call("order-2") == 202
            assert await shop.call("new") == 202
            shop.become("globex")
            assert await shop.call("order-2") == 204
            assert await shop.call("order-1") == 202
            assert await shop.call("pruned") == 204

    async def test_the_rate_counts_on(self, old: str) -> None:
        """Four calls of before and fifty-six after them are a minute's sixty."""
        # In the future, where they count however long this takes: the rate takes a clock that was set back as standing.
        later = int(time.time() * 1000) + 600_000
        times = json.dumps([later + number for number in range(4)])
        await run(old, f"UPDATE flowactions_call_rates SET times = '{times}' WHERE agent_id = 'agent-1'")  # noqa: S608
        await upgrade(old)
        async with started(old) as shop:
            assert [await shop.call(f"k{number}") for number in range(57)] == [202] * 56 + [429]
            shop.become("globex")
            assert await shop.call("k") == 202


class TestConnections:
    async def test_the_connection_opens_and_posts(self, old: str) -> None:
        """The sealed token is read with the old key; what was chosen and what was revoked stays so."""
        await upgrade(old)
        async with chatting(old) as (shop, provider):
            assert await shop.message("acme") == ("sent", None)
            assert (await shop.message("globex"))[0] == "failed"
            tested = await shop.client.post("/integrations/chat/send-message", json={"text": "test"})
            assert tested.json()["data"]["ok"] is True
            assert [(message.workspace, message.channel) for message in provider.messages] == [
                ("Acme", "#orders")
            ] * 2

    async def test_events_of_before_are_duplicates(self, old: str) -> None:
        """What 0.1.0 has received is acknowledged, and the host does not see it again."""
        await upgrade(old)
        body = json.dumps({"type": "user.created", "data": {"id": "user_1"}})
        now = datetime.now(UTC)
        headers = {
            "svix-id": "msg_0_1_0",
            "svix-timestamp": str(int(now.timestamp())),
            "svix-signature": svix.webhooks.Webhook(AUTH_SECRET).sign("msg_0_1_0", now, body),
        }
        async with started(old) as shop:
            answer = await shop.client.post("/webhooks/auth", content=body, headers=headers)
            assert answer.json()["data"] == {"received": True, "duplicate": True}
            assert shop.host.auth_events == []


class TestMigrating:
    async def test_a_host_on_postgresql_asks_for_migrate(self, postgres_url: str) -> None:
        """It does not start, says what to run, and changes nothing."""
        await load(postgres_url)
        before = await every_row(postgres_url)
        with pytest.raises(StartFailed, match="run 'flowactions migrate'"):
            async with started(postgres_url):
                pass
        assert await every_row(postgres_url) == before

    async def test_migrating_again_changes_nothing(self, old: str) -> None:
        """The second run finds the tables as they should be."""
        assert (await migrate(old))[1] == f"upgraded the tables from revision 0001 to {head()}\n"
        after = await every_row(old)
        assert await migrate(old) == (0, f"tables at {head()}\n")
        assert await every_row(old) == after

    async def test_of_simultaneous_migrations_one_does_it(self, old: str) -> None:
        """Four processes at once: all succeed, one of them has carried the rows on."""
        before = await every_row(old)
        printed = await asyncio.gather(*(migrate(old) for _ in range(4)))
        assert Counter(printed) == {
            (0, f"upgraded the tables from revision 0001 to {head()}\n"): 1,
            (0, f"tables at {head()}\n"): 3,
        }
        after = await every_row(old)
        assert {table: len(after[table]) for table in CARRIED_ON} == {
            table: len(before[table]) for table in CARRIED_ON
        }

    async def test_killed_anywhere_all_or_nothing(self, old: str) -> None:
        """SIGKILL before and after statements and before the commit: the tables are those of 0.1.0, and can migrate."""
        before = await every_row(old)
        status, printed = await command(old, "tests.upgrades.dying")
        assert status == 0, printed
        points = int(printed)
        assert points > 50
        assert await every_row(old) == before
        for point in sorted({1, *range(points // 6, points, points // 6), points - 1, points}):
            status, printed = await command(old, "tests.upgrades.dying", str(point))
            assert status == -signal.SIGKILL, (point, printed)
            assert await every_row(old) == before
        assert (await migrate(old))[1] == f"upgraded the tables from revision 0001 to {head()}\n"
