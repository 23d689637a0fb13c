"""The facts on deliveries of which findings, the verdict and the gauges are made, and how times are written: pure, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowactions_plugin import clock
from flowactions_plugin.insights.results import Bucket, Counted, DestinationState, Worker
from flowactions_plugin.watch.fleet import Limited
from flowactions_plugin.watch.statistics import BUCKET_MS, COUNTS

if TYPE_CHECKING:
    from flowactions_plugin.storage.postgresql import Blocker, Snapshot

LATELY_MINUTES: Final = 15
"""Failures of so many minutes are those of now."""

SKEW_MS: Final = 5000
"""A clock that is so far from the database's is told; less may be the way there and back."""

WRONG_CLOCK_MS: Final = 240_000
"""Receivers reject a signature whose time is five minutes away."""

TICKS: Final = 3
"""Ticks without a claim after which deliveries have stalled, in scheduled mode."""

PATIENCE_SECONDS: Final = 15.0
"""The least of the seconds without a claim after which they have: workers write every ten seconds when they last claimed."""

ABSENT_MS: Final = 60_000
"""For so long no worker may be alive, as while the only one is restarted."""


class Blocked(NamedTuple):
    """Deliveries that wait without an attempt, because something fails here: a method of the host, or the egress proxy."""

    reason: str
    deliveries: Counted
    organizations: int
    since: int | None


class Unsent(NamedTuple):
    """A delivery that ended without an attempt."""

    organization_id: str
    flow_id: str | None
    node_id: str | None
    reason: str
    ended_at: int


class Behind(NamedTuple):
    """Deliveries that wait, in order, behind one that has not ended.

    Attributes:
        id: of the one that has to end first.
        destination: of all of them.
        reason: why its last attempt failed, or why it waits; empty: it is not known.
        number: how many wait behind it.
        since: when the oldest of them was enqueued.
    """

    id: str
    organization_id: str
    destination: str
    reason: str
    number: int
    since: int


class FailingNode(NamedTuple):
    """A node of which several deliveries have failed, and what became of its last ones.

    Attributes:
        failed: how many of its last deliveries have failed, to destinations that do not fail.
        ended: how many its last deliveries were.
        reason: why the last one failed.
    """

    organization_id: str
    flow_id: str
    node_id: str
    failed: int
    ended: int
    reason: str


class Share(NamedTuple):
    """What one organization has of the attempts of the last minutes.

    Attributes:
        attempts: how many are its own.
        failed: how many of these have failed, to destinations that still fail.
        destinations: how many destinations these are.
    """

    organization_id: str
    attempts: int
    failed: int
    destinations: int


