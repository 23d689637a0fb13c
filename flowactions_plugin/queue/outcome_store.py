"""Writes the ends of claims: the statements are in `queue.outcomes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import String, bindparam, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from flowactions_plugin.clock import id_time
from flowactions_plugin.errors import RowInvalid
from flowactions_plugin.operators.audit import PURGE, SKEW_MS
from flowactions_plugin.queue import outcomes
from flowactions_plugin.queue.claimed import ClaimedDelivery, ClaimEnd, Completion, Return
from flowactions_plugin.queue.claims import PREFIX_DIGITS, Contact, token_prefix
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import WORKER_ID_LENGTH, attempts, audit, outbox, workers

ROW_ERRORS: Final = ("22", "23")
"""SQLSTATE classes of errors about a value of one row, which say nothing about the other rows."""

WORKER_PREFIX: Final = func.substr(workers.c.id, WORKER_ID_LENGTH - PREFIX_DIGITS + 1)
"""What the tokens of a worker's claims begin with: `claims.token_prefix` in SQL."""

_ROWS: Final = select(outbox.c.id, outbox.c.status, outbox.c.claimed_by, outbox.c.settled_token).where(
    outbox.c.id.in_(bindparam("ids", type_=String, expanding=True))
)
_NAMES: Final = select(workers.c.id, workers.c.name).where(
    WORKER_PREFIX.in_(bindparam("prefixes", type_=String, expanding=True))
)
_PURGES: Final = (
    select(audit.c.organization_id, func.max(audit.c.at).label("at"))
    .where(
        audit.c.action == PURGE,
        audit.c.organization_id.in_(bindparam("organizations", type_=String, expanding=True)),
    )
    .group_by(audit.c.organization_id)
)


class OutcomeStore:
    """Ends claims in one database: with an outcome, or without an attempt.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
    """

    def __init__(self, database: Database, contact: Contact) -> None:
        self._database = database
        self.contact = contact

    async def complete(self, completions: Sequence[Completion]) -> set[str]:
        """Write the outcomes of attempts, and the ends without one, of each row whose claim still holds.

        It can be repeated when its answer was lost: then it finds what the first try wrote.

        Returns:
            The ids of those whose claim held. Other workers have claimed the others, of which nothing was written.

        Raises:
            RowInvalid: an outcome cannot be stored, and none was.
        """
        if not completions:
            return set()
        sql = self._database.sql
        logs = any(outcomes.is_logged(each) for each in completions)
        completing = self._database.built(outcomes.completing if logs else outcomes.completing_unlogged)
        values = [outcomes.completion_values(each, sql.bytes_value) for each in completions]
        given = {"done": sql.json_rows(values)}

        def write(connection: Connection) -> set[str]:
            updated = set(connection.execute(completing, given).scalars())
            if not sql.writes_two_tables:
                self._log(connection, [each for each in completions if each.delivery.id in updated])
            return updated

        try:
            held = await self._database.in_transaction(write)
        except DBAPIError as exc:
            if not str(getattr(exc.orig, "sqlstate", "")).startswith(ROW_ERRORS):
                raise
            raise RowInvalid(f"its outcome cannot be stored: {type(exc.orig).__name__}") from exc
        if len(held) < len(completions):
            held |= {row.id for row in await self._settled([each.delivery for each in completions])}
        return held

    def _log(self, connection: Connection, written: Sequence[Completion]) -> None:
        """Write what the one statement for outcomes cannot, where it writes to one table."""
        made = [outcomes.attempt_values(each) for each in written if outcomes.is_logged(each)]
        if made:
            # A log that holds this number already must not keep the outcome from being written.
            connection.execute(self._database.sql.insert_unless_there(attempts), made)
        kept = [
            {"row": each.delivery.id, "by": each.delivery.token, "kept": each.outcome.response}
            for each in written
            if each.change.status == "delivered"
            and self._database.sql.bytes_value(each.outcome.response) is None
        ]
        if kept:
            connection.execute(outcomes.keeping_response(), kept)

    async def give_back(self, returns: Sequence[Return]) -> dict[str, str]:
        """Give claims back without an attempt, for each row whose claim is still valid.

        Returns:
            The state of each row whose claim held: as it was, or ``dead`` for one that waited too long.
        """
        rows = [outcomes.return_values(each) for each in returns]
        if not rows:
            return {}
        given = {"given": self._database.sql.json_rows(rows)}
        giving_back = self._database.built(outcomes.giving_back)
        found: list[Any] = await self._database.in_transaction(
            lambda connection: list(connection.execute(giving_back, given).all())
        )
        if len(found) < len(rows):
            found += [*await self._settled([each.delivery for each in returns])]
            withdrawing = self._database.built(outcomes.withdrawing)
            await self._database.in_transaction(lambda connection: connection.execute(withdrawing, given))
        return {row.id: row.status for row in found}

    async def ends(self, deliveries: Sequence[ClaimedDelivery]) -> dict[str, ClaimEnd]:
        """Return what has ended the claims of deliveries, by id."""
        async with self._database.read() as connection:
            return await connection.run_sync(_ends, deliveries, self.contact.prefix)

    async def release(self, deliveries: Sequence[ClaimedDelivery], delay_seconds: float = 0.0) -> int:
        """Give claims back without an attempt; the rows are due again after ``delay_seconds``.

        Returns:
            How many claims still held.
        """
        return len(await self.give_back([Return(each, delay_seconds) for each in deliveries]))

    async def _settled(self, deliveries: Sequence[ClaimedDelivery]) -> list[Any]:
        """Return rows that were settled under their claims' tokens: an earlier try wrote them, and its answer was lost."""
        tokens = {each.id: each.token for each in deliveries}
        query = select(outbox.c.id, outbox.c.status, outbox.c.settled_token).where(outbox.c.id.in_(tokens))
        rows: Sequence[Any] = await self._database.in_transaction(
            lambda connection: connection.execute(query).all()
        )
        return [row for row in rows if row.settled_token == tokens[row.id]]


