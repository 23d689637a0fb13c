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
        item: to be written.
        size: its bytes.
        deadline: until when SQLite's lock is waited for, counted from the call.
        since: when the call came, by the loop's clock.
        done: its result; ``None`` for an entry that its caller writes itself.
        group: the group that it was taken into.
        left: whether its caller has gone.
    """

    __slots__ = ("deadline", "done", "group", "item", "left", "since", "size")

    def __init__(self, item: T, size: int, since: float, deadline: Deadline) -> None:
        self.item = item
        self.size = size
        self.since = since
        self.deadline = deadline
        self.done: asyncio.Future[None] | None = None
        self.group: Group[T] | None = None
        self.left = False


class Group(Generic[T]):
    """Items that are written in one transaction.

    Attributes:
        entries: the callers', in the order in which they came.
        begun: whether the transaction has asked for the items.
        task: writes them; ``None`` where the only caller does.
        deadline: the earliest of the callers'.
    """

    def __init__(self, entries: Sequence[_Entry[T]]) -> None:
        self.entries = entries
        self.begun = False
        self.task: asyncio.Task[None] | None = None
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
        rows: how many items a group has at the most.
        wait_seconds: until a caller's deadline; ``None``: as long as for SQLite's lock.
    """

    def __init__(
        self,
        write: Callable[[Group[T]], Awaitable[object]],
        size_of: Callable[[T], int],
        is_interruptible: Callable[[], bool],
        *,
        rows: int = GROUP_ROWS,
        wait_seconds: float | None = None,
    ) -> None:
        self._write_group = write
        self._size_of = size_of
        self._is_interruptible = is_interruptible
        self._rows = rows
        self._wait_seconds = wait_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_Entry[T]] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched = False

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
        entry = _Entry(item, self._size_of(item), loop.time(), Deadline(self._wait_seconds))
        if not self._under_way:
            self._under_way += 1
            try:
                await self._write_group(Group([entry]))
            finally:
                self._ended()
            return
        entry.done = loop.create_future()
        self._waiting.append(entry)
        self._watch(entry)
        try:
            await entry.done
        except asyncio.CancelledError as exc:
            entry.left = True
            if entry.group is not None and entry.group.begun:
                note_unconfirmed(exc)
            await self._leave(entry)
            raise

    async def _leave(self, entry: _Entry[T]) -> None:
        """Wait for what has begun where it cannot be interrupted; a group leaves out who has left before."""
        group = entry.group
        task = None if group is None else group.task
        if group is None or task is None or task.done():
            return
        if self._is_interruptible():
            if all(each.left for each in group.entries):
                task.cancel()
            return
        while group.begun and not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    def _start(self) -> None:
        """Begin to write the next group."""
        entries = self._take()
        if not entries:
            return
        self._under_way += 1
        group = Group(entries)
        for entry in entries:
            entry.group = group
        group.task = asyncio.create_task(self._run(group))
        # The loop itself holds tasks weakly.
        self._tasks.add(group.task)
        group.task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[_Entry[T]]:
        entries: list[_Entry[T]] = []
        size = 0
        while self._waiting and len(entries) < self._rows:
            size += self._waiting[0].size
            if entries and size > GROUP_BYTES:
                break
            entries.append(self._waiting.popleft())
        return entries

    async def _run(self, group: Group[T]) -> None:
        entries = group.entries
        try:
            try:
                await self._write_group(group)
            except Exception as exc:  # noqa: BLE001  given to those whom it concerns
                await self._one_by_one(entries, exc)
            else:
                for entry in entries:
                    _resolve(entry, None)
                # Callers that write one item after the other come with the next one before another group begins.
                await asyncio.sleep(0)
        finally:
            for entry in entries:
                if entry.done is not None:
                    entry.done.cancel()  # only what a cancellation of this task has left over
            self._ended()

    async def _one_by_one(self, entries: Sequence[_Entry[T]], exc: Exception) -> None:
        """Write each item in a transaction of its own, so that each caller gets the result of its own item."""
        if len(entries) > 1:
            log.debug(
                "%s enqueued together are written one by one: %s",
                len(entries),
                type(exc).__name__,
                extra={"event": "enqueue.one_by_one"},
            )
        waiting = []
        for entry in entries:
            # One that has waited as long as a caller waits gets this error, which also was that of its own item.
            if len(entries) == 1 or not entry.deadline.left:
                _resolve(entry, exc)
            elif not entry.left:
                waiting.append(self._alone(entry))
        await asyncio.gather(*waiting)

    async def _alone(self, entry: _Entry[T]) -> None:
        try:
            await self._write_group(Group([entry]))
        except Exception as exc:  # noqa: BLE001  given to the caller
            _resolve(entry, exc)
        else:
            _resolve(entry, None)

    def _ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._start()

    def _watch(self, entry: _Entry[T]) -> None:
        """Have a group begin beside those under way when an entry has waited too long."""
        if not self._watched:
            self._watched = True
            assert self._loop is not None  # noqa: S101  set by the first caller
            self._loop.call_at(entry.since + PATIENCE_SECONDS, self._overtake)

    def _overtake(self) -> None:
        self._watched = False
        assert self._loop is not None  # noqa: S101  set by the first caller
        if self._waiting and self._loop.time() - self._waiting[0].since >= PATIENCE_SECONDS:
            self._start()
        if self._waiting:
            self._watch(self._waiting[0])


def _resolve(entry: _Entry[T], exc: Exception | None) -> None:
    if entry.done is None or entry.done.done():
        return  # its caller was cancelled
    if exc is None:
        entry.done.set_result(None)
    else:
        entry.done.set_exception(exc)
