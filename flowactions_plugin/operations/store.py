"""The SQL of bulk actions: their sets, their rows, and how far they have come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Row, Select, String, TextClause, desc, func, or_, select, update
from sqlalchemy.engine import Connection as Connection  # noqa: PLC0414  for modules that pass one on

from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Counted
from flowactions_plugin.insights.search import conditions as conditions_of
from flowactions_plugin.insights.search import counted, id_bounds
from flowactions_plugin.insights.standing import of_scope, top
from flowactions_plugin.operations.bulk import KINDS, MOST_RESENT, Selection, Share, names_rows
from flowactions_plugin.operations.changes import changeable, deleting, ending, requeueing
from flowactions_plugin.operations.resend import RESENDABLE, send_again
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import NOBODY, Actor, Scope
from flowactions_plugin.queue.keys import FirstUse, KeyUse
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import OPEN_ACTION, actions, outbox
from flowactions_plugin.storage.waiting import repeated

ActionRow: TypeAlias = Row[Any]
"""An action as it is stored."""

MOST_SHARES: Final = 10
"""How many destinations and organizations of a set are named."""

FREE: Final = {"held_by": None, "held_until": None}
"""The lease of an action, as its end leaves it."""

READ_AHEAD: Final = 5000
"""How many delivered rows a batch reads at the most, of which it sends those of its set again."""

BATCH_BYTES: Final = 8 << 20
"""Of the bodies that a batch copies."""


class Batch(NamedTuple):
    """The next rows of a set, which are locked.

    Attributes:
        ids: their ids.
        after: the position behind them; ``None``: the begin of the set.
        more: whether there may be more.
    """

    ids: list[str]
    after: str | None
    more: bool


class ActionStore:
    """The bulk actions of one database, and the rows that they change.

    Methods that take a connection are called within a transaction, so that what they do is done together or not at all.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self, selection: Selection) -> int:
        """Return how many rows a set has now. For a resend, it counts to one more than are allowed."""
        rows = select(outbox.c.id).where(*self._of_set(selection))
        if selection.kind == "resend":
            rows = rows.limit(inline(MOST_RESENT + 1))
        query = select(func.count()).select_from(rows.subquery("found"))
        async with self._database.read() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def shares(self, selection: Selection, name: str) -> list[Share]:
        """Return the destinations or organizations with the most rows of a set, and how many those are."""
        query = top(select(outbox.c[name]).where(*self._of_set(selection)), (name,))
        query = query.order_by(desc("number"), name).limit(MOST_SHARES)
        async with self._database.read() as connection:
            return [Share(row[0], row.number) for row in (await connection.execute(query)).all()]

    async def delivered(self, scope: Scope, wanted: Filter) -> Counted:
        """Count the delivered rows that meet a filter, as a search counts them."""
        delivered = wanted.having("status", "delivered")
        async with self._database.read() as connection:
            return await connection.run_sync(counted, self._database, scope, delivered)

    async def begun(self, action_id: str, once: KeyUse | None) -> ActionRow | None:
        """Return the action that was begun with a key, or without one under an id; ``None``: none was."""
        async with self._database.read() as connection:
            used = None if once is None else await once.keys.find(once, connection)
            if once is not None and used is None:
                return None
            first = action_id if used is None else used.delivery_id
            return (await connection.execute(select(actions).where(actions.c.id == first))).one_or_none()

    @repeated
    async def begin(
        self, values: Mapping[str, Any], entry: Entry, action_id: str, once: KeyUse | None = None
    ) -> ActionRow | None:
        """Write an action and its line of the audit, and return the action; one that was begun before as it stands.

        Args:
            values: the columns that say what to do.
            entry: of the audit; it gets the action's id.
            action_id: its id.
            once: the caller's idempotency key: if it was used before, the action of that call is returned.

        Returns:
            The action; ``None``: that of the key is not kept any more.
        """
        begun = (
            self._database.sql.insert_unless_there(actions)
            .values(
                **values, id=action_id, state="waiting", created_at=self._database.now(), done=0, paced_done=0
            )
            .returning(*actions.c)
        )
        async with self._database.write() as connection:
            used = None
            if once is not None:
                (used,) = await connection.run_sync(once.keys.use_all, [(once, FirstUse(action_id, ""))])
            row = None if used is not None else (await connection.execute(begun)).one_or_none()
            if row is None:
                first = action_id if used is None else used.delivery_id
                return (await connection.execute(select(actions).where(actions.c.id == first))).one_or_none()
            await connection.execute(recording(self._database, replace(entry, action_id=action_id)))
        return row

    async def get(self, scope: Scope, action_id: str) -> ActionRow | None:
        """Return an action of a scope."""
        async with self._database.read() as connection:
            found: ActionRow | None = (await connection.execute(_one(scope, action_id))).one_or_none()
        return found

    def lock(self, connection: Connection, action_id: str, holder: str | None) -> ActionRow | None:
        """Lock an action that is not finished, unless another process carries it on, and return it with the time."""
        now = self._database.now()
        query = (
            select(actions, now.label("now"))
            .where(actions.c.id == action_id, OPEN_ACTION, _free(now, holder))
            .with_for_update(skip_locked=True)
        )
        return connection.execute(query).one_or_none()

    def lock_for_person(self, connection: Connection, scope: Scope, action_id: str) -> ActionRow | None:
        """Lock an action of a scope when no process changes it any more, and return it with the time."""
        now = self._database.now().label("now")
        query: Select[Any] = _one(scope, action_id).add_columns(now).with_for_update()
        found: ActionRow | None = connection.execute(query).one_or_none()
        return found

    def save(self, connection: Connection, action_id: str, values: Mapping[str, Any]) -> None:
        """Write how far an action has come."""
        connection.execute(update(actions).where(actions.c.id == action_id).values(values))

    def stop(self, connection: Connection, row: ActionRow, who: Actor, reason: str | None) -> None:
        """Stop an action, with a line of the audit."""
        stopped = {"state": "stopped", "state_reason": reason, "finished_at": row.now, **FREE}
        self.save(connection, row.id, stopped)
        entry = Entry(
            who=who,
            action="stop",
            organization_id=row.organization_id,
            action_id=row.id,
            reason=reason or "" if who == NOBODY else "",
            number=row.done,
        )
        connection.execute(recording(self._database, entry))

    def next_rows(self, connection: Connection, selection: Selection, after: str | None, limit: int) -> Batch:
        """Lock the next rows of a set, in the order of ids.

        Of what is sent again, these are among the next few thousand rows, and have some megabytes of bodies at the most: a
        batch is soon done, however many other rows were delivered.
        """
        query: Select[Any] = select(outbox.c.id).where(*self._of_set(selection))
        if after is not None:
            query = query.where(outbox.c.id > after)
        query = query.order_by(outbox.c.id)
        if selection.kind != "resend":
            # A batch of a cancellation waits for no worker that is writing: what it passes over, a later round finds.
            skips = selection.kind == "cancel" and after is not None
            found = query.limit(limit).with_for_update(skip_locked=skips)
            ids = list(connection.execute(found).scalars())
            return Batch(ids, ids[-1] if ids else after, more=len(ids) == limit)
        horizon = _horizon(connection, selection, after)
        if horizon is not None:
            query = query.where(outbox.c.id <= horizon)
        size = func.length(outbox.c.body).label("size")
        rows = connection.execute(query.add_columns(size).limit(limit).with_for_update()).all()
        ids = [row.id for row in within_bytes(rows)]
        is_whole = len(rows) < limit and len(ids) == len(rows)
        if is_whole:
            return Batch(ids, horizon or (ids[-1] if ids else after), more=horizon is not None)
        return Batch(ids, ids[-1] if ids else after, more=bool(ids))

    def send(self, connection: Connection, row: ActionRow, ids: Sequence[str]) -> Sequence[str]:
        """Make dead rows due now, or write new ones for delivered rows, as an action says; return the ids of what is due."""
        if row.kind == "resend":
            return [*send_again(self._database, connection, ids, row.id)]
        reset = bool(row.reset_attempts)
        due = requeueing(self._database, self._id_in_params(), reset_attempts=reset, action_id=row.id)
        connection.execute(due, self._given(ids))
        return ids

    def delete(self, connection: Connection, ids: Sequence[str]) -> int:
        """Delete dead rows with their attempts; return how many."""
        logged, rows = deleting(self._id_in_params())
        connection.execute(logged, self._given(ids))
        return connection.execute(rows, self._given(ids)).rowcount

    def end(
        self, connection: Connection, ids: Sequence[str], action_id: str, reason: str
    ) -> tuple[int, dict[str, int]]:
        """End rows; return how many, and how many attempts those have that workers have claimed."""
        ended = ending(self._database, self._id_in_params(), reason, action_id)
        found = connection.execute(ended, self._given(ids)).all()
        return len(found), {row.id: row.attempts for row in found if row.claimed}

    def sent(self, connection: Connection, claimed: Mapping[str, int]) -> int:
        """Return how many of the rows that were ended while workers had claimed them are being sent, or were."""
        query = select(outbox.c.id, outbox.c.attempts).where(
            self._id_in_params(), outbox.c.status == inline("dead"), outbox.c.claimed_by.is_(None)
        )
        unsent = connection.execute(query, self._given([*claimed])).all()
        return len(claimed) - len([row for row in unsent if row.attempts == claimed[row.id]])

    def _of_set(self, selection: Selection) -> list[ColumnElement[bool] | TextClause]:
        """Return the conditions on the rows of a set, as long as they are in it."""
        found: list[ColumnElement[bool] | TextClause] = [*conditions_of(self._database, selection.filter)]
        if selection.organization_id is not None:
            found.append(outbox.c.organization_id == selection.organization_id)
        if selection.kind == "resend":
            return [RESENDABLE, outbox.c.finished_at <= inline(selection.as_of), *_bounds(selection), *found]
        if selection.kind != "cancel":
            return [*changeable("delete"), outbox.c.finished_at <= inline(selection.as_of), *found]
        return [*changeable("cancel"), outbox.c.created_at <= inline(selection.as_of), *found]

    def _id_in_params(self) -> ColumnElement[bool]:
        """Return the condition that a row's id is one of those in the parameter ``given``."""
        return outbox.c.id.in_(select(self._database.sql.values_table("given", id=String).c.id))

    def _given(self, ids: Sequence[str]) -> dict[str, str]:
        return {"given": self._database.sql.json_rows([{"id": each} for each in ids])}


