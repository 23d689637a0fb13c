"""Lanes: what one organization has waiting for one endpoint. Which of them to claim from, which rows may begin. Pure, no I/O.

A worker knows the lanes of which it has heard that rows are due: from its own enqueues, from notifications, from its looks
into the queue. What it knows is a hint. A lane of which a claim returned less than was asked for is forgotten, and a look finds
it again when rows are due.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import SMALL_BYTES, ClaimedDelivery
from flowactions_plugin.queue.rules import digest, failure_class

AHEAD: Final = 2
"""Rows that a worker holds for each row that may be in flight: what is claimed while requests are on their way. A worker that is
killed leaves as many until their leases end."""

MOST_LANES: Final = 200
"""How many lanes a claim asks at the most."""

MOST_OF_A_LANE: Final = 1000
"""How many rows a claim asks of a lane at the most: as many as a tick claims at the most."""

SINCE_MARGIN_MS: Final = 1000
"""So far before the oldest row of its last claim a lane is searched: rows are committed a while after their due time was written.
PostgreSQL keeps the index entries of rows that have ended until it vacuums; a claim from the oldest entry on would read all."""

EVER: Final = -(1 << 63)
"""The earliest due time: somebody may have written a negative one, to have a row sent at once."""

MOST_EXAMINED: Final = 1000
"""How many lanes are examined at the most to find some whose turn it is: most of them may be at a limit."""

MOST_REMEMBERED: Final = 20_000
"""Of how many lanes and destinations a worker remembers whether they answer, and of how many lanes without rows what they are. One
that is forgotten has not answered yet."""

PURGED: Final = ""
"""What a purge writes in place of what workers limit, where the organization may be among it. Each worker then forgets it."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""Of the larger rows, so many bytes are in flight, or one row."""


def lane_of(organization_id: str, destination: str, url: str) -> int:
    """Return the lane of a row, a signed integer of 64 bits: of its organization, and scheme, host, port and path of its URL.

    It is a part of a cryptographic hash: with a fast hash, one organization could aim at a lane of another.

    Args:
        organization_id: the row's.
        destination: scheme, host and port of its URL.
        url: the whole URL.
    """
    return number_of(organization_id, destination, path_of(url))


def path_of(url: str) -> str:
    """Return the path of a URL, without the slash at its begin."""
    return re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0].partition("/")[2]


def number_of(*parts: str) -> int:
    """Return 64 bits of a cryptographic hash of texts, as a signed integer."""
    return int.from_bytes(digest(*(part.encode() for part in parts))[:8], "big", signed=True)


class Due(NamedTuple):
    """A lane in which rows are due, and what a claim asks of it.

    Attributes:
        lane: its number.
        organization_id: whose it is.
        destination: scheme, host and port of its endpoint.
        since: no row of it is due for longer, Unix milliseconds.
        rows: how many rows a claim asks for at the most.
    """

    lane: int
    organization_id: str
    destination: str
    since: int = EVER
    rows: int = 1


