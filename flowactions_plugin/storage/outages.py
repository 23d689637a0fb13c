"""Outages of the database: its errors as `StorageUnavailable`, one line of the log for each, and how long background parts wait.

An error says what happened and what to do, and holds no secret.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Final, NamedTuple

from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.clock import timer
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.urls import secrets_of, sqlite_path
from flowactions_plugin.storage.waiting import CONFLICTS, READ_ONLY, is_unconfirmed

log = logging.getLogger("flowactions.outbox")

FAILURE_SECONDS: Final = 5.0
"""Seconds at the most until the next try while the database is away."""

TOGETHER_SECONDS: Final = 0.5
"""Waits of this length or more end at a multiple of it, so that the background parts of a process wake at the same moments: an idle
process then wakes less often."""

_PHASE: Final = random.uniform(0, TOGETHER_SECONDS)  # noqa: S311  processes of one machine do not wake together

OUTAGES: Final = {
    "08": "see whether the server runs and can be reached",
    READ_ONLY: "the server is read-only: have the URL name the primary",
    "28": "see that the user name and password of FLOWACTIONS_DATABASE_URL are right, and that the server lets them in",
    "3D": "make the database, or have FLOWACTIONS_DATABASE_URL name another",
    "40001": "a serialization conflict with another transaction: repeat your transaction",
    "40P01": "a deadlock with another transaction: repeat your transaction",
    "40": "repeat your transaction",
    "53": "the server is out of memory or of another resource: see its log",
    "53100": "the server's disk is full",
    "53300": "the server has no connection to spare: raise its max_connections or the role's limit, run fewer processes, or set "
    "FLOWACTIONS_DATABASE_CONNECTIONS lower",
    "55P03": "another transaction holds a lock: see pg_locks, and end it",
    "57P": "the server starts, stops or recovers: wait until it has, or see its log",
    "58": "see what the server's log says about its disk",
    "XX": "see what the server's log says about the fault",
    "SQLITE_BUSY": "another program keeps the file locked: end its transaction",
    "SQLITE_CANTOPEN": "see that the directory exists and that this process may write there",
    "SQLITE_CORRUPT": "bring the file back from a backup, and see whether its disk is sound",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "see whether the file's disk is full or unsound",
    "SQLITE_LOCKED": "another program keeps the file locked: end its transaction",
    "SQLITE_NOMEM": "free memory on this machine",
    "SQLITE_NOTADB": "have FLOWACTIONS_DATABASE_URL name another file",
    "SQLITE_PROTOCOL": "another program keeps the file locked: end its transaction",
    "SQLITE_READONLY": "see that this process may write the file and its directory",
}
"""Prefix of an SQLSTATE or of SQLite's error name that says that the database is at fault, whoever wrote the statement → what to do."""

MISSING: Final = "run 'flowactions migrate', or bring the tables named flowactions_… back from a backup"

POOLED: Final = ("26000", "42P05")
"""SQLSTATEs: a prepared statement that is not there, or is there already, as a pooler has changed the server's connection."""

ADVICE: Final = {
    **OUTAGES,
    "URL": "see the options of FLOWACTIONS_DATABASE_URL",
    "0A": "the server does not support this; it may be too old, or its tables have just changed",
    "3F": "have search_path name a schema that exists",
    "42501": "run 'flowactions migrate' as a role that may make the tables named flowactions_…, and give this one the "
    "rights on them",
    "42P01": "run 'flowactions migrate', or have search_path name the schema of the tables named flowactions_…, or bring "
    "them back from a backup",
    "42": MISSING,
    **dict.fromkeys(
        POOLED,
        "a pooler in transaction mode needs prepared_statement_cache_size=0&statement_cache_size=0 in FLOWACTIONS_DATABASE_URL, "
        "or both in the host's engine",
    ),
    "no such table": MISSING,
    "no such column": MISSING,
}
"""The same for all codes, and for SQLite's messages without one. The longest prefix wins."""

UNUSABLE_URL: Final = "URL"
"""The code of an option of a URL with which asyncpg does not connect."""

NO_TABLES: Final = ("3F", "42P01")
"""SQLSTATEs: the search_path leads to no schema, or to none with the tables."""

STATE_OF_ASYNCPG: Final = (
    "ConnectionDoesNotExistError",
    "InterfaceError",
    "InternalClientError",
    "ProtocolError",
)

IS_READ_ONLY: Final = "it is read-only"

REFUSALS: Final = {
    READ_ONLY: ("read_only", IS_READ_ONLY),
    "42501": ("read_only", "this process's role may not write"),
    "53100": ("full", "its disk is full"),
    "58030": ("full", "its files cannot be written"),
    "SQLITE_CANTOPEN": ("read_only", IS_READ_ONLY),
    "SQLITE_FULL": ("full", "its disk is full"),
    "SQLITE_IOERR": ("full", "its file cannot be written"),
    "SQLITE_READONLY": ("read_only", IS_READ_ONLY),
}
"""Prefix of the code of a database that answers and takes no writes → why, for metrics and after "the database takes no writes: "."""


