"""Which rows are due: they are live, their time has come, no claim holds them, and their destination is not paused."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    LargeBinary,
    Select,
    String,
    Text,
    and_,
    bindparam,
    func,
    not_,
    select,
    tuple_,
    type_coerce,
)

from flowactions_plugin.queue.contact import PREFIX_DIGITS
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    LIVE,
    QUARANTINE_AFTER,
    WORKER_ID_LENGTH,
    outbox,
    pauses,
    workers,
)

DUE_COLUMNS: Final = ("id", "organization_id", "destination", "next_attempt_at")

WORKER_PREFIX: Final = func.substr(workers.c.id, WORKER_ID_LENGTH - PREFIX_DIGITS + 1)
"""What the tokens of a worker's claims begin with: `contact.token_prefix` in SQL."""


def due_rows(sql: Dialect, now: ColumnElement[int], limit: int, *, in_doubt: bool = False) -> Select[Any]:
    """Select and lock the oldest rows that are due.

    Args:
        sql: the dialect.
        now: the time.
        limit: how many at the most.
        in_doubt: whether leases are in doubt, see `undoubted`.
    """
    return (
        select(*(outbox.c[name] for name in DUE_COLUMNS), size(sql))
        .where(
            LIVE,
            outbox.c.takeovers < inline(QUARANTINE_AFTER),
            outbox.c.next_attempt_at <= now,
            undoubted(now) if in_doubt else free(now),
            *unpaused(),
        )
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(limit))
        .with_for_update(skip_locked=True)
    )


def free(now: ColumnElement[int], until: ColumnElement[Any] = outbox.c.claimed_until) -> ColumnElement[bool]:
    """Return the condition that no claim holds a row: there is none, or its lease has expired."""
    return until.is_(None) | (until <= now)


def undoubted(
    now: ColumnElement[int],
    until: ColumnElement[Any] = outbox.c.claimed_until,
    by: ColumnElement[Any] = outbox.c.claimed_by,
) -> ColumnElement[bool]:
    """Return the condition that a row may be claimed while leases are in doubt (decision 54).

    No claim holds it, or its lease ended before the doubt began, or was this worker's own, or one of a worker that has
    stopped in order. The parameter ``doubt_ms`` is the age of the doubt; ``own`` is what this worker's tokens begin with.
    """
    owner = func.substr(by, 1, PREFIX_DIGITS)
    stopped = select(WORKER_PREFIX).where(workers.c.stopped_at.is_not(None))
    known = (until <= now - bindparam("doubt_ms", type_=BigInteger)) | (owner == bindparam("own", type_=String))
    return until.is_(None) | ((until <= now) & (known | owner.in_(stopped)))


def unpaused(
    organization: ColumnElement[str] = outbox.c.organization_id,
    destination: ColumnElement[str] = outbox.c.destination,
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions that a row's destination is not paused, neither for its organization nor for all.

    They are no joins: what is paused is read once for a statement, and rows are met in the order of their index.
    """
    paused = select(pauses.c.destination).where(pauses.c.resumed_at.is_(None))
    everywhere = paused.where(pauses.c.organization_id == inline(EVERY_ORGANIZATION))
    own = paused.with_only_columns(pauses.c.organization_id, pauses.c.destination)
    return (
        destination.not_in(everywhere),
        tuple_(organization, destination).not_in(own),
    )


def withdrawn(sql: Dialect) -> Select[Any]:
    """Select those in the parameter ``held`` that may not begin: they are paused, or the claim of their token has ended."""
    held = sql.values_table("held", id=String, token=String, organization_id=Text, destination=Text)
    holds = select(outbox.c.id).where(outbox.c.id == held.c.id, outbox.c.claimed_by == held.c.token)
    return select(held.c.id).where(
        ~holds.exists() | not_(and_(*unpaused(held.c.organization_id, held.c.destination)))
    )


def size(sql: Dialect) -> ColumnElement[int]:
    """Return about how many bytes a row's body and headers take, without reading them."""
    body = sql.size(type_coerce(outbox.c.body, LargeBinary))
    return (func.coalesce(body, 0) + sql.size(outbox.c.headers)).label("size")
