"""Rows as people are shown them: whatever stands in them, each value has its column's type."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from flowactions_plugin.storage.text import as_text, raw_bytes

LAST_TIME: Final = 253_402_300_799_999
"""The end of the year 9999, Unix milliseconds: the last moment that can be written as a date."""


def presentable(table: Any, row: Any) -> SimpleNamespace:
    """Give a row's values as attributes, each of its column's type.

    Args:
        table: whose columns they are.
        row: as `read_all` gives it, of some of these columns.
    """
    return SimpleNamespace(**{name: _presentable(table.c[name], value) for name, value in row._mapping.items()})  # noqa: SLF001


def _presentable(column: Any, value: Any) -> Any:
    if value is None and column.nullable:
        return None
    kind = column.type.python_type
    if kind is str:
        return value if isinstance(value, str) and value.isascii() else as_text(value)
    if kind is bytes:
        return value if isinstance(value, bytes) else raw_bytes(value)
    number = value if type(value) is int else 0
    return max(0, min(number, LAST_TIME)) if column.name.endswith(("_at", "_since")) else number
