"""Lanes: what one organization has waiting for one endpoint. Which of them to claim from, which rows may begin. Pure, no I/O.

A worker knows the lanes of which it has heard that rows are due: from its own enqueues, from notifications, from its looks
into the queue. What it knows is a hint. A lane of which a claim returned less than was asked for is forgotten, and a look finds
it again when rows are due.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from flowactions_plugin.queue.claimed import SMALL_BYTES
from flowactions_plugin.queue.limits import InLane, Standing

AHEAD: Final = 2
"""Rows that a worker holds for each row that may be in flight: what is claimed while requests are on their way. A worker that is
killed leaves as many until their leases end."""

MOST_LANES: Final = 200
"""How many lanes a claim asks at the most."""

SINCE_MARGIN_MS: Final = 1000
"""So far before the oldest row of its last claim a lane is searched: rows are committed a while after their due time was written.
PostgreSQL keeps the index entries of rows that have ended until it vacuums; a claim from the oldest entry on would read all."""

MOST_EXAMINED: Final = 1000
"""How many due lanes are examined for a claim at the most: most of them may be at a limit."""

MOST_FORGOTTEN: Final = 20_000
"""Of how many lanes without rows it is known what they are."""

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
    path = re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0].partition("/")[2]
    digest = hashlib.sha256()
    for part in (organization_id.encode(), destination.encode(), path.encode()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


class Claimed(InLane, Protocol):
    """A row as a claim returns it: its lane, about how many bytes it takes, and since when it was due."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def due_at(self) -> int: ...  # noqa: D102


Row = TypeVar("Row", bound=Claimed)


class Due(NamedTuple):
    """A lane in which rows are due.

    Attributes:
        lane: its number.
        organization_id: whose it is.
        destination: scheme, host and port of its endpoint.
        since: no row of it is due for longer, Unix milliseconds.
    """

    lane: int
    organization_id: str
    destination: str
    since: int = 0


class Ask(NamedTuple):
    """What a claim asks of a lane: so many rows at the most."""

    due: Due
    rows: int


class Load:
    """How many rows there are of each organization, at each destination, and of each organization at each destination."""

    __slots__ = ("destinations", "organizations", "pairs")

    def __init__(self) -> None:
        self.organizations: dict[str, int] = {}
        self.destinations: dict[str, int] = {}
        self.pairs: dict[tuple[str, str], int] = {}

    def add(self, row: InLane, number: int = 1) -> None:
        """Count rows of an organization at a destination; a negative number takes them off."""
        organization, destination = row.organization_id, row.destination
        _count(self.organizations, organization, number)
        _count(self.destinations, destination, number)
        _count(self.pairs, (organization, destination), number)


def _count(counts: dict[Any, int], key: Hashable, number: int) -> None:
    found = counts.get(key, 0) + number
    if found:
        counts[key] = found
    else:
        counts.pop(key, None)


class Lane(Generic[Row]):
    """A lane that the worker knows.

    Attributes:
        due: what it is, and since when rows are due.
        is_due: whether a claim is to ask for its rows.
        asked: how many rows a claim on its way asks for, and how many are being enqueued for this worker.
        in_flight: how many of its rows are.
        waiting: rows that have not begun.
        due_again: whether something became due while a claim asked.
        moves: whether rows are claimed ahead: not after some had to be given back, until a delivery ends.
    """

    __slots__ = ("asked", "due", "due_again", "in_flight", "is_due", "moves", "waiting")

    def __init__(self, due: Due) -> None:
        self.due = due
        self.is_due = False
        self.asked = 0
        self.in_flight = 0
        self.waiting: deque[Row] | None = None
        self.due_again = False
        self.moves = True

    @property
    def held(self) -> int:
        """How many of its rows this worker has, or is getting."""
        return self.asked + self.in_flight + len(self.waiting or ())


