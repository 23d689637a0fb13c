"""The organizations and destinations that have live rows, at any place in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import Select, Text, bindparam, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.queue.due import due_rows
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import LIVE, outbox

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

ORGANIZATIONS_A_CLAIM: Final = 16
"""How many organizations have their turn in a claim at the most."""


def turn_organizations(limit: int, per_destination: int) -> int:
    """Return how many organizations have their turn in a claim: a power of two.

    If more had it than there are rows, in the claim or of one destination, those with the oldest rows would have every
    claim.

    Args:
        limit: rows of the claim at the most.
        per_destination: the per-destination limit.
    """
    return 1 << (max(1, min(ORGANIZATIONS_A_CLAIM, limit, per_destination)).bit_length() - 1)


class Found(NamedTuple):
    """Organizations or destinations that have live rows.

    Attributes:
        owners: a few of them.
        whole: whether these are all that there are.
    """

    owners: Sequence[Any] = ()
    whole: bool = False


NONE_FOUND: Final = Found()


class Owners:
    """Organizations or destinations that have live rows, a few at a time, over and over.

    Args:
        column: which of the two.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._last: Any = None

    @classmethod
    def of_organizations(cls) -> Self:
        """Return the organizations."""
        return cls("organization_id")

    @classmethod
    def of_destinations(cls) -> Self:
        """Return the destinations."""
        return cls("destination")

    def next(self, database: Database, most: int, connection: Connection) -> Found:
        """Return the next few.

        Args:
            database: where they are.
            most: how many at the most.
            connection: the transaction's.
        """
        begins = self._last is None
        given = {} if begins else {"owner": self._last}
        query = database.built(_some_owners, self._column, most, begins)
        owners = [row.owner for row in connection.execute(query, given).all()]
        ends = len(owners) < most
        self._last = None if ends else owners[-1]
        return Found(owners, begins and ends)

    def oldest(
        self,
        database: Database,
        connection: Connection,
        owners: Sequence[Any],
        rows: int,
        doubt: Mapping[str, Any],
    ) -> list[Any]:
        """Return the ids of the oldest rows that are due of some of them.

        Args:
            database: one that cannot look them up for all places at once.
            connection: the transaction's.
            owners: which of them.
            rows: of each.
            doubt: parameters of the condition for leases in doubt; empty: none is.
        """
        statement = database.built(_oldest_of, self._column, rows, bool(doubt))
        return [
            row.id for owner in owners for row in connection.execute(statement, {"owner": owner, **doubt}).all()
        ]


def _oldest_of(sql: Dialect, column: str, rows: int, in_doubt: bool) -> Select[Any]:
    """Select the oldest rows that are due of the organization or destination in the parameter ``owner``.

    Args:
        sql: the dialect.
        column: that of the organization, or of the destination.
        rows: how many.
        in_doubt: whether leases are in doubt.
    """
    own = outbox.c[column] == bindparam("owner", type_=Text)
    due = due_rows(sql, sql.now(), rows, in_doubt=in_doubt)
    return due.with_only_columns(outbox.c.id).where(own)


def _some_owners(_sql: Dialect, column: str, most: int, first: bool) -> Select[Any]:
    """Select a few organizations or destinations that have live rows, the last in order first.

    Each is looked up before the one found last, from its newest row: the index entries of rows that have ended, which
    PostgreSQL keeps until it vacuums, are those of the oldest.

    Args:
        column: that of the organization, or of the destination.
        most: how many at the most.
        first: whether to begin with the last of all; if not, before the parameter ``owner``.
    """
    each = outbox.c[column]

    def before(owner: Any) -> Any:
        # The first condition holds for every text, and has SQLite search the index.
        return (
            select(each)
            .where(LIVE, each >= "" if owner is None else each < owner)
            .order_by(each.desc(), outbox.c.next_attempt_at.desc(), outbox.c.id.desc())
            .limit(inline(1))
            .scalar_subquery()
        )

    start = before(None if first else bindparam("owner", type_=Text))
    found = select(start.label("owner"), literal(1).label("number")).cte("owners", recursive=True)
    found = found.union_all(
        select(before(found.c.owner), found.c.number + 1).where(
            found.c.owner.is_not(None), found.c.number < inline(most)
        )
    )
    return select(found.c.owner).where(found.c.owner.is_not(None))
