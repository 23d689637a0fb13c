"""What the log of attempts says beside a result: the request went out twice, or the answer's headers were not kept."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress import pool
from flowactions_plugin.egress.attempt import CLOSED_KEPT, FLAWED, SENT_AGAIN, UNSIGNED
from tests.loopback import listening
from tests.recorder import OK, status
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until

AGAIN = f"{CLOSED_KEPT}; {SENT_AGAIN}"
MUCH = "x: " + "y" * 70_000

ANSWERS: list[bytes | None] = [
    OK,
    None,  # the connection is closed
    status(201),  # to the same request, on a fresh connection
    None,
    status(500),  # likewise
    status(204, MUCH),
    status(302, MUCH),
]


@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
async def test_each_attempt_says_what_was_noted_of_it(
    database_url: str, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that delivers, too, which has no error; the last error of a webhook is an error only."""
    monkeypatch.setattr(
        pool, "idle_seconds", lambda _head: 300.0
    )  # however long a busy machine takes from one to the next
    settings = development(database_url, FLOWACTIONS_DELIVERY=delivery, FLOWACTIONS_TICK_SECONDS="0.05")
    host = SmallHost(settings)
    actions = FlowActions.load(host)
    client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
    answers = iter(ANSWERS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            answer = next(answers)
            if answer is None:
                return
            writer.write(answer)
            await writer.drain()

    rows: list[dict[str, Any]] = []
    async with listening(serve) as port, actions.lifespan(), client:
        for number in range(1, 6):
            config = {"webhookUrl": f"http://127.0.0.1:{port}/"}
            assert (
                await actions.reach(a_walk(), Node(id=f"n{number}", type="webhook", config=config))
            ).status == "queued"
            await until(partial(_has_ended, host, number))
            rows.append((await client.get(f"/v1/webhooks/outbox/{host.finished[-1].id}")).json()["data"])
    shown = []
    for row in rows:
        (attempt,) = row["attemptLog"]
        shown.append(
            (row["status"], row["lastError"], attempt["statusCode"], attempt["error"], attempt["note"])
        )
    redirected = "it answered 302, a redirect: webhooks do not follow it"
    assert shown == [
        ("delivered", None, 200, None, UNSIGNED),
        ("delivered", None, 201, None, f"{AGAIN}; {UNSIGNED}"),
        ("dead", "it answered 500", 500, None, f"{AGAIN}; {UNSIGNED}"),
        ("delivered", None, 204, None, f"{FLAWED}; {UNSIGNED}"),
        ("dead", redirected, 302, None, f"{FLAWED}; {UNSIGNED}"),
    ]
    assert [each.error for each in host.finished] == [None] * 5


def _has_ended(host: SmallHost, number: int) -> bool:
    return len(host.finished) == number
