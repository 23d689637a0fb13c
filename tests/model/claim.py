"""The steps of the model that claim (decision 71).

Each step bears the name of the code that takes it (`names.CODE`), and calls that code where it is a pure function: the state after
an attempt, whether a lease has room for one, the grace of leases. Each rule in `names.RULES` can be left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from flowactions_plugin.queue.rules import QUARANTINE_ROUNDS
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from tests.model.names import RULES
from tests.model.world import FAULTS, GONE, LEASE, Item, Row, State, World, contact_after, has_grace

T = TypeVar("T")


class Step(NamedTuple):
    """A step to another state.

    Attributes:
        name: what happens; a key of `CODE`, unless it is an accident or the clock.
        detail: to whom.
        state: the one after it.
        is_fault: whether it need not happen.
        wrong: what it breaks that no state shows.
    """

    name: str
    detail: str
    state: Any
    is_fault: bool = False
    wrong: str | None = None


def put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """Return a tuple with another value in one place."""
    return (*values[:index], value, *values[index + 1 :])


def with_worker(s: State, w: int, **changes: Any) -> State:
    """Return a state with a changed worker."""
    return s._replace(workers=put(s.workers, w, s.workers[w]._replace(**changes)))


def cannot_write(s: State, w: int, **changes: Any) -> State:
    """Return a state in which a statement of a worker has failed: `Contact.failed`."""
    contact = contact_after(s.workers[w].contact, "failed") if s.database < 1 else s.workers[w].contact
    return with_worker(s, w, contact=contact, **changes)


def spend(s: State, fault: str) -> State | None:
    """Return a state in which a fault may happen once less; ``None``: it may not."""
    at = FAULTS.index(fault)
    return s._replace(faults=put(s.faults, at, s.faults[at] - 1)) if s.faults[at] else None


def item_of(r: int, row: Row) -> Item:
    """Return a row as a claim returns it."""
    return Item(r, "waits", row.token, LEASE, row.takeovers, row.attempts, row.rounds)


def freed(row: Row, token: int) -> Row:
    """Return a row without its claim, whose end was written under a token: `sql/complete`."""
    return row._replace(token=0, owner=GONE, until=0, settled=token)


class Claims:
    """The steps of a world that claim.

    Args:
        world: what there is.
        without: a rule of `RULES` that is left out.
    """

    def __init__(self, world: World, without: str | None = None) -> None:
        assert without is None or without in RULES
        self.world = world
        self._without = without

    def has(self, rule: str) -> bool:
        """Return whether a rule holds."""
        return rule != self._without

    def claiming(self, s: State, w: int) -> Iterator[Step]:
        worker, who = s.workers[w], f"worker {w}"
        alone = any(item.is_alone for item in worker.items) and self.has("alone")
        if worker.asked is not None:
            left, claimed, _ = worker.asked
            if claimed is not None:
                left = max(0, left) if self.has("lease from before") else LEASE
                yield Step("take", who, self._admitted(with_worker(s, w, asked=None), w, claimed, left))
            return
        if worker.has_failed or alone or s.database < 1:
            return
        if self.eligible(s, w):
            after, claimed = self.claimed(s, w)
            yield Step("claim", who, self._admitted(after, w, claimed, LEASE))
            if spent := spend(s, "lose"):
                lost = self.claimed(spent, w)[0]
                yield Step("claim", f"{who}, whose answer is lost", cannot_write(lost, w), is_fault=True)
        if (spent := spend(s, "slow")) and any(row.is_live for row in s.rows):
            yield Step("ask", who, with_worker(spent, w, asked=(LEASE, None, worker.contact)), is_fault=True)
        if s.pause == "old" and (spent := spend(s, "probe")):
            yield from self._probing(spent, w)
        # Nothing else is in flight in its process, and all is written.
        if not worker.items or not self.has("alone"):
            yield from self._claiming_quarantined(s, w)

    def _probing(self, s: State, w: int) -> Iterator[Step]:
        """`Probes.claim`: the oldest row of a paused destination. It gets one attempt more, once."""
        for r, row in enumerate(s.rows):
            if not self.is_free(s, w, row, probe=True) or any(item.row == r for item in s.workers[w].items):
                continue
            held = self._held(s, w, r, row)
            item = item_of(r, held)._replace(is_probe=True, grants=not (row.granted and self.has("one grant")))
            after = with_worker(s, w, items=tuple(sorted((*s.workers[w].items, item))))
            yield Step(
                "probe", f"worker {w}, row {r}", after._replace(rows=put(s.rows, r, held)), is_fault=True
            )
            return

    def _claiming_quarantined(self, s: State, w: int) -> Iterator[Step]:
        """`RecoveryStore.claim_quarantined`; a reclaim is not counted."""
        for r, row in enumerate(s.rows):
            if row.takeovers < QUARANTINE_AFTER or not self.is_free(s, w, row):
                continue
            if any(item.row == r for item in s.workers[w].items):
                continue
            if row.rounds >= QUARANTINE_ROUNDS or not self.has("rounds"):
                dead = freed(row._replace(status="dead"), row.token)
                yield Step("execute_alone", f"worker {w}, row {r} dead", s._replace(rows=put(s.rows, r, dead)))
                return
            held = self._held(s, w, r, row)
            item = item_of(r, held)._replace(is_alone=True)
            after = with_worker(s, w, items=tuple(sorted((*s.workers[w].items, item))))
            yield Step("claim_quarantined", f"worker {w}, row {r}", after._replace(rows=put(s.rows, r, held)))
            return

    def enqueuing(self, s: State, w: int) -> Iterator[Step]:
        """`Outbox.write`: a row that is enqueued, and claimed by the same statement unless its destination is paused."""
        worker, who = s.workers[w], f"worker {w}"
        if worker.enqueued is not None:
            taken = self._taken(with_worker(s, w, enqueued=None), w, worker.enqueued)
            yield Step("take", who, taken)
        if worker.enqueued is not None or worker.has_failed or s.database < 1:
            return
        for r, row in enumerate(s.rows):
            if not row.is_absent or len(worker.items) >= self.world.holds:
                continue
            paused = bool(s.pause) and self.has("no pause for new rows")
            new = row._replace(is_absent=False)
            held = new if paused else self._held(s, w, r, new)
            written = s._replace(rows=put(s.rows, r, held))
            item = item_of(r, held)
            what = f"{who}, row {r}"
            after = written if paused else self._taken(written, w, item)
            yield Step("claim_with_enqueue", what, after)
            if not paused and (spent := spend(written, "slow")):
                yield Step(
                    "claim_with_enqueue", f"{what}, slowly", with_worker(spent, w, enqueued=item), is_fault=True
                )
            if not paused and (spent := spend(written, "lose")):
                # The answer is lost: it is given back, or waits for the end of its lease.
                back = spent._replace(rows=put(spent.rows, r, freed(held, item.token)))
                yield Step("claim_with_enqueue", f"{what}, whose answer is lost", spent, is_fault=True)
                yield Step("disclaim", what, back, is_fault=True)

    def _taken(self, s: State, w: int, item: Item) -> State:
        """`Executor.take`: what the worker has claimed again meanwhile is dropped."""
        worker = s.workers[w]
        if self.has("one copy of new rows"):
            if any(other.row == item.row for other in worker.items):
                return s
            if (item.row, item.token) in worker.written:
                return with_worker(s, w, written=worker.written - {(item.row, item.token)})
        left = item.left if self.has("lease from before for new rows") else LEASE
        return with_worker(s, w, items=tuple(sorted((*worker.items, item._replace(left=left)))))

    def is_free(self, s: State, w: int, row: Row, *, probe: bool = False) -> bool:
        """The conditions of `sql/claim`, apart from what is in quarantine. A claim looks when it is asked."""
        until, contact = row.until, s.workers[w].contact
        if (asked := s.workers[w].asked) is not None:
            until += (LEASE - asked[0]) * self.has("a claim waits")
            contact = asked[2]
        if not row.is_live or (row.due and self.has("due")):
            return False
        if s.pause and not probe and self.has("no pause"):
            return False
        if row.token and until > 0 and self.has("no live lease"):
            return False
        if row.token and not self.has("expired leases"):
            return False
        graced = self.world.has_outages and row.token and row.owner != w and has_grace(contact, until)
        return not (graced and self.has("grace"))

    def lane(self, r: int) -> tuple[str, str]:
        """Return the lane of a row."""
        kind = self.world.rows[r]
        return kind.organization, kind.destination

    def eligible(self, s: State, w: int) -> list[int]:
        """`Lanes.asks` and `sql/claim`: which rows a claim takes. Of each lane the oldest, which are the first."""
        world, items = self.world, s.workers[w].items
        left = world.holds - len(items)
        due = [r for r, row in enumerate(s.rows) if self.is_free(s, w, row)]
        due = [r for r in due if s.rows[r].takeovers < QUARANTINE_AFTER]
        if world.signals:
            due = [r for r in due if self.lane(r) in s.workers[w].hears]
        held = Counter(self.lane(item.row) for item in items)
        found: list[int] = []
        turns = self._turns(due, s.turn)
        while left > 0 and turns:
            for lane in list(turns):
                rows = [r for r in due if self.lane(r) == lane and r not in found]
                if not rows or held[lane] >= world.share:
                    turns.remove(lane)
                elif left > 0:
                    found.append(rows[0])
                    held[lane] += 1
                    left -= 1
                    if not self.has("lanes in turn"):
                        break
        return found

    def _turns(self, due: Sequence[int], turn: int) -> list[tuple[str, str]]:
        """Return the lanes with rows that are due, from the one whose turn it is."""
        lanes = sorted({self.lane(r) for r in due})
        if not self.has("turns go on"):
            return lanes
        everywhere = sorted({self.lane(r) for r in range(len(self.world.rows))})
        later = [lane for lane in lanes if everywhere.index(lane) >= turn]
        return [*later, *(lane for lane in lanes if lane not in later)]

    def claimed(self, s: State, w: int) -> tuple[State, tuple[Item, ...]]:
        """`sql/claim`: the rows with their new claims, and what the statement returns."""
        rows, found = s.rows, self.eligible(s, w)
        for r in found:
            row = s.rows[r]
            if row.token and not self.has("a reclaim is no attempt"):
                row = row._replace(attempts=row.attempts + 1)
                if row.attempts >= self.world.rows[r].attempts:
                    row = row._replace(status="dead")
            rows = put(rows, r, self._held(s, w, r, row._replace(takeovers=row.takeovers + (row.token > 0))))
        last = len(rows) - 1
        left_behind = found and last not in found and self.is_free(s, w, s.rows[last])
        everywhere = sorted({self.lane(r) for r in range(len(rows))})
        after = s._replace(rows=rows)
        if self.world.patience is not None and found:
            after = after._replace(
                passed=(s.passed + bool(left_behind) * len(found)) * (last not in found),
                turn=(everywhere.index(self.lane(found[-1])) + 1) % len(everywhere),
            )
        if self.world.signals:
            after = self._forgotten(after, w, s)
        return after, tuple(item_of(r, rows[r]) for r in found if rows[r].is_live)

    def _forgotten(self, after: State, w: int, before: State) -> State:
        """`Lanes.answer`: lanes are forgotten that gave less than was asked for."""
        rest = {self.lane(r) for r, row in enumerate(after.rows) if self.is_free(after, w, row)}
        return with_worker(after, w, hears=before.workers[w].hears & frozenset(rest))

    def _held(self, s: State, w: int, r: int, row: Row) -> Row:
        """Return a row with a lease, and a token that nobody has had of those that are still known."""
        known = {row.token, row.settled}
        for worker in s.workers:
            known |= {item.token for item in worker.known if item.row == r}
            known |= {token for of, token in worker.written if of == r}
        token = next(number for number in range(1, 99) if number not in known)
        return row._replace(token=token, owner=w, until=LEASE)

    def _admitted(self, s: State, w: int, claimed: Sequence[Item], left: int) -> State:
        """`Hand.take`: what the worker has already is dropped; `Hand.claiming`: nothing is awaited without a claim on its way."""
        worker = s.workers[w]
        in_hand = {item.row for item in worker.items if self.has("waiting copies") or item.phase != "waits"}
        if not self.has("one copy"):
            in_hand = set()
        written = worker.written if self.has("written tokens") else frozenset()
        fresh = [
            item._replace(left=left)
            for item in claimed
            if item.row not in in_hand and (item.row, item.token) not in written
        ]
        answered = {(item.row, item.token) for item in claimed}
        written = frozenset() if worker.asked is None else worker.written - answered
        items = tuple(sorted((*worker.items, *fresh)))
        return with_worker(s, w, items=items, written=written)
