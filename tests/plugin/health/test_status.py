from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.facts import Facts
from flowactions_plugin.insights.findings import findings_of, verdict_of
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Verdict
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import Attempted, Completion, Ended
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.postgresql import Snapshot
from flowactions_plugin.storage.schema import statistics, workers
from flowactions_plugin.watch import fleet
from flowactions_plugin.watch import monitor as health_monitor
from flowactions_plugin.watch.fleet import Fleet
from flowactions_plugin.watch.monitor import Monitor
from flowactions_plugin.watch.statistics import ALERT_MS, Counts, Tally, alert_of
from flowactions_plugin.watch.statistics_store import STATISTICS_KEPT_MS, add_counts
from tests.plugin.stored import a_row
from tests.queueing import Queue, claimed

ALL = Scope(None)
DESTINATION = "https://example.com:443"


def completion(*, ok: bool = False, organization_id: str = "acme", **changes: Any) -> Completion:
    delivery = claimed(organization_id=organization_id, destination=changes.pop("destination", DESTINATION))
    outcome = Outcome(0, 100, status_code=200 if ok else 500)
    return Attempted(delivery, outcome, Transition("delivered" if ok else changes.pop("status", "retrying")))


def judge(facts: Facts) -> Verdict:
    return verdict_of(facts, findings_of(facts))


class Host:
    """Takes note of alerts."""

    def __init__(self) -> None:
        self.alerts: list[DeliveryAlert] = []

    async def delivery_alert(self, alert: DeliveryAlert) -> None:
        self.alerts.append(alert)


def a_monitor(queue: Queue, host: Host | None = None) -> Monitor:
    return Monitor(queue.database, "continuous", 10, host.delivery_alert if host else None)


async def settle(monitor: Monitor) -> None:
    await monitor.write()
    if monitor._telling:
        await asyncio.wait(monitor._telling)


class TestCounts:
    def test_a_success_ends_a_row_of_failures(self) -> None:
        """What was counted later follows what was counted before."""
        first, second = Counts(), Counts()
        for ok in (False, False):
            first.add(completion(ok=ok))
        for ok in (False, True, False):
            second.add(completion(ok=ok))
        first.follow(second)
        assert (first.delivered, first.failed, first.failures_in_row, first.duration_ms) == (1, 4, 1, 500)
        third = Counts()
        third.add(completion(status="dead"))
        first.follow(third)
        assert (first.dead, first.failures_in_row, first.last_error) == (1, 2, "http_5xx")

    def test_an_end_without_an_attempt_says_nothing_about_the_destination(self) -> None:
        """An example is a row that was cancelled. An attempt that failed because of its row says nothing, either."""
        counts = Counts()
        counts.add(Ended(claimed(), "cancelled"))
        assert (counts.dead, counts.attempts, counts.failures_in_row) == (1, 0, 0)
        counts.add(
            Attempted(claimed(), Outcome(0, 5, error="channel_not_found", of_one=True), Transition("dead"))
        )
        assert (counts.failed, counts.failures_in_row, counts.last_error) == (1, 0, None)

    def test_what_could_not_be_written_is_counted_before_what_came_since(self) -> None:
        """So a success since ends its failures; with the reason of the last failure, and of each destination."""
        other = f"{DESTINATION}1"
        tally = Tally()
        tally.record([completion(), completion(destination="https://b.example:443")])
        taken = tally.pop()
        tally.record([completion(ok=True), completion(destination=other)])
        tally.restore(taken)
        found = {place: counts for (_, place), counts in tally.pop().items()}
        assert {each.last_reason for each in found.values()} == {"it answered 500"}
        assert {
            place: (each.delivered, each.failed, each.failures_in_row) for place, each in found.items()
        } == {
            DESTINATION: (1, 1, 0),
            other: (0, 1, 1),
            "https://b.example:443": (0, 1, 1),
        }


