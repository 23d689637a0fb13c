"""Receivers that hang cannot hold all slots: the rules, and a worker that keeps them (decision 69)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.limits import LEAST_MS, STANDS_MS, Limited, Limits
from flowactions_plugin.queue.slots import ClaimRequest, Slots

ANSWERED = Outcome(1000, 5, 200)
FAILED = Outcome(1000, 5, 503)
TIMED_OUT = Outcome(1000, 10_000, error="timed out after 10 s while waiting for the answer")
REFUSED = Outcome(1000, 5, error="cannot connect to 127.0.0.1: connection refused")

ORGANIZATIONS = ["x", "y", "z"]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> float:
        return self.ms / 1000


def a_row(place: str, organization: str = "x") -> tuple[str, str]:
    return place, f"{organization} {place}"


def rows_of(organization: str, *places: str) -> list[tuple[str, str]]:
    return [a_row(place, organization) for place in places]


def organization_of(item: str) -> str:
    return item.split(maxsplit=1)[0]


class World:
    """Slots, the limits of their worker, and what is in flight."""

    def __init__(self, limit: int, per_destination: int, *answering: str, weight: int = 1) -> None:
        self.limits = Limits()
        for place in answering:
            self.limits.record(place, ANSWERED)
        self.slots: Slots[str] = Slots(limit, per_destination, organization_of, self.limits, lambda _: weight)
        self.flying: Counter[str] = Counter()

    def claimed(self, rows: Sequence[tuple[str, str]]) -> list[str]:
        """Add claimed rows, and give the places of those that start."""
        self.slots.add(ClaimRequest(100, Counter()), rows)
        return self.started()

    def started(self) -> list[str]:
        begun = list(self.slots.start())
        self.flying.update(begun)
        return begun

    def ended(self, item: str, outcome: Outcome) -> list[str]:
        """End an attempt, and give what starts then."""
        place = item.split()[1]
        self.limits.record(place, outcome)
        self.flying -= Counter([item])
        self.slots.finish(place, item)
        return self.started()


class TestDestinations:
    def test_one_that_timed_out_hangs_until_it_answers(self) -> None:
        """Whatever it answers; the time is that of the timeout, and a second one changes it not."""
        limits = Limits()
        assert not limits.answers("a")
        limits.record("a", ANSWERED)
        assert limits.answers("a")
        limits.record("a", TIMED_OUT)
        limits.record("a", Outcome(90_000, 10_000, error=TIMED_OUT.error))
        assert (limits.answers("a"), limits.hangs("a")) == (False, True)
        assert limits.limited() == Limited({"a": 11_000})
        limits.record("a", FAILED)
        assert (limits.answers("a"), limits.hangs("a")) == (True, False)
        assert limits.limited() == Limited()

    @pytest.mark.parametrize("before", [ANSWERED, TIMED_OUT])
    def test_a_refused_connection_changes_nothing(self, before: Outcome) -> None:
        """It is over at once, and says nothing of whether the destination would answer."""
        limits = Limits()
        limits.record("a", before)
        was = limits.answers("a"), limits.hangs("a")
        limits.record("a", REFUSED)
        assert (limits.answers("a"), limits.hangs("a")) == was

    def test_memory_is_bounded(self) -> None:
        """The oldest are forgotten, and unproven again."""
        limits = Limits(most_answered=2, most_hanging=2)
        for place in "abc":
            limits.record(place, ANSWERED)
            limits.record(f"{place}!", TIMED_OUT)
        assert [limits.answers(place) for place in "abc"] == [False, True, True]
        assert list(limits.limited().destinations) == ["b!", "c!"]


class TestOrganizations:
    def test_one_that_is_passed_over_for_a_while_is_named(self) -> None:
        """Since the first time; a moment is not named, and neither is what is over."""
        clock = Clock()
        limits = Limits(clock)
        began = clock.ms
        limits.pass_over("x")
        assert limits.limited() == Limited()
        clock.ms += LEAST_MS
        limits.pass_over("x")
        assert limits.limited() == Limited({}, {"x": began})
        clock.ms += STANDS_MS
        assert limits.limited() == Limited({}, {"x": began})
        clock.ms += 1
        assert limits.limited() == Limited()
        limits.pass_over("x")
        clock.ms += LEAST_MS
        limits.pass_over("x")
        assert limits.limited() == Limited({}, {"x": clock.ms - LEAST_MS})


class TestSlots:
    def test_one_that_hangs_has_one_slot(self) -> None:
        """What waits for it is given back, and a claim brings one row of it when it has none in flight."""
        world = World(20, 5, "a")
        world.claimed(rows_of("x", *"a" * 8))
        assert world.flying == {"x a": 5}
        assert world.ended("x a", TIMED_OUT) == []
        assert world.slots.pop_surplus() == ["x a"] * 3
        assert world.slots.demand().in_flight["a"] == 5
        for _ in range(4):
            world.ended("x a", TIMED_OUT)
        assert world.slots.demand().in_flight["a"] == 4
        assert world.claimed(rows_of("x", "a", "a")) == ["x a"]
        assert world.slots.pop_surplus() == ["x a"]
        world.ended("x a", FAILED)
        assert world.claimed(rows_of("x", *"a" * 8)) == ["x a"] * 5

    def test_what_has_not_answered_has_half_of_the_slots(self) -> None:
        """The rest is for destinations that have answered, of whatever organization."""
        world = World(10, 2, "healthy")
        assert len(world.claimed(rows_of("x", *"abcdefgh"))) == 5
        assert world.claimed(rows_of("y", "healthy")) == ["y healthy"]
        assert world.claimed(rows_of("x", "healthy")) == ["x healthy"]

    def test_an_organization_with_nothing_unproven_begins_one_more(self) -> None:
        """Receivers of another that hang keep no new destination from being tried, which has more when it answers."""
        world = World(10, 3)
        world.claimed(rows_of("x", *"abcdefgh"))
        assert world.claimed(rows_of("y", "new", "new", "new")) == ["y new"]
        assert world.slots.pop_surplus() == ["y new"]
        assert world.slots.demand().in_flight["new"] == 3
        assert world.ended("y new", ANSWERED) == ["y new"]
        assert world.slots.demand().in_flight["new"] < 3

    def test_a_first_answer_proves_a_destination(self) -> None:
        """What is in flight to the destination counts no more, and what waits for it starts."""
        world = World(10, 10)
        world.claimed(rows_of("x", *"a" * 8))
        assert world.flying == {"x a": 5}
        assert world.ended("x a", FAILED) == ["x a"] * 3
        assert len(world.claimed(rows_of("x", *"bcdefgh"))) == 3  # the ten slots are full

    def test_what_waits_for_the_unproven_leaves_claims_to_others(self) -> None:
        """It is no part of what a claim has to bring, and more of it is refused than half of the slots."""
        world = World(10, 1)
        world.claimed(rows_of("x", *"abcdefghij"))
        assert world.slots.waiting == 5
        assert world.slots.demand().limit == 5
        world.claimed(rows_of("x", "k", "l"))
        assert world.slots.pop_surplus() == ["x k", "x l"]
        demanded = world.slots.demand()
        assert [demanded.in_flight[place] for place in "aklm"] == [1, 1, 1, 0]
        # When half of the places are free again, these destinations are claimed for.
        for place in "abc":
            world.ended(f"x {place}", TIMED_OUT)
        assert world.slots.demand().in_flight["k"] == 0

    def test_while_many_unproven_wait_none_is_claimed_for_one_that_hangs(self) -> None:
        """Another of its rows would only wait."""
        world = World(10, 2)
        world.claimed(rows_of("x", "a"))
        world.ended("x a", TIMED_OUT)
        assert world.slots.demand().in_flight["a"] == 1
        world.claimed(rows_of("x", *"bcdefghijk"))
        assert world.slots.demand().in_flight["a"] == 2

    def test_one_row_waits_for_one_that_hangs(self) -> None:
        """Where no slot is free for it either: the places are for other destinations."""
        world = World(10, 2)
        world.claimed(rows_of("x", "a"))
        world.ended("x a", TIMED_OUT)
        world.claimed(rows_of("x", *"bcdef"))
        world.claimed(rows_of("x", "a", "a"))
        assert (world.slots.waiting, world.slots.pop_surplus()) == (1, ["x a"])

    def test_large_rows_count_for_several(self) -> None:
        """So the bytes of these rows are bounded, too."""
        world = World(20, 20, weight=4)
        assert len(world.claimed(rows_of("x", *"a" * 20))) == 3
        assert (world.slots.waiting, len(world.slots.pop_surplus())) == (2, 15)

    def test_alone_an_organization_has_all_slots(self) -> None:
        """Of destinations that have answered, also while its own hang."""
        world = World(10, 10, "a")
        assert len(world.claimed(rows_of("x", *"a" * 10))) == 10

    def test_while_others_wait_it_has_half(self) -> None:
        """Slots that become free are theirs, until it has half."""
        world = World(4, 10, "a", "b")
        world.claimed(rows_of("x", *"a" * 8))
        world.claimed(rows_of("y", *"b" * 8))
        begun = [world.ended("x a", ANSWERED) for _ in range(3)]
        assert begun == [["y b"], ["y b"], ["x a"]]
        assert world.flying == {"x a": 2, "y b": 2}

    def test_one_that_is_at_its_share_is_noted(self) -> None:
        """For people who look why its rows wait."""
        clock = Clock()
        world = World(4, 10, "a", "b")
        world.limits._clock = clock
        world.claimed(rows_of("x", *"a" * 8))
        world.claimed(rows_of("y", *"b" * 8))
        world.ended("x a", ANSWERED)
        clock.ms += LEAST_MS
        world.ended("x a", ANSWERED)
        assert world.limits.limited().organizations.keys() == {"x"}

    def test_what_begins_to_hang_while_it_waits_for_a_slot(self) -> None:
        """A row that was ready starts only when its destination has its one slot free."""
        world = World(2, 2, "a", "b")
        world.claimed([*rows_of("x", "b", "a"), *rows_of("x", "a")])
        assert world.flying == {"x b": 1, "x a": 1}
        world.limits.record("a", TIMED_OUT)
        assert world.ended("x b", ANSWERED) == []
        assert world.slots.pop_surplus() == ["x a"]


@given(
    st.integers(2, 8),
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(ORGANIZATIONS)), max_size=6),
            st.tuples(st.integers(0, 9), st.sampled_from([ANSWERED, TIMED_OUT, REFUSED])),
        ),
        max_size=40,
    ),
)
def test_the_limits_hold_and_every_row_starts_or_is_given_back(
    limit: int, per_destination: int, steps: list[list[tuple[str, str]] | tuple[int, Outcome]]
) -> None:
    """Whatever claims bring and attempts come to: one to what hangs, half to what is unproven, and nothing is lost."""
    world = World(limit, per_destination)
    share = max(1, limit // 2)
    brought: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    returned: Counter[str] = Counter()

    def settle(started: list[str]) -> None:
        begun.update(started)
        returned.update(world.slots.pop_surplus())
        flying = Counter(item.split()[1] for item in world.flying.elements())
        assert world.flying.total() <= limit
        assert all(count <= per_destination for count in flying.values())
        for item in started:
            place = item.split()[1]
            assert not world.limits.hangs(place) or flying[place] == 1

    for step in steps:
        if isinstance(step, list):
            rows = [a_row(place, organization) for place, organization in step]
            brought.update(item for _, item in rows)
            settle(world.claimed(rows))
        elif world.flying:
            item = sorted(world.flying)[step[0] % len(world.flying)]
            settle(world.ended(item, step[1]))
        open_unproven = sum(
            count for item, count in world.flying.items() if not world.limits.answers(item.split()[1])
        )
        hung = sum(count for item, count in world.flying.items() if world.limits.hangs(item.split()[1]))
        # What was in flight when its destination began to hang is over when its own time is.
        assert open_unproven - hung <= share + len(ORGANIZATIONS)
    while world.flying:
        settle(world.ended(next(iter(world.flying)), ANSWERED))
    returned.update(world.slots.clear())
    assert (begun + returned, world.slots.waiting) == (brought, 0)
