"""Claims: the SQL of lanes, and the lease contract.

A claim gives each row to one worker, with a token and for the lease. Only the holder of the row's present token can write its
outcome. An expired lease is reclaimed by a later claim under a new token, so a worker that resumes too late changes nothing. A
reclaim uses up no attempt, but is counted: a row that was reclaimed `QUARANTINE_AFTER` times is claimed for quarantine only.

A claim writes no column that is indexed, and leaves the due time as it is.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

import msgspec
from sqlalchemy.engine import Connection, Row

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.claimed import COLUMNS, NEW, ClaimedDelivery, read_row
from flowactions_plugin.queue.lanes import EVER, SINCE_MARGIN_MS, Due
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.database import Database

PREFIX_DIGITS: Final = 8
"""So many digits of a token name the worker."""

LONGEST_LOOK_SECONDS: Final = 60.0

OVERLAP_MS: Final = 2000
"""So far back a look begins before the last one: rows are committed a while after their due time was written."""

LONGEST_GRACE_SECONDS: Final = 1e12

HELD: Final = ("id", "token", "organization_id", "destination")
"""What is asked of a row that waits for a slot."""


class Contact:
    """When this worker could last write to the queue, and what follows for the leases of others.

    A worker that cannot write keeps the outcomes of what it has sent. Its leases end meanwhile, and a worker that writes again a
    moment earlier would send its rows once more. So leases of others that have ended since an outage began do not count as
    expired until one lease after its end: time enough for all workers to try again.

    Args:
        timing: of claims and attempts.
        clock: seconds, which also pass while the process is stopped.

    Attributes:
        timing: the same.
        lease_seconds: how long a claim holds.
        clock: the same.
        prefix: what the worker's tokens begin with, see `new_token`; empty: no worker claims.
    """

    def __init__(self, timing: Timing, clock: Callable[[], float] = lease_clock) -> None:
        self.timing = timing
        self.lease_seconds = timing.lease_seconds
        self.prefix = ""
        self.clock = clock
        self._last = -math.inf
        self._since = math.inf
        self._until = -math.inf

    @property
    def is_new(self) -> bool:
        """Whether this worker has not written to the queue yet: it knows of no outage before a write tells."""
        return self._last == -math.inf

    def failed(self) -> None:
        """Record that the queue could not be written."""
        self._since, self._until = self._began(), math.inf

    def succeeded(self, began: float) -> None:
        """Record that the queue was written to, by a statement that began then: until then a lease may have ended unnoticed."""
        if self._until == math.inf or self._is_late() or self._is_long(self.clock() - began):
            self._since, self._until = self._began(), self.clock() + self.lease_seconds
        self._last = max(began, self._last)

    def grace(self) -> float:
        """Return how many seconds later than it does a lease of another worker counts as expired."""
        now = self.clock()
        if now >= self._until and not self.is_new and not self._is_late():
            return 0.0
        return min(now - self._began(), LONGEST_GRACE_SECONDS)

    def _began(self) -> float:
        """Return when this outage began, or the last one, if it ended less than a lease ago. A new one begins with the last success."""
        return min(self._since, self._last) if self.clock() < self._until else self._last

    def _is_late(self) -> bool:
        return not self.is_new and self._is_long(self.clock() - self._last)

    def _is_long(self, seconds: float) -> bool:
        return seconds > self.timing.outage_seconds


def token_prefix(worker_id: str) -> str:
    """Return what the tokens of a worker's claims begin with: the end of its id, which is random."""
    return worker_id[-PREFIX_DIGITS:]


def is_token_of(token: object, worker_id: str) -> bool:
    """Return whether a stored token is of a claim of this worker's."""
    return isinstance(token, str) and token.startswith(token_prefix(worker_id))


def new_token(prefix: str) -> str:
    """Return a token that no other claim has: 32 hexadecimal digits, the first of them those of the worker."""
    return prefix + uuid4().hex[len(prefix) :]


def _within(lanes: Iterable[Due], most: int, sent: Mapping[tuple[str, str], int]) -> Iterator[Due]:
    """Yield lanes, those of one organization at one destination so many times at the most, with what was sent."""
    taken = Counter(sent)
    for due in lanes:
        host = (due.organization_id, due.destination)
        taken[host] += 1
        if taken[host] <= most:
            yield due


