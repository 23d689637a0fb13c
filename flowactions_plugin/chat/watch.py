"""Calls of the chat provider within a time, and what they tell of a connection noted on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from flowactions_plugin.chat.attempts import seconds_from_now
from flowactions_plugin.chat.failures import REVOKED, ChatRefused
from flowactions_plugin.chat.scopes import in_order, is_covered, not_granted, read_scopes
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable

log = logging.getLogger("flowactions.chat")

NOTE_SECONDS: Final = 1.0
"""The longest that a walk is held to note what a refusal says of its connection."""

Result = TypeVar("Result")


class Watch:
    """Bounds calls in time, and notes on connections that their token is dead or lacks a scope.

    Args:
        store: where connections are kept.
    """

    def __init__(self, store: ConnectionStore) -> None:
        self._store = store
        self._background: set[asyncio.Task[Any]] = set()

    async def aclose(self) -> None:
        """Wait for what is still being read or written."""
        if self._background:
            await asyncio.wait(self._background)

    async def call(
        self, stored: StoredConnection, until: float, call: Awaitable[Result], uses: Sequence[str]
    ) -> Result:
        """Call the provider within a time, and note on the connection what comes of it.

        Args:
            stored: the connection that the call is made with.
            until: a moment of the event loop's clock.
            call: makes it.
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
            await self._note_refusal(stored, refusal, until)
            raise
        if any(is_covered(scope, uses) for scope in read_scopes(stored.missing_scopes)):
            # The workspace has granted it in the meantime. Nobody waits for that to be noted.
            write = self._store.change_missing_scopes(
                stored, lambda noted: [scope for scope in noted if not is_covered(scope, uses)]
            )
            self._begin(self._note(stored, write))
        return result

    async def until(self, until: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the database until a moment, and cancel what goes on after it.

        It is not waited for then: a statement that waits for a lock can take long to be cancelled.

        Args:
            until: a moment of the event loop's clock.
            work: asks the database.

        Raises:
            StorageUnavailable: it did not answer in time.
        """
        working = self._begin(work)
        try:
            await asyncio.wait({working}, timeout=max(0.0, until - seconds_from_now(0)))
        finally:
            working.cancel()
        if not working.done():
            raise StorageUnavailable("the database did not answer in time")
        return working.result()

    async def _note_refusal(self, stored: StoredConnection, refusal: ChatRefused, until: float) -> None:
        if refusal.code in REVOKED:
            write = self._store.revoke([stored], refusal.code)
        elif refusal.code == "missing_scope" and set(refusal.needed) - set(missing_scopes(stored)):
            write = self._store.change_missing_scopes(stored, lambda noted: in_order([*noted, *refusal.needed]))
        else:
            return
        # Begun at once, but not waited for at any cost: on SQLite, a host that reaches the node within a
        # transaction of its own holds the lock that this needs.
        noting = self._begin(self._note(stored, write))
        left = max(0.0, until - seconds_from_now(0))
        await asyncio.wait({noting}, timeout=min(NOTE_SECONDS, left))

    async def _note(self, stored: StoredConnection, write: Awaitable[None]) -> None:
        try:
            await write
        except Exception as exc:  # noqa: BLE001  nobody waits for it
            reason = exc if isinstance(exc, StorageUnavailable) else type(exc).__name__
            log.warning(
                "what the provider says of team %s could not be noted: %s", printable(stored.team_id), reason
            )

    def _begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; who has gone does not miss it


def missing_scopes(stored: StoredConnection) -> tuple[str, ...]:
    """List the scopes that a connection is known to lack.

    They were not granted, or the provider refused a call for them.
    """
    noted = read_scopes(stored.missing_scopes)
    # Releases that did not note it left it to the granted ones.
    earlier = () if stored.install_id else not_granted(read_scopes(stored.scopes))
    return in_order([*earlier, *noted])
