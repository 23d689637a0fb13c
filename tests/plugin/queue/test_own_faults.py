"""Faults of this side: what is lost, lacking or cut here uses up no attempt."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress import lag as lag_module
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.egress.resources import SHORTAGES, shortage
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.hand import MOST_STALLS
from flowactions_plugin.queue.outcomes import OutcomeStore
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.worker import Worker
from tests.loopback import listening
from tests.queueing import Queue, a_schedule, an_executor, continuously
from tests.recorder import OK
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until


class TestLostTime:
    """The event loop stands still meanwhile."""

    async def test_a_timeout_while_this_process_stands_still_is_forgiven_five_times_in_a_row(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that is always behind does not try a silent receiver for ever: the sixth is an attempt."""
        monkeypatch.setattr(lag_module, "GRACE_SECONDS", 0.0)
        now = [0.0]

        async def silent(request: httpx.Request) -> httpx.Response:
            now[0] += 10
            await asyncio.Event().wait()
            raise AssertionError

        timing = Timing(lease_seconds=300.0, deadline_seconds=0.02)
        queue = Queue(queue.database, timing.lease_seconds)
        with LagMeter(lambda: now[0]) as lag:
            row_id = await queue.put(max_attempts=2)
            claims = a_schedule(queue, silent, lag=lag, timing=timing)
            for attempts in (*[0] * MOST_STALLS, 1, *[1] * MOST_STALLS, 2):
                now[0] = lease_clock()
                lag._tick()
                await claims.tick()
                row = await queue.row(row_id)
                assert row.attempts == attempts
                await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
        assert row.status == "dead"

    async def test_the_lease_begins_before_the_claim_is_asked_for(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However long the claim's answer is on the way, the row is not held longer than the database holds it."""
        await queue.put()
        at_once = queue.database.in_transaction

        async def slow(work: Any) -> Any:
            answer = await at_once(work)
            await asyncio.sleep(0.3)
            return answer

        monkeypatch.setattr(queue.database, "in_transaction", slow)
        (row,) = await queue.store.claim(1)
        assert row.lease_end <= lease_clock() + 30 - 0.3


class TestShortages:
    @pytest.mark.parametrize("number", sorted(SHORTAGES))
    async def test_a_shortage_is_found_anywhere_in_the_chain_of_causes(self, number: int) -> None:
        """As the error itself, as a cause, a context, an argument, an attribute, in a group."""
        lack = OSError(number, os.strerror(number))
        wrapped = RuntimeError("outer")
        wrapped.__cause__ = ExceptionGroup("all", [ValueError("x"), lack])
        assert shortage(lack) == os.strerror(number)
        assert shortage(RuntimeError("x", lack)) == os.strerror(number)
        assert shortage(wrapped) == os.strerror(number)

    def test_memory_and_threads(self) -> None:
        """Python tells these in its own way."""
        assert shortage(MemoryError()) == "memory"
        assert shortage(RuntimeError("can't start new thread")) == "threads"

    def test_a_lookup_that_fails_without_descriptors_is_a_shortage(self) -> None:
        """Without descriptors a lookup fails as if there were no such name."""
        failed = OSError()
        failed.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert shortage(failed) is None
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            assert shortage(failed) == "Too many open files"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    @pytest.mark.parametrize(
        "number", [errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL]
    )
    def test_a_network_error_is_an_attempt(self, number: int) -> None:
        """Only this side's lacks are meant."""
        assert shortage(OSError(number, os.strerror(number))) is None

    async def test_a_shortage_gives_rows_back_and_is_logged_once(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No attempt is used up, and when it is over that is said as well."""
        caplog.set_level(logging.INFO)
        ids = [await queue.put(max_attempts=1) for _ in range(4)]
        lacking = True

        def answer(request: httpx.Request) -> httpx.Response:
            if lacking:
                raise httpx.ConnectError("All connection attempts failed") from OSError(
                    errno.EMFILE, "Too many open files"
                )
            return httpx.Response(200)

        claims = a_schedule(queue, answer)
        await claims.tick()
        for row_id in ids:
            row = await queue.row(row_id)
            assert (row.status, row.attempts, row.claimed_by) == ("pending", 0, None)
            assert row.next_attempt_at > row.updated_at + 4000
        lacking = False
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
        await claims.tick()
        assert [(await queue.row(row_id)).status for row_id in ids] == ["delivered"] * 4
        assert caplog.text.count("given back without an attempt") == 1
        assert caplog.text.count("deliveries continue") == 1


@pytest.mark.ci
@pytest.mark.parametrize("broken", ["_lanes", "complete"], ids=["look", "complete"])
@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
async def test_a_crash_of_the_delivery_task_costs_no_attempt(
    database_url: str, delivery: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 requests are in flight when the task crashes, and each is answered 200: all are delivered, none twice."""
    count = 601  # the first is answered at once: a destination that has not answered gets half of the slots
    settings = development(
        database_url,
        FLOWACTIONS_DELIVERY=delivery,
        FLOWACTIONS_CONCURRENCY=str(count + 50),
        FLOWACTIONS_CLAIM_LIMIT=str(count),
        FLOWACTIONS_DESTINATION_LIMIT=str(count),
    )
    arrived = 0
    answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n")
        arrived += 1
        if arrived > 1:
            await answer.wait()
        writer.write(OK)
        await writer.drain()

    async with listening(serve) as port:
        host = SmallHost(settings)
        actions = FlowActions.load(host)
        services = services_of(host)
        node = Node(id="n", type="webhook", config={"webhookUrl": f"http://127.0.0.1:{port}/"})
        before = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
        async with before.lifespan():
            for _ in range(count):
                await before.reach(a_walk(), node)
        store: type[Any] = ClaimStore if broken == "_lanes" else OutcomeStore
        method, failures = getattr(store, broken), 0

        async def fail_in_flight(*arguments: Any, **others: Any) -> Any:
            nonlocal failures
            if arrived == count and not failures:
                failures += 1
                raise LookupError("a defect")
            return await method(*arguments, **others)

        monkeypatch.setattr(store, broken, fail_in_flight)
        async with actions.lifespan():
            await until(lambda: arrived == count)
            if delivery == "continuous" and broken == "_lanes":
                await until(lambda: failures)
            answer.set()

            async def all_ended() -> bool:
                return await Queue(services._database).count("status = 'delivered'") == count

            await until(all_ended)
        assert arrived == count
        assert len(host.finished) == count


@pytest.mark.ci
async def test_outcomes_of_a_crashed_worker_wait_for_a_database_that_is_away(queue: Queue) -> None:
    """Crashed in the middle of an outage, it still writes what it has read before it ends."""
    answered, crash = asyncio.Event(), LookupError("a defect")

    async def answer(request: httpx.Request) -> httpx.Response:
        answered.set()
        return httpx.Response(200)

    row_id = await queue.put()
    executor = an_executor(queue, answer)
    worker = Worker(queue.store, executor, continuously(queue, executor))
    completer = executor.completer
    database, claim = queue.database, queue.store.claim
    writes = database.in_transaction

    async def away(*_: object) -> None:
        raise StorageUnavailable("away")

    async def fail(*arguments: Any, **others: Any) -> Any:
        if answered.is_set():
            raise crash
        found = await claim(*arguments, **others)
        if found:
            database.in_transaction = away  # type: ignore[method-assign,assignment]
        return found

    queue.store.claim = fail  # type: ignore[method-assign]
    flush = completer.flush

    async def tell(*_: Any) -> None:
        if answered.is_set():
            asyncio.get_running_loop().call_later(0.2, setattr, database, "in_transaction", writes)
            completer.flush = flush  # type: ignore[method-assign]
            if completer.behind and not executor.stopping:
                raise crash
        await flush()

    completer.flush = tell  # type: ignore[method-assign]
    with pytest.raises(LookupError):
        await asyncio.wait_for(worker.run(), 300)
    assert (await queue.row(row_id)).status == "delivered"
