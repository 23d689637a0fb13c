"""Ends what a test run has started, and removes its folder, however the run ends: also by ``kill -9``.

The process that runs pytest keeps the write end of a pipe; the reaper, a process of its own, reads until that is closed. A
run's processes are found by a variable of their environment, or by the run's folder as their working directory or in their
arguments; so nothing that a test starts has to be told. Only Linux shows these; elsewhere the folder alone is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "FLOWACTIONS_TEST_RUN"

PATIENCE_SECONDS: Final = 5.0
"""How long processes have to end in order; servers of PostgreSQL's do so at once on SIGQUIT."""

ROUNDS: Final = 10
"""How often processes are looked for that others had started meanwhile."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108  of Linux


def begin() -> None:
    """Start the reaper, have temporary files in a folder of the run, and bytecode written; once for a run and all its processes."""
    # Otherwise each process that a test starts would compile the plugin anew, for half a second and more.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if VARIABLE in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="flowactions-run-")
    read, _ = os.pipe()  # this process keeps the other end open until it ends
    os.posix_spawn(
        sys.executable,
        [sys.executable, __file__, folder],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)],
        setsid=True,  # a Ctrl+C is for the run
    )
    os.close(read)
    os.environ[VARIABLE] = folder
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def memory_folder() -> Path | None:
    """Return a folder in memory that ends with the run; ``None`` where there is no room for a database server."""
    has_room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= 2 << 30
    if not has_room or VARIABLE not in os.environ:
        return None
    folder = MEMORY / Path(os.environ[VARIABLE]).name
    folder.mkdir(exist_ok=True)
    return folder


def members(folder: str) -> set[int]:
    """Return the ids of a run's processes."""
    mark = f"{VARIABLE}={folder}".encode()
    names = (folder.encode(), str(MEMORY / Path(folder).name).encode())
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                int(entry.name) == os.getpid()
                or (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            ):
                continue
            arguments = (entry / "cmdline").read_bytes()
            where = os.fsencode((entry / "cwd").readlink())
            variables = (entry / "environ").read_bytes().split(b"\0")
            if mark in variables or any(name in arguments or where.startswith(name) for name in names):
                found.add(int(entry.name))
    return found


def has_ended(entry: Path) -> bool:
    """Whether a process of ``/proc`` is gone, or only waits for its parent to ask for its status."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def end(processes: set[int]) -> None:
    """Send each process the signal by which it ends soonest in order, and kill what has not ended after some seconds."""
    for process in processes:
        with suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_text().strip()
            os.kill(process, signal.SIGQUIT if name in {"postgres", "nginx"} else signal.SIGTERM)
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and not all(has_ended(Path(f"/proc/{process}")) for process in processes):
        time.sleep(0.05)
    for process in processes:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


def main(folder: str) -> None:
    """Wait for the end of the run, then clear up."""
    sys.stdin.buffer.read()
    for _ in range(ROUNDS):
        processes = members(folder)
        if not processes:
            break
        end(processes)
    for path in (folder, MEMORY / Path(folder).name):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
