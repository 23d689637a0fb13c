from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.outbox.slots import LEAST_DEMAND, Slots

PLACES = ["a", "b", "c"]


def claimed(*places: str) -> list[tuple[str, str]]:
    return [(place, place) for place in places]


def test_an_idle_worker_claims_for_its_slots_only() -> None:
    """Nothing has finished yet, so nothing is claimed ahead."""
    assert Slots[str](10, 5).demand() == (10, {})


def test_rows_beyond_the_limit_of_their_destination_wait() -> None:
    """What waits starts when one to the same destination is over."""
    slots: Slots[str] = Slots(10, 2)
    slots.add(slots.demand(), claimed("a", "a", "a", "b"))
    assert list(slots.start()) == ["a", "a", "b"]
    assert slots.waiting == 1
    slots.finish("b")
    assert list(slots.start()) == []
    slots.finish("a")
    assert list(slots.start()) == ["a"]


def test_what_finished_since_the_last_claim_is_claimed_ahead() -> None:
    """Ten were over while the last claim was under way: the next brings ten for the slots and ten more."""
    slots: Slots[str] = Slots(10, 10)
    slots.add(slots.demand(), claimed(*"a" * 10))
    assert len(list(slots.start())) == 10
    assert slots.demand().limit == 0  # nothing finished: with slow receivers nothing is claimed ahead
    for _ in range(10):
        slots.finish("a")
    assert slots.demand() == (20, {"a": -10})
    assert slots.demand() == (10, {})  # counted once


def test_a_destination_at_its_limit_demands_a_claim_when_a_delivery_ends() -> None:
    """Where a claim stopped at the limit of a destination, more rows may be due; elsewhere nothing was left."""
    slots: Slots[str] = Slots(10, 2)
    slots.add(slots.demand(), claimed("a", "a", "b"))
    list(slots.start())
    assert slots.finish("a")
    assert not slots.finish("b")


def test_a_small_claim_makes_the_next_small() -> None:
    """The limits keep it small, and more rows would be examined in vain; a claim that returns all doubles it."""
    slots: Slots[str] = Slots(1000, 10)
    assert slots.demand().limit == LEAST_DEMAND
    slots.add(slots.demand(), claimed(*"a" * LEAST_DEMAND))
    assert slots.demand().limit == 2 * LEAST_DEMAND


def test_what_waits_can_be_given_back() -> None:
    """A worker that stops gives back what has not begun."""
    slots: Slots[str] = Slots(1, 1)
    slots.add(slots.demand(), claimed("a", "a", "b"))
    assert list(slots.start()) == ["a"]
    assert sorted(slots.clear()) == ["a", "b"]
    slots.finish("a")
    assert (list(slots.start()), slots.waiting) == ([], 0)


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.one_of(st.lists(st.sampled_from(PLACES)), st.integers(0, 9))),
)
def test_the_limits_hold_and_nothing_is_lost(
    limit: int, per_destination: int, steps: list[list[str] | int]
) -> None:
    """Whatever claims bring and whatever ends: in flight within both limits, and every row starts once."""
    slots: Slots[str] = Slots(limit, per_destination)
    flying: list[str] = []
    brought, begun = Counter[str](), Counter[str]()
    for step in steps:
        if isinstance(step, list):
            slots.add(slots.demand(), claimed(*step))
            brought.update(step)
        elif flying:
            slots.finish(flying.pop(step % len(flying)))
        started = list(slots.start())
        flying += started
        begun.update(started)
        assert len(flying) <= limit
        assert all(count <= per_destination for count in Counter(flying).values())
        # A slot is idle only when nothing may use it.
        assert len(flying) == limit or all(
            Counter(flying)[place] == per_destination for place in PLACES if brought[place] > begun[place]
        )
    while flying:
        slots.finish(flying.pop())
        started = list(slots.start())
        flying += started
        begun.update(started)
    assert (begun, slots.waiting) == (brought, 0)
