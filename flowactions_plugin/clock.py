"""Time and ids: impure values, in one module so that tests can inject others."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias
from uuid import UUID, uuid4

Clock: TypeAlias = Callable[[], float]
"""Returns a time in seconds: Unix seconds, if nothing else is said."""

system_clock: Clock = time.time

timer: Clock = time.monotonic
"""Returns the seconds of a clock that is never set, for durations."""


def lease_clock() -> float:
    """Return the seconds of a clock that is never set and also runs while the machine is suspended."""
    return time.clock_gettime(_LEASE_CLOCK) if _LEASE_CLOCK is not None else time.monotonic()


_LEASE_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


def to_iso(milliseconds: int) -> str:
    """Return a stored time (Unix milliseconds) as ISO 8601 in UTC."""
    return to_utc(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(value: object, otherwise: str = "") -> str:
    """Return a time as people read it: ISO 8601 in UTC, to the second.

    Args:
        value: Unix milliseconds, or a text of `to_iso`.
        otherwise: what stands for anything else.
    """
    try:
        text = to_iso(value) if type(value) is int else value
    except (ValueError, OverflowError, OSError):
        return otherwise
    return f"{text[:19]}Z" if isinstance(text, str) else otherwise


def to_utc(milliseconds: int) -> datetime:
    """Return a stored time (Unix milliseconds) as a time of the calendar, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


ID_PATTERN: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""The form of ids, for checking received ones."""


def is_id(text: str) -> bool:
    """Return whether a text has an id's form."""
    return re.match(ID_PATTERN, text) is not None and len(text) == 36


def id_time(text: str) -> int | None:
    """Return when an id of `new_id` was made, in Unix milliseconds; ``None`` for any other text."""
    return int(text[:8] + text[9:13], 16) if is_id(text) and text[14] == "7" else None


RANDOM_BYTES: Final = 10
"""Of an id."""


def new_id(now: float, chance: bytes | None = None) -> str:
    """Return a UUIDv7: ids of later rows sort after those of earlier ones (RFC 9562 §5.7).

    Args:
        now: Unix seconds.
        chance: `RANDOM_BYTES` bytes; ``None``: random ones.
    """
    value = int(now * 1000) << 80 | int.from_bytes(chance or os.urandom(RANDOM_BYTES), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(UUID(int=value & (1 << 128) - 1))


def new_token() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid4().hex


def id_at(milliseconds: int, *, last: bool = False) -> str:
    """Return the least id of a time, or the greatest: what was made before it has a smaller one.

    Args:
        milliseconds: Unix milliseconds; a time that no id can hold becomes the next that one can.
        last: whether the greatest is wanted.
    """
    moment = max(0, min(milliseconds, (1 << 48) - 1))
    rest = 0x7FFF_BFFF_FFFF_FFFF_FFFF if last else 0x7000_8000_0000_0000_0000
    return str(UUID(int=moment << 80 | rest))


def time_of(row_id: str) -> int:
    """Return when an id was made, Unix milliseconds."""
    return UUID(row_id).int >> 80
