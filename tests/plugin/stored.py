"""Rows as processes and people leave them in the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Float, Integer, LargeBinary, Table

from flowactions_plugin.clock import new_id
from tests.queueing import Queue


async def a_dead_one(queue: Queue, *, state: dict[str, Any] | None = None, **changes: Any) -> str:
    """Write a delivery that has just died, with these columns otherwise; give its id."""
    now = queue.database.clock()
    died = {"status": "dead", "attempts": 4, "error_class": "http_5xx", "last_error": "it answered 500"}
    died |= {"finished_at": int(now * 1000) - 1}
    return await queue.put(**{"id": new_id(now), **changes, "state": died | (state or {})})


def a_worker(now: int, **changes: Any) -> dict[str, Any]:
    """Give the row of a worker that began and was seen now."""
    process = {"id": new_id(now / 1000), "name": "w", "version": "1", "host_name": "h", "pid": 1}
    process |= {"mode": "continuous", "slots": 1, "delivery_timeout": 10, "in_flight": 0}
    return {**process, "started_at": now, "last_seen_at": now, **changes}


def a_connection(organization: str, **changes: Any) -> dict[str, Any]:
    """Give the row of a chat connection that works."""
    texts = ("team_id", "team_name", "bot_user_id", "app_id", "scopes", "installed_by_id", "installed_by_name")
    row = {"organization_id": organization, **dict.fromkeys(texts, "x"), "install_id": "i", "installed_at": 1}
    return {**row, "status": "active", "sealed_token": b"x", **changes}


def a_row(
    table: Table, text: str, known: Mapping[str, Any], *, number: int = 1, whole: bool = False
) -> dict[str, Any]:
    """Give a row of any table: a text and a number, cut to their columns, where nothing is known.

    Columns that may be empty are left out, unless the row is a ``whole`` one.
    """
    row = {name: value for name, value in known.items() if name in table.c}
    for column in table.c:
        if column.name in row or (column.nullable and not whole and not column.primary_key):
            continue
        is_number, is_bytes = (isinstance(column.type, kind) for kind in ((Integer, Float), LargeBinary))
        shown = text[: getattr(column.type, "length", None)]
        row[column.name] = number if is_number else text.encode() if is_bytes else shown
    return row
