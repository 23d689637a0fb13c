"""Writes the ends of claims: outcomes of attempts, and claims that are given back.

Every write is guarded by the claim's token and leaves that token in ``settled_token``. So a write whose answer was lost
can be repeated: a row that was settled under the token was written by the first try.

The attempt that delivers a row is its last, and is kept in the row: most deliveries write nothing to the attempts log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Executable, String, bindparam, select, text
from sqlalchemy.engine import Connection

from flowactions_plugin.egress.attempt import NOTES, PROBE, RESPONSE_KEPT_BYTES, SLOW_MS
from flowactions_plugin.log_text import storable
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion, End, Return
from flowactions_plugin.queue.claims import PREFIX_DIGITS, Contact, statement
from flowactions_plugin.queue.rules import (
    WAIT_CAP_SECONDS,
    WAIT_FIRST_SECONDS,
    WAIT_LIMIT_SECONDS,
    failure_class,
)
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import outbox

CLEARED: Final[Mapping[str, Any]] = {"takeovers": 0, "quarantine_rounds": 0, "waiting_since": None}
"""The columns about faults of this side, as an attempt or the end of a delivery leaves them."""

_DONE: Final = {
    **dict.fromkeys(("id", "token", "status", "error", "error_class", "response", "phases"), "text"),
    **dict.fromkeys(("attempts", "max_attempts", "status_code", "number", "duration_ms"), "int"),
    **dict.fromkeys(("delay_ms", "started_at"), "bigint"),
}
"""The outcomes; ``number`` is NULL where no attempt was made."""

_GIVEN: Final = {
    **dict.fromkeys(("id", "token", "error"), "text"),
    **dict.fromkeys(("rounds", "answered"), "int"),
    "delay_ms": "bigint",
}
"""What is given back; ``error`` is what it waits for."""

MAY_BE_SENT: Final = "; a worker had claimed it, and may have sent it"
"""What the reason of a cancelled delivery ends with, until it is known what its worker did."""

# Somebody may have cancelled a row while it was on its way: a failed attempt is then its last one.
_CANCELLED: Final = "flowactions_outbox.status = 'dead' AND done.status = 'retrying'"
_COMPLETE: Final = f"""
UPDATE flowactions_outbox SET
    claimed_by = NULL, claimed_until = NULL, takeovers = 0, quarantine_rounds = 0, waiting_since = NULL,
    settled_token = done.token, updated_at = {{now}},
    status = CASE WHEN {_CANCELLED} THEN flowactions_outbox.status ELSE done.status END,
    attempts = done.attempts, max_attempts = done.max_attempts,
    next_attempt_at = {{now}} + done.delay_ms,
    last_status_code = CASE WHEN done.number IS NULL THEN last_status_code ELSE done.status_code END,
    last_error = CASE WHEN {_CANCELLED} THEN replace(flowactions_outbox.last_error, '{MAY_BE_SENT}', '') ELSE done.error END,
    error_class = CASE WHEN {_CANCELLED} THEN flowactions_outbox.error_class ELSE done.error_class END,
    delivered_started_at = CASE WHEN done.status = 'delivered' THEN done.started_at END,
    delivered_duration_ms = CASE WHEN done.status = 'delivered' THEN done.duration_ms END,
    delivered_response = CASE WHEN done.status = 'delivered' THEN {{response}} END,
    delivered_phases = CASE WHEN done.status = 'delivered' THEN done.phases END,
    finished_at = CASE WHEN {_CANCELLED} THEN finished_at WHEN done.status <> 'retrying' THEN {{now}} END
FROM done WHERE flowactions_outbox.id = done.id AND flowactions_outbox.claimed_by = done.token
RETURNING flowactions_outbox.id, flowactions_outbox.status, flowactions_outbox.settled_token"""
# A log that holds this number already must not keep the outcome from being written.
_LOG: Final = f"""
INSERT INTO flowactions_attempts
    (delivery_id, number, started_at, duration_ms, status_code, error, response, phases, worker)
SELECT done.id, done.number, done.started_at, done.duration_ms, done.status_code, done.error, {{response}}, done.phases,
    substr(done.token, 1, {PREFIX_DIGITS})