class Standing:
    """Which lanes have answered, and which hang; nothing is known when the worker starts.

    A lane *answers* after an attempt was answered, with any status, until one times out. Any other failure, like a refused
    connection, changes nothing. A destination that has answered an organization lends it its standing for its new lanes.
    """

    def __init__(self) -> None:
        self._answered: dict[int | tuple[str, str], None] = {}
        self._hanging: dict[int, tuple[str, str, int]] = {}

    def answers(self, row: Due | ClaimedDelivery) -> bool:
        """Return whether a lane answers, as far as it is known."""
        return row.lane in self._answered

    def lends(self, row: Due | ClaimedDelivery) -> bool:
        """Return whether a lane of which nothing is known is expected to answer: its destination has, to its organization."""
        return row.lane not in self._hanging and (row.organization_id, row.destination) in self._answered

    def record(self, row: Due | ClaimedDelivery, outcome: Outcome) -> None:
        """Record the outcome of an attempt."""
        host = (row.organization_id, row.destination)
        if outcome.status_code is not None:
            self._hanging.pop(row.lane, None)
            self._answered[row.lane] = self._answered[host] = None
            while len(self._answered) > MOST_REMEMBERED:
                del self._answered[next(iter(self._answered))]
        elif failure_class(outcome) == "timeout":
            self._answered.pop(row.lane, None)
            self._answered.pop(host, None)
            self._hanging.setdefault(row.lane, (*host, outcome.started_at + outcome.duration_ms))
            while len(self._hanging) > MOST_REMEMBERED:
                del self._hanging[next(iter(self._hanging))]

    def limited(self) -> dict[str, dict[str, int]]:
        """Return each organization's destinations that have one attempt at a time because attempts time out, and since when.

        Times are Unix milliseconds. Any thread may call it.
        """
        found: dict[str, dict[str, int]] = {}
        for organization, destination, since in self._hanging.copy().values():
            own = found.setdefault(organization, {})
            own[destination] = min(since, own.get(destination, since))
        return found

    def forget(self) -> None:
        """Forget what hangs, as at the start: an organization was purged."""
        self._hanging.clear()


class Tally:
    """How many rows of something this worker has, or is getting.

    Attributes:
        asked: those that claims on their way ask for, and those that are being enqueued for this worker.
        waiting: those that have not begun.
        in_flight: those that have.
    """

    __slots__ = ("__weakref__", "asked", "in_flight", "waiting")

    def __init__(self) -> None:
        self.asked = 0
        self.waiting = 0
        self.in_flight = 0

    @property
    def held(self) -> int:
        """How many there are in all."""
        return self.asked + self.waiting + self.in_flight


class Lane(Tally):
    """A lane that the worker knows.

    Attributes:
        due: what it is, and since when rows are due.
        organization: the tally of its organization.
        destination: the tally of its destination, over all organizations.
        both: the tally of its organization at its destination.
        is_due: whether a claim is to ask for its rows.
        due_again: whether something became due while a claim asked.
        moves: whether rows are claimed ahead: not after some had to be given back, until a delivery ends.
        rows: those that wait; ``None`` before the first one.
    """

    __slots__ = ("both", "destination", "due", "due_again", "is_due", "moves", "organization", "rows")

    def __init__(self, due: Due, organization: Tally, destination: Tally, both: Tally) -> None:
        super().__init__()
        self.due = due
        self.organization = organization
        self.destination = destination
        self.both = both
        self.is_due = False
        self.due_again = False
        self.moves = True
        self.rows: deque[ClaimedDelivery] | None = None


