"""Background tasks: what a plugin declares, and the supervisor that keeps them running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from flowactions_hookspecs.base import ContractStruct

log = logging.getLogger("flowactions")

RESTART_CAP_SECONDS: Final = 60.0
SETTLED_SECONDS: Final = 60.0
"""A task that ran this long before it crashed starts its backoff anew."""


class BackgroundTask(ContractStruct, frozen=True, kw_only=True):
    """A coroutine that runs beside the host for as long as its lifespan is open.

    Args:
        name: unique in a host; seen in logs.
        run: async callable that runs until it is cancelled. On cancellation it finishes what is in
            flight and returns or raises ``CancelledError``.
        drain_seconds: how long it may take over that before it is left behind.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    drain_seconds: float = 15.0


def restart_delay(crashes: int) -> float:
    """Give the seconds to wait before restart number ``crashes`` (1, 2, 4, … up to a minute)."""
    return min(RESTART_CAP_SECONDS, 2.0 ** min(crashes - 1, 10))


class Supervisor:
    """Runs background tasks; as an async context manager, starts them on entry and drains them on exit.

    A crash is logged and the task restarted with backoff; it never takes the host down. A task that
    returns although nobody cancelled it is restarted just the same: deliveries must not stop silently.
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
                "background task %s did not stop within %s s and was left behind",
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
            crashes = 1 if clock() - started >= SETTLED_SECONDS else crashes + 1
            delay = self._delay(crashes)
            log.warning(
                "background task %s restarts in %s s", task.name, delay, extra={"event": "task.restarts"}
            )
            await asyncio.sleep(delay)


def is_being_cancelled() -> bool:
    """Returns whether somebody cancels the current task; not so when what it awaits was cancelled from within."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