FROM done JOIN written ON written.id = done.id AND written.settled_token = done.token
WHERE done.number IS NOT NULL AND done.status <> 'delivered'
ON CONFLICT DO NOTHING"""

COMPLETE: Final = f"WITH done AS ({{done}}) {_COMPLETE}"
LOG: Final = f"WITH done AS ({{done}}), written AS (SELECT id, settled_token FROM flowactions_outbox) {_LOG}"
COMPLETE_AND_LOG: Final = f"""
WITH done AS ({{done}}), written AS ({_COMPLETE}), logged AS ({_LOG}) SELECT id, status FROM written"""
"""The two above, on PostgreSQL."""

_ENDED_AS: Final = (
    "CASE WHEN status = 'dead' AND error_class = 'waits' THEN 'waits' ELSE status END AS ended_as"
)
_WAITED: Final = "{now} - coalesce(waiting_since, {now})"
_ENDS: Final = f"given.error IS NOT NULL AND {_WAITED} >= {WAIT_LIMIT_SECONDS * 1000}"
GIVE_BACK: Final = f"""
WITH given AS ({{given}}) UPDATE flowactions_outbox SET
    claimed_by = NULL, claimed_until = NULL, settled_token = given.token, updated_at = {{now}},
    status = CASE WHEN {_ENDS} THEN 'dead' ELSE status END,
    finished_at = CASE WHEN status = 'dead' THEN finished_at WHEN {_ENDS} THEN {{now}} END,
    takeovers = CASE WHEN {_ENDS} THEN 0 ELSE takeovers END,
    quarantine_rounds = CASE WHEN {_ENDS} THEN 0 ELSE given.rounds END,
    waiting_since = CASE WHEN {_ENDS} THEN NULL WHEN given.error IS NOT NULL THEN coalesce(waiting_since, {{now}})
        WHEN given.answered = 1 THEN NULL ELSE waiting_since END,
    last_error = CASE WHEN status = 'dead' THEN replace(last_error, '{MAY_BE_SENT}', '')
        ELSE coalesce(given.error, last_error) END,
    error_class = CASE WHEN given.error IS NULL OR status = 'dead' THEN error_class ELSE 'waits' END,
    next_attempt_at = {{now}} + CASE WHEN given.error IS NULL THEN given.delay_ms
        WHEN {_WAITED} < {WAIT_FIRST_SECONDS * 1000} THEN {WAIT_FIRST_SECONDS * 1000}
        WHEN {_WAITED} > {WAIT_CAP_SECONDS * 1000} THEN {WAIT_CAP_SECONDS * 1000}
        ELSE {_WAITED} END
