"""Inbound events as operators see them: those that were processed, and why requests processed none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Row, select, tuple_
from sqlalchemy.engine import Connection

from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import inbound_events, inbound_requests

PROVIDERS: Final = ("auth", "chat")

REASONS: Final = 100
"""How many reasons are listed, those of the latest requests."""

MOST_ID: Final = 200
"""Characters of an event's id."""

_ORDER: Final = (inbound_events.c.received_at, inbound_events.c.event_id, inbound_events.c.provider)


class InboundPage(NamedTuple):
    """A page of inbound events.

    Attributes:
        rows: rows of the events, the latest first.
        reasons: on the first page, rows of why requests processed none, that of the latest request first.
        next_cursor: gives the next page; ``None``: this is the last one.
    """

    rows: Sequence[Row[Any]] = ()
    reasons: Sequence[Row[Any]] = ()
    next_cursor: str | None = None


def page(connection: Connection, event_id: str | None, cursor: str | None, limit: int) -> InboundPage:
    """Return a page of inbound events; see `Insights.inbound`."""
    if event_id is not None and len(event_id) > MOST_ID:
        raise FilterInvalid(f"id: must not be longer than {MOST_ID} characters", "id")
    events = select(inbound_events).order_by(*(each.desc() for each in _ORDER))
    reasons = select(inbound_requests).order_by(inbound_requests.c.last_at.desc()).limit(inline(REASONS))
    if event_id is not None:
        # The index begins with the provider.
        events = events.where(inbound_events.c.provider.in_(PROVIDERS), inbound_events.c.event_id == event_id)
        reasons = reasons.where(inbound_requests.c.event_id == event_id)
    if cursor:
        events = events.where(*_before(cursor))
    found = connection.execute(events.limit(inline(limit + 1))).all()
    rows, last = found[:limit], found[limit - 1] if len(found) > limit else None
    return InboundPage(
        rows=rows,
        reasons=() if cursor else connection.execute(reasons).all(),
        next_cursor=None if last is None else f"{last.received_at}.{last.provider}.{last.event_id}",
    )


def _before(cursor: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on the events behind a cursor."""
    moment, _, rest = cursor.partition(".")
    provider, _, event_id = rest.partition(".")
    is_time = moment.isascii() and moment.isdigit() and len(moment) <= 15
    if not is_time or provider not in PROVIDERS or not event_id.isprintable():
        raise FilterInvalid("cursor: must be the next cursor of a page of the same list", "cursor")
    # The first condition is one that every database uses the index for.
    return _ORDER[0] <= int(moment), tuple_(*_ORDER) < (int(moment), event_id, provider)
