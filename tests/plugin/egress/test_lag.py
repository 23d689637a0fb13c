from __future__ import annotations

import asyncio
import time

import pytest

from flowactions_plugin.egress.attempt import Aborted, Outcome, Request, Response
from flowactions_plugin.egress.lag import TICK_SECONDS, Deadline, LagMeter
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import SendFailed
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


@pytest.mark.parametrize(
    ("gives_up", "said"),
    [(False, "timed out after 0.02 s while resolving the name"), (True, "the receiver gave up")],
)
async def test_what_was_lost_before_an_attempt_excuses_nothing(gives_up: bool, said: str) -> None:
    """Only what is lost while it lasts, from a tenth of its deadline on, and only as long as that is forgiven."""
    now, lost = 0.0, 0.0

    class Stands:
        async def send(self, request: Request) -> Response:
            nonlocal now
            now += TICK_SECONDS + lost
            if gives_up:
                raise SendFailed("the receiver gave up")
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
                assert found.error == said


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
        sender = Sender(Late(), validate, lambda: 0.0, lambda: 0.0, lag, deadline_seconds=0.1)
        found = await sender.send(Message(), None)
        assert isinstance(found, Outcome)
        assert (found.status_code, found.error) == (200, None)
        assert found.stalled_ms > 1000


async def test_deadlines_that_share_a_timer_end_their_own_blocks_and_none_early() -> None:
    """What is over before, or is cancelled by others, is not ended by its deadline."""
    clock, meter = asyncio.get_running_loop().time, LagMeter(time.monotonic)

    async def block(seconds: float, deadline: float = 0.02) -> float:
        began = clock()
        try:
            with Deadline(meter, deadline):
                await asyncio.sleep(seconds)
        except TimeoutError:
            assert clock() - began >= deadline
            return -1
        await asyncio.sleep(0.1)  # its timer passes meanwhile
        return seconds

    cancelled = asyncio.ensure_future(block(60, 60))
    asyncio.get_running_loop().call_later(0.01, cancelled.cancel)
    found = await asyncio.gather(
        block(0), block(60), block(60, 0.019), block(60, 0.06), cancelled, return_exceptions=True
    )
    assert [*found[:4]] == [0, -1, -1, -1]
    assert isinstance(found[4], asyncio.CancelledError)


async def test_a_deadline_that_passes_as_its_block_is_cancelled_does_not_hide_that() -> None:
    """A worker that stops is not told of a time-out."""
    meter = LagMeter(time.monotonic)

    async def block() -> None:
        with Deadline(meter, 0.01) as deadline:
            try:
                await asyncio.sleep(60)
            finally:
                assert deadline.expired
                task.cancel()

    task = asyncio.ensure_future(block())
    with pytest.raises(asyncio.CancelledError):
        await task
