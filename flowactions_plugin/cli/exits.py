"""Exit statuses of the commands."""

from __future__ import annotations

import signal
from typing import Final

DONE: Final = 0
FAILED: Final = 1
CANNOT_RUN: Final = 2
NEWER_TABLES: Final = 3
STALLED: Final = 4
FAILING: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT
