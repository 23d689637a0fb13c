"""Kept connections: how long they are used, and requests that go out again because the other side closed one (§4.5)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowactions_plugin.egress import pool as pool_module
from flowactions_plugin.egress.attempt import CLOSED_KEPT, SENT_AGAIN, Aborted, Outcome
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.pool import LIFETIME_SECONDS, WINDOW_SECONDS
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from tests.authority import inner_authority
from tests.closing import UNREAD, closing
from tests.loopback import listening
from tests.loops import LOOPS, Loop
from tests.plugin.egress.test_connections import Counting
from tests.proxying import pumped
from tests.recorder import OK
from tests.sending import Deadlines, Message, validate
from tests.waiting import until

AGAIN = (CLOSED_KEPT, SENT_AGAIN)


class Sending:
    """A sender over the plugin's own transport, and the clock by which connections age.

    Attributes:
        now: what the clock says.
        deadlines: of its attempts.
    """

    def __init__(self, proxy: str | None, authority: str | None) -> None:
        self.now, self.deadlines = 1000.0, Deadlines()
        guard = EgressGuard(development=True, resolve=Resolver(1))
        transport = OutboundTransport(guard, 100, proxy, authority, lambda: self.now)
        self._sender = Sender(transport, validate, time.time, time.monotonic, self.deadlines)
        self.aclose = self._sender.aclose

    async def send(self, url: str, body: bytes = b"1.") -> Outcome:
        """Make one attempt."""
        outcome = await self._sender.send(Message(url=url, body=body), None)
        assert isinstance(outcome, Outcome)
        return outcome

    async def send_aborted(self, url: str) -> Aborted:
        """Make one try that is no attempt."""
        outcome = await self._sender.send(Message(url=url, body=b"1."), None)
        assert isinstance(outcome, Aborted)
        return outcome


@asynccontextmanager
async def sending(proxy: str | None = None, authority: str | None = None) -> AsyncIterator[Sending]:
    made = Sending(proxy, authority)
    try:
        yield made
    finally:
        await made.aclose()


class TestClosedByTheOtherSide:
    """The other side closes a kept connection as a request goes out on it."""

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize(
        ("tls", "end"),
        [
            (False, UNREAD),
            (False, "close"),
            (False, "shut down"),
            (False, "reset"),
            (True, UNREAD),
            (True, "close"),
            (True, "reset"),
            (True, "close_notify"),
        ],
    )
    def test_the_request_goes_out_again_and_after_the_second_time_connections_are_fresh(
        self, loop: Loop, tls: bool, end: str, tmp_path: Path
    ) -> None:
        """Each row is delivered by its only attempt; for ten minutes after the second time, none is sent twice."""
        authority, context = inner_authority(tmp_path) if tls else (None, None)

        async def attempts(url: str) -> list[tuple[int | None, tuple[str, ...]]]:
            found = []
            async with sending(authority=authority) as sender:
                for number in range(9):
                    if number == 6:
                        sender.now += WINDOW_SECONDS
                    outcome = await sender.send(url, b"%d." % number)
                    found.append((outcome.status_code, outcome.notes))
            return found

        with closing(end, context) as receiver, asyncio.Runner(loop_factory=loop) as runner:
            found = runner.run(attempts(receiver.url))
        twice = {1, 2, 7, 8}
        assert found == [(200, AGAIN if number in twice else ()) for number in range(9)]
        assert receiver.connections == 9
        read_twice = set() if end == UNREAD else twice
        assert receiver.bodies == {b"%d." % number: 1 + (number in read_twice) for number in range(9)}

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("end", [UNREAD, "close"])
    def test_a_large_body_goes_out_again_whole(self, loop: Loop, tls: bool, end: str, tmp_path: Path) -> None:
        """However much of it was sent before."""
        authority, context = inner_authority(tmp_path) if tls else (None, None)
        body = b"x" * 3_000_000 + b"."

        async def attempt(url: str) -> Outcome:
            async with sending(authority=authority) as sender:
                await sender.send(url)
                return await sender.send(url, body)

        with closing(end, context) as receiver, asyncio.Runner(loop_factory=loop) as runner:
            outcome = runner.run(attempt(receiver.url))
        assert (outcome.status_code, outcome.notes) == (200, AGAIN)
        assert receiver.bodies[body] == (1 if end == UNREAD else 2)

    @pytest.mark.parametrize("loop", LOOPS)
    def test_a_large_body_that_is_not_read_does_not_hold_the_end_up(self, loop: Loop) -> None:
        """The other side ends its direction and reads nothing more: what is left of the body is not waited for."""
        connections = 0
        again = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            if connections == 2:
                again.set()
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2 if connections == 1 else len(body))
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            writer.write_eof()
            await again.wait()

        async def attempt() -> Outcome:
            async with listening(serve) as port, sending() as sender:
                await sender.send(f"http://127.0.0.1:{port}/")
                return await sender.send(f"http://127.0.0.1:{port}/", body)

        body = b"x" * 30_000_000
        with asyncio.Runner(loop_factory=loop) as runner:
            outcome = runner.run(attempt())
        assert (outcome.status_code, outcome.notes) == (200, AGAIN)

    @pytest.mark.parametrize("way", ["forwarded", "tunnel"])
    async def test_through_a_proxy_the_same_holds(self, way: str, tmp_path: Path) -> None:
        """Whether the connection to the proxy is used for many destinations' requests, or as a tunnel to one."""
        authority, context = inner_authority(tmp_path) if way == "tunnel" else (None, None)
        with closing("close", context) as receiver:
            port = int(receiver.url.rpartition(":")[2].strip("/"))

            async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if way == "tunnel":
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                there, back = await asyncio.open_connection("127.0.0.1", port)
                async with asyncio.TaskGroup() as both:
                    both.create_task(pumped(reader, back))
                    both.create_task(pumped(there, writer))

            async with (
                listening(connect) as through,
                sending(f"http://127.0.0.1:{through}", authority) as sender,
            ):
                found = [await sender.send(receiver.url, b"%d." % number) for number in range(5)]
        assert [each.status_code for each in found] == [200] * 5
        relayed = (THROUGH_PROXY,) if way == "forwarded" else ()
        assert [each.notes for each in found] == [(*each, *relayed) for each in [(), AGAIN, AGAIN, (), ()]]

    async def test_it_goes_out_again_on_a_fresh_connection_although_others_are_idle(self) -> None:
        """The other side may have closed those, too."""
        with closing("close", at_first=3) as receiver:
            async with sending() as sender:
                await asyncio.gather(*(sender.send(receiver.url, b"%d." % number) for number in range(3)))
                assert (await sender.send(receiver.url, b"again.")).notes == AGAIN
        assert (receiver.connections, receiver.bodies[b"again."]) == (4, 2)


