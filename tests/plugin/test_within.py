from __future__ import annotations

import asyncio
import time

import pytest

from tests.waiting import until, within


async def test_a_block_that_waits_too_long_fails() -> None:
    """Whether it gives control back a little or often."""
    with pytest.raises(AssertionError, match="by the control"):
        async with within(0.05):
            await asyncio.sleep(1)


async def test_time_that_nobody_had_does_not_count() -> None:
    """An event loop that was blocked, as on a machine that has other things to do, is late for the control, too."""
    async with within(0.5):
        for _ in range(3):
            time.sleep(0.5)  # noqa: ASYNC251  blocks on purpose
            await asyncio.sleep(0)


async def test_what_never_holds_ends() -> None:
    """The safety net tells what was waited for."""
    with pytest.raises(AssertionError, match="not true within"):
        await until(lambda: False, seconds=0.05)
