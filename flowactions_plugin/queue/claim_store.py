"""Claims rows: which ones, with which statements, and what is remembered from claim to claim.

The lease contract and the statements are in `queue.claims`, what becomes of rows that claims
pass over in `queue.recovery_store`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Executable, Row
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.queue.claimed import COLUMNS, NEW, ClaimedDelivery, read_row
from flowactions_plugin.queue.claims import CLAIM_BYTES, ClaimScope, Shape, claiming, eligible, size_of
from flowactions_plugin.queue.contact import Contact, new_token
from flowactions_plugin.queue.owners import DESTINATIONS_A_CLAIM, NONE_FOUND, Found, Owners, turn_organizations
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect

FULL_SCAN_INTERVAL: Final = 1.0
"""Seconds between claims that search the whole index of rows that are due."""

FULL_SCAN_SHARE: Final = 0.02
"""The share of the time that these may take at the most: while a transaction stays open, such as a backup, PostgreSQL keeps the
index entries of all that was delivered since."""

MOST_FULL_SCAN_INTERVAL: Final = 30.0

SCAN_MARGIN: Final = 1000
"""Milliseconds before the due time of the oldest row that the last claim examined, where the other claims begin to search.

PostgreSQL keeps the index entries of claimed rows until it vacuums. Claims that began at the oldest entry would read all of
them."""

LEAST_WINDOW: Final = 32
"""How many due rows a claim examines at least."""

BEYOND_HEAD_SECONDS: Final = 0.1
"""Seconds without a look behind the destinations that hold the head of the queue, after a look that has found nothing."""


def full_scan_interval(took: float) -> float:
    """Return the seconds from a claim that searches the whole index, and took so many, to the next."""
    return min(MOST_FULL_SCAN_INTERVAL, max(FULL_SCAN_INTERVAL, took / FULL_SCAN_SHARE))


class ClaimStore:
    """Claims rows of one database.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
    """

    def __init__(self, database: Database, contact: Contact) -> None:
        self.contact = contact
        self._database = database
        self._organizations = Owners.of_organizations()
        self._destinations = Owners.of_destinations()
        # Until when these take turns, or none because there is only one.
        self._taking_turns: Sequence[Any] = []
        self._organizations_at = 0.0
        # Until when no destination but those at their limit has rows.
        self._beyond_head_at = 0.0
        self._saturated = True
        self._head_at_limit = False
        self._scan_from = 0
        self._full_scan_at = 0.0

    @property
    def searches_beyond_head(self) -> bool:
        """Whether rows may be due to other destinations than those at their limit: a moment ago there were none."""
        return time.monotonic() >= self._beyond_head_at

    async def claim(
        self,
        limit: int,
        *,
        per_destination: int | None = None,
        in_flight: Mapping[str, int] | None = None,
        search_beyond_head: bool = False,
    ) -> list[ClaimedDelivery]:
        """Claim up to ``limit`` rows that are due, oldest first (§8).

        Args:
            limit: how many at the most.
            per_destination: how many to one destination at the most, counted with those that are in flight.
                Rows to other destinations are then found behind any backlog, at a cost that does not grow with it, and
                organizations take turns.
            in_flight: how many are in flight to each destination.
            search_beyond_head: whether something was enqueued since the claim before: then rows behind a backlog are looked
                for, although the last look has found none.
        """
        if search_beyond_head:
            self._beyond_head_at = 0.0
        # Before the statement: the lease runs while its answer is on the way.
        lease_end = lease_clock() + self.contact.lease_seconds
        given = {"token": new_token(self.contact.token_prefix), "room": CLAIM_BYTES}
        began = self.contact.now()
        if per_destination is None:
            rows = await self._database.in_transaction(
                lambda connection: self._run(connection, Shape(limit), given, self._doubt())
            )
        else:
            rows = await self._claim_within_limits(limit, per_destination, Counter(in_flight or {}), given)
        self.contact.succeeded(began)
        return sorted((read_row(row, lease_end) for row in rows), key=lambda each: str(each.id))

    def claim_with_enqueue(self, values: Mapping[str, Any]) -> ClaimedDelivery:
        """Return a new row as the statement that enqueues it will claim it.

        Args:
            values: of its columns.
        """
        lease_end = lease_clock() + self.contact.lease_seconds
        row = {**NEW, **values, "claimed_by": new_token(self.contact.token_prefix)}
        return read_row([row.get(name) for name in COLUMNS], lease_end)

    async def claim_of(
        self,
        organizations: Sequence[str],
        limit: int,
        *,
        per_destination: int,
        in_flight: Mapping[str, int],
    ) -> list[ClaimedDelivery]:
        """Claim rows that are due of some organizations, wherever in the queue they stand.

        It costs little, and may run beside `claim`.

        Args:
            organizations: which.
            limit: how many rows at the most.
            per_destination: how many to one destination at the most, counted with those that are in flight.
            in_flight: how many are in flight to each destination.
        """
        lease_end = lease_clock() + self.contact.lease_seconds
        parameters = {
            "token": new_token(self.contact.token_prefix),
            "room": CLAIM_BYTES,
            "limit": limit,
            "in_flight": self._in_flight(in_flight),
        }
        reach = ClaimScope(0, per_destination, limit, organizations)
        rows, _ = await self._examine({}, lambda _found: reach, parameters)
        return sorted((read_row(row, lease_end) for row in rows), key=lambda each: str(each.id))

    async def _claim_within_limits(
        self, limit: int, per_destination: int, used: Counter[Any], given: dict[str, Any]
    ) -> list[Row[Any]]:
        """Claim rows within the per-destination limit.

        When few of the oldest rows are within it, destinations at their limit may hold the head of the queue: then rows
        behind them are claimed too, from then on by the same statement.
        """
        begun = time.monotonic()
        if begun > self._full_scan_at:
            self._scan_from, self._head_at_limit = 0, False
        is_full = not self._scan_from
        looks = self._head_at_limit and self.searches_beyond_head
        rows = await self._claim(limit, per_destination, used, given, turns=self._saturated, looks=looks)
        if is_full:
            self._full_scan_at = begun + full_scan_interval(time.monotonic() - begun)
        at_limit = any(count >= per_destination for count in used.values())
        self._saturated = at_limit or len(rows) >= limit
        room = CLAIM_BYTES - sum(size_of(row) for row in rows)
        if len(rows) <= limit // 2 and at_limit and not looks and self.searches_beyond_head and room > 0:
            given["room"] = room
            found = await self._claim(limit - len(rows), per_destination, used, given, looks=True)
            self._head_at_limit = bool(found)
            rows += found
        return rows

    async def _claim(
        self,
        limit: int,
        per_destination: int,
        used: Counter[Any],
        given: Mapping[str, Any],
        *,
        turns: bool = False,
        looks: bool = False,
    ) -> list[Row[Any]]:
        """Claim once from the head of the queue, and from behind it.

        Args:
            limit: how many rows at the most.
            per_destination: how many to one destination.
            used: how many are in flight to each destination; what is claimed is added.
            given: parameters of the statement.
            turns: whether organizations take turns.
            looks: whether rows behind destinations at their limit are looked for.
        """
        free: Sequence[Any] = []

        def reach(found: Mapping[Owners, Found]) -> ClaimScope:
            nonlocal free
            owners = self._owners(found.get(self._organizations)) if turns else []
            free = [
                owner
                for owner in found.get(self._destinations, NONE_FOUND).owners
                if used[owner] < per_destination
            ]
            # A power of two, so that few statements differ, and the database has planned them before.
            window = 1 << (max(limit, LEAST_WINDOW) - 1).bit_length()
            return ClaimScope(window, per_destination, limit, owners, free)

        asked: dict[Owners, int] = {}
        # A claim of fewer rows than organizations serves some of them, and the next claim serves the following ones.
        most = turn_organizations(limit, per_destination)
        if turns and (time.monotonic() >= self._organizations_at or len(self._taking_turns) > most):
            asked[self._organizations] = most
        if looks:
            asked[self._destinations] = DESTINATIONS_A_CLAIM
        parameters = {**given, "limit": limit, "in_flight": self._in_flight(used)}
        rows, found = await self._examine(asked, reach, parameters)
        used.update(row.destination for row in rows)
        if rows and self._database.sql.keeps_index_entries and rows[0].head_at is not None:
            self._scan_from = rows[0].head_at - SCAN_MARGIN
        if looks and found[self._destinations].whole and not {row.destination for row in rows} & {*free}:
            # Without an enqueue there is nothing for a while, retries apart.
            self._beyond_head_at, self._head_at_limit = time.monotonic() + BEYOND_HEAD_SECONDS, False
        return rows

    async def _examine(
        self,
        asked: Mapping[Owners, int],
        reach: Callable[[Mapping[Owners, Found]], ClaimScope],
        parameters: dict[str, Any],
    ) -> tuple[list[Row[Any]], Mapping[Owners, Found]]:
        """Find organizations and destinations, and claim: in one transaction where there is one writer, else in one each.

        Args:
            asked: which are found, and how many at the most.
            reach: returns which rows are examined then.
            parameters: of the claim.
        """
        found: dict[Owners, Found] = {}
        database = self._database
        one_writer = database.sql.one_writer
        if not one_writer:
            for each, most in asked.items():
                found[each] = await database.in_transaction(partial(each.next, database, most))

        def claim(connection: Connection) -> list[Row[Any]]:
            if one_writer:
                found.update({each: each.next(database, most, connection) for each, most in asked.items()})
            examined = reach(found)
            doubt = self._doubt()
            others = self._others(connection, examined, doubt)
            given = {**parameters, "since": self._scan_from, **others}
            return self._run(connection, examined.shape, given, doubt)

        return await database.in_transaction(claim), found

    def _in_flight(self, used: Mapping[Any, int]) -> str:
        rows = [{"destination": destination, "number": number} for destination, number in used.items()]
        return self._database.sql.json_rows(rows)

    def _owners(self, found: Found | None) -> Sequence[Any]:
        """Return the organizations that have their turn in a claim; none when there are not several.

        When all of them can have it, they are the same for a while: rows of a new one are claimed beside (`claim_of`).
        """
        if found is not None:
            self._taking_turns = found.owners if len(found.owners) > 1 or not found.whole else []
            if found.whole:
                self._organizations_at = time.monotonic() + BEYOND_HEAD_SECONDS
        return self._taking_turns

    def _others(self, connection: Connection, reach: ClaimScope, doubt: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameters of a claim that say which rows behind the head of the queue it examines."""
        given = {
            name: self._database.sql.json_rows([{"owner": owner} for owner in owners])
            for name, owners in (
                ("organizations", reach.organizations),
                ("destinations", reach.destinations),
            )
            if owners
        }
        if self._database.sql.has_lateral:
            return given
        shape = reach.shape
        ids: list[Any] = []
        for kind, owners, rows in (
            (self._organizations, reach.organizations, shape.turn),
            (self._destinations, reach.destinations, shape.each),
        ):
            ids += kind.oldest(self._database, connection, owners, rows, doubt)
        if not shape.turn and not shape.each:
            return {}
        return {**given, "found": self._database.sql.json_rows([{"id": each} for each in ids])}

    def _run(
        self, connection: Connection, shape: Shape, given: Mapping[str, Any], doubt: Mapping[str, Any]
    ) -> list[Row[Any]]:
        statement = self._database.built(self._claiming, shape._replace(in_doubt=bool(doubt)))
        return list(connection.execute(statement, {**given, **doubt}).all())

    def _doubt(self) -> dict[str, Any]:
        """Return the parameters of the condition for leases in doubt, empty when none is.

        It is asked for when nothing is waited for any more before the statement: neither a connection nor SQLite's lock.
        """
        return self.contact.doubt()

    def _claiming(self, sql: Dialect, shape: Shape) -> Executable:
        return claiming(sql, eligible(sql, shape), self.contact.lease_seconds)
