"""The one way into the outbox: `write_items` uses idempotency keys, counts calls and writes rows, within a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import SQLCompiler

from flowactions_plugin.queue.claimed import NEW, ClaimedDelivery
from flowactions_plugin.queue.keys import FIRST_USES, USE, FirstUse, IdempotencyKeys, KeyUse
from flowactions_plugin.queue.statements import UNPAUSED
from flowactions_plugin.queue.statements import written as made_of
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import BEHIND_MS

MOST_CLAIMED_BYTES: Final = 16 * 1024
"""A larger row is claimed as any other, later: it would be encoded once more."""

_ROWS: Final = {
    **dict.fromkeys(("id", "organization_id", "agent_id", "origin", "event_id", "event_type", "url"), "text"),
    **dict.fromkeys(
        ("destination", "method", "headers", "idempotency_key", "trace", "flow_id", "node_id"), "text"
    ),
    **dict.fromkeys(("action_id", "body"), "text"),
    **dict.fromkeys(("lane", "sequence", "expires_at"), "bigint"),
    "max_attempts": "int",
}
"""The columns that a caller gives."""

ALONE: Final = {"caller": None, "nth": 0}
"""The parameters of `INSERT` beside a row's columns: its place among the rows that are written together."""

# One number for all rows of a statement, and their places among them.
_POSITION_OF_SERVER: Final = "CASE WHEN made.sequence IS NOT NULL THEN (SELECT nextval('flowactions_outbox_position')) * 1024 + made.nth END"
# There is one writer. The time alone would not do: the clock may be set back.
_POSITION_OF_FILE: Final = f"""CASE WHEN made.sequence IS NOT NULL THEN max({{now}} * 1024, coalesce((
        SELECT max(position) FROM flowactions_outbox AS last
        WHERE last.sequence = made.sequence AND last.next_attempt_at = {BEHIND_MS} AND last.status = 'pending'
    ), 0)) + 1 + made.nth END"""

_INTO: Final = f"({', '.join((*_ROWS, *NEW))}, created_at, updated_at, next_attempt_at, position"
# A row of a sequence always waits until it is released: its enqueue looks at no other row, and takes no lock.
_NEW: Final = f"""{", ".join(map(repr, NEW.values()))}, {{now}}, {{now}},
    CASE WHEN made.sequence IS NULL THEN {{now}} ELSE {BEHIND_MS} END, {{position}}"""

# PostgreSQL would guess types from where a parameter stands, differently if it stands twice: each stands once, with its type.
_ONE: Final = f"""\
INSERT INTO flowactions_outbox {_INTO}) SELECT {", ".join(_ROWS)}, {_NEW}
FROM (SELECT CAST(:caller AS text) AS caller, CAST(:nth AS int) AS nth,
    {", ".join(f"CAST(:{name} AS {'{blob}' if name == 'body' else kind}) AS {name}" for name, kind in _ROWS.items())}) AS made"""

INSERT: Final = f"{_ONE} WHERE true ON CONFLICT DO NOTHING"
"""Write a row, whatever its size."""

INSERT_IF_FIRST: Final = f"""{_ONE}
WHERE EXISTS (SELECT 1 FROM flowactions_enqueue_keys AS used
    WHERE used.organization_id = made.organization_id AND used.caller = made.caller
    AND used.idempotency_key = made.idempotency_key AND used.delivery_id = made.id)
ON CONFLICT DO NOTHING"""
"""Write a row unless another one has used its key."""

_CLAIMED: Final = f"""
INSERT INTO flowactions_outbox {_INTO}, claimed_by, claimed_until)
SELECT {", ".join("{bytes}" if name == "body" else f"made.{name}" for name in _ROWS)}, {_NEW}, claim,
    CASE WHEN claim IS NOT NULL THEN {{now}} + :lease END
FROM (SELECT *, CASE WHEN {UNPAUSED.format(row="given")} THEN token END AS claim FROM ({{rows}}) AS given) AS made"""

# SQLite would read ON CONFLICT as the condition of a join without a WHERE.
INSERT_CLAIMED: Final = f"{_CLAIMED} WHERE true ON CONFLICT DO NOTHING RETURNING claimed_by"
"""Write the rows of the parameter ``rows``, and claim those with a token whose destination is not paused."""

_ITS_KEY: Final = "used.organization_id = {row}.organization_id AND used.caller = {row}.caller AND used.idempotency_key = {row}.key"
INSERT_KEYED: Final = f"""
WITH used AS ({FIRST_USES}), written AS ({_CLAIMED} LEFT JOIN used ON {_ITS_KEY.format(row="made")}
    WHERE used.delivery_id IS NULL OR used.delivery_id = made.id ON CONFLICT DO NOTHING RETURNING id, claimed_by)
SELECT given.id, used.delivery_id, used.event_id, written.claimed_by FROM ({{rows}}) AS given
LEFT JOIN used ON {_ITS_KEY.format(row="given")} LEFT JOIN written ON written.id = given.id"""
"""The same, of those rows whose keys are free, on PostgreSQL; it returns each row's id, the first use of its key, and its claim."""


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
        return len(self.row["body"] or b"") + len(self.row["headers"]) + len(self.row["url"])


