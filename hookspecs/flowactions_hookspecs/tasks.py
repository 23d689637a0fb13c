"""Background tasks: what a plugin declares, and the supervisor that keeps them running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from flowactions_hookspecs.base import ContractStruct

log = logging.getLogger("flowactions")


class BackgroundTask(ContractStruct, frozen=True, kw_only=True):
    """A coroutine that runs in the host's process while its lifespan is open.

    Args:
        name: unique in a host; shown in logs.
        run: async callable that runs until it is cancelled. When it is cancelled, it finishes the work in flight, and
            returns or raises ``CancelledError``.
        drain_seconds: seconds to wait for that. After them, the shutdown continues without the task.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    drain_seconds: float = 15.0


def restart_delay(crashes: int) -> float:
    """Return the seconds to wait before restart number ``crashes`` (1, 2, 4, … up to a minute)."""
    return min(60.0, 2.0 ** min(crashes - 1, 10))


class Supervisor:
    """Runs background tasks; as an async context manager, starts them on entry and drains them on exit.

    If a task crashes, the crash is logged and the task is restarted with backoff; the host continues. If a task
    returns and was not cancelled, it is also restarted, because deliveries must not stop silently.
    """

    def __init__(self, tasks: Sequence[BackgroundTask], delay: Callable[[int], float] = restart_delay) -> None:
        self._tasks = tasks
        self._delay = delay
        self._running: list[tuple[BackgroundTask, asyncio.Task[None]]] = []

    async def __aenter__(self) -> Self:
        self._running = [
            (task, asyncio.create_task(self._keep_running(task), name=task.name)) for task in self._tasks
        ]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for _, running in self._running:
            running.cancel()
        await asyncio.gather(*(self._drained(task, running) for task, running in self._running))
        self._running = []

    @staticmethod
    async def _drained(task: BackgroundTask, running: asyncio.Task[None]) -> None:
        done, _ = await asyncio.wait({running}, timeout=task.drain_seconds)
        if not done:
            log.error(
                "background task %s did not stop within %s s: the shutdown continues without it",
                task.name,
                task.drain_seconds,
                extra={"event": "task.left_behind"},
            )

    async def _keep_running(self, task: BackgroundTask) -> None:
        clock = asyncio.get_running_loop().time
        crashes = 0
        while True:
            started = clock()
            try:
                await task.run()
                if is_being_cancelled():
                    return
                log.error(
                    "background task %s returned before it was cancelled",
                    task.name,
                    extra={"event": "task.returned"},
                )
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                log.exception(
                    "background task %s was cancelled from within", task.name, extra={"event": "task.cancelled"}
                )
            except Exception:
                log.exception("background task %s crashed", task.name, extra={"event": "task.crashed"})
                if is_being_cancelled():
                    return
            crashes = 1 if clock() - started >= 60 else crashes + 1  # after a minute, the backoff begins again
            delay = self._delay(crashes)
            log.warning(
                "background task %s restarts in %s s", task.name, delay, extra={"event": "task.restarts"}
            )
            await asyncio.sleep(delay)


def is_being_cancelled() -> bool:
    """Return whether the current task itself is being cancelled, and not only what it awaits."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
