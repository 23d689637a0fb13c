"""Work that continues when its caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")


async def shielded(work: Awaitable[T], patience: float | None = None) -> T:
    """Finish the work also when the caller is cancelled; the cancellation is raised after that.

    Args:
        work: what is finished.
        patience: how long it may take once the caller is cancelled. Then it is cancelled, too. ``None``: as long as it
            takes.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.call_later(patience, task.cancel)
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if end is not None:
            end.cancel()
        if not task.cancelled() and task.exception() is not None:
            log.debug(
                "failed while its caller was cancelled: %r",
                task.exception(),
                extra={"event": "transaction.failed_while_cancelled"},
            )
        raise
