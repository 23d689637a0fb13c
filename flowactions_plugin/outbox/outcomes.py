"""The SQL of what became of claimed deliveries.

Every write is guarded by the claim's token and leaves that token in ``settled_token``. So a write whose answer was lost is
repeated without harm: what is not held any more, but was settled under the token, was written by the first try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Executable,
    FromClause,
    Integer,
    String,
    Text,
    case,
    func,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from flowactions_plugin.errors import RowInvalid
from flowactions_plugin.outbox.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.outbox.delivery import (
    FINISHED,
    WAIT_CAP_SECONDS,
    WAIT_FIRST_SECONDS,
    WAIT_LIMIT_SECONDS,
    storable,
)
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import LIVE, attempts, outbox
from flowactions_plugin.storage.text import is_text, stored

ROW_ERRORS: Final = ("22", "23")
"""SQLSTATE classes that say that a value of one row cannot be stored, and nothing about the other rows."""

CLEARED: Final[Mapping[str, Any]] = {"takeovers": 0, "quarantine_rounds": 0, "waiting_since": None}
"""What a delivery that ends, or has had an attempt, leaves behind of what went wrong on this side."""


class Outcomes:
    """Writes what became of claimed deliveries of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def complete(self, completions: Sequence[Completion]) -> set[str]:
        """Write outcomes; see `OutboxStore.complete`."""
        nameless = [each for each in completions if not is_text(each.delivery.id)]
        held = {each.delivery.id for each in nameless if await self._end_nameless(each)}
        named = [each for each in completions if is_text(each.delivery.id)]
        if not named:
            return held
        completed = self._database.built(_completed)
        given = {"done": self._database.rows([_written(each) for each in named])}

        def write(connection: Connection) -> set[str]:
            updated = set(connection.execute(completed, given).scalars())
            if self._database.dialect == "sqlite":
                log = [_logged(each) for each in named if each.attempted and each.delivery.id in updated]
                if log:
                    # A log that holds this number already must not keep the outcome from being written.
                    connection.execute(self._database.insert_unless_there(attempts), log)
            return updated

        try:
            held |= await self._database.at_once(write)
        except DBAPIError as exc:
            if not str(getattr(exc.orig, "sqlstate", "")).startswith(ROW_ERRORS):
                raise
            raise RowInvalid(f"its outcome cannot be stored: {type(exc.orig).__name__}") from exc
        if len(held) < len(completions):
            held |= {row.id for row in await self._settled([each.delivery for each in named])}
        return held

    async def give_back(self, returns: Sequence[Return]) -> dict[str, str]:
        """Give claims back without an attempt.

        Returns:
            The state of each row whose claim held: as it was, or ``dead`` for one that waited too long.
        """
        rows = [_given_back(each) for each in returns if is_text(each.delivery.id)]
        if not rows:
            return {}
        returned = self._database.built(_returned)
        given = {"given": self._database.rows(rows)}
        found: list[Any] = await self._database.at_once(
            lambda connection: list(connection.execute(returned, given).all())
        )
        if len(found) < len(rows):
            found += [*await self._settled([each.delivery for each in returns])]
        return {row.id: row.status for row in found}

    async def _settled(self, deliveries: Sequence[ClaimedDelivery]) -> list[Any]:
        """Find rows that were settled under their claims' tokens: written before, by a try whose answer was lost."""
        tokens = {each.id: each.token for each in deliveries if is_text(each.id)}
        query = select(outbox.c.id, outbox.c.status, outbox.c.settled_token).where(outbox.c.id.in_(tokens))
        rows: Sequence[Any] = await self._database.at_once(lambda connection: connection.execute(query).all())
        return [row for row in rows if row.settled_token == tokens[row.id]]

    async def _end_nameless(self, completion: Completion) -> bool:
        """End a row of SQLite whose id is not text, and so cannot be a parameter."""
        delivery, outcome, _, _ = completion
        now = self._database.now()
        ended = (
            update(outbox)
            .where(outbox.c.id == stored(delivery.id), outbox.c.claim_token == delivery.token)
            .values(
                **CLEARED,
                status="dead",
                claim_token=None,
                settled_token=delivery.token,
                last_error=storable(outcome.error),
                updated_at=now,
                finished_at=now,
            )
        )
        again = select(literal(1)).where(
            outbox.c.id == stored(delivery.id), outbox.c.settled_token == delivery.token
        )

        def write(connection: Connection) -> bool:
            return connection.execute(ended).rowcount == 1 or connection.execute(again).first() is not None

        return await self._database.at_once(write)


