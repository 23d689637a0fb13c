"""The rules by which a connection is used again, without a network."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from itertools import product
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.attempt import Progress
from flowactions_plugin.egress.connection import WRITE_BYTES, ClosedKept, Connection
from flowactions_plugin.egress.pool import LONGEST_IDLE_SECONDS, Pool, idle_seconds
from flowactions_plugin.errors import SendFailed
from tests.recorder import OK

LARGE = b"x" * (WRITE_BYTES + 1)


class Wire:
    """What the event loop would connect it to: takes what is written, and nothing of a large body."""

    is_closed = False

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_closed = True


class Driven:
    """A connection that a test drives in the place of the event loop."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.connection = Connection("key", "where", Pool(1, lambda: 0.0))
        self.connection.connection_made(cast("Any", self.wire))

    async def begin(self, body: bytes = b"") -> asyncio.Task[Any]:
        """Send a request; a large one is not written to its end."""
        if len(body) > WRITE_BYTES:
            self.connection.pause_writing()
        request = self.connection.request(b"POST / HTTP/1.1\r\n\r\n", body, Progress(), head_only=False)
        task = asyncio.create_task(request)
        await asyncio.sleep(0)
        return task

    def receive(self, data: bytes) -> None:
        """Have bytes arrive."""
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def use(self, *, clean: bool = True, written: bool = True) -> None:
        """Make one request, which is answered."""
        task = await self.begin(b"" if written else LARGE)
        self.receive(OK if clean else OK + b"surplus")
        assert (await task).status_code == 200


@pytest.mark.parametrize(("clean", "written"), list(product([True, False], repeat=2)))
async def test_only_what_was_read_and_written_to_the_end_is_used_again(clean: bool, written: bool) -> None:
    """A request that was answered before it was sent whole leaves a rest that the next one would follow."""
    driven = Driven()
    await driven.use(clean=clean, written=written)
    assert driven.connection.may_begin is (clean and written)
    assert driven.wire.is_closed is not driven.connection.may_begin


async def test_what_comes_unasked_ends_it() -> None:
    """Before the first request, and after one."""
    for used in (False, True):
        driven = Driven()
        if used:
            await driven.use()
        assert driven.connection.may_begin
        driven.receive(OK)
        assert not driven.connection.may_begin
        assert driven.wire.is_closed


async def test_what_is_lost_stays_lost() -> None:
    """Nothing that comes later makes a connection usable again."""
    driven = Driven()
    await driven.use()
    task = await driven.begin()
    driven.connection.close()
    driven.receive(OK)
    assert not driven.connection.may_begin
    await task
    driven.connection.connection_lost(None)
    assert not driven.connection.may_begin
    with pytest.raises(SendFailed):
        await (await driven.begin())


async def test_one_that_was_lost_as_it_was_opened_has_no_socket_any_more() -> None:
    """Its request fails like any other."""
    driven = Driven()
    closed = socket.socket()
    closed.close()
    driven.connection.connection_lost(None)
    driven.connection.attach(closed)
    with pytest.raises(SendFailed, match="closed the connection without an answer"):
        await (await driven.begin())


ENDS: list[tuple[Exception | None, bool, bool]] = [
    # how it ended, whether a small request goes out again, and whether its path was lost
    (None, True, False),
    (ConnectionResetError(errno.ECONNRESET, ""), True, False),
    (BrokenPipeError(errno.EPIPE, ""), True, False),
    (ssl.SSLEOFError(), True, False),
    (TimeoutError(errno.ETIMEDOUT, ""), True, True),
    (OSError(errno.EHOSTUNREACH, ""), True, True),
    (OSError(errno.ENETUNREACH, ""), True, True),
    (ssl.SSLError(1, "bad record mac"), False, False),
    (OSError(errno.EIO, ""), False, False),
]


