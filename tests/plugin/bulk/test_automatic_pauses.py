"""Automatic pauses: a destination that fails pauses itself, is probed, and resumes itself (decision 70)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import DeliveryAlert, FlowActions
from flowactions_plugin.bulk import automatic
from flowactions_plugin.bulk import pauses as pauses_module
from flowactions_plugin.bulk.automatic import AutomaticPauses
from flowactions_plugin.bulk.pauses import Pauses
from flowactions_plugin.clock import new_id
from flowactions_plugin.health import monitor
from flowactions_plugin.health.statistics import Counts
from flowactions_plugin.health.statistics_store import StatisticsStore
from flowactions_plugin.operators.scope import AUTOMATIC, Actor, Scope
from flowactions_plugin.queue import probes as probes_module
from flowactions_plugin.queue.probes import Probes
from flowactions_plugin.queue.rules import PAUSED_OFFSET_MS, PROBE_LONGEST_MS, UNDO_OFFSET_MS, probe_delay_ms
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.settings.readers import AutoPause
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from flowactions_plugin.storage.text import read_all
from tests.owning import own_webhook
from tests.queueing import OutboxStore, Queue, a_worker, an_executor
from tests.recorder import OK, recorder, status
from tests.support import AlertedHost, development, services_of
from tests.waiting import until

ACME, ALL = Scope("acme"), Scope(None)
MAYA = Actor("u1", "Maya", "dashboard")
OLIVE = Actor("root", "Olive", "operator")
DOWN = "https://down.example:443"
RULE = AutoPause(3, 60)


async def rows_of(queue: Queue, what: str) -> list[Any]:
    async with queue.database.read() as connection:
        return list((await connection.exec_driver_sql(f"SELECT {what}")).all())


async def has_failed(queue: Queue, times: int, seconds: float = 60.0, organization: str = "acme") -> None:
    """Record failures in a row, the first of them so long ago."""
    counts = Counts()
    counts.failed = counts.failures_in_row = times
    counts.last_error = "http_5xx"
    await StatisticsStore(queue.database).add({(organization, DOWN): counts}, 0.0)
    began = f"failing_since = last_failure_at - {int(seconds * 1000)}"
    await queue.run(f"UPDATE flowactions_destinations SET {began} WHERE failing_since IS NOT NULL")  # noqa: S608


async def has_arrived(queue: Queue) -> None:
    counts = Counts()
    counts.delivered, counts.succeeded = 1, True
    await StatisticsStore(queue.database).add({("acme", DOWN): counts}, 0.0)


async def look(queue: Queue, rule: AutoPause | None = RULE) -> list[DeliveryAlert]:
    told: list[DeliveryAlert] = []
    await AutomaticPauses(queue.database, rule, told.append).look()
    return told


async def paused(queue: Queue) -> list[tuple[str, str, str | None]]:
    return [
        (each.organization_id, each.paused_by, each.paused_role)
        for each in await Pauses(queue.database).list(ALL)
    ]


BY_ITSELF = ("acme", "flowactions", "automatic")


class TestPausing:
    @pytest.mark.parametrize(
        ("times", "seconds", "pauses"), [(3, 60, True), (2, 600, False), (300, 59.9, False), (4, 61, True)]
    )
    async def test_it_takes_as_many_failures_over_as_long_as_the_rule_says(
        self, queue: Queue, times: int, seconds: float, pauses: bool
    ) -> None:
        """Both, and once: the host learns of it with the failures, and the audit has a line."""
        await has_failed(queue, times, seconds)
        told = await look(queue)
        assert await look(queue) == []
        assert await paused(queue) == [BY_ITSELF] * pauses
        assert [
            (each.kind, each.organization_id, each.destination, each.failures, each.last_error) for each in told
        ] == [("paused", "acme", DOWN, times, "http_5xx")] * pauses
        lines = await rows_of(queue, "action, actor_role, reason FROM flowactions_audit")
        assert [(line.action, line.actor_role) for line in lines] == [("pause", "automatic")] * pauses
        assert all(f"{times} failures in a row since" in line.reason for line in lines)

    async def test_without_the_setting_nothing_is_paused(self, queue: Queue) -> None:
        """Whatever fails."""
        await has_failed(queue, 1000, 86_400)
        assert await look(queue, None) == []
        assert await paused(queue) == []

    async def test_the_destination_of_alerts_is_never_paused(self, queue: Queue) -> None:
        """They belong to no organization: their pause would be one for all."""
        await has_failed(queue, 1000, 86_400, organization="")
        assert await look(queue) == []

    @pytest.mark.parametrize("scope", [ACME, ALL])
    async def test_what_a_person_has_paused_stays_theirs(self, queue: Queue, scope: Scope) -> None:
        """For the organization or for all: it is neither taken over nor resumed, whatever arrives."""
        await Pauses(queue.database).pause(scope, DOWN, OLIVE)
        await has_failed(queue, 10)
        assert await look(queue) == []
        await has_arrived(queue)
        assert await look(queue) == []
        assert [each[1:] for each in await paused(queue)] == [("Olive", "operator")]

    async def test_of_two_workers_one_pauses_and_tells(self, queue: Queue) -> None:
        """As one resumes."""
        await has_failed(queue, 10)
        told = await asyncio.gather(*(look(queue) for _ in range(3)))
        assert [each.kind for each in chain(*told)] == ["paused"]
        await has_arrived(queue)
        told = await asyncio.gather(*(look(queue) for _ in range(3)))
        assert [each.kind for each in chain(*told)] == ["resumed"]

    async def test_an_organization_with_too_many_pauses_keeps_no_other_from_its_own(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its further destinations go on failing; also where a look takes fewer than these."""
        monkeypatch.setattr(pauses_module, "MOST_PAUSES", 1)
        monkeypatch.setattr(automatic, "AT_ONCE", 1)
        await Pauses(queue.database).pause(ACME, "https://other.example", MAYA)
        await has_failed(queue, 10)
        await has_failed(queue, 10, organization="globex")
        told: list[DeliveryAlert] = []
        for _ in range(100):
            told += await look(queue)
        assert [each.organization_id for each in told] == ["globex"]


class TestResuming:
    @pytest.mark.parametrize("rule", [RULE, None])
    async def test_it_is_resumed_when_a_delivery_has_arrived(
        self, queue: Queue, rule: AutoPause | None
    ) -> None:
        """Also when the setting was taken away meanwhile. Its rows are due."""
        row_id = await queue.put(destination=DOWN)
        await has_failed(queue, 10)
        await look(queue)
        await park(queue)
        assert await queue.store.claim(10) == []
        assert await look(queue, rule) == []
        await has_arrived(queue)
        assert [each.kind for each in await look(queue, rule)] == ["resumed"]
        assert await paused(queue) == []
        assert [each.id for each in await queue.store.claim(10)] == [row_id]

    async def test_an_arrival_counts_that_was_followed_by_failures(self, queue: Queue) -> None:
        """The destination takes deliveries: it has to fail anew, as often and for as long."""
        await has_failed(queue, 10)
        await look(queue)
        await has_arrived(queue)
        await has_failed(queue, 2, 0)
        assert [each.kind for each in await look(queue)] == ["resumed"]

    async def test_a_destination_of_which_nothing_is_known_any_more_is_resumed(self, queue: Queue) -> None:
        """Retention removes what is known of those to which nothing was sent for long."""
        await has_failed(queue, 10)
        await look(queue)
        await queue.run("DELETE FROM flowactions_destinations")
        assert [each.kind for each in await look(queue)] == ["resumed"]

    @pytest.mark.parametrize("who", [MAYA, OLIVE])
    async def test_a_person_ends_it_and_it_has_to_fail_anew(self, queue: Queue, who: Actor) -> None:
        """Nothing pauses it again for what has failed before."""
        await has_failed(queue, 10)
        await look(queue)
        assert await Pauses(queue.database).resume(ACME, DOWN, who)
        assert await look(queue) == []
        await has_failed(queue, 2)
        assert await look(queue) == []
        await has_failed(queue, 1)
        assert [each.kind for each in await look(queue)] == ["paused"]

    @pytest.mark.parametrize("who", [MAYA, OLIVE])
    async def test_a_person_takes_it_over(self, queue: Queue, who: Actor) -> None:
        """Then it is theirs: it is not probed, and no arrival ends it."""
        await has_failed(queue, 10)
        await look(queue)
        assert await Pauses(queue.database).pause(ACME, DOWN, who, "maintenance")
        await has_arrived(queue)
        assert await look(queue) == []
        assert await paused(queue) == [("acme", who.name, who.role)]
        assert await rows_of(queue, "probe_at FROM flowactions_pauses") == [(None,)]

    async def test_what_a_person_has_taken_over_meanwhile_is_not_resumed(self, queue: Queue) -> None:
        """Between the look at the database and the change."""
        await has_failed(queue, 10)
        await look(queue)
        await has_arrived(queue)
        worker = AutomaticPauses(queue.database, RULE, lambda alert: None)
        (row,) = await queue.database.rows(queue.database.built(automatic._recovered))
        assert await Pauses(queue.database).pause(ACME, DOWN, OLIVE)
        await queue.run(f"UPDATE flowactions_pauses SET paused_at = {row.paused_at + 1}")  # noqa: S608
        assert not await worker._resume(row)
        assert await paused(queue) == [("acme", "Olive", "operator")]


