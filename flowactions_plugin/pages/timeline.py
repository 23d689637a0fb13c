"""The attempts of a delivery on a time line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from flowactions_plugin.deliveries.results import KnownAttempt
from flowactions_plugin.pages.formats import plural, span, utc

WIDTH: Final = 1000
NARROWEST: Final = 4.0
"""An attempt of a few milliseconds between waits of minutes can still be seen."""


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
    width: int = WIDTH


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
    due = milliseconds(due_at)
    moments = [
        moment
        for moment in (
            milliseconds(created_at),
            due,
            *(each for start, end, _ in spans for each in (start, end)),
        )
        if moment is not None
    ]
    if not spans:
        return Line((), 0, 0, "")
    first, last = min(moments), max(moments)
    scale = WIDTH / max(1, last - first)

    def part(kind: Literal["ok", "bad", "next"], start: int, end: int, title: str) -> Part:
        width = max(NARROWEST, (end - start) * scale)
        return Part(kind, round(min((start - first) * scale, WIDTH - width), 2), round(width, 2), title)

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
