"""The SQL of claims.

The lease contract: a claim gives each row to one worker, with a token and for the lease. Only the holder of the row's
present token can write its outcome. An expired lease is reclaimed by the next claim under a new token, so a worker that
resumes too late changes nothing. A reclaim uses up no attempt, but is counted: a row that was reclaimed
`QUARANTINE_AFTER` times is claimed for quarantine only.

A claim writes no column that is indexed, and leaves the due time as it is: rows that are held stay at the head of the
index of rows that are due, where the next claims pass over them. They are as many as are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    Row,
    Select,
    String,
    Text,
    bindparam,
    case,
    func,
    literal,
    null,
    select,
    true,
    tuple_,
    union,
    update,
)

from flowactions_plugin.queue.claimed import COLUMNS
from flowactions_plugin.queue.due import DUE_COLUMNS, due_rows, size
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import outbox

MOST_TURN_ROWS: Final = 64
"""How many rows of an organization come before older rows of others at the most."""

CLAIM_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of large bodies and headers that a claim returns, but always one such row."""

SMALL_BYTES: Final = 16 * 1024
"""A row of this size at the most is claimed however many large ones are before it: a thousand of them take as much as those."""


class Shape(NamedTuple):
    """What the statement of a claim depends on.

    Attributes:
        window: how many of the oldest rows that are due are examined.
        per_destination: the per-destination limit; ``None``: no limit, and the window is the claim.
        turn: how many rows of each organization come first; 0: organizations take no turns.
        each: how many rows of each of the destinations are found; 0: there are none.
        in_doubt: whether leases are in doubt.
    """

    window: int
    per_destination: int | None = None
    turn: int = 0
    each: int = 0
    in_doubt: bool = False


class ClaimScope(NamedTuple):
    """Which rows a claim examines.

    Attributes:
        window: how many of the oldest rows that are due.
        per_destination: the per-destination limit.
        limit: how many rows it may return.
        organizations: those that have their turn.
        destinations: those whose oldest rows are examined, too.
    """

    window: int
    per_destination: int
    limit: int
    organizations: Sequence[Any] = ()
    destinations: Sequence[Any] = ()

    @property
    def shape(self) -> Shape:
        """The statement that it takes."""
        turn = each = 0
        if self.organizations:
            turn = turn_rows(self.limit, len(self.organizations))
        if self.destinations:
            each = destination_rows(self.limit, len(self.destinations), self.per_destination)
        return Shape(self.window, self.per_destination, turn, each)


def eligible(sql: Dialect, shape: Shape) -> Select[Any]:
    """Select the oldest rows that are due, large ones within the bytes of the parameter ``room``, and within the per-destination limit.

    Beside the oldest of all, rows are found wherever they stand behind them: those of the parameters ``organizations``
    and ``destinations``; on SQLite the parameter ``found`` holds their ids. Those of ``organizations`` come
    first, at each destination, too. The parameter ``in_flight`` says how much of the per-destination limit is used.
    """
    per_destination, turn = shape.per_destination, shape.turn
    due = due_rows(sql, sql.now(), shape.window, in_doubt=shape.in_doubt)
    if per_destination is None:
        return _within_bytes(due.add_columns(null().label("head_at")))
    if sql.keeps_index_entries:
        due = due.where(outbox.c.next_attempt_at >= bindparam("since", type_=BigInteger))
    head: Any = due.cte("head")
    head_at: Any = null()
    if sql.keeps_index_entries:
        head_at = select(func.min(head.c.next_attempt_at)).scalar_subquery()
    others = _others(sql, shape)
    if others:
        head = union(select(head), *others).cte("all_heads")
    in_flight = sql.values_table("in_flight", destination=Text, number=Integer)
    order = (head.c.next_attempt_at, head.c.id)
    behind: ColumnElement[int] = literal(0)
    place: ColumnElement[int] = literal(0)
    if turn:
        own = func.row_number().over(partition_by=head.c.organization_id, order_by=order)
        # Others' oldest rows would come before those whose turn it is, in every claim of fewer rows than organizations.
        owners = sql.values_table("organizations", owner=Text)
        has_turn = head.c.organization_id.in_(select(owners.c.owner)) & (own <= inline(turn))
        behind, place = case((has_turn, 0), else_=1), case((has_turn, own), else_=0)
    columns = (head.c[name] for name in ("id", "next_attempt_at", "destination", "size"))
    turned = select(*columns, behind.label("behind"), place.label("place")).cte("turned")
    # The places at a destination are shared as the claim is: its backlog may be of one organization.
    by_turn = (turned.c.behind, turned.c.place, turned.c.next_attempt_at, turned.c.id)
    position = func.row_number().over(partition_by=turned.c.destination, order_by=by_turn)
    used = func.coalesce(in_flight.c.number, 0)
    ranked = (
        select(
            turned.c.id,
            turned.c.next_attempt_at,
            turned.c.size,
            turned.c.behind,
            (position + used).label("position"),
        )
        .join_from(turned, in_flight, in_flight.c.destination == turned.c.destination, isouter=True)
        .cte("ranked")
    )
    return _within_bytes(
        select(ranked.c.id, ranked.c.next_attempt_at, ranked.c.size, ranked.c.behind, head_at.label("head_at"))
        .where(ranked.c.position <= per_destination)
        .order_by(ranked.c.behind, ranked.c.next_attempt_at, ranked.c.id)
        .limit(bindparam("limit", type_=Integer))
    )


