"""Connections: how they are dialled, kept, bounded and given up; each against a real server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowactions_plugin.egress.attempt import Progress, Request, Response
from flowactions_plugin.egress.connection import Connection
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.dialer import Dialer, Endpoint, interleaved
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.outbound import outbound
from flowactions_plugin.egress.pool import Pool, most_connections
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.errors import EgressRefused, SendFailed
from flowactions_plugin.settings.model import read_settings
from tests.authority import inner_authority
from tests.loopback import black_hole, listening
from tests.recorder import OK, Recorder
from tests.waiting import until


@asynccontextmanager
async def a_transport(
    *addresses: str, limit: int = 100, authorities: str | None = None
) -> AsyncIterator[OutboundTransport]:
    """Run a transport for which every name has these addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    guard = EgressGuard(development=True, resolve=resolve)
    made = OutboundTransport(guard, limit, authorities=authorities)
    try:
        yield made
    finally:
        await made.aclose()


async def post(transport: OutboundTransport, url: str, body: bytes = b"{}", method: str = "POST") -> Response:
    """Send a request, within a few seconds."""
    async with asyncio.timeout(300):
        return await transport.send(Request(method, parse_destination(url), (), body, Progress()))


class Counting:
    """A server that counts its connections and answers every request.

    Args:
        headers: of its answers.
    """

    def __init__(self, *headers: str) -> None:
        self.headers = "".join(f"{each}\r\n" for each in headers).encode()
        self.connections = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                left = size
                while left:
                    left -= len(await reader.read(min(left, 65536)))
                length = len(str(size))
                writer.write(
                    b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%d" % (self.headers, length, size)
                )
                await writer.drain()
        finally:
            self.open -= 1


class Kept(Pool):
    """Keeps no connection, and counts how often one was given back and closed."""

    def __init__(self) -> None:
        super().__init__(1, time.monotonic)
        self.rests = self.ends = 0

    def released(self, connection: Connection, head: bytes) -> None:
        self.rests += 1

    def closed(self, connection: Connection) -> None:
        self.ends += 1


class TestDialling:
    """All addresses of a name are checked; then they are dialled one after the other, without long waits (RFC 8305)."""

    async def test_an_address_that_does_not_answer_costs_a_quarter_of_a_second(self) -> None:
        """The next one is dialled beside it; the slower connection is given up."""
        counting = Counting()
        with black_hole("127.0.0.2") as port:
            async with (
                listening(counting.serve, port=port),
                a_transport("127.0.0.2", "127.0.0.1") as transport,
            ):
                started = time.monotonic()
                assert (await post(transport, f"http://two.example:{port}/")).status_code == 200
                assert time.monotonic() - started >= 0.25
        assert counting.connections == 1

    async def test_an_address_that_refuses_costs_nothing(self) -> None:
        """The next one is dialled at once."""
        counting = Counting()
        async with (
            listening(counting.serve) as port,
            a_transport("127.0.0.2", "127.0.0.3", "127.0.0.1") as transport,
        ):
            assert (await post(transport, f"http://three.example:{port}/")).status_code == 200
            assert (await post(transport, f"http://three.example:{port}/")).status_code == 200
        assert counting.connections == 1

    async def test_when_all_refuse_the_reason_is_one_of_theirs(self) -> None:
        """In words, with the destination's name."""
        async with a_transport("127.0.0.2", "127.0.0.3") as transport:
            with pytest.raises(
                SendFailed, match=r"^cannot connect to two\.example:9: it refused the connection$"
            ):
                await post(transport, "http://two.example:9/")

    async def test_one_forbidden_address_forbids_all_before_any_is_dialled(self) -> None:
        """Whatever its place among them."""
        for addresses in (("127.0.0.1", "169.254.169.254"), ("169.254.169.254", "127.0.0.1")):
            counting = Counting()
            async with listening(counting.serve) as port, a_transport(*addresses) as transport:
                with pytest.raises(EgressRefused, match=r"169\.254\.169\.254"):
                    await post(transport, f"http://two.example:{port}/")
            assert counting.connections == 0

    async def test_a_shortage_of_our_own_is_named_before_what_other_addresses_said(self) -> None:
        """So that it is no failed attempt: the descriptors are used up after the first address has refused."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)

        checked: list[str] = []

        class UsedUp(EgressGuard):
            def check_address(self, text: str, host: str = "") -> None:
                super().check_address(text, host)
                checked.append(text)
                if checked == ["127.0.0.2", "127.0.0.3"] * 2:  # each before all are dialled, and as it is
                    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))

        async def resolve(host: str, port: int) -> Sequence[str]:
            return "127.0.0.2", "127.0.0.3"

        dialer = Dialer(UsedUp(development=True, resolve=resolve))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                await dialer.dial(Endpoint("two.example", 9, tls=False), asyncio.Protocol, Progress())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_families_take_turns(self) -> None:
        """In the order that they came, the family of the first one first."""
        assert interleaved(["::1", "::2", "10.0.0.1"]) == ["::1", "10.0.0.1", "::2"]
        assert interleaved(["10.0.0.1", "::1", "::2", "10.0.0.2"]) == ["10.0.0.1", "::1", "10.0.0.2", "::2"]
        assert interleaved(["10.0.0.1"]) == ["10.0.0.1"]


class Held(Dialer):
    """Gives its connections when the test says so, all in one moment.

    Attributes:
        go: the test sets it.
        made: the sockets that were connected.
        connected: called with each of them.
    """

    def __init__(self, *addresses: str) -> None:
        async def resolve(host: str, port: int) -> Sequence[str]:
            return addresses

        super().__init__(EgressGuard(development=True, resolve=resolve))
        self.go = asyncio.Event()
        self.made: list[socket.socket] = []
        self.connected: Callable[[], object] = lambda: None

    async def _connected(self, address: str, endpoint: Endpoint) -> socket.socket:
        made = await super()._connected(address, endpoint)
        self.made.append(made)
        await self.go.wait()
        self.connected()
        return made


class Reads(asyncio.Protocol):
    """Keeps the transport that it was given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class TestRaces:
    """Several addresses are connected to at the same moment."""

    @pytest.mark.parametrize("gives_up", [False, True])
    async def test_of_two_that_connect_at_once_one_is_closed(self, gives_up: bool) -> None:
        """The request goes out on the other one; both are closed if the attempt's time was up in this very moment."""
        counting = Counting()
        async with listening(counting.serve) as port:
            dialer, reads = Held("127.0.0.1", "127.0.0.1"), Reads()
            dialling = asyncio.create_task(
                dialer.dial(Endpoint("two.example", port, tls=False), lambda: reads, Progress())
            )
            await until(lambda: len(dialer.made) == 2)
            if gives_up:
                dialer.connected = dialling.cancel
            dialer.go.set()
            if gives_up:
                with pytest.raises(asyncio.CancelledError):
                    await dialling
                await asyncio.sleep(0)
                assert [each.fileno() for each in dialer.made] == [-1, -1]
            else:
                winner = await dialling
                await asyncio.sleep(0)
                assert [each.fileno() >= 0 for each in dialer.made] == [each is winner for each in dialer.made]
                await until(lambda: counting.connections == 2 and counting.open == 1)
                reads.transport.close()  # a closed socket stays open while uvloop's transport has it
            await until(lambda: counting.connections == 2 and counting.open == 0)


