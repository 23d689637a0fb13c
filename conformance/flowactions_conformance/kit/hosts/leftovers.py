"""The folder of a run, and what runs that were killed have left: their folders, and their databases on a server."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from flowactions_conformance.kit.hosts.databases import Databases
from flowactions_conformance.kit.outcomes import DriverFault

PREFIX: Final = "flowactions-conformance-"
LOCK: Final = "lock"
DATABASES: Final = "databases"
NAME: Final = re.compile(r"flowactions_kit_[0-9a-f]{12}")


@asynccontextmanager
async def run_folder(databases: Databases) -> AsyncIterator[Path]:
    """Make the folder of a run, and delete it in the end; first delete the folders of killed runs.

    Its lock tells other runs that this process lives; the system releases it however the process ends.

    Raises:
        DriverFault: the server refuses.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its name only now: another run must not meet it unlocked.
        (folder / f"{LOCK}.new").rename(folder / LOCK)
        for left in _left_behind():
            await _remove(left, databases)
        databases.list_in(folder / DATABASES)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _left_behind() -> Iterator[Path]:
    """Yield the folders of this user's runs whose process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
            finally:
                os.close(lock)


async def _remove(folder: Path, databases: Databases) -> None:
    """Remove a run's folder, after its databases; it stays while they are on a server that this run does not have."""
    with suppress(OSError, DriverFault):
        for line in _listed(folder / DATABASES):
            server, _, name = line.partition(" ")
            if NAME.fullmatch(name) and not await databases.drop_of(server, name):
                return
        shutil.rmtree(folder, ignore_errors=True)


def _listed(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
