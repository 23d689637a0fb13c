"""Kills the process within transactions of workflows: ``python -m tests.conformance.hosts.dbos.killed PLACE WORKFLOWS KILLS``.

Each workflow has one step: it writes a row of the host's, and reaches an action node in the same transaction. A process runs
many side by side, and ends itself with SIGKILL at one of three points of one of them. The next process recovers what it finds, and
starts what is missing. Prints, as JSON, how often it was killed at which point, and how many rows there are for how many workflows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID
from glue import ActionNodes
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.conformance.hosts.dbos.small import opened_host, outbox, walk_of, webhook

POINTS = ("before the node", "before the commit", "behind the commit")
"""The last: the transaction is committed, and DBOS has not recorded the step."""

BESIDE = 8
"""Workflows that run side by side."""

metadata = sa.MetaData()
# No key of its own: a row that is written twice is there twice.
orders = sa.Table("orders", metadata, sa.Column("name", sa.String))
ORDERED = webhook("ordered")


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Point:
    """Where the process ends.

    Args:
        name: one of `POINTS`; or nowhere.
        number: of the transaction, from 1.
    """

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._left = number

    def reached(self, name: str, info: dict[str, Any]) -> None:
        """End the process here, if it is the transaction: each one is counted when its row is written."""
        if name == POINTS[0]:
            self._left -= 1
            info["counted"] = self._left == 0
        if name == self._name and info.get("counted"):
            _die()
        if name == POINTS[2]:
            info.pop("counted", None)

    def watch(self, engine: AsyncEngine) -> None:
        """Learn of the commits of transactions in which a row was written."""

        @sa.event.listens_for(engine.sync_engine, "commit")
        def commit(connection: Any) -> None:
            self.reached(POINTS[1], connection.info)

        @sa.event.listens_for(engine.sync_engine, "checkin")
        def checkin(_: Any, record: Any) -> None:
            self.reached(POINTS[2], record.info)


def register(point: Point) -> Callable[[ActionNodes], Any]:
    """Register the workflow."""

    def registered(nodes: ActionNodes) -> Any:
        async def keep(name: str) -> None:
            session = nodes.datasource.sql_session()
            await session.execute(sa.insert(orders).values(name=name))
            connection = await session.connection()
            point.reached(POINTS[0], (await connection.get_raw_connection()).info)

        @DBOS.workflow()
        async def order(name: str) -> str:
            await nodes.run(walk_of(DBOS.workflow_id, name)).reach(ORDERED, keep, name)
            return name

        return order

    return registered


async def work(place: str, workflows: int, point: Point) -> None:
    """Run all workflows that have not run; those that were begun are recovered by DBOS."""
    async with opened_host(place, register(point)) as (engine, order):
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        point.watch(engine)
        slots = asyncio.Semaphore(BESIDE)

        async def one(number: int) -> None:
            name = f"order-{number}"
            async with slots:
                with SetWorkflowID(name):
                    handle = await DBOS.start_workflow_async(order, name)
                assert await handle.get_result(polling_interval_sec=0.05) == name

        await asyncio.gather(*(one(number) for number in range(workflows)))


async def rows(place: str) -> dict[str, tuple[int, int]]:
    """Count the rows of the host's table and of the outbox, and the workflows that they are of."""
    async with opened_host(place, lambda _: None) as (engine, _):
        async with engine.connect() as connection:
            names = list(await connection.scalars(sa.select(orders.c.name)))
        sent = await outbox(engine)
    bodies = [body for _, _, body in sent]
    return {
        "orders": (len(names), len(set(names))),
        "bodies": (len(bodies), len(set(bodies))),
        "events": (len(sent), len({event for _, event, _ in sent})),
    }


def main() -> None:
    """Kill one process after the other, and let the last one end."""
    place, workflows, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:]:
        asyncio.run(work(place, workflows, Point(sys.argv[4], int(sys.argv[5]))))
        return
    killed: Counter[str] = Counter()
    chance = random.Random(workflows)  # noqa: S311  the same points in each run
    for number in range(kills + 1):
        point = POINTS[number % len(POINTS)] if number < kills else "nowhere"
        transaction = chance.randint(1, max(1, 3 * workflows // (2 * (kills + 1))))
        again = [sys.executable, "-m", __spec__.name, *sys.argv[1:4], point, str(transaction)]
        ended = subprocess.run(again, check=False).returncode
        assert ended in {0, -signal.SIGKILL}, ended
        killed[point] += ended != 0
    assert not killed["nowhere"]
    sys.stdout.write(json.dumps({"killed": +killed, **asyncio.run(rows(place))}))


if __name__ == "__main__":
    main()
