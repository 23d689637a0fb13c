"""The organizations and destinations that have live rows, wherever in the queue these stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import Select, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.outbox.due import due_rows
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import LIVE, outbox
from flowactions_plugin.storage.text import read_all

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

ORGANIZATIONS_A_CLAIM: Final = 16
"""How many organizations have their turn in a claim."""


class Found(NamedTuple):
    """Organizations or destinations that have live rows.

    Attributes:
        places: a few of them.
        whole: whether these are all that there are.
    """

    places: Sequence[Any] = ()
    whole: bool = False


NONE_FOUND: Final = Found()


class Places:
    """Organizations or destinations that have live rows, a few at a time, over and over.

    Args:
        owner: the column.
        most: how many at a time.
    """

    def __init__(self, owner: str, most: int) -> None:
        self._owner = owner
        self._most = most
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
        given = {} if begins else {"place": database.sql.text_value(self._last)}
        query = database.built(_some_places, self._owner, self._most, begins)
        places = [row.place for row in read_all(connection, query, given)]
        ends = len(places) < self._most
        self._last = None if ends else places[-1]
        return Found(places, begins and ends)

    def oldest(
        self,
        database: Database,
        connection: Connection,
        places: Sequence[Any],
        rows: int,
        doubt: Mapping[str, Any],
    ) -> list[Any]:
        """Return the ids of the oldest rows that are due of some of them.

        Args:
            database: one that cannot look them up for all places at once.
            connection: the transaction's.
            places: which of them.
            rows: of each.
            doubt: parameters of the condition for leases in doubt; empty: none is.
        """
        statement = database.built(_oldest_of, self._owner, rows, bool(doubt))
        value = database.sql.text_value
        return [
            row.id
            for place in places
            for row in read_all(connection, statement, {"place": value(place), **doubt})
        ]


def _oldest_of(database: Dialect, owner: str, rows: int, in_doubt: bool) -> Select[Any]:
    """Select the oldest rows that are due of the organization or destination in the parameter ``place``.

    Args:
        database: where.
        owner: the column of the organization, or of the destination.
        rows: how many.
        in_doubt: whether leases are in doubt.
    """
    own = outbox.c[owner] == database.text_parameter("place")
    due = due_rows(database, database.now(), rows, in_doubt=in_doubt)
    return due.with_only_columns(outbox.c.id).where(own)


def _some_places(database: Dialect, owner: str, most: int, first: bool) -> Select[Any]:
    """Select a few organizations or destinations that have live rows, the last in order first.

    Each is looked up before the one found last, from its newest row: the index entries of rows that have ended, which
    PostgreSQL keeps until it vacuums, are those of the oldest.

    Args:
        database: where.
        owner: the column of the organization, or of the destination.
        most: how many at the most.
        first: whether to begin with the last of all; if not, before the parameter ``place``.
    """
    each = outbox.c[owner]

    def before(place: Any) -> Any:
        # The first condition holds for every text, and has SQLite search the index.
        return (
            select(each)
            .where(LIVE, each >= "" if place is None else each < place)
            .order_by(each.desc(), outbox.c.next_attempt_at.desc(), outbox.c.id.desc())
            .limit(inline(1))
            .scalar_subquery()
        )

    start = before(None if first else database.text_parameter("place"))
    found = select(start.label("place"), literal(1).label("number")).cte("places", recursive=True)
    found = found.union_all(
        select(before(found.c.place), found.c.number + 1).where(
            found.c.place.is_not(None), found.c.number < inline(most)
        )
    )
    return select(found.c.place).where(found.c.place.is_not(None))
