"""Lanes: whose rows a claim asks for, and who gets the next slot."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import count

import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import SMALL_BYTES, ClaimedDelivery
from flowactions_plugin.queue.lanes import (
    AHEAD,
    AS_KNOWN,
    EVER,
    LANE_AHEAD,
    MOST_BYTES,
    MOST_OF_A_LANE,
    SINCE_MARGIN_MS,
    Due,
    Lanes,
    lane_of,
)
from flowactions_plugin.queue.notifier import Named
from flowactions_plugin.queue.standing import SLOW_SECONDS, Standing
from tests.queueing import claimed

ANSWER = Outcome(0, 0, status_code=500)
LATE = Outcome(0, 2001, status_code=200)
TIMEOUT = Outcome(0, 10, error="timed out after 10 s")
REFUSED = Outcome(0, 0, error="connection refused")


def a_row(row_id: str, lane: int, organization: str, destination: str, size: int = 100) -> ClaimedDelivery:
    where = {"lane": lane, "organization_id": organization, "destination": destination}
    return claimed(id=row_id, size=size, due_at=5000, **where)


class Queue:
    """A worker's lanes, and a queue in which each lane has so many rows."""

    def __init__(self, slots: int = 10, per_destination: int = 10) -> None:
        self.now = 0.0
        self.standing = Standing()
        self.lanes = Lanes(slots, per_destination, self.standing, lambda: self.now)
        self.rows: Counter[int] = Counter()
        self.begun: list[ClaimedDelivery] = []
        self._ids = count()

    def put(
        self,
        organization: str,
        path: str,
        rows: int,
        *,
        host: str = "h",
        answers: bool = True,
        answer: Outcome = ANSWER,
    ) -> Due:
        """Write rows to a lane of which the worker hears, and which has answered."""
        due = Due(lane_of(organization, host, f"http://{host}/{path}"), organization, host)
        self.rows[due.lane] += rows
        if answers:
            self.record(due, answer)
        self.lanes.learn(due)
        return due

    def claim(self) -> Counter[str]:
        """Claim what the lanes ask for; return how many rows of each organization were claimed."""
        asks = self.lanes.asks()
        rows = []
        for due in asks:
            taken = min(due.rows, self.rows[due.lane])
            self.rows[due.lane] -= taken
            rows += [
                a_row(str(next(self._ids)), due.lane, due.organization_id, due.destination)
                for _ in range(taken)
            ]
        self.lanes.answer(asks, rows, rows)
        return Counter(row.organization_id for row in rows)

    def have(self, *rows: ClaimedDelivery) -> None:
        """Have rows of lanes that have answered wait for a slot."""
        for row in rows:
            self.record(row, ANSWER)
            assert self.lanes.reserve(Due(row.lane, row.organization_id, row.destination))
        self.lanes.unreserve(rows, rows)

    def start(self, most: int = 1000) -> list[ClaimedDelivery]:
        """Begin what may begin."""
        begun = self.lanes.start(most)
        self.begun += begun
        return begun

    def end(self, row: ClaimedDelivery, outcome: Outcome = ANSWER) -> list[ClaimedDelivery]:
        """End an attempt."""
        self.begun.remove(row)
        self.record(row, outcome)
        self.lanes.end(row)
        return self.lanes.surplus()

    def record(self, row: Due | ClaimedDelivery, outcome: Outcome) -> None:
        """Record the outcome of an attempt."""
        self.standing.record(row.lane, (row.organization_id, row.destination), outcome)


def of(rows: list[ClaimedDelivery]) -> Counter[str]:
    """Count rows by organization."""
    return Counter(row.organization_id for row in rows)


def test_a_lane_is_an_organization_and_an_endpoint() -> None:
    """Scheme, host, port and path count; the query and the fragment do not, and no part can be mistaken for another."""
    lane = lane_of("a", "https://h:443", "https://h/x?y=1")
    assert lane == lane_of("a", "https://h:443", "https://h/x#z")
    assert lane_of("a", "http://h:80", "http://h") == lane_of("a", "http://h:80", "http://h/")
    others = {
        lane_of("b", "https://h:443", "https://h/x"),
        lane_of("a", "http://h:443", "http://h:443/x"),
        lane_of("a", "https://h:444", "https://h:444/x"),
        lane_of("a", "https://h:443", "https://h/X"),
        lane_of("ah", "ttps://h:443", "https://h/x"),
    }
    assert len({lane, *others}) == 6
    assert all(-(2**63) <= each < 2**63 for each in {lane, *others})


