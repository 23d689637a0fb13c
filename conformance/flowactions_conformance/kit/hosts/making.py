"""Hosts of one process are made one after the other.

Frameworks and plugins have handlers in module globals, and to register them in two apps at the same time, in two
threads, is nothing that frameworks expect: Litestar's fail then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

WAIT_SECONDS: Final = 15.0


class _Making:
    lock = threading.Lock()


@asynccontextmanager
async def one_host_at_a_time() -> AsyncIterator[None]:
    """Wait until no other host of this process is being made; one that hangs meanwhile is not waited for."""
    lock = _Making.lock
    held = await asyncio.to_thread(lock.acquire, timeout=WAIT_SECONDS)
    if not held and _Making.lock is lock:
        _Making.lock = threading.Lock()
    try:
        yield
    finally:
        if held:
            lock.release()
