"""What a worker remembers of receivers: quick, slow, or unknown, and one at a time or several."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue import standing as module
from flowactions_plugin.queue.standing import QUICK_ANSWERS, Standing

HOST = ("acme", "http://h:80")
QUICK = Outcome(0, 2000, status_code=503)
LATE = Outcome(0, 2001, status_code=200)
TIMED_OUT = Outcome(1000, 10_000, error="timed out after 10 s while waiting for the answer")
REFUSED = Outcome(0, 5, error="connection refused")
CUT = Outcome(0, 9000, error="the connection was closed without an answer")


def after(*outcomes: Outcome, lane: int = 1) -> Standing:
    standing = Standing()
    for outcome in outcomes:
        standing.record(lane, HOST, outcome)
    return standing


def of(standing: Standing, lane: int = 1) -> tuple[bool | None, bool]:
    """Return whether a lane is slow, and whether it may have several in flight."""
    return standing.is_slow(lane), standing.answers(lane)


@pytest.mark.parametrize(
    ("outcomes", "slow", "several"),
    [
        ([], None, False),
        ([QUICK], False, True),
        ([LATE], True, True),
        ([TIMED_OUT], True, False),
        ([REFUSED], None, False),
        ([QUICK, REFUSED], False, True),
        ([LATE, REFUSED], True, True),
        ([QUICK, LATE], True, True),
        ([QUICK, TIMED_OUT], True, False),
        ([TIMED_OUT, QUICK], True, True),
        ([TIMED_OUT, LATE], True, True),
        ([CUT], True, False),
        ([QUICK, CUT], True, True),
        ([TIMED_OUT, CUT], True, False),
        ([LATE, *[QUICK] * (QUICK_ANSWERS - 1)], True, True),
        ([LATE, *[QUICK] * QUICK_ANSWERS], False, True),
        ([TIMED_OUT, *[QUICK] * (QUICK_ANSWERS - 1)], True, True),
        ([TIMED_OUT, *[QUICK] * QUICK_ANSWERS], False, True),
        ([LATE, *[QUICK] * 9, LATE, *[QUICK] * 9], True, True),
        ([LATE, *[QUICK] * 5, REFUSED, *[QUICK] * 5], False, True),
        ([LATE, *[QUICK] * 5, CUT, *[QUICK] * 9], True, True),
    ],
)
def test_what_a_lane_is(outcomes: Sequence[Outcome], slow: bool | None, several: bool) -> None:
    """Slow after more than two seconds, or a time-out, until ten answers in a row came sooner; several after an answer."""
    assert of(after(*outcomes)) == (slow, several)


def test_what_this_process_stood_still_is_not_the_receivers() -> None:
    """An answer that was read late, because nobody could read it, did not come late."""
    read_late = Outcome(0, 9000, status_code=200, stalled_ms=7000)
    assert of(after(read_late)) == (False, True)
    assert of(after(Outcome(0, 9001, status_code=200, stalled_ms=7000))) == (True, True)


def test_a_host_is_what_its_last_attempts_were() -> None:
    """Of all lanes of one organization there; and one that has timed out is not unknown."""
    standing = after(QUICK)
    assert (standing.is_slow_host(HOST), standing.is_slow_host(("other", HOST[1]))) == (False, None)
    standing.record(2, HOST, LATE)
    assert (standing.is_slow_host(HOST), of(standing)) == (True, (False, True))
    for lane in range(QUICK_ANSWERS):
        assert standing.is_slow_host(HOST)
        standing.record(10 + lane, HOST, QUICK)
    assert standing.is_slow_host(HOST) is False
    for outcome in (TIMED_OUT, CUT):
        assert after(outcome).is_slow_host(HOST)
    assert after(REFUSED).is_slow_host(HOST) is None


def test_operators_read_what_has_one_at_a_time() -> None:
    """Destinations of lanes that have timed out and not answered since, with since when the first one has."""
    standing = after(TIMED_OUT, Outcome(50_000, 10_000, error="timed out after 10 s"))
    standing.record(2, HOST, Outcome(60_000, 10_000, error="timed out after 10 s"))
    assert standing.limited() == {"acme": {"http://h:80": 11_000}}
    standing.record(1, HOST, LATE)
    assert standing.limited() == {"acme": {"http://h:80": 70_000}}
    standing.record(2, HOST, CUT)
    assert standing.limited() != {}
    standing.forget()
    assert (standing.limited(), of(standing, 2)) == ({}, (True, False))


def test_what_others_limit_is_slow() -> None:
    """As hosts: nothing is known of their lanes, and nothing is limited here."""
    standing = Standing()
    standing.begin_with({"acme": {"http://h:80": 1}})
    assert (standing.is_slow_host(HOST), of(standing), standing.limited()) == (True, (None, False), {})


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten; many lanes make no host forgotten."""
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    standing = Standing()
    for lane in range(5):
        standing.record(lane, HOST, TIMED_OUT)
    assert [of(standing, lane)[0] for lane in range(5)] == [None, None, True, True, True]
    assert standing.is_slow_host(HOST)
    assert len(standing._limited) == 3
