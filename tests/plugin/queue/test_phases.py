from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from sqlalchemy import insert

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress import sender
from flowactions_plugin.egress.attempt import NOTES, SENT_AGAIN, SLOW_MS, Outcome
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue import outcomes
from flowactions_plugin.queue.claimed import Attempted
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.storage.schema import attempts
from tests.loopback import listening
from tests.queueing import Queue, claimed
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until

WAIT_MS = 300


def serving(
    status: bytes, wait_ms: int
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Give a receiver that thinks for a while, and answers with a status."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(wait_ms / 1000)
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()

    return serve


@pytest.mark.parametrize(
    ("status", "wait_ms", "kept"),
    [(b"500 Oops", WAIT_MS, True), (b"200 OK", WAIT_MS, True), (b"500 Oops", 0, True), (b"200 OK", 0, False)],
)
@sampled("delivery", ["scheduled", "continuous"], size=1)
async def test_an_attempt_that_fails_or_is_slow_says_how_long_each_phase_took(
    database_url: str, delivery: str, monkeypatch: pytest.MonkeyPatch, status: bytes, wait_ms: int, kept: bool
) -> None:
    """It has the phases that it went through; together these are no longer than the attempt."""
    if not kept:
        for module in (sender, outcomes):
            monkeypatch.setattr(module, "SLOW_MS", 60_000)  # this machine may be slow
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY=delivery))
    actions = FlowActions.load(host)
    client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
    async with listening(serving(status, wait_ms)) as port, actions.lifespan(), client:
        config = {"webhookUrl": f"http://127.0.0.1:{port}/", "webhookRetryOnFailure": False}
        assert (await actions.reach(a_walk(), Node(id="n", type="webhook", config=config))).status == "queued"
        await until(lambda: host.finished)
        (row,) = (await client.get("/v1/webhooks/outbox")).json()["data"]
        shown = (await client.get(f"/v1/webhooks/outbox/{row['id']}")).json()["data"]
    (attempt,) = shown["attemptLog"]
    assert list(attempt["phases"]) == (["resolve", "connect", "send", "wait"] if kept else [])
    assert attempt["phases"].get("wait", 0) >= wait_ms - 10
    assert attempt["phases"].get("connect", 0) < WAIT_MS
    assert sum(attempt["phases"].values()) <= attempt["durationMs"] + len(attempt["phases"])


@pytest.mark.parametrize(
    ("status", "duration_ms", "probe", "kept"),
    [
        (500, 1, False, '{"wait":7,"again":0}'),
        (200, 1, False, '{"again":0}'),
        (200, SLOW_MS, False, '{"wait":7,"again":0}'),
        (500, 1, True, '{"wait":7,"again":0,"probe":0}'),
        (200, 1, True, '{"again":0}'),
    ],
)
def test_what_is_kept_of_an_attempt(status: int, duration_ms: int, *, probe: bool, kept: str) -> None:
    """The phases of one that failed or was slow, every note, and that a probe has failed."""
    outcome = Outcome(0, duration_ms, status_code=status, phases={"wait": 0.007}, notes=(SENT_AGAIN,))
    change = Transition("delivered" if status == 200 else "retrying")
    assert outcomes.phases_text(Attempted(claimed(is_probe=probe), outcome, change)) == kept


@pytest.mark.parametrize("status", [200, 500])
async def test_every_note_is_shown_as_it_was_kept(queue: Queue, status: int) -> None:
    """Of an attempt that delivers, too, which has no error."""
    row_id = await queue.put()
    (claim,) = await queue.store.claim(1)
    outcome = Outcome(0, 1, status_code=status, notes=tuple(NOTES.values()))
    await queue.complete(claim, outcome, Transition("delivered" if status == 200 else "dead"))
    shown = await queue.queries.delivery(Scope("acme"), row_id)
    assert shown is not None
    (attempt,) = shown.row.attempt_log
    assert (attempt.note, attempt.error) == ("; ".join(NOTES.values()), None)
    assert (shown.row.last_error is None) is (status == 200)


@sampled(
    "stored",
    ["not JSON", "[]", '{"wait": -1}', '{"wait": "long"}', '{"wait": 1e400}', '{"wait": 9007199254740993}'],
    size=3,
)
async def test_stored_phases_that_cannot_be_read_are_left_out(queue: Queue, stored: str) -> None:
    """The rest of the attempt is shown, and that something is wrong with it."""
    row_id = await queue.put()
    async with queue.database.write() as connection:
        values = {"number": 1, "started_at": 0, "duration_ms": 5, "error": "lost", "phases": stored}
        await connection.execute(insert(attempts).values(delivery_id=row_id, **values))
    shown = await queue.queries.delivery(Scope("acme"), row_id)
    assert shown is not None
    assert [(each.error, each.phases) for each in shown.row.attempt_log] == [("lost", {})]
    assert shown.row.defect == "stored values that cannot be read: attempts"