class ClaimStore:
    """Claims rows of one database, and finds the lanes in which rows are due.

    Whatever waits for the database raises `StorageUnavailable` when it failed.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
    """

    def __init__(self, database: Database, contact: Contact) -> None:
        self.database = database
        self.contact = contact
        self._looked_at = -math.inf
        self._moment = -1

    async def claim(self, asks: Sequence[Due], *, probe: bool = False) -> list[ClaimedDelivery]:
        """Claim the oldest rows that are due of lanes (§8), and return them, the oldest first.

        Args:
            asks: of which lanes, and how many of each.
            probe: whether they are claimed although their destination is paused.
        """
        sql = self.database.sql
        asked = [{**due._asdict(), "probe": probe} for due in asks]
        if not sql.is_server:
            by_rows: dict[int, list[dict[str, Any]]] = {}
            for each in asked:
                by_rows.setdefault(each["rows"], []).append(each)
            given = [{"asked": sql.json_rows(alike), "rows": rows} for rows, alike in by_rows.items()]
        else:
            given = [{"asked": sql.json_rows(asked)}]
        return sorted(await self._claim("claim", given), key=lambda row: (row.due_at, row.id))

    async def _claim(self, name: str, asked: Sequence[Mapping[str, Any]]) -> list[ClaimedDelivery]:
        """Claim what a statement finds with each of its parameters, in one transaction."""
        # Before the statement: the lease runs while its answer is on the way.
        lease_end = lease_clock() + self.contact.lease_seconds
        began, made = self.contact.clock(), self.database.built(statement, name)
        given = {
            "token": new_token(self.contact.prefix),
            "lease": int(self.contact.lease_seconds * 1000),
            "looked_at": self._moment,
        }

        def claim(connection: Connection) -> list[Row[Any]]:
            given.update(self.free())
            return [row for each in asked for row in connection.execute(made, {**given, **each}).all()]

        rows = await self.database.in_transaction(claim)
        self.contact.succeeded(began)
        return [read_row(row, lease_end) for row in rows]

    def claim_with_enqueue(self, values: Mapping[str, Any]) -> ClaimedDelivery:
        """Return a new row as the statement that enqueues it will claim it.

        Args:
            values: of its columns.
        """
        lease_end = lease_clock() + self.contact.lease_seconds
        row = {**NEW, **values, "claimed_by": new_token(self.contact.prefix)}
        size = len(row["body"] or b"") + len(row["headers"])
        return read_row([*(row.get(name) for name in COLUMNS), row["lane"], 0, size], lease_end)

    async def scan(self) -> list[Due]:
        """Find all lanes in which a row is due."""
        return await self._lanes("scan")

    async def look(self) -> list[Due]:
        """Find the lanes in which a row has become due since the last look or scan, or shortly before."""
        silence = min(time.monotonic() - self._looked_at, LONGEST_LOOK_SECONDS)
        return await self._lanes("look", milliseconds=int(silence * 1000) + OVERLAP_MS)

    async def _lanes(self, name: str, **given: int) -> list[Due]:
        if self.contact.is_new:
            await self.touch()
        began = time.monotonic()
        rows = self.found(await self._rows(name, **self.free(), **given))
        self._looked_at = began
        return [
            Due(row.lane, row.organization_id, row.destination, max(EVER, row.since - SINCE_MARGIN_MS))
            for row in rows
        ]

    def found(self, rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
        """Return what a look has found, and remember its time, by the database's clock: what had expired then, claims take over.

        A claim may wait in the database, as for a lock, and the outcomes of other workers wait as well. Their leases end meanwhile.
        """
        if rows:
            self._moment = rows[0].now
        return rows

    async def _rows(self, name: str, **given: Any) -> Sequence[Row[Any]]:
        return await self.database.rows(self.database.built(statement, name), given)

    async def oldest(
        self,
        limit: int,
        per_destination: int | None,
        sent: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> list[Due]:
        """Return what to claim for the oldest rows that are due, over all lanes (§8).

        Args:
            limit: how many rows at the most, with those that were sent.
            per_destination: how many of them to one destination of an organization at the most; ``None``: no limit.
            sent: how many were sent before, by organization and destination.
        """
        most = per_destination or limit
        limit -= sum(sent.values())
        heads = sorted(await self.scan(), key=lambda due: due.since)
        # The oldest rows are in the lanes with the oldest heads.
        lanes = {due.lane: due for due in islice(_within(heads, most, sent), limit)}
        if not lanes:
            return []
        asked = self.database.sql.json_rows([due._replace(rows=limit)._asdict() for due in lanes.values()])
        given = {} if self.database.sql.is_server else {"rows": limit}
        rows = await self._rows("peek", **self.free(), asked=asked, **given)
        ordered = sorted(rows, key=lambda row: (row.next_attempt_at, row.id))
        wanted = islice(_within((lanes[row.lane] for row in ordered), most, sent), limit)
        return [due._replace(rows=number) for due, number in Counter(wanted).items()]

    def free(self) -> dict[str, Any]:
        """Return the parameters of the condition that no lease holds a row: asked for when nothing is waited for any more."""
        return {"own": self.contact.prefix, "grace": int(self.contact.grace() * 1000)}

    async def withdrawn(self, held: Sequence[ClaimedDelivery]) -> set[str]:
        """Return the ids of deliveries that may not begin: paused, cancelled, or their claim has ended."""
        rows = [{name: getattr(each, name) for name in HELD} for each in held]
        return {row.id for row in await self._rows("withdrawn", held=self.database.sql.json_rows(rows))}

    async def whole(self, delivery: ClaimedDelivery) -> ClaimedDelivery | None:
        """Return a delivery with the large body that its claim has left out; ``None``: the claim has ended."""
        rows = await self._rows("body", id=delivery.id, token=delivery.token)
        return msgspec.structs.replace(delivery, body=rows[0].body) if rows else None

    async def touch(self) -> None:
        """Write to the queue without changing anything, to see whether it can be written."""
        began, made = self.contact.clock(), self.database.built(statement, "touch")
        try:
            await self.database.in_transaction(lambda connection: connection.execute(made))
        except StorageUnavailable:
            self.contact.failed()
            raise
        self.contact.succeeded(began)

    async def any_quarantined(self) -> bool:
        """Return whether a row is due that may be sent in quarantine only."""
        return bool(self.found(await self._rows("any_quarantined", **self.free())))

    async def claim_quarantined(self) -> ClaimedDelivery | None:
        """Claim the oldest row that may be sent in quarantine only, if one is due."""
        return next(iter(await self._claim("claim_quarantined", [{}])), None)

    async def begin_quarantined(self, delivery: ClaimedDelivery) -> ClaimedDelivery | None:
        """Count a round in quarantine as begun, before its request leaves; return the delivery as `whole` does."""
        made = self.database.built(statement, "begin_quarantined")
        # From the value that was claimed: a repeated write counts once.
        given = {"id": delivery.id, "token": delivery.token, "rounds": delivery.quarantine_rounds + 1}
        rows = await self.database.in_transaction(lambda connection: connection.execute(made, given).all())
        return msgspec.structs.replace(delivery, body=rows[0].body) if rows else None
