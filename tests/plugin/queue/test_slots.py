from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.limits import Limits
from flowactions_plugin.queue.slots import AHEAD, LEAST_DEMAND, PREFETCHED, ClaimRequest, Slots

PLACES = ["a", "b", "c", "d"]


def of_places(limit: int, per_destination: int) -> Slots[str]:
    """Make slots for destinations that have answered."""
    limits = Limits()
    for place in PLACES:
        limits.record(place, Outcome(0, 1, 200))
    return Slots(limit, per_destination, limits=limits)


def claimed(*places: str) -> list[tuple[str, str]]:
    return [(place, place) for place in places]


def test_an_idle_worker_claims_for_its_slots_only() -> None:
    """Nothing has finished yet, so nothing is claimed ahead."""
    assert of_places(10, 5).demand() == (10, {})


def test_rows_beyond_the_limit_of_their_destination_wait() -> None:
    """What waits starts when one to the same destination is over."""
    slots = of_places(10, 2)
    slots.add(slots.demand(), claimed("a", "a", "a", "b"))
    assert list(slots.start()) == ["a", "a", "b"]
    assert slots.waiting == 1
    slots.finish("b", "b")
    assert list(slots.start()) == []
    slots.finish("a", "a")
    assert list(slots.start()) == ["a"]


def test_what_finished_since_the_last_claim_is_claimed_ahead() -> None:
    """Ten were over since the last claim: the next brings ten for the slots and ten more, as there are ten slots."""
    slots = of_places(10, 10)
    slots.add(slots.demand(), claimed(*"a" * 10))
    assert len(list(slots.start())) == 10
    assert slots.demand().limit == 0  # nothing finished: with slow receivers nothing is claimed ahead
    for _ in range(10):
        slots.finish("a", "a")
    assert slots.demand() == (20, {"a": -10 * PREFETCHED})
    assert slots.demand() == (10, {})  # counted once


def test_a_destination_at_its_limit_demands_a_claim_when_a_delivery_ends() -> None:
    """Where a claim stopped at the limit of a destination, more rows may be due; elsewhere nothing was left."""
    slots = of_places(10, 2)
    slots.add(slots.demand(), claimed("a", "a", "b"))
    list(slots.start())
    assert slots.finish("a", "a")
    assert not slots.finish("b", "b")


def test_a_small_claim_makes_the_next_small() -> None:
    """The limits keep it small, and more rows would be examined in vain; a claim that returns all doubles it."""
    slots = of_places(1000, 10)
    assert slots.demand().limit == LEAST_DEMAND
    slots.add(slots.demand(), claimed(*"a" * LEAST_DEMAND))
    assert slots.demand().limit == 2 * LEAST_DEMAND


def test_a_destination_at_its_limit_is_claimed_ahead_for_several_times_what_it_has_finished() -> None:
    """With ten in flight to it, a claim of what those ten leave free would cost more than their requests."""
    slots = of_places(100, 10)
    slots.add(slots.demand(), claimed(*"a" * 10))
    assert len(list(slots.start())) == 10
    for _ in range(10):
        slots.finish("a", "a")
    limit, in_flight = slots.demand()
    assert min(limit, 10 - in_flight["a"]) == 2 * LEAST_DEMAND - 12
    slots.add(ClaimRequest(limit, in_flight), claimed(*"a" * limit))
    assert len(list(slots.start())) == 10
    assert slots.waiting == limit - 10


def test_rows_that_wait_for_their_destination_leave_the_slots_to_others() -> None:
    """A destination that has begun to hang, with rows that wait for it, keeps no other from being claimed."""
    slots = of_places(20, 2)
    slots.add(slots.demand(), claimed(*"a" * 16))
    assert len(list(slots.start())) == 2
    assert slots.waiting == 14
    assert slots.demand() == (18, {"a": 16})


def test_a_claim_waits_until_half_of_what_was_claimed_ahead_is_gone() -> None:
    """A claim for each request that ends would be small, and cost more a row."""
    slots = of_places(20, 2)
    slots.add(slots.demand(), claimed(*"a" * 10))
    list(slots.start())
    assert [slots.finish("a", "a") for _ in range(6)] == [False] * 4 + [True] * 2


def test_a_destination_alone_is_claimed_for_when_half_of_what_waited_is_gone() -> None:
    """Where nothing is due elsewhere, a claim before that would find nothing."""
    slots = of_places(100, 10)
    slots.add(ClaimRequest(50, Counter()), claimed(*"a" * 50))
    list(slots.start())
    assert slots.demand(beyond_head=False).limit == 0
    for _ in range(19):
        slots.finish("a", "a")
    assert slots.demand(beyond_head=False).limit == 0
    slots.finish("a", "a")
    limit, in_flight = slots.demand(beyond_head=False)
    assert (limit, in_flight["a"]) == (100, 30 - 20 * PREFETCHED)


def test_a_claim_in_vain_halves_the_next() -> None:
    """One that finds nothing between two that are full must not make them small again."""
    slots = of_places(1000, 1000)
    slots.add(ClaimRequest(64, Counter()), claimed(*"a" * 64))
    assert slots.demand().limit == 128
    slots.add(slots.demand(), [])
    assert slots.demand().limit == 64