class TestPool:
    """Connections that wait for the next request."""

    async def test_the_limit_holds_over_all_destinations(self) -> None:
        """An idle connection makes room for one to elsewhere; while all are busy, requests wait for their turn."""
        busy = most = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            try:
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(2)
                    await asyncio.sleep(0.02)
                    writer.write(OK)
                    await writer.drain()
            finally:
                busy -= 1

        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(listening(serve)) for _ in range(3)]
            transport = await stack.enter_async_context(a_transport(limit=2))
            answers = await asyncio.gather(
                *(post(transport, f"http://127.0.0.1:{ports[number % 3]}/") for number in range(12))
            )
            assert [answer.status_code for answer in answers] == [200] * 12
            assert len(transport._pool._open) <= 2
        assert most <= 3  # one that was closed for another may be noticed a little later

    async def test_the_connection_that_was_idle_longest_makes_room(self) -> None:
        """So destinations that are sent to again and again keep theirs."""
        countings = [Counting() for _ in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(listening(each.serve)) for each in countings]
            transport = await stack.enter_async_context(a_transport(limit=2))
            for number in (0, 1, 0, 2, 0):
                await post(transport, f"http://127.0.0.1:{ports[number]}/")
            assert [each.connections for each in countings] == [1, 1, 1]
            await post(transport, f"http://127.0.0.1:{ports[1]}/")
        assert [each.connections for each in countings] == [1, 2, 1]

    async def test_there_may_be_more_destinations_than_slots(self) -> None:
        """Each keeps its connection: ten for each slot, and no more than half of the descriptors."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert limits[0] >= 256
        assert most_connections(5) == 50
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        try:
            assert [most_connections(slots) for slots in (5, 100, 200)] == [50, 128, 200]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        counting = Counting()
        settings = read_settings({"FLOWACTIONS_CONCURRENCY": "1", "FLOWACTIONS_DELIVERY": "continuous"})
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(listening(counting.serve)) for _ in range(8)]
            guard = EgressGuard(development=True, resolve=Resolver(1))
            transport, _ = outbound(settings, guard, None)
            assert isinstance(transport, OutboundTransport)
            for port in ports * 2:
                await post(transport, f"http://127.0.0.1:{port}/")
            await transport.aclose()
        assert counting.connections == 8

    async def test_idle_connections_give_way_where_descriptors_are_lacking(self) -> None:
        """The request that lacks one fails as ever; the next has those of all idle connections."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        counting = Counting()
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(listening(counting.serve)) for _ in range(4)]
            transport = await stack.enter_async_context(a_transport())
            for port in ports[:3]:
                await post(transport, f"http://127.0.0.1:{port}/")
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            try:
                with pytest.raises(SendFailed, match="the network failed"):
                    await post(transport, f"http://127.0.0.1:{ports[3]}/")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await until(lambda: counting.open == 0)
            assert (await post(transport, f"http://127.0.0.1:{ports[0]}/")).status_code == 200

    async def test_who_gives_up_waiting_takes_no_turn(self) -> None:
        """A request that is interrupted while it waits for a connection costs the others none."""
        release = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                await release.wait()
                writer.write(OK)
                await writer.drain()

        async with listening(serve) as port, a_transport(limit=1) as transport:
            url = f"http://127.0.0.1:{port}/"
            requests = [asyncio.create_task(post(transport, url)) for _ in range(4)]
            await asyncio.sleep(0.05)
            requests[1].cancel()
            release.set()
            await asyncio.sleep(0)
            requests[2].cancel()
            done = await asyncio.gather(*requests, return_exceptions=True)
            assert [isinstance(each, Response) for each in done] == [True, False, False, True]
            assert (await post(transport, url)).status_code == 200

    async def test_who_gives_up_as_a_connection_is_released_is_cancelled_and_no_more(self) -> None:
        """In the same round of the event loop, the release passes over it, to the next one who waits."""
        pool = Pool(1, asyncio.get_running_loop().time)
        held, *others = (Connection("key", "where", pool) for _ in range(3))
        await pool.reserve(held)
        first, second = (asyncio.create_task(pool.reserve(each)) for each in others)
        await asyncio.sleep(0)
        first.cancel()
        pool.closed(held)
        with pytest.raises(asyncio.CancelledError):
            await first
        async with asyncio.timeout(300):
            await second

    async def test_a_place_is_given_back_once_whenever_its_connection_ends(self) -> None:
        """While it is dialled, in its TLS handshake, before its request or after it; however often that is said."""
        pool = Pool(1, asyncio.get_running_loop().time)
        first, second, third = (Connection("key", "where", pool) for _ in range(3))
        await pool.reserve(first)
        for _ in range(3):
            pool.closed(first)
        await pool.reserve(second)
        waiting = asyncio.create_task(pool.reserve(third))
        await asyncio.sleep(0)
        assert not waiting.done()
        pool.closed(second)
        async with asyncio.timeout(300):
            await waiting

    async def test_places_are_given_back_by_receivers_that_end_connections_at_once(
        self, tmp_path: Path
    ) -> None:
        """With TLS and without it; in the end, a request gets the only place."""
        authority, context = inner_authority(tmp_path)

        async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        counting = Counting()
        async with (
            listening(ends) as clear,
            listening(ends, tls=context) as secure,
            listening(counting.serve) as port,
            a_transport(limit=1, authorities=authority) as transport,
        ):
            for url in (
                f"http://127.0.0.1:{clear}/",
                f"https://127.0.0.1:{secure}/",
                f"https://127.0.0.1:{clear}/",
            ) * 3:
                with pytest.raises(SendFailed):
                    await post(transport, url)
            assert (await post(transport, f"http://127.0.0.1:{port}/")).status_code == 200

    async def test_a_connection_that_is_dialled_as_all_are_closed_is_closed(self) -> None:
        """Its request does not go out."""
        counting = Counting()
        async with listening(counting.serve) as port, a_transport("127.0.0.1") as transport:
            transport._dialer = dialer = Held("127.0.0.1")
            sending = asyncio.create_task(post(transport, f"http://one.example:{port}/"))
            await until(lambda: len(dialer.made) == 1)
            await transport.aclose()
            dialer.go.set()
            with pytest.raises(SendFailed):
                await sending
            await until(lambda: counting.connections == 1 and counting.open == 0)

    async def test_an_attempt_that_is_interrupted_closes_its_connection(self) -> None:
        """The receiver may still answer it: not the next request."""
        connections, arrived, interrupted = 0, asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            if connections == 1:
                arrived.set()
                await interrupted.wait()
            writer.write(OK)
            await reader.read()

        async with listening(serve) as port, a_transport() as transport:
            attempt = asyncio.create_task(post(transport, f"http://127.0.0.1:{port}/"))
            await arrived.wait()
            attempt.cancel()
            await asyncio.wait({attempt})
            interrupted.set()
            assert attempt.cancelled()
            assert (await post(transport, f"http://127.0.0.1:{port}/")).body_prefix == b"ok"
        assert connections == 2

    async def test_an_attempt_that_is_interrupted_while_it_sends_leaves_no_error_behind(self) -> None:
        """Nobody waits for its response any more, so that nothing is logged of it."""
        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: said.append(context.get("exception"))
        )

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(5)

        async with listening(deaf) as port, a_transport() as transport:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await post(transport, f"http://127.0.0.1:{port}/", b"x" * 30_000_000)
            await asyncio.sleep(0.05)
        gc.collect()
        assert not [each for each in said if isinstance(each, SendFailed)]

    async def test_what_was_answered_before_it_was_read_ends_the_connection(self) -> None:
        """A receiver that refuses a large body at once is understood, and its connection is not used again."""
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(5)

        async with listening(serve) as port, a_transport() as transport:
            for number in (1, 2):
                answer = await post(transport, f"http://127.0.0.1:{port}/", b"x" * 30_000_000)
                assert (answer.status_code, connections) == (413, number)


