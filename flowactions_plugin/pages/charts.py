"""Geometry of the pages' charts, and of a delivery's time line: rectangles, so that no style is needed in the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from flowactions_plugin.deliveries.results import KnownAttempt
from flowactions_plugin.health.results import Bucket
from flowactions_plugin.pages.formats import plural, span, utc

WIDTH: Final = 480
HEIGHT: Final = 80
GAP: Final = 0.2
"""The share of its place that a bar leaves free."""

LINE_WIDTH: Final = 1000
NARROWEST: Final = 4.0
"""An attempt of a few milliseconds between waits of minutes can still be seen."""


class Bar(NamedTuple):
    """What was done in an interval, and its two rectangles: delivered below, failed on top of it."""

    at: int
    delivered: int
    failed: int
    dead: int
    x: float
    width: float
    ok_y: float
    ok_height: float
    bad_y: float
    bad_height: float


class Chart(NamedTuple):
    """A chart, with the sums of what it shows."""

    bars: Sequence[Bar]
    delivered: int
    failed: int
    width: int = WIDTH
    height: int = HEIGHT


def chart(buckets: Sequence[Bucket]) -> Chart:
    """Return a chart of stacked bars, scaled to the highest; what is not zero can be seen."""
    highest = max((each.delivered + each.failed for each in buckets), default=0) or 1
    place = WIDTH / max(1, len(buckets))
    bars = []
    for index, each in enumerate(buckets):
        ok, bad = _height(each.delivered, highest), _height(each.failed, highest)
        ok = min(ok, HEIGHT - bad)
        bars.append(
            Bar(
                at=each.at,
                delivered=each.delivered,
                failed=each.failed,
                dead=each.dead,
                x=round(index * place + place * GAP / 2, 2),
                width=round(place * (1 - GAP), 2),
                ok_y=round(HEIGHT - ok, 2),
                ok_height=round(ok, 2),
                bad_y=round(HEIGHT - ok - bad, 2),
                bad_height=round(bad, 2),
            )
        )
    return Chart(bars, sum(each.delivered for each in buckets), sum(each.failed for each in buckets))


def _height(count: int, highest: int) -> float:
    return max(1.5, HEIGHT * count / highest) if count > 0 else 0.0


class Step(NamedTuple):
    """An attempt, and the time between it and what came before.

    Attributes:
        attempt: the attempt.
        waited: milliseconds since the end of the one before, or since the enqueue; ``None``: not known.
        ok: whether it has delivered.
    """

    attempt: KnownAttempt
    waited: int | None
    ok: bool


class Part(NamedTuple):
    """A rectangle of the line."""

    kind: Literal["ok", "bad", "next"]
    x: float
    width: float
    title: str


class Line(NamedTuple):
    """A time line. Times are Unix milliseconds."""

    parts: Sequence[Part]
    start: int
    end: int
    summary: str
    width: int = LINE_WIDTH


def steps(created_at: str | None, attempts: Sequence[KnownAttempt]) -> list[Step]:
    """Return the attempts with the waits between them.

    Args:
        created_at: when the delivery was enqueued, ISO 8601; ``None``: not known.
        attempts: the oldest first.
    """
    found = []
    before = milliseconds(created_at)
    for attempt in attempts:
        start = milliseconds(attempt.started_at)
        waited = None if start is None or before is None else max(0, start - before)
        found.append(Step(attempt, waited, _delivered(attempt)))
        before = None if start is None else start + attempt.duration_ms
    return found


def line(created_at: str | None, attempts: Sequence[KnownAttempt], due_at: str | None) -> Line:
    """Return the time line of a delivery; without parts when nothing is known.

    Args:
        created_at: when it was enqueued, ISO 8601; ``None``: not known.
        attempts: the oldest first.
        due_at: when the next one is due, ISO 8601; ``None``: none is.
    """
    spans = [
        (start, start + max(0, attempt.duration_ms), attempt)
        for attempt in attempts
        if (start := milliseconds(attempt.started_at)) is not None
    ]
    if not spans:
        return Line((), 0, 0, "")
    due = milliseconds(due_at)
    known = [milliseconds(created_at), due, *(each for start, end, _ in spans for each in (start, end))]
    moments = [moment for moment in known if moment is not None]
    first, last = min(moments), max(moments)
    scale = LINE_WIDTH / max(1, last - first)

    def part(kind: Literal["ok", "bad", "next"], start: int, end: int, title: str) -> Part:
        width = max(NARROWEST, (end - start) * scale)
        return Part(kind, round(min((start - first) * scale, LINE_WIDTH - width), 2), round(width, 2), title)

    parts = [
        part(
            "ok" if _delivered(attempt) else "bad",
            start,
            end,
            f"attempt {attempt.number}, {utc(start)}, took {span(end - start)}",
        )
        for start, end, attempt in spans
    ]
    if due is not None and due > spans[-1][1]:
        parts.append(part("next", due, due, f"next attempt due {utc(due)}"))
    return Line(parts, first, last, f"{plural(len(spans), 'attempt')} within {span(last - first)}")


def milliseconds(moment: str | None) -> int | None:
    """Return an ISO 8601 time as Unix milliseconds."""
    return None if moment is None else round(datetime.fromisoformat(moment).timestamp() * 1000)


def _delivered(attempt: KnownAttempt) -> bool:
    return attempt.error is None and attempt.status_code is not None and 200 <= attempt.status_code < 300
