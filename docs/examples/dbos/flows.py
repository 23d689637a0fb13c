"""Runs a flow, as the kit describes flows, in a DBOS workflow: `Step`, `Action`, `Branch`, `Loop` and `SubFlow`, as dictionaries.

Your own workflows need none of this: `glue.py` is all that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import msgspec
from dbos import DBOS, SetWorkflowID
from glue import ActionNodes, Halted, Run

from flowactions_hookspecs import Node, Walk

Item = dict[str, Any]
Turn = dict[str, Any]
Workflow = Callable[[Item, list[Item], bool], Coroutine[Any, Any, Turn]]

TURN: Final = "turn"
"""The event that holds what the user sees."""
USER_SECONDS: Final = 30 * 24 * 3600
"""For how long a run waits for its user."""
MOVES_SECONDS: Final = 10
"""After which a run that does not move is taken over, because its process may have ended."""


def workflow_of(nodes: ActionNodes) -> Workflow:
    """Register the workflow that runs flows; call it before `DBOS.launch`."""

    @DBOS.workflow(name="flow")
    async def flow(walk: Item, items: list[Item], paced: bool) -> Turn:
        walker = _Walker(nodes.run(msgspec.convert(walk, Walk)))
        try:
            if paced and items and items[0]["kind"] != "step":
                await walker.ask(None)  # what precedes the first step waits for the user, too
            await walker.walk(items, paced=paced)
            if paced:
                await walker.run.end()
        except Halted:
            pass
        return await walker.show(None, done=True)

    made: Workflow = flow
    return made


async def open_run(flow: Workflow, walk: Walk, items: list[Item], *, paced: bool) -> Turn:
    """Start a workflow, and return what the user sees: at its first step, or at its end."""
    with SetWorkflowID(walk.run_id):
        handle = await DBOS.start_workflow_async(flow, msgspec.to_builtins(walk), items, paced)
    turn: Turn
    if not paced:
        turn = await handle.get_result()
        return turn
    turn = await DBOS.get_event_async(walk.run_id, TURN, timeout_seconds=USER_SECONDS)
    return turn


async def next_turn(run_id: str, at: str | None) -> Turn:
    """Signal to a workflow that its user moves on, and return what the user sees then.

    Args:
        run_id: the workflow's id.
        at: the step that the user has seen. A doubled request, or a step that the client made up, changes nothing.
    """
    turn: Turn = await DBOS.get_event_async(run_id, TURN, timeout_seconds=0)
    if turn["done"] or at != turn["step"]:
        return turn
    await DBOS.send_async(run_id, None, topic=f"next {at}")
    then: Turn | None = None
    while then is None:
        then = await DBOS.get_event_async(run_id, f"{TURN} behind {at}", MOVES_SECONDS)
        if then is None:
            await DBOS.resume_workflow_async(run_id)
    return then


def with_sub_flows(items: Sequence[Item], flows: Callable[[str], Sequence[Item]]) -> list[Item]:
    """Put the items of sub-flows into the items of a flow.

    Args:
        items: of the flow.
        flows: id of a flow → its items.
    """
    found = []
    for item in items:
        inner: Item = {
            name: with_sub_flows(item[name], flows) for name in ("items", "taken", "other") if name in item
        }
        if item["kind"] == "subflow":
            inner["items"] = with_sub_flows(flows(item["flow"]), flows)
        found.append({**item, **inner})
    return found


def actions_in(items: Sequence[Item]) -> Iterator[Item]:
    """Return the action nodes of items as `with_sub_flows` returns them, in loops, branches and sub-flows, too."""
    for item in items:
        if item["kind"] == "action":
            yield item
        for name in ("items", "taken", "other"):
            yield from actions_in(item.get(name, ()))


class _Walker:
    """Walks through items: what a workflow function of yours does in plain Python."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._shown: str | None = None
        self._has_shown = False

    async def walk(self, items: Sequence[Item], *, paced: bool) -> None:
        for item in items:
            kind = item["kind"]
            if kind == "action":
                node = Node(id=item["id"], type=item["type"], config=item["config"])
                if paced:
                    self.run.wait(node)
                elif node.type == "webhook":
                    await self.run.reach(node)
                else:
                    await self.run.reach_outside(node)
            elif kind == "step" and paced:
                await self.ask(await self.run.step(item["id"]))
            elif kind == "branch":
                await self.walk(item["taken"], paced=paced)
            elif kind == "loop":
                for _ in range(item["times"]):
                    await self.walk(item["items"], paced=paced)
            elif kind == "subflow":
                await self.walk(item["items"], paced=paced)

    async def ask(self, step: str | None) -> None:
        await self.show(step)
        await DBOS.recv_async(f"next {step}", timeout_seconds=USER_SECONDS)

    async def show(self, step: str | None, *, done: bool = False) -> Turn:
        turn = {"step": step, "done": done}
        await DBOS.set_event_async(TURN, turn)
        if self._has_shown:
            await DBOS.set_event_async(f"{TURN} behind {self._shown}", turn)
        self._shown, self._has_shown = step, True
        return turn
