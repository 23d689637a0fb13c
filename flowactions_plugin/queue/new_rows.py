"""Writes new rows: several callers share a transaction, and rows that this process can send at once are also claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import BigInteger, Executable, Integer, Text, case, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.claimed import NEW, ClaimedDelivery
from flowactions_plugin.queue.group_commit import Group, GroupCommit
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, outbox, pauses

MOST_CLAIMED_BYTES: Final = 16 * 1024
"""A larger row is claimed as any other, later: it would be encoded once more."""

_TEXTS: Final = (
    "id",
    "organization_id",
    "agent_id",
    "origin",
    "flow_id",
    "node_id",
    "event_id",
    "event_type",
    "url",
    "destination",
    "method",
    "headers",
    "idempotency_key",
    "trace",
)
_GIVEN: Final = (*_TEXTS, "lane", "max_attempts")


class Claimant(Protocol):
    """Sends rows that are claimed by their enqueue (decision 72).

    Attributes:
        lease_seconds: how long a claim holds.
    """

    lease_seconds: float

    def reserve(self, values: Mapping[str, Any]) -> ClaimedDelivery | None:
        """Keep a slot for a row that is about to be written, and return it as it will be claimed; ``None``: no slot is free.

        Args:
            values: of the row's columns.
        """

    def take(
        self,
        claimed: Sequence[ClaimedDelivery],
        unclaimed: Sequence[ClaimedDelivery],
        unknown: Sequence[ClaimedDelivery],
    ) -> None:
        """Send what was claimed, and free the slots of the other rows for which one was kept.

        Args:
            claimed: they were written, and are claimed.
            unclaimed: they are not claimed, written or not.
            unknown: the database has not said whether they are claimed.
        """


class _Row:
    """A row that a caller has written.

    Attributes:
        values: by column.
        claimant: who has a slot for it; ``None``: nobody.
        claim: the row as it will be claimed; ``None``: it will not, or it is decided.
        given: the values as one parameter of `_enqueuing_claimed`.
        begun: whether a transaction has begun to write it.
        is_claimed: whether it was written, and is claimed.
    """

    __slots__ = ("begun", "claim", "claimant", "given", "is_claimed", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.claimant: Claimant | None = None
        self.claim: ClaimedDelivery | None = None
        self.given: Mapping[str, Any] | None = None
        self.begun = False
        self.is_claimed = False

    @property
    def size(self) -> int:
        values = self.values
        return len(values["body"] or b"") + len(values["headers"]) + len(values["url"])


class NewRows:
    """Writes new rows in transactions of their own.

    Args:
        database: where the queue is.

    Attributes:
        claimant: who sends what this process enqueues; ``None``: whoever claims it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.claimant: Claimant | None = None
        self._groups = GroupCommit(
            self._write_group, lambda row: row.size, is_interruptible=lambda: database.sql.is_server
        )

    async def write(self, values: Mapping[str, Any]) -> bool:
        """Write a row, and claim it where this process can send it at once.

        Args:
            values: of its columns.

        Returns:
            Whether it is claimed, so that nobody has to be woken for it.

        Raises:
            StorageUnavailable: the database failed; nothing was written, unless ``may_be_written`` says otherwise.
        """
        row = _Row(values)
        self._reserve(row)
        try:
            await self._groups.write(row)
        finally:
            if not row.begun:
                _settle([row], {})
        return row.is_claimed

    def _reserve(self, row: _Row) -> None:
        if self.claimant is None or row.size > MOST_CLAIMED_BYTES:
            return
        given = self._given(row.values)
        if given is None:
            return
        claim = self.claimant.reserve(row.values)
        if claim is not None:
            row.claimant, row.claim, row.given = self.claimant, claim, {**given, "token": claim.token}

    def _given(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return values for a parameter of `Dialect.json_rows`; ``None``: the body cannot be one."""
        body = values["body"]
        if body is not None:
            body = self._database.sql.bytes_value(body)
            if body is None:
                return None
        return {**{name: values.get(name) for name in _GIVEN}, "body": body}

    async def _write_group(self, group: Group[_Row]) -> None:
        """Write the rows of several callers in one transaction: PostgreSQL gets them in one statement."""
        begun: Sequence[_Row] = ()

        def write(connection: Connection) -> dict[str, str | None]:
            nonlocal begun
            begun = group.begin()
            for row in begun:
                row.begun = True
            return self._write_rows(connection, begun)

        try:
            tokens = await self._database.in_transaction(write, group.deadline)
        except StorageUnavailable as exc:
            _settle(begun, None if exc.may_be_written else {})
            raise
        except Exception:
            had_claims = any(row.claim is not None for row in begun)
            _settle(begun, {})
            if not had_claims:
                raise
            # A value may be none that the parameter of a claim can have.
            await self._write_group(group)
            return
        except BaseException:
            _settle(begun, None)
            raise
        _settle(begun, tokens)

    def _write_rows(self, connection: Connection, rows: Sequence[_Row]) -> dict[str, str | None]:
        """Write rows; return by id the tokens of those of which some are to be claimed."""
        if not rows:
            return {}
        claimant = next((row.claimant for row in rows if row.claim is not None), None)
        if claimant is not None:
            encoded = (row.given or self._given(row.values) for row in rows)
            given = [each for each in encoded if each is not None]
            if len(given) == len(rows):
                statement = self._database.built(_enqueuing_claimed, claimant.lease_seconds)
                parameter = {"rows": self._database.sql.json_rows(given)}
                return {row.id: row.claimed_by for row in connection.execute(statement, parameter)}
        values = [row.values for row in rows]
        connection.execute(self._database.built(enqueuing), values if len(values) > 1 else values[0])
        return {row.values["id"]: None for row in rows}


def _settle(rows: Sequence[_Row], tokens: Mapping[str, str | None] | None) -> None:
    """Tell the claimants what has become of rows.

    Args:
        rows: which.
        tokens: under which each is claimed, by id; a row that was there before is not among them.
            ``None``: this is not known of any.
    """
    settled: dict[Claimant, tuple[list[ClaimedDelivery], ...]] = {}
    for row in rows:
        claim, row.claim = row.claim, None
        if claim is None or row.claimant is None:
            continue
        claimed, unclaimed, unknown = settled.setdefault(row.claimant, ([], [], []))
        if tokens is None:
            unknown.append(claim)
        elif tokens.get(claim.id) == claim.token:
            row.is_claimed = True
            claimed.append(claim)
        else:
            unclaimed.append(claim)
    for claimant, each in settled.items():
        claimant.take(*each)


def enqueuing(sql: Dialect) -> Executable:
    """Build the statement that enqueues rows. A row that is written again is the same row."""
    return sql.insert_unless_there(outbox).values(**_constants(sql))


def _enqueuing_claimed(sql: Dialect, lease_seconds: float) -> Executable:
    """Build the statement that enqueues the rows of the parameter ``rows``, and claims those with a token.

    A row to a paused destination is not claimed. Returned are the ids, and the tokens of those that are claimed.
    """
    given = sql.values_table(
        "rows", **dict.fromkeys(_TEXTS, Text), lane=BigInteger, max_attempts=Integer, body=Text, token=Text
    )
    paused = select(pauses.c.destination).where(
        pauses.c.destination == given.c.destination,
        pauses.c.organization_id.in_((inline(EVERY_ORGANIZATION), given.c.organization_id)),
    )
    token = case((~paused.exists(), given.c.token))
    columns = [given.c[name] for name in _GIVEN]
    row = select(*columns, sql.bytes_of(given.c.body).label("body"), token.label("token")).subquery("row")
    until = case((row.c.token.is_not(None), sql.now() + int(lease_seconds * 1000)))
    constants = _constants(sql)
    values = (
        *(row.c[name] for name in (*_GIVEN, "body")),
        row.c.token,
        until,
        *(literal(value) if isinstance(value, str | int) else value for value in constants.values()),
    )
    names = (*_GIVEN, "body", "claimed_by", "claimed_until", *constants)
    # SQLite would read ON CONFLICT as the condition of a join without a WHERE.
    inserted = sql.insert_unless_there(outbox).from_select(names, select(*values).where(row.c.id.is_not(None)))
    return inserted.returning(outbox.c.id, outbox.c.claimed_by)


def _constants(sql: Dialect) -> dict[str, Any]:
    now = sql.now()
    return {**NEW, "next_attempt_at": now, "created_at": now, "updated_at": now}
