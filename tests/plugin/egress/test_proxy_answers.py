"""What a proxy answers itself: about itself it is no attempt, about a destination it is that destination's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from flowactions_hookspecs import FlowActions, Node, NodeDraft
from flowactions_plugin.cli.checks import check_proxy
from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.egress.tunnel import Tunnel
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.schema import outbox
from tests.loopback import black_hole, listening
from tests.plugin.egress.test_connections import Counting, post
from tests.proxying import SILENT, Proxy, proxying, squid
from tests.queueing import Queue, a_schedule
from tests.recorder import recorder, status
from tests.sending import Message
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.waiting import until

HTTP, HTTPS = "http://example.com/x", "https://example.com/x"
NOT_CONNECTED = "the egress proxy did not connect: "
REQUIRED = NOT_CONNECTED + "it does not accept our user name and password (407)"
ASKS = status(407, "proxy-authenticate: Basic realm=x")
DENIED = status(407, "x-smokescreen-error: 10.0.0.9 was denied by rule Deny: Private Range", body=b"denied")
"""As smokescreen refuses a destination."""


async def resolve(host: str, port: int) -> Sequence[str]:
    return ["8.8.8.8"]


@asynccontextmanager
async def through(proxy: str, *, tunnels_all: bool = False) -> AsyncIterator[OutboundTransport]:
    """Run a transport that sends through a proxy."""
    guard = EgressGuard(development=False, resolve=resolve)
    made = OutboundTransport(guard, 10, proxy, tunnels_all=tunnels_all)
    try:
        yield made
    finally:
        await made.aclose()


def assert_waits(row: Any, reason: str) -> None:
    """The row waits as for a host method that fails, and no attempt was used."""
    assert (row.status, row.attempts, row.last_error) == ("pending", 0, reason)
    assert (row.error_class, row.waiting_since is not None) == ("waits", True)
    assert row.next_attempt_at > row.waiting_since


FLOOD = b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000


@pytest.mark.parametrize(
    ("url", "answer", "reason"),
    [
        (HTTP, ASKS, REQUIRED),
        (HTTPS, ASKS, REQUIRED),
        (HTTPS, status(401), REQUIRED.replace("407", "401")),
        (HTTPS, DENIED, NOT_CONNECTED + "it refuses this destination (407)"),
        (HTTPS, status(403), NOT_CONNECTED + "it refuses this destination (403)"),
        (
            HTTPS,
            status(503, "retry-after: 9", body=b"inner words"),
            NOT_CONNECTED + "it opened no tunnel (503)",
        ),
        (HTTPS, b"HTTP/1.1 101 Switching\r\n\r\n", NOT_CONNECTED + "it opened no tunnel (101)"),
        (HTTPS, b"SSH-2.0-x\r\n\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, FLOOD + b"HTTP/1.1 200 OK\r\n\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, b"HTTP/1.1 200 OK\r\nx y: z\r\n\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, b"HTTP/1.1 200 OK\r\nx: y\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, b"", NOT_CONNECTED + "it closed the connection"),
        (HTTPS, b"HTTP/1.1 200 O", NOT_CONNECTED + "it closed the connection"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else None,
)
async def test_what_a_proxy_refuses_is_no_attempt_at_first(
    queue: Queue, url: str, answer: bytes, reason: str
) -> None:
    """The row waits: nobody else got a tunnel since. The reason does not name the proxy (§3.1)."""
    async with proxying() as proxy, through(proxy.url) as transport:
        proxy.decide = lambda line: answer
        row_id = await queue.put(url=url, max_attempts=1)
        await a_schedule(queue, transport).tick()
        assert_waits(await queue.row(row_id), reason)


@pytest.mark.parametrize("url", [HTTP, HTTPS])
async def test_a_proxy_that_does_not_answer_is_no_attempt(queue: Queue, url: str) -> None:
    """Where no connection to it comes about in the time of an attempt, and where it says nothing to CONNECT."""
    timing = Timing(deadline_seconds=0.2)
    silent = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()

    async with listening(says_nothing) as port:
        with black_hole() as nowhere:
            for each in (nowhere, port) if url == HTTPS else (nowhere,):
                async with through(f"http://127.0.0.1:{each}") as transport:
                    row_id = await queue.put(url=url, max_attempts=1)
                    await a_schedule(queue, transport, timing=timing).tick()
                    assert_waits(await queue.row(row_id), NOT_CONNECTED + "it did not answer in time")


async def test_a_407_that_is_no_proxys_is_an_attempt(queue: Queue) -> None:
    """A receiver that is reached directly or through a tunnel cannot make its deliveries wait."""
    async with recorder() as receiver, proxying() as proxy:
        receiver.answer = lambda number: status(407)
        proxy.leads_to = int(receiver.url.split(":")[2].split("/")[0])
        async with through(proxy.url, tunnels_all=True) as transport:
            row_id = await queue.put(url=HTTP, max_attempts=1)
            await a_schedule(queue, transport).tick()
        row = await queue.row(row_id)
        assert (row.status, row.last_status_code, row.attempts) == ("dead", 407, 1)
        assert proxy.asked == ["CONNECT example.com:80 HTTP/1.1"]
        # The receiver sees a request as it would without a proxy.
        assert receiver.requests[0].line == "POST /x HTTP/1.1"
        assert not [name for name, _ in receiver.requests[0].headers if name.startswith("proxy")]


async def test_a_destination_that_the_proxy_refuses_delays_no_other(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits until another one gets a tunnel, then it is dead. The log says once what happened, and names the proxy."""
    caplog.set_level(logging.INFO, "flowactions.outbox")
    async with recorder() as receiver, proxying() as proxy:
        proxy.leads_to = int(receiver.url.split(":")[2].split("/")[0])
        proxy.decide = lambda line: DENIED if "blocked" in line else None
        async with through(proxy.url, tunnels_all=True) as transport:
            claims = a_schedule(queue, transport)
            blocked = [await queue.put(url="http://blocked.example/") for _ in range(3)]
            await claims.tick()
            for each in blocked:
                assert_waits(await queue.row(each), NOT_CONNECTED + "it refuses this destination (407)")
            (given_back,) = [each.getMessage() for each in caplog.records if "given back" in each.getMessage()]
            assert proxy.url.removeprefix("http://ada:s3cret@") in given_back
            assert given_back.endswith("it answered 407: 10.0.0.9 was denied by rule Deny: Private Range)")
            passing = [await queue.put(url="http://passes.example/", max_attempts=1) for _ in range(3)]
            await claims.tick()
            assert [(await queue.row(each)).status for each in passing] == ["delivered"] * 3
            await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0 WHERE status = 'pending'")
            await claims.tick()
        for row in [await queue.row(each) for each in blocked]:
            assert (row.status, row.attempts, row.error_class) == ("dead", 1, "refused")
            assert row.last_error == (
                "cannot connect to blocked.example:80 through the egress proxy: it refuses this destination (407)"
            )
        assert "s3cret" not in caplog.text
        assert len([each for each in caplog.records if "given back" in each.getMessage()]) == 1


