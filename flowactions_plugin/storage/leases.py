"""Leases that are renewed while their holder works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flowactions_plugin.errors import LeaseLost, StorageUnavailable


@asynccontextmanager
async def renewing(renew: Callable[[], Awaitable[bool]], seconds: float, every: float) -> AsyncIterator[None]:
    """Renew a lease while a block runs, and cancel the block when another process may have the lease.

    While the database fails, the block goes on until the end of the lease: nobody else can begin its work before.

    Args:
        renew: renews it; False if nothing is left that could be leased: the block has ended its work, and is about to
            return. It raises `LeaseLost` if another process has it, and `StorageUnavailable` if the database failed.
        seconds: how long the lease holds. It was taken less than ``every`` seconds ago.
        every: the seconds to a renewal, and for which a block with nothing left may go on.

    Raises:
        LeaseLost: the block was cancelled.
    """
    clock = asyncio.get_running_loop().time

    async def keep(limit: asyncio.Timeout) -> None:
        left = True
        while left:
            await asyncio.sleep(every)
            began = clock()
            try:
                left = await renew()
                end = began + (seconds if left else every)
            except StorageUnavailable:
                continue
            except LeaseLost:
                left, end = False, began
            if not limit.expired():
                limit.reschedule(end)

    limit = asyncio.timeout(seconds - every)
    try:
        async with limit:
            keeping = asyncio.create_task(keep(limit))
            try:
                yield
            finally:
                if not limit.expired():
                    limit.reschedule(None)  # what has ended is not cancelled any more
                keeping.cancel()
                await asyncio.wait({keeping})
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise LeaseLost from exc