@pytest.mark.parametrize(("end", "again", "lost"), ENDS)
async def test_a_request_goes_out_again_only_if_a_kept_connection_ended_before_any_byte(
    end: Exception | None, again: bool, lost: bool
) -> None:
    """It had answered before, not one byte came back, and the other side has closed it or no longer hears of it."""
    both, begun = [True, False], [b"", b"H", b"HTTP/1.1 100 Continue\r\n\r\n"]
    for kept, answered, closed_here, large in product(both, begun, both, both):
        driven = Driven()
        if kept:
            await driven.use()
        task = await driven.begin(LARGE if large else b"")
        if answered:
            driven.receive(answered)
        if closed_here:
            driven.connection.close()
        driven.connection.connection_lost(end)
        with pytest.raises(SendFailed) as failed:
            await task
        goes = kept and not answered and not closed_here and again and not (lost and large)
        assert isinstance(failed.value, ClosedKept) is goes
        assert getattr(failed.value, "is_lost", False) is (goes and lost)
        assert not driven.connection.may_begin


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"", 30),
        (b"content-length: 0\r\nx-keep-alive: timeout=9\r\n", 30),
        (b"KEEP-ALIVE:timeout=5,max=100\r\n", 4),
        (b'keep-alive: max=100; Timeout = "7"\r\n', 6),
        (b"keep-alive: timeout=61\r\n", 60),
        (b"keep-alive: timeout=2\r\n", 1),
        (b"keep-alive: timeout=1\r\n", 0),
        (b"keep-alive: timeout=0000000000000000000000000000005\r\n", 4),
        (b"keep-alive: timeout=5, max=0\r\n", 0),
        (b"keep-alive: max=00\r\n", 0),
        (b"keep-alive: timeout=9\r\nkeep-alive: timeout=4\r\n", 3),
        (b"keep-alive: timeout=9\r\nkeep-alive: max=0\r\n", 0),
        # What is no number is as if it were not there; what is above every limit is the limit.
        (b"keep-alive: timeout=" + b"9" * 60_000 + b"\r\n", 60),
        (b"keep-alive: timeout=-5\r\n", 30),
        (b"keep-alive: timeout=\xb2\xd9\xa5\r\n", 30),
        (b"keep-alive: notimeout=9, xmax=0\r\n", 30),
        (b"keep-alive: 300\r\n", 30),
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
        now = 0.0
        pool = Pool(1, lambda: now)

        def keeps(key: str = "a") -> bool:
            return pool.keeps(key)

        pool.closed_early("a")
        assert keeps()
        now = 599
        pool.closed_early("a")
        assert [keeps(), keeps("b")] == [False, True]
        now = 599 + 599
        assert not keeps()
        now = 599 + 600
        assert keeps()
        pool.closed_early("a")
        assert keeps()
        for now in (599 + 601, 599 + 602):  # noqa: B007  the pool's clock
            pool.closed_early("a")
        now = 599 + 602 + 599
        assert not keeps()

    def test_the_number_of_destinations_is_bounded(self) -> None:
        """Those where it happened last are known."""
        pool = Pool(1, lambda: 0.0)
        for number in range(4097):
            for _ in range(2):
                pool.closed_early(str(number))
        assert [pool.keeps(str(number)) for number in (0, 1, 4096)] == [True, False, False]


EVENTS = ["begin", "begin large", "clean", "unclean", "stray", "end", "close"]


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_no_order_of_events_makes_a_spent_connection_usable(events: list[str]) -> None:
    """Once it may not be used, it may never be used; unless it is busy, whose end decides."""

    async def drive() -> None:
        driven, task, spent, at_end = Driven(), None, False, False
        for event in events:
            connection = driven.connection
            if event.startswith("begin"):
                if not connection.may_begin:
                    continue
                task = await driven.begin(LARGE if event == "begin large" else b"")
            elif event == "end":
                at_end = True
                connection.eof_received()
            elif event == "close":
                connection.close()
            elif not at_end:  # after its end, nothing comes any more
                driven.receive({"clean": OK, "unclean": OK + b"x", "stray": b"x"}[event])
                await asyncio.sleep(0)
            is_busy = task is not None and not task.done()
            spent = spent or (not is_busy and not connection.may_begin)
            assert not (spent and connection.may_begin)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, SendFailed):
                await task

    asyncio.run(drive())
