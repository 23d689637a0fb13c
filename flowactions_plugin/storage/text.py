"""Reads text of SQLite that may not be UTF-8: SQLite stores any bytes, and its driver raises when it reads them.

One unreadable value must not hide other rows. So the queue reads with `read_all`, which returns bytes that are not UTF-8
as lone surrogates (PEP 383), and decides afterwards which rows are corrupt.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Executable, LargeBinary, Row, Text, cast, literal
from sqlalchemy.engine import Connection

_DECODE: Final = partial(str, encoding="utf-8", errors="surrogateescape")


def read_all(connection: Connection, statement: Executable, parameters: Any = None) -> list[Row[Any]]:
    """Execute a statement on a connection of either database, which may be the host's; return all rows, also corrupt ones."""
    driver = connection.connection.driver_connection
    strict = getattr(driver, "text_factory", None)
    if strict is None:
        return list(connection.execute(statement, parameters).all())
    driver.text_factory = _DECODE  # type: ignore[union-attr]
    try:
        return list(connection.execute(statement, parameters).all())
    finally:
        # A cancellation has closed the connection, and must not become another error.
        with suppress(ValueError):
            driver.text_factory = strict  # type: ignore[union-attr]


def is_text(value: object) -> bool:
    """Return whether a value of `read_all` is valid text."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw_bytes(value: object) -> bytes:
    """Return the bytes that SQLite stores for a value of `read_all`."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")


def as_text(value: object) -> str:
    """Return a value of `read_all` as printable text, with replacement characters for invalid bytes."""
    if isinstance(value, str) and value.isascii():
        return value
    return raw_bytes(value).decode("utf-8", "replace")


def stored(value: Any) -> Any:
    """Return an SQL expression that compares equal to a value of `read_all`."""
    if isinstance(value, bytes):
        return literal(value, LargeBinary)
    if isinstance(value, str) and not is_text(value):
        found: ColumnElement[Any] = cast(literal(raw_bytes(value), LargeBinary), Text)
        return found
    return value
