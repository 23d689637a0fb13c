"""Shows what DBOS runs again, and under which event ids: ``python -m tests.conformance.hosts.dbos.repeated FOLDER``.

Three processes are killed: before the commit of the transaction that a node joins, behind it, and between a node that joins none and
DBOS's record of its step. Another one recovers the workflow, answers it, rewinds it and forks it. Prints, as JSON, the event ids in
the outbox: node id → one of each row.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID
from glue import ActionNodes

from flowactions_hookspecs import Node, Walk
from tests.conformance.hosts.dbos.small import opened_host, outbox, walk_of, webhook

RUN = "run-1"
KILLED = 9
PATIENCE_SECONDS = 300.0
"""Only a hang takes longer."""

POINTS = ("before the commit", "behind the commit", "outside")
orders = sa.Table("orders", sa.MetaData(), sa.Column("name", sa.String))
"""The host's: a row that is written twice is there twice."""
AT_ONCE, OUTSIDE, WAITS, LAST = (
    webhook(name) for name in ("at-once", "outside", "before-the-step", "at-the-end")
)


class Killing(ActionNodes):
    """Ends the process when a node has run that joins no transaction, and DBOS is to record its step."""

    async def reach(self, walk: Walk, node: Node, *, joins: bool) -> bool:
        """See the class."""
        await super().reach(walk, node, joins=joins)
        if node.id == OUTSIDE.id:
            os._exit(KILLED)
        return False


def watch(point: str) -> None:
    """End the process at the commit of a transaction with an order, or behind it."""

    @sa.event.listens_for(sa.Engine, "commit")
    def commit(connection: Any) -> None:
        if point == POINTS[0] and "order" in connection.info:
            os._exit(KILLED)

    @sa.event.listens_for(sa.Pool, "checkin")
    def checkin(_: Any, record: Any) -> None:
        if record.info.pop("order", False) and point == POINTS[1]:
            os._exit(KILLED)


def register(nodes: ActionNodes) -> Any:
    """Register a workflow with each kind of node: in a transaction, outside of one, and two that wait."""

    async def keep() -> None:
        session = nodes.datasource.sql_session()
        await session.execute(sa.insert(orders).values(name=RUN))
        connection = await session.connection()
        (await connection.get_raw_connection()).info["order"] = True

    @DBOS.workflow()
    async def everything() -> None:
        run = nodes.run(walk_of(DBOS.workflow_id))
        await run.reach(AT_ONCE, keep)
        await run.reach_outside(OUTSIDE)
        run.wait(WAITS)
        step = await run.step("ask")
        await DBOS.set_event_async("shown", step)
        await DBOS.recv_async(step, timeout_seconds=PATIENCE_SECONDS)
        run.wait(LAST)
        await run.end()

    return everything


async def answer(run_id: str) -> None:
    """Wait for the workflow's step, go on, and wait for its end."""
    step = await DBOS.get_event_async(run_id, "shown", PATIENCE_SECONDS)
    await DBOS.send_async(run_id, None, topic=step)
    await (await DBOS.retrieve_workflow_async(run_id)).get_result()


async def go(place: str, *, killed: bool) -> tuple[list[tuple[str, str, str]], int]:
    """Run the workflow until the process is killed, or to its end, again, and as a fork; return the outbox, and count the orders."""
    async with opened_host(place, register, Killing if killed else ActionNodes) as (engine, everything):
        if killed:
            async with engine.begin() as connection:
                await connection.run_sync(orders.metadata.create_all)
            with SetWorkflowID(RUN):
                await DBOS.start_workflow_async(everything)
            await asyncio.sleep(PATIENCE_SECONDS)
        await answer(RUN)
        await DBOS.rewind_workflow_async(RUN)
        await answer(RUN)
        await answer((await DBOS.fork_workflow_async(RUN, 1)).workflow_id)
        async with engine.connect() as connection:
            kept = await connection.scalar(sa.select(sa.func.count()).select_from(orders))
        return await outbox(engine), kept or 0


def main() -> None:
    """Run it in processes that are killed, and in one that is not, and print what is in the outbox."""
    place = sys.argv[1]
    if sys.argv[2:]:
        watch(sys.argv[2])
        asyncio.run(go(place, killed=True))
    for point in POINTS:
        ended = subprocess.run([sys.executable, "-m", __spec__.name, place, point], check=False).returncode
        assert ended == KILLED, (point, ended)
    found: dict[str, list[str]] = {}
    rows, kept = asyncio.run(go(place, killed=False))
    for node_id, event_id, _ in rows:
        found.setdefault(node_id, []).append(event_id)
    assert len(found[AT_ONCE.id]) == kept, "a node and the host's row are in one transaction"
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