async def park(queue: Queue) -> None:
    store = Pauses(queue.database)
    while await store.park(await store.paused_targets(None)):
        pass


async def put(queue: Queue, number: int, **changes: Any) -> str:
    """Put a row that is due, later ones later."""
    row_id = await queue.put(id=new_id(queue.database.clock() + number / 100), destination=DOWN, **changes)
    await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {1000 + number} WHERE id = '{row_id}'")  # noqa: S608
    return row_id


async def a_paused_queue(queue: Queue, rows: int = 1) -> list[str]:
    """Put rows, pause their destination automatically, and make a probe due."""
    ids = [await put(queue, number) for number in range(rows)]
    await Pauses(queue.database).pause(ACME, DOWN, AUTOMATIC, "it fails")
    await park(queue)
    await make_due(queue)
    return ids


async def make_due(queue: Queue) -> None:
    await queue.run("UPDATE flowactions_pauses SET probe_at = 1")


@pytest.mark.parametrize(
    "change", ["resumed_at = 1", "paused_role = 'operator', paused_by = 'Olive'"], ids=["resumed", "replaced"]
)
async def test_what_a_process_of_before_has_ended_or_replaced_is_not_probed(queue: Queue, change: str) -> None:
    """Processes of revision 0007 leave the time of the next probe as it is."""
    await has_failed(queue, 10)
    await a_paused_queue(queue)
    await queue.run(f"UPDATE flowactions_pauses SET {change}")  # noqa: S608
    assert await probing(queue).claim(10) == []
    await has_arrived(queue)
    assert await look(queue) == []
    assert len(await rows_of(queue, "1 FROM flowactions_pauses")) == 1


def probing(queue: Queue, answer: Any = None, store: OutboxStore | None = None) -> Probes:
    executor = an_executor(queue, answer or (lambda request: httpx.Response(503)))
    return Probes(queue.database, (store or queue.store).contact, executor)


