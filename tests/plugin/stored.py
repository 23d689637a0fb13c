"""Rows as processes and people leave them in the tables."""

from __future__ import annotations

from typing import Any

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
