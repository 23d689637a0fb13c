"""Writes statistics and the health of destinations, and finds what the host is to be told, in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Integer, Text, and_, case, func, null, or_, select, update

from flowactions_hookspecs import DeliveryAlert, Origin
from flowactions_plugin.clock import to_utc
from flowactions_plugin.operators.audit import purged_since
from flowactions_plugin.queue.rules import GONE_STATUS
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.retention import DAY_MS
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, destinations, statistics
from flowactions_plugin.storage.waiting import repeated
from flowactions_plugin.watch.statistics import BUCKET_MS, COUNTS, EVERY_DESTINATION, Counts, alert_of

STATISTICS_KEPT_MS: Final = 8 * DAY_MS
"""How long statistics are kept."""

FRESH_MS: Final = 60_000
"""For so long, another success of a destination that does not fail is not written."""

SEVERAL: Final = ""
"""Instead of an origin, where failures in a row have several."""

MOST_FAILURES: Final = 1_000_000_000
"""A count of failures in a row grows no further."""

QueueAlerts: TypeAlias = Callable[[Transaction, Sequence[DeliveryAlert]], Awaitable[None]]
"""Writes alerts to the outbox, in the transaction that records them."""


@repeated
async def add_counts(
    database: Database,
    counted: Mapping[tuple[str, str], Counts],
    since: float,
    queue_alerts: QueueAlerts | None = None,
) -> Sequence[DeliveryAlert]:
    """Add what was counted to the present interval, and to the health of its destinations.

    To avoid deadlock, rows are locked in the order of their keys. Of an organization of which a purge has begun since
    something of it may have been counted, nothing is added.

    Args:
        database: where.
        counted: organization and destination → counts.
        since: when the first of it was counted, Unix seconds.
        queue_alerts: queues what operators are told; ``None``: they are told nothing.

    Returns:
        What the host is to be told: of any number of workers, one gets each. What a receiver has ended is told by each
        worker whose deliveries it has ended.

    Raises:
        StorageUnavailable: the database failed; nothing was written.
    """
    async with database.write() as transaction:
        # Locked first: a purge that this does not see yet waits for it (`Purge.remove`).
        await database.lock_table(transaction, statistics, "ROW EXCLUSIVE")
        purged = set((await transaction.execute(purged_since(int(since * 1000)))).scalars())
        kept = {key: counts for key, counts in counted.items() if key[0] not in purged}
        alerts = [*await _add(database, transaction, kept), *_gone(kept)] if kept else []
        if alerts and queue_alerts is not None:
            await queue_alerts(transaction, alerts)
        return alerts


async def _add(
    database: Database, transaction: Transaction, counted: Mapping[tuple[str, str], Counts]
) -> Sequence[DeliveryAlert]:
    """Add counts, and return which destinations fail now or have recovered."""
    built, json_rows = database.built, database.sql.json_rows
    health = [
        {
            "organization": organization,
            "destination": destination,
            "succeeded": int(counts.succeeded),
            "failures": counts.failures_in_row,
            "error": counts.last_error,
            "reason": counts.last_reason,
            "origin": _origin_text(counts.failing),
        }
        for (organization, destination), counts in sorted(counted.items())
        if counts.attempts
    ]
    await transaction.execute(built(_adding), {"counted": json_rows(_with_sums(counted))})
    if not health:
        return []
    changed = await transaction.execute(built(_updating_health), {"given": json_rows(health)})
    alerts = [alert for row in changed.all() if (alert := _alert(row)) is not None]
    for alert in alerts:
        told = database.now() if alert.kind == "failing" else None
        of = (
            destinations.c.organization_id == alert.organization_id,
            destinations.c.destination == alert.destination,
        )
        await transaction.execute(update(destinations).where(*of).values(alerted_at=told))
    return alerts


def _with_sums(counted: Mapping[tuple[str, str], Counts]) -> list[dict[str, Any]]:
    """Return rows of the parameter ``counted``: each destination, the sum of each organization, and that of all."""
    rows: dict[tuple[str, str], list[int]] = {}
    for (organization, destination), counts in counted.items():
        values = [getattr(counts, name) for name in COUNTS]
        sums = (organization, EVERY_DESTINATION), (EVERY_ORGANIZATION, EVERY_DESTINATION)
        # Alerts belong to no organization: their two sums are one row.
        for key in dict.fromkeys(((organization, destination), *sums)):
            before = rows.get(key, [0] * len(COUNTS))
            rows[key] = [one + other for one, other in zip(before, values, strict=True)]
    return [
        {"organization": key[0], "destination": key[1], **dict(zip(COUNTS, values, strict=True))}
        for key, values in sorted(rows.items())
    ]


def _adding(sql: Dialect) -> Any:
    """Write the statement that adds the rows of the parameter ``counted`` to the present interval."""
    given = sql.values_table(
        "counted",
        organization=Text,
        destination=Text,
        delivered=Integer,
        failed=Integer,
        dead=Integer,
        duration_ms=BigInteger,
    )
    now = sql.now()
    rows = select(
        now - now % BUCKET_MS, given.c.organization, given.c.destination, *(given.c[name] for name in COUNTS)
    ).where(
        given.c.organization.is_not(None)
    )  # without a condition, SQLite takes ON CONFLICT for one of a join
    added = sql.insert(statistics).from_select([column.name for column in statistics.c], rows)
    return added.on_conflict_do_update(
        index_elements=list(statistics.primary_key),
        set_={name: statistics.c[name] + added.excluded[name] for name in COUNTS},
    )


def _updating_health(sql: Dialect) -> Any:
    """Write the statement that updates the health of the destinations in the parameter ``given``, and returns it."""
    given = sql.values_table(
        "given",
        organization=Text,
        destination=Text,
        succeeded=Integer,
        failures=Integer,
        error=Text,
        reason=Text,
        origin=Text,
    )
    now = sql.now()
    fails = given.c.failures > 0
    failed = given.c.error.is_not(None)
    rows = select(
        given.c.organization,
        given.c.destination,
        case((given.c.succeeded == 1, now), else_=null()),
        case((failed, now), else_=null()),
        case((fails, now), else_=null()),
        given.c.failures,
        given.c.error,
        null(),
        now,
        given.c.reason,
        given.c.origin,
    ).where(given.c.organization.is_not(None))
    names = [
        "organization_id", "destination", "last_success_at", "last_failure_at", "failing_since",
        "failures_in_row", "last_error", "alerted_at", "updated_at", "last_reason", "failing_origin",
    ]  # fmt: skip
    added = sql.insert(destinations).from_select(names, rows)
    new, old = added.excluded, destinations.c
    succeeded = new.last_success_at.is_not(None)
    total = old.failures_in_row + new.failures_in_row
    begins = and_(new.failing_since.is_not(None), or_(succeeded, old.failing_since.is_(None)))
    return added.on_conflict_do_update(
        index_elements=list(destinations.primary_key),
        set_={
            "last_success_at": func.coalesce(new.last_success_at, old.last_success_at),
            "last_failure_at": func.coalesce(new.last_failure_at, old.last_failure_at),
            "failing_since": case(
                (succeeded, new.failing_since), else_=func.coalesce(old.failing_since, new.failing_since)
            ),
            "failures_in_row": case(
                (succeeded, new.failures_in_row), (total > MOST_FAILURES, MOST_FAILURES), else_=total
            ),
            "last_error": func.coalesce(new.last_error, old.last_error),
            "last_reason": case((new.last_error.is_not(None), new.last_reason), else_=old.last_reason),
            "updated_at": new.updated_at,
            "failing_origin": case(
                (begins, new.failing_origin),
                (new.failing_origin.is_(None), old.failing_origin),
                (
                    func.coalesce(old.failing_origin, new.failing_origin) == new.failing_origin,
                    new.failing_origin,
                ),
                else_=SEVERAL,
            ),
        },
        where=or_(
            new.last_failure_at.is_not(None),
            old.failing_since.is_not(None),
            old.last_success_at.is_(None),
            old.last_success_at < new.updated_at - FRESH_MS,
        ),
    ).returning(
        old.organization_id,
        old.destination,
        old.failing_since,
        old.last_failure_at,
        old.failures_in_row,
        old.last_error,
        old.alerted_at,
        old.failing_origin,
    )


def _alert(row: Any) -> DeliveryAlert | None:
    kind = alert_of(row.failing_since, row.last_failure_at, row.failures_in_row, row.alerted_at)
    if kind is None:
        return None
    failing = kind == "failing"
    return DeliveryAlert(
        organization_id=row.organization_id,
        destination=row.destination,
        kind=kind,
        failing_since=to_utc(row.failing_since) if failing else None,
        failures=row.failures_in_row if failing else 0,
        last_error=row.last_error,
        # A destination that has recovered may fail again by now, for another one.
        origin=origin_of(row.failing_origin) if failing or row.failing_since is None else None,
    )


def _origin_text(origins: set[Origin]) -> str | None:
    if len(origins) > 1:
        return SEVERAL
    return msgspec.json.encode(*origins).decode() if origins else None


def origin_of(text: str | None) -> Origin | None:
    """Return the one origin of a destination's failures; ``None``: there are several, or this release cannot read it."""
    try:
        origin: Origin = msgspec.json.decode(text or SEVERAL, type=Origin)
    except msgspec.MsgspecError:
        return None
    return origin


def _gone(counted: Mapping[tuple[str, str], Counts]) -> list[DeliveryAlert]:
    return [
        DeliveryAlert(
            organization_id=organization,
            destination=destination,
            kind="gone",
            failures=number,
            last_error=f"http_{GONE_STATUS // 100}xx",
            origin=origin,
        )
        for (organization, destination), counts in counted.items()
        for origin, number in counts.gone.items()
    ]
