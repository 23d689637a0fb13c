"""Writes that committed although their answer was lost: repeated, they find their own, and the host is told once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.worker import Worker
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from tests.loopback import listening
from tests.queueing import Queue, a_worker, ok
from tests.waiting import until

ROWS = 60


class Cut:
    """Cuts off the answer to the next statement with a certain parameter, after the database has committed it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.marker = ""
        self.count = 0

    def arm(self, marker: str) -> None:
        self.marker = marker

    def strikes(self, data: str) -> bool:
        if self.marker and self.marker in data:
            self.marker = ""
            self.count += 1
            return True
        return False


@asynccontextmanager
async def cut_in_the_driver(url: str) -> AsyncIterator[Cut]:
    """On SQLite, the statement is carried out and committed, and then the call fails."""
    async with Database(url) as database:
        made = Cut(Queue(database))
        thread, struck = database._engines.thread, False
        assert thread is not None
        run = thread._run

        def note(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
            nonlocal struck
            struck = struck or made.strikes(str(parameters))

        def run_and_fail(work: Callable[[Any], Any], deadline: Any) -> Any:
            nonlocal struck
            done = run(work, deadline)
            if struck:
                struck = False
                raise StorageUnavailable("the answer was lost")
            return done

        event.listen(thread.engine, "before_cursor_execute", note)
        thread._run = run_and_fail  # type: ignore[method-assign]
        yield made


class Proxy:
    """Stands before PostgreSQL; when it has seen what is armed, it lets no answer through any more."""

    def __init__(self, url: URL) -> None:
        self.cut: Cut | None = None
        self._port = url.port or 5432
        self._host = str(url.query.get("host", url.host))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            back, forth = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            back, forth = await asyncio.open_connection(self._host, self._port)
        struck = False

        async def up() -> None:
            nonlocal struck
            while data := await reader.read(1 << 20):
                struck = struck or (self.cut is not None and self.cut.strikes(data.decode("latin-1")))
                forth.write(data)

        async def down() -> None:
            # The server answers when it has committed: every statement here is a transaction.
            while (data := await back.read(1 << 20)) and not struck:
                writer.write(data)

        tasks = [asyncio.create_task(each()) for each in (up, down)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        forth.transport.abort()
        writer.transport.abort()


@asynccontextmanager
async def cut_by_a_proxy(url: str) -> AsyncIterator[Cut]:
    """On PostgreSQL, the connection is cut between the commit and its answer."""
    proxy = Proxy(make_url(url))
    async with listening(proxy.serve) as port:
        through = make_url(url).set(host="127.0.0.1", port=port, query={"sslmode": "disable"})
        async with Database(through.render_as_string(hide_password=False)) as database:
            proxy.cut = Cut(Queue(database))
            yield proxy.cut


@pytest.fixture
async def cut(database_url: str) -> AsyncIterator[Cut]:
    """A queue whose answers can be cut."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    made = cut_in_the_driver(url) if url.startswith("sqlite") else cut_by_a_proxy(url)
    async with made as cut:
        yield cut


COMPLETES, GIVES_BACK = "duration_ms", "delay_ms"


async def statuses(queue: Queue) -> Counter[str]:
    async with queue.database.read() as connection:
        rows = await connection.exec_driver_sql("SELECT status FROM flowactions_outbox")
        return Counter(rows.scalars())


async def run_until(cut: Cut, worker: Worker, expected: dict[str, int]) -> None:
    running = asyncio.create_task(worker.run())

    async def all_there() -> bool:
        return await statuses(cut.queue) == expected and not worker._completer.behind

    await until(all_there)
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(("answer", "expected"), [(200, "delivered"), (410, "dead")])
async def test_an_outcome_that_was_written_is_found_again(
    cut: Cut, answer: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixty outcomes commit and the connection is cut: no row was taken over, and the host hears once of each."""
    caplog.set_level(logging.INFO)
    told: list[tuple[str, str]] = []

    async def finished(delivery: Any) -> None:
        told.append((delivery.id, delivery.status))

    ids = [await cut.queue.put(max_attempts=1) for _ in range(ROWS)]
    worker = a_worker(cut.queue, lambda request: httpx.Response(answer), limit=ROWS, delivery_finished=finished)
    cut.arm(COMPLETES)
    await run_until(cut, worker, {expected: ROWS})
    assert cut.count == 1
    assert Counter(told) == {(row_id, expected): 1 for row_id in ids}
    assert "taken over" not in caplog.text
    assert caplog.text.count("out of reach") == 1
    assert caplog.text.count("is dead") == (ROWS if expected == "dead" else 0)
    found = await cut.queue.queries.stored(ids[0], "acme")
    assert found is not None
    assert [attempt.number for attempt in found[1]] == [1]


async def test_what_was_given_back_is_not_given_back_twice(cut: Cut, caplog: pytest.LogCaptureFixture) -> None:
    """A row that waits, and one whose wait has ended it, by a write whose answer was lost."""
    told: list[str] = []

    async def finished(delivery: Any) -> None:
        told.append(delivery.id)

    async def fail(origin: object) -> str:
        raise RuntimeError

    ids = [await cut.queue.put() for _ in range(6)]
    await cut.queue.run(f"UPDATE flowactions_outbox SET waiting_since = 1 WHERE id = '{ids[0]}'")  # noqa: S608
    worker = a_worker(
        cut.queue,
        ok,
        signing_secret=fail,
        delivery_finished=finished,
    )
    cut.arm(GIVES_BACK)
    await run_until(cut, worker, {"dead": 1, "pending": 5})
    assert cut.count == 1
    assert told == [ids[0]]
    assert caplog.text.count("is dead") == 1
    rows = [await cut.queue.row(row_id) for row_id in ids]
    assert {(row.claimed_by, row.takeovers) for row in rows} == {(None, 0)}


async def test_a_claim_whose_answer_is_lost_ends_no_delivery(cut: Cut) -> None:
    """Eight claims in a row commit and are never heard of: the rows are sent in quarantine, and all are delivered."""
    ids = [await cut.queue.put() for _ in range(4)]
    for _ in range(8):
        await cut.queue.run("UPDATE flowactions_outbox SET claimed_until = 0 WHERE claimed_by IS NOT NULL")
        await cut.queue.store.claim(50)  # its answer is dropped here
    rows = [await cut.queue.row(row_id) for row_id in ids]
    assert {row.takeovers for row in rows} == {QUARANTINE_AFTER}
    await cut.queue.run("UPDATE flowactions_outbox SET claimed_until = 0 WHERE claimed_by IS NOT NULL")
    # Rounds that the process survives follow each other at once: with ten minutes between them, this would not end.
    worker = a_worker(cut.queue, ok, timing=Timing(quarantine_seconds=600))

    async def all_delivered() -> bool:
        await worker.run_once()
        return {(await cut.queue.row(row_id)).status for row_id in ids} == {"delivered"}

    await until(all_delivered)
    rows = [await cut.queue.row(row_id) for row_id in ids]
    assert {(row.takeovers, row.quarantine_rounds, row.attempts) for row in rows} == {(0, 0, 1)}
