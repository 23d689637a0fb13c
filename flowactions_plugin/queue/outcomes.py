"""Writes the ends of claims: outcomes of attempts, and claims that are given back, all by one statement.

Every write is guarded by the claim's token and leaves that token in ``settled_token``. So a write whose answer was lost
can be repeated: a row that was settled under the token was written by the first try.

The attempt that delivers a row is its last, and is kept in the row: most deliveries write nothing to the attempts log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import String, bindparam, select
from sqlalchemy.engine import Connection

from flowactions_plugin.egress.attempt import NOTES, PROBE, RESPONSE_KEPT_BYTES, SLOW_MS
from flowactions_plugin.log_text import storable
from flowactions_plugin.queue.claimed import Attempted, Completion, End, Ended, Returned
from flowactions_plugin.queue.claims import Contact
from flowactions_plugin.queue.rules import failure_class
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox

CLEARED: Final[Mapping[str, Any]] = {"takeovers": 0, "quarantine_rounds": 0, "waiting_since": None}
"""The columns about faults of this side, as an attempt or the end of a delivery leaves them."""


class Done(msgspec.Struct, kw_only=True):
    """The end of a claim, as a row of the parameter ``done``; the defaults: no attempt was made."""

    id: str
    token: str
    status: str
    error: str | None
    error_class: str | None
    response: str = ""
    phases: str | None = None
    granted: int = 0
    status_code: int | None = None
    number: int | None = None
    duration_ms: int = 0
    rounds: int | None = None
    waits: int | None = None
    delay_ms: int = 0
    started_at: int = 0


MAY_BE_SENT: Final = "; a worker had claimed it, and may have sent it"
"""What the reason of a cancelled delivery ends with, until it is known what its worker did."""

_FOUND: Final = select(*(outbox.c[name] for name in ("id", "status", "claimed_by", "settled_token"))).where(
    outbox.c.id.in_(bindparam("ids", type_=String, expanding=True))
)


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
        """Write the ends of claims, of each row whose claim still holds; return what has ended each claim.

        It can be repeated when its answer was lost: then it finds what the first try wrote.

        Raises:
            StorageUnavailable: the database failed.
        """
        database = self._database
        logs, at_once = any(map(is_logged, completions)), database.sql.is_server
        completing = database.built(statement, "complete_and_log" if logs and at_once else "complete")
        logging = database.built(statement, "log") if logs and not at_once else None
        given = {"done": database.sql.json_rows([done_of(each) for each in completions])}

        def write(connection: Connection) -> Sequence[Any]:
            written = connection.execute(completing, given).all()
            if logging is not None:
                connection.execute(logging, given)
            return written

        ends = {row.id: End("written", row.status) for row in await database.in_transaction(write)}
        lost = {each.delivery.id: each.delivery.token for each in completions if each.delivery.id not in ends}
        if lost:
            rows = {row.id: row for row in await database.rows(_FOUND, {"ids": list(lost)})}
            ends |= {id_: self._end(rows.get(id_), token) for id_, token in lost.items()}
        return ends

    def _end(self, row: Any, token: str) -> End:
        if row is None:
            return End("purged")  # nothing else removes a row that is claimed
        if row.settled_token == token:
            return End("written", row.status)
        holder, own = row.claimed_by, self.contact.prefix
        if holder and own and holder != token and holder.startswith(own):
            return End("again", holder)
        return End("changed" if (holder or row.settled_token or token) == token else "reclaimed", row.status)


def _kept(response: bytes) -> str:
    """Return a response as text, of no more bytes than a response may have: what is not text takes three bytes."""
    if not response:
        return ""
    shown = response.decode(errors="replace").replace("\0", "\ufffd").encode()
    return shown[:RESPONSE_KEPT_BYTES].decode(errors="ignore")


def is_logged(completion: Completion) -> bool:
    """Return whether an outcome is one of the attempts log: the attempt that delivers is kept in its row."""
    return isinstance(completion, Attempted) and completion.status != "delivered"


def error_class(completion: Completion) -> str | None:
    """Return the kind of failure that an outcome is, as operators search for it; ``None``: none."""
    if isinstance(completion, Attempted):
        return None if completion.status == "delivered" else failure_class(completion.outcome)
    return (completion.failure or "waits") if isinstance(completion, Returned) else "not_sent"


def phases_text(completion: Attempted) -> str | None:
    """Return how long the phases of an attempt took, as it is kept of one that failed or was slow; ``None``: of no other.

    The notes of any attempt are among them: names of `NOTES`, without a time.
    """
    outcome, logged = completion.outcome, is_logged(completion)
    kept: dict[str, int] = {}
    if outcome.phases and (logged or outcome.duration_ms >= SLOW_MS):
        kept = {name: round(seconds * 1000) for name, seconds in outcome.phases.items()}
    if outcome.notes:
        kept.update((name, 0) for name, text in NOTES.items() if text in outcome.notes)
    if logged and completion.delivery.is_probe:
        kept[PROBE] = 0
    return msgspec.json.encode(kept).decode() if kept else None


def done_of(completion: Completion) -> Done:
    """Return the end of a claim as it is written."""
    delivery = completion.delivery
    id_, token, kind = delivery.id, delivery.token, error_class(completion)
    if isinstance(completion, Attempted):
        outcome, change = completion.outcome, completion.change
        return Done(
            id=id_,
            token=token,
            status=change.status,
            error=storable(outcome.error),
            error_class=kind,
            # No database takes a zero byte in JSON.
            response=_kept(outcome.response),
            phases=phases_text(completion),
            # A probe that has failed uses up no attempt.
            granted=int(delivery.is_probe and change.status == "retrying"),
            status_code=outcome.status_code,
            number=delivery.earlier_attempts + delivery.attempts + 1,
            duration_ms=outcome.duration_ms,
            delay_ms=int(change.delay_seconds * 1000),
            started_at=outcome.started_at,
        )
    if isinstance(completion, Returned):
        return Done(
            id=id_,
            token=token,
            status="returned",
            error=storable(completion.waits_for),
            error_class=kind,
            rounds=delivery.quarantine_rounds,
            waits=None if completion.answered else int(completion.waits_for is not None),
            delay_ms=int(completion.delay * 1000),
        )
    assert isinstance(completion, Ended)  # noqa: S101  there are three kinds
    return Done(id=id_, token=token, status="dead", error=storable(completion.why), error_class=kind)
