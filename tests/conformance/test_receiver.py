from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from flowactions_conformance.receiver import Receiver, verify
from flowactions_conformance.serving import serve

NOW = 1_700_000_000.0


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    made = Receiver("s3cret")
    async with serve(made.app) as url:
        yield made, url


def signed(timestamp: str, body: bytes = b"{}", secret: str = "s3cret") -> dict[str, str]:
    mac = hmac.new(secret.encode(), timestamp.encode() + b"." + body, "sha256").hexdigest()
    return {"x-service-webhook-timestamp": timestamp, "x-service-webhook-signature": f"v1,{mac}"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (signed("1699999700"), "verified"),
        (signed("1700000300"), "verified"),
        (signed("1700000301"), "stale"),
        ({}, "unsigned"),
        (signed("1700000000", b"{} "), "wrong"),
        (signed("1700000000", secret="other"), "wrong"),
        (signed("1700000000.5"), "wrong"),
        (signed("١٧٠٠٠٠٠٠٠٠"), "wrong"),
        (signed(""), "wrong"),
        (signed("9" * 400), "wrong"),
        ({**signed("1700000000"), "x-service-webhook-signature": "v1,"}, "wrong"),
        ({name: value.upper() for name, value in signed("1700000000").items()}, "wrong"),
        ({**signed("1700000000"), "x-service-webhook-signature": "v1,é\ud800"}, "wrong"),
    ],
)
def test_a_signature_is_judged(headers: dict[str, str], expected: str) -> None:
    """Right, late, missing and malformed signatures are told apart, and nothing raises (§5.3, §5.3.4, §5.3.5)."""
    assert verify("s3cret", headers, b"{}", NOW) == expected


async def test_an_arrival_is_recorded_as_it_came(receiver: tuple[Receiver, str]) -> None:
    """Method, path, headers, body, verdict and repetition are there."""
    recorded, url = receiver
    headers = {**signed(str(int(time.time())), b"\xff{}"), "x-service-webhook-id": "evt_1"}
    async with httpx.AsyncClient(timeout=300) as client:
        for _ in range(2):
            answer = await client.put(f"{url}/hooks/a%20b?c=d", content=b"\xff{}", headers=headers)
            assert answer.status_code == 200
        shown = (await client.get(f"{url}/inspect/deliveries")).json()["data"]
    assert [(a.method, a.path, a.signature, a.seen) for a in recorded.arrivals] == [
        ("PUT", "/hooks/a%20b?c=d", "verified", 1),
        ("PUT", "/hooks/a%20b?c=d", "verified", 2),
    ]
    assert shown[1]["body"] == "\ufffd{}"
    assert shown[1]["eventId"] == "evt_1"


async def test_repeated_headers_are_all_kept(receiver: tuple[Receiver, str]) -> None:
    """Headers are recorded in order, whatever their bytes. Without an event id, no request is a repetition."""
    recorded, url = receiver
    headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"x-service-webhook-signature", b"v1,\xe9\xff")]
    async with httpx.AsyncClient(timeout=300) as client:
        for _ in range(2):
            assert (await client.post(f"{url}/hooks/a", headers=headers)).status_code == 200
    for arrival in recorded.arrivals:
        assert [value for name, value in arrival.headers if name == "x-a"] == ["1", "2"]
        assert (arrival.signature, arrival.seen) == ("wrong", 1)


async def test_every_method_is_taken(receiver: tuple[Receiver, str]) -> None:
    """A sender may use any method, also one that few servers know."""
    recorded, url = receiver
    sent = [
        (method, path)
        for method in ("GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "PURGE")
        for path in ("/hooks", "/hooks/", "/hooks/a/b/c")
    ]
    async with httpx.AsyncClient(timeout=300) as client:
        for method, path in sent:
            assert (await client.request(method, f"{url}{path}")).status_code == 200
    assert [(arrival.method, arrival.path) for arrival in recorded.arrivals] == sent


async def test_the_signature_covers_what_is_not_kept(receiver: tuple[Receiver, str]) -> None:
    """A long body is cut for the record and verified whole."""
    recorded, url = receiver
    body = b"a" * 100_000
    async with httpx.AsyncClient(timeout=300) as client:
        await client.post(f"{url}/hooks/a", content=body, headers=signed(str(int(time.time())), body))
    (arrival,) = recorded.arrivals
    assert (len(arrival.body), arrival.signature) == (64 * 1024, "verified")


async def test_paths_choose_the_answer(receiver: tuple[Receiver, str]) -> None:
    """A status or a delay can be asked for, and the first arrivals of an event can be made to fail."""
    _, url = receiver
    async with httpx.AsyncClient(timeout=300) as client:
        answer = await client.post(f"{url}/hooks/status/503")
        assert answer.status_code == 503
        started = time.monotonic()
        assert (await client.post(f"{url}/hooks/slow/1?x")).status_code == 200
        assert time.monotonic() - started >= 1
        answers = [
            await client.post(f"{url}/hooks/fail-first/2/x", headers={"x-service-webhook-id": "evt_2"})
            for _ in range(3)
        ]
    assert [answer.status_code for answer in answers] == [500, 500, 200]


async def test_memory_is_bounded(receiver: tuple[Receiver, str]) -> None:
    """A body over one MiB is refused and not recorded, and only the newest thousand arrivals are kept."""
    recorded, url = receiver
    async with httpx.AsyncClient(timeout=300) as client:
        assert (await client.post(f"{url}/hooks/x", content=b"a" * (1024 * 1024 + 1))).status_code == 413
        for number in range(1005):
            await client.get(f"{url}/hooks/x", headers={"x-service-webhook-id": str(number)})
    assert len(recorded.arrivals) == 1000
    assert recorded.arrivals[-1].number == 1005
    assert len(recorded._seen) <= 1001