def test_organizations_take_turns_with_the_slots() -> None:
    """One with a thousand lanes gets no more than one with a single lane that has enough rows."""
    queue = Queue(slots=10)
    for number in range(1000):
        queue.put("large", f"p{number}", 5, host=f"h{number}")
    queue.put("small", "p", 50, host="other")
    queue.claim()
    assert of(queue.start()) == {"large": 5, "small": 5}


def test_a_small_claim_comes_before_a_large_one() -> None:
    """One that holds nothing waits for no rows of a backlog, and the backlog is asked for in every second claim at least."""
    queue = Queue(slots=100)
    for number in range(40):
        queue.put("large", f"p{number}", 100, host=f"h{number}")
    assert queue.claim() == {"large": 200}
    claims = []
    for number in range(4):
        for row in queue.start():
            queue.end(row)
        queue.put(f"small{number}", "p", 1)
        claims.append(set(queue.claim()))
    assert claims == [{"small0"}, {"large", "small1"}, {"small2"}, {"large", "small3"}]


def test_lanes_of_an_organization_take_turns() -> None:
    """One row of each lane begins before the second of any."""
    queue = Queue(slots=8)
    lanes = {queue.put("a", f"p{number}", 10, host=f"h{number}").lane for number in range(4)}
    queue.claim()
    first, second = queue.start(4), queue.start(4)
    assert {row.lane for row in first} == {row.lane for row in second} == lanes


def test_a_lane_begins_its_rows_in_their_order() -> None:
    """Oldest first (§8)."""
    queue = Queue()
    queue.put("a", "p", 10)
    queue.claim()
    assert [int(row.id) for row in queue.start()] == sorted(int(row.id) for row in queue.begun)


def test_a_silent_lane_has_one_in_flight_and_holds_up_no_other_of_its_host() -> None:
    """Neither of another organization nor of its own."""
    queue = Queue(slots=100)
    queue.put("a", "hang", 60, answers=False)
    queue.put("b", "ok", 20, answers=False)
    queue.put("a", "ok", 20, answers=False)
    for _ in range(100):
        queue.claim()
        queue.start()
        for row in [each for each in queue.begun if each.lane != lane_of("a", "h", "http://h/hang")]:
            queue.end(row)
    assert +queue.rows == {lane_of("a", "h", "http://h/hang"): 59}
    assert len(queue.begun) == 1


def test_the_rows_that_a_worker_holds_have_the_same_shares() -> None:
    """Otherwise it would hold slow rows only, and claim no quick one."""
    queue = Queue(slots=20)
    for number in range(60):
        queue.put(f"s{number}", "p", 5, answer=LATE)
    assert queue.claim().total() == AHEAD * 15
    for number in range(60):
        queue.put(f"u{number}", "p", 5, answers=False)
    assert queue.claim().total() == AHEAD * 3
    queue.put("q", "p", 20)
    assert queue.claim() == {"q": AHEAD * 2}
    assert queue.claim() == {}


@pytest.mark.parametrize("same", ["organization", "destination"])
def test_an_organization_and_a_host_have_half_of_the_slots_while_others_wait(same: str) -> None:
    """Alone, they have all of them."""
    queue = Queue(slots=10, per_destination=100)

    def put(number: int) -> None:
        one = same == "organization"
        queue.put("a" if one else f"o{number}", "p", 50, host=f"h{number}" if one else "h")

    put(1)
    queue.claim()
    assert len(queue.start()) == 10
    for row in queue.begun[:9]:
        queue.end(row)
    queue.put("other", "p", 50, host="other")
    for number in range(2, 6):
        put(number)
    for _ in range(3):
        queue.claim()
    queue.start()
    assert sum(row.organization_id == "other" for row in queue.begun) == 5


