"""The one way into the outbox: `write_items` uses idempotency keys, counts calls and writes rows, within a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    literal,
    select,
)
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import SQLCompiler

from flowactions_plugin.queue.claimed import NEW, ClaimedDelivery
from flowactions_plugin.queue.keys import KEY_COLUMNS, FirstUse, IdempotencyKeys, KeyUse
from flowactions_plugin.queue.rules import NewDelivery
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, enqueue_keys, outbox, pauses

MOST_CLAIMED_BYTES: Final = 16 * 1024
"""A larger row is claimed as any other, later: it would be encoded once more."""

RATE_BYTES: Final = 32 * 1024
"""What a rate adds to an item's size: it has statements of its own, during which its transaction holds locks."""

_GIVEN: Final = (*(name for name in NewDelivery.__struct_fields__ if name != "body"), "flow_id", "node_id")
_TYPES: Final[Mapping[str, type[Any]]] = {
    **dict.fromkeys((*_GIVEN, "body", "token", "caller", "key"), Text),
    "lane": BigInteger,
    "max_attempts": Integer,
}

_GIVEN_AS: Final = "given_"
"""Before the names of parameters: SQLAlchemy uses the columns' names itself."""


class Item:
    """A row that is to be written, and what is written with it.

    Attributes:
        row: the values of its columns.
        key: the idempotency key that it is written with; ``None``: none.
        rate: counts it, or raises an error if it has to wait; ``None``: nothing does.
        claim: the row as its enqueue claims it; ``None``: it does not.
        first: what has used the key before, so that the row was not written.
    """

    __slots__ = ("claim", "first", "key", "rate", "row")

    def __init__(
        self,
        row: Mapping[str, Any],
        key: KeyUse | None = None,
        rate: Callable[[Connection], None] | None = None,
    ) -> None:
        self.row = row
        self.key = key
        self.rate = rate
        self.claim: ClaimedDelivery | None = None
        self.first: FirstUse | None = None

    @property
    def size(self) -> int:
        """About how many bytes are written."""
        row = self.row
        size = len(row["body"] or b"") + len(row["headers"]) + len(row["url"])
        return size if self.rate is None else size + RATE_BYTES


class Claimant(Protocol):
    """Sends rows that are claimed by their enqueue, for so many seconds."""

    lease_seconds: float

    def reserve(self, values: Mapping[str, Any]) -> ClaimedDelivery | None:
        """Keep a place for a row with these columns, and return it as it will be claimed; ``None``: there is no place."""

    def take(self, reserved: Sequence[ClaimedDelivery], claimed: Collection[str | None] | None) -> None:
        """Send what was claimed, and give up the places of the other rows.

        Args:
            reserved: rows for which a place was kept.
            claimed: the tokens of those that were written and are claimed; ``None``: the database has not said.
        """


def is_one_statement(database: Database, items: Sequence[Item]) -> bool:
    """Return whether `write_items` takes one statement for items, which then need no transaction around it."""
    if any(each.rate for each in items):
        return False
    if not any(each.key for each in items):
        return True
    return database.sql.is_server and all(each.size <= MOST_CLAIMED_BYTES for each in items)


def write_items(
    database: Database,
    connection: Connection,
    items: Sequence[Item],
    lease_seconds: float = 0.0,
    lock_ms: int = 0,
) -> Collection[str | None]:
    """Use the keys of items, count them, and write the rows of those whose key was free.

    A row that is written again is the same row. Locks are taken in the order of keys, so that two transactions do not wait for
    each other.

    Args:
        database: where.
        connection: of a transaction, or one that commits each statement if it takes only one.
        items: what is written; `Item.first` is set.
        lease_seconds: how long the claims of those hold that have one.
        lock_ms: milliseconds that a statement with keys waits for a lock; 0: no limit of its own.

    Returns:
        The tokens of the rows that are claimed.

    Raises:
        Exception: what a rate has raised; nothing may be committed then.
    """
    if any(each.key for each in items) and is_one_statement(database, items):
        return _write_keyed(database, connection, items, lease_seconds, lock_ms)
    if any(each.key or each.rate for each in items):
        items = sorted(items, key=lambda each: each.key[1:] if each.key else ())
        _use_keys(connection, items)
        items = [each for each in items if each.first is None]
        for each in items:
            if each.rate is not None:
                each.rate(connection)
    if not items:
        return ()
    if any(each.claim is not None for each in items):
        given = [_given(database.sql, each) for each in items]
        if None not in given:
            statement = database.built(_enqueuing_claimed, lease_seconds)
            written = connection.execute(statement, {"rows": database.sql.json_rows(given)})  # type: ignore[arg-type]
            return {row.claimed_by for row in written}
    rows = [each.row for each in items]
    connection.execute(database.built(_enqueuing), rows if len(rows) > 1 else rows[0])
    return ()


