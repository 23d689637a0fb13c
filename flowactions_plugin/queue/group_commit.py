"""Group commit: what several callers of one process wait for at the same time is written in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.storage.waiting import note_unconfirmed

log = logging.getLogger("flowactions.outbox")

T = TypeVar("T")

GROUP_ROWS: Final = 200

GROUP_BYTES: Final = 1024 * 1024
"""Of a group of several. A larger item is written alone."""

PATIENCE_SECONDS: Final = 0.1
"""How long a caller waits at most for others' transactions. Then its own begins beside them, so that a transaction that
hangs holds up nobody else."""


class _Entry(Generic[T]):
    """What one caller waits for.

    Attributes:
        deadline: until when, counted from its call.
        done: its result, where its caller does not write it itself.
        group: the group of a task that it was taken into.
        left: whether its caller was cancelled.
    """

    __slots__ = ("deadline", "done", "group", "item", "left", "size")

    def __init__(self, item: T, size: int, deadline: Deadline, done: asyncio.Future[None]) -> None:
        self.item = item
        self.size = size
        self.deadline = deadline
        self.done = done
        self.group: Group[T] | None = None
        self.left = False

    def resolve(self, exc: Exception | None = None) -> None:
        if self.done.done():
            return  # its caller was cancelled
        if exc is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(exc)


class Group(Generic[T]):
    """Items that are written in one transaction.

    Attributes:
        items: the callers', in the order in which they came.
        begun: whether the transaction has asked for the items.
        deadline: the earliest of the callers'.
        task: writes them, unless their only caller does.
    """

    task: asyncio.Task[None]

    def __init__(self, entries: Sequence[_Entry[T]]) -> None:
        self.entries = entries
        self.items = [entry.item for entry in entries]
        self.begun = False
        self.deadline = entries[0].deadline  # who came first

    def begin(self) -> Sequence[T]:
        """Return the items; to be called within the transaction, in whatever thread, before they are written.

        Those whose callers were cancelled before are not among them. There may be none.
        """
        # In this order: a caller marks itself as gone before it asks whether this has begun.
        self.begun = True
        return [entry.item for entry in self.entries if not entry.left]


class GroupCommit(Generic[T]):
    """Collects items while a transaction is under way, and writes them together in the next.

    A caller that comes alone writes its item itself, at once.

    Args:
        write: writes a group in one transaction, all or none of it.
        size_of: the bytes of an item.
        is_interruptible: whether a transaction that has begun ends when its task is cancelled. Where it does not, a
            cancelled caller waits until it has ended, so that its item's fate is decided then.
        wait_seconds: until a caller's deadline; ``None``: as long as for SQLite's lock.
    """

    def __init__(
        self,
        write: Callable[[Group[T]], Awaitable[object]],
        size_of: Callable[[T], int],
        is_interruptible: Callable[[], bool],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        self._write_group = write
        self._size_of = size_of
        self._is_interruptible = is_interruptible
        self._wait_seconds = wait_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_Entry[T]] = deque()
        self._current: Group[T] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, item: T) -> None:
        """Write an item; returns after the commit of the transaction that holds it.

        A caller that is cancelled before its transaction has begun leaves nothing behind.

        Raises:
            Exception: what the writing of this item raised.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # What was under way in a loop that was closed does not end any more.
            self._loop = loop
            self._reset()
        entry = _Entry(item, self._size_of(item), Deadline(self._wait_seconds), loop.create_future())
        if self._current is None:
            self._current = group = Group([entry])
            try:
                await self._write_group(group)
            finally:
                self._ended(group)
            return
        self._waiting.append(entry)
        self._wait()
        try:
            await entry.done
        except asyncio.CancelledError as exc:
            entry.left = True
            if entry.group is not None:
                if entry.group.begun:
                    note_unconfirmed(exc)
                await self._leave(entry.group)
            raise

    async def _leave(self, group: Group[T]) -> None:
        """Wait for what has begun where it cannot be interrupted; a group leaves out who has left before."""
        if self._is_interruptible():
            if all(each.left for each in group.entries):
                group.task.cancel()
            return
        while group.begun and not group.task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({group.task})

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._next)

    def _next(self) -> None:
        """Begin with what waits: what is under way has ended, or takes so long that nobody waits for it any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries: list[_Entry[T]] = []
        size = 0
        while self._waiting and len(entries) < GROUP_ROWS:
            size += self._waiting[0].size
            if entries and size > GROUP_BYTES:
                break
            entries.append(self._waiting.popleft())
        self._current = self._begin(entries) if entries else None
        if self._waiting:
            self._wait()

    def _begin(self, entries: Sequence[_Entry[T]]) -> Group[T]:
        group = Group(entries)
        for entry in entries:
            entry.group = group
        group.task = asyncio.create_task(self._run(group))
        # The loop itself holds tasks weakly.
        self._tasks.add(group.task)
        group.task.add_done_callback(self._tasks.discard)
        return group

    async def _run(self, group: Group[T]) -> None:
        try:
            await self._write_group(group)
        except asyncio.CancelledError:
            for entry in group.entries:
                entry.done.cancel()
            raise
        except Exception as exc:  # noqa: BLE001  given to those whom it concerns
            self._failed(group, exc)
        else:
            for entry in group.entries:
                entry.resolve()
            # Callers that write one item after the other come with the next one before another group begins.
            await asyncio.sleep(0)
        finally:
            self._ended(group)

    def _failed(self, group: Group[T], exc: Exception) -> None:
        """Write each item in a transaction of its own, so that each caller gets the result of its own item."""
        number = len(group.entries)
        if number > 1:
            log.debug(
                "%s enqueued together are written one by one: %s",
                number,
                type(exc).__name__,
                extra={"event": "enqueue.one_by_one"},
            )
        for entry in group.entries:
            # One that has waited as long as a caller waits gets this error, which also was that of its own item.
            if number == 1 or not entry.deadline.left:
                entry.resolve(exc)
            elif not entry.left:
                self._begin([entry])

    def _ended(self, group: Group[T]) -> None:
        if group is self._current:
            self._next()
