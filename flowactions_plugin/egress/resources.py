"""Failures for lack of descriptors, memory or threads here: they say nothing about a destination."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

SHORTAGES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


def shortage(error: BaseException) -> str | None:
    """Return which resource was lacking here when an attempt failed; ``None`` when the failure came from outside."""
    lookup_failed = False
    for each in causes(error):
        if isinstance(each, MemoryError):
            return "memory"
        if isinstance(each, RuntimeError) and "can't start new thread" in str(each):
            return "threads"
        if isinstance(each, socket.gaierror):
            # Without descriptors, a lookup fails as if there were no such name or no name server.
            lookup_failed = True
        elif isinstance(each, OSError) and each.errno in SHORTAGES:
            return os.strerror(each.errno)
    lack = descriptor_shortage() if lookup_failed else None
    return None if lack is None else os.strerror(lack.errno or 0)


def descriptor_shortage() -> OSError | None:
    """Return the error of opening the four descriptors that a lookup may need; ``None`` when they can be opened."""
    opened: list[socket.socket] = []
    try:
        opened.extend(socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4))
    except OSError as exc:
        return exc if exc.errno in SHORTAGES else None
    finally:
        for each in opened:
            each.close()
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the errors that libraries have put inside it."""
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
