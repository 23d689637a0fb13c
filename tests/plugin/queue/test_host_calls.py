"""What the host cannot be asked for is waited for: no attempt is used up, and it is said once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import FlowNodeOrigin, OriginGone
from flowactions_plugin.queue.host_calls import Secret, SecretSource
from flowactions_plugin.queue.rules import WAIT_CAP_SECONDS, WAIT_LIMIT_SECONDS
from tests.queueing import ORIGIN, PATIENT, Queue, a_schedule, continuously, delivering, ok
from tests.support import SmallHost
from tests.waiting import until

SECRET = "whsec_never_seen"


class ShopHost(SmallHost):
    """A host whose signing secret is what a test says, or what it does."""

    answer: Any = None

    async def signing_secret(self, origin: Any) -> Any:
        answer = self.answer
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer()
        return answer


class SyncHost(SmallHost):
    def signing_secret(self, origin: Any) -> Any:
        return SECRET


async def hang() -> None:
    await asyncio.Event().wait()


WRONG = [
    (SECRET.encode(), "returned bytes, which is neither str nor None"),
    (7, "returned int, which"),
    ([SECRET], "returned list, which"),
    (SECRET + "\ud800", "returned text that is not valid Unicode"),
    (RuntimeError(SECRET), "raised RuntimeError"),
    (TimeoutError(), "raised TimeoutError"),
    (asyncio.CancelledError(), "was cancelled from within"),
    (hang, "did not answer within 0.2 s"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG)
async def test_rows_wait_while_their_signing_secret_fails(
    queue: Queue, answer: Any, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names host and method and never the value; one line for all rows, and delivered once it is mended."""
    monkeypatch.setattr("flowactions_plugin.queue.host_calls.HOST_SECONDS", 0.2)
    monkeypatch.setattr("flowactions_plugin.queue.host_calls.ASK_AGAIN_SECONDS", (0.0, 0.0))
    caplog.set_level(logging.INFO)
    host = ShopHost()
    host.answer = answer
    ids = [await queue.put() for _ in range(5)]
    claims = a_schedule(queue, ok, signing_secret=host.signing_secret)
    for _ in range(2):
        assert await claims.tick() == 5
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
    for row_id in ids:
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.claimed_by) == ("pending", 0, None)
        assert row.last_error.startswith(f"Host.signing_secret of ShopHost {said}")
        assert SECRET not in row.last_error
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert SECRET not in "\n".join(record.getMessage() for record in caplog.records)
    host.answer = SECRET
    await claims.tick()
    for row_id in ids:
        row = await queue.row(row_id)
        assert (row.status, row.waiting_since, row.last_error) == ("delivered", None, None)


async def test_a_method_that_is_not_async_is_named(queue: Queue) -> None:
    """What is not awaitable names the method."""
    row_id = await queue.put()
    await a_schedule(queue, ok, signing_secret=SyncHost().signing_secret).tick()
    row = await queue.row(row_id)
    assert row.last_error == "Host.signing_secret of SyncHost returned str: it has to be async"