@pytest.mark.parametrize(
    ("since", "last", "failures", "alerted", "kind"),
    [
        (None, None, 0, None, None),
        (5, 5, 19, None, None),
        (5, 5, 20, None, "failing"),
        (5, 5 + ALERT_MS - 1, 2, None, None),
        (5, 5 + ALERT_MS, 2, None, "failing"),
        (5, 5 + ALERT_MS, 25, 10, None),
        (None, 5, 0, 10, "recovered"),
        (11, 11, 1, 10, "recovered"),
    ],
)
def test_the_host_is_told_after_an_hour_or_twenty_failures(
    since: int | None, last: int | None, failures: int, alerted: int | None, kind: str | None
) -> None:
    """And of the recovery only when it was told of the failures."""
    assert alert_of(since, last, failures, alerted) == kind


class TestStatistics:
    async def test_attempts_are_summed_by_destination_and_organization(self, queue: Queue) -> None:
        """Of all workers together; an organization sees its own."""
        for _ in range(2):
            monitor = a_monitor(queue)
            monitor.record([completion(ok=True), completion(status="dead")])
            monitor.record([completion(ok=True, organization_id="globex", destination="http://b:80")])
            await monitor.write()
        queries = Insights(queue.database)
        mine, every = await queries.overview(Scope("acme")), await queries.overview(ALL)
        sums = [
            tuple(
                sum(getattr(each, name) for each in buckets)
                for name in ("delivered", "failed", "dead", "duration_ms")
            )
            for buckets in (mine.hour, mine.day, every.hour, every.day)
        ]
        assert sums == [(2, 2, 2, 400), (2, 2, 2, 400), (4, 2, 2, 600), (4, 2, 2, 600)]
        assert (len(mine.hour), len(mine.day)) == (12, 24)
        listed, following = await queries.destinations(ALL, 10)
        assert [each.organization_id for each in listed] == ["acme", "globex"]
        (failed, _) = listed
        assert (failed.failed, failed.dead, failed.worker_ms, failed.failures_in_row) == (2, 2, 400, 1)
        assert failed.failing_since is not None
        assert following is None
        first, following = await queries.destinations(ALL, 1)
        assert await queries.destinations(ALL, 10, following) == (listed[1:], None)
        assert (first, await queries.destinations(Scope("globex"), 10)) == (listed[:1], (listed[1:], None))

    async def test_several_workers_write_the_same_destinations_at_once(self, queue: Queue) -> None:
        """No count is lost, and none waits for another in a circle."""
        monitors = [a_monitor(queue) for _ in range(6)]
        for number, monitor in enumerate(monitors):
            places = [f"http://d{(each * (1 if number % 2 else -1)) % 20}:80" for each in range(20)]
            monitor.record([completion(ok=True, destination=place) for place in places])
        await asyncio.gather(*(monitor.write() for monitor in monitors))
        overview = await Insights(queue.database).overview(ALL)
        assert sum(each.delivered for each in overview.hour) == 120

    async def test_many_destinations_are_written_a_few_at_a_time(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Deliveries continue between two writes. After a failed write, each delivery is counted once."""
        monkeypatch.setattr(health_monitor, "AT_ONCE", 3)
        monitor = a_monitor(queue)
        monitor.record([completion(ok=True, destination=f"http://d{number}:80") for number in range(10)])
        sizes = list[int]()

        async def added(database: Any, counted: Any, *others: Any) -> Any:
            sizes.append(len(counted))
            if len(sizes) == 2:
                raise StorageUnavailable("away")
            return await add_counts(database, counted, *others)

        monkeypatch.setattr(health_monitor, "add_counts", added)
        with pytest.raises(StorageUnavailable):
            await monitor.write()
        await monitor.write()
        assert sizes == [3, 3, 3, 3, 1]
        overview = await Insights(queue.database).overview(ALL)
        assert sum(each.delivered for each in overview.hour) == 10

    async def test_old_statistics_are_deleted(self, queue: Queue) -> None:
        """After eight days; what is younger stays."""
        monitor = a_monitor(queue)
        monitor.record([completion(ok=True)])
        await monitor.write()
        prune = partial(queue.database.prune, statistics.c.bucket, STATISTICS_KEPT_MS, 100)
        assert await prune() == 0
        await queue.run("UPDATE flowactions_statistics SET bucket = bucket - 691500000")
        assert await prune() == 3


class TestAlerts:
    async def test_the_host_is_told_once_that_a_destination_fails_and_once_that_it_recovered(
        self, queue: Queue
    ) -> None:
        """However many workers see it."""
        host = Host()
        monitors = [a_monitor(queue, host) for _ in range(3)]
        for monitor in monitors:
            monitor.record([completion() for _ in range(9)])
            await settle(monitor)
        (failing,) = host.alerts
        assert (failing.kind, failing.destination, failing.organization_id) == ("failing", DESTINATION, "acme")
        assert (failing.failures, failing.last_error) == (27, "http_5xx")
        assert failing.failing_since is not None
        assert failing.failing_since.tzinfo is not None
        for monitor in monitors:
            monitor.record([completion(ok=True)])
            await settle(monitor)
        assert [each.kind for each in host.alerts] == ["failing", "recovered"]
        assert (host.alerts[1].failures, host.alerts[1].failing_since) == (0, None)

    async def test_a_host_that_fails_to_take_note_stops_nothing(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged."""

        class Broken(Host):
            async def delivery_alert(self, alert: DeliveryAlert) -> None:
                raise RuntimeError("no pager")

        monitor = a_monitor(queue, Broken())
        monitor.record([completion() for _ in range(20)])
        await settle(monitor)
        assert "failed to take note of an alert" in caplog.text
        assert "fails: 20 failures in a row" in caplog.text

    async def test_a_destination_that_succeeds_is_not_written_each_time(self, queue: Queue) -> None:
        """Once a minute is enough."""
        monitor = a_monitor(queue)
        times = []
        for _ in range(2):
            monitor.record([completion(ok=True)])
            await monitor.write()
            times.append((await Insights(queue.database).destinations(ALL, 1))[0][0].last_success_at)
            await asyncio.sleep(0.01)
        assert times[0] == times[1] is not None


class TestFleet:
    async def test_a_process_is_alive_then_stale_or_stopped_then_gone(self, queue: Queue) -> None:
        """Stopping in order is told apart from being killed."""
        queries = Insights(queue.database)
        stopped, killed = Fleet(queue.database, "continuous", 100), Fleet(queue.database, "scheduled", 50)
        for each in (killed, stopped):
            each.begin()
            await each.beat(0, 0)
        await stopped.beat(7, 12)
        one, other = sorted(await queries.workers(), key=lambda each: each.mode)
        assert (one.state, one.in_flight, one.slots, one.last_claim_at is not None) == ("alive", 7, 100, True)
        assert (other.state, other.last_claim_at) == ("alive", None)
        assert one.version
        assert one.name.startswith(one.host_name)
        await stopped.stop()
        await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 46000")
        assert {each.mode: each.state for each in await queries.workers()} == {
            "continuous": "stopped",
            "scheduled": "stale",
        }
        prune = partial(queue.database.prune, workers.c.last_seen_at, fleet.WORKERS_KEPT_MS, 100)
        assert await prune() == 0
        await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 86400000")
        assert await prune() == 2

    async def test_who_holds_a_snapshot_is_told_to_operators(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An organization's people read no name of a session."""
        held = Snapshot("psql of ann", 90.0, 1)
        monkeypatch.setattr(queue.database, "oldest_snapshot", lambda _: held)
        insights = Insights(queue.database)
        assert [(await insights.facts(each)).snapshot for each in (ALL, Scope("acme"))] == [held, None]

    async def test_what_a_worker_limits_is_news_until_it_is_written(self, queue: Queue) -> None:
        """So others learn of it before its next sign of life."""
        own, limited = Fleet(queue.database, "continuous", 1), {"acme": {DESTINATION: 1}}
        assert (own.is_news({}), own.is_news(limited)) == (False, True)
        await own.beat(0, 0, limited)
        assert (own.is_news(limited), own.is_news({})) == (False, True)

    async def test_a_claim_is_noted_only_when_there_was_one(self, queue: Queue) -> None:
        """A worker that is alive and claims nothing shows."""
        own = Fleet(queue.database, "continuous", 1)
        await own.beat(0, 5)
        await queue.run("UPDATE flowactions_workers SET last_claim_at = 1")
        await own.beat(0, 5)
        assert [each.last_claim_at for each in await Insights(queue.database).workers()] == [1]

    async def test_workers_that_end_attempts_after_different_times_are_told(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """When one starts, in its log, while the other one runs; and to operators."""
        queries = Insights(queue.database)
        first, *others = (
            Monitor(queue.database, "continuous", 1, None, delivery_timeout=each) for each in (10, 10, 60)
        )
        async with first.watching(Load(0, 0)):
            async with others[0].watching(Load(0, 0)):
                assert not caplog.records
            async with others[1].watching(Load(0, 0)):
                (told,) = caplog.messages
                assert told.startswith("attempts of this worker end after 60 s, and those of worker ")
                assert " after 10 s: set FLOWACTIONS_DELIVERY_TIMEOUT " in told
                assert "timeout" in [each.about for each in (await queries.overview(ALL)).findings]
        caplog.clear()
        async with others[1].watching(Load(0, 0)):
            assert not caplog.records
        await queue.run("UPDATE flowactions_workers SET stopped_at = NULL, last_seen_at = last_seen_at - 46000")
        async with others[1].watching(Load(0, 0)):
            assert not caplog.records

    async def test_a_row_that_was_removed_comes_back(self, queue: Queue) -> None:
        """The process was away for a day."""
        own = Fleet(queue.database, "continuous", 1)
        await own.beat(0, 0)
        await queue.run("DELETE FROM flowactions_workers")
        await own.beat(0, 0)
        assert len(await Insights(queue.database).workers()) == 1

    async def test_a_monitor_writes_while_its_process_delivers_and_when_it_stops(self, queue: Queue) -> None:
        """What was counted last is not lost."""
        queries = Insights(queue.database)
        monitor = a_monitor(queue)
        load = Load(3, 4)
        load.slow.in_flight = 2
        async with monitor.watching(load):
            await monitor.report()
            (worker,) = await queries.workers()
            assert (worker.in_flight, worker.slow) == (3, 2)
            monitor.record([completion(ok=True)])
        (worker,) = await queries.workers()
        assert (worker.state, worker.in_flight, worker.slow) == ("stopped", 0, 0)
        assert sum(each.delivered for each in (await queries.overview(ALL)).hour) == 1

    async def test_a_process_that_is_stopped_while_it_begins_has_stopped(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has told that it is alive, and nobody is to take it for one that was lost."""
        has_told = asyncio.Event()

        async def others(_: Fleet) -> Any:
            has_told.set()
            await asyncio.Event().wait()

        async def deliver() -> None:
            async with a_monitor(queue).watching(Load(0, 0)):
                raise AssertionError

        monkeypatch.setattr(Fleet, "others", others)
        delivering = asyncio.create_task(deliver())
        await has_told.wait()
        delivering.cancel()
        await asyncio.wait({delivering})
        assert [each.state for each in await Insights(queue.database).workers()] == ["stopped"]

    async def test_what_is_being_written_when_a_process_stops_is_not_lost(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The report that is cut off at the same moment gives back what it has taken, before the last write."""
        monitor, writes = a_monitor(queue), asyncio.Event()

        async def held(*_: Any) -> Any:
            writes.set()
            await asyncio.Event().wait()

        async with monitor.watching(Load(0, 0)):
            monitor.record([completion(ok=True)])
            with monkeypatch.context() as patched:
                patched.setattr(health_monitor, "add_counts", held)
                reporting = asyncio.create_task(monitor.report())
                await writes.wait()
            reporting.cancel()
        assert sum(each.delivered for each in (await Insights(queue.database).overview(ALL)).hour) == 1

    async def test_what_was_written_when_a_report_is_cut_off_is_counted_once(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process stops while the connection goes back that has committed."""
        monitor, commit, has_committed = a_monitor(queue), AsyncConnection.commit, asyncio.Event()

        async def committing(self: AsyncConnection) -> None:
            await commit(self)
            has_committed.set()
            await asyncio.Event().wait()

        async with monitor.watching(Load(0, 0)):
            monitor.record([completion(ok=True)])
            with monkeypatch.context() as patched:
                patched.setattr(AsyncConnection, "commit", committing)
                reporting = asyncio.create_task(monitor.report())
                await has_committed.wait()
            reporting.cancel()
        assert sum(each.delivered for each in (await Insights(queue.database).overview(ALL)).hour) == 1


class TestVerdict:
    @staticmethod
    async def state(status: Insights, scope: Scope = ALL) -> str:
        return judge(await status.facts(scope)).state

    async def test_rows_that_nobody_claims_have_stalled_unless_they_are_paused(self, queue: Queue) -> None:
        """A paused destination's rows are not due for anybody."""
        status = Insights(queue.database, uptime_ms=lambda: 0)
        assert await self.state(status) == "idle"
        await queue.put(destination=DESTINATION)
        assert await self.state(status) == "ok"
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - 181000")
        verdict = judge(await status.facts())
        assert verdict.state == "stalled"
        assert verdict.reason.startswith("Rows have been due for 3 min and nothing has been claimed")
        assert await self.state(status, Scope("globex")) == "idle"
        for organization, state in (("globex", "stalled"), ("acme", "idle"), ("", "idle")):
            place = {"organization_id": organization, "destination": DESTINATION}
            await queue.run(insert(schema.pauses).values(a_row(schema.pauses, "Ann", place)))
            assert await self.state(status) == state, organization
            await queue.run("DELETE FROM flowactions_pauses")
            assert await self.state(status) == "stalled", organization

    async def test_a_claim_that_is_held_shows_that_deliveries_go_on(self, queue: Queue) -> None:
        """Also one of a worker that is not in the fleet."""
        status = Insights(queue.database, uptime_ms=lambda: 0)
        for organization in ("acme", "acme", "globex"):
            await queue.put(organization_id=organization, destination=DESTINATION)
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - 600000")
        assert await self.state(status) == "stalled"
        assert (await status.facts()).busiest == ("acme", DESTINATION, 2)
        await queue.store.claim(1)
        assert await self.state(status) == "ok"
        facts = await status.facts()
        assert (facts.due.number, facts.due.exact, (facts.oldest_due_ms or 0) >= 600_000) == (2, True, True)

    async def test_workers_that_claim_show_that_deliveries_go_on(self, queue: Queue) -> None:
        """A backlog is no stall."""
        status = Insights(queue.database, Settings(delivery="continuous"), lambda: 0)
        await queue.put()
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - 16000")
        assert await self.state(status) == "stalled"
        await Fleet(queue.database, "continuous", 1).beat(0, 1)
        assert await self.state(status) == "ok"
        await queue.run("UPDATE flowactions_workers SET last_claim_at = last_claim_at - 16000")
        verdict = judge(await status.facts())
        assert verdict.state == "stalled"
        assert "although a worker is alive" in verdict.reason

    async def test_attempts_of_which_most_fail_are_a_verdict(self, queue: Queue) -> None:
        """Within the last fifteen minutes, of destinations that still fail; those of one organization's own are not."""
        monitor = a_monitor(queue)
        monitor.record([completion() for _ in range(20)])
        await monitor.write()
        status = Insights(queue.database, uptime_ms=lambda: 0)

        async def blamed() -> str | None:
            found = findings_of(await status.facts())
            return next((each.words.rpartition(" ")[2] for each in found if each.about == "attempts"), None)

        assert (await self.state(status), await blamed()) == ("idle", "acme")
        assert await self.state(status, Scope("acme")) == "failing"
        monitor.record([completion(organization_id="globex") for _ in range(2)])
        await monitor.write()
        assert await self.state(status) == "failing"
        monitor.record([completion(organization_id=each, ok=True) for each in ("acme", "globex")])
        await monitor.write()
        for scope in (ALL, Scope("acme")):
            assert (await self.state(status, scope), await blamed()) == ("idle", None)
        monitor.record([completion(organization_id=each) for each in ("acme", "globex")])
        await monitor.write()
        assert await self.state(status) == "failing"
        await queue.run("UPDATE flowactions_statistics SET bucket = bucket - 1200000")
        assert await self.state(status) == "idle"

    async def test_without_a_live_worker_nothing_is_idle(self, queue: Queue) -> None:
        """From a minute on: after the first start where none has ever been, otherwise after the last was seen."""
        for uptime, state in ((59_000, "idle"), (60_000, "no_worker")):
            status = Insights(queue.database, uptime_ms=partial(int, uptime))
            assert await self.state(status) == state
        await Fleet(queue.database, "continuous", 1).beat(0, 0)
        assert await self.state(status) == "idle"
        await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 50000, stopped_at = 1")
        assert await self.state(status) == "idle"
        await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 10000")
        assert await self.state(status) == "no_worker"
        # A row that is due is claimed by nobody either, and no stall yet; a claim that is held is somebody's.
        await queue.put()
        assert await self.state(status) == "no_worker"
        await queue.store.claim(1)
        assert await self.state(status) == "idle"


class TestOneDelivery:
    async def test_everything_that_is_known_of_a_delivery_is_shown(self, queue: Queue) -> None:
        """With what was done to it, by itself or with others; of other organizations' rows, no number."""
        row_id = await queue.put(destination=DESTINATION)
        (one,) = await queue.store.claim(1)
        outcome = Outcome(1000, 5, error="timed out after 10 s while waiting for the answer")
        await queue.complete(one, outcome, Transition("retrying", 60))
        action = "0190c0de-0000-7000-8000-00000000000a"
        changed = {"action_id": action, "trace": "00-x-y-01", "url": "http://h/?token=s3cret"}
        await queue.run(update(schema.outbox).values(changed))
        ann = {"id": action, "organization_id": "", "actor_name": "Ann", "actor_role": "operator"}
        retry = {"kind": "retry", "state": "done", "counted": 99, "done": 99, **ann}
        later = action.replace("a", "b")
        bob = {"id": later, "organization_id": "acme", "actor_name": "Bob", "actor_role": "dashboard"}
        await queue.run(insert(schema.actions).values(a_row(schema.actions, "", retry)))
        entries: tuple[dict[str, object], ...] = (
            {**ann, "action": "retry", "action_id": action, "number": 99},
            {**bob, "action": "cancel", "delivery_id": row_id, "number": 1},
        )
        for entry in entries:
            await queue.run(insert(schema.audit).values(a_row(schema.audit, "", entry)))
        queries = Insights(queue.database)
        found = await queries.delivery(Scope("acme"), row_id)
        assert found is not None
        assert [each.certainty for each in found.row.attempt_log] == ["sent, no answer"]
        assert "The backoff before attempt 2" in found.why
        assert found.action is not None
        assert found.action.kind == "retry"
        assert (found.row.trace, "s3cret" in repr(found)) == ("00-x-y-01", False)
        assert [(each.actor_name, each.number) for each in found.audit] == [("Bob", 1), ("Ann", None)]
        every = await queries.delivery(ALL, row_id)
        assert every is not None
        assert [each.number for each in every.audit] == [1, 99]
        assert [each.actor_name for each in await queries.audit(Scope("acme"), None, 10)] == ["Bob"]
        assert [each.actor_name for each in await queries.audit(ALL, later, 10)] == ["Ann"]
        assert await queries.delivery(ALL, "no id") is None
