"""Inbound events as operators see them: those that were processed, and requests that processed none, by their time.

Both tables are read by an index on the time, and merged by it. Rows of one millisecond are in the order of their ids within
each table, and those that were processed come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Select, literal, null, select
from sqlalchemy.engine import Connection

from flowactions_plugin.deliveries.results import InboundEvent, InboundPage
from flowactions_plugin.deliveries.views import struct_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.health.results import InboundFailing
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import NAMED_EVENT, REPEATED, inbound_events, inbound_requests

PROVIDERS: Final = ("auth", "chat")
RESULTS: Final = ("processed", "repeated", "acknowledged", "refused", "invalid", "failed")
"""What inbound events are searched by; ``repeated``: processed, and received again."""

FAILED: Final = frozenset({"refused", "invalid", "failed"})
"""Results of requests that processed no event, although they should have."""

LATEST: Final = 200
"""Among how many of the latest requests providers are looked for whose events are not processed."""

HOUR_MS: Final = 3600 * 1000

MOST_ID: Final = 200
"""Characters of an event's id."""

MOST_OF_ONE_MOMENT: Final = 10_000
"""How many rows of one millisecond can be paged through."""

_CURSOR: Final = re.compile(r"([0-9]{1,15})\.([0-9]{1,5})", re.ASCII)


class Inbound(NamedTuple):
    """Which inbound events are wanted.

    Attributes:
        event_id: only this event; ``None``: any.
        result: only these, one of `RESULTS`; ``None``: all.
    """

    event_id: str | None = None
    result: str | None = None


class Position(NamedTuple):
    """Where a page begins: behind so many rows of a time (Unix milliseconds)."""

    moment: int
    passed: int


def read_inbound(given: Mapping[str, str | None]) -> Inbound:
    """Return which inbound events the fields ``id`` and ``result`` ask for.

    Raises:
        FilterInvalid: a value cannot be used; the message says what is allowed.
    """
    event_id, result = given.get("id") or None, given.get("result") or None
    if event_id is not None and len(event_id) > MOST_ID:
        raise FilterInvalid(f"id: must not be longer than {MOST_ID} characters", "id")
    if result is not None and result not in RESULTS:
        raise FilterInvalid(f"result: must be one of {', '.join(RESULTS)}", "result")
    return Inbound(event_id, result)


def read_cursor(cursor: str | None) -> Position | None:
    """Return where a page begins; ``None``: with the latest row.

    Args:
        cursor: `InboundPage.next_cursor` of the page before; ``None`` or empty: the first page.

    Raises:
        FilterInvalid: it is none.
    """
    if not cursor:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[2]) > MOST_OF_ONE_MOMENT:
        raise FilterInvalid("cursor: must be the next cursor of a page of the same list", "cursor")
    return Position(int(found[1]), int(found[2]))


def page(connection: Connection, wanted: Inbound, before: Position | None, limit: int) -> InboundPage:
    """Return a page of inbound events, the latest first.

    Args:
        connection: an open one.
        wanted: which.
        before: where it begins; ``None``: with the latest.
        limit: rows at the most.
    """
    passed = 0 if before is None else before.passed
    most = passed + limit + 1
    found: list[InboundEvent] = []
    for query in _queries(wanted, before):
        found += [struct_of(row, InboundEvent) for row in connection.execute(query.limit(inline(most))).all()]
    found.sort(key=_moment, reverse=True)
    rows = found[passed : passed + limit]
    if len(found) <= passed + limit or not rows:
        return InboundPage(rows=rows)
    last = _moment(rows[-1])
    seen = sum(_moment(each) == last for each in found[: passed + limit])
    return InboundPage(rows=rows, next_cursor=f"{last}.{seen}")


def failing(connection: Connection, now: int) -> list[InboundFailing]:
    """Return the providers of whose latest requests some failed and none was processed, within the last hour.

    Args:
        connection: an open one.
        now: Unix milliseconds.
    """
    latest = [each for each in page(connection, Inbound(), None, LATEST).rows if _moment(each) >= now - HOUR_MS]
    found = []
    for provider in PROVIDERS:
        rows = [each for each in latest if each.provider == provider]
        failed = [each for each in rows if each.result in FAILED]
        if failed and all(each.result != "processed" for each in rows):
            number = sum(1 + each.more for each in failed)
            last = failed[0]
            found.append(
                InboundFailing(provider=provider, requests=number, result=last.result, reason=last.reason)
            )
    return found


def _moment(event: InboundEvent) -> int:
    return event.received_at


def _queries(wanted: Inbound, before: Position | None) -> Sequence[Select[Any]]:
    """Return the queries of the tables that can hold what is wanted."""
    events, requests = inbound_events.c, inbound_requests.c
    processed = select(
        events.received_at,
        events.provider,
        events.event_id,
        events.event_type,
        literal("processed").label("result"),
        literal(200).label("status_code"),
        null().label("reason"),
        events.repeats,
        events.repeated_at,
        literal(0).label("more"),
    ).order_by(events.received_at.desc(), events.event_id.desc(), events.provider.desc())
    unprocessed = select(
        requests.received_at,
        requests.provider,
        requests.event_id,
        requests.event_type,
        requests.result,
        requests.status_code,
        requests.reason,
        literal(0).label("repeats"),
        null().label("repeated_at"),
        requests.more,
    ).order_by(requests.received_at.desc(), requests.id.desc())
    if before is not None:
        processed = processed.where(events.received_at <= before.moment)
        unprocessed = unprocessed.where(requests.received_at <= before.moment)
    if wanted.event_id is not None:
        # The index begins with the provider.
        processed = processed.where(events.provider.in_(PROVIDERS), events.event_id == wanted.event_id)
        unprocessed = unprocessed.where(NAMED_EVENT, requests.event_id == wanted.event_id)
    if wanted.result is None:
        return processed, unprocessed
    if wanted.result == "processed":
        return (processed,)
    if wanted.result == "repeated":
        return (processed.where(REPEATED),)
    return (unprocessed.where(requests.result == wanted.result),)
