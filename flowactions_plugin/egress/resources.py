"""What this process or machine has run out of: such a failure says nothing about a destination."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

SHORTAGES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)

LOOKUP_DESCRIPTORS: Final = 4
"""How many descriptors a lookup of a name may need at once."""


def shortage(error: BaseException, probe: Callable[[], OSError | None] | None = None) -> str | None:
    """Tell what was lacking here when an attempt failed; ``None`` when the failure came from outside.

    Args:
        error: why it failed, with everything that it was caused by.
        probe: tries whether there are descriptors; `descriptors_lack` when ``None``.
    """
    lookup_failed = False
    for each in _chain(error):
        if isinstance(each, MemoryError):
            return "memory"
        if isinstance(each, RuntimeError) and "can't start new thread" in str(each):
            return "threads"
        if isinstance(each, socket.gaierror):
            # Without descriptors, lookups fail as if there were no such name or no name server.
            lookup_failed = True
        elif isinstance(each, OSError) and each.errno in SHORTAGES:
            return os.strerror(each.errno)
    if lookup_failed:
        lack = (probe or descriptors_lack)()
        return None if lack is None else os.strerror(lack.errno or 0)
    return None


def descriptors_lack() -> OSError | None:
    """Try whether there are descriptors enough for a lookup; give the error when there are not."""
    opened: list[socket.socket] = []
    try:
        opened.extend(socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(LOOKUP_DESCRIPTORS))
    except OSError as exc:
        return exc if exc.errno in SHORTAGES else None
    finally:
        for each in opened:
            each.close()
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Walk over an error, what caused it, and what libraries have put inside it."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = [each.__cause__, each.__context__, getattr(each, "os_error", None), *each.args]
        inner += getattr(each, "exceptions", ())
        waiting += [other for other in inner if isinstance(other, BaseException)]
