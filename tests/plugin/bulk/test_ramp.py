"""The pace of an action, and the rule of its canary: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.operations.bulk import Pace, Result, allowed, judge, wait_seconds


def test_without_a_rate_each_batch_is_whole() -> None:
    """As many as a transaction takes."""
    assert allowed(None, None, 1000, 500) == (500, Pace(1000))


@given(
    rate=st.floats(0.01, 5000),
    steps=st.lists(st.integers(1, 5000), min_size=1, max_size=60),
    most=st.integers(1, 1000),
)
def test_no_more_are_done_than_the_rate_allows(rate: float, steps: list[int], most: int) -> None:
    """From any time on, whatever the pauses between the steps: the rate, and what one second makes up for."""
    now, pace = 10**12, None
    done: list[tuple[int, int]] = []
    for step in steps:
        number, pace = allowed(rate, pace, now, most)
        pace = pace._replace(done=pace.done + number)
        done.append((now, number))
        now += step
    for start in range(len(done)):
        total = 0
        for at, number in done[start:]:
            total += number
            assert total <= rate * (at - done[start][0]) / 1000 + max(1, rate) + 1


@pytest.mark.parametrize("rate", [0.5, 3.0, 50.0, 333.3, 2000.0])
def test_the_rate_is_reached(rate: float) -> None:
    """With a step every tenth of a second, to a hundredth over a hundred seconds."""
    pace, total = None, 0
    for step in range(1001):
        number, pace = allowed(rate, pace, 10**12 + 100 * step, 10_000)
        pace = pace._replace(done=pace.done + number)
        total += number
    assert total == pytest.approx(rate * 100, rel=0.02, abs=1)


def test_a_pause_is_made_up_for_by_a_second_at_the_most() -> None:
    """After a crash of an hour, the rate counts from then on."""
    number, pace = allowed(100.0, Pace(0, 50), 3_600_000, 1000)
    assert (number, pace) == (100, Pace(3_599_000))
    assert allowed(100.0, pace._replace(done=100), 3_600_000, 1000)[0] == 0
    assert allowed(100.0, pace._replace(done=100), 3_600_100, 1000)[0] == 10


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    """The rate counts from then on."""
    assert allowed(10.0, Pace(10_000, 5), 4000, 100) == (0, Pace(4000))


def test_the_wait_is_until_the_next_row() -> None:
    """In seconds, and never negative."""
    assert wait_seconds(2.0, Pace(1000, 0), 1000) == 0.5
    assert wait_seconds(2.0, Pace(1000, 3), 2000) == 1.0
    assert wait_seconds(2.0, Pace(1000, 0), 9000) == 0.0


@pytest.mark.parametrize(
    ("size", "done", "counts", "verdict"),
    [
        (1, 1, {"open": 1}, "wait"),
        (1, 1, {"delivered": 1}, "continue"),
        (1, 1, {"failed": 1}, "stop"),
        (10, 10, {"delivered": 9, "failed": 1}, "continue"),
        (10, 10, {"delivered": 8, "failed": 2}, "stop"),
        (10, 10, {"failed": 2, "open": 8}, "stop"),
        (10, 10, {"failed": 1, "open": 1, "delivered": 8}, "wait"),
        (10, 10, {"delivered": 5}, "continue"),
        (10, 10, {"delivered": 8, "failed": 1}, "stop"),
        (10, 10, {}, "continue"),
        (100, 11, {"failed": 10, "delivered": 1}, "continue"),
        (100, 11, {"failed": 11}, "stop"),
        (100, 0, {}, "continue"),
    ],
)
def test_a_canary_passes_waits_or_stops(size: int, done: int, counts: dict[Result, int], verdict: str) -> None:
    """It stops when more than a tenth has failed of the rows that count; rows that others have changed do not."""
    found = [name for name, count in counts.items() for _ in range(count)]
    gone: list[Result] = ["gone"] * (done - len(found))
    assert judge(size, [*found, *gone])[0] == verdict
