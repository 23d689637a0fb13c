"""How long callers wait for the database, also when they are cancelled, what they then know, and what is run again.

The plugin's own transactions run as READ COMMITTED, with any default of the database, the role or the engine. So those that
PostgreSQL ends because of another one are deadlocks, which a repetition solves as a rule.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from flowactions_plugin.errors import StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_SECONDS: Final = 3.5
"""How long the statements of one call may take that a walk waits for. With what `RECOVERY_SECONDS` and the driver take after
that, the call answers within six seconds."""

RECOVERY_SECONDS: Final = 1.5
"""How long the server may take to cancel a statement and to roll back to a SAVEPOINT in a host's transaction. Then the
connection is given up, so that the host's commit fails."""

STATEMENT_SECONDS: Final = 30.0
"""How long a statement may take on PostgreSQL. A server that no longer answers is detected by this."""

TRANSACTION_SECONDS: Final = 60.0
"""How long a transaction on a host's engine may take, whose statements have no limit of ours."""

CONFLICTS: Final = ("40001", "40P01")
"""SQLSTATEs: a serialization failure, a deadlock. They are no outage."""

READ_ONLY: Final = "25006"
"""SQLSTATE: the server, the session or the transaction takes no writes."""

REPETITIONS: Final = 5

JITTER_SECONDS: Final = 0.02
"""The longest pause before the second repetition; the later ones may be longer in proportion, the first one has none."""

UNCONFIRMED: Final = "The database was asked to commit and did not answer."
"""The note on an exception that says so."""

_limited: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("flowactions_limited", default=None)
"""The task that waits within `answering`: tasks that it starts have limits of their own."""


def repeated(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run a function again, up to five times, when an own transaction in it has conflicted with another (§8).

    Nothing of it is kept when its transaction was rolled back. In a transaction of the host's nothing is repeated: its own
    statements would have to be, too.
    """

    @wraps(method)
    async def running(*args: P.args, **kwargs: P.kwargs) -> T:
        repetition = 0
        while True:
            try:
                return await method(*args, **kwargs)
            except StorageUnavailable as exc:
                if not exc.repeatable or repetition == REPETITIONS:
                    exc.repeatable = False
                    raise
            # At random, so that transactions that conflicted do not meet again.
            await asyncio.sleep(repetition * random.random() * JITTER_SECONDS)  # noqa: S311  no secret
            repetition += 1

    return running


async def shielded(work: Awaitable[T], patience: float | None = None) -> T:
    """Finish the work also when the caller is cancelled; the cancellation is raised after that.

    Args:
        work: what is finished.
        patience: how long it may take, in seconds, once the caller is cancelled. Then it is cancelled, too. ``None``: as long
            as it takes.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.call_later(patience, task.cancel)
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if end is not None:
            end.cancel()
        if not task.cancelled():
            task.exception()  # what failed beside the cancellation is of no interest
        raise


@asynccontextmanager
async def answering(seconds: float | None) -> AsyncIterator[None]:
    """Cancel what a block waits for after some time; ``None``: never (§8).

    A client-side limit changes no setting of a session or a transaction, which may be the host's. Of blocks within each other, the
    outermost one limits: a second cancellation would interrupt the driver while it asks the server to cancel the statement,
    and the statement would go on.

    Raises:
        StorageUnavailable: it took longer.
    """
    task = asyncio.current_task()
    if seconds is None or _limited.get() is task:
        yield
        return
    limiting = _limited.set(task)
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as exc:
        interrupted = exc.__cause__
        if not limit.expired() or not isinstance(interrupted, asyncio.CancelledError):
            raise
        unavailable = StorageUnavailable(f"the database did not answer within {seconds:g} s")
        unavailable.may_be_written = is_unconfirmed(interrupted)
        raise unavailable from exc
    finally:
        _limited.reset(limiting)


@contextmanager
def committing() -> Iterator[Callable[[], None]]:
    """Note on an error that ends the block that what it writes may be there, once the block has said that it commits.

    It says so before a COMMIT, or a statement that commits by itself. Whatever comes later, such as a cancellation while the connection
    goes back to the pool, does not undo it.
    """
    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    try:
        yield begin
    except BaseException as exc:
        # A refusal as read-only is an answer, although its connection is replaced.
        is_answered = isinstance(exc, DBAPIError) and (
            not exc.connection_invalidated or getattr(exc.orig, "sqlstate", None) == READ_ONLY
        )
        if begun and not is_answered:
            note_unconfirmed(exc)
        raise


def note_unconfirmed(exc: BaseException) -> None:
    """Note on an error that what was to be written may be there."""
    exc.add_note(UNCONFIRMED)


def is_unconfirmed(exc: BaseException) -> bool:
    """Return whether that is noted on an error."""
    return UNCONFIRMED in getattr(exc, "__notes__", ())
