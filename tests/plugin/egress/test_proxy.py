"""Webhooks that leave through a proxy, by a host's own transport, or to receivers with private certificates."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from flowactions_hookspecs import Delivery, FlowActions, OutboundWebhook
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress import guard as guard_module
from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.guard import EgressGuard, Resolve
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.settings.model import read_settings
from tests.authority import inner_authority
from tests.loopback import listening
from tests.proxying import pumped
from tests.queueing import ORIGIN, a_delivery
from tests.recorder import OK, Recorder, recorder, status
from tests.sending import Message, validate
from tests.support import SmallHost, services_of
from tests.waiting import until


async def resolve(host: str, port: int) -> Sequence[str]:
    raise OSError("no such host")


def guard(*, development: bool = False, resolve: Resolve = resolve) -> EgressGuard:
    return EgressGuard(development=development, resolve=resolve)


class TestProxy:
    """The explicit forward proxy, and a host's own transport."""

    @staticmethod
    @asynccontextmanager
    async def leaving(
        tmp_path: Path, how: str, **settings: str
    ) -> AsyncIterator[tuple[SmallHost, Callable[[str], Awaitable[Delivery]], list[str]]]:
        """Run a production host whose webhooks leave through a proxy, or through a transport of its own.

        Yields:
            The host; what plants a URL in its outbox, past the check at enqueue, and gives how that ended; the URLs
            that were asked for.
        """
        asked: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(str(request.url))
            return httpx.Response(200)

        async with recorder() as proxy:

            def forwarded(number: int) -> bytes:
                asked.append(proxy.requests[-1].line.split()[1])
                return OK

            proxy.answer = forwarded
            host = SmallHost(
                {
                    "FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}",
                    "FLOWACTIONS_TICK_SECONDS": "0.05",
                    **(
                        {"FLOWACTIONS_EGRESS_PROXY": proxy.url.removesuffix("/hook")}
                        if how == "proxy" or settings
                        else {}
                    ),
                    **settings,
                },
                transport=httpx.MockTransport(answer) if how == "transport" else None,
            )
            actions = FlowActions.load(host)
            services = services_of(host)

            async def planted(url: str) -> Delivery:
                delivery = a_delivery(id=new_id(1_700_000_000), url=url, max_attempts=1)
                async with services._database.write() as connection:
                    await services._outbox.write(delivery, connection)
                ended = lambda: [each for each in host.finished if each.id == delivery.id]  # noqa: E731
                return (await until(ended))[0]  # type: ignore[no-any-return]

            async with actions.lifespan():
                yield host, planted, asked

    @pytest.mark.parametrize("how", ["proxy", "transport"])
    async def test_a_name_is_checked_before_it_is_requested(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """A name without an address fails the attempt, one with a forbidden address is dead; neither is asked for."""
        with looking_up(monkeypatch) as (names, _):
            names |= {
                "inside.example": ["8.8.8.8", "10.0.0.1"],
                "outside.example": ["8.8.8.8"],
                "none.example": [],
            }
            async with self.leaving(tmp_path, how) as (_, planted, asked):
                missing = await planted("http://missing.example/")
                assert "missing.example has no address now" in (missing.error or "")
                assert "has no address now" in ((await planted("http://none.example/")).error or "")
                inside = await planted("http://inside.example/")
                assert "Requests to 10.0.0.1 are not allowed (private)." in (inside.error or "")
                assert asked == []
                assert (await planted("http://outside.example/")).status == "delivered"
                assert asked == ["http://outside.example/"]

    @pytest.mark.parametrize("how", ["proxy", "transport"])
    async def test_a_name_that_resolves_slowly_is_checked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """Enqueue lets it through; delivery waits for its address, which is forbidden, and asks for nothing."""
        monkeypatch.setattr(guard_module, "RESOLVE_SECONDS", 0.05)
        with looking_up(monkeypatch) as (names, go):
            names["slow.example"] = ["127.0.0.1"]
            go.clear()
            async with self.leaving(tmp_path, how) as (host, _, asked):
                services = services_of(host)
                delivery = await services._outbox.new_delivery(a_webhook("http://slow.example/"))
                await services._outbox.write(delivery)
                await asyncio.sleep(0.3)
                assert (asked, host.finished) == ([], [])
                go.set()
                await until(lambda: host.finished)
                assert (host.finished[0].status, asked) == ("dead", [])
                assert "(loopback)" in (host.finished[0].error or "")

    @pytest.mark.parametrize("how", ["proxy", "transport"])
    async def test_where_only_the_proxy_resolves_nothing_is_looked_up_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """Neither at enqueue nor at delivery; the form of URLs and literal addresses are judged as ever."""
        with looking_up(monkeypatch) as (names, _):
            names["inside.example"] = ["10.0.0.1"]
            async with self.leaving(tmp_path, how, FLOWACTIONS_EGRESS_RESOLVE="proxy") as (
                host,
                planted,
                asked,
            ):
                outbox = services_of(host)._outbox
                for url in ("http://inside.example/", "http://missing.example/"):
                    await outbox.new_delivery(a_webhook(url))
                    assert (await planted(url)).status == "delivered"
                for url in (
                    "http://10.0.0.1/",
                    "http://[::1]/",
                    "http://１２７.0.0.1/",
                    "http://a b/",
                    "http://127.1/",
                ):
                    with pytest.raises(EgressRefused):
                        await outbox.new_delivery(a_webhook(url))
                    assert (await planted(url)).status == "dead"
                assert asked == ["http://inside.example/", "http://missing.example/"]
            assert names.asked == []

    async def test_a_proxy_that_asks_for_a_password_gets_it(self) -> None:
        """User name and password of the setting go to the proxy, decoded, with the request or with its tunnel.

        Of what goes through a tunnel, the proxy sees host and port.
        """
        async with recorder() as proxy:
            address = proxy.url.removesuffix("/hook").replace("http://", "http://ada:s3%E2%82%AC:c%40ret@")
            proxy.answer = lambda number: OK if number == 1 else status(403)
            assert isinstance(await attempt(address, "http://example.com/x"), Outcome)
            refused = await attempt(address, "https://example.com:8443/secret-path")
            assert isinstance(refused, Aborted)
            said = base64.b64encode("ada:s3€:c@ret".encode()).decode()
            assert [request.header("proxy-authorization") for request in proxy.requests] == [
                f"Basic {said}"
            ] * 2
            assert [request.line for request in proxy.requests] == [
                "POST http://example.com/x HTTP/1.1",
                "CONNECT example.com:8443 HTTP/1.1",
            ]

    @pytest.mark.parametrize("url", ["http://example.com/x", "https://example.com/x"])
    @pytest.mark.parametrize(
        ("proxy", "said"),
        [("proxy.example:3128", "its host name has no address now"), ("127.0.0.1:1", "it cannot be reached")],
    )
    async def test_a_proxy_that_cannot_be_reached_is_no_attempt(
        self, monkeypatch: pytest.MonkeyPatch, url: str, proxy: str, said: str
    ) -> None:
        """The row waits; the reason speaks of the proxy, and shows neither its name nor its password."""
        with looking_up(monkeypatch):
            found = await attempt(f"http://ada:s3cret@{proxy}", url)
        assert isinstance(found, Aborted)
        assert (found.cause, found.waits) == ("proxy", True)
        assert found.reason == f"the egress proxy did not connect: {said}"
        assert proxy in found.detail
        assert "s3cret" not in found.detail


async def attempt(proxy: str, url: str) -> Outcome | Aborted:
    """Make one attempt through a proxy."""
    transport = OutboundTransport(guard(), 5, proxy)
    try:
        return await Sender(transport, validate, lambda: 0.0, lambda: 0.0).send(Message(url=url), None)
    finally:
        await transport.aclose()


class Names(dict[str, list[str]]):
    """The addresses of names, and which names were asked for."""

    asked: list[str]


@contextmanager
def looking_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Names, threading.Event]]:
    """Answer the operating system's lookups; while the event is cleared, they hang."""
    names, go = Names(), threading.Event()
    names.asked = []
    go.set()

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[object]:
        names.asked.append(host)
        go.wait(300)
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        try:
            yield names, go
        finally:
            go.set()