def write_items(
    database: Database,
    connection: Connection,
    items: Sequence[Item],
    lease_seconds: float = 0.0,
    lock_ms: int = 0,
) -> Collection[str | None]:
    """Use the keys of items, and write and count the rows of those whose key was free.

    A row that is written again is the same row. Locks are taken in the order of keys, so that two transactions do not wait for
    each other. Without a rate it takes one statement on PostgreSQL.

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
    sql, given = database.sql, dict[str, Any](lease=int(lease_seconds * 1000))
    keyed = [(each, each.key) for each in items if each.key is not None]
    uses = [(key, _first(each)) for each, key in keyed]
    claimed: Collection[str | None] = ()
    if uses and sql.is_server:
        keys = uses[0][0].keys
        writing = database.built(_writing, INSERT_KEYED, keys, lock_ms)
        given |= {"rows": _rows(sql, items), **keys.given(uses)}
        written = {row.id: row for row in connection.execute(writing, given)}
        for each in items:
            row = written[each.row["id"]]
            is_free = row.delivery_id is None or row.delivery_id == row.id
            each.first = None if is_free else FirstUse(row.delivery_id, row.event_id)
        claimed = {row.claimed_by for row in written.values()}
    else:
        if uses:
            for (each, _), first in zip(keyed, uses[0][0].keys.use_all(connection, uses), strict=True):
                each.first = first
        free = [each for each in items if each.first is None]
        if any(each.claim for each in free) and (rows := _rows(sql, free)) is not None:
            made = database.built(_writing, INSERT_CLAIMED)
            claimed = {row.claimed_by for row in connection.execute(made, {**given, "rows": rows})}
        elif free:
            values = [{**each.row, **ALONE, "nth": nth} for nth, each in enumerate(free)]
            connection.execute(database.built(_writing, INSERT), values if len(values) > 1 else values[0])
    for each in sorted(items, key=lambda each: each.key or ()):
        if each.rate is not None and each.first is None:
            each.rate(connection)
    return claimed


def statements_of(database: Database, item: Item, paramstyle: str) -> list[tuple[str, Any]]:
    """Return the statements that write an item on a connection of the caller's own: its key's, if it has one, and its row's.

    No row is written if another one has used the key.

    Args:
        database: where.
        item: without a rate and a claim.
        paramstyle: the driver's, one of `PARAMSTYLES`.
    """
    key = item.key
    given = {**item.row, **ALONE}
    written: list[tuple[str, IdempotencyKeys | None]] = [(INSERT, None)]
    if key is not None:
        written = [(USE, key.keys), (INSERT_IF_FIRST, None)]
        given |= {"caller": key.caller, **key.keys.given([(key, _first(item))])}
    made = []
    for each, keys in written:
        compiled = database.built(_compiled, each, keys, paramstyle)
        parameters = compiled.construct_params(given)
        if compiled.positiontup is not None:
            parameters = tuple(parameters[name] for name in compiled.positiontup)
        made.append((compiled.string, parameters))
    return made


def _first(item: Item) -> FirstUse:
    return FirstUse(item.row["id"], item.row["event_id"])


def _rows(sql: Dialect, items: Sequence[Item]) -> str | None:
    """Return the parameter ``rows``; ``None``: one of the bodies cannot be in it, which each can on PostgreSQL."""
    rows = []
    for nth, item in enumerate(items):
        body = item.row["body"]
        if body is not None and (body := sql.bytes_value(body)) is None:
            return None
        row = {**item.row, "body": body, "nth": nth}
        if item.claim is not None:
            row["token"] = item.claim.token
        if item.key is not None:
            # What is sent again has a key of its own, and in its row that of the first one.
            row |= {"caller": item.key.caller, "key": item.key.key}
        rows.append(row)
    return sql.json_rows(rows)


def _writing(sql: Dialect, written: str, keys: IdempotencyKeys | None = None, lock_ms: int = 0) -> TextClause:
    """Build one of the statements above."""
    given = {**_ROWS, **dict.fromkeys(("token", "caller", "key"), "text"), "nth": "int"}
    parts = {
        "rows": sql.rows_text("rows", given),
        "position": _POSITION_OF_SERVER if sql.is_server else _POSITION_OF_FILE,
        "bytes": "decode(made.body, 'hex')" if sql.is_server else "CAST(made.body AS BLOB)",
        "blob": "bytea" if sql.is_server else "BLOB",
    }
    return made_of(sql, written, parts) if keys is None else keys.using(sql, written, lock_ms, **parts)


def _compiled(sql: Dialect, written: str, keys: IdempotencyKeys | None, paramstyle: str) -> SQLCompiler:
    return sql.compiled(_writing(sql, written, keys), paramstyle)
