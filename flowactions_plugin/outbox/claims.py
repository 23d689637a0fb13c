"""The SQL of claims.

The lease contract: a claim gives each row to one worker, with a token and for the lease. Only the holder of the row's
present token can write its outcome. An expired lease is reclaimed by the next claim under a new token, so a worker that
resumes too late changes nothing. A reclaim uses up no attempt, but is counted: a row that was reclaimed
`QUARANTINE_AFTER` times is claimed for quarantine only.

A claim writes no column that is indexed, and leaves the due time as it is: rows that are held stay at the head of the
index of rows that are due, where the next claims pass over them. They are as many as are in flight.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    LargeBinary,
    Row,
    Select,
    String,
    Text,
    Update,
    bindparam,
    case,
    func,
    literal,
    null,
    select,
    text,
    true,
    type_coerce,
    union,
    update,
)
from sqlalchemy.types import NullType

from flowactions_plugin.outbox.claimed import COLUMNS
from flowactions_plugin.outbox.rules import LONGEST_WAIT_SECONDS
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import LIVE, QUARANTINE_AFTER, QUARANTINED, outbox
from flowactions_plugin.storage.text import stored

DESTINATIONS_A_CLAIM: Final = 50
"""How many destinations a claim asks one by one, when others hold the head of the queue."""

ORGANIZATIONS_A_CLAIM: Final = 16
"""How many organizations have their turn in a claim."""

MOST_TURN_ROWS: Final = 64
"""How many rows of an organization come before older rows of others at the most."""

DUE_COLUMNS: Final = ("id", "organization_id", "destination", "next_attempt_at")

CLAIM_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of bodies and headers that a claim returns, but always one row."""


RESCUED_CLAIMS: Final = 10_000
"""Among how many of the oldest rows leases are searched for that end too far ahead."""


def inline(value: Any) -> ColumnElement[Any]:
    """Write a value into the statement itself: PostgreSQL's plan for a statement depends on it."""
    return literal(value, literal_execute=True)


def eligible(database: Dialect, window: int, per_destination: int | None, turn: int = 0) -> Select[Any]:
    """Select the oldest rows that are due, within `CLAIM_BYTES` and the per-destination limit.

    Args:
        database: where.
        window: how many due rows are examined.
        per_destination: the limit, of which the parameter ``in_flight`` says how much is used; ``None``: no limit,
            and the window is the claim.
        turn: how many rows of each organization come first. Those of the parameter ``organizations`` are found
            wherever they stand behind the window; on SQLite the parameter ``turns`` holds their ids.
    """
    due = due_rows(database, database.now(), window)
    if per_destination is None:
        return _within_bytes(due)
    if database.dialect == "postgresql":
        due = due.where(outbox.c.next_attempt_at >= bindparam("since", type_=BigInteger))
    head: Any = due.cte("head")
    if turn:
        head = union(select(head), _turns(database, turn)).cte("all_heads")
    in_flight = database.values_table("in_flight", destination=Text, number=Integer)
    order = (head.c.next_attempt_at, head.c.id)
    place = func.row_number().over(partition_by=head.c.destination, order_by=order)
    used = func.coalesce(in_flight.c.number, 0)
    behind: ColumnElement[int] = literal(0)
    if turn:
        own = func.row_number().over(partition_by=head.c.organization_id, order_by=order)
        behind = case((own <= inline(turn), 0), else_=1)
    ranked = (
        select(
            head.c.id,
            head.c.next_attempt_at,
            head.c.size,
            behind.label("behind"),
            (place + used).label("place"),
        )
        .join_from(head, in_flight, in_flight.c.destination == head.c.destination, isouter=True)
        .cte("ranked")
    )
    return _within_bytes(
        select(ranked.c.id, ranked.c.next_attempt_at, ranked.c.size, ranked.c.behind)
        .where(ranked.c.place <= per_destination)
        .order_by(ranked.c.behind, ranked.c.next_attempt_at, ranked.c.id)
        .limit(bindparam("limit", type_=Integer))
    )


