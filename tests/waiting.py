"""Waiting for signals instead of time, and bounds by a clock that suffers what the tested code suffers.

A test waits until something has happened (`until`), however long that takes: its limit is a safety net and no statement.
That something does not happen is shown by something else that has happened after it would have. Where a bound is the
point, the work is held against a control in the same run (`within`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from unittest import mock

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


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Let a block take no longer than ``seconds``, by a control in the same event loop.

    The control takes naps that add up to ``seconds``. Each of them is late when the event loop is blocked, or the process
    gets no processor, as is each step of the block; so time that neither had does not count.

    Args:
        seconds: the bound, on a machine that has nothing else to do.
    """
    control = asyncio.create_task(_naps(seconds))
    try:
        yield
        assert not control.done(), f"longer than {seconds} s by the control"
    finally:
        control.cancel()


async def _naps(seconds: float) -> None:
    for _ in range(round(seconds / NAP_SECONDS)):
        await asyncio.sleep(NAP_SECONDS)


class Limits:
    """Limits of `asyncio.timeout` that pass when the test says so, however busy the machine is; a context manager.

    They are those of more than `SAFETY_SECONDS`: the test sets the limit that it is about to `SECONDS`.

    Attributes:
        begun: the limits.
    """

    SECONDS = 2 * SAFETY_SECONDS

    def __init__(self) -> None:
        self.begun: list[asyncio.Timeout] = []
        self._usual = asyncio.timeout
        self._patched = mock.patch.object(asyncio, "timeout", self._limited)

    def __enter__(self) -> Self:
        self._patched.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patched.stop()

    def end(self) -> None:
        """Have all that are running pass now."""
        for each in self.begun:
            with suppress(RuntimeError):  # its block has ended
                each.reschedule(0)

    def _limited(self, seconds: float | None) -> asyncio.Timeout:
        if seconds is None or seconds <= SAFETY_SECONDS:
            return self._usual(seconds)
        self.begun.append(self._usual(SAFETY_SECONDS))
        return self.begun[-1]
