"""Hosts for workers that die while they carry out a bulk action: ``FLOWACTIONS_TEST_KILL`` says where, and at which batch.

``acting:3``  with everything of the third batch written, and nothing committed
``acted:3``   when that transaction was committed, before anybody knows
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Engine, event

from tests.crash.hosts import Fuse
from tests.support import SmallHost


async def make() -> SmallHost:
    """Make the host of a worker."""
    fuse = Fuse(os.environ.get("FLOWACTIONS_TEST_KILL", ""))
    changing: set[Any] = set()
    committed: list[Any] = []

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        # Of the batches, those alone that have changed rows.
        requeues = "UPDATE flowactions_outbox SET" in statement and "action_id=" in statement
        if requeues or "INSERT INTO flowactions_outbox" in statement:
            changing.add(connection)

    def before_commit(connection: Any) -> None:
        if connection in changing:
            changing.discard(connection)
            committed.append(connection)
            fuse.at("acting")

    def returned(*_: Any) -> None:
        if committed:
            committed.clear()
            fuse.at("acted")

    event.listen(Engine, "after_cursor_execute", note)
    event.listen(Engine, "commit", before_commit)
    event.listen(Engine, "checkin", returned)
    return SmallHost(os.environ)
