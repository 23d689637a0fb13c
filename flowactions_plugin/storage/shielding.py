"""Work that continues when its caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")


async def shielded(work: Awaitable[T]) -> T:
    """Finish the work also when the caller is cancelled; the cancellation is raised after that."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled() and task.exception() is not None:
            log.debug(
                "failed while its caller was cancelled: %r",
                task.exception(),
                extra={"event": "transaction.failed_while_cancelled"},
            )
        raise