def _within_bytes(rows: Select[Any]) -> Select[Any]:
    """Select the small rows, and the first large ones whose sizes add up to the parameter ``room`` at the most.

    The first large row is among them in any case.
    """
    each = rows.cte("sized")
    order = [each.c[name] for name in ("behind", "next_attempt_at", "id") if name in each.c]
    large = case((each.c.size > inline(SMALL_BYTES), each.c.size), else_=0)
    before = func.coalesce(func.sum(large).over(order_by=order, rows=(None, -1)), 0)
    columns = (each.c.id, each.c.next_attempt_at, each.c.head_at, each.c.size)
    total = select(*columns, before.label("before")).cte("summed")
    small = total.c.size <= inline(SMALL_BYTES)
    fits = total.c.before + total.c.size <= bindparam("room", type_=Integer)
    return select(total.c.id, total.c.next_attempt_at, total.c.head_at).where(
        small | fits | (total.c.before == 0)
    )


def turn_rows(limit: int, organizations: int) -> int:
    """Return how many rows of each organization come first in a claim of ``limit`` rows: a power of two, within its share."""
    return 1 << (max(1, min(MOST_TURN_ROWS, limit // organizations)).bit_length() - 1)


def destination_rows(limit: int, destinations: int, per_destination: int) -> int:
    """Return how many rows of each destination are found for a claim of ``limit`` rows: a power of two, its share or more."""
    return 1 << max(0, min(-(-limit // destinations), per_destination) - 1).bit_length()


def _others(sql: Dialect, shape: Shape) -> list[Select[Any]]:
    """Select the oldest rows that are due of organizations that have their turn, and of further destinations."""
    if not sql.has_lateral:
        if not shape.turn and not shape.each:
            return []
        # `Owners.oldest` has found them, in the same transaction.
        given = sql.values_table("found", id=String)
        columns = (*(outbox.c[name] for name in DUE_COLUMNS), size(sql))
        return [select(*columns).where(outbox.c.id.in_(select(given.c.id)))]
    others = []
    for name, column, rows in (
        ("organizations", outbox.c.organization_id, shape.turn),
        ("destinations", outbox.c.destination, shape.each),
    ):
        if rows:
            owners = sql.values_table(name, owner=Text)
            begin = tuple_(owners.c.owner, bindparam("since", type_=BigInteger))
            mine = (
                due_rows(sql, sql.now(), rows, in_doubt=shape.in_doubt)
                # With an equality, PostgreSQL may search the index of all rows that are due, through any backlog.
                .where(tuple_(column, outbox.c.next_attempt_at) >= begin, column <= owners.c.owner)
                .order_by(None)
                .order_by(column, outbox.c.next_attempt_at, outbox.c.id)
            )
            oldest = mine.lateral(f"of_{name}")
            found = select(oldest).select_from(owners.join(oldest, true())).cte(f"rows_of_{name}")
            others.append(select(found))
    return others


def claiming(
    sql: Dialect,
    rows: Select[Any],
    lease_seconds: float,
    *,
    count_reclaims: bool = True,
) -> Executable:
    """Write the statement that claims rows under the token of the parameter ``token``, and returns them.

    Each row begins with `COLUMNS`. On PostgreSQL, ``head_at`` follows: the due time of the oldest row that was
    examined, whether it is claimed or not.

    Args:
        sql: the dialect.
        rows: which rows.
        lease_seconds: for how long.
        count_reclaims: whether a reclaim of an expired lease is counted.
    """
    now = sql.now()
    # A CTE, so that no plan can run it twice and claim more than the limit.
    chosen = rows.cte("due")
    returned: list[ColumnElement[Any]] = [outbox.c[name] for name in COLUMNS]
    if sql.keeps_index_entries and "head_at" in chosen.c:
        returned.append(chosen.c.head_at)
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
