from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowactions_plugin.cli import main, receiver
from flowactions_plugin.cli.receiver import NOT_FORWARDED, verify
from flowactions_plugin.egress.signature import sign
from tests.commanding import ROOT, Ended, command, running
from tests.loopback import held_port, listening
from tests.recorder import recorder, status
from tests.waiting import SAFETY_SECONDS, until

SECRET = "whsec_kept_here"
DEVELOPMENT = {"FLOWACTIONS_ENVIRONMENT": "development"}


class Listening:
    """A running ``flowactions listen``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.url = ""
        self.told: list[str] = []

    async def until_it_listens(self) -> None:
        assert self._process.stderr is not None
        async with asyncio.timeout(SAFETY_SECONDS):
            while not self.url:
                said = (await self._process.stderr.readline()).decode()
                assert said, self.told
                self.told.append(said)
                self.url = said.partition("listening at ")[2].strip()

    async def opened(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and send something."""
        host, port = self.url.removeprefix("http://").strip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        return reader, writer

    async def answer(self, sent: bytes) -> bytes:
        """Send something on a new connection; give the first line of the answer."""
        reader, writer = await self.opened(sent)
        async with asyncio.timeout(SAFETY_SECONDS):
            first = await reader.readline()
        writer.close()
        return first

    async def end(self, number: int = signal.SIGTERM, *, lines: int = 0) -> tuple[int | None, str]:
        """End it once it has written so many lines; give its exit status and all that it has written."""
        assert self._process.stdout is not None
        async with asyncio.timeout(SAFETY_SECONDS):
            shown = b"".join([await self._process.stdout.readline() for _ in range(lines)])
            self._process.send_signal(number)
            out, err = await self._process.communicate()
        self.told.append(err.decode())
        return self._process.returncode, (shown + out).decode()


@asynccontextmanager
async def listen(*options: str, **settings: str) -> AsyncIterator[Listening]:
    """Run the command; killed at the end if it still runs."""
    pipe = asyncio.subprocess.PIPE
    arguments = ("listen", "--port", "0", *options)
    async with running(*arguments, cwd=ROOT, stdout=pipe, stderr=pipe, **settings) as process:
        started = Listening(process)
        await started.until_it_listens()
        yield started


def phases_of(sent: Ended) -> dict[str, float]:
    """Give the phases that ``send-test`` has printed, with their milliseconds."""
    rows = [row.split() for row in sent.out.splitlines() if row[:1] not in {"", " "}]
    return {row[0]: float(row[1]) for row in rows if row[2:3] == ["ms"]}


async def test_what_is_sent_is_received_and_verified(tmp_path: Path) -> None:
    """Both commands, with one secret, by the way that real deliveries take."""
    async with listen("--json", WEBHOOK_SECRET=SECRET) as receiver:
        url = f"{receiver.url}hook?a=1"
        sent = await command("send-test", url, cwd=tmp_path, WEBHOOK_SECRET=SECRET, **DEVELOPMENT)
        code, out = await receiver.end(lines=1)
    assert (sent.code, code) == (0, 0)
    assert "delivered: it answered 200 (signed)\n" in sent.out
    received = json.loads(out)
    assert received["verified"] == "verified"
    assert (received["eventType"], received["eventId"][:4]) == ("flowactions.test", "evt_")
    assert (received["method"], received["target"]) == ("POST", "/hook?a=1")
    assert json.loads(received["body"])["data"]["test"] is True
    assert [*phases_of(sent)] == ["resolve", "connect", "send", "wait", "total"]
    assert all(ms >= 0 for ms in phases_of(sent).values())
    assert SECRET not in sent.out + sent.err + out + "".join(receiver.told)


