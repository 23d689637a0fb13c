"""What lanes are counted in, and how they wait for their turns. Pure, no I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowactions_plugin.queue.claimed import ClaimedDelivery

MOST_EXAMINED: Final = 1000
"""How many groups are examined at the most to find some whose turn it is: most of them may be at a limit."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tally:
    """How many rows of something this worker has, or is getting.

    Attributes:
        held: all of them.
        waiting: those that wait for a slot.
        in_flight: those that have begun.
    """

    held: int = field(default=0, init=False)
    waiting: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)

    @property
    def asked(self) -> int:
        """How many claims on their way ask for, or are being enqueued for this worker."""
        return self.held - self.waiting - self.in_flight

    def count(self, other: Tally, sign: int) -> None:
        """Add the numbers of another tally, or subtract them."""
        self.held += sign * other.held
        self.waiting += sign * other.waiting
        self.in_flight += sign * other.in_flight


@dataclass(slots=True, eq=False)
class Share(Tally):
    """The rows that have a part of the slots together, and the same part of what a worker holds.

    Attributes:
        slots: how many may be in flight.
        stock: how many may be held.
    """

    slots: int
    stock: int


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

    def may_claim(self) -> bool:
        """Return whether one more row may be held."""
        for share in self.shares:  # noqa: SIM110  `all` takes three times as long
            if share.held >= share.stock:
                return False
        return True

    def may_begin(self) -> bool:
        """Return whether one more row may be in flight."""
        for share in self.shares:  # noqa: SIM110
            if share.in_flight >= share.slots:
                return False
        return True


@dataclass(slots=True, eq=False)
class Host(Tally):
    """A destination of an organization.

    Attributes:
        key: organization and destination.
        organization: the tally of the organization.
        destination: the tally of the destination, over all organizations.
        groups: its lanes, by whether they are slow. Of those under ``None``, nothing is known but what is known of the host.
        lanes: how many lanes it has.
        late: how many of its rows are in flight for too long.
    """

    key: tuple[str, str]
    organization: Tally
    destination: Tally
    groups: dict[bool | None, Group] = field(default_factory=dict)
    lanes: int = 0
    late: int = 0


@dataclass(slots=True, eq=False)
class Group(Tally):
    """The lanes of a host that are of one kind for one reason.

    Attributes:
        host: the host.
        kind: the kind.
        ahead: how many times its limit a lane may hold when it becomes one of these.
        tallies: what its rows are counted in: itself, and whatever it is a part of.
    """

    host: Host
    kind: Kind
    ahead: int
    tallies: Sequence[Tally] = ()

    def become(self, kind: Kind) -> None:
        """Be of a kind."""
        self.kind = kind
        self.tallies = (self, self.host, self.host.organization, self.host.destination, *kind.shares)


@dataclass(slots=True, eq=False)
class Lane(Tally):
    """A lane that the worker knows.

    Attributes:
        number: its number.
        group: where it belongs.
        since: no row of it is due for longer, Unix milliseconds; while a claim asks, of the rows that were heard of meanwhile.
        ahead: how many times its limit it may hold, as far as its host may.
        limit: how many of its rows may be in flight.
        late: how many are in flight for too long.
        is_due: whether a claim is to ask for its rows.
        due_again: whether something became due while a claim asked.
        in_due: whether it is queued to be claimed from.
        in_ready: whether it is queued to be begun from.
        rows: those that wait; ``None`` before the first one.
    """

    number: int
    group: Group
    since: int
    ahead: int
    limit: int = 1
    late: int = 0
    is_due: bool = False
    due_again: bool = False
    in_due: bool = False
    in_ready: bool = False
    rows: deque[ClaimedDelivery] | None = None


class Turns:
    """Lanes that wait for their turns: organizations take turns, then the hosts of each, then the lanes of a host.

    Attributes:
        lanes: the lanes by their groups.
        examined: how many groups were examined; a caller begins again with 0.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[Group]] = OrderedDict()  # no queue is empty
        self.lanes: dict[Group, deque[Lane]] = {}
        self.examined = 0

    def add(self, lane: Lane, *, first: bool = False) -> None:
        """Add a lane; its turn is the last one, or the first."""
        lanes = self.lanes.get(lane.group)
        if lanes is None:
            lanes = deque()
            self._add(lane.group, lanes)
        if not first:
            lanes.append(lane)
            return
        lanes.appendleft(lane)
        organization = lane.group.host.key[0]
        self._groups.move_to_end(organization, last=False)
        if len(lanes) == 1:
            self._groups[organization].rotate(1)

    def remove(self, lane: Lane) -> None:
        """Remove a lane."""
        lanes = self.lanes[lane.group]
        lanes.remove(lane)
        if not lanes:
            self._remove(lane.group)

    def move(self, group: Group, other: Turns) -> None:
        """Have the lanes of a group wait for other turns."""
        if lanes := self.lanes.get(group):
            self._remove(group)
            other._add(group, lanes)

    def take(
        self,
        may: Callable[[Group], bool],
        fits: Callable[[Lane], bool] | None = None,
        stays: Callable[[Lane], bool] | None = None,
    ) -> Lane | None:
        """Remove the lane whose turn it is, and return it; ``None``: no lane can use a turn.

        Args:
            may: whether lanes of a group can. If not, the next group of the organization has the turn.
            fits: whether a lane can. If not, the next lane of its group has the turn. Without it, all can.
            stays: whether a lane is not removed, because it can use another turn. Without it, none is.
        """
        for _ in range(len(self._groups)):
            organization, groups = next(iter(self._groups.items()))
            self._groups.move_to_end(organization)
            for _ in range(len(groups)):
                self.examined += 1
                if self.examined > MOST_EXAMINED:
                    return None
                group = groups[0]
                groups.rotate(-1)
                if not may(group):
                    continue
                lanes = self.lanes[group]
                for _ in range(len(lanes)):
                    lane = lanes[0]
                    lanes.rotate(-1)
                    if fits is not None and not fits(lane):
                        continue
                    if stays is None or not stays(lane):
                        lanes.pop()
                        if not lanes:
                            self._remove(group)
                    return lane
        return None

    def _add(self, group: Group, lanes: deque[Lane]) -> None:
        """Add a group to those of its organization."""
        self.lanes[group] = lanes
        organization = group.host.key[0]
        if organization not in self._groups:
            self._groups[organization] = deque()
        self._groups[organization].append(group)

    def _remove(self, group: Group) -> None:
        """Remove a group from those of its organization."""
        del self.lanes[group]
        organization = group.host.key[0]
        groups = self._groups[organization]
        if groups[-1] is group:  # as it is after its turn
            groups.pop()
        else:
            groups.remove(group)
        if not groups:
            del self._groups[organization]
