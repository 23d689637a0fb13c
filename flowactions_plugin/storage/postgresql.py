"""PostgreSQL: its SQL, the plugin's own engine, and LISTEN."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, event, literal_column, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import span
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import metadata
from flowactions_plugin.storage.urls import asyncpg_arguments

IDLE_SECONDS: Final = 1
"""How long a connection may be idle without being tested before its next use."""

CLOSE_SECONDS: Final = 0.5
"""How long the server may take to end a connection before the driver closes it by itself."""

OPEN_SECONDS: Final = 300
"""A transaction that is open for longer makes statements slower on a queue that carries much."""

OPEN_TRANSACTIONS: Final = 10_000
"""As many transactions since say the same of what has no time: a replication slot, a standby."""

_OLDEST: Final = text("""
    SELECT kind, name, who, seconds, coalesce((
        SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = to_regclass('flowactions_outbox')
    ), 0) AS kept
    FROM (
        SELECT 'process' AS kind, pid::text AS name, concat_ws(' of ', nullif(application_name, ''), usename) AS who,
            greatest(age(backend_xmin), age(backend_xid)) AS transactions,
            extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
            AND backend_type <> 'autovacuum worker' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        UNION ALL
        SELECT 'replication slot', slot_name::text, '', age(xmin), NULL FROM pg_replication_slots WHERE xmin IS NOT NULL
        UNION ALL
        SELECT 'prepared transaction', gid, owner::text, age(transaction),
            extract(epoch FROM clock_timestamp() - prepared)::float8
        FROM pg_prepared_xacts WHERE database = current_database()
    ) AS held
    WHERE seconds >= :seconds OR (seconds IS NULL AND transactions >= :transactions)
    ORDER BY transactions DESC LIMIT 1""")


_BLOCKERS: Final = text("""
    WITH held AS (
        SELECT l.pid, c.relname::text AS place, l.mode = 'AccessExclusiveLock' AS reads
        FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
        WHERE l.granted AND l.relation = ANY (ARRAY(SELECT to_regclass(name)::oid FROM unnest(CAST(:names AS text[])) AS name))
            AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        UNION ALL
        SELECT unnest(pg_blocking_pids(pid)), NULL, FALSE FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%flowactions%'
            AND query_start < clock_timestamp() - make_interval(secs => :seconds)
    )
    SELECT pid, concat_ws(' of ', nullif(application_name, ''), usename) AS who,
        coalesce(string_agg(DISTINCT place, ', '), '') AS places, bool_or(reads) AS reads,
        extract(epoch FROM clock_timestamp() - min(xact_start))::float8 AS seconds
    FROM held JOIN pg_stat_activity USING (pid)
    WHERE pid <> pg_backend_pid()
    GROUP BY pid, application_name, usename
    HAVING coalesce(min(xact_start) < clock_timestamp() - make_interval(secs => :seconds), TRUE)
    ORDER BY seconds DESC NULLS LAST LIMIT 5""")

_LACKING: Final = text("""
    SELECT concat(kind, ' on ', name) FROM unnest(CAST(:names AS text[])) AS name,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind
    WHERE NOT has_table_privilege(to_regclass(name)::oid, kind)
    UNION ALL
    SELECT concat('USAGE on ', name) FROM unnest(CAST(:sequences AS text[])) AS name
    WHERE NOT has_sequence_privilege(to_regclass(name)::oid, 'USAGE')""")

READ_ONLY: Final = text("SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'")
"""Whether the server takes no writes."""

BLOCKING_SECONDS: Final = 2
"""For so long somebody holds a lock before it is told: the plugin's own transactions are shorter."""


class Blocker(NamedTuple):
    """A session whose lock keeps others from writing, or from reading.

    Attributes:
        who: the process, for people.
        places: the tables that it has locked; empty: rows.
        reads: whether nobody can read them either.
        seconds: for how long its transaction has been open; ``None``: it is not known.
    """

    who: str
    places: str
    reads: bool
    seconds: float | None

    @property
    def words(self) -> str:
        """What it holds, and for how long."""
        since = "" if self.seconds is None else f" for {span(self.seconds * 1000)}"
        return f"{self.who} holds a lock on {self.places or 'rows that others wait for'}{since}"


def blockers(connection: Connection) -> list[Blocker]:
    """Return who holds locks on the plugin's tables for which writes wait, or on rows for which sessions wait."""
    given = {"names": [*metadata.tables], "seconds": BLOCKING_SECONDS}
    return [
        Blocker(f"process {row.pid}{f' ({row.who})' if row.who else ''}", row.places, row.reads, row.seconds)
        for row in connection.execute(_BLOCKERS, given)
    ]


def lacking(connection: Connection) -> list[str]:
    """Return which rights on the plugin's tables the role of a connection lacks: ``UPDATE on flowactions_outbox``."""
    given = {"names": [*metadata.tables], "sequences": ["flowactions_deferred_id_seq"]}
    return [*connection.execute(_LACKING, given).scalars()]


class Snapshot(NamedTuple):
    """A transaction, slot or prepared transaction for which the server keeps old versions of rows.

    Attributes:
        holder: what it is, for people: a process, a replication slot or a prepared transaction.
        seconds: for how long; ``None``: it is not known.
        kept: about how many old versions of rows of the outbox there are.
    """

    holder: str
    seconds: float | None
    kept: int