class Facts(NamedTuple):
    """How deliveries stand, as far as a scope may see it.

    Attributes:
        now: Unix milliseconds.
        sees_all: whether operators look, who may read the names of machines.
        mode: how workers deliver by the settings: ``scheduled`` or ``continuous``. It counts where no worker is alive.
        tick_seconds: from one tick to the next, in scheduled mode.
        uptime_ms: for how long this process could have seen a worker, where none has ever been.
        refusal: why the database takes no writes; ``None``: it does.
        due: rows that may be claimed now, without those of paused destinations.
        oldest_due_ms: for how long the oldest of these has been due; ``None``: none is due.
        held_ms_ago: how long ago the newest claim that is held was made; ``None``: no row is claimed.
        waiting: rows that are neither delivered nor dead.
        dead: rows that ended without success.
        chat: chat connections that cannot send.
        blocked: why deliveries wait for something here, the most deliveries first.
        paused: how many pauses hold, and how many of them were set automatically.
        paused_since: when the first of them began.
        alerts: the destination of alerts, if it fails.
        workers: the processes that deliver, those seen last first.
        limited: of organizations, the destinations that workers limit, since when.
        buckets: the last day.
        failing: destinations whose last attempt has failed, the latest first; one more than are counted: there are more.
        shares: organizations with failed attempts of the last minutes, the most failures first; empty if most arrive.
        busiest: organization and destination of the most rows that are due, and their number, if they are late.
        reads_only: whether this process's role may write nothing: it cannot see whether others can.
        behind: what waits in order for long, the most deliveries first.
        unsent: deliveries of the last day that ended without an attempt, the latest first.
        nodes: nodes of which most of the last deliveries have failed.
        snapshot: what has kept the database from removing old versions of rows for long; ``None``: nothing.
        blockers: who holds locks for which others wait.
        lacking: rights on the tables that this process's role lacks.
        quarantined: rows of the outbox that are in quarantine.
        inbound: of each provider of which no event was processed, the row of why the latest request failed.
    """

    now: int
    sees_all: bool
    mode: str
    tick_seconds: float
    uptime_ms: int
    refusal: str | None
    due: Counted
    oldest_due_ms: int | None
    held_ms_ago: int | None
    waiting: Counted
    dead: Counted
    chat: Counted
    blocked: Sequence[Blocked]
    paused: tuple[int, int]
    paused_since: int | None
    alerts: DestinationState | None
    workers: Sequence[Worker]
    limited: Limited
    buckets: Sequence[Bucket]
    failing: Sequence[DestinationState] = ()
    shares: Sequence[Share] = ()
    busiest: tuple[str, str, int] | None = None
    reads_only: bool = False
    behind: Sequence[Behind] = ()
    unsent: Sequence[Unsent] = ()
    nodes: Sequence[FailingNode] = ()
    snapshot: Snapshot | None = None
    blockers: Sequence[Blocker] = ()
    lacking: Sequence[str] = ()
    quarantined: Sequence[Any] = ()
    inbound: Sequence[Any] = ()

    @property
    def alive(self) -> list[Worker]:
        """The workers that are alive."""
        return [each for each in self.workers if each.state == "alive"]

    @property
    def clock_ahead_ms(self) -> int:
        """By how much the clock of a live worker is ahead of the database's, that which is farthest; less than 0: behind."""
        return max((each.clock_ahead_ms or 0 for each in self.alive), key=abs, default=0)

    @property
    def in_ticks(self) -> bool:
        """Whether every worker delivers in scheduled mode; of none that is alive, what the settings say."""
        return "continuous" not in ({each.mode for each in self.alive} or {self.mode})

    @property
    def patience_ms(self) -> int:
        """For how long rows may be due while nothing is claimed."""
        ticks = TICKS * self.tick_seconds if self.in_ticks else 0
        # While attempts hold all slots, nothing is claimed.
        return int(1000 * max(PATIENCE_SECONDS, ticks, *(each.delivery_timeout + 5 for each in self.alive)))

    @property
    def attempts(self) -> tuple[int, int]:
        """How many attempts were made within the last minutes, and how many of these have failed."""
        late = self.buckets[-LATELY_MINUTES * 60_000 // BUCKET_MS :]
        failed = sum(each.failed for each in late)
        return failed + sum(each.delivered for each in late), failed


def summed(buckets: Sequence[Bucket]) -> Bucket:
    """Return the sums of some intervals, as one that begins with the first of them; at 0 where there are none."""
    return Bucket(
        at=buckets[0].at if buckets else 0,
        **{name: sum(getattr(each, name) for each in buckets) for name in COUNTS},
    )


def clock_offset(ahead_ms: int | None) -> str:
    """Return how far a clock is from the database's: ``10 min ahead``, ``agrees``; empty where it is not known."""
    if ahead_ms is None or abs(ahead_ms) < SKEW_MS:
        return "" if ahead_ms is None else "agrees"
    return f"{about(abs(ahead_ms))} {'ahead' if ahead_ms > 0 else 'behind'}"


def moment(value: int | str | None) -> str:
    """Return a time to the second, in UTC."""
    return clock.moment(value, "an unknown time")


def about(milliseconds: int) -> str:
    """Return a duration to the nearest second, from two minutes on to the nearest minute, from two hours on to the nearest hour."""
    seconds = round(milliseconds / 1000)
    if seconds < 120:
        return f"{seconds} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"