class Refused(NamedTuple):
    """A write that the database has refused.

    Attributes:
        words: what continues "the database takes no writes: ".
        at: when, in seconds of `clock.timer`.
    """

    words: str
    at: float


class Outages:
    """Translates the errors of one database.

    Args:
        url: the database's. No message holds its user name, password or query.
        connect: opens a connection to it, with which it is asked in which schemas it looks.
        lacks_tables: called when an own transaction has found no tables; returns whether it may find them next time.

    Attributes:
        refused: the last write that was refused; ``None``: none was.
    """

    def __init__(
        self,
        url: URL,
        connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        lacks_tables: Callable[[], bool],
    ) -> None:
        self._connect = connect
        self._lacks_tables = lacks_tables
        self._path = sqlite_path(url)
        self._secret = re.compile("|".join(map(_pattern, secrets_of(url)))) if secrets_of(url) else None
        self.refused: Refused | None = None

    @asynccontextmanager
    async def translated(
        self, transaction: AsyncConnection | None = None, *, is_own: bool = False
    ) -> AsyncIterator[None]:
        """Translate errors of the database into `StorageUnavailable`; mistakes in the plugin's SQL are raised as they are.

        Args:
            transaction: the caller's, in which the block runs.
            is_own: whether the block is a transaction of the plugin's own, which is run again after a conflict.

        Raises:
            StorageUnavailable: the database failed, does not answer, or refuses.
        """
        try:
            yield
        except StorageUnavailable as exc:
            exc.repeatable = is_own and exc.code in CONFLICTS
            raise
        except Exception as exc:
            if not _is_failure(exc) or _is_mistake(exc):
                raise
            message = str(_reason(exc))
            redacted = message if self._secret is None else self._secret.sub("…", message)
            unavailable = await self._unavailable(exc, redacted, transaction)
            is_lost = (
                transaction is None and (unavailable.code or "").startswith(NO_TABLES) and self._lacks_tables()
            )
            unavailable.repeatable = is_own and (is_lost or unavailable.code in CONFLICTS)
            # The original error is kept as the cause, unless its message holds a secret.
            raise unavailable from (exc if message == redacted else None)

    async def _unavailable(
        self, exc: Exception, message: str, transaction: AsyncConnection | None
    ) -> StorageUnavailable:
        reason, code = _reason(exc), code_of(exc)
        if code in POOLED:
            message = message.partition("\nHINT")[0]  # the driver's advice is for who uses it
        parts = [_own_words(reason) or f"{type(reason).__name__}: {' '.join(message.split())}"]
        if code == "SQLITE_CANTOPEN" and self._path is not None:
            parts[0] += f" {self._path}"
        if (code or "").startswith((*NO_TABLES, "42501")):
            # On another connection than an own transaction's, whose rollback has undone what the host had set on it.
            opening = self._connect() if transaction is None else nullcontext(transaction)
            with suppress(Exception):  # the connection was lost meanwhile
                async with opening as connection:
                    path = (await connection.exec_driver_sql("SHOW search_path")).scalar_one()
                    parts.append(f"search_path was {path}")
        fitting = [start for start in ADVICE if (code or "").startswith(start) or message.startswith(start)]
        parts += [ADVICE[max(fitting, key=len)]] if fitting else []
        unavailable = StorageUnavailable(f"the database failed: {'; '.join(parts)}", code=code)
        unavailable.may_be_written = is_unconfirmed(exc)
        if (refusal := refusal_of(code)) is not None:
            self.refused = Refused(refusal[1], timer())
        return unavailable


class OutageLog:
    """Logs the outages of one database: once for all background parts of a host, whichever notices first.

    While one part lacks a right, say, the others lose the server: what has a cause of another kind is another outage.
    """

    def __init__(self) -> None:
        self._failing: set[str] = set()
        self._logged: set[str] = set()

    def failed(self, part: str, error: StorageUnavailable) -> None:
        """Record that a part could not use the database, and why."""
        self._failing.add(part)
        code = error.code or ""
        # 55000: a server, or a database of it, that accepts no connections for now.
        is_away = not code or (code.startswith((*OUTAGES, "55000")) and refusal_of(code) is None)
        kind = "away" if is_away else code
        if kind not in self._logged:
            self._logged.add(kind)
            log.error(
                "the database is out of reach, trying again with backoff: %s",
                printable(error, message=True),
                extra={"event": "outbox.unreachable"},
            )

    def worked(self, part: str) -> None:
        """Record that a part could use the database. The last one to do so ends the outage."""
        if part in self._failing:
            self._failing.remove(part)
            if not self._failing:
                self._logged.clear()
                log.info("the database is reachable again", extra={"event": "outbox.reachable"})

    def ended(self, part: str) -> None:
        """Record that a part uses the database no more."""
        self._failing.discard(part)
        if not self._failing:
            self._logged.clear()