def _within_bytes(rows: Select[Any]) -> Select[Any]:
    """Select the first rows whose sizes add up to `CLAIM_BYTES` at the most, and the first in any case."""
    each = rows.cte("sized")
    order = [each.c[name] for name in ("behind", "next_attempt_at", "id") if name in each.c]
    before = func.sum(each.c.size).over(order_by=order, rows=(None, -1))
    total = select(each.c.id, each.c.next_attempt_at, each.c.size, before.label("before")).cte("summed")
    fits = total.c.before + total.c.size <= inline(CLAIM_BYTES)
    return select(total.c.id, total.c.next_attempt_at).where(total.c.before.is_(None) | fits)


def due_rows(database: Dialect, now: ColumnElement[int], limit: int) -> Select[Any]:
    """Select and lock the oldest rows that are due."""
    return (
        select(*(outbox.c[name] for name in DUE_COLUMNS), _size(database))
        .where(LIVE, outbox.c.takeovers < inline(QUARANTINE_AFTER), outbox.c.next_attempt_at <= now, free(now))
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(limit))
        .with_for_update(skip_locked=True)
    )


def free(now: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that no claim holds a row: there is none, or its lease has expired."""
    return outbox.c.claimed_until.is_(None) | (outbox.c.claimed_until <= now)


def _size(database: Dialect) -> ColumnElement[int]:
    """Return about how many bytes a row's body and headers take, without reading them."""
    length = func.octet_length if database.dialect == "postgresql" else func.length
    body = length(type_coerce(outbox.c.body, LargeBinary), type_=Integer)
    return (func.coalesce(body, 0) + length(outbox.c.headers, type_=Integer)).label("size")


def turn_rows(limit: int, organizations: int) -> int:
    """Return how many rows of each organization come first in a claim of ``limit`` rows: a power of two, within its share."""
    return 1 << (max(1, min(MOST_TURN_ROWS, limit // organizations)).bit_length() - 1)


def _turns(database: Dialect, rows: int) -> Select[Any]:
    """Select the oldest rows that are due of each organization that has its turn."""
    if database.dialect != "postgresql":
        # SQLite has no LATERAL: `turn_of` has found them, in the same transaction.
        given = database.values_table("turns", id=String)
        return select(*(outbox.c[name] for name in DUE_COLUMNS), _size(database)).where(
            outbox.c.id.in_(select(given.c.id))
        )
    organizations = database.values_table("organizations", place=Text)
    mine = due_rows(database, database.now(), rows).where(
        outbox.c.organization_id == organizations.c.place,
        outbox.c.next_attempt_at >= bindparam("since", type_=BigInteger),
    )
    oldest = mine.lateral("mine")
    return select(select(oldest).select_from(organizations.join(oldest, true())).cte("turn"))


def turn_of(database: Dialect, rows: int) -> Select[Any]:
    """Select the oldest rows that are due of the organization in the parameter ``place``."""
    own = outbox.c.organization_id == bindparam("place", type_=Text)
    return due_rows(database, database.now(), rows).with_only_columns(outbox.c.id).where(own)


def next_organizations(last: Any) -> Select[Any]:
    """Select a few organizations that have live rows, before ``last``; ``None``: the last ones.

    Each is looked up from its newest row: the index entries of rows that have ended, which PostgreSQL keeps until it
    vacuums, are those of the oldest.
    """

    def before(place: Any) -> Any:
        # The first condition holds for every text, and has SQLite search the index.
        each = outbox.c.organization_id
        return (
            select(each)
            .where(LIVE, each >= "" if place is None else each < place)
            .order_by(outbox.c.organization_id.desc(), outbox.c.next_attempt_at.desc(), outbox.c.id.desc())
            .limit(inline(1))
            .scalar_subquery()
        )

    first = select(before(last if last is None else stored(last)).label("place"), literal(1).label("number"))
    found = first.cte("places", recursive=True)
    found = found.union_all(
        select(before(found.c.place), found.c.number + 1).where(
            found.c.place.is_not(None), found.c.number < inline(ORGANIZATIONS_A_CLAIM)
        )
    )
    return select(found.c.place).where(found.c.place.is_not(None))


def next_destinations(last: Any) -> Select[Any]:
    """Select a few destinations that have live rows, behind ``last``, by looking each up behind the one before."""

    def after(place: Any) -> Any:
        return (
            select(outbox.c.destination)
            .where(LIVE, outbox.c.destination > place)
            .order_by(outbox.c.destination)
            .limit(inline(1))
            .scalar_subquery()
        )

    first = select(after(stored(last)).label("place"), literal(1).label("number"))
    found = first.cte("places", recursive=True)
    found = found.union_all(
        select(after(found.c.place), found.c.number + 1).where(
            found.c.place.is_not(None), found.c.number < inline(DESTINATIONS_A_CLAIM)
        )
    )
    return select(found.c.place).where(found.c.place.is_not(None))


def quarantined(database: Dialect) -> Any:
    """Select the oldest row that is due and may be sent in quarantine only."""
    if database.dialect == "sqlite":
        # Without the hint, SQLite searches the index of all rows that are due.
        chosen = text(
            f"SELECT id, next_attempt_at FROM {outbox.name} INDEXED BY ix_flowactions_outbox_quarantined"  # noqa: S608  names of ours only
            f" WHERE {QUARANTINED.text} AND next_attempt_at <= :now"
            " AND (claimed_until IS NULL OR claimed_until <= :now) ORDER BY next_attempt_at, id LIMIT 1"
        )
        at: Any = database.now()
        return chosen.bindparams(at).columns(outbox.c.id, outbox.c.next_attempt_at)
    now = database.now()
    return (
        select(outbox.c.id, outbox.c.next_attempt_at)
        .where(QUARANTINED, outbox.c.next_attempt_at <= now, free(now))
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(1))
    )


def rescuing(database: Dialect) -> tuple[tuple[Select[Any], Update], tuple[Select[Any], Update]]:
    """Write the statements that find and mend rows that wait, or are held, longer than any rule lets them.

    Leases are not indexed. Those that were given before the clock was set back are of rows that were the oldest which
    were due, so they are searched for among the oldest `RESCUED_CLAIMS`.
    """
    now = database.now()
    longest = now + inline(int(LONGEST_WAIT_SECONDS * 1000))
    again = now + bindparam("lease_ms", type_=BigInteger)
    waits = (LIVE, outbox.c.next_attempt_at > longest)
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
            select(outbox.c.id).where(*waits).limit(inline(1)),
            update(outbox)
            .where(*waits)
            # What may still be held is due when that has expired.
            .values(next_attempt_at=again, claimed_until=null(), updated_at=now),
        ),
        (
            held.limit(inline(1)),
            update(outbox)
            .where(outbox.c.id.in_(held), outbox.c.claimed_until > longest)
            .values(claimed_until=again, updated_at=now),
        ),
    )


def claiming(
    database: Dialect, rows: Select[Any], lease_seconds: float, *, count_reclaims: bool = True
) -> Executable:
    """Write the statement that claims rows under the token of the parameter ``token``, and returns them.

    Args:
        database: where.
        rows: which rows.
        lease_seconds: for how long.
        count_reclaims: whether a reclaim of an expired lease is counted.
    """
    now = database.now()
    # A CTE, so that no plan can run it twice and claim more than the limit.
    chosen = rows.cte("due")
    # As the driver returns them: on SQLite there may be any type in any column.
    returned: list[ColumnElement[Any]] = [
        type_coerce(outbox.c[name], NullType()).label(name) for name in COLUMNS
    ]
    returned.append(type_coerce(outbox.c.next_attempt_at, NullType()).label("due_at"))
    claimed = update(outbox).where(outbox.c.id == chosen.c.id)
    if count_reclaims:
        expired = outbox.c.claimed_by.is_not(None).cast(outbox.c.takeovers.type)
        claimed = claimed.values(takeovers=outbox.c.takeovers + expired)
    return claimed.values(
        claimed_by=bindparam("token", type_=String),
        claimed_until=now + int(lease_seconds * 1000),
        updated_at=now,
    ).returning(*returned)


def size_of(row: Row[Any]) -> int:
    """Return about how many bytes the body and headers of a claimed row take."""
    return sum(len(value) for value in (row.body, row.headers) if isinstance(value, str | bytes))
