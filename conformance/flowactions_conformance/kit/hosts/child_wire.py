"""What a parent and the child process in which a host runs tell each other: lines of JSON."""

from __future__ import annotations

from typing import Any, Final

from flowactions_conformance.kit.under_test import Env, Wire

LINE_LIMIT: Final = 64 * 1024 * 1024
LEFT: Final = -1
"""The number of the reply that tells when the block of ``make_host`` had ended, in monotonic seconds."""


class Start(Wire, frozen=True):
    """What the parent tells the child first; ``listener`` is the descriptor of an open port."""

    factory: str
    env: Env
    listener: int
    path: tuple[str, ...]


class Call(Wire, frozen=True):
    """A call of the driver."""

    number: int
    method: str
    arguments: list[Any]


class Reply(Wire, frozen=True):
    """What came of a call; number 0 is the start."""

    number: int
    value: Any = None
    error: str | None = None
    missing: str | None = None