@pytest.mark.parametrize("same", ["organization", "destination"])
def test_half_of_the_slots_is_left_to_others_also_when_more_was_claimed_before(same: str) -> None:
    """Its rows wait here, and give way to those that come since, although they take longer."""
    queue = Queue(slots=10)
    for number in range(4):
        one = same == "organization"
        queue.put("a" if one else f"o{number}", "p", 3, host=f"h{number}" if one else "h")
    assert queue.claim().total() == 12
    queue.put("other", "p", 100, host="other")
    for _ in range(10):
        queue.claim()
        queue.start()
        quick = [row for row in queue.begun if row.organization_id == "other"]
        assert len(queue.begun) - len(quick) <= 5
        for row in quick[:-1]:
            queue.end(row)


@pytest.mark.parametrize(
    ("slots", "slow", "either"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (10, 7, 9), (100, 75, 90)]
)
def test_shares_of_any_number_of_slots(slots: int, slow: int, either: int) -> None:
    """At least one; and one more for unknown ones, and one more for quick ones, as soon as there are as many."""
    queue = Queue(slots)
    for number in range(2 * slots):
        queue.put(f"s{number}", "p", 1, answer=LATE)
    queue.claim()
    assert len(queue.start()) == slow
    for number in range(2 * slots):
        queue.put(f"u{number}", "p", 1, answers=False)
    queue.claim()
    assert len(queue.start()) == either - slow
    for number in range(2 * slots):
        queue.put(f"q{number}", "p", 1)
    queue.claim()
    assert len(queue.start()) == slots - either
    assert queue.lanes.slow.in_flight == slow


def test_a_lane_is_slow_while_a_delivery_takes_too_long() -> None:
    """It counts as slow, new lanes of its host do, too, and what it holds beyond its limit is given back."""
    queue = Queue(slots=100)
    for number in range(4):
        queue.put("a", f"p{number}", 100, host=f"h{number}")
    queue.claim()
    assert len(queue.start()) == 40
    assert queue.lanes.surplus() == []
    queue.now += SLOW_SECONDS
    queue.lanes.asks()
    assert queue.lanes.slow.in_flight == 0
    queue.now += 0.01
    queue.lanes.asks()
    assert (queue.lanes.slow.in_flight, queue.lanes.slow.waiting) == (40, 0)
    assert len(queue.lanes.remove(lambda _: False)) == 40
    assert queue.lanes.surplus() == []
    new = queue.put("a", "new", 1, host="h0", answers=False)
    assert queue.lanes.slow in queue.lanes._lanes[new.lane].group.kind.shares
    for row in list(queue.begun):
        queue.end(row, REFUSED)
    assert queue.lanes.slow.held == 0
    queue.claim()
    queue.start()
    newer = queue.put("a", "newer", 1, host="h0", answers=False)
    for due in (new, newer):
        assert queue.lanes.slow not in queue.lanes._lanes[due.lane].group.kind.shares
    assert queue.lanes.slow.held == 0


def test_new_lanes_of_a_host_that_becomes_slow_hold_no_more_than_its_limit() -> None:
    """A path for each row makes many; of those that wait, the limit stays, and the others are given back."""
    queue = Queue(slots=100)
    queue.put("a", "known", 1)
    for number in range(100):
        queue.put("a", f"id/{number}", 1, answers=False)
    assert queue.claim() == {"a": LANE_AHEAD * 10}
    assert len(queue.start()) == 10
    assert queue.lanes._quick.due.lanes
    queue.now += SLOW_SECONDS + 0.01
    queue.lanes.asks()
    assert not queue.lanes._quick.due.lanes
    assert len(queue.lanes.surplus()) >= (LANE_AHEAD - 2) * 10
    for _ in range(3):
        assert (queue.lanes.slow.in_flight, queue.lanes.slow.waiting <= 10) == (10, True)
        queue.claim()


def test_a_slow_lane_is_not_claimed_ahead() -> None:
    """It holds what may be in flight; so does its host, whatever its paths."""
    queue = Queue(slots=100)
    for number in range(3):
        queue.put("a", f"p{number}", 100, answer=LATE)
    assert queue.claim() == {"a": 10}
    queue.start()
    assert queue.claim() == {}
    queue.end(queue.begun[0], LATE)
    assert queue.claim() == {"a": 1}


def test_a_quick_lane_is_claimed_ahead_further_with_each_answer() -> None:
    """Up to eight times its limit, within what the worker may hold: its slots are never idle between claims."""
    queue = Queue(slots=100)
    queue.put("a", "p", 1000)
    held = []
    for _ in range(10):
        queue.claim()
        held.append(queue.lanes.total.held)
        for row in queue.start()[:1]:
            queue.end(row)
    assert held == [*range(AHEAD * 10, LANE_AHEAD * 10, 10), *[LANE_AHEAD * 10] * 4]
    queue.put("b", "p", 1000, host="other")
    assert queue.claim() == {"b": AHEAD * 10}


def test_an_organization_has_so_many_in_flight_at_one_destination() -> None:
    """Over all of its lanes there; another organization has as many of its own, and so has that of alerts, whose id is empty."""
    queue = Queue(slots=100, per_destination=10)
    for number in range(5):
        queue.put("a", f"p{number}", 50)
    queue.put("b", "p", 50)
    queue.put("", "p", 50)
    queue.claim()
    assert of(queue.start()) == {"a": 10, "b": 10, "": 10}


def test_a_worker_holds_twice_as_many_rows_as_it_has_slots() -> None:
    """What a kill leaves until leases end."""
    queue = Queue(slots=10)
    for number in range(100):
        queue.put("a", f"p{number}", 100, host=f"h{number}")
    for _ in range(10):
        queue.claim()
        queue.start()
    assert queue.lanes.total.in_flight == 10
    assert queue.lanes.total.in_flight + queue.lanes.total.waiting == AHEAD * 10
    assert queue.lanes.is_full


def test_a_claim_asks_a_lane_for_a_thousand_rows_at_the_most() -> None:
    """A statement returns no more, and a lane that gave less than was asked for would be forgotten."""
    queue = Queue(slots=1000, per_destination=1000)
    queue.put("a", "p", 3000)
    assert [due.rows for due in queue.lanes.asks()] == [MOST_OF_A_LANE]


def test_a_lane_that_gave_less_than_was_asked_for_is_forgotten_when_it_has_ended() -> None:
    """And asked again when it is heard of, also while a claim was on its way."""
    queue = Queue()
    due = queue.put("a", "p", 1)
    asks = queue.lanes.asks()
    queue.lanes.learn(due)
    row = a_row("1", due.lane, "a", "h")
    queue.lanes.answer(asks, [row], [row])
    assert [ask.lane for ask in queue.lanes.asks()] == [due.lane]
    queue.lanes.answer([due._replace(rows=19)], [], [])
    assert queue.lanes.asks() == []
    queue.start()
    queue.end(row)
    assert len(queue.lanes._lanes) == 0


def test_a_failed_claim_is_asked_again() -> None:
    """Nothing is forgotten."""
    queue = Queue()
    queue.put("a", "p", 5)
    asks = queue.lanes.asks()
    queue.lanes.fail(asks)
    assert queue.lanes.asks() == asks


def test_a_row_that_is_enqueued_has_a_place_only_where_no_older_one_may_wait() -> None:
    """Rows of its lane that are due, or rows of others for which there is no room."""
    queue = Queue(slots=2)
    fresh = Due(lane_of("b", "x", "http://x/"), "b", "x")
    assert queue.lanes.reserve(fresh)
    queue.lanes.unreserve([a_row("1", fresh.lane, "b", "x")], [])
    assert len(queue.lanes._lanes) == 0
    due = queue.put("a", "p", 50)
    assert not queue.lanes.reserve(due)
    queue.claim()
    queue.claim()
    assert queue.lanes.is_full
    assert not queue.lanes.reserve(fresh)
    queue.end(queue.start()[0])  # a place is free: it is that of the rows that wait for a claim
    assert not queue.lanes.reserve(fresh)


def test_a_row_has_no_place_where_an_older_one_of_its_lane_has_become_due() -> None:
    """While another one is being enqueued."""
    queue = Queue()
    due = Due(lane_of("a", "h", "http://h/"), "a", "h")
    queue.record(due, ANSWER)
    assert queue.lanes.reserve(due)
    assert queue.lanes.reserve(due)
    queue.lanes.learn(due)
    assert not queue.lanes.reserve(due)


