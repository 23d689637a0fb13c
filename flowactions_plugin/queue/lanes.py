"""Lanes: what one organization has waiting for one endpoint. Which of them to claim from, which rows may begin. Pure, no I/O.

Each lane is of one of three kinds, by what `Standing` says of its endpoint: quick, slow, or unknown as long as it has no answer. A
receiver holds a slot for as long as it takes to answer, so slow ones would hold all slots before long, of any number. Therefore
slow lanes have a share of the slots together, slow and unknown ones a larger share (`Share`), and the rest is left to quick ones. The
same shares hold for the rows that a worker has claimed: it would claim no quick row beside a stock of slow ones.

Within its kind, each lane is in two queues: while rows may be due, in that of lanes to claim from, and while claimed rows wait, in
that of lanes to begin from (`Turns`). In both, organizations take turns, then the hosts of each, then the lanes of a host. A lane
that is at its own limit is in neither queue. So a free slot finds its row at once, whatever else waits.

Everything is counted where it is limited (`Tally`), as it happens. What a worker knows of due rows is a hint: it knows the lanes of
which it has heard, from its own enqueues, from notifications, from its looks into the queue. A lane of which a claim returned less than
was asked for is forgotten, and a look finds it again when rows are due.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from flowactions_plugin.queue.claimed import SMALL_BYTES, ClaimedDelivery
from flowactions_plugin.queue.notifier import Named
from flowactions_plugin.queue.rules import digest
from flowactions_plugin.queue.standing import MOST_REMEMBERED, SLOW_SECONDS, Standing
from flowactions_plugin.queue.turns import Group, Host, Kind, Lane, Share, Tally

AHEAD: Final = 2
"""Rows that a worker holds for each of its slots: what is claimed while requests are on their way. A worker that is killed leaves as
many until their leases end."""

LANE_AHEAD: Final = 8
"""Of these, so many may be of one organization at one destination for each that may be in flight there."""

MOST_LANES: Final = 200
"""How many lanes a claim asks at the most."""

MOST_OF_A_LANE: Final = 1000
"""How many rows a claim asks of a lane at the most: as many as a tick claims at the most."""

SINCE_MARGIN_MS: Final = 1000
"""So far before the oldest row of its last claim a lane is searched: rows are committed a while after their due time was written.
PostgreSQL keeps the index entries of rows that have ended until it vacuums; a claim from the oldest entry on would read all."""

EVER: Final = -(1 << 63)
"""The earliest due time: somebody may have written a negative one, to have a row sent at once."""

AS_KNOWN: Final = (1 << 63) - 1
"""In place of a due time: no earlier than the worker knows of the lane already."""

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
        since: no row of it is due for longer, Unix milliseconds, or `AS_KNOWN`.
        rows: how many rows a claim asks for at the most.
    """

    lane: int
    organization_id: str
    destination: str
    since: int = EVER
    rows: int = 1


