"""Rows that claims skip: rows in quarantine, and rows whose due time is wrong because the clock was changed."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    String,
    Text,
    Update,
    bindparam,
    case,
    column,
    false,
    null,
    or_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.queue.claimed import ClaimedDelivery, read_row
from flowactions_plugin.queue.claims import claiming
from flowactions_plugin.queue.contact import Contact, new_token
from flowactions_plugin.queue.due import free, undoubted, unpaused, withdrawn
from flowactions_plugin.queue.rules import LONGEST_SCHEDULED_SECONDS, LONGEST_WAIT_SECONDS, PAUSED_OFFSET_MS
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import LIVE, QUARANTINED, outbox

RESCUED_CLAIMS: Final = 10_000
"""Among how many of the oldest rows leases are searched for that end too far ahead; and among how many of the rows that wait
for long, from either end, those that were written in the future."""

FUTURE_MS: Final = 500
"""A row that was written no later than this ahead is no sign of a clock that was set back: the statement that looks for it
may have begun a little before it was written."""


class RecoveryStore:
    """Claims quarantined rows, and rescues rows, in one database.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
    """

    def __init__(self, database: Database, contact: Contact) -> None:
        self.contact = contact
        self.database = database

    async def probe(self) -> None:
        """Write to the queue without changing anything, to see whether it can be written.

        Raises:
            StorageUnavailable: it cannot.
        """
        began, probing = self.contact.now(), self.database.built(_probing)
        await self.database.in_transaction(lambda connection: connection.execute(probing))
        self.contact.succeeded(began)

    async def withdrawn(self, held: Collection[ClaimedDelivery]) -> set[str]:
        """Return the ids of deliveries that may not begin any more: they are paused, or their claims have ended."""
        if not held:
            return set()
        columns = ("id", "token", "organization_id", "destination")
        asked = [{name: getattr(each, name) for name in columns} for each in held if each.defect is None]
        given = {"held": self.database.sql.json_rows(asked)}
        return {row.id for row in await self.database.rows(self.database.built(withdrawn), given)}

    async def any_quarantined(self) -> bool:
        """Return whether a row is due that may be sent in quarantine only."""
        doubt = self.contact.doubt()
        return bool(await self.database.rows(self.database.built(_quarantined, bool(doubt)), doubt))

    async def claim_quarantined(self) -> ClaimedDelivery | None:
        """Claim the oldest row that may be sent in quarantine only, if one is due."""
        lease_end = lease_clock() + self.contact.lease_seconds
        token = new_token(self.contact.token_prefix)

        def claim(connection: Connection) -> list[Row[Any]]:
            doubt = self.contact.doubt()
            chosen = self.database.built(_quarantined, bool(doubt)).with_for_update(skip_locked=True)
            # Of such a row, the rounds that were begun are counted, and not the reclaims.
            statement = claiming(self.database.sql, chosen, self.contact.lease_seconds, count_reclaims=False)
            return list(connection.execute(statement, {"token": token, **doubt}).all())

        rows = await self.database.in_transaction(claim)
        return read_row(rows[0], lease_end) if rows else None

    async def begin_quarantined(self, delivery: ClaimedDelivery) -> bool:
        """Count a round in quarantine as begun, before its request leaves.

        Returns:
            Whether the claim still held.
        """
        begun = (
            update(outbox)
            .where(outbox.c.id == delivery.id, outbox.c.claimed_by == delivery.token)
            # From the value that was claimed: a repeated write counts once.
            .values(quarantine_rounds=delivery.quarantine_rounds + 1, updated_at=self.database.now())
            .returning(outbox.c.id)
        )
        return bool(await self.database.in_transaction(lambda connection: connection.execute(begun).all()))

    async def rescue(self) -> int:
        """Make rows due that wait longer, or are held longer, than any rule lets them.

        The clock was set back after they were scheduled or claimed.

        Returns:
            How many there were; they are due when a claim that may still hold has expired, or after the delay that a retry
            schedule gave them.
        """
        rescued = 0
        for lost, rescuing in self.database.built(_rescuing):
            if not await self.database.rows(lost):
                continue
            parameters = {"lease_ms": int(self.contact.lease_seconds * 1000)}
            rescued += await self.database.in_transaction(partial(_changed, rescuing, parameters))
        return rescued


def _changed(statement: Update, parameters: dict[str, int], connection: Connection) -> int:
    return connection.execute(statement, parameters).rowcount


def _quarantined(sql: Dialect, in_doubt: bool) -> Any:
    """Select the oldest row that is due and may be sent in quarantine only.

    Args:
        sql: the dialect.
        in_doubt: whether leases are in doubt.
    """
    # SQLite would search the index of all rows that are due.
    rows = sql.by_index(outbox, "ix_flowactions_outbox_quarantined")
    row_id: ColumnElement[str] = column("id", String)
    due: ColumnElement[int] = column("next_attempt_at", BigInteger)
    held_until: ColumnElement[int] = column("claimed_until", BigInteger)
    held_by: ColumnElement[str] = column("claimed_by", String)
    owner: ColumnElement[str] = column("organization_id", Text)
    destination: ColumnElement[str] = column("destination", Text)
    now = sql.now()
    is_free = undoubted(now, held_until, held_by) if in_doubt else free(now, held_until)
    return (
        select(row_id, due)
        .select_from(text(rows))
        .where(QUARANTINED, due <= now, is_free, *unpaused(owner, destination))
        .order_by(due, row_id)
        .limit(inline(1))
    )


def _rescuing(sql: Dialect) -> tuple[tuple[Select[Any], Update], tuple[Select[Any], Update]]:
    """Write the statements that find and mend rows that wait, or are held, longer than any rule lets them.

    A row that is due later than §8 lets it may wait by a retry schedule, of whichever worker delivered it. The row itself
    says so: what made it due has written ``updated_at``, too, which lies ahead only if the clock was set back since. Its
    delay then begins anew.

    Leases are not indexed. Those that were given before the clock was set back are of rows that were the oldest which
    were due, so they are searched for among the oldest `RESCUED_CLAIMS`.
    """
    now = sql.now()
    due, written = outbox.c.next_attempt_at, outbox.c.updated_at
    longest = now + inline(int(LONGEST_WAIT_SECONDS * 1000))
    again = now + bindparam("lease_ms", type_=BigInteger)
    late = (LIVE, due > longest, due < inline(PAUSED_OFFSET_MS))
    most = inline(int(LONGEST_SCHEDULED_SECONDS * 1000))

    def is_wrong(rows: Any) -> ColumnElement[bool]:
        # No difference with a time that nobody has written: it could overflow.
        return or_(rows.updated_at > now + inline(FUTURE_MS), rows.updated_at < rows.next_attempt_at - most)

    ends = [
        select(
            select(outbox.c.id, due, written)
            .where(*late)
            .order_by(*order)
            .limit(inline(RESCUED_CLAIMS))
            .subquery()
        )
        for order in ((due, outbox.c.id), (due.desc(), outbox.c.id.desc()))
    ]
    seen = union_all(*ends).subquery("seen")
    by_schedule = written.between(due - most, due - inline(int(LONGEST_WAIT_SECONDS * 1000)))
    oldest = (
        select(outbox.c.id, outbox.c.claimed_until)
        .where(LIVE, outbox.c.next_attempt_at <= longest)
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(RESCUED_CLAIMS))
        .subquery("oldest")
    )
    held = select(oldest.c.id).where(oldest.c.claimed_until > longest)
    return (
        (
            select(seen.c.id).where(is_wrong(seen.c)).limit(inline(1)),
            update(outbox)
            .where(*late, is_wrong(outbox.c))
            # What may still be held is due when that has expired.
            .values(
                next_attempt_at=case((by_schedule, now + (due - written)), else_=again),
                claimed_until=null(),
                updated_at=now,
            ),
        ),
        (
            held.limit(inline(1)),
            update(outbox)
            .where(outbox.c.id.in_(held), outbox.c.claimed_until > longest)
            .values(claimed_until=again, updated_at=now),
        ),
    )


def _probing(_sql: Dialect) -> Update:
    """Write the statement that fails where rows of the queue cannot be written, and changes none."""
    return update(outbox).where(false()).values(updated_at=outbox.c.updated_at)
