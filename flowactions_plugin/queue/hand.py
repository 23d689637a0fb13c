"""What a worker has in hand: each row from the moment that its place is kept until the end of its claim is written. Pure, no I/O.

    reserved ──► waiting ──► in flight ──► ended ──► gone
                    └─────────────────────────▲

A row is *reserved* while the statement that enqueues it, and claims it, is on its way. It *waits* for a slot once it is claimed. Its
claim has *ended* when it is known what is to be written; what the database does not accept stays so. `Lanes` decides what begins; here
stands what has. A move that cannot be is refused: it would send a row twice, or lose a slot.

A worker that stood still for longer than its leases may claim a row that it has in hand. The later copy is dropped, and what comes
of the first one is written under the later claim: maybe before that claim is answered, so the row stays *written* until no claim is
on its way any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import msgspec

from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.lanes import Lanes

State: TypeAlias = Literal["reserved", "waiting", "in flight", "ended", "written"]

MOST_STALLS: Final = 5
"""How often in a row a delivery is given back because its attempt failed while this process stood still."""

STALLED_KNOWN: Final = 10_000
"""Of how many deliveries it is counted. Beyond, all counts begin anew."""


class Held(msgspec.Struct):
    """A row in hand.

    Attributes:
        token: of its claim, the latest one as far as this worker knows.
        state: where it is.
        has_slot: whether it takes one of the slots of `Lanes`; a probe, and what a tick sends, do not.
        is_awaited: whether the answer to its latest claim has not come.
    """

    token: str
    state: State
    has_slot: bool = False
    is_awaited: bool = False


class Hand:
    """The rows that a worker has in hand.

    Attributes:
        lanes: those of a worker that claims continuously: a row that ends frees its slot there. ``None``: there are no slots.
    """

    def __init__(self, lanes: Lanes | None = None) -> None:
        self.lanes = lanes
        self._rows: dict[str, Held] = {}
        self._claims = 0
        self._awaited: set[str] = set()
        self._stalls: dict[str, int] = {}

    def state(self, row_id: str) -> State | None:
        """Return where a row is; ``None``: not in hand."""
        held = self._rows.get(row_id)
        return None if held is None else held.state

    def ids(self, state: State) -> list[str]:
        """Return the ids of the rows in a state."""
        return [row_id for row_id, held in self._rows.items() if held.state == state]

    # From a claim to its slot

    def reserve(self, row: ClaimedDelivery) -> None:
        """Keep a place for a row that is being enqueued."""
        if row.id in self._rows:
            raise _refused(row, self._rows[row.id], "reserved")
        self._rows[row.id] = Held(row.token, "reserved")

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Within the block, a claim is on its way, and its answer is taken."""
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1
            if not self._claims:
                self._await_nothing()

    def take(self, claimed: Iterable[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Return what of a claim is new here, or was reserved: these rows wait now. The rest is in hand, or written under this claim."""
        taken = []
        for row in claimed:
            held = self._rows.get(row.id)
            if (
                held is None
                or held.state == "reserved"
                or (held.state == "written" and held.token != row.token)
            ):
                self._rows[row.id] = Held(row.token, "waiting")
                taken.append(row)
            elif held.token == row.token:
                held.is_awaited = False
                self._leave(row.id, held)
        return taken

    def release(self, reserved: Iterable[ClaimedDelivery]) -> None:
        """Give up the places of rows that were not claimed."""
        for row in reserved:
            held = self._rows.get(row.id)
            if held is not None and held.state == "reserved":
                del self._rows[row.id]

    def start(self, most: int) -> list[ClaimedDelivery]:
        """Give slots to rows that may begin now, so many at the most, and return these rows."""
        assert self.lanes is not None  # noqa: S101  only who has slots asks
        rows = self.lanes.start(most)
        for row in rows:
            self.begin(row, has_slot=True)
        return rows

    def begin(self, row: ClaimedDelivery, *, has_slot: bool = False) -> None:
        """Record that a row is in flight; `start` does so for rows that get a slot."""
        held = self._rows.get(row.id)
        if held is None or held.state != "waiting":
            raise _refused(row, held, "in flight")
        held.state, held.has_slot = "in flight", has_slot

    # From its end until that is written

    def end(self, row: ClaimedDelivery) -> None:
        """Record that it is known how the claim of a row ends; its slot is free."""
        held = self._rows.get(row.id)
        if held is None or held.state not in {"waiting", "in flight"}:
            raise _refused(row, held, "ended")
        held.state = "ended"
        self._free(row, held)

    def again(self, row: ClaimedDelivery, token: str) -> None:
        """Record that the end of a row has to be written once more, under a later claim of this worker's."""
        held = self._ended(row)
        held.token = token
        held.is_awaited = self._claims > 0
        if held.is_awaited:
            self._awaited.add(row.id)

    def written(self, row: ClaimedDelivery) -> None:
        """Record that the end of a row is written, or that its claim had ended otherwise: it is not in hand any more."""
        held = self._ended(row)
        held.state = "written"
        self._leave(row.id, held)

    def lose(self, row: ClaimedDelivery) -> None:
        """Record that a row ended with nothing to write, so that it is sent again when it is claimed again; its slot is free."""
        held = self._rows.get(row.id)
        if held is not None and held.state in {"waiting", "in flight"}:
            del self._rows[row.id]
            self._free(row, held)

    def _ended(self, row: ClaimedDelivery) -> Held:
        held = self._rows.get(row.id)
        if held is None or held.state != "ended":
            raise _refused(row, held, "written")
        return held

    def _free(self, row: ClaimedDelivery, held: Held) -> None:
        if held.has_slot and self.lanes is not None:
            held.has_slot = False
            self.lanes.end(row)

    def _leave(self, row_id: str, held: Held) -> None:
        if held.state == "written" and not held.is_awaited:
            del self._rows[row_id]

    def _await_nothing(self) -> None:
        """Forget what waits for the answer of a claim: all claims are answered, or failed."""
        for row_id in self._awaited:
            if (held := self._rows.get(row_id)) is not None:
                held.is_awaited = False
                self._leave(row_id, held)
        self._awaited.clear()

    # Stalls, which last longer than a claim

    def forgives(self, row: ClaimedDelivery) -> bool:
        """Return whether an attempt that fails while this process stands still is none."""
        return self._stalls.get(row.id, 0) < MOST_STALLS

    def stalled(self, row: ClaimedDelivery) -> None:
        """Count such an attempt."""
        if len(self._stalls) >= STALLED_KNOWN:
            self._stalls.clear()
        self._stalls[row.id] = self._stalls.get(row.id, 0) + 1

    def attempted(self, row: ClaimedDelivery) -> None:
        """Record that an attempt came to an end: stalls of the row are counted anew."""
        self._stalls.pop(row.id, None)


def _refused(row: ClaimedDelivery, held: Held | None, state: State) -> ValueError:
    """Return the error of a move that cannot be."""
    return ValueError(
        f"delivery {row.id} cannot be {state}: it is {'not in hand' if held is None else held.state}"
    )
