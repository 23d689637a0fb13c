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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from flowactions_plugin.queue.claimed import SMALL_BYTES, ClaimedDelivery
from flowactions_plugin.queue.rules import digest
from flowactions_plugin.queue.standing import MOST_REMEMBERED, SLOW_SECONDS, Standing

AHEAD: Final = 2
"""Rows that a worker holds for each of its slots: what is claimed while requests are on their way. A worker that is killed leaves as
many until their leases end."""

LANE_AHEAD: Final = 8
"""Of these, so many may be of one quick lane for each that it may have in flight."""

MOST_LANES: Final = 200
"""How many lanes a claim asks at the most, and for how many rows it asks one lane."""

SINCE_MARGIN_MS: Final = 1000
"""So far before the oldest row of its last claim a lane is searched: rows are committed a while after their due time was written.
PostgreSQL keeps the index entries of rows that have ended until it vacuums; a claim from the oldest entry on would read all."""

MOST_EXAMINED: Final = 1000
"""How many hosts are examined at the most to find some whose turn it is: most of them may be at a limit."""

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
    path = re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0].partition("/")[2]
    return int.from_bytes(
        digest(organization_id.encode(), destination.encode(), path.encode())[:8], "big", signed=True
    )


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
    since: int = 0
    rows: int = 1


