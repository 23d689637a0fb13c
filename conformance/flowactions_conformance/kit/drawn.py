"""Flows drawn from the seed of the run, and smaller ones made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from flowactions_conformance.kit.model import Drawn, expected
from flowactions_conformance.kit.parts import Parts
from flowactions_conformance.kit.under_test import Action, Branch, Flow, Item, Loop, Step, SubFlow

THEMES: Final = ("rounds", "nested", "arms", "deep", "twice", "mixed")
"""What a flow has in any case. ``deep``: sub-flows in sub-flows, three deep; ``twice``: one that is entered from two places."""
NEEDS: Final = {"arms": "branch", "deep": "subflow", "twice": "subflow"}
STATUSES: Final = ("sent", "skipped", "failed", "queued")
"""Of nodes, in turn: none of them ends a run."""
MANY_ROUNDS: Final = 11
"""More than ten: rounds that are named by one digit, or sorted as texts, come out of order or twice."""


class Drawing:
    """Draws one flow.

    Args:
        parts: makes ids. Flows that are drawn one after the other have nodes with the same ids.
        draw: of the check.
        name: of the flow, also in the configs of its nodes.
        kinds: of items beside steps and nodes: ``loop``, ``branch``, ``subflow``.
        halts: the content of runs that one of the nodes is to halt; ``None``: no node halts.
    """

    def __init__(
        self, parts: Parts, draw: Random, name: str, kinds: Collection[str] = (), halts: str | None = None
    ) -> None:
        self._parts, self._draw, self._name, self._kinds = parts, draw, name, sorted(kinds)
        self._halts = halts
        self._first = draw.randrange(len(STATUSES))
        self._counts: dict[str, int] = {}
        self._subs: list[Flow] = []

    def flow(self, theme: str = "mixed") -> Drawn:
        """Draw a flow; ``theme`` is one of `THEMES`, or ``steps``: the flow begins with a step, and has a node between steps."""
        items = self._items(2)
        if self._kinds:
            items.insert(self._draw.randint(0, len(items)), self._theme(theme))
        # A node behind another one, for what halts and what is in order.
        for each in (self._node(), self._node(), self._step()):
            items.insert(self._draw.randint(0, len(items)), each)
        if theme == "steps":
            items = [self._step(), *items, self._node(), self._step()]
        if self._draw.random() < 0.7:  # a node at the end, behind the last step
            items.append(self._node())
        made = Drawn(self._made(self._name, items, self._parts.agent), tuple(self._subs))
        return made if self._halts is None else self._halting(made)

    def _new(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"

    def _made(self, name: str, items: Sequence[Item], agent: str) -> Flow:
        parts = self._parts
        return Flow(
            id=parts.id(name),
            name=f"Drawn {name}",
            organization=parts.organization,
            agent=agent,
            pacing="eager" if parts.pacing == "eager" else "deferred",
            items=tuple(items),
        )

    def _step(self) -> Step:
        return self._parts.step(self._new("s"))

    def _node(self) -> Action:
        name = self._new("n")
        status = STATUSES[(self._first + self._counts["n"]) % len(STATUSES)]
        return self._parts.probe(name, text=self._name, status=status)

    def webhook(self) -> Action:
        """Return a webhook whose URL and secret only this flow has."""
        name = self._new("w")
        url = self._parts.hook(f"{self._name}-{name}")
        return self._parts.webhook(name, webhookUrl=url, webhookSecret=f"secret of {name} in {self._name}")

    def _items(self, most: int, depth: int = 0) -> list[Item]:
        items: list[Item] = []
        for _ in range(self._draw.randint(1, most + 1)):
            if self._kinds and depth and self._draw.random() < 0.3:
                items.append(self._container(self._draw.choice(self._kinds), depth - 1))
            else:
                items.append(self._node() if self._draw.random() < 0.6 else self._step())
        return items

    def _container(self, kind: str, depth: int) -> Item:
        if kind == "branch":
            taken = self._draw.random() < 0.6
            return Branch(
                id=self._parts.id(self._new("b")),
                taken=tuple(self._items(2, depth)) if taken else (),
                other=tuple(self._items(1, depth)),
            )
        if kind == "subflow":
            return self._sub(self._items(2, depth))
        return self._loop(self._draw.randint(1, 3), self._items(2, depth))

    def _loop(self, times: int, items: Sequence[Item]) -> Loop:
        return Loop(id=self._place("l"), times=times, items=tuple(items))

    def _sub(self, items: Sequence[Item]) -> SubFlow:
        sub = self._made(f"{self._name}-{self._new('f')}", items, self._parts.id("other-agent"))
        self._subs.append(sub)
        return SubFlow(id=self._place("p"), flow=sub.id)

    def _place(self, letter: str) -> str:
        """Make an id that is nearly as long as the kit's ids may be, so that a host which cuts visits is found."""
        return self._parts.id(f"{self._new(letter)}-of-a-flow-drawn-anew")

    def _theme(self, theme: str) -> Item:
        if theme == "rounds":
            return self._loop(MANY_ROUNDS, [self._node(), self._step(), self._node()])
        if theme == "nested":
            inner = self._loop(2, [self._node(), self._step(), self.webhook()])
            return self._loop(3, [inner, self._node()])
        if theme == "arms":
            arms: list[Item] = [
                Branch(id=self._parts.id(self._new("b")), other=(self._node(), self._step())),
                self._node(),
                Branch(
                    id=self._parts.id(self._new("b")),
                    taken=(self.webhook(), self._node(), self._step()),
                    other=(self._node(),),
                ),
                self._node(),
            ]
            return self._loop(2, arms)
        if theme == "deep":
            item: Item = self._sub([self._node(), self.webhook(), self._step()])
            for _ in range(2):
                item = self._sub([self.webhook(), item, self._node()])
            return item
        if theme == "twice":
            first = self._sub([self._node(), self._step(), self.webhook()])
            return self._loop(2, [first, replace(first, id=self._parts.id(self._new("p")))])
        return self._container(self._draw.choice(self._kinds), 2)

    def _halting(self, made: Drawn) -> Drawn:
        """Have one of the nodes by which the run comes halt, within a loop or sub-flow if there is one, and not the last node."""
        run = [each for group in expected(made, "").probes for each in group]
        inner = [each for each in run[:-1] if each.around] or run[:1]
        chosen = self._draw.choice(inner).item.id

        def changed(item: Any) -> Any:
            if isinstance(item, Action) and item.id == chosen:
                return replace(item, config={**item.config, "halt": self._halts})
            below = {
                name: tuple(changed(each) for each in getattr(item, name))
                for name in ("items", "taken", "other")
                if hasattr(item, name)
            }
            return replace(item, **below) if below else item

        return Drawn(changed(made.flow), tuple(changed(each) for each in made.subs))


def smaller(drawn: Drawn) -> Iterator[Drawn]:
    """Yield flows that are smaller by one thing each: an item, the frame of a loop or branch, rounds, a node's own status."""
    for items in _smaller(drawn.flow.items):
        yield drawn._replace(flow=replace(drawn.flow, items=items))
    for number, sub in enumerate(drawn.subs):
        for items in _smaller(sub.items):
            subs = list(drawn.subs)
            subs[number] = replace(sub, items=items)
            yield drawn._replace(subs=tuple(subs))


def _smaller(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    for at, item in enumerate(items):
        before, behind = tuple(items[:at]), tuple(items[at + 1 :])
        yield (*before, *behind)
        if isinstance(item, Action) and item.config.get("status", "sent") != "sent":
            yield (*before, replace(item, config={**item.config, "status": "sent"}), *behind)
        if isinstance(item, Loop):
            yield (*before, *item.items, *behind)
            for times in sorted({2, item.times - 1}):
                if 1 < times < item.times:
                    yield (*before, replace(item, times=times), *behind)
        for name in ("items", "taken", "other"):
            for less in _smaller(getattr(item, name, ())):
                changed: Any = {name: less}
                yield (*before, replace(item, **changed), *behind)