async def test_an_idle_connection_that_ends_is_not_given_back_once_more() -> None:
    """From its end on, nothing may be sent on it, although it is closed only a moment later."""
    kept = Kept()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with listening(serve) as port:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection("key", "where", kept), "127.0.0.1", port
        )
        await connection.request(b"GET / HTTP/1.1\r\n\r\n", b"", Progress(), head_only=False)
        assert (kept.rests, connection.may_begin) == (1, True)
        await until(lambda: kept.ends == 1)
        assert (kept.rests, connection.may_begin) == (1, False)


async def test_who_gives_up_on_a_response_that_is_there_does_not_close_the_next_ones_connection() -> None:
    """A deadline may end just as the response is complete: by then the connection is another request's."""
    asked = b"GET / HTTP/1.1\r\n\r\n"
    counting = Counting()

    class Interrupting(Kept):
        def released(self, connection: Connection, head: bytes) -> None:
            super().released(connection, head)
            if self.rests == 1:
                first.cancel()
                others.append(asyncio.create_task(connection.request(asked, b"", Progress(), head_only=False)))

    others: list[asyncio.Task[Response]] = []
    kept = Interrupting()
    async with listening(counting.serve) as port:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection("key", "where", kept), "127.0.0.1", port
        )
        first = asyncio.create_task(connection.request(asked, b"", Progress(), head_only=False))
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await others[0]).status_code == 200
        assert (kept.rests, kept.ends) == (2, 0)
        connection.close()
        await until(lambda: kept.ends == 1)