class Lanes:
    """The lanes that a worker knows, the rows that it holds, and who gets the next slot.

    Limits:

    - an organization has `per_destination` rows in flight at one destination, and so has a lane; a lane that has never answered, or
      has timed out since, has one;
    - slow lanes have three quarters of the slots together, slow and unknown ones nine tenths; each at least one slot, and from
      three slots on, one is left to quick lanes and one to unknown ones;
    - while others wait, an organization has half of the slots, and so has a destination over all organizations;
    - large rows in flight take `MOST_BYTES`. The first that does not fit is the next large one to begin.

    Args:
        slots: deliveries in flight at once.
        per_destination: of these, how many of one organization at one destination.
        standing: what is known of receivers.
        clock: seconds, which do not pass while this process stands still.

    Attributes:
        total: the tally of all rows.
        slow: that of slow lanes.
        is_full: whether the last claim left out rows of known lanes because too many are held.
    """

    def __init__(
        self, slots: int, per_destination: int, standing: Standing, clock: Callable[[], float]
    ) -> None:
        self._per_destination = per_destination
        self._half = max(1, slots // 2)
        self._standing = standing
        self._clock = clock
        stock, doubtful = AHEAD * slots, max(1, slots * 9 // 10)
        slow = max(1, min(slots * 3 // 4, doubtful - 1))
        self.total = Share(slots, stock)
        self.slow, either = (Share(most, min(AHEAD * most, stock - 1)) for most in (slow, doubtful))
        self._quick = Kind(self.total)
        self._kinds: dict[bool | None, Kind] = {
            False: self._quick,
            None: Kind(either, self.total),
            True: Kind(self.slow, either, self.total),
        }
        self._claim_turns, self._begin_turns = deque(self._kinds.values()), deque(self._kinds.values())
        self._lanes: dict[int, Lane] = {}
        self._hosts: dict[tuple[str, str], Host] = {}
        # What no host belongs to is not counted any more.
        self._tallies: WeakValueDictionary[tuple[str | None, str | None], Tally] = WeakValueDictionary()
        self._forgotten: dict[int, Due] = {}  # what lanes are of which a notification may tell again
        self._stocked: dict[Lane, None] = {}  # those of which rows wait
        self._seen = 0
        self._begun: dict[str, tuple[Lane, float]] = {}  # what is not late yet, the first first
        self._surplus: list[ClaimedDelivery] = []
        self._large_bytes = 0
        self._next_large: Lane | None = None
        self._first_alone = False  # whether the last claim was of organizations that held nothing
        self.is_full = False

    @property
    def has_room(self) -> bool:
        """Whether a claim is to ask for rows of known lanes, and more of them may be held."""
        return any(kind.due.lanes and kind.may_claim() for kind in self._claim_turns)

    # What is known of a lane

    def _known(self, due: Due) -> Lane:
        """Return a lane, which is known from now on."""
        lane = self._lanes.get(due.lane)
        if lane is None:
            key = (due.organization_id, due.destination)
            host = self._hosts.get(key)
            if host is None:
                organization = self._tallies.setdefault(
                    (key[0], None), Tally()
                )  # that of alerts has an empty id
                destination = self._tallies.setdefault((None, key[1]), Tally())
                host = self._hosts[key] = Host(key, organization, destination)
            host.lanes += 1
            group = self._group(host, self._standing.is_slow(due.lane))
            since = due.since
            if since == AS_KNOWN:
                since = self._forgotten[due.lane].since if due.lane in self._forgotten else EVER
            lane = self._lanes[due.lane] = Lane(due.lane, group, since, group.ahead, self._limit(due.lane))
        return lane

    def _limit(self, lane: int) -> int:
        """Return how many rows of a lane may be in flight."""
        return self._per_destination if self._standing.answers(lane) else 1

    def _group(self, host: Host, is_slow: bool | None) -> Group:
        """Return the group of a host's lanes of which this is known."""
        group = host.groups.get(is_slow)
        if group is None:
            kind = self._lent(host) if is_slow is None else self._kinds[is_slow]
            group = host.groups[is_slow] = Group(host, kind, AHEAD if is_slow is False else 1)
            group.become(kind)
        return group

    def _lent(self, host: Host) -> Kind:
        """Return the kind that a host lends to its lanes of which nothing is known."""
        return self._kinds[True if host.late else self._standing.is_slow_host(host.key)]

    def _judge(self, lane: Lane) -> None:
        """Have a lane be of the kind that it is now, and those to which its host lends one."""
        host, before = lane.group.host, lane.group
        group = self._group(host, True if lane.late else self._standing.is_slow(lane.number))
        lane.limit = self._limit(lane.number)
        if group is not before:
            for is_queued, turns in ((lane.in_due, before.kind.due), (lane.in_ready, before.kind.ready)):
                if is_queued:
                    turns.remove(lane)
            lane.in_due = lane.in_ready = False
            lane.group, lane.ahead = group, group.ahead
            _recount(lane, (before, *before.kind.shares), (group, *group.kind.shares))
        self._settle(lane)
        lent = host.groups.get(None)
        if lent is not None and lent.kind is not (kind := self._lent(host)):
            lent.kind.due.move(lent, kind.due)
            lent.kind.ready.move(lent, kind.ready)
            _recount(lent, lent.kind.shares, kind.shares)
            lent.become(kind)
            for each in list(kind.ready.lanes.get(lent, ())):
                self._settle(each)

    def judge_late(self) -> None:
        """Have the lanes be slow of which something is in flight for too long."""
        now = self._clock()
        while self._begun:
            row_id, (lane, at) = next(iter(self._begun.items()))
            if now - at <= SLOW_SECONDS:
                break
            del self._begun[row_id]
            lane.late += 1
            lane.group.host.late += 1
            self._judge(lane)

    def _settle(self, lane: Lane) -> None:
        """Have a lane hold what it may, and wait for its turns exactly where it can use them; forget it if nothing of it is left."""
        group, most = lane.group, lane.limit * lane.ahead
        if lane.rows and group.kind is not self._quick:
            beyond = max(lane.held - most, group.held - self._per_destination)
            if beyond > 0:
                self._surplus += self._remove(lane, list(lane.rows)[-beyond:])
        waits = lane.is_due and lane.held < most
        if waits is not lane.in_due:
            (group.kind.due.add if waits else group.kind.due.remove)(lane)
            lane.in_due = waits
        waits = lane.waiting > 0
        if waits is not lane.in_ready:
            (group.kind.ready.add if waits else group.kind.ready.remove)(lane)
            lane.in_ready = waits
        if not lane.is_due and not lane.held:
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        """Forget a lane, but not what it is."""
        host = lane.group.host
        del self._lanes[lane.number]
        self._forgotten.pop(lane.number, None)
        self._forgotten[lane.number] = _due(lane)
        if len(self._forgotten) > MOST_REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
        host.lanes -= 1
        if not host.lanes:
            del self._hosts[host.key]
            for group in host.groups.values():
                group.tallies = ()  # they refer to each other
            host.groups.clear()

    def _hold(self, lane: Lane, rows: int, waiting: int = 0) -> None:
        """Count rows of a lane that are held from now on, and those that wait for a slot; less if the numbers are negative."""
        for tally in (lane, *lane.group.tallies):
            tally.held += rows
            tally.waiting += waiting

    # What to claim

    def learn(self, due: Due) -> None:
        """Record that rows of a lane are due, or may be."""
        lane = self._known(due)
        lane.since = min(lane.since, due.since)
        if lane.asked:
            lane.due_again = True
        elif not lane.is_due:
            lane.is_due = True
            self._settle(lane)

    def heard_of(self, lanes: Iterable[Named]) -> bool:
        """Record that rows of lanes are due; return whether it is known of all of them what they are."""
        known = True
        for named in lanes:
            number, organization_id, destination = named
            lane = self._lanes.get(number)
            due = self._forgotten.get(number) if lane is None else _due(lane)
            if due is None and organization_id is not None:
                due = Due(number, organization_id, destination)
            if due is None:
                known = False
            else:
                self.learn(due)
        return known

    def asks(self) -> list[Due]:
        """Return what to claim now: organizations in turn, and a row of each lane before the second of any.

        `answer` says what was found.
        """
        self.judge_late()
        asked: dict[Lane, int] = {}
        first: dict[Lane, int] = {}
        idle: set[Tally] = set()
        while len(asked) < MOST_LANES and (lane := self._next_to_claim()):
            organization = lane.group.host.organization
            if not organization.held:
                idle.add(organization)
            if organization in idle:
                first[lane] = 1
            asked[lane] = 1
            lane.in_due = lane.is_due = lane.due_again = False
            self._hold(lane, 1)
        # A claim of few rows is quick. So organizations that hold no row have one for themselves, but never two in a row.
        self._first_alone = not self._first_alone and 0 < len(first) < len(asked)
        if self._first_alone:
            for lane in reversed([lane for lane in asked if lane not in first]):
                self._hold(lane, -1)
                lane.in_due = lane.is_due = True
                lane.group.kind.due.add(lane, first=True)
            asked = first
        self._ask_more(asked)
        for kind in self._claim_turns:
            kind.due.examined = 0
        self.is_full = not self._quick.may_claim() and any(kind.due.lanes for kind in self._claim_turns)
        asks = [_due(lane, rows) for lane, rows in asked.items()]
        for lane in asked:
            lane.since = AS_KNOWN
        return asks

    def _next_to_claim(self) -> Lane | None:
        """Return the lane that is asked next: kinds take turns, too."""
        for _ in range(len(self._claim_turns)):
            kind = self._claim_turns[0]
            self._claim_turns.rotate(-1)
            if kind.due.lanes and kind.may_claim() and (lane := kind.due.take(self._wants)):
                return lane
        return None

    def _ask_more(self, asked: dict[Lane, int]) -> None:
        """Ask lanes for more rows than one: each organization for as many, and each of its lanes."""
        lanes = [lane for lane in asked if lane.held < lane.limit * lane.ahead]
        while lanes and self._quick.may_claim():
            organizations = Counter([lane.group.host.organization for lane in lanes])
            each = (self.total.stock - self.total.held) // len(organizations)
            wanting = []
            for lane in lanes:
                rows = min(
                    max(1, each // organizations[lane.group.host.organization]),
                    lane.limit * lane.ahead - lane.held,
                    MOST_OF_A_LANE - asked[lane],
                    self._room(lane.group),
                )
                if rows > 0:
                    asked[lane] += rows
                    self._hold(lane, rows)
                    wanting.append(lane)
            lanes = wanting

    def _wants(self, group: Group) -> bool:
        """Return whether this worker should hold one more row of a group."""
        return self._room(group) > 0

    def _room(self, group: Group) -> int:
        """Return how many more rows of a group this worker should hold."""
        host, kind, total = group.host, group.kind, self.total
        room = min(total.stock - total.held, LANE_AHEAD * self._per_destination - host.held)
        if kind is not self._quick:
            room = min(
                room, self._per_destination - group.held, *[share.stock - share.held for share in kind.shares]
            )
        for owner in (host.organization, host.destination):
            if owner.held < total.held:  # others hold rows, too
                room = min(room, AHEAD * self._half - owner.held)
        return room

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
        found = _by_lane(rows)
        taken = found if len(rows) == len(admitted) else _by_lane(admitted)
        for due in asks:
            lane, given = self._lanes[due.lane], found.get(due.lane, [])
            since = due.since
            if given:
                since = max(since, given[0].due_at - SINCE_MARGIN_MS)
                lane.due_again = lane.due_again or len(given) >= due.rows
            lane.since = min(lane.since, since)
            self._answered(lane, due.rows, taken.get(due.lane, ()))

    def fail(self, asks: Sequence[Due]) -> None:
        """Record that a claim has failed: its lanes stay due."""
        for due in asks:
            lane = self._lanes[due.lane]
            lane.since, lane.due_again = min(lane.since, due.since), True
            self._answered(lane, due.rows)

    def reserve(self, due: Due) -> bool:
        """Keep a place for a row that is being enqueued, which would begin at once or soon; `unreserve` ends it.

        There is none where rows may be due that have waited longer.
        """
        lane = self._known(due)
        kind = lane.group.kind
        may = not (lane.is_due or lane.due_again or self.is_full) and lane.held < lane.limit * lane.ahead
        may = may and (kind is self._quick or (not kind.ready.lanes and kind.may_begin()))
        if may := may and self._room(lane.group) > 0:
            self._hold(lane, 1)
        self._settle(lane)
        return may

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
            lane.rows.extend(rows)
            self._stocked[lane] = None
        self._hold(lane, len(rows) - asked, len(rows))
        lane.is_due = lane.is_due or lane.due_again
        self._settle(lane)

    # What begins

    def start(self, most: int) -> list[ClaimedDelivery]:
        """Return the rows that begin now, by turns.

        Args:
            most: how many at the most.
        """
        begun: list[ClaimedDelivery] = []
        if not self._stocked:
            return begun
        now = self._clock()
        while len(begun) < most and (lane := self._next_to_begin()):
            assert lane.rows  # noqa: S101  it is ready
            row = lane.rows.popleft()
            if not lane.rows:
                del self._stocked[lane]
                lane.in_ready = False
            for tally in (lane, *lane.group.tallies):
                tally.waiting -= 1
                tally.in_flight += 1
            self._begun[row.id] = (lane, now)
            if row.size > SMALL_BYTES:
                self._large_bytes += row.size
            begun.append(row)
        return begun

    def _next_to_begin(self) -> Lane | None:
        """Return the lane that begins next: kinds take turns, too."""
        for _ in range(len(self._begin_turns)):
            kind = self._begin_turns[0]
            self._begin_turns.rotate(-1)
            kind.ready.examined = 0
            if kind.ready.lanes and kind.may_begin():
                lane = kind.ready.take(self._may_begin, self._fits, _has_more)
                if lane is not None:
                    return lane
        return None

    def _may_begin(self, group: Group) -> bool:
        """Return whether one more row of a group may be in flight."""
        host = group.host
        if host.in_flight >= self._per_destination:
            return False
        # While others wait, too:
        waiting, half = self.total.waiting, self._half
        owner = host.organization
        if owner.in_flight >= half and owner.waiting < waiting:
            return False
        owner = host.destination
        return owner.in_flight < half or owner.waiting >= waiting

    def _fits(self, lane: Lane) -> bool:
        """Return whether the first row of a lane may begin if it is large; the first that does not fit is the next one."""
        assert lane.rows  # noqa: S101  it is ready
        size, other = lane.rows[0].size, self._next_large
        if size <= SMALL_BYTES:
            return True
        if other is not None and other is not lane and other.rows:
            group = other.group
            if group.kind.may_begin() and self._may_begin(group):  # nothing else keeps it back
                return False
        fits = not self._large_bytes or self._large_bytes + size <= MOST_BYTES
        self._next_large = None if fits else lane
        return fits

    def end(self, row: ClaimedDelivery) -> None:
        """Free the slot of a delivery, whose outcome is in the standing of its lane."""
        lane = self._lanes[row.lane]
        is_late = self._begun.pop(row.id, None) is None
        if is_late:
            lane.late -= 1
            lane.group.host.late -= 1
        if row.size > SMALL_BYTES:
            self._large_bytes -= row.size
        if lane.group.ahead > 1:
            lane.ahead += 1
        for tally in (lane, *lane.group.tallies):
            tally.held -= 1
            tally.in_flight -= 1
        if is_late or self._standing.changes != self._seen:
            self._seen = self._standing.changes
            self._judge(lane)
        else:
            self._settle(lane)

    def surplus(self) -> list[ClaimedDelivery]:
        """Return rows that should not wait here, once: of lanes that became slow, which another worker may send."""
        surplus, self._surplus = self._surplus, []
        return surplus

    def remove(self, which: Callable[[ClaimedDelivery], bool]) -> list[ClaimedDelivery]:
        """Remove rows that have not begun, and return them, and the surplus.

        Of their lanes, none is claimed ahead until a delivery ends.
        """
        removed = self.surplus()
        for lane in list(self._stocked):
            rows = [row for row in lane.rows or () if which(row)]
            if rows:
                lane.ahead = 1
                removed += self._remove(lane, rows)
                self._settle(lane)
        return removed

    def _remove(self, lane: Lane, rows: list[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Remove rows of a lane, and return them."""
        gone = set(map(id, rows))
        lane.rows = deque(row for row in lane.rows or () if id(row) not in gone)
        if not lane.rows:
            del self._stocked[lane]
        self._hold(lane, -len(rows), -len(rows))
        return rows

    def waiting_rows(self) -> Iterator[ClaimedDelivery]:
        """Yield the rows that have not begun."""
        for lane in self._stocked:
            yield from lane.rows or ()


def _due(lane: Lane, rows: int = 1) -> Due:
    """Return what a claim asks of a lane."""
    organization, destination = lane.group.host.key
    return Due(lane.number, organization, destination, lane.since, rows)


def _recount(part: Tally, before: Iterable[Tally], now: Iterable[Tally]) -> None:
    """Count what was counted in some tallies in others."""
    for tally in before:
        tally.count(part, -1)
    for tally in now:
        tally.count(part, 1)


def _has_more(lane: Lane) -> bool:
    """Return whether a second row of a lane waits."""
    return lane.waiting > 1


def _by_lane(rows: Sequence[ClaimedDelivery]) -> dict[int, list[ClaimedDelivery]]:
    """Return rows by their lanes."""
    found: dict[int, list[ClaimedDelivery]] = {}
    for row in rows:
        found.setdefault(row.lane, []).append(row)
    return found
