"""What a proxy answers itself is no attempt, and no answer of a receiver's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import FlowActions, Node, NodeDraft
from flowactions_plugin.cli.checks import Checks, check_proxy
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.settings.model import read_settings
from tests.loopback import black_hole, listening
from tests.proxying import proxying
from tests.queueing import Queue, a_schedule
from tests.recorder import recorder, status
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.waiting import until

HTTP, HTTPS = "http://example.com/x", "https://example.com/x"
NOT_CONNECTED = "the egress proxy did not connect: "
REQUIRED = NOT_CONNECTED + "it does not accept our user name and password (407)"


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
        (HTTP, status(407), REQUIRED),
        (HTTPS, status(407), REQUIRED),
        (HTTPS, status(403), NOT_CONNECTED + "it opened no tunnel (403)"),
        (
            HTTPS,
            status(503, "retry-after: 9", body=b"inner words"),
            NOT_CONNECTED + "it opened no tunnel (503)",
        ),
        (HTTPS, b"HTTP/1.1 101 Switching\r\n\r\n", NOT_CONNECTED + "it opened no tunnel (101)"),
        (HTTPS, b"SSH-2.0-x\r\n\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, FLOOD + b"HTTP/1.1 200 OK\r\n\r\n", NOT_CONNECTED + "its answer is not HTTP"),
        (HTTPS, b"", NOT_CONNECTED + "it closed the connection"),
        (HTTPS, b"HTTP/1.1 200 O", NOT_CONNECTED + "it closed the connection"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else None,
)
async def test_what_a_proxy_refuses_is_no_attempt(queue: Queue, url: str, answer: bytes, reason: str) -> None:
    """The row waits, for nothing has reached the destination; the reason does not name the proxy (§3.1)."""
    async with proxying() as proxy, through(proxy.url) as transport:
        proxy.decide = lambda line: answer
        row_id = await queue.put(url=url, max_attempts=1)
        await a_schedule(queue, transport).tick()
        assert_waits(await queue.row(row_id), reason)


@pytest.mark.parametrize("url", [HTTP, HTTPS])
async def test_a_proxy_that_does_not_answer_is_no_attempt(queue: Queue, url: str) -> None:
    """Where no connection to it comes about in the time of an attempt, and where it says nothing to CONNECT."""
    timing = Timing(lease_seconds=3, deadline_seconds=0.2)
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
    """The log says once for each refused destination what happens, names the proxy, and says when it is over."""
    caplog.set_level(logging.INFO, "flowactions.outbox")
    async with recorder() as receiver, proxying() as proxy:
        proxy.leads_to = int(receiver.url.split(":")[2].split("/")[0])
        proxy.decide = lambda line: status(403) if "blocked" in line else None
        async with through(proxy.url, tunnels_all=True) as transport:
            claims = a_schedule(queue, transport)
            blocked = [await queue.put(url="http://blocked.example/", max_attempts=1) for _ in range(3)]
            passing = [await queue.put(url="http://passes.example/", max_attempts=1) for _ in range(3)]
            await claims.tick()
            assert [(await queue.row(each)).status for each in passing] == ["delivered"] * 3
            for each in blocked:
                assert_waits(await queue.row(each), NOT_CONNECTED + "it opened no tunnel (403)")
            said = [each.getMessage() for each in caplog.records if "blocked" in each.getMessage()]
            given_back = [each.getMessage() for each in caplog.records if "given back" in each.getMessage()]
            assert (len(given_back), said) == (1, [])
            assert f"({proxy.url.removeprefix('http://ada:s3cret@')}: it answered 403)" in given_back[0]
            assert "s3cret" not in caplog.text
            proxy.decide = lambda line: None
            await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0 WHERE status = 'pending'")
            await claims.tick()
        assert [(await queue.row(each)).status for each in blocked] == ["delivered"] * 3
        assert [each.getMessage() for each in caplog.records].count("deliveries continue") == 1


@pytest.mark.parametrize(
    ("settings", "answer", "result", "said"),
    [
        ({}, status(407), "failed", "it answered 407"),
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
        checks = Checks()
        await check_proxy(checks, read_settings({"FLOWACTIONS_EGRESS_PROXY": proxy.url, **settings}))
        (found,) = checks.found
        assert (found.name, found.result) == ("proxy", result)
        assert said in found.message
        assert "s3cret" not in found.message + found.advice
        assert {line.split()[1] for line in proxy.asked} <= {"flowactions-doctor.invalid:443"}


async def test_doctor_names_a_proxy_that_is_silent() -> None:
    """It says so instead of waiting for ever."""
    checks = Checks()
    with black_hole() as port:
        settings = read_settings({"FLOWACTIONS_EGRESS_PROXY": f"http://127.0.0.1:{port}"})
        await check_proxy(checks, settings, 0.05)
    assert [(each.result, f"127.0.0.1:{port} did not answer" in each.message) for each in checks.found] == [
        ("failed", True)
    ]


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
            queries = OperatorQueries.of(services_of(host)._database, services_of(host)._settings)
            for scope, body in ((Scope("acme"), ""), (Scope(), "cache.internal says no")):
                found = await queries.delivery(scope, finished.id)
                assert found is not None
                assert [(each.response, each.certainty) for each in found.attempts] == [
                    (body, "answered through the proxy")
                ]
            draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
            tested = await actions.test(draft, a_walk())
            assert (tested.status_code, tested.response) == (code, None)
            if code == 503:
                assert "answered through the proxy" in (tested.message or "")
            assert "internal" not in repr(tested)


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
