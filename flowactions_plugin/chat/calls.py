"""Calls of the chat provider: limited in time and retried, and what they say about a connection is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final, TypeAlias, TypeVar

from flowactions_plugin.chat.app import in_order, is_covered, read_scopes
from flowactions_plugin.chat.failures import REVOKED, ChatRefused
from flowactions_plugin.chat.store import FAILURE_MS, ConnectionStore, StoredConnection
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable

log = logging.getLogger("flowactions.chat")

MAX_ATTEMPTS: Final = 4
RETRY_DELAYS: Final = (0.25, 0.5, 1.0)
"""Seconds before attempts two, three and four (§8)."""

MAX_RETRY_AFTER_SECONDS: Final = 3.0
"""When the provider asks for a longer delay, there is no further attempt in this walk."""

SEND_SECONDS: Final = 6.0
"""How long one message may delay a walk: the database and all attempts together."""

RECORD_SECONDS: Final = 1.0
"""How long a walk waits for the write of what a refusal says about its connection."""

MAX_REMEMBERED_FAILURES: Final = 10_000

Origin: TypeAlias = tuple[str, str]
"""The flow and the node of a message."""

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Post: TypeAlias = Callable[[], Awaitable[str]]

Result = TypeVar("Result")


def seconds_from_now(seconds: float) -> float:
    """Return a time of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds


def retry_delay(attempt: int, refusal: ChatRefused) -> float | None:
    """Return the seconds before the next attempt; ``None`` when there is none (§8).

    Args:
        attempt: the number of the attempt that failed, counted from 1.
        refusal: its error.
    """
    if not refusal.transient or attempt >= MAX_ATTEMPTS:
        return None
    asked = refusal.retry_after or 0.0
    return max(RETRY_DELAYS[attempt - 1], asked) if asked <= MAX_RETRY_AFTER_SECONDS else None


async def with_retries(attempt: Post, sleep: Sleep, until: float | None) -> str:
    """Make up to four attempts.

    Args:
        attempt: makes one attempt.
        sleep: waits between attempts.
        until: a time of the event loop's clock after which no attempt begins; ``None`` for a single attempt.

    Raises:
        ChatRefused: the last attempt failed.
    """
    number = 1
    while True:
        try:
            return await attempt()
        except ChatRefused as refusal:
            delay = None if until is None else retry_delay(number, refusal)
            # The walk does not wait for an attempt that would begin too late.
            if delay is None or until is None or seconds_from_now(delay) >= until:
                raise
        await sleep(delay)
        number += 1


class ProviderCalls:
    """Limits calls in time, and records on connections that a token was revoked or lacks a scope (§8).

    Args:
        store: where connections are kept.
    """

    def __init__(self, store: ConnectionStore) -> None:
        self._store = store
        self._background: set[asyncio.Task[Any]] = set()
        self._failures: dict[tuple[str, str], float] = {}

    async def aclose(self) -> None:
        """Wait for the reads and writes in the background."""
        if self._background:
            await asyncio.wait(self._background)

    async def make(
        self, stored: StoredConnection, until: float, call: Awaitable[Result], uses: Sequence[str]
    ) -> Result:
        """Wait for a call of the provider, and record on the connection what the answer says about it.

        Args:
            stored: the connection that the call is made with.
            until: a time of the event loop's clock.
            call: the call.
            uses: the scopes that it needs.

        Raises:
            ChatRefused: the provider refused, or did not answer in time.
        """
        try:
            async with asyncio.timeout_at(until):
                result = await call
        except TimeoutError:
            raise ChatRefused("unreachable", detail="no answer in time") from None
        except ChatRefused as refusal:
            await self._record_refusal(stored, refusal, until)
            raise
        if any(is_covered(scope, uses) for scope in read_scopes(stored.missing_scopes)):
            # The workspace has granted it meanwhile. The write happens in the background.
            write = self._store.change_missing_scopes(
                stored, lambda recorded: [scope for scope in recorded if not is_covered(scope, uses)]
            )
            self._start(self._record(stored, write))
        return result

    def record_failure(self, stored: StoredConnection, code: str, origin: Origin) -> None:
        """Write in the background why a message could not be sent, at most once in ten seconds for each connection."""
        install, now = (stored.organization_id, stored.install_id), seconds_from_now(0)
        if now - self._failures.get(install, -inf) < FAILURE_MS / 1000:
            return
        if len(self._failures) >= MAX_REMEMBERED_FAILURES:
            self._failures.clear()  # the statement compares times, too
        self._failures[install] = now
        self._start(self._record(stored, self._store.record_failure(stored, code, *origin)))

    async def read_until(self, until: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the database until a time, and cancel the read after that.

        The cancellation is not waited for, because a statement that waits for a lock may take long to be cancelled.

        Args:
            until: a time of the event loop's clock.
            work: reads from the database.

        Raises:
            StorageUnavailable: it did not answer in time.
        """
        working = self._start(work)
        try:
            await asyncio.wait({working}, timeout=max(0.0, until - seconds_from_now(0)))
        finally:
            working.cancel()
        if not working.done():
            raise StorageUnavailable("the database did not answer in time")
        return working.result()

    async def _record_refusal(self, stored: StoredConnection, refusal: ChatRefused, until: float) -> None:
        if refusal.code in REVOKED:
            write = self._store.revoke([stored], refusal.code)
        elif refusal.code == "missing_scope" and set(refusal.needed) - set(missing_scopes(stored)):
            write = self._store.change_missing_scopes(
                stored, lambda recorded: in_order([*recorded, *refusal.needed])
            )
        else:
            return
        # The wait is limited: on SQLite, a host that reaches the node in its own transaction holds the lock that this
        # write needs.
        recording = self._start(self._record(stored, write))
        left = max(0.0, until - seconds_from_now(0))
        await asyncio.wait({recording}, timeout=min(RECORD_SECONDS, left))

    async def _record(self, stored: StoredConnection, write: Awaitable[None]) -> None:
        try:
            await write
        except Exception as exc:  # noqa: BLE001  it runs in the background
            reason = exc if isinstance(exc, StorageUnavailable) else type(exc).__name__
            log.warning(
                "the state of team %s could not be stored: %s",
                printable(stored.team_id),
                reason,
                extra={"event": "chat.state_not_stored"},
            )

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it


def missing_scopes(stored: StoredConnection) -> tuple[str, ...]:
    """Return the scopes that a connection is known to lack.

    They were not granted, or the provider refused a call because of them.
    """
    return in_order(read_scopes(stored.missing_scopes))