def test_what_waits_too_long_is_given_back() -> None:
    """Claimed before a time and not begun, for want of a slot or for its destination; the rest goes on."""
    slots = of_places(3, 2)
    slots.add(slots.demand(), [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")], 1.0)
    assert list(slots.start()) == ["a1", "a2", "b1"]
    slots.add(slots.demand(), [("a", "a4"), ("d", "d1")], 5.0)
    assert sorted(slots.overdue(5.0)) == ["a3", "c1"]
    assert slots.overdue(5.0) == []
    assert slots.waiting == 2
    slots.finish("a", "a")
    slots.finish("b", "b")
    assert sorted(slots.start()) == ["a4", "d1"]


def test_what_waits_can_be_given_back() -> None:
    """A worker that stops gives back what has not begun."""
    slots = of_places(1, 1)
    slots.add(slots.demand(), claimed("a", "a", "b"))
    assert list(slots.start()) == ["a"]
    assert sorted(slots.clear()) == ["a", "b"]
    slots.finish("a", "a")
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
    slots = of_places(limit, per_destination)
    flying: list[str] = []
    brought, begun = Counter[str](), Counter[str]()
    for step in steps:
        if isinstance(step, list):
            slots.add(slots.demand(), claimed(*step))
            brought.update(step)
        elif flying:
            place = flying.pop(step % len(flying))
            slots.finish(place, place)
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
        place = flying.pop()
        slots.finish(place, place)
        started = list(slots.start())
        flying += started
        begun.update(started)
    assert (begun, slots.waiting) == (brought, 0)


def test_where_receivers_are_fast_claims_are_larger() -> None:
    """At ten thousand deliveries a second, 500 rows are 50 ms of work; the next claim is made when half of them have begun."""
    slots = of_places(100, 100)
    slots.add(ClaimRequest(500, Counter()), claimed(*"abcd" * 125))
    flying = list(slots.start())
    for number in range(250):
        slots.finish(flying[number], flying[number])
        flying += slots.start()
        wanted = slots.demand(seconds=(number + 1) / 10_000).limit if number >= 198 else 0
        if wanted:
            break
    assert (slots.waiting, wanted) == (500 - 100 - 200, 200)


@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0001, 0.01, 10.0]))),
    st.booleans(),
)
def test_a_worker_that_is_killed_leaves_a_bounded_number_of_rows(
    limit: int, per_destination: int, steps: list[tuple[int, float]], fast: bool
) -> None:
    """Three times its slots, and six times where receivers are fast: in flight, claimed for free slots, and ahead."""
    slots = of_places(limit, per_destination)
    flying: list[str] = []
    for ended, seconds in steps:
        for _ in range(min(ended, len(flying))):
            place = flying.pop()
            slots.finish(place, place)
            flying += slots.start()
        request = slots.demand(seconds=seconds if fast else 60.0)
        # As the statement of a claim: within the limit of each destination, and in all.
        found = [
            place
            for place in PLACES
            for _ in range(min(request.limit, per_destination - request.in_flight[place]))
        ]
        slots.add(request, claimed(*found[: request.limit]))
        flying += slots.start()
        assert len(flying) + slots.waiting <= (2 + AHEAD if fast else 3) * limit


def test_slots_are_kept_for_what_is_being_enqueued() -> None:
    """As for what is in flight: claims bring fewer rows meanwhile, and fewer to its destination."""
    slots = of_places(10, 5)
    assert all(slots.reserve("", "a") for _ in range(4))
    assert slots.demand() == (6, {"a": 4})
    slots.unreserve("a")
    assert slots.demand() == (7, {"a": 3})
    assert slots.reserved == 3


def test_no_more_is_enqueued_ahead_than_there_are_slots() -> None:
    """Other processes may have slots for the rest."""
    slots = of_places(10, 5)
    kept = [slots.reserve("", "a" if number % 2 else "b") for number in range(12)]
    assert kept == [True] * 10 + [False] * 2


def test_an_unproven_destination_gets_only_slots_that_are_free() -> None:
    """Nothing is enqueued ahead for one that has not answered: within its share, its limit and the slots, where nothing waits."""
    slots: Slots[str] = Slots(4, 1)
    assert slots.reserve("", "a")
    assert not slots.reserve("", "a")  # its limit is one
    assert slots.reserve("", "b")
    slots.unreserve("b")
    slots.insert(claimed("b", "c"))
    assert not slots.reserve("", "d")  # two wait
    list(slots.start())
    assert not slots.reserve("", "d")  # half of the slots are in use
    slots.finish("b", "b")
    assert slots.reserve("", "d")
    full: Slots[str] = Slots(4, 4)
    assert [full.reserve("", "a") for _ in range(5)] == [True] * 4 + [False]
    used = of_places(2, 2)
    used.insert(claimed("a", "b"))
    list(used.start())
    assert not used.reserve("", "unproven")
