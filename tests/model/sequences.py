"""The rows of one sequence: which is due, whose request is on the way, and who lets the next go on (decision 77).

A worker reads which row goes on in one statement and makes it due in the next, after it has locked the sequence. Claims, outcomes, and what
a person does come in between. A kill takes what a worker has in hand and what it would have released; a stall, its lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from tests.model.claim import Step, put

Part = Literal["absent", "behind", "due", "cancelled", "dead", "delivered"]
WORKERS: Final = (0, 1)
ATTEMPTS: Final = 2


class Row(NamedTuple):
    """A row: cancelled is one that a person ended while a claim holds it; ``lease`` is the worker's whose claim holds."""

    part: Part = "absent"
    attempts: int = 0
    lease: int | None = None

    @property
    def holds_up(self) -> bool:
        """Whether nothing else of the sequence may be due."""
        return self.part in {"due", "cancelled"}


class State(NamedTuple):
    """All rows, and what each worker has in memory; ``reads`` is what its release has found: ``None`` before, -1: nothing."""

    rows: tuple[Row, ...]
    requests: frozenset[tuple[int, int]] = frozenset()
    owes: tuple[bool, ...] = (False, False)
    reads: tuple[int | None, ...] = (None, None)
    faults: int = 1
    person: int = 3
    lost_lease: bool = False


RULES: Final = {
    "one release at a time": ("flowactions_plugin.queue.sequences.release", "two rows are due"),
    "nothing is due": ("flowactions_plugin.queue.sequences.release", "two rows are due"),
    "cancelled rows hold up": ("flowactions_plugin.operations.changes.ending", "two requests"),
    "retried rows wait": ("flowactions_plugin.operations.changes.requeueing", "two rows are due"),
    "a claimed row is not behind": ("flowactions_plugin.operations.changes.requeueing", "two"),
    "look": ("flowactions_plugin.queue.sequences.Sequences.look", "lost"),
}
"""What may be left out: the code that does it, and words of the promise that is broken then."""


class Sequence:
    """The steps of one sequence.

    Args:
        rows: how many it has.
        without: the rule that is left out.
    """

    def __init__(self, rows: int = 2, without: str | None = None) -> None:
        self.start = State((Row(),) * rows)
        self._without = without

    def normal(self, s: State) -> State:
        """Return a state."""
        return s

    def steps(self, s: State) -> Iterator[Step]:
        """Return what can happen next."""
        yield from self._enqueuing(s)
        for w in WORKERS:
            yield from self._releasing(s, w)
            for r, row in enumerate(s.rows):
                if row.part == "due" and row.lease is None:
                    yield Step("claim", "", _with(s, r, lease=w)._replace(requests=s.requests | {(r, w)}))
            for r in (r for r, by in s.requests if by == w):
                yield from self._answered(s, r, w)
            if s.faults:
                killed = frozenset(each for each in s.requests if each[1] != w)
                after = s._replace(faults=s.faults - 1, requests=killed)
                yield Step(
                    "kill", "", after._replace(owes=put(s.owes, w, False), reads=put(s.reads, w, None)), True
                )
        for r, row in enumerate(s.rows):
            if row.lease is not None:
                yield from self._ending_lease(s, r, row)
            if s.person:
                yield from self._changing(s._replace(person=s.person - 1), r, row)

    def _enqueuing(self, s: State) -> Iterator[Step]:
        r = next((r for r, row in enumerate(s.rows) if row.part == "absent"), None)
        if r is not None:
            yield Step("enqueue", "", _with(s, r, part="behind")._replace(owes=put(s.owes, r % 2, True)))

    def _releasing(self, s: State, w: int) -> Iterator[Step]:
        found = s.reads[w]
        if found is not None:
            after = s._replace(reads=put(s.reads, w, None))
            if found >= 0 and s.rows[found].part == "behind":
                after = _with(after, found, part="due")
            yield Step("release", "", after)
        elif all(each is None for each in s.reads) or self._without == "one release at a time":
            waits = [r for r, row in enumerate(s.rows) if row.part == "behind"]
            may = not any(row.holds_up for row in s.rows) or self._without == "nothing is due"
            after = s._replace(reads=put(s.reads, w, waits[0] if waits and may else -1))
            if s.owes[w]:
                yield Step("read", "", after._replace(owes=put(s.owes, w, False)))
            elif waits and self._without != "look":
                yield Step("look", "", after)

    def _answered(self, s: State, r: int, w: int) -> Iterator[Step]:
        """A request has ended; its outcome counts if the claim still holds."""
        row, after = s.rows[r], s._replace(requests=s.requests - {(r, w)})
        if row.lease != w or row.part in {"dead", "delivered"}:
            yield Step("too late", "", after)
            return
        ended = after._replace(owes=put(s.owes, w, True))
        yield Step("delivered", "", _with(ended, r, part="delivered", lease=None))
        if row.part == "cancelled" or row.attempts + 1 == ATTEMPTS:
            yield Step("dead", "", _with(ended, r, part="dead", lease=None))
        else:
            yield Step("retrying", "", _with(after, r, part="due", lease=None, attempts=row.attempts + 1))

    def _ending_lease(self, s: State, r: int, row: Row) -> Iterator[Step]:
        """A lease ends: of a worker that was killed by itself, of one that still has the row in hand by a fault."""
        after = _with(s, r, part="dead" if row.part == "cancelled" else row.part, lease=None)
        if (r, row.lease) not in s.requests:
            yield Step("the lease ends", "", after)
        elif s.faults:
            yield Step("stall", "", after._replace(faults=s.faults - 1, lost_lease=True), True)

    def _changing(self, s: State, r: int, row: Row) -> Iterator[Step]:
        """A person cancels or retries: the release that follows is another process's, and may not come."""
        if row.part in {"behind", "due"}:
            holds = row.lease is not None and self._without != "cancelled rows hold up"
            yield Step("cancel", "", _with(s, r, part="cancelled" if holds else "dead"), True)
        elif row.part in {"dead", "cancelled"}:
            claimed = row.lease is not None and self._without != "a claimed row is not behind"
            now = claimed or self._without == "retried rows wait"
            yield Step("retry", "", _with(s, r, part="due" if now else "behind", attempts=ATTEMPTS - 1), True)

    def wrong(self, s: State) -> str | None:
        """Return the promise that a state breaks."""
        if sum(row.holds_up for row in s.rows) > 1:
            return "two rows are due or in flight"
        if len(s.requests) > 1 and not s.lost_lease:
            return "two requests are on the way"
        return None

    def has_ended(self, s: State) -> bool:
        """Return whether all rows have ended."""
        return all(row.part in {"delivered", "dead"} for row in s.rows)


def _with(s: State, r: int, **changes: Any) -> State:
    return s._replace(rows=put(s.rows, r, s.rows[r]._replace(**changes)))
