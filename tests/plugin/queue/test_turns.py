"""Organizations take turns: the backlog of one delays no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.claims import turn_rows
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.limits import Limits
from flowactions_plugin.queue.owners import ORGANIZATIONS_A_CLAIM
from flowactions_plugin.queue.rules import DELIVERED
from flowactions_plugin.queue.slots import Slots
from flowactions_plugin.queue.worker import Worker
from tests.bulk import copy
from tests.queueing import Queue, a_schedule, an_executor
from tests.waiting import until

TURN_ROWS = turn_rows(20, 2)


async def a_backlog(queue: Queue, destinations: int = 30, rows: int = 2000) -> None:
    """Fill the queue with old rows of one organization."""
    for number in range(destinations):
        place = f"http://r{number}.example.com:80"
        row_id = await queue.put(organization_id="big", destination=place, url=f"{place}/")
        if number == 0:
            await copy(queue.database, row_id, rows)


async def test_a_claim_brings_rows_of_each_organization(queue: Queue) -> None:
    """One has filled the queue; the youngest rows of another are in the next claim, so many of them."""
    await a_backlog(queue)
    mine = {await queue.put(organization_id="small", destination=f"d{n}") for n in range(TURN_ROWS)}
    claimed = await queue.store.claim(20, per_destination=100)
    assert Counter(each.organization_id for each in claimed) == {"big": 20 - TURN_ROWS, "small": TURN_ROWS}
    assert {each.id for each in claimed if each.organization_id == "small"} == mine


async def test_every_organization_has_its_turn(queue: Queue) -> None:
    """With more organizations than a claim asks, the next claims go on with the others, whatever they are called."""
    await a_backlog(queue)
    others = {f"o{number:03} ä" for number in range(3 * ORGANIZATIONS_A_CLAIM)}
    for name in others:
        for number in range(2):
            await queue.put(organization_id=name, destination=f"{name}{number}")
    found: Counter[str] = Counter()
    for _ in range(10):
        found.update(each.organization_id for each in await queue.store.claim(40, per_destination=10))
    assert others <= found.keys()


@pytest.mark.parametrize("limit", [1, 4, 7])
async def test_a_claim_of_fewer_rows_than_organizations(queue: Queue, limit: int) -> None:
    """They take turns with the claims: none waits until the older rows of as many others as there are rows have gone."""
    names = [f"o{number}" for number in range(8)]
    for name in names:
        for _ in range(12):
            await queue.put(organization_id=name, destination=name)
    await queue.put(organization_id="small", destination="small")
    found: Counter[str] = Counter()
    for _ in range(12):
        claimed = await queue.store.claim(limit, per_destination=100)
        found.update(each.organization_id for each in claimed)
        outcome = Outcome(0, 0, status_code=200)
        await queue.store.complete([Completion(each, outcome, DELIVERED) for each in claimed])
    assert found.keys() == {*names, "small"}


async def test_a_destination_of_several_organizations(queue: Queue) -> None:
    """They take turns with its places, too: the backlog of one for it delays no row of another for it."""
    for _ in range(100):
        await queue.put(organization_id="big", destination="d")
    others = {f"o{number}" for number in range(11)}
    for name in others:
        await queue.put(organization_id=name, destination="d")
    found: Counter[str] = Counter()
    for _ in range(5):
        claimed = await queue.store.claim(20, per_destination=10)
        assert len(claimed) == 10
        found.update(each.organization_id for each in claimed)
        outcome = Outcome(0, 0, status_code=200)
        await queue.store.complete([Completion(each, outcome, DELIVERED) for each in claimed])
    assert others < found.keys()


async def test_an_organizations_rows_come_oldest_first(queue: Queue) -> None:
    """A turn changes whose row is next, and not which of its rows."""
    await a_backlog(queue)
    rows = [await queue.put(organization_id="small", destination="d") for _ in range(3 * TURN_ROWS)]
    for due, row_id in enumerate(reversed(rows)):
        await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {10**9 + due} WHERE id = '{row_id}'")  # noqa: S608
    claimed: list[Any] = []
    while len(claimed) < len(rows):
        found = await queue.store.claim(20, per_destination=1000)
        claimed += [each.id for each in found if each.organization_id == "small"]
    order = {row_id: place for place, row_id in enumerate(reversed(rows))}
    batches = [{order[each] for each in claimed[at : at + TURN_ROWS]} for at in range(0, len(rows), TURN_ROWS)]
    assert batches == [set(range(at, at + TURN_ROWS)) for at in range(0, len(rows), TURN_ROWS)]


async def test_a_turn_is_within_the_limit_of_a_destination(queue: Queue) -> None:
    """With as many in flight to it as may be, no turn brings more."""
    await a_backlog(queue)
    for _ in range(5):
        await queue.put(organization_id="small", destination="d")
    claimed = await queue.store.claim(20, per_destination=3, in_flight={"d": 2})
    assert sum(each.organization_id == "small" for each in claimed) == 1


async def test_what_is_held_has_no_turn(queue: Queue) -> None:
    """A row that a claim holds is not claimed by the next one, whose turn it would be."""
    await a_backlog(queue)
    for _ in range(2 * TURN_ROWS):
        await queue.put(organization_id="small", destination="d")
    claims = [await queue.store.claim(20, per_destination=100) for _ in range(2)]
    ids = [each.id for claimed in claims for each in claimed]
    assert len(ids) == len(set(ids)) == 40
    assert Counter(each.organization_id for each in claims[1])["small"] == TURN_ROWS


async def test_rows_of_an_organization_are_claimed_wherever_they_stand(queue: Queue) -> None:
    """Only those of the organizations that are asked for, within the limit of their destination."""
    await a_backlog(queue)
    mine = {await queue.put(organization_id="small", destination=f"d{n}") for n in range(4)}
    await queue.put(organization_id="small", destination="full")
    asked = ["nobody", "small"]
    claimed = await queue.store.claim_of(asked, 16, per_destination=2, in_flight={"full": 2})
    assert {each.id for each in claimed} == mine
    assert await queue.store.claim_of(["nobody"], 16, per_destination=2, in_flight={}) == []


async def test_an_enqueue_of_another_organization_waits_for_no_claim(queue: Queue) -> None:
    """While a claim is under way, and with all slots taken: its row has the first slot that is free."""
    await a_backlog(queue, destinations=3, rows=200)
    sent: list[str] = []
    answers, claims, waits = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.host)
        await answers.acquire()
        return httpx.Response(200)

    executor = an_executor(queue, answer)
    for number in range(3):
        executor.limits.record(f"http://r{number}.example.com:80", Outcome(0, 1, 200))
    strategy = ContinuousClaims(queue.store, executor, slots=4, per_destination=100)
    claim = queue.store.claim

    async def slow(*arguments: Any, **named: Any) -> Any:
        if sent:
            waits.set()
            await claims.wait()
        return await claim(*arguments, **named)

    queue.store.claim = slow  # type: ignore[method-assign]
    task = asyncio.create_task(Worker(queue.store, executor, strategy).run())
    await until(lambda: len(sent) == 4)
    answers.release()
    await waits.wait()
    at = len(sent)
    await queue.put(organization_id="small", url="http://small.example.com/", destination="small")

    def arrived() -> bool:
        strategy.wake(["big", "small"])
        answers.release()
        return "small.example.com" in sent

    try:
        await until(arrived)
        assert len(sent) - at < 100  # of two hundred
    finally:
        task.cancel()
        claims.set()
        for _ in range(300):
            answers.release()
        await asyncio.wait({task})


async def test_without_a_limit_the_oldest_come_first(queue: Queue) -> None:
    """Scheduled mode as it is by default: oldest first, whosever they are (§8)."""
    await a_backlog(queue)
    await queue.put(organization_id="small", destination="d")
    asked: Counter[str] = Counter()

    def answer(request: httpx.Request) -> httpx.Response:
        asked[request.url.host] += 1
        return httpx.Response(200)

    assert await a_schedule(queue, answer, limit=50).tick() == 50
    assert asked == {"r0.example.com": 50}


def test_a_turn_is_a_share_of_the_claim() -> None:
    """A power of two, so that few statements differ; one row at least, and never more than the claim among all."""
    assert [turn_rows(limit, 2) for limit in (1, 2, 16, 100, 1000)] == [1, 1, 8, 32, 64]
    assert turn_rows(100, ORGANIZATIONS_A_CLAIM) == 4


def test_organizations_take_turns_with_the_slots() -> None:
    """What was claimed later for another organization starts before the rest of what waits."""
    limits = Limits()
    for place in ("d", "e"):
        limits.record(place, Outcome(0, 1, 200))
    slots: Slots[str] = Slots(4, 10, owner=lambda item: item[0], limits=limits)
    slots.add(slots.demand(), [("d", f"a{number}") for number in range(8)])
    assert list(slots.start()) == ["a0", "a1", "a2", "a3"]
    slots.insert([("e", "b0"), ("e", "b1"), ("e", "b2"), ("e", "b3")])
    begun = []
    for each in ("a0", "a1", "a2", "b0"):
        slots.finish("d" if each[0] == "a" else "e", each)
        begun += list(slots.start())
    # While others wait, each has half of the slots at the most.
    assert begun == ["b0", "b1", "a4", "b2"]