async def test_what_is_received_is_passed_on_as_it_came(tmp_path: Path) -> None:
    """With its headers, body and signature; the sender gets the status that the other side gave, and 502 where there is none."""
    async with recorder() as mine:
        mine.answer = lambda _: status(418)
        async with listen("--json", "--forward-to", f"{mine.url}?a=1", WEBHOOK_SECRET=SECRET) as receiver:
            sent = await command("send-test", receiver.url, cwd=tmp_path, WEBHOOK_SECRET=SECRET, **DEVELOPMENT)
            code, out = await receiver.end(lines=1)
        (passed,) = mine.requests
    received = json.loads(out)
    assert ("not delivered: it answered 418" in sent.out, received["status"], code) == (True, 418, 0)
    assert passed.line == "POST /hook?a=1 HTTP/1.1"
    assert passed.body.decode() == received["body"]
    for name, value in received["headers"]:
        if name.lower() not in NOT_FORWARDED:
            assert passed.header(name.lower()) == value
    with held_port() as port:
        async with listen("--forward-to", f"http://127.0.0.1:{port}", WEBHOOK_SECRET=SECRET) as receiver:
            sent = await command("send-test", receiver.url, cwd=tmp_path, **DEVELOPMENT)
            await receiver.end(lines=1)
    assert "not delivered: it answered 502 (not signed, because no secret was given)" in sent.out
    assert "a request could not be passed on: " in receiver.told[-1]


async def test_another_secret_is_wrong(tmp_path: Path) -> None:
    """Its line says so."""
    async with listen("--status", "503", WEBHOOK_SECRET=SECRET) as receiver:
        sent = await command("send-test", receiver.url, cwd=tmp_path, WEBHOOK_SECRET="other", **DEVELOPMENT)
        code, out = await receiver.end(lines=1)
    assert (sent.code, code) == (1, 0)
    assert "not delivered: it answered 503" in sent.out
    assert "  wrong  " in out
    assert '"test": true' in out


async def test_a_secret_is_made_and_told_where_there_is_none() -> None:
    """On standard error, and not among the results; SIGTERM ends it with 0."""
    async with listen(WEBHOOK_SECRET="") as receiver:
        code, out = await receiver.end()
    assert (code, out) == (0, "")
    assert receiver.told[0].startswith("signing secret of this run: whsec_")


async def test_what_is_received_reaches_no_terminal_raw(tmp_path: Path) -> None:
    """Method, target, headers and body of a stranger."""
    hostile = b"\x1b]52;c;ZXZpbA==\x07"
    head = b"P" + hostile + b" / HTTP/1.1\r\nhost: x\r\n\r\n"
    request = (
        b"POST /%1B HTTP/1.1\r\nhost: x\r\nx-service-webhook-id: \xe2\x80\xae\x9b1m\r\n"
        b"Content-Length: 23\r\n\r\n" + hostile + b"\nb\r\0" + b"\xff\xfe\xe2"
    )
    async with listen(WEBHOOK_SECRET=SECRET) as receiver:
        assert (await receiver.answer(head)).split()[1] == b"400"
        assert (await receiver.answer(request)).split()[1] == b"200"
        _, out = await receiver.end(lines=7)
    for told in (out, "".join(receiver.told)):
        assert all(character.isprintable() or character == "\n" for character in told), repr(told)
    assert r"\x1b]52;c;ZXZpbA==\x07" in out


POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
NO_REQUESTS = (
    (b"nonsense\r\n\r\n", b"400"),
    (POST + b"content-length: -1\r\n\r\n", b"400"),
    (POST + b"content-length: 99999999999999\r\n\r\n", b"413"),
    (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (POST + b"x: " + b"x" * (200 << 10) + b"\r\n\r\n", b"400"),
    (b"\0" * 64 + b"\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n", b"400"),
)


async def test_what_is_no_request_is_refused_and_the_next_one_is_received() -> None:
    """It is not among the results: a line on standard error says why, for example that it was the start of TLS."""
    trailers = b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nt: 1\r\n\r\n"
    async with listen("--json", WEBHOOK_SECRET=SECRET) as receiver:
        for sent, expected in (*NO_REQUESTS, (POST + trailers, b"200")):
            assert (await receiver.answer(sent)).split()[1] == expected, sent[:40]
        code, out = await receiver.end(lines=1)
    assert (code, json.loads(out)["body"]) == (0, "hi")
    refused = "a request was refused with 400: "
    for why in ("Received HTTPS traffic on an HTTP port", "Invalid method encountered"):
        assert f"{refused}{why}\n" in receiver.told[-1]


async def test_a_body_that_does_not_arrive_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer says so and closes the connection. A line says after how long."""
    monkeypatch.setattr(receiver, "SECONDS", 0.05)
    said: list[str] = []

    def begins() -> re.Match[str] | None:
        said.append(capsys.readouterr().err)
        return re.search(r"listening at http://127\.0\.0\.1:(\d+)/", "".join(said))

    listens = asyncio.create_task(receiver.listen("0", 200, None))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int((await until(begins))[1]))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        async with asyncio.timeout(SAFETY_SECONDS):
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert (b" 408 " in answer, b"connection: close" in answer) == (True, True)
        writer.close()
    finally:
        listens.cancel()
        await asyncio.wait({listens})
    assert "its body did not arrive within 0.05 s" in capsys.readouterr().err


async def test_a_chunked_body_is_verified_as_a_whole() -> None:
    """The signature covers the bytes of all chunks, and no size and no extension of them."""
    body, now = b"\x00\xff{}\r\n0\r\n\r\n", int(time.time())
    chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in (body[:3], body[3:]))
    request = (
        "POST /chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        f"X-Service-Webhook-Timestamp: {now}\r\nX-Service-Webhook-Signature: {sign(SECRET, now, body)}\r\n\r\n"
    ).encode() + chunks
    async with listen("--json", WEBHOOK_SECRET=SECRET) as receiver:
        assert (await receiver.answer(request + b"0\r\n\r\n")).split()[1] == b"200"
        code, out = await receiver.end(lines=1)
    received = json.loads(out)
    assert (code, received["verified"], received["bodyBytes"]) == (0, "verified", len(body))


async def test_requests_of_one_connection_are_each_received_as_they_came() -> None:
    """Order and case of headers are kept; an answer 204 has no body and no length of one."""
    first = b"PATCH /1 HTTP/1.1\r\nhOST: x\r\nB: 2\r\na: 1\r\nb: 3\r\nContent-Length: 2\r\n\r\nhi"
    second = b"GET //2?q=%41 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with listen("--json", "--status", "204", WEBHOOK_SECRET=SECRET) as receiver:
        reader, writer = await receiver.opened()
        for sent in (first, second):
            writer.write(sent)
            async with asyncio.timeout(SAFETY_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 204 ")
            assert b"content-length" not in head
        _, out = await receiver.end(lines=2)
        writer.close()
    one, two = map(json.loads, out.splitlines())
    assert (one["method"], one["target"], one["body"]) == ("PATCH", "/1", "hi")
    assert one["headers"] == [["hOST", "x"], ["B", "2"], ["a", "1"], ["b", "3"], ["Content-Length", "2"]]
    assert (two["method"], two["target"], two["body"]) == ("GET", "//2?q=%41", "")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.ci)])
async def test_a_signal_ends_it_without_a_word(number: int) -> None:
    """Whatever its connections are doing: one is idle, one is in a request, one was answered, one was left."""
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    async with listen(WEBHOOK_SECRET=SECRET) as receiver:
        told = len(receiver.told)
        _, left = await receiver.opened(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        await left.drain()
        left.close()
        opened = [await receiver.opened(sent) for sent in (b"", request[:-2], request)]
        async with asyncio.timeout(SAFETY_SECONDS):
            await opened[2][0].readline()
        code, _ = await receiver.end(number)
        for _, writer in opened:
            writer.transport.abort()
    assert (code, receiver.told[told:]) == (0, [""])


def test_a_taken_port_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """It says what to do; with an address before it, another address is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for said in (str(port), f"127.0.0.1:{port}"):
            assert main(["listen", "--port", said]) == 2
        for wrong in ("x", "65536", "::1", "127.0.0.1:"):
            assert main(["listen", "--port", wrong]) == 2
    assert (
        f"port {port} cannot be listened at: Address already in use; give another --port"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "verified"),
        ({"age": 299}, "verified"),
        ({"age": 301}, "stale"),
        ({"age": -301}, "stale"),
        ({"body": b"x"}, "wrong"),
        ({"secret": "other"}, "wrong"),
        ({"timestamp": "0017"}, "wrong"),
        ({"timestamp": "٣"}, "wrong"),
        ({"signature": "v1,\udcff"}, "wrong"),
        ({"signature": None}, "unsigned"),
    ],
    ids=str,
)
def test_a_signature_is_judged(changes: dict[str, Any], verdict: str) -> None:
    """Over the raw body and the timestamp, which may be five minutes away (§5.3.5)."""
    now = 1_700_000_000
    at = now - changes.get("age", 0)
    signature = changes.get("signature", sign(changes.get("secret", SECRET), at, b"{}"))
    headers = {"x-service-webhook-timestamp": changes.get("timestamp", str(at))}
    if signature is not None:
        headers["x-service-webhook-signature"] = signature
    assert verify(SECRET, headers, changes.get("body", b"{}"), now) == verdict


