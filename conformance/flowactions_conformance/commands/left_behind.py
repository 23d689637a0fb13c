"""Processes that a host has started and not ended: found and ended, so that a run leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
ROUNDS: Final = 5


def adopt_orphans() -> None:
    """Has the processes whose parent ends become children of this one, where the system can do that (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> dict[int, str]:
    """Return the living processes below this one: id → command."""
    table = _proc() if Path("/proc/self/stat").exists() else _ps()
    found: dict[int, str] = {}
    below = {os.getpid()}
    while below:
        children = {pid: command for pid, (parent, command) in table.items() if parent in below}
        found |= children
        below = set(children)
    return found


def end_left_behind(before: dict[int, str]) -> dict[int, str]:
    """End the processes below this one that were not there before.

    Returns:
        What was ended: id → command.
    """
    ended: dict[int, str] = {}
    for _ in range(ROUNDS):  # one may start another meanwhile
        left = {pid: command for pid, command in descendants().items() if pid not in before}
        if not left:
            break
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
    return ended


def _proc() -> dict[int, tuple[int, str]]:
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # pid (name) state parent …; the name may hold anything, parentheses too.
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            if state not in {"Z", "X"}:
                table[int(folder.name)] = (int(parent), command[:200])
    return table


def _ps() -> dict[int, tuple[int, str]]:
    table = {}
    with suppress(OSError, subprocess.SubprocessError):
        process = subprocess.Popen(
            ["/bin/ps", "-A", "-o", "pid=,ppid=,stat=,command="], stdout=subprocess.PIPE, text=True
        )
        text, _ = process.communicate(timeout=10)
        for line in text.splitlines():
            pid, parent, state, command = [*line.split(None, 3), "", "", "", ""][:4]
            if pid.isdigit() and parent.isdigit() and not state.startswith("Z") and int(pid) != process.pid:
                table[int(pid)] = (int(parent), command[:200])
    return table