def statements_of(database: Database, item: Item, paramstyle: str) -> list[tuple[str, Any]]:
    """Return the statements that write an item on a connection of the caller's own: its key's, if it has one, and its row's.

    No row is written if another one has used the key.

    Args:
        database: where.
        item: without a rate and a claim.
        paramstyle: the driver's, one of `PARAMSTYLES`.
    """
    key = item.key
    given = {_GIVEN_AS + name: item.row.get(name) for name in (*_GIVEN, "body")}
    given[_GIVEN_AS + "caller"] = None if key is None else key.caller
    row = _text(database.built(_enqueuing_joined, paramstyle), given)
    if key is None:
        return [row]
    given = key.keys.given([(key, FirstUse(item.row["id"], item.row["event_id"]))])
    return [_text(database.built(_using_key, key.keys, paramstyle), given), row]


def _text(compiled: SQLCompiler, given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a statement and its parameters as a cursor of the DB-API takes them."""
    parameters = compiled.construct_params(dict(given))
    if compiled.positiontup is None:
        return compiled.string, parameters
    return compiled.string, tuple(parameters[name] for name in compiled.positiontup)


def _using_key(sql: Dialect, keys: IdempotencyKeys, paramstyle: str) -> SQLCompiler:
    return sql.compiled(keys.using(sql), paramstyle)


def _enqueuing_joined(sql: Dialect, paramstyle: str) -> SQLCompiler:
    """Build the statement that enqueues a row, unless another one has used its key."""
    used = select(enqueue_keys.c.event_id).where(
        enqueue_keys.c.organization_id == _given_as("organization_id"),
        enqueue_keys.c.caller == bindparam(_GIVEN_AS + "caller", type_=Text),
        enqueue_keys.c.idempotency_key == _given_as("idempotency_key"),
        enqueue_keys.c.delivery_id == _given_as("id"),
    )
    names = (*_GIVEN, "body")
    constants = _constants(sql)
    values = [
        *map(_given_as, names),
        *(literal(each) if isinstance(each, str | int) else each for each in constants.values()),
    ]
    rows = select(*values).where(_given_as("idempotency_key").is_(None) | used.exists())
    return sql.compiled(sql.insert_unless_there(outbox).from_select((*names, *constants), rows), paramstyle)


def _given_as(name: str) -> ColumnElement[Any]:
    kind = outbox.c[name].type
    given = bindparam(_GIVEN_AS + name, type_=kind)
    return cast(given, kind) if name == "body" else given  # PostgreSQL would take NULL as text


def _uses(items: Sequence[Item]) -> list[tuple[KeyUse, FirstUse]]:
    """Return the keys of those items that have one, each with its row."""
    return [
        (each.key, FirstUse(each.row["id"], each.row["event_id"])) for each in items if each.key is not None
    ]


def _use_keys(connection: Connection, items: Sequence[Item]) -> None:
    """Use the keys of those items that have one, in one statement for all."""
    uses = _uses(items)
    if uses:
        keyed = [each for each in items if each.key is not None]
        for item, first in zip(keyed, uses[0][0].keys.use_all(connection, uses), strict=True):
            item.first = first


def _write_keyed(
    database: Database, connection: Connection, items: Sequence[Item], lease_seconds: float, lock_ms: int
) -> Collection[str | None]:
    """Use the keys of items and write their rows, on PostgreSQL in one statement."""
    uses = _uses(items)
    keys = uses[0][0].keys
    statement = database.built(_enqueuing_keyed, keys, lease_seconds, lock_ms)
    rows = [_given(database.sql, each) for each in items]  # none is missing: PostgreSQL takes any body
    given = {"rows": database.sql.json_rows(rows)}  # type: ignore[arg-type]
    written = {row.id: row for row in connection.execute(statement, {**given, **keys.given(uses)})}
    for each in items:
        row = written[each.row["id"]]
        is_free = row.delivery_id is None or row.delivery_id == row.id
        each.first = None if is_free else FirstUse(row.delivery_id, row.event_id)
    return {row.claimed_by for row in written.values()}


def _given(sql: Dialect, item: Item) -> dict[str, Any] | None:
    """Return an item for a parameter of `Dialect.json_rows`; ``None``: the body cannot be one."""
    body = item.row["body"]
    if body is not None:
        body = sql.bytes_value(body)
        if body is None:
            return None
    token = None if item.claim is None else item.claim.token
    # What is sent again has a key of its own, and in its row that of the first one.
    key = {} if item.key is None else {"caller": item.key.caller, "key": item.key.key}
    return {**{name: item.row.get(name) for name in _GIVEN}, "body": body, "token": token, **key}


def _enqueuing(sql: Dialect) -> Executable:
    """Build the statement that enqueues rows."""
    return sql.insert_unless_there(outbox).values(**_constants(sql))


def _enqueuing_claimed(sql: Dialect, lease_seconds: float) -> Executable:
    """Build the statement that enqueues the rows of the parameter ``rows``, and claims those with a token.

    A row to a paused destination is not claimed. The tokens are returned, ``None`` for a row that is not claimed.
    """
    names, rows, row = _claimed_rows(sql, lease_seconds)
    # SQLite would read ON CONFLICT as the condition of a join without a WHERE.
    rows = rows.where(row.c.id.is_not(None))
    return sql.insert_unless_there(outbox).from_select(names, rows).returning(outbox.c.claimed_by)


def _enqueuing_keyed(sql: Dialect, keys: IdempotencyKeys, lease_seconds: float, lock_ms: int) -> Executable:
    """Build the statement that uses the keys of rows and enqueues these; it returns each row's id, first use of its key, and token."""
    names, rows, row = _claimed_rows(sql, lease_seconds)
    used = keys.using(sql, lock_ms).returning(*KEY_COLUMNS).cte("used")

    def is_its_key(of: FromClause) -> ColumnElement[bool]:
        places = (("organization_id", "organization_id"), ("caller", "caller"), ("idempotency_key", "key"))
        return and_(*(used.c[name] == of.c[given] for name, given in places))

    rows = rows.select_from(row.outerjoin(used, is_its_key(row)))
    rows = rows.where(used.c.delivery_id.is_(None) | (used.c.delivery_id == row.c.id))
    written = (
        sql.insert_unless_there(outbox)
        .from_select(names, rows)
        .returning(outbox.c.id, outbox.c.claimed_by)
        .cte("written")
    )
    given = sql.values_table("rows", **_TYPES)
    found = given.outerjoin(used, is_its_key(given)).outerjoin(written, written.c.id == given.c.id)
    return select(given.c.id, used.c.delivery_id, used.c.event_id, written.c.claimed_by).select_from(found)


def _claimed_rows(sql: Dialect, lease_seconds: float) -> tuple[list[str], Select[Any], FromClause]:
    """Return the columns of new rows, a query of them from the parameter ``rows``, and what the query selects from."""
    given = sql.values_table("rows", **_TYPES)
    paused = select(pauses.c.destination).where(
        pauses.c.destination == given.c.destination,
        pauses.c.organization_id.in_((inline(EVERY_ORGANIZATION), given.c.organization_id)),
    )
    token = case((~paused.exists(), given.c.token))
    row = select(given, sql.bytes_of(given.c.body).label("bytes"), token.label("claim")).subquery("row")
    values: dict[str, ColumnElement[Any]] = {name: row.c[name] for name in _GIVEN}
    values |= {"body": row.c.bytes, "claimed_by": row.c.claim}
    values["claimed_until"] = case((row.c.claim.is_not(None), sql.now() + int(lease_seconds * 1000)))
    values |= {
        name: value if isinstance(value, ColumnElement) else literal(value)
        for name, value in _constants(sql).items()
    }
    return [*values], select(*values.values()), row


def _constants(sql: Dialect) -> dict[str, Any]:
    now = sql.now()
    return {**NEW, "next_attempt_at": now, "created_at": now, "updated_at": now}