class Trying:
    """A sender through a proxy, and the clock of its transport."""

    def __init__(self, proxy: str) -> None:
        self.now = 1000.0
        guard = EgressGuard(development=False, resolve=resolve)
        transport = OutboundTransport(guard, 10, proxy, clock=lambda: self.now, tunnels_all=True)
        self._senders = {
            seconds: Sender(transport, guard.validate, lambda: 0.0, lambda: 0.0, deadline_seconds=seconds)
            for seconds in (0.5, 300.0)
        }
        self.aclose = transport.aclose

    async def send(self, name: str, seconds: float = 300.0) -> Outcome | Aborted:
        return await self._senders[seconds].send(Message(url=f"http://{name}.example/"), None)


@asynccontextmanager
async def trying() -> AsyncIterator[tuple[Proxy, Trying]]:
    """Run a proxy that leads to a receiver which closes each connection after its answer, and what sends through it."""
    async with recorder() as receiver, proxying() as proxy:
        receiver.answer = lambda number: status(200, "connection: close")
        proxy.leads_to = int(receiver.url.split(":")[2].split("/")[0])
        made = Trying(proxy.url)
        try:
            yield proxy, made
        finally:
            await made.aclose()


@pytest.mark.parametrize("answer", [status(503), status(403), status(502), b"", b"SSH-2.0-x\r\n\r\n"])
async def test_a_proxy_without_a_network_uses_up_no_attempt(answer: bytes) -> None:
    """For two minutes it refuses everybody, who had their tunnels until then; no destination is blamed."""
    names = [f"d{number}" for number in range(5)]
    async with trying() as (proxy, made):
        for name in names:
            assert isinstance(await made.send(name), Outcome)
        proxy.decide = lambda line: answer
        for _ in range(18):
            made.now += 7.0
            for name in names[: 1 + int(made.now) % 5]:
                given_back = await made.send(name)
                assert isinstance(given_back, Aborted)
                assert (given_back.cause, given_back.waits) == ("tunnel", True)
        proxy.decide = lambda line: None
        for name in names:
            sent = await made.send(name)
            assert isinstance(sent, Outcome)
            assert sent.status_code == 200