async def test_tls_connections_are_used_again_and_bodies_of_any_size_arrive(tmp_path: Path) -> None:
    """Over TLS as without; the receiver counts the bytes."""
    authority, context = inner_authority(tmp_path)
    tls: list[ssl.SSLContext | None] = [None, context]
    for each in tls:
        counting = Counting()
        async with listening(counting.serve, tls=each) as port, a_transport(authorities=authority) as transport:
            url = f"{'https' if each else 'http'}://127.0.0.1:{port}/"
            for size in (2, 0, 65_536, 65_537, 3_000_000, 2):
                assert (await post(transport, url, b"x" * size)).body_prefix == str(size).encode()
        assert counting.connections == 1


async def test_who_gives_up_as_tls_is_made_takes_no_other_connection_along(tmp_path: Path) -> None:
    """The next connection must not get the number of a socket that the event loop still reads from."""
    authority, context = inner_authority(tmp_path)
    counting = Counting()

    class GivesUp(asyncio.Protocol):
        def connection_made(self, _transport: asyncio.BaseTransport) -> None:
            dialling.cancel()

    async with (
        listening(counting.serve, tls=context) as port,
        a_transport(authorities=authority) as transport,
    ):
        endpoint = Endpoint("127.0.0.1", port, tls=True)
        dialling = asyncio.create_task(transport._dialer.dial(endpoint, GivesUp, Progress()))
        await asyncio.wait({dialling})
        assert dialling.cancelled()
        assert (await post(transport, f"https://127.0.0.1:{port}/")).status_code == 200
        await until(lambda: counting.connections == 2 and counting.open == 1)


async def test_the_dot_of_the_root_is_no_part_of_a_certificates_name(tmp_path: Path) -> None:
    """What is verified is the name without it; the receiver is asked with it, as authored."""
    authority, context = inner_authority(tmp_path, host="dotted.example")
    receiver = Recorder()
    async with (
        listening(receiver.serve, tls=context) as port,
        a_transport("127.0.0.1", authorities=authority) as transport,
    ):
        await post(transport, f"https://dotted.example.:{port}/")
    assert receiver.requests[0].header("host") == f"dotted.example.:{port}"
