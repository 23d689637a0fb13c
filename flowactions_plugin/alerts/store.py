"""The SQL of alerts: deliveries that ended, and destinations that were paused or resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from sqlalchemy import func, or_, select, update
from sqlalchemy.engine import Connection

from flowactions_plugin.alerts.events import DeadGroup
from flowactions_plugin.clock import id_at
from flowactions_plugin.operators.scope import Role
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, FINISHED, audit, installation, outbox

DEAD_READ: Final = 10_000
"""How many rows of a window are counted at the most."""

GROUPS: Final = 10
"""How many groups an alert names."""

PAUSES_READ: Final = 500
"""How many pauses and resumptions are read at once."""


class Dead(NamedTuple):
    """Rows that ended without success within a window.

    Attributes:
        number: how many, of those that were read.
        exact: whether these are all.
        groups: the largest groups.
    """

    number: int
    exact: bool
    groups: list[DeadGroup]


class PauseChange(NamedTuple):
    """A pause (``pause``) or its end (``resume``), as the audit has it. Without an organization it is for all."""

    line_id: str
    action: str
    at: int
    organization_id: str | None
    destination: str
    role: Role


class AlertStore:
    """Reads what alerts report, in one database.

    Args:
        database: which.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def dead(self, since: int, until: int) -> Dead:
        """Return the rows that ended without success in a window, those that somebody has cancelled and alerts apart.

        Args:
            since: its start, Unix milliseconds.
            until: its end, which is not within it.

        Raises:
            StorageUnavailable: the database failed.
        """
        rows = (
            select(outbox.c.organization_id, outbox.c.destination, outbox.c.error_class)
            .where(
                FINISHED,
                outbox.c.status == inline("dead"),
                outbox.c.finished_at >= since,
                outbox.c.finished_at < until,
                outbox.c.organization_id != inline(EVERY_ORGANIZATION),
                or_(outbox.c.error_class.is_(None), outbox.c.error_class != inline("cancelled")),
            )
            .order_by(outbox.c.finished_at)
            .limit(inline(DEAD_READ + 1))
            .subquery("rows")
        )
        number = func.count().label("number")
        grouped = (
            select(rows.c.organization_id, rows.c.destination, rows.c.error_class, number)
            .group_by(rows.c.organization_id, rows.c.destination, rows.c.error_class)
            .order_by(number.desc(), rows.c.organization_id, rows.c.destination, rows.c.error_class)
            .limit(inline(GROUPS))
        )

        def work(connection: Connection) -> Dead:
            total = connection.execute(select(func.count()).select_from(rows)).scalar_one()
            groups = [
                DeadGroup(
                    organization_id=row.organization_id,
                    destination=row.destination,
                    error=row.error_class,
                    deliveries=row.number,
                )
                for row in (connection.execute(grouped).all() if total else ())
            ]
            return Dead(min(total, DEAD_READ), total <= DEAD_READ, groups)

        async with self._database.read() as connection:
            return await connection.run_sync(work)

    async def pause_changes(self, since: int) -> Sequence[PauseChange]:
        """Return the pauses that began or ended since a time (Unix milliseconds), the first ones first.

        Raises:
            StorageUnavailable: the database failed.
        """
        query = (
            select(
                *(
                    audit.c[name]
                    for name in ("id", "action", "at", "organization_id", "destination", "actor_role")
                )
            )
            .where(audit.c.id >= id_at(since), audit.c.action.in_(("pause", "resume")))
            .order_by(audit.c.id)
            .limit(inline(PAUSES_READ))
        )

        def work(connection: Connection) -> list[PauseChange]:
            return [
                PauseChange(
                    row.id,
                    row.action,
                    row.at,
                    row.organization_id or None,
                    row.destination,
                    cast("Role", row.actor_role),
                )
                for row in connection.execute(query).all()
            ]

        async with self._database.read() as connection:
            return await connection.run_sync(work)


async def installed(database: Database, transaction: Transaction | None = None) -> tuple[str, int]:
    """Return the id of an installation, and how many outages of writes have ended in it."""
    async with database.read(transaction) as connection:
        row = (await connection.execute(select(installation))).one()
    return row.id, int(row.outages)


async def end_outage(transaction: Transaction, number: int | None) -> bool:
    """Count the end of an outage of writes; return whether nobody else has."""
    outages = installation.c.outages
    ended = update(installation).where(outages == number).values(outages=outages + 1)
    return (await transaction.execute(ended)).rowcount == 1
