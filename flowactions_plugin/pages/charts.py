"""Geometry of the pages' charts: rectangles, so that no style is needed in the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from flowactions_plugin.insights.facts import summed
from flowactions_plugin.insights.results import Attempt, Bucket

HEIGHT: Final = 80
LEAST: Final = 1.5
"""The height of a number that is not zero: beside a very high one it can still be seen."""

TICKS: Final = 4
"""How many intervals have their time below them."""

_MANTISSAS: Final = (1, 2, 4, 6, 8)
"""Ends of the value axis, by a power of ten: the half of each is a whole number, except that of 1."""


class Bar(NamedTuple):
    """An interval, and the heights of its two rectangles: delivered below, failed on top of it."""

    bucket: Bucket
    ok: float
    bad: float


class Chart(NamedTuple):
    """A chart.

    Attributes:
        bars: the intervals, the oldest first.
        total: their sums.
        top: the number at the upper end of the value axis; the lower end is 0.
        half: the number in the middle of it; ``None``: it is not a whole one.
        unit: what the axis counts.
        step: from one interval that has its time below it to the next.
        height: of all rectangles.
    """

    bars: Sequence[Bar]
    total: Bucket
    top: int
    half: int | None
    unit: str
    step: int
    height: int = HEIGHT


def chart(buckets: Sequence[Bucket], interval: str) -> Chart:
    """Return a chart of stacked bars, scaled to the end of its axis; what is not zero can be seen.

    Args:
        buckets: the intervals, the oldest first.
        interval: how long each of them is, in words.
    """
    top = axis_end(max((each.delivered + each.failed for each in buckets), default=0))
    bars = []
    for each in buckets:
        bad = _height(each.failed, top)
        bars.append(Bar(each, round(min(_height(each.delivered, top), HEIGHT - bad), 2), round(bad, 2)))
    half, step = top // 2 if top % 2 == 0 else None, max(1, -(-len(buckets) // TICKS))
    return Chart(bars, summed(buckets), top, half, f"attempts per {interval}", step)


def axis_end(highest: int) -> int:
    """Return the round number at which the axis of values up to this one ends: 1, 2, 4, 6, 8, 10, 20 and so on."""
    power = 1
    while True:
        found = next((each * power for each in _MANTISSAS if each * power >= highest), None)
        if found is not None:
            return found
        power *= 10


def _height(count: int, top: int) -> float:
    return max(LEAST, HEIGHT * count / top) if count > 0 else 0.0


class Step(NamedTuple):
    """An attempt, how many milliseconds passed before it (``None``: not known), and whether it has delivered."""

    attempt: Attempt
    waited: int | None
    ok: bool


def steps(created_at: str | None, attempts: Sequence[Attempt]) -> list[Step]:
    """Return the attempts, the oldest first, with the waits since the enqueue and between them.

    Args:
        created_at: when the delivery was enqueued, ISO 8601; ``None``: not known.
        attempts: the oldest first.
    """
    found, unit = [], timedelta(milliseconds=1)
    before = None if created_at is None else datetime.fromisoformat(created_at)
    for each in attempts:
        start = None if each.started_at is None else datetime.fromisoformat(each.started_at)
        waited = None if start is None or before is None else max(0, round((start - before) / unit))
        found.append(
            Step(
                each, waited, each.error is None and (each.status_code is None or 200 <= each.status_code < 300)
            )
        )
        before = None if start is None else start + each.duration_ms * unit
    return found
