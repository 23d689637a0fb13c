"""The guide's modules, beside this one, with a second flow: which nodes are found, and which routes answer a run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from app import app, nodes, walk_of
from glue import ActionNodes
from graph import build
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from msgspec.structs import replace
from two_flows import FLOWS, HostOfFlows

from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Walk


def walk_of_refunds(state: Any, config: Any) -> Walk:
    return replace(walk_of(state, config), flow_id="refund")


async def main() -> dict[str, Any]:
    """Open a run of each flow, and try each route on both."""
    host = HostOfFlows()
    actions = FlowActions.load(host)
    refunds = ActionNodes(actions, walk_of_refunds)
    graph = build(refunds)
    FLOWS.update({("acme", "welcome"): nodes, ("acme", "refund"): refunds})
    keys = [("acme", "welcome"), ("acme", "refund"), ("globex", "refund"), ("acme", "removed")]
    found = {"/".join(key): await host.node(*key, "ordered") is not None for key in keys}
    config = {"configurable": {"thread_id": "refund/r1", "user": "grace"}}
    async with (
        AsyncSqliteSaver.from_conn_string("flowactions.db") as checkpoints,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=300) as client,
    ):
        async with actions.lifespan(tasks=False):
            await graph.compile(checkpointer=checkpoints).ainvoke({"said": "Hello"}, config)
        opened = (await client.post("/runs?user=grace&said=Hello")).json()["run"]
        tried = {
            name: (await client.post(f"/runs/{run}?user=grace&said=Well")).status_code
            for name, run in (
                ("other", "r1"),
                ("encoded", "refund%2Fr1"),
                ("parent", "..%2Frefund%2Fr1"),
                ("own", opened),
            )
        }
    return {"found": found, "tried": tried}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))  # noqa: T201  for the test
