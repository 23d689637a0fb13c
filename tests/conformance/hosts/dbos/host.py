"""An app whose flows DBOS runs, and its driver for the conformance kit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import sqlalchemy as sa
from dbos import DBOSConfig
from flows import (
    Workflow,
    next_turn,
    open_run,
    with_sub_flows,
    workflow_of,
)
from glue import ActionNodes
from sqlalchemy.engine import make_url

from flowactions_conformance import Env, one_host_per_process
from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.fastapi_host import Data, Walker, flows, new_walk, runs
from tests.conformance.hosts.full_shop import FullDriver, FullHost


class DbosHost(FullHost):
    """The host, with DBOS open while its app is, and with its database shared with the plugin and DBOS's transactions."""

    _opens_plugins: ClassVar = True
    _kept: ClassVar = 3  # the kit has many hosts on one PostgreSQL, which has a hundred connections
    _nodes: ActionNodes

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        url = make_url(self._url)
        config: DBOSConfig = {
            "name": "host",
            "log_level": "WARNING",
            "notification_listener_polling_interval_sec": 0.05,
        }
        if url.get_backend_name() == "sqlite":  # a file of its own: see the guide
            config["system_database_url"] = f"sqlite:///{url.database}-dbos"
        else:
            plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
            config["system_database_url"] = plain
            psycopg = url.set(drivername="postgresql+psycopg")
            config["system_database_engine"] = sa.create_engine(psycopg, poolclass=sa.NullPool)
        async with super()._open(), self._nodes.opened(config, self.database):
            yield


class DbosWalker(Walker):
    """Runs each flow as a workflow: `flows` is what DBOS executes, and `ActionNodes` reaches its action nodes."""

    def __init__(self, host: DbosHost, actions: FlowActions) -> None:
        super().__init__(host, actions)
        host._nodes = ActionNodes(actions)
        self._flow: Workflow = workflow_of(host._nodes)

    async def open(self, flow: Data, user_id: str, content: str) -> Data:
        """Each run is a workflow, and keeps the flow with its sub-flows as it is now."""
        walk = new_walk(flow, user_id, content)
        owned = await self.host._find(flows, organization_id=flow["organization_id"])
        items = with_sub_flows(flow["items"], {each["id"]: each["items"] for each in owned}.__getitem__)
        paced = flow["pacing"] == "deferred"
        await self.host._put(
            runs, id=walk.run_id, walk=msgspec.to_builtins(walk), items=items, state=flow["pacing"], position=-1
        )
        return {"run": walk.run_id, **await open_run(self._flow, walk, items, paced=paced)}

    async def next(self, run: Data, at: str | None) -> Data:
        """Tell the workflow that its user goes on."""
        return {"run": run["id"], **await next_turn(run["id"], at)}

    def turn(self, run: Data) -> Data:
        """Return what `open` and `next` give: it is what the browser gets."""
        return run


class DbosDriver(FullDriver):
    """How the kit uses this host."""


@one_host_per_process
@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[DbosDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.dbos.host:make_host``."""
    host = DbosHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield DbosDriver(host, actions, DbosWalker(host, actions), env)
