"""The steps of the model that send, write and wait, and accidents; what must hold in every state (decision 71)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import QUARANTINE_ROUNDS, transition
from tests.model.claim import Claims, Step, cannot_write, freed, put, spend, with_worker
from tests.model.world import (
    GONE,
    LEASE,
    LONG_AGO,
    STARTED,
    TICK,
    TIMING,
    Item,
    Row,
    State,
    contact_after,
    normal,
    ticks,
)


class Model(Claims):
    """All steps of a world."""

    def normal(self, s: State) -> State:
        """Return the state that stands for all that differ in nothing that counts."""
        return normal(s)

    def steps(self, s: State) -> Iterator[Step]:
        """Yield all that can happen next."""
        for w, worker in enumerate(s.workers):
            who = f"worker {w}"
            if worker.asked is not None and worker.asked[1] is None and s.database > 0:
                after, claimed = self.claimed(s, w)
                asked = (worker.asked[0], claimed, worker.asked[2])
                yield Step("claiming", who, with_worker(after, w, asked=asked))
            if worker.is_stalled:
                yield from self._waking(s, w)
                continue
            yield from self.claiming(s, w)
            yield from self.enqueuing(s, w)
            for item in worker.items:
                yield from self._working(s, w, item)
            if (spent := spend(s, "stall")) and worker.items:
                yield Step("stall", who, with_worker(spent, w, is_stalled=True), is_fault=True)
            if (spent := spend(s, "kill")) and worker.known:
                yield Step("kill", who, _killed(spent, w), is_fault=True)
        yield from self._pausing(s)
        yield from self._hearing(s)
        if (spent := spend(s, "outage")) and s.database == 2:
            yield Step("outage", "", spent._replace(database=-1), is_fault=True)
        if s.database < 1:
            yield Step("the database is back", "", s._replace(database=1 if s.database == 0 else 2))
        if (later := self._tick(s)) is not None:
            yield Step("tick", "", later)

    # Attempts

    def _working(self, s: State, w: int, item: Item) -> Iterator[Step]:
        worker, row, who = s.workers[w], s.rows[item.row], f"worker {w}, row {item.row}"
        others_alone = any(other.is_alone and other != item for other in worker.items) and self.has("alone")
        if item.phase in {"waits", "begun"} and not others_alone:
            sent = sum(other.phase == "sent" for other in worker.items)
            if self.has("room in the lease") and TIMING.is_too_late(0, item.left * TICK):
                yield Step("execute", f"{who}, too late", self._turned(s, w, item, "back"))
            elif item.is_alone and item.phase == "waits":
                yield from self._beginning(s, w, item)
            elif sent < self.world.slots:
                yield self._sending(s, w, item)
            if item.phase == "waits" and s.pause and not item.is_probe and self.has("paused rows go back"):
                yield Step("withdrawn", f"{who}, paused", self._turned(s, w, item, "back"))
            if item.phase == "waits" and item.is_aged:
                yield Step("remove", who, self._turned(s, w, item, "back"))
        elif item.phase == "sent":
            arrived = s._replace(rows=put(s.rows, item.row, row._replace(arrived=True)))
            yield Step("send", f"{who}: 200", self._turned(arrived, w, item, "ok"))
            if self.world.rows[item.row].may_fail:
                yield Step("send", f"{who}: 500", self._turned(s, w, item, "bad"))
        elif item.is_unwritten:
            yield from self._writing(s, w, item)

    def _beginning(self, s: State, w: int, item: Item) -> Iterator[Step]:
        """`RecoveryStore.begin_quarantined`: the round is written as begun before its request leaves."""
        row, who = s.rows[item.row], f"worker {w}, row {item.row}"
        if s.database < 1:
            yield Step("begin_quarantined", f"{who}, fails", cannot_write(self._turned(s, w, item, "back"), w))
        elif row.token != item.token:
            yield Step("begin_quarantined", f"{who}, too late", _dropped(s, w, item))
        else:
            rounds = item.rounds + 1 if self.has("begun is written") else item.rounds
            row = row._replace(rounds=rounds, crashes=min(row.crashes + 1, QUARANTINE_ROUNDS))
            begun = self._turned(s, w, item, "begun")
            yield Step("begin_quarantined", who, begun._replace(rows=put(s.rows, item.row, row)))

    def _sending(self, s: State, w: int, item: Item) -> Step:
        """Begin a request. A row that ends its worker does so at once: the worst that it can do."""
        row, kind = s.rows[item.row], self.world.rows[item.row]
        wrong = None
        if row.due:
            wrong = "it is sent before its time"
        if s.pause == "old" and not item.is_probe:
            wrong = "it is sent although its destination is paused"
        if row.arrived and self.world.once:
            wrong = "it is sent again, and nothing but an outage has happened"
        after = s._replace(rows=put(s.rows, item.row, row._replace(begun=True)))
        after = self._turned(after, w, item, "sent")
        if kind.kills:
            return Step(
                "execute", f"worker {w}, row {item.row}, ends the worker", _killed(after, w), wrong=wrong
            )
        return Step("execute", f"worker {w}, row {item.row}", after, wrong=wrong)

    def _writing(self, s: State, w: int, item: Item) -> Iterator[Step]:
        """`Completer.write`: an outcome, or that there is none."""
        worker, row, who = s.workers[w], s.rows[item.row], f"worker {w}, row {item.row}"
        name = "give_back" if item.phase == "back" else "complete"
        if s.database < 1:
            if not worker.has_failed and not self.world.waits:
                kept = s if self.has("outcomes are kept") else _dropped(s, w, item)
                yield Step(name, f"{who}, fails", cannot_write(kept, w, has_failed=True))
            return
        if row.token == item.token or not self.has("token"):
            wrong = None if row.token == item.token else "a claim that has ended changes the row"
            written = s._replace(rows=put(s.rows, item.row, self._written(row, item)))
            yield Step(name, who, _dropped(written, w, item), wrong=wrong)
            if spent := spend(s, "lose"):
                lost = cannot_write(written._replace(faults=spent.faults), w, has_failed=True)
                yield Step(name, f"{who}, whose answer is lost", lost, is_fault=True)
        elif row.settled == item.token and self.has("settled"):
            yield Step(name, f"{who}, again", _dropped(s, w, item))
        elif row.token and row.owner == w:
            # A later claim of its own. That claim's answer may still be on its way.
            again = item._replace(token=row.token, left=max(item.left, 0))
            awaited = {(item.row, row.token)} if worker.asked is not None else ()
            later = with_worker(s, w, written=worker.written.union(awaited))
            yield Step("ends", f"{who}, claimed again", _replaced(later, w, item, again))
        else:
            wrong = "a worker believes that another has what it has written itself"
            yield Step(
                "ends", f"{who}, lost", _dropped(s, w, item), wrong=wrong if row.settled == item.token else None
            )

    def _written(self, row: Row, item: Item) -> Row:
        """`sql/complete`."""
        if item.phase == "back":
            return freed(row, item.token)._replace(
                due=0, rounds=item.rounds, crashes=min(row.crashes, item.rounds)
            )
        kind = self.world.rows[item.row]
        if kind.is_endless and item.phase == "ok":
            return Row()
        number = item.attempts + 1
        most = kind.attempts + row.granted + item.grants if self.has("cap") else 1_000_000
        change = transition(number, most, Outcome(0, 0, status_code=200 if item.phase == "ok" else 500))
        granted = row.granted or (item.grants and change.status == "retrying")
        row = freed(row, item.token)._replace(
            granted=granted, status=change.status, attempts=number, due=ticks(change.delay_seconds), crashes=0
        )
        return row._replace(takeovers=0, rounds=0) if self.has("counts are cleared") else row

    def _turned(self, s: State, w: int, item: Item, phase: str) -> State:
        return _replaced(s, w, item, item._replace(phase=phase, is_aged=False))  # type: ignore[arg-type]

    # Time, accidents, operators

    def _waking(self, s: State, w: int) -> Iterator[Step]:
        """`Deadline.check`, `Executor.settle`: attempts whose leases are over have ended, with what has arrived or without."""
        awake = with_worker(s, w, is_stalled=False)
        over = [item for item in s.workers[w].items if item.phase == "sent" and item.left <= 0]
        if not over or not self.has("latest end"):
            yield Step("catch_up", f"worker {w}", awake)
            return
        for phase in ("back", "ok"):
            after = awake
            for item in over:
                after = self._turned(after, w, item, phase)
                if phase == "ok":
                    rows = put(after.rows, item.row, after.rows[item.row]._replace(arrived=True))
                    after = after._replace(rows=rows)
            yield Step("catch_up", f"worker {w}, {phase}", after)

    def _pausing(self, s: State) -> Iterator[Step]:
        if not s.pause and (spent := spend(s, "pause")):
            yield Step("pause", "", spent._replace(pause="new"), is_fault=True)
        if s.pause:
            yield Step("resume", "", s._replace(pause=""))

    def _hearing(self, s: State) -> Iterator[Step]:
        """Signals, which may be lost, and looks."""
        for w, worker in enumerate(s.workers):
            due = {self.lane(r) for r, row in enumerate(s.rows) if self.is_free(s, w, row)} - worker.hears
            if not self.world.signals or worker.is_stalled or not due:
                continue
            heard = with_worker(s, w, hears=worker.hears | due)
            yield Step("wake", f"worker {w}", heard, is_fault=True)
            if self.has("looks"):
                yield Step("look", f"worker {w}", heard)

    def _tick(self, s: State) -> State | None:
        """Return the state after a tick; ``None``: something that runs has to happen before."""
        if self.world.patience is not None:
            return None  # turns are counted in claims
        workers = []
        for w, worker in enumerate(s.workers):
            left = worker.asked and (max(-LEASE, worker.asked[0] - 1), *worker.asked[1:])
            contact = worker.contact
            if self.world.has_outages:
                fails: Literal["waits", "fails"] = "waits" if self.world.waits else "fails"
                contact = contact_after(contact, "passes" if s.database > 0 else fails)
            if worker.is_stalled:
                pass
            elif any(self._is_urgent(s, item) for item in worker.items) or (
                self.world.polls and s.database == 2 and not worker.asked and self.eligible(s, w)
            ):
                return None
            items = tuple(
                item._replace(left=max(0, item.left - 1), is_aged=item.is_aged or not worker.is_stalled)
                for item in worker.items
            )
            enqueued = worker.enqueued and worker.enqueued._replace(left=max(0, worker.enqueued.left - 1))
            workers.append(worker._replace(items=items, asked=left, enqueued=enqueued, contact=contact))
        rows = tuple(
            row._replace(
                due=max(0, row.due - 1),
                until=max(LONG_AGO if self.world.has_outages else 0, row.until - 1) if row.token else 0,
            )
            for row in s.rows
        )
        if s.database < 1:
            spent = spend(s, "away")
            if spent is None:
                return None
            s = spent
        return s._replace(
            rows=rows,
            workers=tuple(workers),
            database=2 if s.database > 0 else 0,
            pause="old" if s.pause == "new" else s.pause,
        )

    def _is_urgent(self, s: State, item: Item) -> bool:
        """Return whether something ends within a tick in a worker that runs."""
        if item.phase == "sent":
            return item.is_aged or (item.left <= 1 and self.has("latest end"))
        # After an outage, workers try again within a third of a lease.
        if item.is_unwritten:
            return s.database == 2
        return item.is_aged or (bool(s.pause) and not item.is_probe and self.has("paused rows go back"))

    # What must hold

    def wrong(self, s: State) -> str | None:
        """Return which promise a state breaks."""
        if self.world.patience is not None and s.passed > self.world.patience:
            return f"{s.passed} rows were claimed, which left a row behind that is due"
        found = (
            *(self._wrong_row(s.rows[r], r) for r in range(len(s.rows))),
            *(self._wrong_worker(s, w) for w in range(len(s.workers))),
        )
        return next((each for each in found if each is not None), None)

    def _wrong_row(self, row: Row, r: int) -> str | None:
        kind = self.world.rows[r]
        used_up = row.begun and row.attempts >= kind.attempts + row.granted
        if row.attempts > kind.attempts + row.granted:
            return f"row {r} has more attempts than it may have"
        if row.status == "delivered" and not row.arrived:
            return f"row {r} is delivered and has not arrived"
        if row.status == "dead" and not used_up and row.crashes < QUARANTINE_ROUNDS:
            return f"row {r} is dead without the attempts that it may have"
        return None

    @staticmethod
    def _wrong_worker(s: State, w: int) -> str | None:
        worker = s.workers[w]
        rows = [item.row for item in worker.items]
        if len(rows) > len(set(rows)):
            return f"worker {w} has a row twice"
        for item in worker.items:
            row = s.rows[item.row]
            lives = row.token == item.token and row.until > 0
            if item.phase == "sent" and not worker.is_stalled and not lives:
                return f"row {item.row} is in flight in worker {w}, which has no lease of it"
        return None

    def has_ended(self, s: State) -> bool:
        """Return whether every row is delivered or dead."""
        return all(not row.is_live and not row.is_absent for row in s.rows)


def _replaced(s: State, w: int, item: Item, by: Item) -> State:
    items = tuple(sorted(by if each is item else each for each in s.workers[w].items))
    return with_worker(s, w, items=items)


def _dropped(s: State, w: int, item: Item) -> State:
    """The worker has nothing left of an item to write; if it was the last, it can write again."""
    items = tuple(each for each in s.workers[w].items if each is not item)
    failed = s.workers[w].has_failed and any(each.is_unwritten for each in items)
    return with_worker(s, w, items=items, has_failed=failed)


def _killed(s: State, w: int) -> State:
    """A worker ends, and another one starts in its place."""
    rows = tuple(row._replace(owner=GONE) if row.owner == w else row for row in s.rows)
    return s._replace(rows=rows, workers=put(s.workers, w, STARTED))