def oldest_snapshot(connection: Connection) -> Snapshot | None:
    """Return what holds the oldest snapshot, where it has been open for long.

    A role that may not see others' sessions (``pg_read_all_stats``) sees its own only.
    """
    row = connection.execute(_OLDEST, {"seconds": OPEN_SECONDS, "transactions": OPEN_TRANSACTIONS}).first()
    if row is None:
        return None
    who = f" ({row.who})" if row.who else ""
    return Snapshot(f"{row.kind} {row.name}{who}", row.seconds, row.kept)


class PostgreSQL(Dialect):
    """SQL for PostgreSQL."""

    name = "postgresql"
    now_text = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS bigint)"
    is_server = True
    made_by = postgresql.dialect
    insert = staticmethod(postgresql.insert)

    def now(self) -> ColumnElement[int]:
        return literal_column(
            self.now_text, BigInteger
        )  # stable within a statement, so that an index can be used

    def rows_text(self, name: str, columns: Mapping[str, str]) -> str:
        kinds = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        return f"SELECT * FROM json_to_recordset(CAST(:{name} AS json)) AS {name} ({kinds})"  # noqa: S608  names only

    bytes_value = staticmethod(bytes.hex)  # type: ignore[assignment]  # it can have more arguments


def own_engine(url: URL, statement_seconds: float | None, connections: int) -> AsyncEngine:
    """Return an engine that connects to a URL's database.

    Args:
        url: parsed by `parse_database_url`.
        statement_seconds: how long a statement may take; ``None``: without limit.
        connections: how many are opened at the most.

    Raises:
        OSError: a file that the URL names cannot be read.
    """
    import asyncpg  # noqa: PLC0415  with the first engine of a PostgreSQL

    class Connection(asyncpg.Connection):  # type: ignore[misc]
        async def close(self, *, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  the driver's
            # The pool closes one idle connection after the other, and the driver gives up one that takes longer.
            with suppress(TimeoutError):
                await super().close(timeout=CLOSE_SECONDS)

    arguments = {
        **asyncpg_arguments(url),
        "command_timeout": statement_seconds,
        "connection_class": Connection,
    }
    # Errors of statements are logged, and must not show the values of rows.
    engine = create_async_engine(
        URL.create("postgresql+asyncpg"),
        connect_args=arguments,
        hide_parameters=True,
        pool_size=min(connections, 5),
        max_overflow=max(0, connections - 5),
    )
    if arguments.get("statement_cache_size") != 0:
        event.listen(engine.sync_engine, "connect", _set_up)
    event.listen(engine.sync_engine, "checkin", mark_used)
    event.listen(engine.sync_engine, "checkout", partial(_pre_ping, engine.sync_engine.dialect))
    return engine


async def listen(
    connection: AsyncConnection, channel: str, on_notify: Callable[[str], None], lost: asyncio.Event
) -> None:
    """Listen on a channel until the connection, which is used for nothing else, is lost or needed; see `Database.listen`.

    Raises:
        StorageUnavailable: the host's driver cannot listen.
    """
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if not hasattr(driver, "add_termination_listener"):
        raise StorageUnavailable("the host's database driver cannot listen")
    driver.add_termination_listener(lambda *_: lost.set())
    try:
        await driver.add_listener(channel, lambda _connection, _pid, _channel, payload: on_notify(payload))
        await lost.wait()
    finally:
        # It must not return to the pool, because it would continue to listen.
        await connection.invalidate()


def mark_used(connection: Any, record: Any = None) -> None:
    """Remember when a connection was used last; a listener for the pool's ``checkin``, too."""
    (record or connection).info["used_at"] = time.monotonic()


def mark_unused(connection: Any) -> None:
    """Have a connection count as one that was not used for long."""
    connection.info["used_at"] = -math.inf


def is_fresh(connection: Any) -> bool:
    """Return whether a connection is open and was used a moment ago, so that it needs no test before its next use."""
    is_closed = connection.connection.driver_connection.is_closed()
    return not is_closed and time.monotonic() - connection.info["used_at"] <= IDLE_SECONDS


def _set_up(connection: Any, _record: object) -> None:
    """Turn JIT off, which compiles short statements for longer than they run.

    Not as a parameter of the start, which poolers refuse, and not where URLs say that a pooler gives each transaction another
    connection (`statement_cache_size=0`): it would be set for others. There, the estimates of the statements have to do.
    """
    setting = "SELECT set_config('jit', 'off', false) WHERE current_setting('jit', true) IS NOT NULL"
    connection.run_async(lambda driver: driver.execute(setting))


def _pre_ping(dialect: Any, connection: Any, record: Any, _proxy: object) -> None:
    """Replace a connection that was lost, as by a restart of the server, before a caller uses it.

    A closed connection is detected without a round trip. Only a connection that was idle for a while is tested with one.
    """
    if connection.driver_connection.is_closed():
        raise DisconnectionError
    if time.monotonic() - record.info.get("used_at", math.inf) > IDLE_SECONDS:
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as exc:
            raise DisconnectionError from exc