@pytest.mark.parametrize("answer", [LATE, None], ids=["slow", "unknown"])
def test_a_row_that_is_enqueued_for_a_doubtful_lane_has_a_place_only_where_it_begins_at_once(
    answer: Outcome | None,
) -> None:
    """Not where others of its kind wait, or its share has no slot left."""
    queue = Queue(slots=4)
    rows = []

    def reserve(number: int) -> bool:
        row = a_row(str(number), number, f"o{number}", "h")
        if answer is not None:
            queue.record(row, answer)
        found = queue.lanes.reserve(Due(number, row.organization_id, "h"))
        rows.extend([row] if found else [])
        return found

    share = 3 if answer is None else 2
    for number in range(share):
        assert reserve(number)
        queue.lanes.unreserve(rows[-1:], rows[-1:])
        assert not reserve(100 + number)
        queue.start()
    assert not reserve(200)
    queue.put("q", "p", 1, host="quick")
    assert queue.claim() == {"q": 1}


def test_a_lane_that_begins_to_hang_gives_back_what_waits() -> None:
    """Other workers may send it; none stays beside what is in flight."""
    queue = Queue(slots=2, per_destination=2)
    queue.put("a", "p", 50)
    queue.claim()
    one, two = queue.start()
    assert queue.lanes.total.waiting == 2
    assert len(queue.end(one, TIMEOUT)) == 2
    assert queue.claim() == {}
    queue.end(two, TIMEOUT)
    assert queue.claim() == {"a": 1}


