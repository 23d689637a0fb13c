"""The rules of connections, without any."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.reuse import Reuse


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


@pytest.mark.parametrize(
    ("rested", "answered", "before", "now"),
    list(product([True, False], [True, False], [None, 1, 500], [None, 1, 500, 501])),
)
def test_a_request_goes_out_again_only_if_nothing_of_it_can_have_been_read(
    rested: bool, answered: bool, before: int | None, now: int | None
) -> None:
    """Idle before, not one byte back, and the kernel knows that none was acknowledged."""
    reuse = used() if rested else Reuse()
    reuse.begin()
    reuse.wrote()
    if answered:
        reuse.received()
    reuse.lost()
    assert reuse.may_repeat(before, now) is (rested and not answered and before is not None and before == now)


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
