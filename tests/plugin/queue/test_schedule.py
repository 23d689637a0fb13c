"""Retry schedules of operators: how many attempts, after which delays, and what a change of the clock does to long ones."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from flowactions_hookspecs import FlowActions, FlowNodeOrigin, LogicAction, Node
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import (
    DEAD,
    DELIVERED,
    GONE,
    JITTER,
    Transition,
    attempts_of,
    backoff,
    delays,
    transition,
)
from flowactions_plugin.settings.readers import RETRY_SCHEDULES, retry_schedule
from tests.bulk import copy
from tests.costs import Watched
from tests.owning import own_webhook
from tests.queueing import OutboxStore, Queue, a_schedule
from tests.recorder import OK, recorder, status
from tests.support import SmallHost, a_walk, development, services_of
from tests.triggers import EXPERIENCE
from tests.waiting import until

LONG = RETRY_SCHEDULES["long"]
HOUR_MS = 3600 * 1000

SCHEDULES = st.lists(st.integers(1, 86_400), min_size=1, max_size=9).map(tuple)
CHANCES = st.floats(0, 1)


def answered(code: int, **more: Any) -> Outcome:
    return Outcome(0, 0, status_code=code, **more)


class TestRules:
    def test_long_is_eight_attempts_within_28_hours(self) -> None:
        """Five seconds, five and thirty minutes, two, five, ten and ten hours, as Svix has it."""
        assert attempts_of(LONG, 4) == 8
        assert delays(8, LONG) == LONG
        assert sum(LONG) == 99_305

    def test_the_delays_of_a_row_are_the_workers(self) -> None:
        """With fewer attempts than the schedule, its first ones; with more, its last one again; without one, §8's."""
        assert delays(4, LONG) == (5, 300, 1800)
        assert delays(5, (10, 60)) == (10, 60, 60, 60)
        assert delays(1, LONG) == delays(1) == ()
        assert delays(5) == (5, 5, 8, 16)
        assert (attempts_of((), 4), attempts_of((), 5), attempts_of((7,), 5)) == (4, 5, 2)

    @pytest.mark.parametrize(
        ("attempt", "outcome", "chance", "expected"),
        [
            (1, answered(200), 0.5, DELIVERED),
            (2, answered(503), 0.5, Transition("retrying", 300)),
            (2, answered(503), 0.0, Transition("retrying", 270)),
            (2, answered(503), 1.0, Transition("retrying", 330)),
            (7, Outcome(0, 0, error="timed out"), 0.5, Transition("retrying", 36_000)),
            (8, answered(503), 0.5, DEAD),
            (2, answered(503, retry_after=301), 0.5, Transition("retrying", 301)),
            (2, answered(503, retry_after=299), 0.5, Transition("retrying", 300)),
            (1, answered(429, retry_after=30_000), 0.5, Transition("retrying", 30_000)),
            (1, answered(429, retry_after=10**9), 0.5, Transition("retrying", 36_000)),
            (1, answered(410), 0.5, GONE),
            (8, answered(410), 0.5, GONE),
            (1, answered(410, error="the answer ended before its length"), 0.5, GONE),
            (1, Outcome(0, 0, error="refused", final=True), 0.5, DEAD),
        ],
    )
    def test_a_row_follows_the_schedule(
        self, attempt: int, outcome: Outcome, chance: float, expected: Transition
    ) -> None:
        """Within ten percent; Retry-After lengthens up to the longest delay; 410 ends the row, whatever attempts remain."""
        found = transition(attempt, 8, outcome, LONG, chance)
        assert found._replace(delay_seconds=round(found.delay_seconds, 6)) == expected

    @given(SCHEDULES, CHANCES, st.integers(1, 9), st.none() | st.floats(0, 10**9))
    def test_no_delay_is_shorter_than_its_least_or_longer_than_any_schedule_has(
        self, schedule: tuple[int, ...], chance: float, attempt: int, asked: float | None
    ) -> None:
        """Nor earlier than the receiver asked, up to the longest delay."""
        found = transition(attempt, 10, answered(503, retry_after=asked), schedule, chance)
        assert found.status == "retrying"
        delay = delays(attempt + 1, schedule)[-1]
        assert found.delay_seconds >= max(0.9 * delay - 1e-6, min(asked or 0, max(schedule)))
        assert found.delay_seconds <= max(1.1 * delay + 1e-6, min(asked or 0, max(schedule)))
        assert found.delay_seconds <= 24 * 3600 * (1 + JITTER)

    @given(CHANCES, st.integers(1, 12), st.none() | st.floats(0, 10**9), st.sampled_from([404, 410, 429, 503]))
    def test_without_a_schedule_nothing_varies(
        self, chance: float, attempt: int, asked: float | None, code: int
    ) -> None:
        """No jitter, five minutes at the most for Retry-After, and 410 is a failure as any other (§8)."""
        outcome = answered(code, retry_after=asked)
        expected = Transition("retrying", max(float(backoff(attempt)), min(asked or 0.0, 300)))
        assert transition(attempt, 13, outcome, (), chance) == transition(attempt, 13, outcome) == expected

    @given(SCHEDULES)
    def test_a_schedule_is_read_as_it_is_written(self, schedule: tuple[int, ...]) -> None:
        """In seconds, minutes and hours alike."""
        for unit, seconds in (("s", 1), ("m", 60), ("h", 3600)):
            written = [f"{each // seconds}{unit}" if each % seconds == 0 else f"{each}s" for each in schedule]
            assert retry_schedule(",".join(written)) == schedule