def test_large_rows_in_flight_are_bounded_and_the_next_is_not_overtaken() -> None:
    """By no other large one; small ones begin. Those that fit into `MOST_BYTES` are in flight together."""
    queue = Queue(slots=10)
    queue.have(*(a_row(str(n), n, "a", f"h{n}", size=MOST_BYTES // 2) for n in range(3)))
    assert [row.id for row in queue.start()] == ["0", "1"]
    queue = Queue(slots=10)
    rows = [a_row(str(n), n, "a", f"h{n}", size=MOST_BYTES // 2 + 1) for n in range(3)]
    queue.have(*rows, a_row("4", 4, "a", "h4", size=SMALL_BYTES + 1), a_row("5", 5, "a", "h5"))
    first = queue.start()
    assert [row.id for row in first] == ["0", "5"]
    queue.end(first[0])
    assert [row.id for row in queue.start()] == ["1"]


def test_what_a_claim_returned_and_is_not_to_be_sent_never_begins() -> None:
    """Its lane is due again all the same if it gave as many as were asked for."""
    queue = Queue()
    queue.put("a", "p", 9)
    (due,) = asks = queue.lanes.asks()
    rows = [a_row(str(n), due.lane, "a", "h") for n in range(due.rows)]
    queue.lanes.answer(asks, rows, rows[1:])
    assert queue.start() == rows[1:11]
    assert queue.lanes.asks()


def test_a_large_row_that_its_share_keeps_back_is_not_the_next_one() -> None:
    """Otherwise large rows of quick receivers would wait for all that hangs."""
    queue = Queue(slots=4)
    large = MOST_BYTES // 2 + 1
    rows = [a_row(str(n), n, f"o{n}", f"h{n}", size=size) for n, size in enumerate((large, large, 1, large))]
    for row, answer in zip(rows, (ANSWER, LATE, LATE, ANSWER), strict=True):
        queue.record(row, answer)
        if row.id != "2":
            assert queue.lanes.reserve(Due(row.lane, row.organization_id, row.destination))
    first, kept_back, _, other = rows
    queue.lanes.unreserve([first, kept_back], [first, kept_back])
    assert queue.start() == [first]  # the other one is the next
    slow = [a_row(f"s{n}", 10 + n, f"s{n}", f"s{n}") for n in range(2)]
    for row in slow:
        queue.record(row, LATE)
        queue.lanes.learn(Due(row.lane, row.organization_id, row.destination))
    asks = queue.lanes.asks()
    queue.lanes.answer(asks, slow, slow)
    assert [row.id for row in queue.start()] == ["s0", "s1"]
    queue.lanes.unreserve([other], [other])
    queue.end(first)
    assert queue.start() == [other]
    queue.end(slow[0])
    assert queue.start() == []
    queue.end(other)
    assert queue.start() == [kept_back]


def test_a_large_row_that_its_host_keeps_back_is_not_the_next_one() -> None:
    """Another row of that host has begun meanwhile."""
    queue = Queue(slots=4, per_destination=1)
    large = MOST_BYTES // 2 + 1
    first, kept_back, small, other = (
        a_row(str(lane), lane, "a", host, size=size)
        for lane, host, size in ((0, "h0", large), (1, "h1", large), (2, "h1", 1), (3, "h3", large))
    )
    queue.have(first, kept_back)
    assert queue.start() == [first]  # the other one is the next
    queue.have(small, other)
    assert queue.start() == [small]
    queue.end(first)
    assert queue.start() == [other]


def test_a_large_row_that_was_given_back_is_not_the_next_one() -> None:
    """Another worker sends it."""
    queue = Queue(slots=4)
    first, gone, other = (
        a_row(str(lane), lane, "a", f"h{lane}", size=MOST_BYTES // 2 + 1) for lane in range(3)
    )
    queue.have(first, gone)
    assert queue.start() == [first]
    assert queue.lanes.remove(lambda row: row.id == gone.id) == [gone]
    queue.have(other)
    queue.end(first)
    assert queue.start() == [other]


def test_a_lane_of_which_rows_were_given_back_is_not_claimed_ahead() -> None:
    """Its receiver does not answer; once a delivery of it ends, rows wait here again."""
    queue = Queue(slots=10, per_destination=2)
    queue.put("a", "p", 50)
    queue.claim()
    one, _ = queue.start()
    assert len(queue.lanes.remove(lambda _: True)) == 2
    assert queue.claim() == {}
    queue.end(one)
    assert queue.claim() == {"a": 3}


def test_a_notification_tells_of_lanes_that_have_had_rows() -> None:
    """A worker need not look for what it knows already."""
    queue = Queue()
    due = queue.put("a", "p", 1)
    queue.claim()
    (row,) = queue.start()
    queue.end(row)
    assert len(queue.lanes._lanes) == 0
    assert not queue.lanes.heard_of([Named(due.lane, "a", "h"), Named(due.lane + 1)])
    assert [ask[::3] for ask in queue.lanes.asks()] == [(due.lane, row.due_at - SINCE_MARGIN_MS)]
    assert queue.lanes.heard_of([Named(due.lane)])


def test_of_lanes_that_have_had_rows_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's memory does not grow with the lanes that it has ever seen."""
    monkeypatch.setattr("flowactions_plugin.queue.lanes.MOST_REMEMBERED", 2)
    queue = Queue()
    lanes = []
    for path in ("first", "second", "third"):
        lanes.append(queue.put("a", path, 1).lane)
        queue.claim()
        (row,) = queue.start()
        queue.end(row)
        queue.claim()
    assert [queue.lanes.heard_of([Named(lane)]) for lane in lanes] == [False, True, True]


def test_a_notification_that_says_whose_a_lane_is_saves_the_look() -> None:
    """Of a lane that the worker knows, it believes what it knows."""
    queue = Queue()
    assert queue.lanes.heard_of([Named(7, "a", "https://p:443")])
    assert queue.lanes.heard_of([Named(7, "b", "https://q:443")])
    assert [ask[:3] for ask in queue.lanes.asks()] == [(7, "a", "https://p:443")]


def test_what_was_just_enqueued_moves_no_search_back() -> None:
    """Neither in a lane that is known, nor in one that has had rows; of another, nothing is known."""
    queue = Queue()
    due = queue.put("a", "p", 1)._replace(since=AS_KNOWN)
    queue.claim()
    (row,) = queue.start()
    queue.lanes.learn(due)
    (ask,) = queue.lanes.asks()
    since = row.due_at - SINCE_MARGIN_MS
    assert ask.since == since
    queue.lanes.answer([ask], [], [])
    queue.end(row)
    queue.lanes.learn(due)
    assert [ask.since for ask in queue.lanes.asks()] == [since]
    another = Queue()
    another.lanes.learn(due)
    assert [ask.since for ask in another.lanes.asks()] == [EVER]


def test_a_lane_is_searched_from_where_the_last_claim_ended() -> None:
    """Or from where older rows were seen: PostgreSQL reads the index entries of ended rows."""
    queue = Queue(slots=2)
    due = queue.put("a", "p", 10)._replace(since=100)
    assert [ask.since for ask in queue.lanes.asks()] == [EVER]
    queue = Queue(slots=2)
    queue.rows[due.lane] = 10
    queue.record(due, ANSWER)
    queue.lanes.learn(due)
    queue.claim()
    queue.lanes.learn(due._replace(since=4500))
    queue.start()
    queue.end(queue.begun[0])
    (ask,) = queue.lanes.asks()
    assert ask.since == 5000 - SINCE_MARGIN_MS
    queue.lanes.fail([ask])
    queue.lanes.learn(due._replace(since=200))
    assert [ask.since for ask in queue.lanes.asks()] == [200]


@pytest.mark.parametrize("answer", ["rows", "no rows", "a failure"])
@pytest.mark.parametrize(("heard", "since"), [(EVER, EVER), (3000, 3000), (AS_KNOWN, None), (None, None)])
def test_what_is_heard_of_while_a_claim_is_on_its_way_is_searched(
    answer: str, heard: int | None, since: int | None
) -> None:
    """A host's transaction may have committed an older row than the claim returns."""
    queue = Queue()
    due = queue.put("a", "p", 1)
    queue.claim()
    queue.lanes.learn(due._replace(since=AS_KNOWN))
    (ask,) = queue.lanes.asks()
    if heard is not None:
        queue.lanes.learn(due._replace(since=heard))
    if answer == "a failure":
        queue.lanes.fail([ask])
    else:
        rows = [a_row("late", due.lane, "a", "h")] if answer == "rows" else []
        queue.lanes.answer([ask], rows, rows)
    if heard is None:
        queue.lanes.learn(due._replace(since=AS_KNOWN))
    (again,) = queue.lanes.asks()
    assert again.since == (ask.since if since is None else since)


def test_nothing_is_kept_of_hosts_without_lanes() -> None:
    """Names are new all the time."""
    queue = Queue()
    for number in range(5):
        queue.put(f"o{number}", "p", 1, host=f"h{number}")
    queue.claim()
    for row in queue.start():
        queue.end(row)
    assert len(queue.lanes._hosts) == len(queue.lanes._tallies) == 0


@pytest.mark.parametrize("of", ["organizations", "hosts", "paths"])
def test_lanes_that_a_claim_leaves_out_keep_their_turns(of: str) -> None:
    """Because it was for organizations that held nothing: the next one asks for theirs, in the same order."""
    queue = Queue(slots=4)

    def place(number: int) -> tuple[str, str, str]:
        organization, host, path = (f"{kind}{number}" if kind == of[0] else kind for kind in "ohp")
        return organization, host, path

    held = dict.fromkeys(place(number)[0] for number in range(4))
    for number, organization in enumerate(held):
        row = a_row(str(number), number, organization, f"held{number}")
        queue.record(row, ANSWER)
        assert queue.lanes.reserve(Due(number, organization, row.destination))
    queue.put("new", "p", 1, host="new")
    lanes = [queue.put(place(n)[0], place(n)[2], 3, host=place(n)[1]).lane for n in range(4)]
    first = queue.lanes.asks()
    assert [ask.organization_id for ask in first] == ["new"]
    queue.lanes.answer(first, [], [])
    assert [ask.lane for ask in queue.lanes.asks()] == lanes


def test_a_hundred_thousand_lanes_take_at_most_64_mib() -> None:
    """URLs with ids in their path make many lanes of few rows."""
    lanes = Lanes(100, 10, Standing(), float)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(100_000):
        lanes.learn(
            Due(
                number * 2**40 - 2**62,
                f"organization-{number % 1000}",
                "https://example.com:443",
                1_700_000_000_000 + number,
            )
        )
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(lanes._lanes) == 100_000
    assert after - before < 64 * 2**20
