"""An app whose flows SpiffWorkflow runs, and its driver for the conformance kit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import sqlalchemy as sa
from glue import ActionEngine, shown
from processes import serializer, shown_step, workflow_of
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_conformance import Env
from flowactions_hookspecs import FlowActions, Walk
from tests.conformance.hosts.fastapi_host import Data, Walker, _table, flows, new_walk, runs
from tests.conformance.hosts.full_shop import FullDriver, FullHost

workflows = _table("workflows", "", state=sa.Text, version=sa.Integer)

AT_ONCE: Final = 4
"""Workflows that run at the same time: each has a thread, and a connection for its transaction."""


class ProcessWalker(Walker):
    """Runs each flow as a BPMN process. What a run writes and where it then is are one transaction."""

    host: FullHost

    def __init__(self, host: FullHost, actions: FlowActions) -> None:
        super().__init__(host, actions)
        self._serializer = serializer()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def open(self, flow: Data, user_id: str, content: str) -> Data:
        """Each run is a workflow, whose serialization has the flow with its sub-flows as they are now."""
        walk = new_walk(flow, user_id, content)
        owned = await self.host._find(flows, organization_id=flow["organization_id"])
        items: dict[str, Sequence[Data]] = {each["id"]: each["items"] for each in owned}
        workflow = workflow_of(flow["id"], items.__getitem__, paced=flow["pacing"] == "deferred")
        run = {
            "id": walk.run_id,
            "walk": msgspec.to_builtins(walk),
            "items": [],
            "state": "open",
            "position": -1,
        }
        async with self._turns:
            async with self.host.database.begin() as transaction:
                await transaction.execute(sa.insert(runs).values(run))
                await transaction.execute(sa.insert(workflows).values(id=walk.run_id, version=0, state=""))
                await asyncio.to_thread(self._engine(run, workflow, transaction).run, workflow)
                await self._save(transaction, run, workflow, 0)
            return await self._arrive(run, workflow, 1)

    async def next(self, run: Data, at: str | None) -> Data:
        """Complete the task that the user has seen, and no other one."""
        async with self._turns:
            row = await self.host._get(workflows, id=run["id"])
            assert row is not None
            workflow, version = self._serializer.deserialize_json(row["state"]), row["version"]
            waiting = shown(workflow)
            if run["state"] == "halted" or (waiting and at != shown_step(workflow)["step"]):
                return self._turn(run, workflow)
            if waiting:
                async with self.host.database.begin() as transaction:
                    # The first of several requests has the row; the others wait for its commit.
                    if not await self._save(transaction, run, workflow, version):
                        return await self._now(run)
                    engine = self._engine(run, workflow, transaction)
                    await asyncio.to_thread(_complete, engine, workflow)
                    version += 1
                    await self._save(transaction, run, workflow, version)
                version += 1
            # Otherwise another request, or a process that was killed, has completed it.
            return await self._arrive(run, workflow, version)

    def turn(self, run: Data) -> Data:
        """Return what `open` and `next` give: it is what the browser gets."""
        return run

    async def _arrive(self, run: Data, workflow: BpmnWorkflow, version: int) -> Data:
        if await asyncio.to_thread(self._engine(run, workflow).arrive, workflow):
            async with self.host.database.begin() as transaction:
                saved = await self._save(transaction, run, workflow, version)
            if not saved:
                return await self._now(run)
        return self._turn(run, workflow)

    async def _save(
        self, transaction: AsyncConnection, run: Data, workflow: BpmnWorkflow, version: int
    ) -> bool:
        here = sa.update(workflows).where(workflows.c.id == run["id"], workflows.c.version == version)
        state = self._serializer.serialize_json(workflow)
        return bool((await transaction.execute(here.values(version=version + 1, state=state))).rowcount)

    async def _now(self, run: Data) -> Data:
        row = await self.host._get(workflows, id=run["id"])
        assert row is not None
        return self._turn(run, self._serializer.deserialize_json(row["state"]))

    def _engine(
        self, run: Data, workflow: BpmnWorkflow, transaction: AsyncConnection | None = None
    ) -> ActionEngine:
        walk = msgspec.convert(run["walk"], Walk)
        workflow.script_engine = ActionEngine(self.actions, lambda _: walk, transaction=transaction)
        return workflow.script_engine

    def _turn(self, run: Data, workflow: BpmnWorkflow) -> Data:
        turn = shown_step(workflow)
        halted = run["state"] == "halted"
        return {"run": run["id"], **turn} if not halted else {"run": run["id"], "step": None, "done": True}


def _complete(engine: ActionEngine, workflow: BpmnWorkflow) -> None:
    shown(workflow)[0].run()
    engine.run(workflow)


class ProcessDriver(FullDriver):
    """How the kit uses this host."""


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ProcessDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.spiffworkflow.host:make_host``."""
    host = FullHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield ProcessDriver(host, actions, ProcessWalker(host, actions), env)
