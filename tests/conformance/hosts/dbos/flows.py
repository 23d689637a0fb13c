"""A queue of child workflows with action nodes in DBOS: ``python -m tests.conformance.hosts.dbos.flows FOLDER``.

Documents are indexed side by side, each by a child, and what they found is joined. The workflow is run to its end, and then a second
time: it is rewound. Prints, as JSON, what is in the outbox after each: [node id, event id, body].
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID
from glue import ActionNodes
from msgspec.structs import replace

from flowactions_hookspecs import Walk
from tests.conformance.hosts.dbos.small import opened_host, outbox, walk_of, webhook

RUN = "run-1"
INDEXED, JOINED = webhook("indexed"), webhook("joined")


def fan_out(nodes: ActionNodes) -> Any:
    """Register the workflow and that of its children."""

    @DBOS.workflow()
    async def index(walk: Walk, document: str) -> str:
        run = nodes.run(replace(walk, content=document))
        await run.reach(INDEXED)
        return f"about {document}"

    @DBOS.workflow()
    async def ingest(documents: str) -> None:
        walk = walk_of(DBOS.workflow_id)
        run = nodes.run(walk)
        handles = [
            await DBOS.enqueue_workflow_async("documents", index, walk, document)
            for document in documents.split()
        ]
        found = [await handle.get_result() for handle in handles]
        run.walk = replace(walk, content=", ".join(found))
        await run.reach(JOINED)

    return ingest


async def run_to_its_end() -> None:
    """Wait for the workflow's end."""
    await (await DBOS.retrieve_workflow_async(RUN)).get_result(polling_interval_sec=0.05)


async def main(folder: str) -> dict[str, list[tuple[str, str, str]]]:
    """Run the workflow to its end, and again from its first step."""
    async with opened_host(folder, fan_out) as (engine, workflow):
        await DBOS.register_queue_async("documents", polling_interval_sec=0.05)
        with SetWorkflowID(RUN):
            await DBOS.start_workflow_async(workflow, "stars moons suns")
        await run_to_its_end()
        once = await outbox(engine)
        await DBOS.rewind_workflow_async(RUN)
        await run_to_its_end()
        return {"once": once, "again": (await outbox(engine))[len(once) :]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))))