async def test_the_wait_doubles_and_ends_after_ninety_days(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Five seconds, doubling to ten minutes; then it is dead with that reason, said once, and the host is told."""
    host, told = ShopHost(), list[Any]()

    async def finished(delivery: Any) -> None:
        told.append((delivery.status, delivery.attempts, delivery.error))

    host.answer = b"x"
    row_id = await queue.put()
    claims = a_schedule(queue, ok, signing_secret=host.signing_secret, delivery_finished=finished)
    pauses = []
    for waited in (None, 0, 5, 10, 40, 300, 599, 1000, WAIT_LIMIT_SECONDS - 5):
        now = int(time.time() * 1000)
        since = "NULL" if waited is None else now - waited * 1000
        await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = 0, waiting_since = {since}")  # noqa: S608
        await claims.tick()
        row = await queue.row(row_id)
        pauses.append(round((row.next_attempt_at - row.updated_at) / 1000))
    assert pauses == pytest.approx([5, 5, 5, 10, 40, 300, 599, WAIT_CAP_SECONDS, WAIT_CAP_SECONDS], abs=2)
    since = int(time.time() - WAIT_LIMIT_SECONDS - 1) * 1000
    await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = 0, waiting_since = {since}")  # noqa: S608
    await claims.tick()
    row = await queue.row(row_id)
    assert (row.status, row.attempts, row.waiting_since) == ("dead", 0, None)
    assert "Host.signing_secret of ShopHost returned bytes" in row.last_error
    assert [(status, attempts) for status, attempts, _ in told] == [("dead", 0)]
    assert caplog.text.count("is dead: it has waited too long") == 1
    # Retried, it may wait as long again.
    assert await queue.queries.retry(row_id, "acme")
    await claims.tick()
    assert (await queue.row(row_id)).status == "pending"


async def test_each_origin_is_logged_once(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Each origin that waits is one line, and the traceback is shown once."""
    host = ShopHost()
    host.answer = RuntimeError("down")
    for number in range(3):
        origin = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id=str(number))
        for _ in range(4):
            await queue.put(origin=origin)
    await a_schedule(queue, ok, signing_secret=host.signing_secret).tick()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 3
    assert sum(record.exc_info is not None and record.exc_info[0] is not None for record in errors) == 1


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
async def test_a_slow_secret_delays_only_its_own_deliveries(
    queue: Queue, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others of the same claim end while it is awaited; then its own do."""
    monkeypatch.setattr("flowactions_plugin.queue.host_calls.HOST_SECONDS", 300.0)
    slow = FlowNodeOrigin(organization_id="slow", agent_id="a", flow_id="f", node_id="n")
    answered, finished = asyncio.Event(), Counter[str]()

    async def secret(origin: Any) -> None:
        if origin == slow:
            await answered.wait()

    async def count(delivery: Any) -> None:
        finished[delivery.organization_id] += 1

    options: dict[str, Any] = {"signing_secret": secret, "delivery_finished": count, "timing": PATIENT}
    queue = Queue(queue.database, PATIENT.lease_seconds)
    for number in range(200):
        changes = {"organization_id": "slow", "origin": slow} if number % 50 == 0 else {}
        await queue.put(**changes)
    make = a_schedule if mode == "scheduled" else continuously
    async with delivering(queue, make(queue, ok, 200, **options), PATIENT):
        try:
            await until(lambda: finished["acme"] == 196, seconds=300)
            assert finished["slow"] == 0
        finally:
            answered.set()
        await until(lambda: finished["slow"] == 4, seconds=300)


async def test_an_origin_that_has_just_failed_is_not_asked_by_every_claim() -> None:
    """It is asked again after a second, then after two, up to ten; each of its deliveries waits meanwhile, with the reason."""
    asked, now = list[float](), 1000.0

    async def secret(origin: Any) -> str:
        asked.append(now)
        raise RuntimeError("down")

    source = SecretSource(secret, clock=lambda: now)
    for _ in range(300):
        source.renew()
        assert "raised RuntimeError" in str((await source.of(ORIGIN)).failed)
        now += 0.125
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize("given", ["", None])
async def test_an_empty_secret_is_none(given: str | None) -> None:
    """Anybody can sign with it: the delivery is sent without a signature, and does not wait (§5.3.7)."""

    async def secret(_: Any) -> str | None:
        return given

    source = SecretSource(secret)
    source.renew()
    assert await source.of(ORIGIN) == Secret()


async def test_a_secret_that_is_there_at_once_costs_no_turn_of_the_loop() -> None:
    """The first delivery of an origin asks in its own task; the others of its claim have the answer."""
    asked = list[Any]()

    async def secret(origin: Any) -> str:
        asked.append(origin)
        return SECRET

    source = SecretSource(secret)
    for claims in range(1, 3):
        source.renew()
        for _ in range(2):
            with pytest.raises(StopIteration) as ended:
                source.of(ORIGIN).send(None)
            assert ended.value.value.value == SECRET
        assert asked == [ORIGIN] * claims


async def test_a_secret_that_is_being_asked_for_is_not_asked_for_again() -> None:
    """Deliveries of a later claim wait for the same answer; the next claim asks anew."""
    asked, answered = list[Any](), asyncio.Event()

    async def secret(origin: Any) -> str:
        asked.append(origin)
        await answered.wait()
        return SECRET

    source = SecretSource(secret)
    waiting = []
    for _ in range(3):
        source.renew()
        waiting.append(asyncio.create_task(source.of(ORIGIN)))
        await asyncio.sleep(0)
    answered.set()
    assert [(await each).value for each in waiting] == [SECRET] * 3
    assert asked == [ORIGIN]
    source.renew()
    await source.of(ORIGIN)
    assert asked == [ORIGIN] * 2


class Listener(SmallHost):
    answer: Any = None

    def delivery_finished(self, delivery: Any) -> Any:
        self.finished.append(delivery)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [None, 7, RuntimeError("no"), asyncio.CancelledError()])
async def test_a_host_that_fails_on_notification_affects_no_delivery(
    queue: Queue, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the delivery has ended."""
    host = Listener()
    host.answer = answer
    ids = [await queue.put() for _ in range(3)]
    await a_schedule(queue, ok, delivery_finished=host.delivery_finished).tick()
    assert [(await queue.row(row_id)).status for row_id in ids] == ["delivered"] * 3
    assert len(host.finished) == 3
    assert caplog.text.count("the host failed to take note of delivery") == 3


async def test_every_end_is_one_line(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, used up, gone, corrupt, cancelled: a WARNING with id, destination and reason, without what a URL hides (§3.1)."""
    gone = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="gone")

    async def secret(origin: Any) -> str | None:
        if origin == gone:
            raise OriginGone("the node\nis gone")
        return None

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/down":
            raise httpx.ConnectError("no\r\nroute")
        return httpx.Response(410)

    url = "http://127.0.0.1:80/{}?token=hidden"
    place = {"destination": "http://127.0.0.1:80", "max_attempts": 1}
    reasons = {
        await queue.put(url=url.format("x"), **place): "it answered 410",
        await queue.put(url=url.format("down"), **place): "cannot connect to 127.0.0.1:80: the network failed",
        await queue.put(url="http://user:hidden@127.0.0.1/", **place): "user name",
        await queue.put(url=url.format("x"), origin=gone, **place): "the node is gone",
    }
    await a_schedule(queue, answer, signing_secret=secret).tick()
    cancelled = await queue.put(url=url.format("x"), **place)
    assert await queue.queries.cancel(cancelled, "acme", "cancelled by Ada\n")
    reasons[cancelled] = "cancelled by Ada"
    said = [record for record in caplog.records if "is dead" in record.getMessage()]
    assert {record.levelno for record in said} == {logging.WARNING}
    assert len(said) == len(reasons)
    for row_id, reason in reasons.items():
        (line,) = [record.getMessage() for record in said if row_id in record.getMessage()]
        assert line.startswith(f"delivery {row_id} to http://127.0.0.1:80 is dead: ")
        assert reason in line
        assert line.isprintable()
        assert "hidden" not in line