@pytest.mark.parametrize(
    ("answer", "final", "said"),
    [
        (status(503), False, "through the egress proxy: it opened no tunnel (503)"),
        (status(403), True, "through the egress proxy: it refuses this destination (403)"),
        (DENIED, True, "through the egress proxy: it refuses this destination (407)"),
        (b"", False, "through the egress proxy: it closed the connection"),
    ],
)
async def test_a_destination_is_blamed_once_another_got_a_tunnel(answer: bytes, final: bool, said: str) -> None:
    """By a tunnel after its first refusal and within the last minute; its own proves nothing; or after five minutes."""
    async with trying() as (proxy, made):

        async def is_blamed() -> bool:
            found = await made.send("bad")
            if isinstance(found, Outcome):
                assert (found.status_code, found.final) == (None, final)
                assert said in (found.error or "")
            return isinstance(found, Outcome)

        await made.send("bad")
        await made.send("good")
        proxy.decide = lambda line: answer if "bad" in line else None
        made.now += 1  # from here on, "bad" is refused
        assert not await is_blamed()
        made.now += 10
        await made.send("good")
        assert await is_blamed()
        made.now += 59
        assert await is_blamed()
        made.now += 1
        assert not await is_blamed()
        made.now += 229
        assert not await is_blamed()
        made.now += 1
        assert await is_blamed()
        proxy.decide = lambda line: None
        await made.send("bad")
        proxy.decide = lambda line: answer
        assert not await is_blamed()  # its own tunnel is no other's, and begins anew
        made.now += 300
        assert await is_blamed()
        made.now += 901
        assert not await is_blamed()


async def test_a_proxy_that_says_nothing_of_one_destination_is_blamed_the_same_way() -> None:
    """It may wait for a receiver that does not answer; the attempt has timed out."""
    async with trying() as (proxy, made):
        proxy.decide = lambda line: SILENT if "bad" in line else None

        async def send() -> Outcome | Aborted:
            while True:
                found = await made.send("bad", 0.5)
                # On a busy machine the connection to the proxy may take longer.
                if not isinstance(found, Aborted) or found.cause != "proxy":
                    return found

        given_back = await send()
        assert isinstance(given_back, Aborted)
        assert given_back.reason == NOT_CONNECTED + "it did not answer in time"
        made.now += 1
        await made.send("good")
        outcome = await send()
        assert isinstance(outcome, Outcome)
        assert (outcome.error, outcome.final) == ("timed out after 0.5 s while connecting", False)


async def test_a_407_in_clear_that_asks_for_nothing_is_an_answer(queue: Queue) -> None:
    """As of a proxy that refuses the destination, or of a receiver."""
    async with recorder() as proxy, through(proxy.url.removesuffix("/hook")) as transport:
        proxy.answer = lambda number: DENIED
        row_id = await queue.put(url=HTTP, max_attempts=1)
        await a_schedule(queue, transport).tick()
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.last_status_code) == ("dead", 1, 407)


