from __future__ import annotations

import asyncio
import logging
from collections import Counter

import httpx
import pytest

from flowactions_hookspecs import FlowActions, Node, OriginGone
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.outages import outage_delay
from tests.outages import Outage
from tests.queueing import Queue, a_schedule, a_worker, ok
from tests.sending import SlowAnswer
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until


async def test_a_stop_finishes_what_is_in_flight(queue: Queue) -> None:
    """A worker that is cancelled while it sends writes the outcome before it ends."""
    row_id = await queue.put()
    slow = SlowAnswer()
    running = asyncio.create_task(a_worker(queue, slow).run())
    await slow.arrived.wait()
    running.cancel()
    await asyncio.sleep(0.02)
    slow.released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await queue.row(row_id)).status == "delivered"


async def test_a_worker_knows_that_it_could_not_write(queue: Queue) -> None:
    """Then leases of others that ended since its last success are in doubt (decision 54)."""
    assert queue.store.contact.grace() > 0
    await queue.store.touch()
    assert queue.store.contact.grace() == 0
    await queue.run("ALTER TABLE flowactions_outbox RENAME TO away")
    with pytest.raises(StorageUnavailable):
        await queue.store.touch()
    assert queue.store.contact.grace() > 0
    await queue.run("ALTER TABLE away RENAME TO flowactions_outbox")


async def test_a_stop_gives_back_what_has_not_begun(queue: Queue) -> None:
    """What was claimed and waits for its signing secret is due at once for other workers, and was not sent."""
    row_id = await queue.put()
    asked, answer, sent = asyncio.Event(), asyncio.Event(), list[object]()

    async def secret(origin: object) -> str:
        asked.set()
        await answer.wait()
        return "s"

    worker = a_worker(queue, sent.append, signing_secret=secret)
    running = asyncio.create_task(worker.run())
    await asked.wait()
    running.cancel()
    await asyncio.sleep(0.02)
    answer.set()
    await asyncio.wait({running})
    row = await queue.row(row_id)
    assert (row.status, row.attempts, row.claimed_by, sent) == ("pending", 0, None, [])
    assert [claimed.id for claimed in await queue.store.claim(1)] == [row_id]


def test_an_outage_is_tried_with_backoff() -> None:
    """Soon at first, then every ten seconds, for however long; half as long by chance, so that workers are not in step."""
    assert [outage_delay(failures, 10, 1) for failures in range(1, 8)] == [0.5, 1, 2, 4, 8, 10, 10]
    assert outage_delay(10**6, 10, 1) == 10
    assert outage_delay(10**6, 10, 0) == 5


async def test_a_reason_that_no_database_could_store_is_stored(queue: Queue) -> None:
    """A host's reason that has NUL bytes and half a character is recorded all the same."""
    row_id = await queue.put(max_attempts=1)

    async def gone(origin: object) -> None:
        raise OriginGone("bad \x00 header \ud800" + "x" * 10_000)

    await a_schedule(queue, ok, signing_secret=gone).tick()
    row = await queue.row(row_id)
    assert row.status == "dead"
    assert row.last_error.startswith("bad   header ?xxx")
    assert len(row.last_error) <= 1000


@pytest.mark.ci
@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
async def test_a_database_lost_between_sending_and_writing_costs_nothing(
    outage: Outage, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty rows are on their way when the database goes: each arrives once, and all are delivered when it is back."""
    caplog.set_level(logging.INFO)
    arrived: list[str] = []
    answer = asyncio.Event()

    async def receive(request: httpx.Request) -> httpx.Response:
        arrived.append(request.headers["x-service-webhook-id"])
        await answer.wait()
        return httpx.Response(200, content=b"x" * 2048)

    # A lane that has not answered has one in flight.
    nodes = [
        Node(
            id=f"n{number}",
            type="webhook",
            config={"webhookUrl": f"http://127.0.0.1/{number}", "webhookBody": "{}"},
        )
        for number in range(20)
    ]
    node = nodes[0]
    before = FlowActions.load(SmallHost(development(outage.url, FLOWACTIONS_HOST_WORKER="off")))
    async with before.lifespan():
        for each in nodes:
            assert (await before.reach(a_walk(), each)).status == "queued"
    settings = development(outage.url, FLOWACTIONS_DELIVERY=delivery, FLOWACTIONS_DESTINATION_LIMIT="20")
    host = SmallHost(settings, database=outage.engine(), transport=httpx.MockTransport(receive))
    actions = FlowActions.load(host)
    async with (
        actions.lifespan(),
        httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client,
    ):
        await until(lambda: len(arrived) == 20)
        async with outage.lasting():
            answer.set()
            await until(lambda: "out of reach" in caplog.text)
            if outage.kind != "disk full":  # a small row may still find room
                failed = await actions.reach(a_walk(), node)
                assert (failed.status, failed.reason, failed.halt) == ("failed", "storage_unavailable", False)
            if outage.kind == "refused":
                looked = await client.get("/v1/webhooks/outbox")
                assert (looked.status_code, looked.json()["code"]) == (503, "storage_unavailable")
            await asyncio.sleep(1)
        await until(lambda: len(host.finished) == 20)
        shown = (await client.get("/v1/webhooks/outbox")).json()["data"]
        assert [row["status"] for row in shown] == ["delivered"] * 20
        assert sorted(arrived) == sorted(set(arrived))
        assert len(arrived) == 20
        assert (await actions.reach(a_walk(), node)).status == "queued"
        await until(lambda: len(host.finished) == 21)
        await until(lambda: "reachable again" in caplog.text)
    if host.database is not None:
        await host.database.dispose()
    said = [record.getMessage() for record in caplog.records if record.name == "flowactions.outbox"]
    causes = Counter("connection was lost" in message for message in said if "out of reach" in message)
    # A server that becomes read-only also ends connections. If a statement notices that, the log has a second line.
    if outage.kind == "read-only server":
        assert causes.pop(True, 1) == 1
    assert causes.total() == 1
    assert sum("reachable again" in message for message in said) == 1


async def test_outcomes_that_could_not_be_written_at_a_stop_are_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stops during an outage tells how many will be sent again."""
    await queue.put()
    slow = SlowAnswer()
    running = asyncio.create_task(a_worker(queue, slow).run())
    await slow.arrived.wait()

    async def away(*_: object) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(queue.database, "in_transaction", away)
    running.cancel()
    slow.released.set()
    await asyncio.wait({running})
    assert "the outcomes of 1 deliveries could not be written" in caplog.text
