"""Repeats transactions of the plugin's own that PostgreSQL has ended because of another transaction.

They run as READ COMMITTED, with any default of the database, the role or the engine. So the only transactions
to repeat are deadlocks, and conflicts of statements that a database with another default ran before that was
known.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from flowactions_plugin.errors import StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")

SERIALIZATION_FAILURE: Final = "40001"
"""SQLSTATE."""

CONFLICTS: Final = (SERIALIZATION_FAILURE, "40P01")
"""SQLSTATEs: a serialization failure, a deadlock. They are no outage: a repetition succeeds as a rule."""

REPETITIONS: Final = 5

JITTER_SECONDS: Final = 0.02
"""The longest pause before the second repetition; the later ones may be longer in proportion, the first one has none."""


def pause_before(repetition: int, fraction: float) -> float:
    """Return the seconds before a repetition, counted from 1, which comes at once.

    The fraction is a random number from 0 to 1, so that transactions that conflicted do not meet again.
    """
    return fraction * JITTER_SECONDS * (repetition - 1)


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
                if not exc.repeatable:
                    raise
                if repetition == REPETITIONS:
                    exc.repeatable = False
                    raise
            repetition += 1
            await asyncio.sleep(pause_before(repetition, random.random()))  # noqa: S311  no secret

    return running
