"""The event loops that tests of connections run on: asyncio's, and uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

try:
    from uvloop import new_event_loop as new_uvloop
except ImportError:  # an extra
    new_uvloop = None

Loop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]

LOOPS: Final = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(
        new_uvloop, id="uvloop", marks=pytest.mark.skipif(new_uvloop is None, reason="uvloop is an extra")
    ),
]

FASTEST: Final[Loop] = new_uvloop or asyncio.new_event_loop
"""Of those that are installed."""
