"""The pace of an action: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.operations.bulk import Pace, allowed, wait_seconds


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