FROM given WHERE flowactions_outbox.id = given.id AND flowactions_outbox.claimed_by = given.token
RETURNING flowactions_outbox.id, {_ENDED_AS}"""
"""The delay of a row that waits is the time that it has waited so far: the interval doubles. A row that somebody has cancelled stays
dead."""

_FOUND: Final = select(outbox.c.id, outbox.c.claimed_by, outbox.c.settled_token, text(_ENDED_AS)).where(
    outbox.c.id.in_(bindparam("ids", type_=String, expanding=True))
)


def ending(sql: Dialect, written: str) -> Executable:
    """Return one of the statements above; all but `LOG` return ids and states."""
    response = "convert_to(done.response, 'UTF8')" if sql.is_server else "CAST(done.response AS BLOB)"
    rows = {"done": sql.rows_text("done", _DONE), "given": sql.rows_text("given", _GIVEN)}
    return statement(sql, written, response=response, **rows)


class OutcomeStore:
    """Ends claims in one database: with an outcome, or without an attempt.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
    """

    def __init__(self, database: Database, contact: Contact) -> None:
        self._database = database
        self.contact = contact

    async def complete(self, completions: Sequence[Completion]) -> dict[str, End]:
        """Write the outcomes of attempts, and the ends without one, of each row whose claim still holds.

        It can be repeated when its answer was lost: then it finds what the first try wrote. It returns what has ended each claim.

        Raises:
            StorageUnavailable: the database failed.
        """
        database = self._database
        logs, at_once = any(map(is_logged, completions)), database.sql.is_server
        completing = database.built(ending, COMPLETE_AND_LOG if logs and at_once else COMPLETE)
        logging = database.built(ending, LOG) if logs and not at_once else None
        given = {"done": database.sql.json_rows([_values(each) for each in completions])}

        def write(connection: Connection) -> Sequence[Any]:
            written = connection.execute(completing, given).all()
            if logging is not None:
                connection.execute(logging, given)
            return written

        return await self._ends([each.delivery for each in completions], await database.in_transaction(write))

    async def give_back(self, returns: Sequence[Return]) -> dict[str, End]:
        """Give claims back without an attempt, for each row whose claim still holds; return what has ended each claim.

        A row that waited too long is dead.

        Raises:
            StorageUnavailable: the database failed.
        """
        made = self._database.built(ending, GIVE_BACK)
        given = {"given": self._database.sql.json_rows([_return_values(each) for each in returns])}
        written: Sequence[Any] = await self._database.in_transaction(
            lambda connection: connection.execute(made, given).all()
        )
        return await self._ends([each.delivery for each in returns], written)

    async def _ends(self, deliveries: Sequence[ClaimedDelivery], written: Sequence[Any]) -> dict[str, End]:
        """Return what has ended each claim: the write that has returned rows, or what is found in the others."""
        ends = {id_: End("written", ended_as) for id_, ended_as, *_ in written}
        if len(ends) < len(deliveries):
            lost = {each.id: each.token for each in deliveries if each.id not in ends}
            rows = {row.id: row for row in await self._database.rows(_FOUND, {"ids": list(lost)})}
            ends |= {id_: self._end(rows.get(id_), token) for id_, token in lost.items()}
        return ends

    def _end(self, row: Any, token: str) -> End:
        if row is None:
            return End("purged")  # nothing else removes a row that is claimed
        if row.settled_token == token:
            return End("written", row.ended_as)
        holder, own = row.claimed_by, self.contact.prefix
        if holder and own and holder != token and holder.startswith(own):
            return End("again", holder)
        return End("changed" if (holder or row.settled_token or token) == token else "reclaimed", row.ended_as)


def _kept(response: bytes) -> str:
    """Return a response as text, of no more bytes than a response may have: what is not text takes three bytes."""
    shown = response.decode(errors="replace").replace("\0", "\ufffd").encode()
    return shown[:RESPONSE_KEPT_BYTES].decode(errors="ignore")


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
    logged = is_logged(completion)
    kept: dict[str, int] = {}
    if outcome.phases and (logged or (completion.attempted and outcome.duration_ms >= SLOW_MS)):
        kept = {name: round(seconds * 1000) for name, seconds in outcome.phases.items()}
    if outcome.notes:
        kept.update((name, 0) for name, text in NOTES.items() if text in outcome.notes)
    if logged and completion.delivery.is_probe:
        kept[PROBE] = 0
    return msgspec.json.encode(kept).decode() if kept else None


def _values(completion: Completion) -> dict[str, Any]:
    """Return an outcome as a row of the parameter ``done``."""
    delivery, outcome, change = completion.delivery, completion.outcome, completion.change
    attempts = delivery.attempts + completion.attempted
    return {
        "id": delivery.id,
        "token": delivery.token,
        "status": change.status,
        "attempts": attempts,
        # A probe that has failed uses up no attempt.
        "max_attempts": delivery.max_attempts - (delivery.is_probe and change.status != "retrying"),
        "delay_ms": int(change.delay_seconds * 1000),
        "status_code": outcome.status_code,
        "error": storable(outcome.error),
        "error_class": error_class(completion),
        "number": delivery.earlier_attempts + attempts if completion.attempted else None,
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        # No database takes a zero byte in JSON.
        "response": _kept(outcome.response),
        "phases": phases_text(completion),
    }


def _return_values(each: Return) -> dict[str, Any]:
    """Return a claim that is given back as a row of the parameter ``given``."""
    return {
        "id": each.delivery.id,
        "token": each.delivery.token,
        "delay_ms": int(each.delay_seconds * 1000),
        "rounds": each.delivery.quarantine_rounds,
        "error": storable(each.waits_for),
        "answered": int(each.answered),
    }
