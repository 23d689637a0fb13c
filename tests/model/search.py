"""Searches every state of the model, breadth first, so that the first counterexample is a shortest one.

    python -m tests.model.search [--without RULE]

It prints how many states and steps each world has, and ends with an error if a promise is broken. With ``--without``, a rule
of `names.RULES` is left out, and the shortest way to a broken promise is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from typing import Any, NamedTuple

from tests.model.names import RULES
from tests.model.work import Model
from tests.model.world import WORLDS, World


class Found(NamedTuple):
    """What a search has found.

    Attributes:
        states: how many there are.
        steps: between them.
        wrong: the promise that is broken; ``None``: none is.
        trace: the steps to there.
        names: of all steps that were taken.
    """

    states: int
    steps: int
    wrong: str | None
    trace: tuple[str, ...]
    names: frozenset[str]

    def __str__(self) -> str:
        """Return the counterexample as text."""
        return "\n".join([f"{self.wrong}:", *(f"{n:3}. {step}" for n, step in enumerate(self.trace, 1))])


def search(world: World, without: str | None = None) -> Found:
    """Search a world.

    Args:
        world: which.
        without: the rule that is left out.
    """
    return search_states(Model(world, without), world.start, can_end=world.patience is None)


def search_states(model: Any, start: Any, *, can_end: bool = True) -> Found:
    """Search all states of a model.

    Args:
        model: its steps, its promises, and when all has ended.
        start: the first state.
        can_end: whether everything must be able to end from each state.
    """
    came: dict[Any, tuple[Any, str] | None] = {start: None}
    # Of each state, those that lead to it without a fault.
    before: dict[Any, list[Any]] = {}
    names: set[str] = set()
    queue, steps, ended = deque([start]), 0, []
    while queue:
        s = queue.popleft()
        if model.has_ended(s):
            ended.append(s)
        for step in model.steps(s):
            after = model.normal(step.state)
            steps += 1
            names.add(step.name)
            if not step.is_fault:
                before.setdefault(after, []).append(s)
            is_new = after not in came
            if is_new:
                came[after] = (s, f"{step.name} {step.detail}".strip())
                queue.append(after)
            wrong = step.wrong or (model.wrong(after) if is_new else None)
            if wrong is not None:
                trace = (*_trace(came, s), f"{step.name} {step.detail}".strip())
                return Found(len(came), steps, wrong, trace, frozenset(names))
    if can_end:
        lost = _unable_to_end(came, before, ended)
        if lost is not None:
            wrong = "a row is lost: from here on, it is neither delivered nor dead, even without further faults"
            return Found(len(came), steps, wrong, _trace(came, lost), frozenset(names))
    return Found(len(came), steps, None, (), frozenset(names))


def _unable_to_end(
    came: dict[Any, tuple[Any, str] | None], before: dict[Any, list[Any]], ended: list[Any]
) -> Any:
    """Return the first state from which no steps without faults lead to the end of all rows."""
    able, pending = set(ended), list(ended)
    while pending:
        for s in before.get(pending.pop(), ()):
            if s not in able:
                able.add(s)
                pending.append(s)
    return next((s for s in came if s not in able), None)


def _trace(came: dict[Any, tuple[Any, str] | None], s: Any) -> tuple[str, ...]:
    steps = []
    while (before := came[s]) is not None:
        s, step = before
        steps.append(step)
    return tuple(reversed(steps))


def main() -> None:
    """Search all worlds, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", choices=sorted(RULES))
    parser.add_argument("--world", choices=sorted(WORLDS))
    options = parser.parse_args()
    broken = False
    for name, world in WORLDS.items():
        if options.world not in {None, name}:
            continue
        started = time.process_time()
        found = search(world, options.without)
        took = time.process_time() - started
        print(f"{name}: {found.states:,} states, {found.steps:,} steps, {took:.1f} s")  # noqa: T201
        if found.wrong is not None:
            print(found)  # noqa: T201
            broken = True
    sys.exit(broken)


if __name__ == "__main__":
    main()
