"""Executes bulk actions, in batches, each in one transaction with its progress.

Every worker runs it. One process at a time carries an action on, under a short lease; when it is killed, its transaction is
rolled back, and another continues after the last batch that was committed. So each row is changed once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import msgspec

from flowactions_plugin.errors import FilterInvalid, StorageUnavailable
from flowactions_plugin.insights.filters import parse
from flowactions_plugin.log_text import printable
from flowactions_plugin.operations.bulk import SENDING, Pace, Selection, allowed, wait_seconds
from flowactions_plugin.operations.changes import WITHDRAWN_SECONDS
from flowactions_plugin.operations.store import FREE, ActionRow, ActionStore, Batch, Connection, open_actions
from flowactions_plugin.operators.scope import NOBODY, Actor
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import FAILURE_SECONDS
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions.actions")

BATCH: Final = 500
"""How many rows a transaction changes at the most."""

LEASE_MS: Final = 3000
"""For how long a process that has not carried its action on keeps it from the others."""

POLL_SECONDS: Final = 0.5
"""Seconds between looks while an action is open."""

LEAST_STEP_SECONDS: Final = 0.1
"""Seconds between two batches of an action with a rate."""

LEAST_PAUSE_SECONDS: Final = 0.01
"""Seconds from the begin of a batch to that of the next, at the least."""


class Engine:
    """Executes the bulk actions of one database.

    Args:
        database: where they are.
        holder: names this process to the others; ``None``: it does a few steps only, and keeps nothing from them.
    """

    def __init__(self, database: Database, holder: str | None = None) -> None:
        self._database = database
        self._store = ActionStore(database)
        self._holder = holder

    @repeated
    async def run_step(self, action_id: str) -> float | None:
        """Do the next batch of an action.

        Returns:
            The seconds until the next one may be done; ``None``: there is nothing to do for this process.

        Raises:
            StorageUnavailable: the database failed; the batch was not done.
        """

        def step(connection: Connection) -> float | None:
            row = self._store.lock(connection, action_id, self._holder)
            return None if row is None else _Step(self._store, connection, row, self._holder).run()

        async with self._database.write() as connection:
            return await connection.run_sync(step)

    async def open(self) -> list[str]:
        """Return the actions that this process may carry on now.

        Raises:
            StorageUnavailable: the database failed.
        """
        query = self._database.built(open_actions, self._holder or "")
        return [row.id for row in await self._database.rows(query)]


def acting(database: Database) -> Callable[[], Awaitable[float | None]]:
    """Return what does the next batch of each bulk action; it returns when the next ones are due, ``None``: no action is open.

    Args:
        database: where they are.
    """
    engine = Engine(database, uuid4().hex)
    due: dict[str, float] = {}

    async def act() -> float | None:
        nonlocal due
        clock = asyncio.get_running_loop().time
        found = await engine.open()
        due = {action_id: due.get(action_id, 0.0) for action_id in found}
        for action_id in [each for each, at in due.items() if at <= clock()]:
            begun = clock()
            due[action_id] = begun + await _wait_after(engine, action_id, clock)
        if not due:
            return None
        next_at = min(due.values())
        return min(POLL_SECONDS, max(LEAST_PAUSE_SECONDS, next_at - clock()))

    return act


async def _wait_after(engine: Engine, action_id: str, clock: Callable[[], float]) -> float:
    """Do the next batch of an action; return the seconds from its begin to the next."""
    begun = clock()
    try:
        wait = await engine.run_step(action_id)
    except StorageUnavailable:
        raise
    except Exception:
        log.exception(
            "bulk action %s failed unexpectedly; it is tried again", action_id, extra={"event": "action.failed"}
        )
        return FAILURE_SECONDS
    if wait is None:
        return POLL_SECONDS
    # Without a rate, it pauses as long as the batch took: deliveries go on beside it. A rate says itself what is wanted.
    return wait or 2 * (clock() - begun)


class _Step:
    """One batch of an action that is locked."""

    def __init__(self, store: ActionStore, connection: Connection, row: ActionRow, holder: str | None) -> None:
        self._store = store
        self._connection = connection
        self._row = row
        self._position: str | None = row.position
        self._holder = holder

    def run(self) -> float | None:
        """Do it; return the seconds until the next, ``None`` when nothing is left to do."""
        row = self._row
        try:
            wanted = parse(row.filter)
        except FilterInvalid as exc:
            self._stop(printable(f"its filter cannot be read: {exc}", message=True))
            return None
        selection = Selection(row.kind, wanted, row.as_of, row.organization_id or None)
        if row.kind == "cancel":
            return self._end(selection)
        return self._send(selection) if row.kind in SENDING else self._delete(selection)

    def _send(self, selection: Selection) -> float | None:
        """Make the next dead rows due, or send the next delivered ones again, as many as the pace allows."""
        row = self._row
        # Another process has begun it, and may have been stopped for a long time. It does not make up for that time.
        is_new = row.paced_from is None or row.held_by != self._holder
        pace = None if is_new else Pace(row.paced_from, row.paced_done)
        number, pace = allowed(row.rate, pace, row.now, BATCH)
        batch = self._next_rows(selection, number)
        ids, more = self._store.send(self._connection, row, batch.ids), batch.more
        pace = pace._replace(done=pace.done + len(ids))
        progress = {
            "state": "running",
            "position": batch.after,
            "done": row.done + len(ids),
            "paced_from": pace.since,
            "paced_done": pace.done,
        }
        if number and not more:
            self._finish(**progress)
            return None
        wait = 0.0
        if row.rate is not None:
            is_late = number == BATCH
            due_in = wait_seconds(row.rate, pace, row.now)
            wait = LEAST_PAUSE_SECONDS if is_late else max(LEAST_STEP_SECONDS, due_in)
        return self._save(wait, **progress)

    def _next_rows(self, selection: Selection, limit: int) -> Batch:
        if not limit:
            return Batch([], self._position, more=True)
        return self._store.next_rows(self._connection, selection, self._position, limit)

    def _delete(self, selection: Selection) -> float | None:
        batch = self._next_rows(selection, BATCH)
        done = self._row.done + self._store.delete(self._connection, batch.ids)
        progress = {"state": "running", "position": batch.after, "done": done}
        if batch.more:
            return self._save(0.0, **progress)
        self._finish(**progress)
        return None

    def _end(self, selection: Selection) -> float | None:
        """End the next rows of a cancellation: it goes over its set until nothing is left, and no worker can begin any of it."""
        row = self._row
        batch = self._next_rows(selection, BATCH)
        by = Actor(row.actor_id, row.actor_name, row.actor_role)
        reason = row.reason or f"cancelled by {by.public_name}"
        ended, now_claimed = self._store.end(self._connection, batch.ids, row.id, reason)
        claimed = {**msgspec.json.decode(row.claimed or "{}", type=dict[str, int]), **now_claimed}
        until = row.now + int(WITHDRAWN_SECONDS * 1000) if now_claimed else row.withdrawn_at or 0
        progress = {"state": "running", "done": row.done + ended, "withdrawn_at": until}
        if claimed:
            progress["claimed"] = msgspec.json.encode(claimed).decode()
        if batch.more:
            return self._save(0.0, position=batch.after, **progress)
        left = max(0, until - row.now)
        if batch.ids or self._position is not None or left:
            return self._save(left / 1000, position=None, **progress)
        # Workers have given back what they had not begun; the rest may still arrive.
        sent = self._store.sent(self._connection, claimed) if claimed else 0
        self._finish(**{**progress, "done": row.done - sent, "sent": sent})
        return None

    def _save(self, wait: float, **values: Any) -> float:
        held: dict[str, Any] = dict(FREE)
        if self._holder is not None:
            held = {"held_by": self._holder, "held_until": self._row.now + LEASE_MS}
        self._store.save(self._connection, self._row.id, {**values, **held})
        return wait

    def _finish(self, **values: Any) -> None:
        row = self._row
        ended = {**values, "state": "done", "finished_at": row.now, **FREE}
        self._store.save(self._connection, row.id, ended)
        log.info(
            "bulk action %s (%s) is done: %s of %s rows",
            row.id,
            row.kind,
            values["done"],
            row.counted,
            extra={"event": "action.done"},
        )

    def _stop(self, reason: str) -> None:
        """Stop an action that went wrong; what it has done stays."""
        row = self._row
        self._store.stop(self._connection, row, NOBODY, reason)
        log.warning(
            "bulk action %s (%s) has stopped: %s", row.id, row.kind, reason, extra={"event": "action.stopped"}
        )
