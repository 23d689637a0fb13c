"""Inbound events as operators see them: those that were processed, and why requests processed none."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, select, tuple_
from sqlalchemy.engine import Connection

from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.results import InboundEvent, InboundFailing, InboundPage, InboundReason
from flowactions_plugin.insights.views import struct_of
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import inbound_events, inbound_requests

PROVIDERS: Final = ("auth", "chat")

FAILED: Final = ("refused", "invalid", "failed")
"""Results of requests that processed no event, although they should have."""

REASONS: Final = 100
"""How many reasons are listed, those of the latest requests."""

MOST_ID: Final = 200
"""Characters of an event's id."""

_ORDER: Final = (inbound_events.c.received_at, inbound_events.c.event_id, inbound_events.c.provider)


def page(connection: Connection, event_id: str | None, cursor: str | None, limit: int) -> InboundPage:
    """Return a page of inbound events, the latest first, and on the first page the reasons of requests that processed none.

    Args:
        connection: an open one.
        event_id: only this event; ``None``: any.
        cursor: `InboundPage.next_cursor` of the page before; ``None`` or empty: the first page.
        limit: events at the most.

    Raises:
        FilterInvalid: the id is too long, or the cursor is none.
    """
    if event_id is not None and len(event_id) > MOST_ID:
        raise FilterInvalid(f"id: must not be longer than {MOST_ID} characters", "id")
    events = select(*(inbound_events.c[name] for name in InboundEvent.__struct_fields__))
    events = events.order_by(*(each.desc() for each in _ORDER))
    reasons = select(*(inbound_requests.c[name] for name in InboundReason.__struct_fields__))
    reasons = reasons.order_by(inbound_requests.c.last_at.desc()).limit(inline(REASONS))
    if event_id is not None:
        # The index begins with the provider.
        events = events.where(inbound_events.c.provider.in_(PROVIDERS), inbound_events.c.event_id == event_id)
        reasons = reasons.where(inbound_requests.c.event_id == event_id)
    if cursor:
        events = events.where(*_before(cursor))
    found = [struct_of(row, InboundEvent) for row in connection.execute(events.limit(inline(limit + 1))).all()]
    rows, last = found[:limit], found[limit - 1] if len(found) > limit else None
    return InboundPage(
        rows=rows,
        reasons=() if cursor else [struct_of(row, InboundReason) for row in connection.execute(reasons).all()],
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


def failing(connection: Connection, now: int) -> list[InboundFailing]:
    """Return the providers of whose requests some failed and none was processed, within the last hour.

    Args:
        connection: an open one.
        now: Unix milliseconds.
    """
    table, since = inbound_requests.c, now - HOUR_MS
    found = []
    for provider in PROVIDERS:
        late = select(table.provider, table.requests, table.first_at.label("since"), table.result, table.reason)
        late = late.where(table.last_at >= since, table.provider == provider, table.result.in_(FAILED))
        rows = connection.execute(late.order_by(table.last_at.desc()).limit(inline(1))).all()
        events = select(inbound_events.c.provider).where(inbound_events.c.received_at >= since)
        processed = events.where(inbound_events.c.provider == provider).limit(inline(1))
        if rows and not connection.execute(processed).all():
            found.append(struct_of(rows[0], InboundFailing))
    return found