@pytest.mark.parametrize(
    ("schedule", "attempts"), [("default", (4, 5, 5)), ("long", (8, 8, 8)), ("3h", (2, 2, 2))]
)
async def test_the_number_of_attempts_is_the_schedules(
    database_url: str, schedule: str, attempts: tuple[int, int, int]
) -> None:
    """Of nodes with retry, logic actions and what a host enqueues without a number; one without retry, and a number, stay."""
    host = SmallHost(development(database_url, FLOWACTIONS_RETRY_SCHEDULE=schedule))
    host.action = LogicAction(url="http://127.0.0.1:9/")
    actions = FlowActions.load(host)
    retries = {"webhookUrl": "http://127.0.0.1:9/", "webhookRetryOnFailure": True}
    once = {"webhookUrl": "http://127.0.0.1:9/"}
    async with actions.lifespan(tasks=False):
        queued: list[Any] = [
            await actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
            for config in (retries, once)
        ]
        queued.append(await actions.dispatch(EXPERIENCE, firing_id="f", occurred_at=datetime.now(UTC)))
        queued += [
            await actions.enqueue(own_webhook(**wanted))
            for wanted in ({}, {"max_attempts": 3}, {"max_attempts": 10})
        ]
        async with services_of(host)._database.read() as connection:
            rows = await connection.execute(text("SELECT id, max_attempts FROM flowactions_outbox"))
            found = {row.id: row.max_attempts for row in rows}
    expected = [attempts[0], 1, attempts[1], attempts[2], 3, 10]
    assert [found[each.delivery_id] for each in queued] == expected


@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_a_receiver_that_comes_back_gets_it_and_one_that_is_gone_ends_it(
    database_url: str, delivery: str
) -> None:
    """Over real HTTP: 503 and then 200 after the schedule's delay; 410 at once."""
    settings = development(database_url, FLOWACTIONS_RETRY_SCHEDULE="1s,24h", FLOWACTIONS_DELIVERY=delivery)
    host = SmallHost(settings)
    actions = FlowActions.load(host)

    async def send(url: str, node_id: str) -> None:
        config = {"webhookUrl": url, "webhookRetryOnFailure": True}
        assert (
            await actions.reach(a_walk(), Node(id=node_id, type="webhook", config=config))
        ).status == "queued"

    async with recorder() as back, recorder() as gone:
        times: list[float] = []

        def answer(number: int) -> bytes:
            times.append(asyncio.get_running_loop().time())
            return status(503) if number == 1 else OK

        back.answer, gone.answer = answer, lambda number: status(410)
        async with actions.lifespan():
            await send(back.url, "back")
            for _ in range(3):
                await send(gone.url, "gone")
            await until(lambda: len(host.finished) == 4)
    found = sorted(
        (node_of(each.origin), each.status, each.attempts, each.status_code) for each in host.finished
    )
    assert found == [("back", "delivered", 2, 200), *[("gone", "dead", 1, 410)] * 3]
    assert times[1] - times[0] >= 0.9
    assert len(gone.requests) == 3


def node_of(origin: object) -> str:
    assert isinstance(origin, FlowNodeOrigin)
    return origin.node_id


async def test_without_a_schedule_a_receiver_that_is_gone_is_tried_again(queue: Queue) -> None:
    """As any other that fails (§3.1)."""
    row_id = await queue.put()
    await a_schedule(queue, lambda request: httpx.Response(410)).tick()
    row = await queue.row(row_id)
    assert (row.status, row.attempts, row.next_attempt_at - row.updated_at) == ("retrying", 1, 5000)


async def test_a_claim_costs_the_same_beside_ten_thousand_rows_that_wait(queue: Queue) -> None:
    """They stand behind all that is due, in each index that a claim reads."""
    seen = Watched(queue.database)
    soon = int(queue.database.clock() * 1000) + 2 * HOUR_MS
    empty = "TRUNCATE" if queue.database.dialect == "postgresql" else "DELETE FROM"

    def claim(store: OutboxStore) -> Any:
        return store.claim(50, per_destination=20)

    work = []
    for waiting in (0, 10_000):
        await queue.run(f"{empty} flowactions_outbox")
        row_id = await queue.put()
        await copy(queue.database, row_id, waiting, already=soon)
        await copy(queue.database, row_id, 500)
        work.append(sorted([await seen.work(claim) for _ in range(3)])[1])
    assert work[0] > 5
    assert work[1] <= 1.25 * work[0], work