def together(seconds: float) -> float:
    """Return about so many seconds from now, to a moment at which other parts of this process wake, too."""
    if seconds < TOGETHER_SECONDS:
        return seconds
    now = asyncio.get_running_loop().time() + _PHASE
    return round((now + seconds) / TOGETHER_SECONDS) * TOGETHER_SECONDS - now


def outage_delay(failures: int, cap: float, chance: float) -> float:
    """Return the seconds to wait after the database failed several times in a row: up to 0.5, 1, 2, … and the cap.

    Args:
        failures: how many times.
        cap: the most. A worker's is a third of a lease: while leases are in doubt, each worker has tried several times.
        chance: from 0 to 1, so that processes do not come back in step: the wait is half as long at the least.
    """
    return min(cap, 0.5 * 2.0 ** min(failures - 1, 10)) * (1 + chance) / 2


def refusal_of(code: str | None) -> tuple[str, str] | None:
    """Return why a database that answers takes no writes, for metrics and in words; ``None``: a code says nothing of it."""
    return next((found for start, found in REFUSALS.items() if (code or "").startswith(start)), None)


def reason_of(exc: StorageUnavailable) -> str:
    """Return why something was not queued, as metrics have it."""
    if (refusal := refusal_of(exc.code)) is not None:
        return refusal[0]
    return "conflict" if exc.code in CONFLICTS else "unavailable"


def answer_to(exc: StorageUnavailable) -> str:
    """Return what a caller of the contract is told who reads no log: what is sure, and what to do."""
    if exc.code in CONFLICTS:
        return "Another transaction changed the same rows (a serialization conflict), so nothing was queued or recorded: repeat your transaction."
    if exc.may_be_written:
        return "The database did not say in time whether this was stored: it may still have been queued or recorded."
    return "The database did not answer, so nothing was queued or recorded."


def code_of(exc: BaseException) -> str | None:
    """Return an error's SQLSTATE, or SQLite's name of it (``SQLITE_FULL``), if it has one."""
    if isinstance(exc, StorageUnavailable):
        return exc.code
    for each in _causes(exc):
        if isinstance(each, ValueError) and _is_of_asyncpg(each):
            return UNUSABLE_URL
        code = getattr(each, "sqlstate", None) or getattr(each, "sqlite_errorname", None)
        if code:
            return str(code)
    return None


def _is_mistake(exc: BaseException) -> bool:
    """Return whether the cause is a value or a constraint, and not the database."""
    code = code_of(exc)
    if code is None or code.startswith("SQLITE_"):
        mistakes = (DataError, IntegrityError, InterfaceError, NotSupportedError, ProgrammingError)
        return isinstance(exc, mistakes) and _own_words(_reason(exc)) is None
    # Data and constraints. All else is about the database, its tables or the rights on them: an operator can repair that.
    return code.startswith(("22", "23"))


def is_outage(exc: BaseException) -> bool:
    """Return whether another party's statement failed because of the database, so that repeating it later may succeed.

    Everything else is the statement's own fault: a table that is missing, a constraint, a trigger that raises, a
    statement after one that failed.
    """
    if isinstance(exc, PoolTimeoutError):
        return True
    if not _is_failure(exc) or isinstance(exc, OSError):
        return False
    code = code_of(exc)
    if code is None:
        return isinstance(exc, DBAPIError) and exc.connection_invalidated
    return code.startswith(tuple(OUTAGES))


def _is_failure(exc: BaseException) -> bool:
    """Return whether an error is one of SQLAlchemy's or of a driver's."""
    return _is_of_asyncpg(exc) or isinstance(exc, (DBAPIError, PoolTimeoutError, OSError, sqlite3.Error))


def _is_of_asyncpg(exc: BaseException) -> bool:
    """Return whether an error is asyncpg's own; a process without PostgreSQL does not import it."""
    return type(exc).__module__.startswith("asyncpg.")


def _own_words(reason: BaseException) -> str | None:
    """Return what an error of PostgreSQL's driver means, where its message is about the driver's own state."""
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    # Subclasses are about something else, for example a wrong value.
    is_lost = _is_of_asyncpg(reason) and type(reason).__name__ in STATE_OF_ASYNCPG
    return "the connection was lost while it was used" if is_lost else None


def _reason(exc: BaseException) -> BaseException:
    """Return the driver's own error, which is the most precise."""
    return _causes(exc)[-1]


def _causes(exc: BaseException) -> list[BaseException]:
    found = [exc]
    if isinstance(exc, DBAPIError) and exc.orig is not None:
        # SQLAlchemy wraps asyncpg's error in one of its own.
        found += [exc.orig, *filter(None, [exc.orig.__cause__])]
    return found


def _pattern(secret: str) -> str:
    # A short secret is removed only as a whole word: not each "a" of a message.
    inner = re.escape(secret)
    return inner if len(secret) > 3 and not secret.isalpha() else rf"(?<![A-Za-z0-9_]){inner}(?![A-Za-z0-9_])"