@pytest.mark.ci
class TestSquid:
    """What a real proxy answers."""

    async def test_a_receiver_that_is_down_is_told_as_its_own_failure(self, database_url: str) -> None:
        """Its deliveries and those that squid's rules refuse fail; others arrive, and the list of destinations knows."""
        async with recorder() as receiver, squid("dead.example", "alive.example") as url:
            port = int(receiver.url.split(":")[2].split("/")[0])
            settings = {
                "FLOWACTIONS_EGRESS_PROXY": url,
                "FLOWACTIONS_EGRESS_PROXY_TUNNEL": "all",
                "FLOWACTIONS_EGRESS_RESOLVE": "proxy",
            }
            host = SmallHost(development(database_url, **settings))
            actions = FlowActions.load(host)
            made = services_of(host)
            queries = Insights(made._database, made._settings)

            async def rows() -> dict[str, Any]:
                async with made._database.write() as connection:
                    await connection.execute(
                        text("UPDATE flowactions_outbox SET next_attempt_at = 0 WHERE error_class = 'waits'")
                    )
                    found = await connection.execute(select(outbox))
                    return {row.destination.split("/")[2].split(".")[0]: row for row in found}

            async def ended() -> dict[str, Any] | None:
                found = await rows()
                blamed = all(found[name].attempts for name in ("dead", "refused"))
                return found if blamed else None

            async with actions.lifespan():

                async def send(name: str, at: int, **config: Any) -> None:
                    config["webhookUrl"] = f"http://{name}.example:{at}/"
                    node = Node(id=name, type="webhook", config=config)
                    assert (await actions.reach(a_walk(), node)).status == "queued"

                await send("dead", 1, webhookRetryOnFailure=True)
                await send("refused", port)

                async def waits() -> bool:
                    found = await rows()
                    return {row.error_class for row in found.values()} == {"waits"}

                await until(waits)
                await send("alive", port)
                found = await until(ended)

                async def known() -> str | None:
                    listed, _ = await queries.destinations(Scope(), 10)
                    return {each.destination: each.last_error for each in listed}.get("http://dead.example:1")

                assert await until(known) == "network"
            assert found["alive"].status == "delivered"
            assert (found["dead"].status, found["dead"].error_class) == ("retrying", "network")
            assert found["dead"].last_error == (
                "cannot connect to dead.example:1 through the egress proxy: it opened no tunnel (503)"
            )
            assert (found["refused"].status, found["refused"].error_class) == ("dead", "refused")
            assert found["refused"].last_error.endswith("it refuses this destination (403)")

    async def test_a_wrong_password_is_the_proxys(self, queue: Queue) -> None:
        """Squid asks for credentials, in clear and for a tunnel; with the right ones it speaks of the destination alone."""
        async with squid(password="right") as proxy:
            wrong = proxy.replace("//", "//ada:wrong@")
            async with through(wrong) as transport:
                waiting = [await queue.put(url=url, max_attempts=1) for url in (HTTP, HTTPS)]
                await a_schedule(queue, transport).tick()
                for each in waiting:
                    assert_waits(await queue.row(each), REQUIRED)
            for given, result in ((wrong, "failed"), (proxy.replace("//", "//ada:right@"), "ok")):
                found = await check_proxy(read_settings({"FLOWACTIONS_EGRESS_PROXY": given}))
                assert found.result == result


@pytest.mark.parametrize(
    ("settings", "answer", "result", "said"),
    [
        ({}, ASKS, "failed", "it answered 407"),
        ({}, DENIED, "ok", "answered 407 to CONNECT"),
        ({}, b"nothing\r\n\r\n", "failed", "its answer is not HTTP"),
        ({}, status(405), "failed", "it answered 405"),
        pytest.param({}, status(302), "failed", "it answered 302", marks=pytest.mark.ci),
        ({}, status(502), "ok", "answered 502 to CONNECT"),
        ({}, None, "ok", "opens tunnels"),
        ({"FLOWACTIONS_EGRESS_PROXY": "http://127.0.0.1:1"}, b"", "failed", "127.0.0.1:1: "),
    ],
)
async def test_doctor_names_a_proxy_that_does_not_work(
    settings: dict[str, str], answer: bytes | None, result: str, said: str
) -> None:
    """It asks for a tunnel to a name that never exists: what the proxy thinks of that name is no failure."""

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with listening(closes) as port, proxying(port) as proxy:
        proxy.decide = lambda line: answer
        found = await check_proxy(read_settings({"FLOWACTIONS_EGRESS_PROXY": proxy.url, **settings}))
        assert found.result == result
        assert said in found.message
        assert "s3cret" not in found.message + found.advice
        assert {line.split()[1] for line in proxy.asked} <= {"flowactions-doctor.invalid:443"}


