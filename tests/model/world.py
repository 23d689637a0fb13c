"""What a state of the model consists of, and the worlds that are searched: rows, workers, faults (decision 71)."""

from __future__ import annotations

import math
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from flowactions_plugin.egress.attempt import DEADLINE_SECONDS
from flowactions_plugin.queue.claims import Contact
from flowactions_plugin.queue.rules import Status, Timing

TIMING: Final = Timing()
TICK: Final = DEADLINE_SECONDS
"""Seconds of a step of the clock: an attempt takes one at the most."""

LEASE: Final = int(TIMING.lease_seconds // TICK)
LONG_AGO: Final = -10
"""Ticks before now. An earlier time is as good as this one: no outage and no doubt is as old."""

PROBES: Final = 5
"""How often a worker writes to the queue in a tick."""

GONE: Final = -1
"""The owner of a claim whose worker was killed."""


def ticks(seconds: float) -> int:
    """Return how many ticks a delay takes."""
    return math.ceil(seconds / TICK)


class Row(NamedTuple):
    """A row of the outbox; times are ticks from now. What follows ``is_absent`` is history, which no rule reads.

    Attributes:
        granted: whether a probe that failed has got it one attempt more.
        is_absent: whether it is not enqueued yet.
        arrived: whether the receiver has answered 2xx.
        begun: whether a request was begun.
        crashes: rounds in quarantine that began since an attempt was finished, and did not finish.
    """

    status: Status = "pending"
    attempts: int = 0
    due: int = 0
    token: int = 0
    owner: int = GONE
    until: int = 0
    takeovers: int = 0
    rounds: int = 0
    settled: int = 0
    granted: bool = False
    is_absent: bool = False
    arrived: bool = False
    begun: bool = False
    crashes: int = 0

    @property
    def is_live(self) -> bool:
        return self.status in {"pending", "retrying"} and not self.is_absent


class Item(NamedTuple):
    """A claimed row in a worker's memory.

    Attributes:
        row: which.
        phase: it waits, is in flight, has succeeded, has failed, or is to be given back without an attempt.
        left: ticks of its lease, by the worker's clock.
        reclaims: as the claim returned it; ``attempts``, ``rounds``, too.
        is_aged: whether it is in flight since before the last tick.
        is_alone: whether it is sent in quarantine.
        is_probe: whether it is sent although its destination is paused; ``grants``: whether, if it fails, it uses up no attempt.
    """

    row: int
    phase: Literal["waits", "begun", "sent", "ok", "bad", "back"]
    token: int
    left: int
    reclaims: int
    attempts: int
    rounds: int
    is_aged: bool = False
    is_alone: bool = False
    is_probe: bool = False
    grants: bool = False

    @property
    def id(self) -> int:
        return self.row

    @property
    def is_unwritten(self) -> bool:
        return self.phase in {"ok", "bad", "back"}


Fields: TypeAlias = tuple[float, float, float]
"""Of a `Contact`: its last success, and since and until when leases of others have a grace; seconds from now."""


class Worker(NamedTuple):
    """A process that delivers.

    Attributes:
        is_stalled: whether it stands still.
        has_failed: whether outcomes were not accepted.
        asked: a claim that is under way: the rest of its lease, what the database has claimed; ``None``: not yet; and the
            worker's `Contact` when it was asked.
        written: tokens of later claims of its own under which it has written; as pairs with their rows.
        enqueued: a row that it has claimed by the statement that enqueued it, while the answer is on its way; ``None``: none.
        hears: the lanes in which rows are due, as far as it has heard: organization and destination.
    """

    items: tuple[Item, ...] = ()
    is_stalled: bool = False
    has_failed: bool = False
    asked: tuple[int, tuple[Item, ...] | None, Fields] | None = None
    written: frozenset[tuple[int, int]] = frozenset()
    enqueued: Item | None = None
    contact: Fields = (0.0, math.inf, -math.inf)
    hears: frozenset[tuple[str, str]] = frozenset()

    @property
    def known(self) -> tuple[Item, ...]:
        """What it has claimed, also where it does not know that yet."""
        asked = (self.asked and self.asked[1]) or ()
        return (*self.items, *asked, *([] if self.enqueued is None else [self.enqueued]))


STARTED: Final = Worker(contact=(-math.inf, math.inf, -math.inf))


@cache
def contact_after(fields: Fields, event: Literal["passes", "fails", "waits", "failed"]) -> Fields:
    """Return what a `Contact` remembers after a tick in which its worker writes, cannot write or waits, or a failure."""
    now = 0.0
    contact = Contact(TIMING, lambda: now)
    contact._last, contact._since, contact._until = fields
    if event == "failed":
        contact.failed()
    else:
        for _ in range(PROBES):
            now += TICK / PROBES
            if event == "passes":
                contact.succeeded(now)
            elif event == "fails":
                contact.failed()
    last = contact._last if math.isinf(contact._last) else max(LONG_AGO * TICK, contact._last - now)
    if now >= contact._until:
        return last, math.inf, -math.inf
    return last, contact._since if math.isinf(contact._since) else contact._since - now, contact._until - now


@cache
def has_grace(fields: Fields, until: int) -> bool:
    """Return whether a lease of another worker that ended ``until`` ticks from now does not count as expired yet."""
    contact = Contact(TIMING, lambda: 0.0)
    contact._last, contact._since, contact._until = fields
    return -until * TICK < contact.grace()


class Kind(NamedTuple):
    """What does not change about a row.

    Attributes:
        attempts: how many it has.
        may_fail: whether its receiver may answer 500.
        kills: whether it ends its worker as soon as it is sent.
        is_endless: whether the next one of its kind follows as soon as it has ended: a backlog.
        is_new: whether it is enqueued while workers run.
    """

    attempts: int = 1
    organization: str = "a"
    destination: str = "x"
    may_fail: bool = False
    kills: bool = False
    is_endless: bool = False
    is_new: bool = False


class State(NamedTuple):
    """All of it.

    Attributes:
        database: -1: it is away since this tick; 0: for longer; 1: it came back in this tick; 2: it is there.
        pause: of destination ``x``; ``new``: since this tick.
        turn: which lane was served last.
        passed: how many rows were claimed before the last one, which was due and free.
        faults: what may still happen, by the order of `FAULTS`.
    """

    rows: tuple[Row, ...]
    workers: tuple[Worker, ...]
    faults: tuple[int, ...]
    database: int = 2
    pause: Literal["", "new", "old"] = ""
    turn: int = 0
    passed: int = 0


FAULTS: Final = ("kill", "lose", "slow", "stall", "outage", "away", "pause", "probe")
"""A killed process; a statement whose answer is lost; one whose answer is late; a process that stands still; an outage of
the database; ticks that it lasts; a pause; a probe of what is paused."""


def normal(s: State) -> State:
    """Return a state without what makes no difference any more: tokens that nobody knows, times of rows that have ended."""
    rows = []
    for r, row in enumerate(s.rows):
        known = {item.token for w in s.workers for item in w.known if item.row == r}
        settled = row.settled if row.settled in known else 0
        if row.is_live:
            rows.append(row._replace(settled=settled))
        else:
            rows.append(row._replace(settled=settled, due=0, takeovers=0, rounds=0))
    return s._replace(rows=tuple(rows))


class World(NamedTuple):
    """What is searched.

    Attributes:
        holds: rows that a worker has claimed at once, at the most; ``slots``: those in flight; ``share``: to a destination.
        polls: whether a worker claims once a tick at least, as in continuous mode: fewer states than with ticks without claims.
        once: whether a row that has arrived is never sent again: it must not be by an outage alone.
        waits: whether statements wait while the database is away, as for a lock, and do not fail.
        signals: whether workers claim from lanes only of which they have heard; elsewhere they hear of all.
        patience: how many rows may be claimed before the last one; ``None``: it is not watched.
    """

    rows: tuple[Kind, ...]
    workers: int = 2
    faults: tuple[tuple[str, int], ...] = ()
    holds: int = 2
    slots: int = 2
    share: int = 2
    polls: bool = False
    once: bool = False
    waits: bool = False
    signals: bool = False
    patience: int | None = None

    @property
    def has_outages(self) -> bool:
        """Whether leases can have a grace. Elsewhere the model claims more than workers do."""
        return "outage" in dict(self.faults)

    @property
    def start(self) -> State:
        faults = dict(self.faults)
        return State(
            tuple(Row(is_absent=kind.is_new) for kind in self.rows),
            tuple(Worker() for _ in range(self.workers)),
            tuple(faults.get(name, 0) for name in FAULTS),
        )


WORLDS: Final = {
    "crashes": World((Kind(2, may_fail=True),), polls=True, faults=(("kill", 2), ("lose", 1))),
    "stalls": World((Kind(),), polls=True, faults=(("slow", 1), ("stall", 1))),
    "two rows": World((Kind(), Kind()), slots=1, polls=True, faults=(("kill", 1),)),
    "outages": World((Kind(2, may_fail=True),), faults=(("outage", 1), ("away", 5)), once=True),
    "waits": World((Kind(),), faults=(("slow", 1), ("outage", 1), ("away", 5)), once=True, waits=True),
    "kills": World((Kind(2, may_fail=True),), workers=1, faults=(("kill", 9),)),
    "a row that kills": World((Kind(kills=True), Kind()), workers=1, polls=True),
    "signals": World(
        (Kind(2, may_fail=True), Kind(destination="y")), workers=1, signals=True, faults=(("kill", 1),)
    ),
    "probes": World((Kind(2, may_fail=True),), workers=1, faults=(("pause", 1), ("probe", 3))),
    "new rows": World((Kind(is_new=True),), polls=True, faults=(("kill", 1), ("lose", 1), ("slow", 1))),
    "new rows and pauses": World((Kind(is_new=True),), workers=1, faults=(("pause", 2), ("lose", 1))),
    "pauses": World((Kind(),), workers=1, faults=(("pause", 2),)),
    "organizations": World(
        tuple(Kind(organization=name, destination=name, is_endless=name < "d") for name in "abcd"),
        workers=1,
        patience=3,
    ),
    "one destination": World(
        (*(Kind(organization="a", is_endless=True),) * 3, Kind(organization="b")),
        workers=1,
        holds=3,
        share=2,
        patience=2,
    ),
    "lanes": World(
        (*(Kind(destination="x", is_endless=True),) * 3, Kind(destination="y")), workers=1, patience=1
    ),
}
