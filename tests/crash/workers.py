"""A queue, a receiver, and real worker processes between them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.signature import sign
from flowactions_plugin.queue.claims import PREFIX_DIGITS, token_prefix
from flowactions_plugin.settings.model import read_settings
from tests.crash.forking import Forked, fork
from tests.crash.hosts import SECRET, WORKER
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk, development

CLAIM_LIMIT = 20
HOST = "tests.crash.hosts:make"
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
        self._running: list[Forked] = []

    async def enqueue(self, count: int, *, flow_id: str = "flow-1", lanes: int = 1, **given: Any) -> None:
        """Reach a webhook node of a flow so often, in runs of their own, to so many paths of the receiver."""
        actions = FlowActions.load(SmallHost(self.settings))
        async with actions.lifespan():
            for number in range(count):
                url = self.receiver.url + (f"/{number % lanes}" if lanes > 1 else "")
                config = {"webhookUrl": url, "webhookBody": '{"user": "{{userId}}"}', **given}
                result = await actions.reach(
                    a_walk(user_id=str(number), flow_id=flow_id), Node(id="n", type="webhook", config=config)
                )
                assert result.status == "queued"

    async def start(self, kill: str = "", **environment: str) -> Forked:
        """Start a worker process, with a point at which it dies."""
        with (self._directory / f"worker-{len(self._running)}-{kill.replace(':', '-')}.log").open("wb") as log:
            process = await fork(
                "flowactions_plugin.cli",
                "worker",
                "--host",
                HOST,
                environment={**os.environ, **self.settings, "FLOWACTIONS_TEST_KILL": kill, **environment},
                output=log,
            )
        self._running.append(process)
        return process

    async def stop(self) -> None:
        """End all workers that run, the orderly way."""
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        async with asyncio.timeout(300):
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
        return [event for event, _ in await self.held()]

    async def held(self) -> list[tuple[str, str]]:
        """Give the event ids of all rows that are claimed just now, each with what tells the workers apart that claimed them."""
        query = "SELECT event_id, claimed_by FROM flowactions_outbox WHERE claimed_by IS NOT NULL"
        return [(event, token[:PREFIX_DIGITS]) for event, token in await self.query(query)]

    async def end_leases(self, worker: Forked) -> None:
        """Have the leases of a worker that is no more end now, and not up to 30 s later.

        One that was killed before it was seen in the list of workers keeps them.
        """
        for (worker_id,) in await self.query(f"SELECT id FROM flowactions_workers WHERE pid = {worker.pid}"):  # noqa: S608
            await self.run(
                "UPDATE flowactions_outbox SET claimed_until = 0"  # noqa: S608
                f" WHERE claimed_by LIKE '{token_prefix(worker_id)}%'"
            )

    async def drained(self) -> bool:
        (row,) = await self.query(
            "SELECT count(*) FROM flowactions_outbox WHERE status IN ('pending', 'retrying')"
        )
        return bool(row[0] == 0)

    async def states(self) -> Counter[str]:
        """Count the rows by their status."""
        rows = await self.query("SELECT status, count(*) AS n FROM flowactions_outbox GROUP BY status")
        return Counter({row.status: row.n for row in rows})

    def arrivals(self) -> Counter[str]:
        return Counter(request.header("x-service-webhook-id") for request in self.receiver.requests)

    async def check_nothing_lost(self, count: int) -> None:
        """Every row is delivered at its first attempt, and every arrival is one of them, the same at each time."""
        rows = await self.query("SELECT event_id, status, attempts FROM flowactions_outbox")
        assert Counter(row.status for row in rows) == {"delivered": count}
        assert {row.attempts for row in rows} == {1}
        assert set(self.arrivals()) == {row.event_id for row in rows}
        assert len(self.arrivals()) == count
        # The attempt that delivers a row is kept in the row.
        logged = await self.query(
            "SELECT number, status_code FROM flowactions_attempts UNION ALL SELECT earlier_attempts + attempts,"
            " last_status_code FROM flowactions_outbox WHERE delivered_started_at IS NOT NULL"
        )
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
