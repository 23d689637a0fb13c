"""Kept connections whose path was lost without a word: a firewall, a NAT gateway or a balancer has forgotten them (§4.5)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from flowactions_plugin.egress.attempt import LOST_KEPT, SENT_AGAIN
from flowactions_plugin.egress.connection import WRITE_BYTES, probe_when_idle
from flowactions_plugin.egress.pool import WINDOW_SECONDS
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from tests.authority import inner_authority
from tests.loopback import listening
from tests.loops import LOOPS, Loop
from tests.plugin.egress.test_kept_connections import Sending, sending
from tests.proxying import Proxy
from tests.swallowing import Swallowing

LARGE = b"x" * (WRITE_BYTES + 1)


async def together(sender: Sending, url: str, *bodies: bytes) -> list[tuple[int | None, tuple[str, ...]]]:
    """Send requests at once; return the results."""
    found = await asyncio.gather(*(sender.send(url, body) for body in bodies))
    return [(each.status_code, each.notes) for each in found]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_that_is_not_acknowledged_goes_out_again_in_the_same_attempt(
    loop: Loop, tmp_path: Path
) -> None:
    """In clear, with TLS, and where the path to the proxy was lost: the idle siblings are not used, each body is read once."""
    authority, context = inner_authority(tmp_path)

    async def trial(*, tls: bool, proxied: bool) -> None:
        async with AsyncExitStack() as stack:
            receiver = Swallowing()
            port = await stack.enter_async_context(listening(receiver.serve, tls=context if tls else None))
            near, proxy = receiver, None
            if proxied:
                near = Swallowing(Proxy(port).serve)
                proxy = f"http://127.0.0.1:{await stack.enter_async_context(listening(near.serve))}"
            sender = await stack.enter_async_context(sending(proxy, authority))
            url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/"
            await together(sender, url, *(b"%d" % number for number in range(5)))
            assert near.connections == 5
            near.lose()
            relayed = (THROUGH_PROXY,) if proxied and not tls else ()
            bodies = [b"6", b"7", b"8"] if tls else [b"6"]
            found = await together(sender, url, *bodies)
            assert found == [(200, (LOST_KEPT, SENT_AGAIN, *relayed))] * len(bodies)
            assert await together(sender, url, b"9") == [(200, relayed)]
            assert set(receiver.bodies.values()) == {1}
            # For ten minutes, each request gets a fresh connection; then they are kept again.
            assert near.connections == 5 + len(bodies) + 1
            sender.now += WINDOW_SECONDS
            for body in (b"10", b"11"):
                await sender.send(url, body)
            assert near.connections == 5 + len(bodies) + 1 + 1

    async def trials() -> None:
        kinds = [(tls, proxied) for tls in (False, True) for proxied in (False, True)]
        await asyncio.gather(*(trial(tls=tls, proxied=proxied) for tls, proxied in kinds))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(trials())


async def test_each_request_on_a_kept_connection_has_the_bound_of_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not depend on the request before. The option is set only when its value changes."""
    told: list[int] = []
    set_option = socket.socket.setsockopt

    def listen(self: socket.socket, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            told.append(value)
        set_option(self, level, option, value)

    monkeypatch.setattr("socket.socket.setsockopt", listen)
    receiver = Swallowing()
    async with listening(receiver.serve) as port, sending() as sender:
        for body in (b"1", b"2", b"3", LARGE, LARGE, b"4"):
            await sender.send(f"http://127.0.0.1:{port}/", body)
        assert receiver.connections == 1
    assert told == [3000, 0, 3000]


class TestTimeOuts:
    """Attempts whose deadline ended without an answer, although everything was acknowledged."""

    @pytest.mark.parametrize("body", [b"2", LARGE])
    async def test_one_without_a_byte_on_a_kept_connection_ends_the_use_of_its_siblings(
        self, body: bytes
    ) -> None:
        """A proxy's own path was lost, or a balancer's: for ten minutes, each request gets a fresh connection."""
        receiver = Swallowing()
        async with listening(receiver.serve) as port, sending() as sender:
            url = f"http://127.0.0.1:{port}/"
            receiver.deadlines = sender.deadlines
            await together(sender, url, b"1", b"1", b"1")
            receiver.answers = False
            outcome = await sender.send(url, body)
            assert (outcome.error, outcome.notes) == ("timed out after 10 s while waiting for the answer", ())
            receiver.answers = True
            assert await together(sender, url, b"3", b"4") == [(200, ()), (200, ())]
            assert receiver.connections == 3 + 2
            sender.now += WINDOW_SECONDS
            for _ in range(2):
                await sender.send(url)
            assert receiver.connections == 3 + 2 + 1

    @pytest.mark.parametrize(("earlier", "first"), [(0, b""), (1, b"H")])
    async def test_others_say_nothing_about_kept_connections(self, earlier: int, first: bytes) -> None:
        """On a fresh one, or after a byte of the answer: it came over this path."""
        receiver = Swallowing()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(earlier):
                await receiver.answer_one(reader, writer)
            if receiver.connections == 1:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(first)
                await sender.deadlines.pass_now()
                await reader.read()
            while True:
                await receiver.answer_one(reader, writer)

        receiver = Swallowing(slow)
        async with listening(receiver.serve) as port, sending() as sender:
            url = f"http://127.0.0.1:{port}/"
            found = [(await sender.send(url)).status_code for _ in range(earlier + 3)]
        assert found == [200] * earlier + [None, 200, 200]
        assert receiver.connections == 2


def test_where_the_system_has_no_such_bound_idle_connections_are_probed() -> None:
    """After five seconds, once a second; the third probe without an acknowledgement ends the connection."""
    names = [
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE",
        "TCP_KEEPINTVL",
        "TCP_KEEPCNT",
    ]
    with socket.socket() as connection:
        probe_when_idle(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names] == [5, 1, 3]