class TestProbes:
    async def test_a_probe_is_the_row_that_has_waited_for_longest(self, queue: Queue) -> None:
        """One, when it is due, with an attempt of its own. The others wait."""
        first, *_ = await a_paused_queue(queue, 3)
        (claimed,) = await probing(queue).claim(10)
        assert (claimed.id, claimed.max_attempts) == (first, 5)
        assert await queue.store.claim(10) == []
        assert await probing(queue).claim(10) == []
        assert [
            row.max_attempts for row in await rows_of(queue, "max_attempts FROM flowactions_outbox ORDER BY id")
        ] == [5, 4, 4]

    async def test_the_first_comes_a_minute_after_the_pause(self, queue: Queue) -> None:
        """Not at once: attempts have just failed."""
        await put(queue, 1)
        await Pauses(queue.database).pause(ACME, DOWN, AUTOMATIC)
        await park(queue)
        assert await probing(queue).claim(10) == []
        (row,) = await rows_of(queue, "probe_at - paused_at AS delay, probes FROM flowactions_pauses")
        assert (row.delay, row.probes) == (60_000, 0)

    async def test_the_intervals_grow_up_to_an_hour(self, queue: Queue) -> None:
        """From one probe to the next, in the database as by the rule."""
        assert [probe_delay_ms(number) // 60_000 for number in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert probe_delay_ms(10**9) == PROBE_LONGEST_MS
        await a_paused_queue(queue, 3)
        delays = []
        for _ in range(3):
            before = await queue.database.time()
            assert len(await probing(queue).claim(10)) == 1
            (row,) = await rows_of(queue, "probe_at, probes FROM flowactions_pauses")
            delays.append(round((row.probe_at / 1000 - before) / 60))
            await make_due(queue)
        assert delays == [2, 4, 8]
        assert row.probes == 3

    async def test_of_several_workers_one_sends_a_probe(self, queue: Queue) -> None:
        """Whenever they look, also under the same sight of what is due."""
        await a_paused_queue(queue, 4)
        workers = [probing(queue, store=OutboxStore(queue.database)) for _ in range(4)]
        claimed = await asyncio.gather(*(each.claim(10) for each in workers))
        assert len([*chain(*claimed)]) == 1

    async def test_each_organization_and_destination_is_probed_by_itself(self, queue: Queue) -> None:
        """With rows of its own; where none waits, the probe stays due."""
        mine = (await a_paused_queue(queue))[0]
        await Pauses(queue.database).pause(Scope("globex"), DOWN, AUTOMATIC)
        await Pauses(queue.database).pause(ACME, "https://idle.example", AUTOMATIC)
        theirs = await put(queue, 9, organization_id="globex")
        await park(queue)
        await make_due(queue)
        assert {each.id for each in await probing(queue).claim(10)} == {mine, theirs}
        due = await rows_of(queue, "destination FROM flowactions_pauses WHERE probe_at = 1")
        assert due == [("https://idle.example:443",)]

    @pytest.mark.parametrize(
        "state",
        [
            f"next_attempt_at = {UNDO_OFFSET_MS + PAUSED_OFFSET_MS + 1000}",
            f"takeovers = {QUARANTINE_AFTER}",
            "status = 'dead', finished_at = 1",
            "claimed_by = 'x', claimed_until = 4000000000000",
            "next_attempt_at = 4000000000000",
        ],
        ids=["to-be-cancelled", "in-quarantine", "ended", "claimed", "not-parked"],
    )
    async def test_a_row_is_passed_over_that_may_not_be_sent(self, queue: Queue, state: str) -> None:
        """The next one is the probe, and without one there is none."""
        first, second = await a_paused_queue(queue, 2)
        await queue.run(f"UPDATE flowactions_outbox SET {state} WHERE id = '{first}'")  # noqa: S608
        assert [each.id for each in await probing(queue).claim(10)] == [second]
        await make_due(queue)
        assert await probing(queue).claim(10) == []

    async def test_destinations_without_rows_keep_no_other_from_its_probe(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their probes have been due for longer, and a look takes few."""
        monkeypatch.setattr(probes_module, "AT_ONCE", 1)
        (mine,) = await a_paused_queue(queue)
        await Pauses(queue.database).pause(ACME, "https://idle.example", AUTOMATIC)
        await queue.run("UPDATE flowactions_pauses SET probe_at = 0 WHERE destination LIKE '%idle%'")
        assert [each.id for each in await probing(queue).claim(1)] == [mine]

    async def test_rows_to_another_destination_are_no_probes(self, queue: Queue) -> None:
        """Although a person has paused it, and they have waited for longer."""
        other = await queue.put(id=new_id(1), destination="https://other.example:443")
        await Pauses(queue.database).pause(ACME, "https://other.example:443", MAYA)
        (mine,) = await a_paused_queue(queue)
        oldest = f"next_attempt_at = {PAUSED_OFFSET_MS}"
        await queue.run(f"UPDATE flowactions_outbox SET {oldest} WHERE id = '{other}'")  # noqa: S608
        await queue.run("UPDATE flowactions_pauses SET probe_at = NULL WHERE paused_role <> 'automatic'")
        assert [each.id for each in await probing(queue).claim(10)] == [mine]

    async def test_a_worker_that_saw_a_probe_due_that_another_has_sent_sends_none(self, queue: Queue) -> None:
        """Also when that one has ended meanwhile, and its row waits again."""
        await a_paused_queue(queue)
        worker, other = probing(queue), probing(queue, store=OutboxStore(queue.database))
        async with queue.database.read() as connection:
            rows = await connection.run_sync(read_all, queue.database.built(probes_module._due, False))
        seen = [probes_module._Due._make(row) for row in rows]
        assert len(await other.claim(10)) == 1
        await queue.run("UPDATE flowactions_outbox SET claimed_by = NULL, claimed_until = NULL")
        assert await worker._claim(seen) == []

    async def test_a_pause_of_all_organizations_or_of_a_person_is_not_probed(self, queue: Queue) -> None:
        """An operator may have paused it beside."""
        await a_paused_queue(queue)
        pauses = Pauses(queue.database)
        await pauses.pause(ALL, DOWN, OLIVE)
        assert await probing(queue).claim(10) == []
        await pauses.resume(ALL, DOWN, OLIVE)
        await pauses.pause(ACME, DOWN, MAYA)
        assert await probing(queue).claim(10) == []

    async def test_a_failed_probe_uses_up_no_attempt_and_goes_behind_the_others(self, queue: Queue) -> None:
        """So the next probe is another row; and its attempt is in the log."""
        first, second = await a_paused_queue(queue, 2)
        worker = probing(queue)
        await worker.look()
        await worker.finish()
        await worker._executor.completer.flush()
        row = await queue.row(first)
        assert (row.status, row.attempts, row.max_attempts) == ("retrying", 1, 5)
        assert await rows_of(queue, "delivery_id, number, status_code FROM flowactions_attempts") == [
            (first, 1, 503)
        ]
        await park(queue)
        await make_due(queue)
        assert [each.id for each in await worker.claim(10)] == [second]

    async def test_a_probe_of_a_worker_that_was_killed_is_sent_by_the_next(self, queue: Queue) -> None:
        """When its lease has ended and a probe is due again: nothing is lost."""
        (row_id,) = await a_paused_queue(queue)
        assert len(await probing(queue).claim(10)) == 1
        await make_due(queue)
        assert await probing(queue).claim(10) == []
        await queue.expire_claims()
        (claimed,) = await probing(queue).claim(10)
        assert (claimed.id, claimed.reclaims) == (row_id, 1)

    async def test_a_worker_that_stops_finishes_its_probe(self, queue: Queue) -> None:
        """And writes what came of it, though a probe has no slot."""
        (row_id,) = await a_paused_queue(queue)
        begun, going_on = asyncio.Event(), asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            begun.set()
            await going_on.wait()
            return httpx.Response(200)

        running = asyncio.create_task(a_worker(queue, answer).run())
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0.05)
        assert not running.done()
        going_on.set()
        await asyncio.wait({running})
        assert (await queue.row(row_id)).status == "delivered"

    async def test_a_worker_that_stops_begins_none(self, queue: Queue) -> None:
        """What it claimed then would wait for the end of its lease."""
        await a_paused_queue(queue)
        worker = probing(queue)
        worker._executor.stopping = True
        await worker.look()
        assert await rows_of(queue, "probes FROM flowactions_pauses") == [(0,)]

    async def test_a_worker_has_so_many_in_flight_at_the_most(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Receivers that hang take no more than that beside its slots."""
        monkeypatch.setattr(probes_module, "AT_ONCE", 1)
        await a_paused_queue(queue, 2)
        going_on = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            await going_on.wait()
            return httpx.Response(503)

        worker = probing(queue, answer)
        for _ in range(2):
            await worker.look()
            await make_due(queue)
        assert await rows_of(queue, "probes FROM flowactions_pauses") == [(1,)]
        going_on.set()
        await worker.finish()

    async def test_none_is_in_flight_while_a_row_is_sent_alone(self, queue: Queue) -> None:
        """What ends its process in quarantine is not blamed on another."""
        await a_paused_queue(queue, 2)
        going_on = asyncio.Event()
        sent: list[httpx.Request] = []

        async def answer(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            await going_on.wait()
            return httpx.Response(503)

        worker = probing(queue, answer)
        await worker.look()
        await until(lambda: len(sent) == 1)
        alone = asyncio.Event()

        async def send_alone() -> None:
            async with worker.none():
                alone.set()
                await make_due(queue)
                looking.append(asyncio.create_task(worker.look()))
                await asyncio.sleep(0.05)
                assert len(sent) == 1

        looking: list[asyncio.Task[float]] = []
        waiting = asyncio.create_task(send_alone())
        await asyncio.sleep(0.05)
        assert not alone.is_set()
        going_on.set()
        await waiting
        await looking[0]
        await until(lambda: len(sent) == 2)
        await worker.finish()


async def test_what_no_worker_has_written_stops_nothing(sqlite_url: str) -> None:
    """On SQLite there may be any type, and bytes that are no text: the other destinations are paused, probed and resumed."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": sqlite_url}).database_url) as database:
        queue = Queue(database)
        await has_failed(queue, 10)
        names = "organization_id, destination, failing_since, failures_in_row, last_failure_at, updated_at"
        for values in (
            f"'acme', 'no destination', 1, 30, {1 << 60}, 1",
            f"'acme', 'https://a.example:443', 'x', 'y', {1 << 60}, 1",
            f"CAST(x'ff' AS TEXT), 'https://b.example:443', 1, 30, {1 << 60}, 1",
            f"'acme', CAST(x'ff' AS TEXT), -5, 30, {1 << 60}, 1",
        ):
            await queue.run(f"INSERT INTO flowactions_destinations ({names}) VALUES ({values})")  # noqa: S608
        assert DOWN in {each.destination for each in await look(queue)}
        await put(queue, 1)
        await park(queue)
        await queue.run("UPDATE flowactions_pauses SET probe_at = 1, probes = 'x'")
        pause = "1, 'flowactions', 'automatic', '', 1, 0"
        columns = "organization_id, destination, paused_at, paused_by, paused_role, reason, probe_at, probes"
        for names in (
            "'acme', 'nonsense'",
            "'acme', CAST(x'ff' AS TEXT)",
            "CAST(x'ff' AS TEXT), 'https://c.example'",
        ):
            await queue.run(f"INSERT INTO flowactions_pauses ({columns}) VALUES ({names}, {pause})")  # noqa: S608
        assert len(await probing(queue).claim(10)) == 1
        await has_arrived(queue)
        assert DOWN in {each.destination for each in await look(queue)}


@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_a_receiver_that_is_down_gets_probes_and_then_everything(
    database_url: str, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real HTTP: it pauses itself, rows use up no attempt, each step is told, and all arrive when it is back."""
    for module in (automatic, probes_module):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "WRITE_SECONDS", 0.05)
    monkeypatch.setattr(pauses_module, "PROBE_FIRST_MS", 100)
    monkeypatch.setattr(probes_module, "probe_delay_ms", lambda probes: 200)
    settings = development(
        database_url,
        FLOWACTIONS_AUTO_PAUSE="4,1s",
        FLOWACTIONS_RETRY_SCHEDULE=",".join(["1s"] * 9),
        FLOWACTIONS_DELIVERY=delivery,
    )
    host = AlertedHost(settings)
    actions = FlowActions.load(host)

    def kinds() -> Sequence[str]:
        return [each.kind for each in host.alerts if each.kind != "failing"]

    async with recorder() as receiver:
        receiver.answer = lambda number: status(503)
        async with actions.lifespan():
            for number in range(6):
                await actions.enqueue(own_webhook(url=receiver.url, entity=f"order-{number}"))
            await until(lambda: kinds().count("probed") >= 3)
            assert host.finished == []
            receiver.answer = lambda number: OK
            await until(lambda: len(host.finished) == 6 and "resumed" in kinds())
            probes = kinds().count("probed")
            async with services_of(host)._database.read() as connection:
                found = await connection.exec_driver_sql("SELECT sum(max_attempts) FROM flowactions_outbox")
                assert found.scalar_one() == 6 * 10 + probes
    assert {each.status for each in host.finished} == {"delivered"}
    assert kinds() == ["paused", *["probed"] * probes, "resumed"]
    assert {each.destination for each in host.alerts} == {receiver.url.removesuffix("/hook")}