def _completed(database: Dialect) -> Executable:
    """Write the outcomes in the parameter ``done``, each if its claim still holds, and give the ids of those."""
    now = database.now()
    done: FromClause = database.table_of(
        "done",
        id=String,
        token=String,
        status=String,
        attempts=Integer,
        delay_ms=BigInteger,
        status_code=Integer,
        error=Text,
        number=Integer,
        started_at=BigInteger,
        duration_ms=Integer,
        response=Text,
    )
    postgresql = database.dialect == "postgresql"
    if postgresql:
        done = select(done).cte("outcomes")
    completed = (
        update(outbox)
        .where(outbox.c.id == done.c.id, outbox.c.claim_token == done.c.token)
        .values(
            **CLEARED,
            status=done.c.status,
            attempts=done.c.attempts,
            claim_token=None,
            settled_token=done.c.token,
            next_attempt_at=now + done.c.delay_ms,
            last_status_code=case(
                (done.c.number.is_(None), outbox.c.last_status_code), else_=done.c.status_code
            ),
            last_error=done.c.error,
            updated_at=now,
            finished_at=case((done.c.status.in_(tuple(sorted(FINISHED))), now), else_=null()),
        )
        .returning(outbox.c.id)
    )
    if not postgresql:
        return completed
    # Attempts are logged by the same statement, which SQLite has no way to say.
    held = completed.cte("completed")
    log = (
        select(
            done.c.id,
            *(done.c[name] for name in ("number", "started_at", "duration_ms", "status_code", "error")),
            func.decode(done.c.response, "hex"),
        )
        .join_from(done, held, held.c.id == done.c.id)
        .where(done.c.number.is_not(None))
    )
    logged = database.insert_unless_there(attempts).from_select([column.name for column in attempts.c], log)
    return select(held.c.id).add_cte(logged.cte("logged"))


def _returned(database: Dialect) -> Executable:
    """Give back the claims in the parameter ``given``, each if it still holds, and give the rows' ids and states."""
    now = database.now()
    given = database.table_of(
        "given", id=String, token=String, delay_ms=BigInteger, rounds=Integer, error=Text, answered=Integer
    )
    waits = given.c.error.is_not(None)
    since = func.coalesce(outbox.c.waiting_since, now)
    waited = now - since
    first, cap, limit = WAIT_FIRST_SECONDS * 1000, WAIT_CAP_SECONDS * 1000, WAIT_LIMIT_SECONDS * 1000
    # As long again as it has waited: the interval doubles.
    pause = case((waited < first, first), (waited > cap, cap), else_=waited)
    ends = waits & (waited >= limit)

    return (
        update(outbox)
        .where(LIVE, outbox.c.id == given.c.id, outbox.c.claim_token == given.c.token)
        .values(
            status=case((ends, "dead"), else_=outbox.c.status),
            finished_at=case((ends, now), else_=null()),
            takeovers=case((ends, 0), else_=outbox.c.takeovers),
            quarantine_rounds=case((ends, 0), else_=given.c.rounds),
            waiting_since=case(
                (ends, null()), (waits, since), (given.c.answered == 1, null()), else_=outbox.c.waiting_since
            ),
            last_error=func.coalesce(given.c.error, outbox.c.last_error),
            claim_token=None,
            settled_token=given.c.token,
            next_attempt_at=now + case((waits, pause), else_=given.c.delay_ms),
            updated_at=now,
        )
        .returning(outbox.c.id, outbox.c.status)
    )


def _written(completion: Completion) -> dict[str, Any]:
    delivery, outcome, change, attempted = completion
    return {
        **_logged(completion),
        "id": delivery.id,
        "token": delivery.token,
        "status": change.status,
        "attempts": delivery.attempts + attempted,
        "delay_ms": int(change.delay_seconds * 1000),
        "response": outcome.response.hex(),
        "number": _number(delivery) if attempted else None,
    }


def _logged(completion: Completion) -> dict[str, Any]:
    delivery, outcome, _, _ = completion
    return {
        "delivery_id": delivery.id,
        "number": _number(delivery),
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
        "response": outcome.response,
    }


def _number(delivery: ClaimedDelivery) -> int:
    return delivery.earlier_attempts + delivery.attempts + 1


def _given_back(each: Return) -> dict[str, Any]:
    return {
        "id": each.delivery.id,
        "token": each.delivery.token,
        "delay_ms": int(each.delay_seconds * 1000),
        "rounds": each.delivery.quarantine_rounds,
        "error": storable(each.waits_for),
        "answered": int(each.answered),
    }
