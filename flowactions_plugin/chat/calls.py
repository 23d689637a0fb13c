"""Calls of the chat provider: limited in time and retried, and what they say about a connection is stored."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
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

GIVEN_UP_SECONDS: Final = 10.0
"""How long messages that were given up are counted for a line of the log."""

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
        self._given_up: Counter[Channel] = Counter()

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
        if refusal.throttled:
            self._give_up(channel)
        raise refusal

    def _give_up(self, channel: Channel) -> None:
        """Count a message for a line of the log a little later."""
        self._given_up[channel] += 1
        if self._given_up[channel] == 1:
            asyncio.get_running_loop().call_later(GIVEN_UP_SECONDS, self._log, channel)

    def _log(self, channel: Channel) -> None:
        """Write one line for all messages to a channel that were given up since the first one."""
        log.warning(
            "team %s: %s messages to %s were given up within %s s, because the provider takes about one a second",
            printable(channel[0]),
            self._given_up.pop(channel),
            printable(channel[1]),
            round(GIVEN_UP_SECONDS),
            extra={"event": "chat.given_up"},
        )


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
        """Wait for a call of the provider that needs these scopes, and record on the connection what the answer says about it.

        Raises:
            ChatRefused: the provider refused, or did not answer in time.
        """
        try:
            async with asyncio.timeout_at(until):
                result = await call
        except TimeoutError:
            raise ChatRefused("unreachable", detail="no answer in time") from None
        except ChatRefused as refusal:
            if refusal.code in REVOKED:
                # In the background, so that the walk does not wait: the answer may be somebody else's (§6.2).
                if self._is_due("token", stored):
                    self.start(self._record(stored, self._verify(stored)))
            else:
                await self._record_refusal(stored, refusal, until)
            raise
        if self._failures.pop(("token", stored.organization_id, stored.install_id), None) is not None:
            self.start(self._record(stored, self._store.accepted(stored)))
        if any(is_covered(scope, uses) for scope in read_scopes(stored.missing_scopes)):
            # The workspace has granted it meanwhile. The write happens in the background.
            write = self._store.change_missing_scopes(
                stored, lambda recorded: [scope for scope in recorded if not is_covered(scope, uses)]
            )
            self.start(self._record(stored, write))
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

    async def _record_refusal(self, stored: StoredConnection, refusal: ChatRefused, until: float) -> None:
        """Store the scopes that a call lacks, unless that is known."""
        if refusal.code != "missing_scope" or not set(refusal.needed) - set(stored.missing):
            return
        write = self._store.change_missing_scopes(
            stored, lambda recorded: in_order([*recorded, *refusal.needed])
        )
        # A second at the most: on SQLite, a host that reaches the node in its own transaction holds the lock that this
        # write needs.
        recording = self.start(self._record(stored, write))
        await asyncio.wait({recording}, timeout=min(1.0, max(0.0, until - seconds_from_now(0))))

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