async def test_each_phase_takes_its_time(tmp_path: Path) -> None:
    """A receiver that is slow to answer, or to send its answer, shows in the phase that waits for it; its body is escaped."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n\x1b[")
        await asyncio.sleep(0.2)
        writer.write(b"1m\nfine")

    began = time.monotonic()
    async with listening(serve) as port:
        sent = await command("send-test", f"http://127.0.0.1:{port}/", cwd=tmp_path, **DEVELOPMENT)
    assert sent.code == 0
    phases = phases_of(sent)
    assert phases.pop("total") <= (time.monotonic() - began) * 1000
    assert phases["wait"] >= 480
    assert sent.out.endswith("\n    \\x1b[1m\n    fine\n")


async def test_why_nothing_was_sent(tmp_path: Path) -> None:
    """The egress rules are those of the settings, and nothing is connected to that they forbid."""
    async with recorder() as receiver:
        refused = await command("send-test", receiver.url, cwd=tmp_path, FLOWACTIONS_ENVIRONMENT="")
        assert receiver.requests == []
    assert refused.code == 1
    assert "are not allowed (loopback)" in refused.out
    with held_port() as port:
        lost = await command("send-test", f"http://127.0.0.1:{port}/", cwd=tmp_path, **DEVELOPMENT)
    assert (lost.code, [*phases_of(lost)]) == (1, ["resolve", "connect", "total"])
    assert " ms  failed here\n" in lost.out
    for url in ("ftp://x/", "http://user:s3cret@x/", "nonsense"):
        ended = await command("send-test", url, cwd=tmp_path, **DEVELOPMENT)
        assert ended.code == 1
        assert "not delivered: The URL" in ended.out
        assert "s3cret" not in ended.out + ended.err


async def test_the_host_s_transport_is_the_way(tmp_path: Path) -> None:
    """With ``--host``, its settings and its transport."""
    (tmp_path / "way_out.py").write_text(
        "import httpx\nfrom tests.support import SmallHost, development\n"
        "def make():\n"
        "    answer = lambda request: httpx.Response(299, text='by the host')\n"
        "    settings = development('sqlite:///f.db', FLOWACTIONS_EGRESS_PROXY='http://127.0.0.1:9')\n"
        "    return SmallHost(settings, transport=httpx.MockTransport(answer))\n"
    )
    sent = await command("send-test", "http://127.0.0.1:9/", "--host", "way_out:make", cwd=tmp_path)
    assert (sent.code, "it answered 299" in sent.out, "by the host" in sent.out) == (0, True, True)
    doctor = await command("doctor", "--host", "way_out:make", cwd=tmp_path)
    assert "skipped  proxy        not tried: the host sends through its own transport" in doctor.out