def _bounds(selection: Selection) -> list[ColumnElement[bool]]:
    """Return conditions on the ids of a set of delivered rows that were enqueued between two times."""
    wanted, until = selection.filter, selection.as_of + 1
    if wanted.only("since") is None:
        return []
    return id_bounds(wanted.having("before", min(wanted.only("before") or until, until)))


def _horizon(connection: Connection, selection: Selection, after: str | None) -> str | None:
    """Return the last id of the next few thousand rows, in the set or not; ``None``: there are fewer, or the set names its rows."""
    if names_rows(selection.filter):
        return None
    rows = select(outbox.c.id).where(*_bounds(selection))
    organization_id = selection.organization_id or selection.filter.only("organization")
    if organization_id is not None:
        rows = rows.where(outbox.c.organization_id == organization_id)
    if after is not None:
        rows = rows.where(outbox.c.id > after)
    last = rows.order_by(outbox.c.id).offset(inline(READ_AHEAD - 1)).limit(inline(1))
    found = connection.execute(last).all()
    return found[0].id if found else None


def within_bytes(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return the first rows, of which there is one at the least, whose bodies take no more than `BATCH_BYTES`."""
    total = 0
    for number, row in enumerate(rows):
        total += row.size or 0
        if total > BATCH_BYTES and number:
            return rows[:number]
    return rows


def _one(scope: Scope, action_id: str) -> Select[Any]:
    return select(actions).where(actions.c.id == action_id, *of_scope(actions, scope))


def open_actions(sql: Dialect, holder: str) -> Select[Any]:
    """Write the query for the ids of the actions that a process may carry on now."""
    query = select(actions.c.id).where(OPEN_ACTION, _free(sql.now(), holder), actions.c.kind.in_(sorted(KINDS)))
    return query.order_by(actions.c.id)


def _free(now: ColumnElement[int], holder: str | None) -> ColumnElement[bool]:
    """Return the condition that no other process carries an action on."""
    free = or_(actions.c.held_until.is_(None), actions.c.held_until <= now)
    return free if holder is None else or_(free, actions.c.held_by == holder)
