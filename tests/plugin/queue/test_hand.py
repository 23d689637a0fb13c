"""What a worker has in hand: each row in one state, each move that cannot be is refused, and the lanes count the same rows."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.hand import MOST_STALLS, Hand, State
from flowactions_plugin.queue.lanes import Due, Lanes
from flowactions_plugin.queue.standing import Standing
from tests.queueing import claimed

ROW = claimed(id="1", token="first")
LATER = claimed(id="1", token="later")


def put(hand: Hand, state: State | None) -> None:
    """Have `ROW` in a state."""
    if state == "reserved":
        hand.reserve(ROW)
    elif state is not None:
        hand.take([ROW])
        if state != "waiting":
            hand.begin(ROW)
        if state in {"ended", "written"}:
            hand.end(ROW)
        if state == "written":
            hand.again(ROW, LATER.token)
            hand.written(ROW)
    assert hand.state("1") == state


STATES: tuple[State | None, ...] = (None, "reserved", "waiting", "in flight", "ended", "written")
MOVES: dict[str, dict[State | None, State | None]] = {
    "reserve": {None: "reserved"},
    "begin": {"waiting": "in flight"},
    "end": {"waiting": "ended", "in flight": "ended"},
    "written": {"ended": None},
}
"""What each move makes of a row; all others are refused."""


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", STATES)
def test_a_move_that_cannot_be_is_refused(move: str, state: State | None) -> None:
    """A row that ends twice, or begins before it was claimed, would be sent twice or lose a slot."""
    hand = Hand()
    with hand.claiming():
        put(hand, state)
        if state in MOVES[move]:
            getattr(hand, move)(ROW)
            assert hand.state("1") == MOVES[move][state]
        else:
            name = "not in hand" if state is None else state
            with pytest.raises(ValueError, match=f"^delivery 1 cannot be .*: it is {name}$"):
                getattr(hand, move)(ROW)
            assert hand.state("1") == state


@pytest.mark.parametrize(
    ("state", "row", "left"),
    [
        (None, ROW, "waiting"),
        ("reserved", ROW, "waiting"),
        ("reserved", LATER, "waiting"),
        ("waiting", LATER, None),
        ("in flight", LATER, None),
        ("ended", LATER, None),
        ("written", LATER, None),
        ("written", claimed(id="1", token="third"), "waiting"),
    ],
)
def test_what_is_in_hand_is_not_taken_twice(
    state: State | None, row: ClaimedDelivery, left: State | None
) -> None:
    """What was written under the claim that is answered now is not taken, either."""
    hand = Hand()
    with hand.claiming():
        put(hand, state)
        assert bool(hand.take([row])) is (left is not None)
        if left is not None:
            assert hand.state("1") == left


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_was_written_ahead_leaves_with_its_claim(is_answered: bool) -> None:
    """Also if that claim fails: nothing stays in memory of what was sent."""
    hand = Hand()
    with hand.claiming():
        with hand.claiming():  # of a probe
            put(hand, "written")
        assert hand.state("1") == "written"
        if is_answered:
            assert hand.take([LATER]) == []
            assert hand.state("1") is None
    assert hand.state("1") is None
    assert hand.take([LATER])


def test_what_is_written_under_a_later_claim_leaves_where_no_claim_is_on_its_way() -> None:
    """Its answer has come before, or has failed."""
    hand = Hand()
    put(hand, "ended")
    hand.again(ROW, LATER.token)
    assert hand.state("1") == "ended"
    hand.written(LATER)
    assert hand.state("1") is None


@pytest.mark.parametrize("state", STATES)
def test_a_lost_row_is_taken_again(state: State | None) -> None:
    """Not one whose end waits to be written: it would be sent twice."""
    hand = Hand()
    with hand.claiming():
        put(hand, state)
        hand.lose(ROW)
        kept = None if state in {"waiting", "in flight"} else state
        assert hand.state("1") == kept


@pytest.mark.parametrize("state", STATES)
def test_only_a_reserved_place_is_given_up(state: State | None) -> None:
    hand = Hand()
    with hand.claiming():
        put(hand, state)
        hand.release([ROW])
        assert hand.state("1") == (None if state == "reserved" else state)


def test_stalls_are_counted_over_claims() -> None:
    """Until an attempt comes to an end."""
    hand = Hand()
    for _ in range(MOST_STALLS):
        assert hand.forgives(ROW)
        hand.stalled(ROW)
    assert not hand.forgives(LATER)
    assert hand.forgives(claimed(id="2"))
    hand.attempted(LATER)
    assert hand.forgives(ROW)


class HandBesideLanes(RuleBasedStateMachine):
    """A worker of four slots with two lanes: after each step, the lanes count exactly the rows that the hand has in each state."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.standing = Standing()
        self.lanes = Lanes(4, 2, self.standing, lambda: self.now)
        self.hand = Hand(self.lanes)
        self.ids = count()
        self.rows: dict[str, ClaimedDelivery] = {}
        self.reserved: list[ClaimedDelivery] = []
        self.asked: list[Due] = []

    def row(self, lane: int) -> ClaimedDelivery:
        row_id = str(next(self.ids))
        host = f"https://{lane}.example:443"
        self.rows[row_id] = claimed(id=row_id, token=f"t{row_id}", lane=lane, destination=host)
        return self.rows[row_id]

    @rule(lane=st.integers(1, 2))
    def reserve(self, lane: int) -> None:
        row = self.row(lane)
        if self.lanes.reserve(Due(lane, row.organization_id, row.destination)):
            self.hand.reserve(row)
            self.reserved.append(row)

    @precondition(lambda self: self.reserved)
    @rule(is_written=st.booleans())
    def enqueued(self, is_written: bool) -> None:
        taken = self.hand.take(self.reserved) if is_written else []
        self.hand.release(self.reserved)
        self.lanes.unreserve(self.reserved, taken)
        self.reserved = []

    @precondition(lambda self: not self.asked)
    @rule(lanes=st.sets(st.integers(1, 2), min_size=1))
    def ask(self, lanes: set[int]) -> None:
        for lane in lanes:
            self.lanes.learn(Due(lane, "acme", f"https://{lane}.example:443"))
        self.asked = self.lanes.asks()

    @precondition(lambda self: self.asked)
    @rule(found=st.integers(0, 3), again=st.booleans())
    def answered(self, found: int, again: bool) -> None:
        asked = {due.lane: due.rows for due in self.asked}
        rows = [self.row(lane) for lane, most in asked.items() for _ in range(min(found, most))]
        if again:  # a row that it has in hand, after a lease that it stood still for
            held = [self.rows[row_id] for row_id in self.hand.ids("in flight")]
            rows += [row for row in held if row.lane in asked and found < asked[row.lane]][:1]
        self.lanes.answer(self.asked, rows, self.hand.take(rows))
        self.asked = []

    @precondition(lambda self: self.asked)
    @rule()
    def failed(self) -> None:
        self.lanes.fail(self.asked)
        self.asked = []

    @rule(most=st.integers(1, 4))
    def start(self, most: int) -> None:
        self.hand.start(most)

    @precondition(lambda self: self.hand.ids("in flight"))
    @rule(data=st.data(), seconds=st.sampled_from([0, 3, 10]), is_lost=st.booleans())
    def end(self, data: st.DataObject, seconds: int, is_lost: bool) -> None:
        row = self.rows[data.draw(st.sampled_from(self.hand.ids("in flight")))]
        self.now += seconds
        outcome = Outcome(0, seconds * 1000, status_code=200 if seconds < 10 else None, error="timed out")
        self.standing.record(row.lane, (row.organization_id, row.destination), outcome)
        (self.hand.lose if is_lost else self.hand.end)(row)

    @rule(is_all=st.booleans())
    def give_back(self, is_all: bool) -> None:
        for row in self.lanes.remove(lambda _: is_all):
            self.hand.end(row)

    @precondition(lambda self: self.hand.ids("ended"))
    @rule()
    def write(self) -> None:
        for row_id in self.hand.ids("ended"):
            self.hand.written(self.rows[row_id])

    @invariant()
    def they_agree(self) -> None:
        for row in self.lanes.surplus():
            self.hand.end(row)
        total = self.lanes.total
        assert total.in_flight == len(self.hand.ids("in flight"))
        assert {row.id for row in self.lanes.waiting_rows()} == set(self.hand.ids("waiting"))
        assert total.waiting == len(self.hand.ids("waiting"))
        assert total.asked == len(self.hand.ids("reserved")) + sum(due.rows for due in self.asked)
        assert total.in_flight <= 4


TestHandBesideLanes = HandBesideLanes.TestCase
TestHandBesideLanes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
