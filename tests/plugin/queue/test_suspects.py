from __future__ import annotations

from collections import Counter

import httpx
from hypothesis import example, given
from hypothesis import strategies as st

from flowactions_plugin.queue.claimed import Return
from flowactions_plugin.queue.suspects import GROUPS, Suspects
from tests.queueing import Queue, an_executor, claimed


@example([[2] * 17])
@given(st.lists(st.lists(st.integers(0, 7), max_size=60), max_size=6))
def test_no_more_than_a_group_of_each_is_admitted(claims: list[list[int]]) -> None:
    """Whatever claims bring: everything is admitted or given back, and of suspects never more than a group at once."""
    suspects = Suspects()
    in_hand: Counter[int] = Counter()
    for number, levels in enumerate(claims):
        rows = [claimed(id=f"{number}-{index}", reclaims=level) for index, level in enumerate(levels)]
        admitted, surplus = suspects.admit(rows)
        assert sorted(row.id for row in (*admitted, *surplus)) == sorted(row.id for row in rows)
        in_hand.update(row.reclaims for row in admitted)
        assert all(row.reclaims >= min(GROUPS) for row in surplus)
        assert all(in_hand[level] <= room for level, room in GROUPS.items())
        assert not any(in_hand[level] for level in (5, 6, 7))
        for level, room in GROUPS.items():  # nothing is given back for which there is room
            assert in_hand[level] == room or level not in {row.reclaims for row in surplus}
        if number % 2:
            for row in admitted[::2]:
                suspects.settle(row)
                in_hand[row.reclaims] -= 1


def test_groups_become_smaller() -> None:
    """Sixteen, four, one, and then none but in quarantine."""
    assert GROUPS == {2: 16, 3: 4, 4: 1}


async def test_what_has_no_room_in_its_group_is_due_a_second_later(queue: Queue) -> None:
    """It stays as often reclaimed as it was."""
    ids = {await queue.put() for _ in range(2)}
    await queue.run("UPDATE flowactions_outbox SET takeovers = 4")
    executor = an_executor(queue, lambda _request: httpx.Response(200))
    (kept,) = await executor.admit(await queue.store.claim(2))
    row = await queue.row((ids - {kept.id}).pop())
    assert (row.claimed_by, row.takeovers, row.next_attempt_at - row.updated_at) == (None, 4, 1000)


async def test_a_round_that_was_given_back_does_not_count(queue: Queue) -> None:
    """The rounds before it do."""
    row_id = await queue.put()
    await queue.run("UPDATE flowactions_outbox SET takeovers = 5, quarantine_rounds = 2")
    alone = await queue.store.claim_quarantined()
    assert alone is not None
    assert await queue.store.begin_quarantined(alone)
    assert (await queue.row(row_id)).quarantine_rounds == 3
    await queue.store.give_back([Return(alone)])
    assert (await queue.row(row_id)).quarantine_rounds == 2
