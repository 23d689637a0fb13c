"""Writes a row of a host's and a webhook in one transaction, with drivers that are not async, and dies on the way.

``python -m tests.crash.joining URL`` reads one line for each: the driver, the order, the statements, and after how many of all that
is executed it kills itself. Each is done by a process of its own, forked from this one. It writes how that has ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final

import django
import psycopg
from django.conf import settings
from sqlalchemy.engine import URL, make_url

Statements = Sequence[tuple[str, Any]]

STYLES: Final = {"psycopg": "pyformat", "sqlite3": "qmark", "django": "format"}
"""Driver → its paramstyle."""


def packed(driver: str, order: str, statements: Statements, die_after: int) -> bytes:
    """Return a line for this program."""
    return b64encode(pickle.dumps((driver, order, statements, die_after))) + b"\n"


def configure(url: URL) -> None:
    """Give Django its database."""
    names = {"NAME": url.database, "USER": url.username, "PASSWORD": url.password, "PORT": url.port or ""}
    host = url.host or url.query.get("host", "")
    kind = "sqlite3" if url.get_backend_name() == "sqlite" else "postgresql"
    settings.configure(
        DATABASES={"default": {"ENGINE": f"django.db.backends.{kind}", "HOST": host, **names}},
        LOGGING_CONFIG=None,
    )
    django.setup()


def write(url: URL, driver: str, order: str, statements: Statements, die_after: int) -> None:
    """Write in one transaction, and die after so many statements; the commit counts as one."""
    mark = "?" if driver == "sqlite3" else "%s"
    executed: Statements = [(f"INSERT INTO orders (id) VALUES ({mark})", (order,)), *statements]  # noqa: S608  a mark
    if driver == "django":
        from django.db import connection, transaction  # noqa: PLC0415  Django is configured by now

        with transaction.atomic(), connection.cursor() as cursor:
            execute(cursor, executed, die_after)
    elif driver == "sqlite3":
        with sqlite3.connect(str(url.database)) as own:
            execute(own.cursor(), executed, die_after)
    else:
        with psycopg.connect(url.render_as_string(hide_password=False)) as server:
            execute(server.cursor(), executed, die_after)
    os.kill(os.getpid(), signal.SIGKILL)


def execute(cursor: Any, statements: Statements, die_after: int) -> None:
    """Execute statements, and die after so many."""
    for number, (text, parameters) in enumerate(statements, 1):
        cursor.execute(text, parameters)
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
    assert cursor.rowcount == 1


def main() -> None:
    """Take lines until there are no more."""
    url = make_url(sys.argv[1])
    configure(url)
    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            try:
                write(url, *pickle.loads(b64decode(line)))  # noqa: S301  a test's own
            finally:
                os._exit(1)  # after its traceback was not shown: it has not killed itself
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201  the answer


if __name__ == "__main__":
    main()
