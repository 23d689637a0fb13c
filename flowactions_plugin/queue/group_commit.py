"""Group commit: what several callers of one process wait for at the same time is written in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.items import Item
from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.storage.waiting import note_unconfirmed

log = logging.getLogger("flowactions.outbox")

GROUP_ROWS: Final = 200

GROUP_BYTES: Final = 1024 * 1024
"""Of a group of several. A larger item is written alone."""

PATIENCE_SECONDS: Final = 0.1
"""How long a caller waits at most for others' transactions. Then its own begins beside them, so that a transaction that
hangs holds up nobody else."""


class Call:
    """What one caller waits for.

    Attributes:
        deadline: until when, counted from its call.
        done: its result, where its caller does not write it itself; cancelled with its caller.
        group: the group that it was taken into.
        may_be_written: whether an earlier group with it failed after the database was asked to commit.
    """

    __slots__ = ("deadline", "done", "group", "item", "may_be_written")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.deadline = Deadline()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.group: Group | None = None
        self.may_be_written = False


class Group:
    """Calls whose items are written in one transaction, in the order in which they came.

    Attributes:
        items: theirs.
        begun: whether the transaction has asked for the items.
        task: writes them, unless their only caller does.
    """

    task: asyncio.Task[None]

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.items = [call.item for call in calls]
        self.begun = False

    def begin(self) -> Sequence[Item]:
        """Return the items; to be called within the transaction, in whatever thread, before they are written.

        Those whose callers were cancelled before are not among them. There may be none.
        """
        # In this order: a call is cancelled before its caller asks whether this has begun.
        self.begun = True
        return [call.item for call in self.calls if not call.done.cancelled()]


class GroupCommit:
    """Collects items while a transaction is under way, and writes them together in the next.

    A caller that comes alone writes its item itself, at once.

    Args:
        write: writes a group in one transaction, all or none of it.
        is_interruptible: whether a transaction that has begun ends when its task is cancelled. Where it does not, a
            cancelled caller waits until it has ended, so that its item's fate is decided then.
    """

    def __init__(
        self, write: Callable[[Group], Awaitable[object]], is_interruptible: Callable[[], bool]
    ) -> None:
        self._write_group = write
        self._is_interruptible = is_interruptible
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Call] = deque()
        self._current: Group | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, item: Item) -> None:
        """Write an item; returns after the commit of the transaction that holds it.

        A caller that is cancelled before its transaction has begun leaves nothing behind.

        Raises:
            Exception: what the writing of this item raised.
        """
        call = Call(item)
        if (loop := asyncio.get_running_loop()) is not self._loop:
            # What was under way in a loop that was closed does not end any more.
            self._loop, self._current, self._timer = loop, None, None
            self._waiting, self._tasks = deque(), set()
        if self._current is None:
            self._current = group = Group([call])
            try:
                await self._write_group(group)
            finally:
                self._ended(group)
            return
        self._waiting.append(call)
        self._wait()
        try:
            await call.done
        except asyncio.CancelledError as exc:
            if call.group is not None:
                if call.may_be_written or call.group.begun:
                    note_unconfirmed(exc)
                await self._leave(call.group)
            raise

    async def _leave(self, group: Group) -> None:
        """Wait for what has begun where it cannot be interrupted; a group leaves out who has left before."""
        if self._is_interruptible():
            if all(call.done.cancelled() for call in group.calls):
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
        calls: list[Call] = []
        size = 0
        while self._waiting and len(calls) < GROUP_ROWS:
            size += self._waiting[0].item.size
            if calls and size > GROUP_BYTES:
                break
            calls.append(self._waiting.popleft())
        self._current = self._begin(calls) if calls else None
        if self._waiting:
            self._wait()

    def _begin(self, calls: Sequence[Call]) -> Group:
        group = Group(calls)
        for call in calls:
            call.group = group
        group.task = asyncio.create_task(self._run(group))
        # The loop itself holds tasks weakly.
        self._tasks.add(group.task)
        group.task.add_done_callback(self._tasks.discard)
        return group

    async def _run(self, group: Group) -> None:
        try:
            await self._write_group(group)
        except asyncio.CancelledError:
            for call in group.calls:
                call.done.cancel()
            raise
        except Exception as exc:  # noqa: BLE001  given to those whom it concerns
            self._failed(group, exc)
        else:
            for call in group.calls:
                if not call.done.done():
                    call.done.set_result(None)
            # Callers that write one item after the other come with the next one before another group begins.
            await asyncio.sleep(0)
        finally:
            self._ended(group)

    def _failed(self, group: Group, exc: Exception) -> None:
        """Write each item in a transaction of its own, so that each caller gets the result of its own item."""
        number = len(group.calls)
        if number > 1:
            log.debug(
                "%s enqueued together are written one by one: %s",
                number,
                type(exc).__name__,
                extra={"event": "enqueue.one_by_one"},
            )
        for call in group.calls:
            if call.done.done():
                continue  # its caller was cancelled
            if isinstance(exc, StorageUnavailable):
                exc.may_be_written = call.may_be_written = exc.may_be_written or call.may_be_written
            # One that has waited as long as a caller waits gets this error, which also was that of its own item.
            if number > 1 and call.deadline.left:
                self._begin([call])
            else:
                call.done.set_exception(exc)

    def _ended(self, group: Group) -> None:
        if group is self._current:
            self._next()
