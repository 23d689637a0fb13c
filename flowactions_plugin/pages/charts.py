"""Geometry of the pages' charts: rectangles, so that no style is needed in the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowactions_plugin.health.results import Bucket

WIDTH: Final = 480
HEIGHT: Final = 80
GAP: Final = 0.2
"""The share of its place that a bar leaves free."""


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
