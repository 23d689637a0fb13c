"""The rules of connections, without any."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.reuse import (
    DESTINATIONS,
    LONGEST_IDLE_SECONDS,
    EarlyClosers,
    Reuse,
    idle_seconds,
)


def used(*, clean: bool = True, written: bool = True) -> Reuse:
    """Make the state of a connection after one request."""
    reuse = Reuse()
    reuse.begin()
    if written:
        reuse.wrote()
    reuse.received()
    reuse.ended(clean=clean)
    return reuse


@pytest.mark.parametrize(("clean", "written"), list(product([True, False], repeat=2)))
def test_only_what_was_read_and_written_to_the_end_is_used_again(clean: bool, written: bool) -> None:
    """A request that was answered before it was sent whole leaves a rest that the next one would follow."""
    assert used(clean=clean, written=written).may_begin is (clean and written)


def test_what_comes_unasked_ends_it() -> None:
    """Before the first request, between two, and after the last."""
    for reuse in (Reuse(), used()):
        assert reuse.may_begin
        reuse.received()
        assert not reuse.may_begin


def test_what_is_lost_stays_lost() -> None:
    """Nothing that is told later makes a connection usable again."""
    reuse = used()
    reuse.begin()
    reuse.lost()
    reuse.wrote()
    reuse.received()
    reuse.ended(clean=True)
    assert not reuse.may_begin


@pytest.mark.parametrize(("kept", "answered", "by_peer"), list(product([True, False], repeat=3)))
def test_a_request_goes_out_again_only_if_a_kept_connection_was_closed_before_any_byte(
    kept: bool, answered: bool, by_peer: bool
) -> None:
    """All three hold: it had answered before, not one byte came back, and the other side has closed it."""
    reuse = used() if kept else Reuse()
    reuse.begin()
    reuse.wrote()
    if answered:
        reuse.received()
    assert reuse.may_repeat(by_peer=by_peer) is (kept and not answered and by_peer)
    reuse.lost()
    assert not reuse.may_begin


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"", 30),
        (b"content-length: 0\r\nx-keep-alive: timeout=9\r\n", 30),
        (b"Keep-Alive: timeout=5\r\n", 4),
        (b"KEEP-ALIVE:timeout=5,max=100\r\n", 4),
        (b'keep-alive: max=100; Timeout = "7"\r\n', 6),
        (b"keep-alive: timeout=61\r\n", 60),
        (b"keep-alive: timeout=62\r\n", 60),
        (b"keep-alive: timeout=2\r\n", 1),
        (b"keep-alive: timeout=1\r\n", 0),
        (b"keep-alive: timeout=0\r\n", 0),
        (b"keep-alive: timeout=0000000000000000000000000000005\r\n", 4),
        (b"keep-alive: timeout=5, max=0\r\n", 0),
        (b"keep-alive: max=00\r\n", 0),
        (b"keep-alive: max=1\r\n", 30),
        (b"keep-alive: timeout=9\r\nkeep-alive: timeout=4\r\n", 3),
        (b"keep-alive: timeout=9\r\nkeep-alive: max=0\r\n", 0),
        # What is no number is as if it were not there; what is above every limit is the limit.
        (b"keep-alive: timeout=" + b"9" * 60_000 + b"\r\n", 60),
        (b"keep-alive: timeout=-5\r\n", 30),
        (b"keep-alive: timeout=five\r\n", 30),
        (b"keep-alive: timeout=\r\n", 30),
        (b"keep-alive: timeout=\xb2\xd9\xa5\r\n", 30),
        (b"keep-alive: notimeout=9, xmax=0\r\n", 30),
        (b"keep-alive: 300\r\n", 30),
        (b"keep-alive:\r\n", 30),
    ],
)
def test_how_long_a_connection_may_be_idle_is_what_the_response_says_within_limits(
    headers: bytes, seconds: float
) -> None:
    """A second less than ``Keep-Alive`` announces (§4.5)."""
    assert idle_seconds(HEAD + headers + b"\r\n") == seconds


@given(st.binary(max_size=200))
def test_whatever_keep_alive_says_is_within_the_limits(value: bytes) -> None:
    """It comes from outside."""
    assert 0 <= idle_seconds(HEAD + b"Keep-Alive: timeout=" + value + b"\r\n\r\n") <= LONGEST_IDLE_SECONDS


class TestEarlyClosers:
    """Destinations that get a fresh connection for each request."""

    def test_twice_within_ten_minutes_makes_one_for_ten_minutes(self) -> None:
        """From the second time on; each further time begins the ten minutes anew."""
        known = EarlyClosers()
        known.record("a", 0)
        assert not known.includes("a", 0)
        known.record("a", 599)
        assert known.includes("a", 599)
        assert known.includes("a", 599 + 599)
        assert not known.includes("a", 599 + 600)
        assert not known.includes("b", 599)
        known.record("a", 599 + 600)
        assert not known.includes("a", 599 + 600)
        known.record("a", 599 + 601)
        known.record("a", 599 + 602)
        assert known.includes("a", 599 + 602 + 599)

    def test_the_number_of_destinations_is_bounded(self) -> None:
        """Those where it happened last are known."""
        known = EarlyClosers()
        for number in range(DESTINATIONS + 1):
            for _ in range(2):
                known.record(str(number), 0)
        assert len(known._seen) == DESTINATIONS
        assert [known.includes(str(number), 0) for number in (0, 1, DESTINATIONS)] == [False, True, True]


@given(st.lists(st.sampled_from(["begin", "wrote", "received", "clean", "unclean", "lost"]), max_size=30))
def test_no_order_of_events_makes_a_spent_connection_usable(events: list[str]) -> None:
    """Once it may not be used, it may never be used; unless it is busy, whose end decides."""
    reuse, spent = Reuse(), False
    busy = False
    for event in events:
        if event == "begin":
            if not reuse.may_begin:
                continue
            reuse.begin()
            busy = True
        elif event in {"clean", "unclean"}:
            reuse.ended(clean=event == "clean")
            spent = spent or (busy and not reuse.may_begin)
            busy = False
        else:
            spent = spent or event == "lost" or (event == "received" and not busy)
            getattr(reuse, event)()
        assert not (spent and reuse.may_begin)
