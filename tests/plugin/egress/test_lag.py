from __future__ import annotations

import asyncio
import time

import pytest

from flowactions_plugin.egress.attempt import Aborted, Outcome, Request, Response
from flowactions_plugin.egress.lag import TICK_SECONDS, LagMeter
from flowactions_plugin.egress.sender import Sender
from tests.sending import Message, validate


async def test_the_meter_counts_stalls_only() -> None:
    """Not the loop's ordinary work; outside its context it measures nothing."""
    now = 0.0
    meter = LagMeter(lambda: now)
    now += 100
    assert meter.lost() == 0
    with meter:
        now += TICK_SECONDS + 0.05
        assert meter.lost() == 0
        now += 5
        assert meter.lost() == pytest.approx(5.05)
        now += 0.01
        assert meter.lost() == pytest.approx(5.05)
        assert [meter.pop_longest(), meter.longest()] == [pytest.approx(5.05), 0]
    now += 100
    assert meter.lost() == pytest.approx(5.05)
    assert meter.running() == pytest.approx(now - 5.05)


async def test_what_was_lost_before_an_attempt_excuses_nothing() -> None:
    """Only what is lost while it lasts, from a tenth of its deadline on, and only as long as that is forgiven."""
    now, lost = 0.0, 0.0

    class Stands:
        async def send(self, request: Request) -> Response:
            nonlocal now
            now += TICK_SECONDS + lost
            await asyncio.Event().wait()
            raise AssertionError

        async def aclose(self) -> None: ...

    with LagMeter(lambda: now) as lag:
        sender = Sender(Stands(), validate, lambda: 0.0, lambda: 0.0, lag, deadline_seconds=0.02)
        now += 1000
        for each, forgives, kind in ((0.0, True, Outcome), (0.1, True, Aborted), (0.1, False, Outcome)):
            lost = each
            lag._tick()
            found = await sender.send(Message(), None, forgives=forgives)
            assert isinstance(found, kind)
            if isinstance(found, Outcome):
                assert found.error == "timed out after 0.02 s while resolving the name"


async def test_what_has_arrived_during_a_stall_is_read_although_the_deadline_has_passed() -> None:
    """The event loop runs timers before it reads: after a stall, they wait for it."""

    class Late:
        async def send(self, request: Request) -> Response:
            await asyncio.sleep(0)
            time.sleep(2)  # noqa: ASYNC251  that is the fault
            await asyncio.sleep(0.001)
            return Response(200, {}, b"")

        async def aclose(self) -> None: ...

    with LagMeter(time.monotonic) as lag:
        sender = Sender(Late(), validate, lambda: 0.0, lambda: 0.0, lag, deadline_seconds=1)
        found = await sender.send(Message(), None)
        assert isinstance(found, Outcome)
        assert (found.status_code, found.error) == (200, None)
        assert found.stalled_ms > 1000
        assert lag.deadlines == set()
