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
        (signed("1700000000"), "verified"),
        (signed("1699999700"), "verified"),
        (signed("1700000300"), "verified"),
        (signed("1699999699"), "stale"),
        (signed("1700000301"), "stale"),
        ({}, "unsigned"),
        ({"x-service-webhook-timestamp": "1700000000"}, "unsigned"),
        (signed("1700000000", b"{} "), "wrong"),
        (signed("1700000000", secret="other"), "wrong"),
        (signed("1700000000.5"), "wrong"),
        (signed("+1700000000"), "wrong"),
        (signed("١٧٠٠٠٠٠٠٠٠"), "wrong"),
        (signed(""), "wrong"),
        (signed("9" * 400), "wrong"),
        ({**signed("1700000000"), "x-service-webhook-signature": "v1,"}, "wrong"),
        ({**signed("1700000000"), "x-service-webhook-signature": ""}, "wrong"),
        ({**signed("1700000000"), "x-service-webhook-signature": "v1,é\ud800"}, "wrong"),
        (
            {
                **signed("1700000000"),
                "x-service-webhook-signature": signed("1700000000")["x-service-webhook-signature"].upper(),
            },
            "wrong",
        ),
    ],
)
def test_a_signature_is_judged(headers: dict[str, str], expected: str) -> None:
    """Right, late, missing and malformed signatures are told apart, and nothing raises (§5.3)."""
    assert verify("s3cret", headers, b"{}", NOW) == expected


async def test_an_arrival_is_recorded_as_it_came(receiver: tuple[Receiver, str]) -> None:
    """Method, path, headers, body, verdict and repetition are there."""
    recorded, url = receiver
    headers = {**signed(str(int(time.time())), b"\xff{}"), "x-service-webhook-id": "evt_1"}
    async with httpx.AsyncClient() as client:
        for _ in range(2):
            answer = await client.put(f"{url}/hooks/a/b", content=b"\xff{}", headers=headers)
            assert answer.status_code == 200
        shown = (await client.get(f"{url}/inspect/deliveries")).json()["data"]
    assert [(a.method, a.path, a.signature, a.seen) for a in recorded.arrivals] == [
        ("PUT", "/hooks/a/b", "verified", 1),
        ("PUT", "/hooks/a/b", "verified", 2),
    ]
    assert shown[1]["body"] == "\ufffd{}"
    assert shown[1]["eventId"] == "evt_1"


async def test_paths_choose_the_answer(receiver: tuple[Receiver, str]) -> None:
    """A status can be asked for, and the first arrivals of an event can be made to fail."""
    _, url = receiver
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/hooks/status/503")
        assert answer.status_code == 503
        answers = [
            await client.post(f"{url}/hooks/fail-first/2/x", headers={"x-service-webhook-id": "evt_2"})
            for _ in range(3)
        ]
    assert [answer.status_code for answer in answers] == [500, 500, 200]


async def test_memory_is_bounded(receiver: tuple[Receiver, str]) -> None:
    """A body over one MiB is refused, and long ones are kept in part."""
    recorded, url = receiver
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{url}/hooks/x", content=b"a" * (1024 * 1024 + 1))).status_code == 413
        await client.post(f"{url}/hooks/x", content=b"a" * 100_000)
        for number in range(1005):
            await client.get(f"{url}/hooks/x", headers={"x-service-webhook-id": str(number)})
    assert len(recorded.arrivals) == 1000
    assert recorded.arrivals[-1].number == 1006
    assert len(recorded._seen) <= 1001
