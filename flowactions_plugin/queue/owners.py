"""The organizations and destinations that have live rows, wherever in the queue these stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import ColumnElement, LargeBinary, Select, Text, bindparam, cast, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.queue.due import due_rows
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import LIVE, outbox
from flowactions_plugin.storage.text import raw_bytes, read_all

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

ORGANIZATIONS_A_CLAIM: Final = 16
"""How many organizations have their turn in a claim."""


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
        most: how many at a time.
    """

    def __init__(self, column: str, most: int) -> None:
        self._column = column
        self._most = most
        self._build = {
            first: partial(_some_owners, column=column, most=most, first=first) for first in (True, False)
        }
        # Built once: building a statement costs more than running it.
        self._oldest: dict[tuple[int, bool], Select[Any]] = {}
        self._last: Any = None

    @classmethod
    def of_organizations(cls) -> Self:
        """Return the organizations."""
        return cls("organization_id", ORGANIZATIONS_A_CLAIM)

    @classmethod
    def of_destinations(cls) -> Self:
        """Return the destinations."""
        return cls("destination", DESTINATIONS_A_CLAIM)

    def next(self, database: Database, connection: Connection) -> Found:
        """Return the next few."""
        begins = self._last is None
        given = {} if begins else {"owner": _owner_value(database, self._last)}
        owners = [row.owner for row in read_all(connection, database.built(self._build[begins]), given)]
        ends = len(owners) < self._most
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
            database: SQLite.
            connection: the transaction's.
            owners: which of them.
            rows: of each.
            doubt: parameters of the condition for leases in doubt; empty: none is.
        """
        name = rows, bool(doubt)
        if name not in self._oldest:
            self._oldest[name] = _oldest_of(database, self._column, rows, in_doubt=bool(doubt))
        statement = self._oldest[name]
        return [
            row.id
            for owner in owners
            for row in read_all(connection, statement, {"owner": _owner_value(database, owner), **doubt})
        ]


def _oldest_of(database: Dialect, column: str, rows: int, *, in_doubt: bool) -> Select[Any]:
    """Select the oldest rows that are due of the organization or destination in the parameter ``owner``.

    Args:
        database: SQLite.
        column: that of the organization, or of the destination.
        rows: how many.
        in_doubt: whether leases are in doubt.
    """
    own = outbox.c[column] == _owner(database)
    due = due_rows(database, database.now(), rows, in_doubt=in_doubt)
    return due.with_only_columns(outbox.c.id).where(own)


def _owner_value(database: Dialect, owner: Any) -> Any:
    """Return the value of the parameter ``owner`` for a value of `read_all`."""
    return owner if database.dialect == "postgresql" else raw_bytes(owner)


def _owner(database: Dialect) -> ColumnElement[str]:
    """Return the parameter ``owner``: on SQLite as bytes, which may not be UTF-8."""
    if database.dialect == "postgresql":
        return bindparam("owner", type_=Text)
    return cast(bindparam("owner", type_=LargeBinary), Text)


def _some_owners(database: Dialect, column: str, most: int, *, first: bool) -> Select[Any]:
    """Select a few organizations or destinations that have live rows, the last in order first.

    Each is looked up before the one found last, from its newest row: the index entries of rows that have ended, which
    PostgreSQL keeps until it vacuums, are those of the oldest.

    Args:
        database: where.
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

    start = before(None if first else _owner(database))
    found = select(start.label("owner"), literal(1).label("number")).cte("owners", recursive=True)
    found = found.union_all(
        select(before(found.c.owner), found.c.number + 1).where(
            found.c.owner.is_not(None), found.c.number < inline(most)
        )
    )
    return select(found.c.owner).where(found.c.owner.is_not(None))
