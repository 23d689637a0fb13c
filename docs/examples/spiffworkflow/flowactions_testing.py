"""The conformance kit's view of a host whose flows SpiffWorkflow runs: how to make it, and how to use it as its users do.

Prove the host: python -m flowactions_conformance run flowactions_testing:make_host

`glue.py` puts action nodes into processes. `processes.py` writes each flow of the kit as BPMN. Accounts and flows are those of
`example_host.py`, and runs are serialized workflows, all in memory. Put yours in their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from example_host import Data, Engine, ExampleHost, MyDriver, Run, new_walk
from glue import ActionEngine, shown
from processes import (
    Item,
    actions_in,
    called_by,
    serializer,
    shown_step,
    workflow_of,
)
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow

from flowactions_conformance import Env, Flow
from flowactions_hookspecs import FlowActions, Node, Walk


class ProcessData(Data):
    """Flows as `processes.py` takes them."""

    def items_of(self, flow_id: str) -> Sequence[Item]:
        """Return the items of a flow, without those of its sub-flows."""
        items: list[Item] = msgspec.to_builtins(self.flows[flow_id].items)
        return items


class ProcessHost(ExampleHost):
    """Answers what plugins ask of it."""

    _data: ProcessData

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Return the node as it is now, in the flow or one of its sub-flows."""
        flow = self._data.flows.get(flow_id)
        if flow is None or flow.organization != organization_id:
            return None
        waiting = [flow_id]
        for each in waiting:
            items = self._data.items_of(each)
            for item in actions_in(items):
                if item["id"] == node_id:
                    return Node(id=node_id, type=item["type"], config=item["config"])
            waiting += [other for other in called_by(items) if other not in waiting]
        return None


class ProcessRun(Run):
    """A run: a serialized workflow. It holds the flow as it was when it was opened."""

    def __init__(self, walk: Walk, state: str) -> None:
        super().__init__(walk, [])
        self.state = state
        self.version = 0
        self.step: str | None = None

    @property
    def shown(self) -> str | None:
        """The step that the user sees."""
        return self.step


class ProcessEngine(Engine):
    """SpiffWorkflow, which walks flows, in threads."""

    _runs: dict[str, ProcessRun]  # type: ignore[assignment]

    def __init__(self, actions: FlowActions, data: ProcessData) -> None:
        super().__init__(actions)
        self._data = data
        self._serializer = serializer()

    async def open(self, flow: Flow, user: str, content: str) -> Run:
        """Start a workflow: it runs to its end, or to its first step."""
        workflow = workflow_of(flow.id, self._data.items_of, paced=flow.pacing == "deferred")
        run = ProcessRun(new_walk(flow, user, content), self._serializer.serialize_json(workflow))
        self._runs[run.walk.run_id] = run
        return await self._go_on(run)

    async def next(self, run_id: str, at: str | None) -> Run:
        """Complete the task that the user has seen, and no other one."""
        run = self._runs[run_id]
        if run.done or at != run.shown:
            return run  # a doubled click, or a step that the client made up
        return await self._go_on(run)

    async def _go_on(self, run: ProcessRun) -> Run:
        version, workflow = run.version, self._serializer.deserialize_json(run.state)
        workflow.script_engine = engine = ActionEngine(self._actions, lambda _: run.walk)
        await asyncio.to_thread(_go_on, engine, workflow)
        if run.version == version:  # otherwise another request has moved the run meanwhile
            run.version, run.state = version + 1, self._serializer.serialize_json(workflow)
            turn = shown_step(workflow)
            run.step, run.done = turn["step"], turn["done"]
        return run


def _go_on(engine: ActionEngine, workflow: BpmnWorkflow) -> None:
    for task in shown(workflow)[:1]:
        task.run()
    engine.go_on(workflow)


class ProcessDriver(MyDriver):
    """Uses the host as its editor, its end users and its customers do: best over HTTP, at env.base_url."""

    # What the host does beyond "core": example_host.py explains these, and names what further profiles need.
    claims = frozenset({"pacing", "loops", "tenancy"})

    def __init__(self, data: ProcessData, actions: FlowActions) -> None:
        super().__init__(data, actions)
        self._engine = ProcessEngine(actions, data)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ProcessDriver]:
    """Make the host. The kit calls this several times, sometimes for two hosts at once, and in child processes."""
    data = ProcessData()
    yield ProcessDriver(data, FlowActions.load(ProcessHost(env.settings, data)))
