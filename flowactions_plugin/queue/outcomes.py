"""The SQL that ends claims: outcomes of attempts, and claims that are given back.

Every write is guarded by the claim's token and leaves that token in ``settled_token``. So a write whose answer was lost
can be repeated: a row that was settled under the token was written by the first try.

The attempt that delivers a row is its last, and is kept in the row: most deliveries write nothing to the attempts log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    Executable,
    FromClause,
    Integer,
    LargeBinary,
    String,
    Text,
    Update,
    bindparam,
    case,
    func,
    null,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from flowactions_plugin.egress.attempt import NOTES, PROBE, SLOW_MS
from flowactions_plugin.log_text import storable
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.queue.claims import PREFIX_DIGITS
from flowactions_plugin.queue.rules import (
    FINISHED,
    WAIT_CAP_SECONDS,
    WAIT_FIRST_SECONDS,
    WAIT_LIMIT_SECONDS,
    failure_class,
)
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import LIVE, attempts, outbox

FREED: Final[Mapping[str, Any]] = {"claimed_by": None, "claimed_until": None}
"""The columns of a claim, as its end leaves them."""

CLEARED: Final[Mapping[str, Any]] = {"takeovers": 0, "quarantine_rounds": 0, "waiting_since": None}
"""The columns about faults of this side, as an attempt or the end of a delivery leaves them."""

MAY_BE_SENT: Final = "; a worker had claimed it, and may have sent it"
"""What the reason of a cancelled delivery ends with, until it is known what its worker did."""


def completing(sql: Dialect) -> Executable:
    """Write the statement that stores the outcomes in the parameter ``done`` whose claims hold, and returns their ids.

    Where it can write to two tables, it logs the attempts that did not deliver, too.
    """
    completed, done = _completed(sql)
    if not sql.writes_two_tables:
        return completed
    held = completed.cte("completed")
    log = (
        select(
            done.c.id,
            *(done.c[name] for name in ("number", "started_at", "duration_ms", "status_code", "error")),
            sql.bytes_of(done.c.response),
            done.c.phases,
            func.substr(done.c.token, 1, PREFIX_DIGITS),
        )
        .join_from(done, held, held.c.id == done.c.id)
        .where(done.c.number.is_not(None), done.c.status != "delivered")
    )
    logged = sql.insert_unless_there(attempts).from_select([column.name for column in attempts.c], log)
    return select(held.c.id).add_cte(logged.cte("logged"))


def completing_unlogged(sql: Dialect) -> Executable:
    """Write the statement that does the same for outcomes of which none is logged."""
    return _completed(sql)[0]


def _completed(sql: Dialect) -> tuple[ReturningUpdate[Any], FromClause]:
    now = sql.now()
    done: FromClause = sql.values_table(
        "done",
        id=String,
        token=String,
        status=String,
        attempts=Integer,
        max_attempts=Integer,
        delay_ms=BigInteger,
        status_code=Integer,
        error=Text,
        error_class=String,
        number=Integer,
        started_at=BigInteger,
        duration_ms=Integer,
        response=Text,
        phases=Text,
    )
    if sql.writes_two_tables:
        done = select(done).cte("outcomes")
    response = sql.bytes_of(done.c.response)
    delivered = (done.c.status == "delivered") & done.c.number.is_not(None)
    # Somebody has cancelled it while it was on its way: a failed attempt is its last one.
    cancelled = (outbox.c.status == "dead") & (done.c.status == "retrying")
    reason = func.replace(outbox.c.last_error, MAY_BE_SENT, "")
    completed = (
        update(outbox)
        .where(outbox.c.id == done.c.id, outbox.c.claimed_by == done.c.token)
        .values(
            **CLEARED,
            status=case((cancelled, outbox.c.status), else_=done.c.status),
            attempts=done.c.attempts,
            max_attempts=done.c.max_attempts,
            **FREED,
            settled_token=done.c.token,
            next_attempt_at=now + done.c.delay_ms,
            last_status_code=case(
                (done.c.number.is_(None), outbox.c.last_status_code), else_=done.c.status_code
            ),
            last_error=case((cancelled, reason), else_=done.c.error),
            error_class=case((cancelled, outbox.c.error_class), else_=done.c.error_class),
            delivered_started_at=case((delivered, done.c.started_at), else_=null()),
            delivered_duration_ms=case((delivered, done.c.duration_ms), else_=null()),
            delivered_response=case((delivered, response), else_=null()),
            delivered_phases=case((delivered, done.c.phases), else_=null()),
            updated_at=now,
            finished_at=case(
                (cancelled, outbox.c.finished_at),
                (done.c.status.in_(tuple(sorted(FINISHED))), now),
                else_=null(),
            ),
        )
        .returning(outbox.c.id)
    )
    return completed, done


def keeping_response() -> Update:
    """Write the statement that keeps the response of a delivered row of SQLite that is not text."""
    return (
        update(outbox)
        .where(outbox.c.id == bindparam("row"), outbox.c.settled_token == bindparam("by"))
        .values(delivered_response=bindparam("kept", type_=LargeBinary))
    )


def giving_back(sql: Dialect) -> Executable:
    """Write the statement that gives back the claims in the parameter ``given`` that hold, and returns ids and states."""
    now = sql.now()
    given = sql.values_table(
        "given", id=String, token=String, delay_ms=BigInteger, rounds=Integer, error=Text, answered=Integer
    )
    waits = given.c.error.is_not(None)
    since = func.coalesce(outbox.c.waiting_since, now)
    waited = now - since
    first, cap, limit = WAIT_FIRST_SECONDS * 1000, WAIT_CAP_SECONDS * 1000, WAIT_LIMIT_SECONDS * 1000
    # The delay is the time that it has waited so far: the interval doubles.
    pause = case((waited < first, first), (waited > cap, cap), else_=waited)
    ends = waits & (waited >= limit)

    return (
        update(outbox)
        .where(LIVE, outbox.c.id == given.c.id, outbox.c.claimed_by == given.c.token)
        .values(
            status=case((ends, "dead"), else_=outbox.c.status),
            finished_at=case((ends, now), else_=null()),
            takeovers=case((ends, 0), else_=outbox.c.takeovers),
            quarantine_rounds=case((ends, 0), else_=given.c.rounds),
            waiting_since=case(
                (ends, null()), (waits, since), (given.c.answered == 1, null()), else_=outbox.c.waiting_since
            ),
            last_error=func.coalesce(given.c.error, outbox.c.last_error),
            error_class=case((waits, "waits"), else_=outbox.c.error_class),
            **FREED,
            settled_token=given.c.token,
            next_attempt_at=now + case((waits, pause), else_=given.c.delay_ms),
            updated_at=now,
        )
        .returning(outbox.c.id, outbox.c.status)
    )


def withdrawing(sql: Dialect) -> Update:
    """Write the statement that ends the claims in ``given`` of deliveries that were cancelled before they had begun."""
    given = sql.values_table("given", id=String, token=String)
    return (
        update(outbox)
        .where(outbox.c.id == given.c.id, outbox.c.claimed_by == given.c.token, outbox.c.status == "dead")
        .values(
            **FREED,
            settled_token=given.c.token,
            last_error=func.replace(outbox.c.last_error, MAY_BE_SENT, ""),
        )
    )


def is_logged(completion: Completion) -> bool:
    """Return whether an outcome is one of the attempts log: the attempt that delivers is kept in its row."""
    return completion.attempted and completion.change.status != "delivered"


def error_class(completion: Completion) -> str | None:
    """Return the kind of failure that an outcome is, as operators search for it; ``None``: none."""
    if completion.change.status == "delivered":
        return None
    return failure_class(completion.outcome) if completion.attempted else "not_sent"


def phases_text(completion: Completion) -> str | None:
    """Return how long the phases of an attempt took, as it is kept of one that failed or was slow; ``None``: of no other.

    The notes of any attempt are among them: names of `NOTES`, without a time.
    """
    outcome = completion.outcome
    phases = outcome.phases
    if not (is_logged(completion) or (completion.attempted and outcome.duration_ms >= SLOW_MS)):
        phases = None
    kept = {name: round(seconds * 1000) for name, seconds in (phases or {}).items()}
    kept.update((name, 0) for name, text in NOTES.items() if text in outcome.notes)
    if completion.delivery.is_probe and is_logged(completion):
        kept[PROBE] = 0
    return msgspec.json.encode(kept).decode() if kept else None


def completion_values(completion: Completion, bytes_value: Callable[[bytes], str | None]) -> dict[str, Any]:
    """Return an outcome as a row of the parameter ``done``.

    Args:
        completion: the outcome.
        bytes_value: that of the dialect.
    """
    delivery, outcome, change = completion.delivery, completion.outcome, completion.change
    attempted = completion.attempted
    return {
        "id": delivery.id,
        "token": delivery.token,
        "status": change.status,
        "attempts": delivery.attempts + attempted,
        # A probe that has failed uses up no attempt.
        "max_attempts": delivery.max_attempts - (delivery.is_probe and change.status != "retrying"),
        "delay_ms": int(change.delay_seconds * 1000),
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
        "error_class": error_class(completion),
        "number": _number(delivery) if attempted else None,
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        "response": bytes_value(outcome.response),
        "phases": phases_text(completion),
    }


def attempt_values(completion: Completion) -> dict[str, Any]:
    """Return an attempt as a row of the attempts log."""
    delivery, outcome = completion.delivery, completion.outcome
    return {
        "delivery_id": delivery.id,
        "number": _number(delivery),
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
        "response": outcome.response,
        "phases": phases_text(completion),
        "worker": delivery.token[:PREFIX_DIGITS],
    }


def _number(delivery: ClaimedDelivery) -> int:
    return delivery.earlier_attempts + delivery.attempts + 1


def return_values(each: Return) -> dict[str, Any]:
    """Return a claim that is given back as a row of the parameter ``given``."""
    return {
        "id": each.delivery.id,
        "token": each.delivery.token,
        "delay_ms": int(each.delay_seconds * 1000),
        "rounds": each.delivery.quarantine_rounds,
        "error": storable(each.waits_for),
        "answered": int(each.answered),
    }