def _ends(
    connection: Connection, deliveries: Sequence[ClaimedDelivery], own_prefix: str
) -> dict[str, ClaimEnd]:
    """Return what has ended the claims of deliveries, by id.

    Args:
        connection: to the database of the queue.
        deliveries: whose claims do not hold.
        own_prefix: what the tokens of this worker's claims begin with; empty: it has none of its own.
    """
    rows = {row.id: row for row in connection.execute(_ROWS, {"ids": [each.id for each in deliveries]}).all()}
    tokens = {row_id: str(row.claimed_by or row.settled_token or "") for row_id, row in rows.items()}
    prefixes = {token[:PREFIX_DIGITS] for token in tokens.values()}
    workers_of = {
        token_prefix(row.id): row.name
        for row in connection.execute(_NAMES, {"prefixes": sorted(prefixes)}).all()
    }
    owners = {each.organization_id for each in deliveries if each.id not in rows}
    purges = {
        row.organization_id: row.at
        for row in (connection.execute(_PURGES, {"organizations": sorted(owners)}).all() if owners else ())
    }

    def end_of(delivery: ClaimedDelivery) -> ClaimEnd:
        row = rows.get(delivery.id)
        if row is None:
            purged_at = purges.get(delivery.organization_id)
            # What was enqueued after a purge, the purge has not removed.
            made_at = id_time(delivery.id) or 0
            purged = purged_at is not None and purged_at >= made_at - SKEW_MS
            return ClaimEnd("purged" if purged else "deleted")
        token = tokens[delivery.id]
        if token in {"", delivery.token}:
            return ClaimEnd("changed", str(row.status))
        prefix = token[:PREFIX_DIGITS]
        is_own = row.claimed_by is not None and bool(own_prefix) and prefix == own_prefix
        return ClaimEnd("reclaimed", f"worker {workers_of.get(prefix, prefix)}", token if is_own else None)

    return {each.id: end_of(each) for each in deliveries}
