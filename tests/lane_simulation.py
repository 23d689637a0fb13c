"""A worker's lanes and slots with a clock of their own: who begins when, beside receivers of any speed, in no time and without I/O.

The worker is that of `queue.continuous`: it hears of each row, claims at most every five milliseconds, begins what its lanes let
begin, looks for due rows twice a second, and gives back what has waited for a third of a lease. A request that is not answered
within ten seconds times out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

from flowactions_plugin.egress.attempt import DEADLINE_SECONDS, Outcome
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.continuous import BEGUN_AT_ONCE, LOOK_SECONDS, PACE_SECONDS
from flowactions_plugin.queue.lanes import Due, Lanes, lane_of
from flowactions_plugin.queue.rules import HELD_SECONDS, Timing
from flowactions_plugin.queue.standing import Standing
from tests.queueing import claimed

NEVER: Final = math.inf
"""How long a receiver takes that does not answer."""

CLAIM_TAKES: Final = 0.002


class Waiting(NamedTuple):
    """A row in the queue: when it was enqueued, and how long its receiver takes to answer."""

    row: ClaimedDelivery
    at: float
    takes: float


class Simulation:
    """A worker and its queue.

    Args:
        slots: deliveries in flight at once.
        per_destination: of these, how many of one organization at one destination.

    Attributes:
        now: seconds since the start.
        waits: seconds from enqueue to begin of each delivery that has begun, by organization, in the order of their begins.
        in_flight: how many are in flight, by organization.
        most: the most that were in flight at once, by organization.
        ended: how many have ended, by organization.
    """

    def __init__(self, slots: int = 100, per_destination: int = 10) -> None:
        self.now = 0.0
        self.standing = Standing()
        self.lanes = Lanes(slots, per_destination, self.standing, lambda: self.now)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.in_flight = Counter[str]()
        self.most = Counter[str]()
        self.ended = Counter[str]()
        self._due: dict[Due, deque[Waiting]] = {}
        self._held: dict[str, tuple[Waiting, float]] = {}
        self._ids = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._claims = False
        self._claimed_at = -1.0
        self._look()

    # What happens

    def enqueue(
        self,
        organization: str,
        takes: float | Callable[[int], float],
        *,
        host: str = "",
        path: str | Callable[[int], str] = "hook",
        rows: int = 1,
        rate: float = math.inf,
        at: float = 0.0,
    ) -> None:
        """Enqueue rows of an organization.

        Args:
            organization: its id.
            takes: how long its receiver takes to answer, in seconds; or a function that tells it of the first, second, … row.
            host: the receiver's; empty: one of the organization's own.
            path: of its URL, or a function that gives that of each row.
            rows: how many.
            rate: so many a second.
            at: when the first one is enqueued.
        """
        for number in range(rows):
            seconds = takes(number) if callable(takes) else takes
            where = path(number) if callable(path) else path
            name = host or organization
            self.at(at + number / rate, self._put, organization, name, where, seconds)

    def at(self, when: float, do: Callable[..., None], *arguments: object) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (max(when, self.now), next(self._ids), lambda: do(*arguments)))

    def run(self, seconds: float) -> None:
        """Let so many seconds pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = end

    def longest(self, *organizations: str) -> float:
        """Return the longest wait of organizations, also of rows that still wait."""
        waiting = [
            self.now - each.at
            for due, rows in self._due.items()
            for each in rows
            if due.organization_id in organizations
        ]
        waiting += [
            self.now - each.at for each, _ in self._held.values() if each.row.organization_id in organizations
        ]
        return max([*waiting, *(wait for name in organizations for wait in self.waits[name])])

    # The worker

    def _put(self, organization: str, host: str, path: str, takes: float) -> None:
        due = Due(lane_of(organization, host, f"http://{host}/{path}"), organization, host)
        where = {"lane": due.lane, "organization_id": organization, "destination": host}
        row = claimed(id=str(next(self._ids)), size=100, due_at=int(self.now * 1000) + 5000, **where)
        self._due.setdefault(due, deque()).append(Waiting(row, self.now, takes))
        self.lanes.learn(due)
        self._wake()

    def _wake(self) -> None:
        if not self._claims:
            self._claims = True
            self.at(self._claimed_at + PACE_SECONDS, self._claim)

    def _claim(self) -> None:
        self._claimed_at = self.now
        asks = self.lanes.asks()
        if asks:
            self.at(self.now + CLAIM_TAKES, self._answer, asks)
        else:
            self._claims = False

    def _answer(self, asks: list[Due]) -> None:
        rows = []
        for ask in asks:
            waiting = self._due.get(Due(*ask[:3]), deque())
            for _ in range(min(ask.rows, len(waiting))):
                found = waiting.popleft()
                self._held[found.row.id] = found, self.now
                rows.append(found.row)
        self.lanes.answer(asks, rows, rows)
        self._start()
        self._claims = False
        self._wake()

    def _look(self) -> None:
        for due, rows in list(self._due.items()):
            if rows:
                self.lanes.learn(due)
            else:
                del self._due[due]
        self.lanes.judge_late()
        latest = self.now - Timing().wait_seconds
        self._give_back(self.lanes.remove(lambda row: self._held[row.id][1] < latest))
        self._wake()
        self.at(self.now + max(LOOK_SECONDS, HELD_SECONDS), self._look)

    def _give_back(self, rows: list[ClaimedDelivery]) -> None:
        for row in reversed(rows):
            waiting, _ = self._held.pop(row.id)
            due = Due(row.lane, row.organization_id, row.destination)
            self._due.setdefault(due, deque()).appendleft(waiting)

    def _start(self) -> None:
        while begun := self.lanes.start(BEGUN_AT_ONCE):
            for row in begun:
                self._begin(row)

    def _begin(self, row: ClaimedDelivery) -> None:
        waiting, _ = self._held.pop(row.id)
        name = row.organization_id
        self.waits[name].append(self.now - waiting.at)
        self.in_flight[name] += 1
        self.most[name] = max(self.most[name], self.in_flight[name])
        self.at(self.now + min(waiting.takes, DEADLINE_SECONDS), self._end, row, waiting.takes)

    def _end(self, row: ClaimedDelivery, takes: float) -> None:
        timed_out = takes >= DEADLINE_SECONDS
        milliseconds = int(min(takes, DEADLINE_SECONDS) * 1000)
        if timed_out:
            outcome = Outcome(0, milliseconds, error="timed out after 10 s")
        else:
            outcome = Outcome(0, milliseconds, status_code=200)
        self.standing.record(row.lane, (row.organization_id, row.destination), outcome)
        self.in_flight[row.organization_id] -= 1
        self.ended[row.organization_id] += 1
        self.lanes.end(row)
        self._give_back(self.lanes.surplus())
        self._start()
        if self.lanes.has_room:
            self._wake()
