"""The processor time and the memory of processes, from ``/proc``: Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Times(NamedTuple):
    """Processor time, user and system together.

    Attributes:
        parent: the parent's id.
        own: of the process, in seconds: by its clock, as ticks would be ten milliseconds.
        ended: in ticks, of its children that have ended and were waited for, with theirs.
    """

    parent: int
    own: float
    ended: int


def tree_seconds(root: int, *, without: Iterable[int] = ()) -> float:
    """Returns the processor time of a process and its descendants, those that have ended included.

    Args:
        root: the process's id.
        without: descendants that are not counted; they have to be alive at both ends of what is measured.
    """
    times = {int(entry.name): found for entry in Path("/proc").glob("[0-9]*") if (found := _times(entry))}
    if root not in times:
        raise ProcessLookupError(f"there is no process {root}")
    skipped = frozenset(without)
    total, pending = 0.0, [root]
    while pending:
        each = pending.pop()
        pending += [pid for pid, found in times.items() if found.parent == each and pid not in skipped]
        total += times[each].own + times[each].ended / _TICKS_PER_S
    return total


def parent_of(pid: int) -> int:
    """Returns the id of a process's parent."""
    found = _times(Path(f"/proc/{pid}"))
    if found is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return found.parent


def has_loaded(pid: int, library: str) -> bool:
    """Whether a process has a shared library in its memory, by a part of the file's path."""
    return library in Path(f"/proc/{pid}/maps").read_text()


def memory_mib(pid: int, key: str) -> float:
    """Returns a figure of a process's memory.

    Args:
        pid: its id.
        key: ``VmRSS``: resident now; ``VmHWM``: the highest resident so far.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


def _times(process: Path) -> _Times | None:
    try:
        stat = (process / "stat").read_text()
        own = time.clock_gettime(_clock_of(int(process.name)))
    except OSError:
        return None  # it has ended meanwhile
    # The name, in parentheses, may hold anything; state is the first field after it.
    fields = stat.rpartition(")")[2].split()
    return _Times(int(fields[1]), own, sum(map(int, fields[13:15])))


def _clock_of(pid: int) -> int:
    """Return the id of a process's clock of processor time, as ``clock_getcpuclockid`` makes it."""
    return ~pid << 3 | 2
