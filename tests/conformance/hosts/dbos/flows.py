"""Three workflows as people build them with DBOS, with action nodes: ``python -m tests.conformance.hosts.dbos.flows FOLDER``.

A checkout that waits for a payment, an agent that uses tools and is approved by a person, and a queue of child workflows. Plain
functions stand for models and services. Each workflow is run to its end, and then a second time: it is rewound. Prints, as JSON, what
is in the outbox after each: [node id, event id, body].
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID
from glue import ActionNodes, Halted
from msgspec.structs import replace

from flowactions_hookspecs import Walk
from tests.conformance.hosts.dbos.small import opened_host, outbox, walk_of, webhook

RUN = "run-1"
PATIENCE_SECONDS = 300.0

metadata = sa.MetaData()
stock = sa.Table(
    "stock", metadata, sa.Column("item", sa.String, primary_key=True), sa.Column("left", sa.Integer)
)

RESERVED, DISPATCHED, CANCELLED = (webhook(name) for name in ("reserved", "dispatched", "cancelled"))
TOOL_USED, ANSWERED, PUBLISHED = (webhook(name) for name in ("tool_used", "answered", "published"))
INDEXED, JOINED = webhook("indexed"), webhook("joined")


def checkout(nodes: ActionNodes) -> Any:
    """Reserve an item, wait for the payment service, and dispatch the order, or give the item back."""

    async def take(item: str, count: int) -> int:
        session = nodes.datasource.sql_session()
        taken = sa.update(stock).where(stock.c.item == item).values(left=stock.c.left - count)
        return int((await session.execute(taken.returning(stock.c.left))).scalar_one())

    @DBOS.workflow()
    async def pay(item: str) -> str:
        run = nodes.run(walk_of(DBOS.workflow_id, item))
        left = await run.reach(RESERVED, take, item, 1)
        step = await run.step("payment")
        await DBOS.set_event_async("shown", step)
        paid = await DBOS.recv_async(step, timeout_seconds=PATIENCE_SECONDS)
        run.walk = replace(run.walk, content=f"{item}, {left} left, {paid}")
        if paid == "paid":
            await run.reach(DISPATCHED)
        else:
            await run.reach(CANCELLED, take, item, -1)
        return run.walk.content

    return pay


def agent(nodes: ActionNodes) -> Any:
    """Use tools until there is an answer, and have a person approve it; without approval, begin again."""

    @DBOS.step()
    async def think(turn: int) -> str:
        return ["search", "calculator", "", "search", ""][turn]

    @DBOS.workflow()
    async def work(_: str) -> str:
        run = nodes.run(walk_of(DBOS.workflow_id))
        turn, approved = 0, False
        while not approved:
            while tool := await think(turn):
                run.walk = replace(run.walk, content=f"used {tool}")
                await run.reach(TOOL_USED)
                turn += 1
            turn += 1
            run.walk = replace(run.walk, content="the answer")
            run.wait(ANSWERED)
            step = await run.step("approval")
            await DBOS.set_event_async("shown", step)
            approved = await DBOS.recv_async(step, timeout_seconds=PATIENCE_SECONDS)
        run.wait(PUBLISHED)
        await run.end()
        return run.walk.content

    return work


def fan_out(nodes: ActionNodes) -> Any:
    """Index documents side by side, each in a child workflow of a queue, and join what they found."""

    @DBOS.workflow()
    async def index(walk: Walk, document: str) -> str:
        run = nodes.run(replace(walk, content=document))
        await run.reach(INDEXED)
        return f"about {document}"

    @DBOS.workflow()
    async def ingest(documents: str) -> str:
        walk = walk_of(DBOS.workflow_id)
        run = nodes.run(walk)
        handles = [
            await DBOS.enqueue_workflow_async("documents", index, walk, document)
            for document in documents.split()
        ]
        found = [await handle.get_result() for handle in handles]
        run.walk = replace(walk, content=", ".join(found))
        try:
            await run.reach(JOINED)
        except Halted:
            return "halted"
        return run.walk.content

    return ingest


FLOWS: dict[str, tuple[Callable[[ActionNodes], Any], str, list[Any]]] = {
    "checkout": (checkout, "tea", ["paid"]),
    "agent": (agent, "", [False, True]),
    "fan_out": (fan_out, "stars moons suns", []),
}
"""Name → what registers it, its input, and what people answer."""


async def run_to_its_end(answers: list[Any]) -> None:
    """Answer the workflow's steps, one after the other."""
    seen = None
    for answer in answers:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (step := await DBOS.get_event_async(RUN, "shown", PATIENCE_SECONDS)) == seen:  # noqa: ASYNC110  DBOS cannot wait for a change
                await asyncio.sleep(0.05)
        await DBOS.send_async(RUN, answer, topic=step)
        seen = step
    await (await DBOS.retrieve_workflow_async(RUN)).get_result(polling_interval_sec=0.05)


async def run(folder: Path, name: str) -> dict[str, list[tuple[str, str, str]]]:
    """Run a workflow to its end, and again from its first step."""
    register, given, answers = FLOWS[name]
    async with opened_host(str(folder), register) as (engine, workflow):
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.execute(sa.insert(stock).values(item="tea", left=10))
        await DBOS.register_queue_async("documents", polling_interval_sec=0.05)
        with SetWorkflowID(RUN):
            await DBOS.start_workflow_async(workflow, given)
        await run_to_its_end(answers)
        once = await outbox(engine)
        await DBOS.rewind_workflow_async(RUN)
        await run_to_its_end(answers)
        return {"once": once, "again": (await outbox(engine))[len(once) :]}


def main() -> None:
    """Run all of them, each in a folder and a process of its own: DBOS is one object in each."""
    folder = Path(sys.argv[1])
    if sys.argv[2:]:
        sys.stdout.write(json.dumps(asyncio.run(run(folder, sys.argv[2]))))
        return
    sent = {}
    for name in FLOWS:
        (folder / name).mkdir()
        again = [sys.executable, "-m", __spec__.name, str(folder / name), name]
        done = subprocess.run(again, check=True, stdout=subprocess.PIPE)
        sent[name] = json.loads(done.stdout)
    sys.stdout.write(json.dumps(sent))


if __name__ == "__main__":
    main()
