"""Calls of the chat provider: limited in time and retried, and what they say about a connection is stored."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final, TypeAlias, TypeVar

from flowactions_plugin.chat.app import in_order, is_covered, read_scopes
from flowactions_plugin.chat.failures import REVOKED, ChatRefused
from flowactions_plugin.chat.store import FAILURE_MS, ConnectionStore, StoredConnection
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable

log = logging.getLogger("flowactions.chat")

RETRY_DELAYS: Final = (0.25, 0.5, 1.0)
"""Seconds before attempts two, three and four (§8)."""

SEND_SECONDS: Final = 6.0
"""How long one message may delay a walk: the database and all attempts together."""

MOST_REMEMBERED: Final = 10_000
"""Of how many channels and connections something is remembered; then it is forgotten of all."""

Channel: TypeAlias = tuple[str, str]
"""A workspace, and a channel or member of it."""

Origin: TypeAlias = tuple[str, str]
"""The flow and the node of a message."""

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Post: TypeAlias = Callable[[], Awaitable[str]]

Result = TypeVar("Result")


def seconds_from_now(seconds: float) -> float:
    """Return a time of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds


class Turns:
    """Decides when attempts are made (§8): with jitter, from 0 to 1, and in a channel at its limit one after the other.

    Jitter adds up to a quarter of a second to a delay: messages that failed together are then not retried together. In a
    channel at its limit, a second is between two attempts, as the provider takes about one message a second.
    """

    def __init__(self, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random) -> None:
        self._sleep = sleep
        self._jitter = jitter
        self._last: dict[Channel, float] = {}

    async def attempts(self, attempt: Post, channel: Channel, until: float | None) -> str:
        """Make up to four attempts to post to a channel, none after that time of the event loop's clock; ``None``: one attempt.

        Raises:
            ChatRefused: the last attempt failed, or earlier messages to a channel at its limit leave no time for one.
        """
        if until is None:
            return await attempt()
        refusal = ChatRefused("ratelimited", detail="earlier messages wait")
        mine = None
        now = earliest = seconds_from_now(0)
        for delay in (*RETRY_DELAYS, None):
            last = self._last.get(channel)
            turn = earliest if last is None or last == mine else max(earliest, last + 1.0)
            if turn > now:
                # The walk does not wait for an attempt that would begin too late.
                if turn >= until:
                    break
                if refusal.throttled or last is not None:
                    if len(self._last) >= MOST_REMEMBERED:
                        self._last.clear()  # then the provider limits them again
                    self._last[channel] = mine = turn
                await self._sleep(turn - now)
            try:
                return await attempt()
            except ChatRefused as exc:
                refusal = exc
            if delay is None or not refusal.transient:
                break
            now = seconds_from_now(0)
            earliest = now + max(delay, refusal.retry_after or 0.0) + self._jitter() / 4
        raise refusal


class ProviderCalls:
    """Limits calls in time, and records on connections that a token was refused or lacks a scope (§8)."""

    def __init__(self, store: ConnectionStore, verify: Callable[[StoredConnection], Awaitable[object]]) -> None:
        self._store = store
        self._verify = verify
        self._background: set[asyncio.Task[Any]] = set()
        self._failures: dict[tuple[str, str, str], float] = {}

    async def aclose(self) -> None:
        """Wait for the reads and writes in the background."""
        if self._background:
            await asyncio.wait(self._background)

    async def make(
        self, stored: StoredConnection, until: float, call: Awaitable[Result], uses: Sequence[str]
    ) -> Result:
        """Wait for a call of the provider that needs these scopes; record what the answer says about the connection.

        The record is written in the background, so that no walk waits for it.

        Raises:
            ChatRefused: the provider refused, or did not answer in time.
        """
        try:
            async with asyncio.timeout_at(until):
                result = await call
        except TimeoutError:
            raise ChatRefused("unreachable", detail="no answer in time") from None
        except ChatRefused as refusal:
            needed = refusal.needed
            if refusal.code in REVOKED:
                # The answer may be somebody else's (§6.2).
                if self._is_due("token", stored):
                    self.start(self._record(stored, self._verify(stored)))
            elif refusal.code == "missing_scope" and set(needed) - set(stored.missing):
                self._change_missing(stored, lambda recorded: in_order([*recorded, *needed]))
            raise
        if self._failures.pop(("token", stored.organization_id, stored.install_id), None) is not None:
            self.start(self._record(stored, self._store.accepted(stored)))
        if any(is_covered(scope, uses) for scope in read_scopes(stored.missing_scopes)):
            # The workspace has granted it meanwhile.
            self._change_missing(
                stored, lambda recorded: [scope for scope in recorded if not is_covered(scope, uses)]
            )
        return result

    def record_failure(self, stored: StoredConnection, code: str, origin: Origin) -> None:
        """Write in the background why a message could not be sent, at most once in ten seconds for each connection."""
        if self._is_due("error", stored):
            self.start(self._record(stored, self._store.record_failure(stored, code, *origin)))

    async def ask_again(self) -> None:
        """Begin to ask the provider about the tokens that it has refused and whose time has come (§6.2)."""
        for stored in await self._store.claim_refused():
            self.start(self._record(stored, self._verify(stored)))

    def _is_due(self, what: str, stored: StoredConnection) -> bool:
        """Return whether something was not done with an installation within ten seconds; it counts as done now."""
        key, now = (what, stored.organization_id, stored.install_id), seconds_from_now(0)
        if now - self._failures.get(key, -inf) < FAILURE_MS / 1000:
            return False
        if len(self._failures) >= MOST_REMEMBERED:
            self._failures.clear()  # the statements compare, too
        self._failures[key] = now
        return True

    async def read_until(self, until: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the database until a time of the event loop's clock, and cancel the read after that.

        The cancellation is not waited for, because a statement that waits for a lock may take long to be cancelled.

        Raises:
            StorageUnavailable: it did not answer in time.
        """
        working = self.start(work)
        try:
            await asyncio.wait({working}, timeout=max(0.0, until - seconds_from_now(0)))
        finally:
            working.cancel()
        if not working.done():
            raise StorageUnavailable("the database did not answer in time")
        return working.result()

    def _change_missing(
        self, stored: StoredConnection, change: Callable[[Sequence[str]], Sequence[str]]
    ) -> None:
        """Change the scopes that a connection lacks."""
        self.start(self._record(stored, self._store.change_missing_scopes(stored, change)))

    async def _record(self, stored: StoredConnection, write: Awaitable[object]) -> None:
        """Write what an answer says about a connection; best effort."""
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

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin work in the background, which `aclose` waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
