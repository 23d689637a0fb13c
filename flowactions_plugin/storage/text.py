"""Text of SQLite that may not be UTF-8: SQLite stores whatever bytes it is given, and its driver raises on reading.

One value that cannot be read must not hide the rows beside it. So the queue reads with `read_all`, which gives bytes that
are not UTF-8 as lone surrogates (PEP 383), and decides afterwards which row is spoilt.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Executable, LargeBinary, Row, Text, cast, literal
from sqlalchemy.engine import Connection

_DECODE: Final = partial(str, encoding="utf-8", errors="surrogateescape")


def read_all(connection: Connection, statement: Executable, parameters: Any = None) -> list[Row[Any]]:
    """Execute a statement and give all its rows, whatever stands in them.

    Args:
        connection: to either database, of the plugin's own or of the host's; it reads as before afterwards.
        statement: what to execute.
        parameters: its parameters.
    """
    driver = connection.connection.driver_connection
    strict = getattr(driver, "text_factory", None)
    if strict is None:
        return list(connection.execute(statement, parameters).all())
    driver.text_factory = _DECODE  # type: ignore[union-attr]
    try:
        return list(connection.execute(statement, parameters).all())
    finally:
        driver.text_factory = strict  # type: ignore[union-attr]


def is_text(value: object) -> bool:
    """Returns whether a value that `read_all` gave is text, all of it."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw_bytes(value: object) -> bytes:
    """Returns the bytes that SQLite holds of a value that `read_all` gave."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")


def as_text(value: object) -> str:
    """Returns a value that `read_all` gave as text that can be shown, with replacement characters where it is none."""
    if isinstance(value, str) and value.isascii():
        return value
    return raw_bytes(value).decode("utf-8", "replace")


def stored(value: Any) -> Any:
    """Returns a value that `read_all` gave as what finds it again in SQL."""
    if isinstance(value, bytes):
        return literal(value, LargeBinary)
    if isinstance(value, str) and not is_text(value):
        found: ColumnElement[Any] = cast(literal(raw_bytes(value), LargeBinary), Text)
        return found
    return value