async def test_doctor_names_a_proxy_that_is_silent() -> None:
    """It says so instead of waiting for ever."""
    with black_hole() as port:
        settings = read_settings({"FLOWACTIONS_EGRESS_PROXY": f"http://127.0.0.1:{port}"})
        found = await check_proxy(settings, 0.05)
    assert (found.result, f"127.0.0.1:{port} did not answer" in found.message) == ("failed", True)


@pytest.mark.parametrize(("code", "ended"), [(200, "delivered"), (503, "dead")])
async def test_the_body_of_an_answer_in_clear_through_a_proxy_is_for_operators(
    database_url: str, code: int, ended: str
) -> None:
    """It may be the proxy's own, with names of the inner network. Its status counts; tenants read how it came."""
    async with recorder() as proxy:
        proxy.answer = lambda number: status(code, body=b"cache.internal says no")
        host = SmallHost(
            development(database_url, FLOWACTIONS_EGRESS_PROXY=proxy.url.removesuffix("/hook")),
        )
        actions = FlowActions.load(host)
        client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
        config = {"webhookUrl": "http://8.8.8.8/x"}
        async with actions.lifespan(), client:
            node = Node(id="n", type="webhook", config=config)
            await actions.reach(a_walk(), node)
            (finished,) = await until(lambda: host.finished)
            assert (finished.status, finished.status_code) == (ended, code)
            shown = (await client.get(f"/v1/webhooks/outbox/{finished.id}")).json()["data"]
            (attempt,) = shown["attemptLog"]
            assert (attempt["statusCode"], attempt["response"]) == (code, "")
            assert attempt["note"] == "answered through the proxy; not signed"
            assert "proxy" not in attempt["phases"]
            queries = Insights(services_of(host)._database, services_of(host)._settings)
            for scope, body in ((Scope("acme"), ""), (Scope(), "cache.internal says no")):
                found = await queries.delivery(scope, finished.id)
                assert found is not None
                assert [(each.response, each.certainty) for each in found.row.attempt_log] == [
                    (body, "answered through the proxy")
                ]
            draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
            tested = await actions.test(draft, a_walk())
            assert (tested.status_code, tested.response) == (code, None)
            if code == 503:
                assert "answered through the proxy" in (tested.message or "")
            assert "internal" not in repr(tested)


@pytest.mark.parametrize("url", [HTTP, HTTPS])
async def test_who_gives_up_as_a_tunnel_opens_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The time of an attempt may be up in the very moment in which the proxy's answer has come."""
    finish, counting = Tunnel._finish, Counting()

    def finishes(tunnel: Tunnel) -> None:
        finish(tunnel)
        sending.cancel()

    monkeypatch.setattr(Tunnel, "_finish", finishes)
    async with (
        listening(counting.serve) as port,
        proxying(port) as proxy,
        through(proxy.url, tunnels_all=True) as transport,
    ):
        sending = asyncio.create_task(post(transport, url))
        await asyncio.wait({sending})
        assert sending.cancelled()
        await until(lambda: counting.connections == 1 and counting.open == 0)


async def test_an_answer_through_a_tunnel_is_shown_to_tenants(database_url: str) -> None:
    """The proxy cannot have written it."""
    async with recorder() as receiver, proxying() as proxy:
        proxy.leads_to = int(receiver.url.split(":")[2].split("/")[0])
        host = SmallHost(
            development(database_url, FLOWACTIONS_EGRESS_PROXY=proxy.url, FLOWACTIONS_EGRESS_PROXY_TUNNEL="all")
        )
        actions = FlowActions.load(host)
        client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
        async with actions.lifespan(), client:
            node = Node(id="n", type="webhook", config={"webhookUrl": "http://8.8.8.8/x"})
            await actions.reach(a_walk(), node)
            (finished,) = await until(lambda: host.finished)
            shown = (await client.get(f"/v1/webhooks/outbox/{finished.id}")).json()["data"]
    assert [(each["response"], each["note"]) for each in shown["attemptLog"]] == [("ok", "not signed")]