class Turns:
    """Lanes that wait for their turns: organizations take turns, and so do the lanes of each."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Lane]] = OrderedDict()  # none is empty

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes

    def add(self, lane: Lane, *, first: bool = False) -> None:
        """Add a lane; its turn is the last one, or the first."""
        lanes = self._lanes.setdefault(lane.due.organization_id, deque())
        if first:
            lanes.appendleft(lane)
            self._lanes.move_to_end(lane.due.organization_id, last=False)
        else:
            lanes.append(lane)

    def remove(self, lane: Lane) -> None:
        """Remove a lane."""
        lanes = self._lanes[lane.due.organization_id]
        lanes.remove(lane)
        if not lanes:
            del self._lanes[lane.due.organization_id]

    def take(self, may: Callable[[Lane], bool]) -> Iterator[Lane]:
        """Remove lanes and yield them, each as its turn comes.

        Args:
            may: whether a lane can use its turn. If not, the next lane of its organization has the turn.
        """
        examined = in_vain = 0
        while in_vain < len(self._lanes):
            organization, lanes = next(iter(self._lanes.items()))
            self._lanes.move_to_end(organization)
            in_vain += 1
            for _ in range(len(lanes)):
                examined += 1
                if examined > MOST_EXAMINED:
                    return
                lane = lanes.popleft()
                if not may(lane):
                    lanes.append(lane)
                    continue
                if not lanes:
                    del self._lanes[organization]
                in_vain = 0
                yield lane
                break


class Lanes:
    """The lanes that a worker knows, the rows that it holds, and who gets the next slot.

    Organizations take turns; within one, lanes take turns. Limits:

    - an organization has `per_destination` rows in flight at one destination, and so has a lane;
    - a lane that does not answer has one in flight. Those of destinations that have not answered the organization either have
      half of the slots together; an organization that has nothing in flight may always begin one;
    - while others wait, an organization has half of the slots, and so has a destination over all organizations;
    - large rows in flight take `MOST_BYTES`. The first that does not fit is the next large one to begin.

    Args:
        slots: deliveries in flight at once.
        per_destination: of these, how many of one organization at one destination.
        standing: which lanes answer.

    Attributes:
        total: the tally of all rows.
        is_full: whether rows of known lanes were not asked for because too many are held.
    """

    def __init__(self, slots: int, per_destination: int, standing: Standing) -> None:
        self._slots = slots
        self._per_destination = per_destination
        self._half = max(1, slots // 2)
        self._standing = standing
        self._lanes: dict[int, Lane] = {}
        self._forgotten: dict[int, Due] = {}  # what lanes are of which a notification may tell again
        # What no lane belongs to is not counted any more.
        self._tallies: WeakValueDictionary[tuple[str | None, str | None], Tally] = WeakValueDictionary()
        self._due: Turns = Turns()
        self._ready: Turns = Turns()
        self._silent: set[Lane] = set()  # those that do not answer, and of which a row is held
        self._large_bytes = 0
        self._next_large: Lane | None = None
        self._first_alone = False  # whether the last claim was of organizations that held nothing
        self.total = Tally()
        self.is_full = False

    @property
    def has_room(self) -> bool:
        """Whether a claim is to ask for rows of known lanes, and more rows may be held."""
        return bool(self._due) and self._room() > 0

    def _room(self) -> int:
        return AHEAD * self._slots - self.total.held

    def _lane(self, due: Due) -> Lane:
        """Return a lane that is known, or a new one, which is not known by this alone."""
        found = self._lanes.get(due.lane)
        if found is not None:
            return found
        organization, destination = due.organization_id, due.destination  # that of alerts has an empty id
        keys = ((organization, None), (None, destination), (organization, destination))
        return Lane(due, *(self._tallies.setdefault(key, Tally()) for key in keys))

    def _count(self, lane: Lane, *, asked: int = 0, waiting: int = 0, in_flight: int = 0) -> None:
        """Count rows of a lane."""
        for each in (lane, lane.organization, lane.destination, lane.both, self.total):
            if asked:
                each.asked += asked
            if waiting:
                each.waiting += waiting
            if in_flight:
                each.in_flight += in_flight
        if lane.held and not self._standing.answers(lane.due) and not self._standing.lends(lane.due):
            self._silent.add(lane)
        else:
            self._silent.discard(lane)

    # What to claim

    def learn(self, due: Due) -> None:
        """Record that rows of a lane are due, or may be."""
        lane = self._lanes[due.lane] = self._lane(due)
        if due.since < lane.due.since:
            lane.due = lane.due._replace(since=due.since)
        if lane.asked:
            lane.due_again = True
        else:
            self._make_due(lane)

    def heard_of(self, lanes: Iterable[int]) -> bool:
        """Record that rows of lanes are due; return whether it is known of all of them what they are."""
        known = True
        for each in lanes:
            lane = self._lanes.get(each)
            due = self._forgotten.get(each) if lane is None else lane.due
            if due is None:
                known = False
            else:
                self.learn(due)
        return known

    def _make_due(self, lane: Lane) -> None:
        if not lane.is_due:
            lane.is_due = True
            self._due.add(lane)

    def asks(self) -> list[Due]:
        """Return what to claim now: organizations in turn, and a row of each lane before the second of any.

        `answer` says what was found.
        """
        room = max(0, self._room())
        lanes = list(islice(self._due.take(self._is_wanted), min(room, MOST_LANES)))
        # A claim of few rows is quick. So organizations that hold no row have one for themselves, but never two in a row.
        first = [] if self._first_alone else [lane for lane in lanes if not lane.organization.held]
        self._first_alone = 0 < len(first) < len(lanes)
        wanting: Turns = Turns()
        for lane in first or lanes:
            wanting.add(lane)
        asked: dict[Lane, int] = {}
        for lane in islice(wanting.take(self._is_wanted), room):
            asked[lane] = asked.get(lane, 0) + 1
            self._count(lane, asked=1)
            if asked[lane] < MOST_OF_A_LANE:
                wanting.add(lane)
        for lane in reversed(lanes):
            if lane in asked:
                lane.is_due = lane.due_again = False
            else:
                self._due.add(lane, first=True)
        self.is_full = self._room() <= 0 and bool(self._due)
        return [lane.due._replace(rows=rows) for lane, rows in asked.items()]

    def _is_wanted(self, lane: Lane) -> bool:
        """Return whether this worker should hold one more row of a lane."""
        both, limit = lane.both.held, self._per_destination
        if not self._standing.answers(lane.due):
            may = len(self._silent) < self._half or not lane.organization.held or self._standing.lends(lane.due)
            return may and not lane.held and both < limit
        if lane.held >= (AHEAD * limit if lane.moves else limit) or both >= AHEAD * limit:
            return False
        most, everything = AHEAD * self._half, self.total.held
        # While others hold rows, too.
        return not (most <= lane.organization.held < everything or most <= lane.destination.held < everything)

    def answer(
        self, asks: Sequence[Due], rows: Sequence[ClaimedDelivery], admitted: Sequence[ClaimedDelivery]
    ) -> None:
        """Take what a claim has returned: `start` begins it.

        A lane that gave as many as were asked for stays due; another one is forgotten until it is heard of.

        Args:
            asks: what was asked for.
            rows: what was returned, the oldest first.
            admitted: what of it is to be sent.
        """
        found, taken = _by_lane(rows), _by_lane(admitted)
        for due in asks:
            lane, given = self._lanes[due.lane], found.get(due.lane, [])
            if len(given) >= due.rows:
                lane.due = lane.due._replace(since=max(due.since, given[0].due_at - SINCE_MARGIN_MS))
                lane.due_again = True
            self._answered(lane, due.rows, taken.get(due.lane, ()))

    def fail(self, asks: Sequence[Due]) -> None:
        """Record that a claim has failed: its lanes stay due."""
        for due in asks:
            self._lanes[due.lane].due_again = True
            self._answered(self._lanes[due.lane], due.rows)

    def reserve(self, due: Due) -> bool:
        """Keep a place for a row that is being enqueued, which would begin at once or soon; `unreserve` ends it.

        There is none where rows may be due that have waited longer.
        """
        lane = self._lane(due)
        if self.is_full or self._room() <= 0 or lane.is_due or lane.due_again or not self._is_wanted(lane):
            return False
        if not self._standing.answers(due) and (self.total.waiting or self.total.in_flight >= self._slots):
            return False
        self._lanes[due.lane] = lane
        self._count(lane, asked=1)
        return True

    def unreserve(self, reserved: Sequence[ClaimedDelivery], taken: Sequence[ClaimedDelivery]) -> None:
        """End the places of `reserve`, and have those of the rows wait that were claimed."""
        ids = {row.id for row in taken}
        for row in reserved:
            self._answered(self._lanes[row.lane], 1, [row] if row.id in ids else ())

    def _answered(self, lane: Lane, asked: int, rows: Sequence[ClaimedDelivery] = ()) -> None:
        """Record the answer to a claim or a reservation: the rows wait, and the lane is due again, or forgotten if it is empty."""
        if rows:
            if lane.rows is None:
                lane.rows = deque()
            if not lane.rows:
                self._ready.add(lane)
            lane.rows.extend(rows)
        self._count(lane, asked=-asked, waiting=len(rows))
        if lane.due_again:
            self._make_due(lane)
        self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        """Forget a lane of which nothing is known to be due, and nothing is held."""
        if not lane.is_due and not lane.held:
            self._lanes.pop(lane.due.lane, None)
            self._forgotten.pop(lane.due.lane, None)
            self._forgotten[lane.due.lane] = lane.due
            if len(self._forgotten) > MOST_REMEMBERED:
                del self._forgotten[next(iter(self._forgotten))]

    # What begins

    def start(self, most: int) -> list[ClaimedDelivery]:
        """Return the rows that begin now, by turns.

        Args:
            most: how many at the most.
        """
        begun: list[ClaimedDelivery] = []
        free = max(0, min(most, self._slots - self.total.in_flight))
        for lane in islice(self._ready.take(self._may_begin), free):
            assert lane.rows  # noqa: S101  it is ready
            row = lane.rows.popleft()
            if lane.rows:
                self._ready.add(lane)
            self._count(lane, waiting=-1, in_flight=1)
            if row.size > SMALL_BYTES:
                self._large_bytes += row.size
            begun.append(row)
        return begun

    def _may_begin(self, lane: Lane) -> bool:
        assert lane.rows  # noqa: S101  it is ready
        row = lane.rows[0]
        if lane.in_flight >= (self._per_destination if self._standing.answers(row) else 1):
            return False
        if lane.both.in_flight >= self._per_destination:
            return False
        for each in (lane.organization, lane.destination):
            if each.in_flight >= self._half and each.waiting < self.total.waiting:  # others wait, too
                return False
        return row.size <= SMALL_BYTES or self._fits(lane, row.size)

    def _fits(self, lane: Lane, size: int) -> bool:
        """Return whether a large row may begin; the first that does not fit is the next one."""
        if self._next_large is not None and self._next_large is not lane and self._next_large.rows:
            return False
        fits = not self._large_bytes or self._large_bytes + size <= MOST_BYTES
        self._next_large = None if fits else lane
        return fits

    def end(self, row: ClaimedDelivery) -> list[ClaimedDelivery]:
        """Free the slot of a delivery, whose outcome is in the standing of its lane.

        Returns:
            Rows that should not wait here: others of a lane that has begun to hang, which another worker may send.
        """
        lane = self._lanes[row.lane]
        lane.moves = True
        self._count(lane, in_flight=-1)
        if row.size > SMALL_BYTES:
            self._large_bytes -= row.size
        surplus = [] if self._standing.answers(row) else self._remove(lane, list(lane.rows or ())[1:])
        self._forget(lane)
        return surplus

    def remove(self, which: Callable[[ClaimedDelivery], bool]) -> list[ClaimedDelivery]:
        """Remove rows that have not begun, and return them."""
        removed: list[ClaimedDelivery] = []
        for lane in list(self._ready):
            rows = [row for row in lane.rows or () if which(row)]
            lane.moves = lane.moves and not rows
            removed += self._remove(lane, rows)
        return removed

    def _remove(self, lane: Lane, rows: list[ClaimedDelivery]) -> list[ClaimedDelivery]:
        if rows and lane.rows is not None:
            gone = set(map(id, rows))
            lane.rows = deque(row for row in lane.rows if id(row) not in gone)
            self._count(lane, waiting=-len(rows))
            if not lane.rows:
                self._ready.remove(lane)
            self._forget(lane)
        return rows

    def waiting_rows(self) -> Iterator[ClaimedDelivery]:
        """Yield the rows that have not begun."""
        for lane in self._ready:
            yield from lane.rows or ()


def _by_lane(rows: Sequence[ClaimedDelivery]) -> dict[int, list[ClaimedDelivery]]:
    found: dict[int, list[ClaimedDelivery]] = {}
    for row in rows:
        found.setdefault(row.lane, []).append(row)
    return found
