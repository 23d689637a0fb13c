"""The conformance kit's view of a host whose flows DBOS runs: how to make it, and how to use it as its users do.

Prove the host: python -m flowactions_conformance run flowactions_testing:make_host

`glue.py` puts action nodes into workflows. `flows.py` runs each flow of the kit in one workflow. Accounts and flows are those of
`example_host.py`, in memory; workflows are in DBOS's tables. Put yours in their place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from dbos import DBOSConfig
from example_host import (
    Data,
    ExampleHost,
    MyDriver,
    _not_found,
    new_walk,
)
from flows import (
    Item,
    Workflow,
    actions_in,
    next_turn,
    open_run,
    with_sub_flows,
    workflow_of,
)
from glue import ActionNodes
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_conformance import Env, Turn, one_host_per_process
from flowactions_hookspecs import FlowActions, Node


class DbosData(Data):
    """Flows as `flows.py` takes them."""

    def items_of(self, flow_id: str) -> list[Item]:
        """Return the items of a flow, with those of its sub-flows."""
        return with_sub_flows(self._own(flow_id), self._own)

    def _own(self, flow_id: str) -> Sequence[Item]:
        items: list[Item] = msgspec.to_builtins(self.flows[flow_id].items)
        return items


class DbosHost(ExampleHost):
    """Answers what plugins ask of it.

    Args:
        settings: the plugin's.
        data: of the host.
        database: holds the plugin's tables and the checkpoints of transactions.
    """

    _data: DbosData

    def __init__(self, settings: Any, data: DbosData, database: AsyncEngine) -> None:
        super().__init__(settings, data)
        self.database = database

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Return the node as it is now, in the flow or one of its sub-flows."""
        flow = self._data.flows.get(flow_id)
        if flow is None or flow.organization != organization_id:
            return None
        for item in actions_in(self._data.items_of(flow_id)):
            if item["id"] == node_id:
                return Node(id=node_id, type=item["type"], config=item["config"])
        return None


class DbosDriver(MyDriver):
    """Uses the host as its editor, its end users and its customers do: best over HTTP, at env.base_url."""

    # What the host does beyond "core": example_host.py explains these, and names what further profiles need.
    claims = frozenset({"pacing", "loops", "tenancy"})

    _data: DbosData

    def __init__(self, data: DbosData, actions: FlowActions, flow: Workflow) -> None:
        super().__init__(data, actions)
        self.app = actions.wrap(_not_found, lifespan=False)  # make_host opens the plugins, before DBOS
        self._flow = flow
        self._opened: set[str] = set()

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Start a workflow: it runs to its end, or to its first step."""
        found = self._data.flows[flow]
        walk = new_walk(found, user, content)
        paced = found.pacing == "deferred"
        self._opened.add(walk.run_id)
        return _turn(walk.run_id, await open_run(self._flow, walk, self._data.items_of(flow), paced=paced))

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Signal to the workflow that its user moves on."""
        if session not in self._opened:
            raise LookupError("DBOS keeps this run, but its flow was in memory: keep flows in tables")
        return _turn(session, await next_turn(session, step))


def _turn(run_id: str, shown: Item) -> Turn:
    return Turn(
        session=run_id,
        step_id=shown["step"],
        done=shown["done"],
        raw=msgspec.json.encode(shown).decode(),
    )


# DBOS is one object in each process: the kit runs each host in a process of its own.
@one_host_per_process
@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[DbosDriver]:
    """Make the host. The kit calls this several times, in child processes."""
    data = DbosData()
    database = create_async_engine(env.database_url)
    actions = FlowActions.load(DbosHost(env.settings, data, database))
    nodes = ActionNodes(actions)
    flow = workflow_of(nodes)
    config: DBOSConfig = {
        "name": "host",
        # A SQLite file of its own, beside that of the host and the plugin. On PostgreSQL, the same database.
        "system_database_url": f"sqlite:///{env.state_dir / 'dbos.db'}",
        "notification_listener_polling_interval_sec": 0.05,  # in SQLite, users wait for it
    }
    async with nodes.opened(config, database):
        yield DbosDriver(data, actions, flow)
    await database.dispose()
