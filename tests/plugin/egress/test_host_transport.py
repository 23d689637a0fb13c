"""A host's transport, of either library: what it is given, and what is made of its answers and failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

from flowactions_plugin.egress.attempt import FLAWED, RESPONSE_KEPT_BYTES, Aborted, Outcome
from flowactions_plugin.egress.host_transport import HostTransport
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.egress.sender import Sender
from tests.loopback import black_hole, listening
from tests.recorder import recorder, status
from tests.sending import Deadlines, Message, validate

pytestmark = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


def a_sender(transport: Any, seconds: float = 300, lag: LagMeter | None = None) -> Sender:
    """Make a sender through a host's transport."""
    return Sender(HostTransport(transport), validate, time.time, time.monotonic, lag, seconds)


def answering(library: ModuleType, answer: Callable[[Any], Any]) -> Any:
    """Make a transport of a library, which checks nothing itself."""

    class Answers(library.AsyncBaseTransport):  # type: ignore[name-defined,misc]
        async def handle_async_request(self, request: Any) -> Any:
            return answer(request)

    return Answers()


def raising(error: BaseException) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        raise error

    return answer


async def attempt(transport: Any, url: str, body: bytes | None = b"{}", **options: Any) -> Outcome:
    """Make one attempt."""
    outcome = await a_sender(transport, **options).send(Message(url=url, body=body), "s3cret")
    assert isinstance(outcome, Outcome)
    return outcome


@pytest.mark.parametrize("body", [b"{}", None, b"x" * 300_000])
async def test_a_request_arrives_as_it_was_stored(library: ModuleType, body: bytes | None) -> None:
    """Path, query, headers and body byte for byte, with both lines that frame them."""
    async with recorder() as receiver, library.AsyncHTTPTransport() as transport:
        outcome = await attempt(transport, f"{receiver.url}/a%41/../%2e?x=%3A", body)
        assert (outcome.status_code, outcome.error, outcome.response) == (200, None, b"ok")
        (request,) = receiver.requests
        assert request.line == "POST /hook/a%41/../%2e?x=%3A HTTP/1.1"
        assert (request.body, request.header("x")) == (body or b"", "1")
        assert request.header("content-length") == str(len(body or b""))
        assert request.header("host") == receiver.url.split("/")[2]
        assert (request.header("x-service-webhook-signature") or "").startswith("v1,")


async def test_of_an_answer_status_headers_and_the_start_of_the_body_are_read(library: ModuleType) -> None:
    """As through the plugin's own transport; a redirect is not followed, and nothing is decompressed."""
    async with recorder() as receiver, library.AsyncHTTPTransport() as transport:
        receiver.answer = lambda number: status(
            503, "retry-after: 7", "content-encoding: gzip", body=b"z" * 100_000
        )
        outcome = await attempt(transport, receiver.url)
        assert (outcome.status_code, outcome.retry_after) == (503, 7)
        assert outcome.response == b"z" * RESPONSE_KEPT_BYTES
        assert set(outcome.phases or ()) == {"send", "wait"}
        receiver.answer = lambda number: status(302, f"location: {receiver.url}")
        assert (await attempt(transport, receiver.url)).status_code == 302
    assert len(receiver.requests) == 2


async def test_failures_are_told_in_the_plugins_words(library: ModuleType) -> None:
    """Those of the library and of the operating system; none is quoted."""

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with library.AsyncHTTPTransport() as transport:
        refused = await attempt(transport, "http://127.0.0.1:1/")
        assert (refused.error or "").startswith("cannot connect to 127.0.0.1:1: ")
        async with listening(ends) as port:
            broken = await attempt(transport, f"http://127.0.0.1:{port}/")
            assert (broken.error or "").startswith(f"the connection to 127.0.0.1:{port} broke: ")
        with black_hole() as port:
            silent = await attempt(transport, f"http://127.0.0.1:{port}/", seconds=0.2)
            assert (silent.error or "").startswith("timed out after 0.2 s while sending the request or waiting")

    for error, said in (
        (library.ReadTimeout("secret"), "the connection to 127.0.0.1:1 broke: it did not answer"),
        (library.ConnectTimeout("10 s"), "cannot connect to 127.0.0.1:1: it did not answer"),
        (ConnectionResetError(104, "reset"), "the connection to 127.0.0.1:1 broke: it reset the connection"),
        (library.DecodingError("not gzip"), "the connection to 127.0.0.1:1 broke: the network failed"),
    ):
        failed = await attempt(answering(library, raising(error)), "http://127.0.0.1:1/")
        assert failed.error == said


@pytest.mark.parametrize(("status", "asked"), [(200, None), (503, 7)])
async def test_an_answer_whose_body_breaks_off_counts_by_its_status(
    library: ModuleType, status: int, asked: float | None
) -> None:
    """At the end of the connection, and at the deadline; the attempt says so."""
    head = b"HTTP/1.1 %d Odd\r\ncontent-length: 9\r\nretry-after: 7\r\n\r\nhalf" % status
    silent, deadlines = asyncio.Event(), Deadlines()

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends(reader, writer)
        await deadlines.pass_now()
        await silent.wait()

    for serve in (ends, drips):
        async with library.AsyncHTTPTransport() as transport, listening(serve) as port:
            outcome = await attempt(transport, f"http://127.0.0.1:{port}/", lag=deadlines)
        assert (outcome.status_code, outcome.error, outcome.notes) == (status, None, (FLAWED,))
        assert outcome.retry_after == asked


async def test_a_proxy_that_gives_no_tunnel_is_blamed_as_by_the_plugins_own(library: ModuleType) -> None:
    """One error says that there was none."""

    def answer(request: Any) -> Any:
        if request.url.host == "good.example":
            return library.Response(200)
        raise library.ProxyError("407 Required" if request.url.host == "asks.example" else "503 Unavailable")

    sender = a_sender(library.MockTransport(answer))
    for name, cause in (("bad", "tunnel"), ("good", None), ("bad", None), ("asks", "proxy")):
        found = await sender.send(Message(url=f"http://{name}.example/"), None)
        assert (found.cause if isinstance(found, Aborted) else None) == cause


async def test_what_does_not_behave_as_a_transport_makes_no_attempt(library: ModuleType) -> None:
    """Deliveries wait; the reason names the library whose interface was meant."""
    other = httpx2 if library is httpx else httpx

    cases: list[tuple[Any, str]] = [
        (object(), "is not an httpx.AsyncBaseTransport, nor one of httpx2"),
        (library.HTTPTransport(), "is not an httpx.AsyncBaseTransport, nor one of httpx2"),
        (
            answering(library, raising(ValueError("s3cret"))),
            f"raised ValueError, not an {library.__name__}.TransportError",
        ),
        (answering(library, raising(asyncio.CancelledError())), "was cancelled from within"),
        (
            answering(library, lambda _: other.Response(200)),
            f"answered Response, not an {library.__name__}.R",
        ),
        (answering(library, lambda _: library.Response("200")), "with a status and a body that can be read"),
        (
            answering(library, lambda _: library.Response(200, stream=library.SyncByteStream())),
            "a body that can be read asynchronously",
        ),
    ]
    for transport, said in cases:
        found = await a_sender(transport).send(Message(), None)
        assert isinstance(found, Aborted)
        assert (found.cause, found.waits) == ("host", True)
        assert said in found.reason
        assert "s3cret" not in found.reason
