"""Automatic pauses: a destination that fails pauses itself, is probed, and resumes itself (decision 70)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import pytest

from flowactions_hookspecs import DeliveryAlert, FlowActions
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operations import automatic
from flowactions_plugin.operations import port as pauses_module
from flowactions_plugin.operations.automatic import AutomaticPauses
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue import probes as probes_module
from flowactions_plugin.settings.readers import AutoPause
from tests.owning import own_webhook
from tests.pausing import (
    ACME,
    ALL,
    DOWN,
    MAYA,
    OLIVE,
    RULE,
    has_arrived,
    has_failed,
    look,
    rows_of,
)
from tests.queueing import Queue
from tests.recorder import OK, recorder, status
from tests.support import AlertedHost, development, hurry, services_of
from tests.waiting import until


async def paused(queue: Queue) -> list[tuple[str, str, str | None]]:
    return [
        (each.organization_id, each.paused_by, each.paused_role)
        for each in await Insights(queue.database).pauses(ALL)
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
        await Operations(queue.database).pause(scope, DOWN, OLIVE)
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

    @pytest.mark.parametrize("who", [MAYA, None])
    async def test_what_has_ended_meanwhile_is_not_paused(self, queue: Queue, who: Actor | None) -> None:
        """Between the look at the database and the change, a person has resumed it, or a delivery has arrived."""
        await has_failed(queue, 10)
        worker = AutomaticPauses(queue.database, RULE, lambda alert: None)
        (row,) = await queue.database.rows(queue.database.built(automatic._failing, RULE))
        if who is None:
            await has_arrived(queue)
        else:
            await look(queue)
            assert await Operations(queue.database).resume(ACME, DOWN, who)
        assert not await worker._pause(row)
        assert await paused(queue) == []

    async def test_an_organization_with_too_many_pauses_keeps_no_other_from_its_own(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its further destinations go on failing; also where a look takes fewer than these."""
        monkeypatch.setattr(pauses_module, "MOST_PAUSES", 1)
        monkeypatch.setattr(automatic, "AT_ONCE", 1)
        await Operations(queue.database).pause(ACME, "https://other.example", MAYA)
        await has_failed(queue, 10)
        await has_failed(queue, 10, organization="globex")
        told: list[DeliveryAlert] = []
        for _ in range(100):
            told += await look(queue)
        assert [each.organization_id for each in told] == ["globex"]
        # Nothing was done, so a worker does not look again at once.
        assert await automatic.AutomaticPauses(queue.database, RULE, told.append).look() is None


class TestResuming:
    @pytest.mark.parametrize("rule", [RULE, None])
    async def test_it_is_resumed_when_a_delivery_has_arrived(
        self, queue: Queue, rule: AutoPause | None
    ) -> None:
        """Also when the setting was taken away meanwhile. Its rows are due."""
        row_id = await queue.put(destination=DOWN)
        await has_failed(queue, 10)
        await look(queue)
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
        assert await Operations(queue.database).resume(ACME, DOWN, who)
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
        assert await Operations(queue.database).pause(ACME, DOWN, who, "maintenance")
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
        assert await Operations(queue.database).pause(ACME, DOWN, OLIVE)
        await queue.run(f"UPDATE flowactions_pauses SET paused_at = {row.paused_at + 1}")  # noqa: S608
        assert not await worker._resume(row)
        assert await paused(queue) == [("acme", "Olive", "operator")]


@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_a_receiver_that_is_down_gets_probes_and_then_everything(
    database_url: str, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real HTTP: it pauses itself, rows use up no attempt, each step is told, and all arrive when it is back."""
    hurry(monkeypatch, "automatic pauses", "probes", "statistics")
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
            async with services_of(host)._database.read() as connection:
                found = await connection.exec_driver_sql("SELECT sum(max_attempts) FROM flowactions_outbox")
                assert found.scalar_one() == 6 * 10
    assert {each.status for each in host.finished} == {"delivered"}
    assert kinds()[:4] == ["paused", *["probed"] * 3]
    # A probe may be on its way while the one before it resumes the destination.
    assert [each for each in kinds() if each != "probed"] == ["paused", "resumed"]
    assert {each.destination for each in host.alerts} == {receiver.url.removesuffix("/hook")}