class Lanes(Generic[Row]):
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
        in_flight: how many deliveries are.
        waiting: how many rows have not begun.
        is_full: whether rows of known lanes were not asked for because too many are held.
    """

    def __init__(self, slots: int, per_destination: int, standing: Standing) -> None:
        self._slots = slots
        self._per_destination = per_destination
        self._half = max(1, slots // 2)
        self._standing = standing
        self._lanes: dict[int, Lane[Row]] = {}
        self._forgotten: dict[int, Due] = {}  # what lanes are of which a notification may tell again
        # By organization, lanes in the order of their turns. A turn moves both to the end.
        self._due: OrderedDict[str, deque[Lane[Row]]] = OrderedDict()
        self._ready: OrderedDict[str, deque[Lane[Row]]] = OrderedDict()
        self._number_due = 0
        self._held = Load()
        self._flying = Load()
        self._waiting_at: Counter[str] = Counter()
        self._silent: set[int] = set()  # lanes that do not answer, and of which a row is held
        self._large_bytes = 0
        self._next_large: Lane[Row] | None = None
        self.in_flight = 0
        self.waiting = 0
        self._asked = 0
        self.is_full = False

    def __len__(self) -> int:
        """Return how many lanes are known."""
        return len(self._lanes)

    @property
    def expected(self) -> int:
        """How many rows claims ask for, and enqueues write, for this worker."""
        return self._asked

    @property
    def has_room(self) -> bool:
        """Whether rows are due, and more of them may be held."""
        return self._number_due > 0 and self._free() > 0

    def _free(self) -> int:
        return AHEAD * self._slots - self.in_flight - self.waiting - self._asked

    # What to claim

    def learn(self, due: Due) -> None:
        """Record that rows of a lane are due, or may be."""
        lane = self._lanes.get(due.lane)
        if lane is None:
            lane = self._lanes[due.lane] = Lane(due)
        elif due.since < lane.due.since:
            lane.due = lane.due._replace(since=due.since)
        if lane.asked:
            lane.due_again = True
        elif not lane.is_due:
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

    def _make_due(self, lane: Lane[Row]) -> None:
        lane.is_due = True
        self._due.setdefault(lane.due.organization_id, deque()).append(lane)
        self._number_due += 1

    def asks(self) -> list[Ask]:
        """Return what to claim now, by turns; `answer` says what was found."""
        candidates = self._candidates()
        room = self._free()
        asked: dict[int, int] = {}
        # Organizations get the same number of rows, as far as they want them, and so do the lanes of each.
        wanting = {organization: deque(lanes) for organization, lanes in candidates.items()}
        share = 1
        while wanting and room > 0:
            for organization, lanes in list(wanting.items()):
                left = min(share, room)
                for _ in range(len(lanes)):
                    lane = lanes.popleft()
                    rows = min(self._wanted(lane), -(-left // (len(lanes) + 1)))
                    if rows > 0:
                        lanes.append(lane)
                        asked[lane.due.lane] = asked.get(lane.due.lane, 0) + rows
                        self._ask(lane, rows)
                        left, room = left - rows, room - rows
                    if left <= 0:
                        break
                if not lanes:
                    del wanting[organization]
            share *= 2
        for organization, examined in reversed(candidates.items()):
            kept = [lane for lane in examined if lane.due.lane not in asked]
            self._number_due -= len(examined) - len(kept)
            if kept:  # it is their turn next
                self._due.setdefault(organization, deque()).extendleft(reversed(kept))
                self._due.move_to_end(organization, last=False)
        self.is_full = room <= 0 and self._number_due > 0
        return [Ask(self._lanes[lane].due, rows) for lane, rows in asked.items()]

    def _candidates(self) -> dict[str, list[Lane[Row]]]:
        """Take the next lanes of which rows are wanted from those that are due, by organization."""
        found: dict[str, list[Lane[Row]]] = {}
        number = 0
        for _ in range(min(self._number_due, MOST_EXAMINED)):
            organization, lanes = next(iter(self._due.items()))
            lane = lanes.popleft()
            if self._wanted(lane) > 0:
                found.setdefault(organization, []).append(lane)
                number += 1
            else:
                lanes.append(lane)
            if lanes:
                self._due.move_to_end(organization)
            else:
                del self._due[organization]
            if number >= MOST_LANES:
                break
        return found

    def _ask(self, lane: Lane[Row], rows: int) -> None:
        lane.is_due, lane.due_again = False, False
        lane.asked += rows
        self._asked += rows
        self._hold(lane, lane.due, rows)

    def _wanted(self, lane: Lane[Row]) -> int:
        """Return how many more rows of a lane this worker should hold."""
        organization, destination = lane.due.organization_id, lane.due.destination
        held = self._held
        here = held.pairs.get((organization, destination), 0)
        if not self._standing.answers(lane.due):
            if lane.held:
                return 0
            may = len(self._silent) < self._half or organization not in held.organizations
            return min(1, self._per_destination - here) if may or self._standing.lends(lane.due) else 0
        most = AHEAD * self._per_destination
        wanted = min((most if lane.moves else self._per_destination) - lane.held, most - here)
        if len(held.organizations) > 1:
            wanted = min(wanted, AHEAD * self._half - held.organizations.get(organization, 0))
        if len(held.destinations) > 1:
            wanted = min(wanted, AHEAD * self._half - held.destinations.get(destination, 0))
        return wanted

    def answer(self, asks: Sequence[Ask], rows: Sequence[Row], admitted: Sequence[Row]) -> None:
        """Take what a claim has returned: `start` begins it.

        A lane that gave as many as were asked for stays due; another one is forgotten until it is heard of.

        Args:
            asks: what was asked for.
            rows: what was returned, the oldest first.
            admitted: what of it is to be sent.
        """
        found = Counter(row.lane for row in rows)
        oldest = {row.lane: row.due_at for row in reversed(rows)}
        for row in admitted:
            self._place(row)
        placed = Counter(row.lane for row in admitted)
        for due, number in asks:
            lane = self._lanes[due.lane]
            lane.asked -= number
            self._asked -= number
            self._hold(lane, due, placed[due.lane] - number)
            if found[due.lane] >= number:
                lane.due = due._replace(since=max(due.since, oldest[due.lane] - SINCE_MARGIN_MS))
            if (found[due.lane] >= number or lane.due_again) and not lane.is_due:
                self._make_due(lane)
            self._forget(lane)

    def fail(self, asks: Sequence[Ask]) -> None:
        """Record that a claim has failed: its lanes stay due."""
        for due, number in asks:
            lane = self._lanes[due.lane]
            self._unask(lane, number)
            if not lane.is_due:
                self._make_due(lane)

    def reserve(self, due: Due) -> bool:
        """Keep a place for a row that is being enqueued, which would begin at once or soon; `unreserve` ends it.

        There is none where rows may be due that have waited longer.
        """
        lane = self._lanes.get(due.lane)
        if self.is_full or self._free() <= 0 or (lane is not None and (lane.is_due or lane.due_again)):
            return False
        lane = lane or Lane(due)
        answers = self._standing.answers(due)
        if self._wanted(lane) <= 0 or (not answers and (self.waiting or self.in_flight >= self._slots)):
            return False
        self._lanes[due.lane] = lane
        lane.asked += 1
        self._asked += 1
        self._hold(lane, due)
        return True

    def unreserve(self, row: Claimed) -> None:
        """Release the place of `reserve`."""
        lane = self._lanes[row.lane]
        self._unask(lane, 1)
        if lane.due_again and not lane.asked and not lane.is_due:
            self._make_due(lane)
        self._forget(lane)

    def _unask(self, lane: Lane[Row], number: int) -> None:
        lane.asked -= number
        self._asked -= number
        self._hold(lane, lane.due, -number)

    def _hold(self, lane: Lane[Row], row: Row | Due, number: int = 1) -> None:
        """Count rows of a lane that are held, or no longer."""
        self._held.add(row, number)
        if lane.held and not self._standing.answers(row) and not self._standing.lends(row):
            self._silent.add(lane.due.lane)
        else:
            self._silent.discard(lane.due.lane)

    def _forget(self, lane: Lane[Row] | None) -> None:
        """Forget a lane of which nothing is known to be due, and nothing is held."""
        if lane is not None and not lane.is_due and not lane.held:
            self._lanes.pop(lane.due.lane, None)
            self._forgotten.pop(lane.due.lane, None)
            self._forgotten[lane.due.lane] = lane.due
            if len(self._forgotten) > MOST_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]

    # What begins

    def insert(self, row: Row) -> None:
        """Take a row that was claimed."""
        self._hold(self._place(row), row)

    def _place(self, row: Row) -> Lane[Row]:
        """Have a row wait in its lane."""
        lane = self._lanes.get(row.lane)
        if lane is None:
            lane = self._lanes[row.lane] = Lane(Due(row.lane, row.organization_id, row.destination))
        if lane.waiting is None:
            lane.waiting = deque()
        if not lane.waiting:
            self._ready.setdefault(lane.due.organization_id, deque()).append(lane)
        lane.waiting.append(row)
        self.waiting += 1
        self._waiting_at[row.destination] += 1
        return lane

    def start(self, most: int) -> list[Row]:
        """Return the rows that begin now, by turns.

        Args:
            most: how many at the most.
        """
        begun: list[Row] = []
        while len(begun) < most and self.in_flight < self._slots:
            row = self._next()
            if row is None:
                break
            begun.append(row)
        return begun

    def _next(self) -> Row | None:
        for organization in list(self._ready) if len(self._ready) > 1 else tuple(self._ready):
            lanes = self._ready[organization]
            self._ready.move_to_end(organization)
            for _ in range(len(lanes)):
                lane = lanes.popleft()
                may = self._may_begin(lane)
                row = self._take(lane) if may else None
                if lane.waiting:
                    lanes.append(lane)
                elif not lanes:
                    del self._ready[organization]
                if row is not None:
                    return row
        return None

    def _may_begin(self, lane: Lane[Row]) -> bool:
        assert lane.waiting  # noqa: S101  it is ready
        row = lane.waiting[0]
        organization, destination = row.organization_id, row.destination
        flying = self._flying
        if lane.in_flight >= (self._per_destination if self._standing.answers(row) else 1):
            return False
        if flying.pairs.get((organization, destination), 0) >= self._per_destination:
            return False
        if len(self._ready) > 1 and flying.organizations.get(organization, 0) >= self._half:
            return False
        if len(self._waiting_at) > 1 and flying.destinations.get(destination, 0) >= self._half:
            return False
        return row.size <= SMALL_BYTES or self._fits(lane, row.size)

    def _fits(self, lane: Lane[Row], size: int) -> bool:
        """Return whether a large row may begin; the first that does not fit is the next one."""
        if self._next_large is not None and self._next_large is not lane and self._next_large.waiting:
            return False
        fits = not self._large_bytes or self._large_bytes + size <= MOST_BYTES
        self._next_large = None if fits else lane
        return fits

    def _take(self, lane: Lane[Row]) -> Row:
        """Begin the first row of a lane."""
        assert lane.waiting  # noqa: S101  it is ready
        row = lane.waiting.popleft()
        self._left(row)
        lane.in_flight += 1
        self.in_flight += 1
        self._flying.add(row)
        if row.size > SMALL_BYTES:
            self._large_bytes += row.size
        return row

    def _left(self, row: Row) -> None:
        self.waiting -= 1
        self._waiting_at[row.destination] -= 1
        if not self._waiting_at[row.destination]:
            del self._waiting_at[row.destination]

    def end(self, row: Row) -> list[Row]:
        """Free the slot of a delivery, whose outcome is in the standing of its lane.

        Returns:
            Rows that should not wait here: others of a lane that has begun to hang, which another worker may send.
        """
        lane = self._lanes[row.lane]
        lane.in_flight -= 1
        lane.moves = True
        self.in_flight -= 1
        self._flying.add(row, -1)
        self._hold(lane, row, -1)
        if row.size > SMALL_BYTES:
            self._large_bytes -= row.size
        surplus = [] if self._standing.answers(row) else self._remove(lane, list(lane.waiting or ())[1:])
        self._forget(lane)
        return surplus

    def remove(self, which: Callable[[Row], bool]) -> list[Row]:
        """Remove rows that have not begun, and return them."""
        removed: list[Row] = []
        for lanes in list(self._ready.values()):
            for lane in list(lanes):
                given = [row for row in lane.waiting or () if which(row)]
                lane.moves = lane.moves and not given
                removed += self._remove(lane, given)
        return removed

    def _remove(self, lane: Lane[Row], rows: list[Row]) -> list[Row]:
        if not rows or lane.waiting is None:
            return rows
        gone = set(map(id, rows))
        lane.waiting = deque(row for row in lane.waiting if id(row) not in gone)
        for row in rows:
            self._left(row)
            self._hold(lane, row, -1)
        if not lane.waiting:
            organization = lane.due.organization_id
            self._ready[organization].remove(lane)
            if not self._ready[organization]:
                del self._ready[organization]
        self._forget(lane)
        return rows

    def waiting_rows(self) -> Iterator[Row]:
        """Yield the rows that have not begun."""
        for lanes in self._ready.values():
            for lane in lanes:
                yield from lane.waiting or ()
