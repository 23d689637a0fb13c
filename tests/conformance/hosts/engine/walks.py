"""The engine itself: it walks a little ahead of the user, and gives each passage through a node or step its own name."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from flowactions_hookspecs import Deferred, Eager, FlowActions, Node, Walk
from tests.conformance.hosts.engine.store import Found, Store

Item = dict[str, Any]


class Place(NamedTuple):
    """A step or an action node, in one passage."""

    item: Item
    visit: str

    @property
    def step_id(self) -> str | None:
        """The id of the step in this passage; ``None`` for an action node."""
        if self.item["kind"] != "step":
            return None
        return str(self.item["id"]) if self.visit == "1" else f"{self.item['id']}@{self.visit}"


def places(items: Sequence[Item], passage: str = "") -> Iterator[Place]:
    """Gives steps and action nodes in the order of the walk. Walked again, they are the same."""
    for item in items:
        if item["kind"] == "branch":
            yield from places(item["taken"], passage)
        elif item["kind"] == "loop":
            for number in range(1, item["times"] + 1):
                yield from places(item["items"], f"{passage}{item['id']}:{number}/")
        else:
            yield Place(item, passage.rstrip("/") or "1")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is stored."""

    tenant: int
    agent: str
    flow: str
    user: str
    content: str
    paced: bool
    items: list[Item]


class Engine:
    """Walks flows.

    Args:
        store: where flows and runs are.
        actions: the plugins.
    """

    def __init__(self, store: Store, actions: FlowActions) -> None:
        self.store = store
        self.actions: Any = actions
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def places(self, run: Run, _run_id: int) -> list[Place]:
        """Gives what the run comes by."""
        return list(places(run.items))

    async def open(self, found: Found, user: str, content: str) -> dict[str, Any]:
        """Starts a run. No step of a client-paced flow is shown yet."""
        flow = found.data
        run = Run(
            tenant=found.tenant,
            agent=flow["agent"],
            flow=f"{found.tenant}.{found.id}",
            user=user,
            content=content,
            paced=flow["paced"],
            items=await self._whole(found.tenant, flow["items"]),
        )
        session = secrets.token_urlsafe(16)
        run_id = await self.store.start(session, run)
        seq = self.places(run, run_id)
        if run.paced:
            await self._record(run, run_id, seq, 0)
            return _turn(session)
        texts = []
        for place in seq:
            if place.step_id is not None:
                texts.append(place.item["text"])
            elif (await self.actions.reach(_walk(run, run_id, place.visit), _node(place))).halt:
                break
        await self.store.move(run_id, -1, done=True)
        return {**_turn(session, done=True), "texts": texts}

    async def next(self, session: str) -> dict[str, Any] | None:
        """Goes on to the next step."""
        # A doubled request waits for the first one; between two processes, the row's cursor decides.
        async with self._locks[session]:
            row = await self.store.run(session)
            if row is None:
                return None
            run = msgspec.json.decode(row.data, type=Run)
            seq = self.places(run, row.id)
            if row.done:
                return _turn(session, done=True)
            target = next((n for n in range(row.cursor + 1, len(seq)) if seq[n].step_id), len(seq))
            step_id = seq[target].step_id if target < len(seq) else None
            state = (await self.actions.advance(_walk(run, row.id, "1"), step_id)).state
            if state == "halted":
                await self.store.move(row.id, row.cursor, done=True)
                return _turn(session, done=True)
            if state == "running":
                return _turn(session, seq[row.cursor] if row.cursor >= 0 else None)
            await self._record(run, row.id, seq, target + 1)
            done = step_id is None
            await self.store.move(row.id, row.cursor, cursor=target, done=done)
            return _turn(session, None if done else seq[target], done=done)

    async def _record(self, run: Run, run_id: int, seq: Sequence[Place], begin: int) -> None:
        """Records the action nodes up to the next step: what comes behind it may not be known yet."""
        end = next((n for n in range(begin, len(seq)) if seq[n].step_id), len(seq))
        step_id = seq[end].step_id if end < len(seq) else None
        for place in seq[begin:end]:
            walk = replace(_walk(run, run_id, place.visit), pacing=Deferred(step_id))
            await self.actions.reach(walk, _node(place))

    async def _whole(self, tenant: int, items: Sequence[Item]) -> list[Item]:
        """Puts sub-flows in their places: each is a loop of one passage."""
        whole = []
        for item in items:
            if item["kind"] == "subflow":
                sub = await self.store.one("flow", tenant=tenant, id=item["flow"])
                inner = await self._whole(tenant, sub.data["items"] if sub else [])
                whole.append({"kind": "loop", "id": item["id"], "times": 1, "items": inner})
            else:
                lists: Item = {
                    name: await self._whole(tenant, item[name])
                    for name in ("items", "taken", "other")
                    if name in item
                }
                whole.append({**item, **lists})
        return whole


def _walk(run: Run, run_id: int, visit: str) -> Walk:
    return Walk(
        organization_id=str(run.tenant),
        agent_id=run.agent,
        # Of a sub-flow's nodes, too: the plugin keeps records and halts by run and flow.
        flow_id=run.flow,
        run_id=str(run_id),
        user_id=run.user,
        content=run.content,
        pacing=Eager(),
        visit=visit,
    )


def _node(place: Place) -> Node:
    return Node(id=str(place.item["id"]), type=place.item["type"], config=place.item["config"])


def _turn(session: str, place: Place | None = None, *, done: bool = False) -> dict[str, Any]:
    step = None if place is None else {"id": place.step_id, "text": place.item["text"]}
    return {"session": session, "step": step, "done": done}
