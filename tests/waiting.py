"""Waiting for signals instead of time.

A test waits until something has happened (`until`), however long that takes: its limit is a safety net and no statement.
That something does not happen is shown by something else that has happened after it would have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

SAFETY_SECONDS = 300.0
"""Only for a test that would otherwise never end."""

NAP_SECONDS = 0.01


async def until(holds: Callable[[], Any], seconds: float = SAFETY_SECONDS) -> Any:
    """Wait until ``holds`` (a plain or an async callable) gives something true, and return that."""
    # Counted in naps, of which a busy machine makes longer ones.
    for _ in range(round(seconds / NAP_SECONDS)):
        value = holds()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(NAP_SECONDS)
    raise AssertionError(f"not true within {seconds} s")