class TestNotSentAgain:
    """Requests that fail, and are an attempt's only one."""

    async def test_one_that_was_interrupted_by_closing_the_connections(self) -> None:
        """A worker that stops sends nothing more; this is no attempt."""
        arrived = asyncio.Event()
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            arrived.set()
            await reader.read()

        async with listening(serve) as port, sending() as sender:
            url = f"http://127.0.0.1:{port}/"
            await sender.send(url, b"")
            second = asyncio.create_task(sender.send_aborted(url))
            await arrived.wait()
            await sender.aclose()
            given_back = await second
            assert (given_back.cause, given_back.waits) == ("stopped", False)
        assert connections == 1

    async def test_one_that_went_out_again_already(self) -> None:
        """Once is all: a receiver that closes the fresh connection, too, has had it twice, which the attempt says."""
        bodies: Counter[bytes] = Counter()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(2)
                bodies[body] += 1
                if body != b"1.":
                    return
                writer.write(OK)

        async with listening(serve) as port, sending() as sender:
            url = f"http://127.0.0.1:{port}/"
            await sender.send(url)
            outcome = await sender.send(url, b"2.")
        assert outcome.error == f"127.0.0.1:{port} closed the connection without an answer"
        assert (outcome.notes, bodies) == (AGAIN, {b"1.": 1, b"2.": 2})

    async def test_one_for_which_there_is_no_fresh_connection(self) -> None:
        """The attempt says that the request may have been read, and does not say that it went out twice."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            server.close()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with sending() as sender:
            await sender.send(f"http://127.0.0.1:{port}/")
            outcome = await sender.send(f"http://127.0.0.1:{port}/")
        assert (outcome.error or "").startswith(f"cannot connect to 127.0.0.1:{port}")
        assert outcome.notes == (CLOSED_KEPT,)


class TestAge:
    """How long a connection is used, which is checked when a request wants one."""

    async def test_an_idle_one_is_used_as_long_as_the_last_answer_says(self) -> None:
        """A second less than the receiver announces, and half a minute after an answer that announces nothing."""
        counting, said = Counting(), b"keep-alive: timeout=6\r\n"
        uses = ((0, 1, said), (4.99, 1, said), (5, 2, said), (4.99, 2, b""), (29.99, 2, b""), (30, 3, b""))
        async with listening(counting.serve) as port, sending() as sender:
            for idle, connections, counting.headers in uses:
                sender.now += idle
                await sender.send(f"http://127.0.0.1:{port}/")
                assert counting.connections == connections

    async def test_one_that_is_always_busy_is_used_for_a_minute(self) -> None:
        """So a name's new address is used from then on."""
        counting = Counting()
        async with listening(counting.serve) as port, sending() as sender:
            for second in range(int(LIFETIME_SECONDS) + 1):
                assert counting.connections == (1 if second else 0)
                await sender.send(f"http://127.0.0.1:{port}/")
                sender.now += 1
            assert counting.connections == 2

    async def test_those_that_are_too_old_are_closed_after_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The receiver need not keep them, although no request wants one."""
        monkeypatch.setattr(pool_module, "SWEEP_SECONDS", 0.01)
        counting = Counting()
        async with listening(counting.serve) as port, sending() as sender:
            await sender.send(f"http://127.0.0.1:{port}/")
            await asyncio.sleep(0.05)
            assert counting.open == 1
            sender.now += 30
            await until(lambda: counting.open == 0)
