"""The flow walk, and where it calls the plugin: `reach` at an action node, `advance` at a step.

A single-shot flow is walked to its end when it is opened. A client-paced flow is walked then, too, but its action
nodes are only recorded, each against the content step that follows it; they run when the user gets there.
"""

from __future__ import annotations

import secrets
import time
from typing import Any
from uuid import uuid4

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_conformance.reference_host.store import Flow, Run, Store
from flowactions_hookspecs import Deferred, FlowActions, Node, Walk


class Step(msgspec.Struct, frozen=True):
    """A content step as the end user sees it."""

    id: str
    title: str
    text: str


class Turn(msgspec.Struct, frozen=True):
    """What the end user's browser gets. Nothing of what happened at action nodes is in it.

    Args:
        session: names the run in the next call.
        step: the step shown in a client-paced flow, ``None`` before the first.
        steps: everything that a single-shot flow shows.
        done: whether the flow has ended.
    """

    session: str
    step: Step | None
    steps: list[Step]
    done: bool


class Walker:
    """Walks flows.

    Args:
        store: flows and runs.
        actions: the plugins.
    """

    def __init__(self, store: Store, actions: FlowActions) -> None:
        self._store = store
        self._actions = actions

    async def open(self, flow: Flow, user_id: str, content: str) -> Turn:
        """Start a run."""
        paced = flow.kind == "client_paced"
        begins_with_step = bool(flow.items) and flow.items[0]["kind"] == "step"
        run = Run(
            id=uuid4().hex,
            session=secrets.token_urlsafe(24),
            flow=flow,
            user_id=user_id,
            content=content,
            opened_at=time.time(),
            position=0 if begins_with_step else -1,
            done=not paced,
        )
        async with self._store.transaction() as connection:
            await self._store.start_run(run, connection)
            if paced:
                # Recording is nothing but SQL: the run and what waits in it are written together, or not at all.
                return await self._walk_through(run, connection)
        # Nodes that run now may wait for a chat provider, so they run in no transaction of this host.
        return await self._walk_through(run)

    async def _walk_through(self, run: Run, transaction: AsyncConnection | None = None) -> Turn:
        flow = run.flow
        paced = flow.kind == "client_paced"
        shown: list[Step] = []
        for index, item in enumerate(flow.items):
            if item["kind"] == "step":
                shown.append(_step(item))
                continue
            walk = _walk(run)
            if paced:
                walk = msgspec.structs.replace(walk, pacing=Deferred(_step_after(flow, index)))
            node = Node(id=item["id"], type=item["type"], config=item["config"])
            result = await self._actions.reach(walk, node, transaction)
            await self._store.add_results(run.id, [result], transaction)
            if result.halt:
                await self._store.move(run, transaction, position=run.position, done=True, halted=True)
                return Turn(run.session, None, shown, done=True)
        return _turn(run) if paced else Turn(run.session, None, shown, done=True)

    async def next(self, run: Run, from_step: str | None) -> Turn:
        """Go on from the step that the user sees; from any other step nothing happens."""
        current = _current(run)
        if run.done or from_step != (current and current.id):
            return _turn(run)
        position = run.position + 1
        steps = run.flow.steps
        reached: str | None = steps[position]["id"] if position < len(steps) else None
        # First run what waits for the step, then move: after a crash in between, the user presses Next again,
        # and what has run does not run twice.
        advanced = await self._actions.advance(_walk(run), reached)
        await self._store.add_results(run.id, advanced.results)
        if advanced.state == "running":
            # Another request runs them (a doubled click), or did until its process was killed. Moving now could walk
            # past a node that halts: the turn stays where it is, and the browser asks again.
            return _turn(run)
        halted = advanced.state == "halted"
        await self._store.move(run, position=position, done=reached is None, halted=halted)
        return _turn(await self._store.run(run.session) or run)


def _walk(run: Run) -> Walk:
    return Walk(
        organization_id=run.flow.organization_id,
        agent_id=run.flow.agent_id,
        flow_id=run.flow.id,
        run_id=run.id,
        user_id=run.user_id,
        content=run.content,
        # The flows of this host have no loops, so a run comes by each node once. A host whose flows have them counts
        # the passes, and gives each its own steps.
        visit="1",
    )


def _step(item: dict[str, Any]) -> Step:
    return Step(item["id"], str(item.get("title", "")), str(item.get("text", "")))


def _step_after(flow: Flow, index: int) -> str | None:
    return next((item["id"] for item in flow.items[index:] if item["kind"] == "step"), None)


def _current(run: Run) -> Step | None:
    steps = run.flow.steps
    return _step(steps[run.position]) if 0 <= run.position < len(steps) else None


def _turn(run: Run) -> Turn:
    return Turn(run.session, None if run.done else _current(run), [], run.done)