class Tally:
    """How many rows of something this worker has, or is getting.

    Attributes:
        held: all of them.
        waiting: those that wait for a slot.
        in_flight: those that have begun.
    """

    __slots__ = ("__weakref__", "held", "in_flight", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting = 0
        self.in_flight = 0

    @property
    def asked(self) -> int:
        """How many claims on their way ask for, or are being enqueued for this worker."""
        return self.held - self.waiting - self.in_flight

    def count(self, other: Tally, sign: int) -> None:
        """Add the numbers of another tally, or subtract them."""
        self.held += sign * other.held
        self.waiting += sign * other.waiting
        self.in_flight += sign * other.in_flight


class Share(Tally):
    """The rows that have a part of the slots together, and the same part of what a worker holds.

    Attributes:
        slots: how many may be in flight.
        stock: how many may be held.
    """

    __slots__ = ("slots", "stock")

    def __init__(self, slots: int, stock: int) -> None:
        super().__init__()
        self.slots = slots
        self.stock = stock


class Kind:
    """Quick, unknown or slow.

    Attributes:
        shares: those in which its rows are counted.
        due: its lanes to claim from.
        ready: its lanes to begin from.
    """

    def __init__(self, *shares: Share) -> None:
        self.shares = shares
        self.due = Turns()
        self.ready = Turns()

    def room(self) -> int:
        """Return how many more rows may be held."""
        return min([share.stock - share.held for share in self.shares])

    def free(self) -> int:
        """Return how many more rows may be in flight."""
        return min([share.slots - share.in_flight for share in self.shares])


class Host(Tally):
    """A destination of an organization.

    Attributes:
        key: organization and destination.
        organization: the tally of the organization.
        destination: the tally of the destination, over all organizations.
        groups: its lanes, by whether they are slow. Of those under ``None``, nothing is known but what is known of the host.
        lanes: how many lanes it has.
        late: how many of its deliveries are in flight for longer than `SLOW_SECONDS`.
    """

    __slots__ = ("destination", "groups", "key", "lanes", "late", "organization")

    def __init__(self, key: tuple[str, str], organization: Tally, destination: Tally) -> None:
        super().__init__()
        self.key = key
        self.organization = organization
        self.destination = destination
        self.groups: dict[bool | None, Group] = {}
        self.lanes = 0
        self.late = 0


class Group(Tally):
    """The lanes of a host that are of one kind, for one reason.

    Attributes:
        host: the host.
        kind: the kind.
        ahead: how many times its limit a lane of it may hold at first.
    """

    __slots__ = ("ahead", "host", "kind")

    def __init__(self, host: Host, kind: Kind, ahead: int) -> None:
        super().__init__()
        self.host = host
        self.kind = kind
        self.ahead = ahead


class Lane(Tally):
    """A lane that the worker knows.

    Attributes:
        number: its number.
        group: where it belongs.
        since: no row of it is due for longer, Unix milliseconds.
        limit: how many of its rows may be in flight.
        ahead: how many times its limit it may hold.
        late: how many are in flight for longer than `SLOW_SECONDS`.
        is_due: whether a claim is to ask for its rows.
        due_again: whether something became due while a claim asked.
        in_due: whether it is queued to be claimed from.
        in_ready: whether it is queued to be begun from.
        rows: those that wait; ``None`` before the first one.
    """

    __slots__ = (
        "ahead",
        "due_again",
        "group",
        "in_due",
        "in_ready",
        "is_due",
        "late",
        "limit",
        "number",
        "rows",
        "since",
    )

    def __init__(self, number: int, group: Group, since: int) -> None:
        super().__init__()
        self.number = number
        self.group = group
        self.since = since
        self.limit = 1
        self.ahead = group.ahead
        self.late = 0
        self.is_due = self.due_again = self.in_due = self.in_ready = False
        self.rows: deque[ClaimedDelivery] | None = None


class Turns:
    """Lanes that wait for their turns: organizations take turns, then the hosts of each, then the lanes of a host."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[Group]] = OrderedDict()  # no queue is empty
        self._lanes: dict[Group, deque[Lane]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def of(self, group: Group) -> Sequence[Lane]:
        """Return the lanes of a group."""
        return self._lanes.get(group, ())

    def add(self, lane: Lane, *, first: bool = False) -> None:
        """Add a lane; its turn is the last one, or the first."""
        lanes = self._lanes.get(lane.group)
        if lanes is None:
            lanes = self._lanes[lane.group] = deque()
            self._add(lane.group)
        if first:
            lanes.appendleft(lane)
            self._groups.move_to_end(lane.group.host.key[0], last=False)
        else:
            lanes.append(lane)

    def remove(self, lane: Lane) -> None:
        """Remove a lane."""
        lanes = self._lanes[lane.group]
        lanes.remove(lane)
        if not lanes:
            self._remove(lane.group)

    def move(self, group: Group, other: Turns) -> None:
        """Have the lanes of a group wait for other turns."""
        if lanes := self._lanes.get(group):
            self._remove(group)
            other._lanes[group] = lanes
            other._add(group)

    def take(
        self, is_open: Callable[[], int], may: Callable[[Group], int], fits: Callable[[Lane], bool]
    ) -> Iterator[Lane]:
        """Remove lanes and yield them, each as its turn comes.

        Args:
            is_open: whether any lane can use a turn.
            may: whether lanes of a group can. If not, the next group of the organization has the turn.
            fits: whether a lane can.
        """
        examined = in_vain = 0
        while in_vain < len(self._groups) and is_open() > 0:
            organization, groups = next(iter(self._groups.items()))
            self._groups.move_to_end(organization)
            in_vain += 1
            for _ in range(len(groups)):
                examined += 1
                if examined > MOST_EXAMINED:
                    return
                group = groups[0]
                groups.rotate(-1)
                lane = self._pop(group, fits) if may(group) > 0 else None
                if lane is not None:
                    in_vain = 0
                    yield lane
                    break

    def _pop(self, group: Group, fits: Callable[[Lane], bool]) -> Lane | None:
        """Remove the next lane of a group that can use a turn, and return it."""
        lanes = self._lanes[group]
        for _ in range(len(lanes)):
            lane = lanes.popleft()
            if fits(lane):
                if not lanes:
                    self._remove(group)
                return lane
            lanes.append(lane)
        return None

    def _add(self, group: Group) -> None:
        """Add a group to its organization."""
        organization = group.host.key[0]
        if organization not in self._groups:
            self._groups[organization] = deque()
        self._groups[organization].append(group)

    def _remove(self, group: Group) -> None:
        """Remove a group from its organization."""
        del self._lanes[group]
        organization = group.host.key[0]
        groups = self._groups[organization]
        if groups[-1] is group:  # as it is after its turn
            groups.pop()
        else:
            groups.remove(group)
        if not groups:
            del self._groups[organization]


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
        is_full: whether rows of known lanes were not asked for because too many are held.
    """

    def __init__(
        self, slots: int, per_destination: int, standing: Standing, clock: Callable[[], float]
    ) -> None:
        self._per_destination = per_destination
        self._half = max(1, slots // 2)
        self._standing = standing
        self._clock = clock
        stock = AHEAD * slots
        doubtful = max(1, slots * 9 // 10)
        slow = max(1, min(slots * 3 // 4, doubtful - 1))
        self.total = Share(slots, stock)
        self.slow = Share(slow, min(AHEAD * slow, stock - 1))
        uncertain = Share(doubtful, min(AHEAD * doubtful, stock - 1))
        self._quick, self._unknown = Kind(self.total), Kind(uncertain, self.total)
        self._slow = Kind(self.slow, uncertain, self.total)
        self._kinds = (self._quick, self._unknown, self._slow)
        self._claim_turns, self._begin_turns = deque(self._kinds), deque(self._kinds)
        self._lanes: dict[int, Lane] = {}
        self._hosts: dict[tuple[str, str], Host] = {}
        # What no host belongs to is not counted any more.
        self._tallies: WeakValueDictionary[tuple[str | None, str | None], Tally] = WeakValueDictionary()
        self._forgotten: dict[int, Due] = {}  # what lanes are of which a notification may tell again
        self._stocked: dict[Lane, None] = {}  # those of which rows wait
        self._begun: dict[str, tuple[Lane, float]] = {}  # what is not late yet, the first first
        self._surplus: list[ClaimedDelivery] = []
        self._large_bytes = 0
        self._next_large: Lane | None = None
        self._first_alone = False  # whether the last claim was of organizations that held nothing
        self.is_full = False

    @property
    def has_room(self) -> bool:
        """Whether a claim is to ask for rows of known lanes, and more of them may be held."""
        return any(kind.due and kind.room() > 0 for kind in self._kinds)

    # What is known

    def _known(self, due: Due) -> Lane:
        """Return a lane, which is known from now on."""
        lane = self._lanes.get(due.lane)
        if lane is None:
            key = (due.organization_id, due.destination)
            host = self._hosts.get(key)
            if host is None:
                owners = (
                    (due.organization_id, None),
                    (None, due.destination),
                )  # that of alerts has an empty id
                host = self._hosts[key] = Host(
                    key, *(self._tallies.setdefault(each, Tally()) for each in owners)
                )
            host.lanes += 1
            group = self._group(host, self._standing.is_slow(due.lane))
            lane = self._lanes[due.lane] = Lane(due.lane, group, due.since)
            self._judge(lane)
        return lane

    def _forget(self, lane: Lane) -> None:
        """Forget a lane of which nothing is known to be due, and nothing is held."""
        if lane.is_due or lane.held:
            return
        host = lane.group.host
        del self._lanes[lane.number]
        self._forgotten.pop(lane.number, None)
        self._forgotten[lane.number] = Due(lane.number, *host.key, lane.since)
        if len(self._forgotten) > MOST_REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
        host.lanes -= 1
        if not host.lanes:
            del self._hosts[host.key]
            host.groups.clear()  # they refer to it

    def _group(self, host: Host, is_slow: bool | None) -> Group:
        """Return the group of a host's lanes of which this is known."""
        group = host.groups.get(is_slow)
        if group is None:
            kind = self._lent(host) if is_slow is None else self._slow if is_slow else self._quick
            group = host.groups[is_slow] = Group(host, kind, AHEAD if is_slow is False else 1)
        return group

    def _lent(self, host: Host) -> Kind:
        """Return the kind that a host lends to its lanes of which nothing is known."""
        is_slow = True if host.late else self._standing.is_slow_host(host.key)
        return self._unknown if is_slow is None else self._slow if is_slow else self._quick

    def _judge(self, lane: Lane) -> None:
        """Have a lane be of the kind that it is now."""
        is_slow = True if lane.late else self._standing.is_slow(lane.number)
        group = self._group(lane.group.host, is_slow)
        lane.limit = self._per_destination if self._standing.answers(lane.number) else 1
        if group is not lane.group:
            self._unqueue(lane)
            for tally in (lane.group, *lane.group.kind.shares):
                tally.count(lane, -1)
            lane.group = group
            for tally in (group, *group.kind.shares):
                tally.count(lane, 1)
            lane.ahead = group.ahead
        if is_slow is not False:
            self._trim(lane)
        self._queue(lane)

    def _judge_host(self, host: Host) -> None:
        """Have the lanes of which nothing is known be of the kind that their host lends now."""
        group = host.groups.get(None)
        if group is None:
            return
        before, kind = group.kind, self._lent(host)
        if kind is before:
            return
        before.due.move(group, kind.due)
        before.ready.move(group, kind.ready)
        for share in before.shares:
            share.count(group, -1)
        for share in kind.shares:
            share.count(group, 1)
        group.kind = kind
        if kind is not self._quick:
            for lane in list(kind.ready.of(group)):
                self._trim(lane)
                self._queue(lane)
                self._forget(lane)

    def _judge_late(self) -> float:
        """Have the lanes be slow of which something is in flight for too long; return the time."""
        now = self._clock()
        while self._begun:
            row_id, (lane, at) = next(iter(self._begun.items()))
            if now - at <= SLOW_SECONDS:
                break
            del self._begun[row_id]
            lane.late += 1
            lane.group.host.late += 1
            self._judge(lane)
            self._judge_host(lane.group.host)
        return now

    def _queue(self, lane: Lane) -> None:
        """Have a lane wait for its turns exactly where it can use them."""
        kind = lane.group.kind
        wants = lane.is_due and lane.held < lane.limit * lane.ahead
        if wants is not lane.in_due:
            (kind.due.add if wants else kind.due.remove)(lane)
            lane.in_due = wants
        wants = lane.waiting > 0 and lane.in_flight < lane.limit
        if wants is not lane.in_ready:
            (kind.ready.add if wants else kind.ready.remove)(lane)
            lane.in_ready = wants

    def _unqueue(self, lane: Lane) -> None:
        """Have a lane wait for no turns."""
        kind = lane.group.kind
        if lane.in_due:
            kind.due.remove(lane)
        if lane.in_ready:
            kind.ready.remove(lane)
        lane.in_due = lane.in_ready = False

    def _count(self, lane: Lane, held: int, waiting: int, in_flight: int) -> None:
        """Count rows of a lane wherever they are limited."""
        group = lane.group
        host = group.host
        for tally in (lane, group, host, host.organization, host.destination, *group.kind.shares):
            tally.held += held
            tally.waiting += waiting
            tally.in_flight += in_flight

    # What to claim

    def learn(self, due: Due) -> None:
        """Record that rows of a lane are due, or may be."""
        lane = self._known(due)
        lane.since = min(lane.since, due.since)
        if lane.asked:
            lane.due_again = True
        elif not lane.is_due:
            lane.is_due = True
            self._queue(lane)

    def heard_of(self, lanes: Iterable[int]) -> bool:
        """Record that rows of lanes are due; return whether it is known of all of them what they are."""
        known = True
        for number in lanes:
            lane = self._lanes.get(number)
            due = self._forgotten.get(number) if lane is None else Due(number, *lane.group.host.key, lane.since)
            if due is None:
                known = False
            else:
                self.learn(due)
        return known

    def asks(self) -> list[Due]:
        """Return what to claim now: organizations in turn, and a row of each lane before the second of any.

        `answer` says what was found.
        """
        self._judge_late()
        turns = {kind: kind.due.take(kind.room, self._room, _any) for kind in self._kinds if kind.due}
        asked: dict[Lane, int] = {}
        first: dict[Lane, int] = {}
        idle: set[Tally] = set()
        for lane in islice(_in_turn(self._claim_turns, turns), MOST_LANES):
            organization = lane.group.host.organization
            if not organization.held:
                idle.add(organization)
            if organization in idle:
                first[lane] = 1
            asked[lane] = 1
            lane.in_due = lane.is_due = lane.due_again = False
            self._count(lane, 1, 0, 0)
        # A claim of few rows is quick. So organizations that hold no row have one for themselves, but never two in a row.
        self._first_alone = not self._first_alone and 0 < len(first) < len(asked)
        if self._first_alone:
            for lane in reversed([lane for lane in asked if lane not in first]):
                self._count(lane, -1, 0, 0)
                lane.in_due = lane.is_due = True
                lane.group.kind.due.add(lane, first=True)
            asked = first
        self._ask_more(asked)
        self.is_full = self.total.held >= self.total.stock and any(kind.due for kind in self._kinds)
        return [Due(lane.number, *lane.group.host.key, lane.since, rows) for lane, rows in asked.items()]

    def _ask_more(self, asked: dict[Lane, int]) -> None:
        """Ask lanes for more rows than one: each organization for as many, and each of its lanes."""
        lanes = list(asked)
        while lanes:
            organizations = Counter([lane.group.host.organization for lane in lanes])
            each = (self.total.stock - self.total.held) // len(organizations)
            wanting = []
            for lane in lanes:
                rows = min(
                    max(1, each // organizations[lane.group.host.organization]),
                    lane.limit * lane.ahead - lane.held,
                    MOST_LANES - asked[lane],
                    self._room(lane.group),
                )
                if rows > 0:
                    asked[lane] += rows
                    self._count(lane, rows, 0, 0)
                    wanting.append(lane)
            lanes = wanting

    def _room(self, group: Group) -> int:
        """Return how many more rows of a group this worker should hold."""
        host, kind = group.host, group.kind
        room = min(kind.room(), LANE_AHEAD * self._per_destination - host.held)
        if kind is not self._quick:
            room = min(room, self._per_destination - self._doubtful(host))
        for owner in (host.organization, host.destination):
            if owner.held < self.total.held:  # others hold rows, too
                room = min(room, AHEAD * self._half - owner.held)
        return room

    def _doubtful(self, host: Host) -> int:
        """Return how many rows are held of a host's lanes that are not quick."""
        return sum([group.held for group in host.groups.values() if group.kind is not self._quick])

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
            lane, given = self._lanes[due.lane], found.get(due.lane, ())
            if len(given) >= due.rows:
                lane.since = max(due.since, given[0].due_at - SINCE_MARGIN_MS)
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
        lane = self._known(due)
        kind = lane.group.kind
        may = not (self.is_full or lane.is_due or lane.due_again) and lane.held < lane.limit * lane.ahead
        may = may and self._room(lane.group) > 0
        if may and (kind is self._quick or (not kind.ready and kind.free() > 0)):
            self._count(lane, 1, 0, 0)
            return True
        self._forget(lane)
        return False

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
        self._count(lane, len(rows) - asked, len(rows), 0)
        lane.is_due = lane.is_due or lane.due_again
        if lane.group.kind is not self._quick:
            self._trim(lane)
        self._queue(lane)
        self._forget(lane)

    # What begins

    def start(self, most: int) -> list[ClaimedDelivery]:
        """Return the rows that begin now, by turns.

        Args:
            most: how many at the most.
        """
        begun: list[ClaimedDelivery] = []
        if not self._stocked:
            return begun
        now = self._judge_late()
        turns = {kind: kind.ready.take(kind.free, self._free, self._fits) for kind in self._kinds if kind.ready}
        for lane in islice(_in_turn(self._begin_turns, turns), max(0, most)):
            assert lane.rows  # noqa: S101  it is ready
            row = lane.rows.popleft()
            if not lane.rows:
                del self._stocked[lane]
            self._count(lane, 0, -1, 1)
            lane.in_ready = False
            self._queue(lane)
            self._begun[row.id] = (lane, now)
            if row.size > SMALL_BYTES:
                self._large_bytes += row.size
            begun.append(row)
        return begun

    def _free(self, group: Group) -> int:
        """Return how many more rows of a group may be in flight."""
        host = group.host
        for owner in (host.organization, host.destination):
            if owner.in_flight >= self._half and owner.waiting < self.total.waiting:  # others wait, too
                return 0
        return self._per_destination - host.in_flight

    def _fits(self, lane: Lane) -> bool:
        """Return whether the first row of a lane may begin if it is large; the first that does not fit is the next one."""
        assert lane.rows  # noqa: S101  it is ready
        size = lane.rows[0].size
        if size <= SMALL_BYTES:
            return True
        other = self._next_large
        if other is not None and other is not lane and other.in_ready:
            # Not one that its share keeps back.
            if other.group.kind.free() > 0 and self._free(other.group) > 0:
                return False
        fits = not self._large_bytes or self._large_bytes + size <= MOST_BYTES
        self._next_large = None if fits else lane
        return fits

    def end(self, row: ClaimedDelivery) -> None:
        """Free the slot of a delivery, whose outcome is in the standing of its lane."""
        lane = self._lanes[row.lane]
        host = lane.group.host
        if self._begun.pop(row.id, None) is None:
            lane.late -= 1
            host.late -= 1
        if row.size > SMALL_BYTES:
            self._large_bytes -= row.size
        self._count(lane, -1, 0, -1)
        self._judge(lane)
        self._judge_host(host)
        if lane.group.ahead > 1:
            lane.ahead = min(LANE_AHEAD, lane.ahead + 1)
            self._queue(lane)
        self._forget(lane)

    def surplus(self) -> list[ClaimedDelivery]:
        """Return rows that should not wait here, once: of lanes that became slow, which another worker may send."""
        surplus, self._surplus = self._surplus, []
        return surplus

    def _trim(self, lane: Lane) -> None:
        """Give back the rows that a lane holds beyond its limit, or beyond that of its host."""
        beyond = max(lane.held - lane.limit, self._doubtful(lane.group.host) - self._per_destination)
        if beyond > 0 and lane.rows:
            self._surplus += self._remove(lane, list(lane.rows)[-beyond:])

    def remove(self, which: Callable[[ClaimedDelivery], bool]) -> list[ClaimedDelivery]:
        """Remove rows that have not begun, and return them. Of their lanes, none is claimed ahead until a delivery ends."""
        removed: list[ClaimedDelivery] = []
        for lane in list(self._stocked):
            rows = [row for row in lane.rows or () if which(row)]
            if rows:
                lane.ahead = 1
                removed += self._remove(lane, rows)
                self._queue(lane)
                self._forget(lane)
        return removed

    def _remove(self, lane: Lane, rows: list[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Remove rows of a lane, and return them."""
        gone = set(map(id, rows))
        lane.rows = deque(row for row in lane.rows or () if id(row) not in gone)
        if not lane.rows:
            del self._stocked[lane]
        self._count(lane, -len(rows), -len(rows), 0)
        return rows

    def waiting_rows(self) -> Iterator[ClaimedDelivery]:
        """Yield the rows that have not begun."""
        for lane in self._stocked:
            yield from lane.rows or ()


def _any(_lane: Lane) -> bool:
    """Say that every lane can use a turn."""
    return True


def _in_turn(kinds: deque[Kind], turns: Mapping[Kind, Iterator[Lane]]) -> Iterator[Lane]:
    """Yield lanes, one of each kind in turn; the next call goes on with the next kind."""
    in_vain = 0
    while in_vain < len(kinds):
        kind = kinds[0]
        kinds.rotate(-1)
        lane = next(turns[kind], None) if kind in turns else None
        in_vain = 0 if lane else in_vain + 1
        if lane:
            yield lane


def _by_lane(rows: Sequence[ClaimedDelivery]) -> dict[int, list[ClaimedDelivery]]:
    """Return rows by their lanes."""
    found: dict[int, list[ClaimedDelivery]] = {}
    for row in rows:
        found.setdefault(row.lane, []).append(row)
    return found