def a_webhook(url: str) -> OutboundWebhook:
    return OutboundWebhook(
        organization_id="acme", agent_id="a", origin=ORIGIN, event_type="t", entity="e", url=url, max_attempts=1
    )


class TestAuthorities:
    """``FLOWACTIONS_EGRESS_CA_FILE``."""

    @pytest.mark.parametrize("way", ["direct", "tunnel", "to the proxy"])
    async def test_a_private_authority_is_trusted(self, tmp_path: Path, way: str) -> None:
        """With the file, a receiver or a proxy that it vouches for is reached; without it, it is not."""
        authority, context = inner_authority(tmp_path)
        file = tmp_path / "ca.pem"
        file.write_text(authority)
        receiver = Recorder()

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            there, back = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(pumped(reader, back))
                both.create_task(pumped(there, writer))

        for trusting in (True, False):
            text = {"FLOWACTIONS_EGRESS_CA_FILE": str(file)} if trusting else {}
            authorities = read_settings(text).egress_ca
            async with listening(receiver.serve, tls=context) as port, listening(tunnel) as through:
                proxy = {
                    "direct": None,
                    "tunnel": f"http://127.0.0.1:{through}",
                    "to the proxy": f"https://127.0.0.1:{port}",
                }[way]
                url = "http://8.8.8.8/" if way == "to the proxy" else f"https://127.0.0.1:{port}/"
                guarding = guard(development=True)
                transport = OutboundTransport(guarding, 1, proxy, authorities)
                try:
                    sender = Sender(transport, guarding.resolve, lambda: 0.0, lambda: 0.0)
                    outcome = await sender.send(Message(url=url), None)
                finally:
                    await transport.aclose()
            if way == "to the proxy" and not trusting:
                assert isinstance(outcome, Aborted)
                assert outcome.reason == "the egress proxy did not connect: it cannot be reached"
                continue
            assert isinstance(outcome, Outcome)
            if trusting:
                assert (outcome.status_code, outcome.error) == (200, None)
            else:
                assert "the TLS certificate of 127.0.0.1" in (outcome.error or "")
        assert len(receiver.requests) == 1
