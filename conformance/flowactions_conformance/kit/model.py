"""What a run of a flow is to do, and how what it did differs: pure, from the flow as the kit has made it.

A run comes by passages: a step or a node, in one round of each loop around it. The nodes of an eager run are one group. Those of a
client-paced run are a group for each step: what stands before it, and at the end what stands behind the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowactions_conformance.kit.support.compare import text_change
from flowactions_conformance.kit.under_test import Action, Branch, Flow, Item, Loop, Step, SubFlow

MOST_SHOWN: Final = 200
Reached = Mapping[str, Any]
"""What the probe reports of a node that was reached: ``walk`` and ``node``."""


class Drawn(NamedTuple):
    """A flow with the sub-flows that it enters, those that others enter first."""

    flow: Flow
    subs: tuple[Flow, ...] = ()

    @property
    def flows(self) -> Mapping[str, Flow]:
        """Kit id → flow."""
        return {each.id: each for each in (*self.subs, self.flow)}


class Around(NamedTuple):
    """A loop (with its round), a branch or a place of a sub-flow around a passage."""

    kind: str
    name: str
    round: int = 0

    def __str__(self) -> str:
        return f"round {self.round} of loop {self.name}" if self.round else f"{self.kind} {self.name}"


class Passage(NamedTuple):
    """A step or a node as a run comes by it, and what is around it, the outermost first."""

    item: Step | Action
    around: tuple[Around, ...] = ()

    def __str__(self) -> str:
        kind = "step" if isinstance(self.item, Step) else "node"
        return " in ".join((f"{kind} {name_of(self.item)}", *map(str, reversed(self.around))))

    @property
    def depth(self) -> int:
        """How many sub-flows deep it is."""
        return sum(each.kind == "sub-flow" for each in self.around)


class Expected(NamedTuple):
    """What a run is to do.

    Attributes:
        groups: the nodes that run, by the step before which they stand; see the module.
        halted: whether the last one halts.
    """

    groups: list[list[Passage]]
    halted: bool

    @property
    def probes(self) -> list[list[Passage]]:
        """Of the groups, the nodes that report."""
        return [[each for each in group if "name" in config_of(each)] for group in self.groups]


class Run(NamedTuple):
    """A run as it was opened, with the host's ids.

    Attributes:
        walk: fields of its walks, as JSON names them.
        subs: host ids of the sub-flows, and of their agent.
        kinds: of its user and content, in words.
    """

    walk: Mapping[str, str]
    subs: tuple[Mapping[str, str], ...] = ()
    kinds: str = ""


class Difference(NamedTuple):
    """How a run differs from what was expected.

    Attributes:
        kind: equal for differences that have the same reason.
        what: one sentence.
    """

    kind: str
    what: str
    expected: object = ""
    actual: object = ""
    cause: str = ""


def name_of(item: Item) -> str:
    """Return an item's id without what only makes it unique."""
    return item.id.partition("-")[0]


def passages(
    items: Sequence[Item], flows: Mapping[str, Flow], around: tuple[Around, ...] = ()
) -> Iterator[Passage]:
    """Yield what a run comes by."""
    for item in items:
        name = name_of(item)
        if isinstance(item, Branch):
            yield from passages(item.taken, flows, (*around, Around("branch", name)))
        elif isinstance(item, Loop):
            for number in range(1, item.times + 1):
                yield from passages(item.items, flows, (*around, Around("loop", name, number)))
        elif isinstance(item, SubFlow):
            yield from passages(flows[item.flow].items, flows, (*around, Around("sub-flow", name)))
        else:
            yield Passage(item, around)


def expected(drawn: Drawn, content: str) -> Expected:
    """Return what a run with this content is to do."""
    groups: list[list[Passage]] = [[]]
    for passage in passages(drawn.flow.items, drawn.flows):
        if isinstance(passage.item, Action):
            groups[-1].append(passage)
            if passage.item.config.get("halt") in (True, content):
                return Expected(groups, halted=True)
        elif drawn.flow.pacing == "deferred":
            groups.append([])
    return Expected(groups, halted=False)


def config_of(passage: Passage) -> Mapping[str, Any]:
    """Return a node's config; a step has none."""
    """Return a node's config; a step has none."""
    return passage.item.config if isinstance(passage.item, Action) else {}


def named(reached: Reached) -> str:
    """Return the name of a probe's node."""
    return str(reached["node"]["config"].get("name"))


def difference(
    drawn: Drawn, wanted: Expected, seen: Sequence[Sequence[Reached]], run: Run
) -> Difference | None:
    """Return the first difference between the expected run and what the probe has seen; ``None``: they are the same.

    Args:
        drawn: the flow.
        wanted: what was expected.
        seen: for each of the expected groups what was reached, and behind them what was reached later.
        run: as it was opened.
    """
    groups = wanted.probes
    for number in range(max(len(groups), len(seen))):
        due = groups[number] if number < len(groups) else []
        came = seen[number] if number < len(seen) else ()
        for passage, reached in zip(due, came, strict=False):
            if named(reached) != config_of(passage)["name"]:
                break
            found = _of_the_walk(drawn, passage, reached, run)
            if found is not None:
                return found
        if [config_of(each)["name"] for each in due] != [named(each) for each in came]:
            return (
                _again(when(drawn, number), due, came)
                or _late(drawn, number, groups, seen)
                or _of_the_order(drawn, wanted, number, due, came)
            )
    both = [
        (passage, reached["walk"], number)
        for number, group in enumerate(groups)
        for passage, reached in zip(group, seen[number] if number < len(seen) else (), strict=True)
    ]
    return _of_the_passages(both) or (_of_the_steps(both) if drawn.flow.pacing == "deferred" else None)


def when(drawn: Drawn, number: int) -> str:
    """Return in words when a group runs."""
    if drawn.flow.pacing == "eager":
        return "when the flow was opened" if number == 0 else "after the run had ended"
    steps = [each for each in passages(drawn.flow.items, drawn.flows) if isinstance(each.item, Step)]
    if number < len(steps):
        return f"with the next to {steps[number]}"
    return "with the next from the last step" if number == len(steps) else "after the run had ended"


OF_VALUES: Final = frozenset(
    {"organizationId", "agentId", "flowId", "userId", "content", "pacing", "config", "run", "visit"}
)
"""Kinds of differences that are the host's doing, however slow the machine is: it has written another value."""

CHANGED: Final = (
    "the user's id or message is trimmed, escaped, rendered, normalized or cut before it becomes the walk's"
)
OF_ANOTHER: Final = (
    "Walk is built from something else than the run, for example from the flow's own values or those of another run, or from "
    "who is signed in"
)
OF_THE_STEP: Final = (
    "Deferred names another step than the next content step (None at the end), advance() gets the step that the user leaves, "
    "or the run begins at a later step"
)
ONE_OF_SEVERAL: Final = "of several nodes one after another, one is reached or recorded"
CONTINUE: Final = ("failed", "skipped", "queued")
AGAIN: Final = (
    "the host calls reach() again for a node, for example after a result that is `failed`: call it once for each passage, and leave "
    "repeating to the plugin"
)
ONCE_ENTERED: Final = (
    "a sub-flow that the run has entered before is not entered again: what guards against cycles may look only at the sub-flows "
    "around, and not at all that were walked"
)
HALTS: Final = (
    "the walk does not look at NodeResult.halt, or at the state `halted`, or does not keep it with the run"
)
IN_A_SUB_FLOW: Final = "a halt ends the loop or the sub-flow in which it came, and not the run"
ALL_ARMS: Final = (
    "the nodes of all arms are reached, and the steps of one are shown: reach what the run comes by"
)


def _again(told: str, due: Sequence[Passage], came: Sequence[Reached]) -> Difference | None:
    """Tell of the first node that was reached twice, one time after the other, in one passage."""
    for passage, one, other in zip(due, came, came[1:], strict=False):
        if named(one) != config_of(passage)["name"]:
            break
        if named(one) == named(other) and one["walk"]["visit"] == other["walk"]["visit"]:
            return Difference("again", f"{passage} was reached twice {told}", "once", "twice", AGAIN)
    return None


def _late(
    drawn: Drawn, number: int, groups: Sequence[Sequence[Passage]], seen: Sequence[Sequence[Reached]]
) -> Difference | None:
    """Tell of the first node that did not run when it was due, and ran more often than expected later."""
    ran = Counter(map(named, seen[number] if number < len(seen) else ()))
    for passage in groups[number] if number < len(groups) else ():
        name = str(config_of(passage)["name"])
        ran[name] -= 1
        if ran[name] >= 0:
            continue
        for later in range(number + 1, len(seen)):
            due = sum(config_of(each)["name"] == name for each in groups[later]) if later < len(groups) else 0
            if sum(named(each) == name for each in seen[later]) > due:
                what = f"{passage} was not reached {when(drawn, number)}, but {when(drawn, later)}"
                return Difference("waited", what, cause=OF_THE_STEP)
    return None


def _of_the_order(
    drawn: Drawn, wanted: Expected, number: int, due: Sequence[Passage], came: Sequence[Reached]
) -> Difference:
    names, ran = [str(config_of(each)["name"]) for each in due], [named(each) for each in came]
    at = next(
        (n for n, pair in enumerate(zip(names, ran, strict=False)) if pair[0] != pair[1]),
        min(len(names), len(ran)),
    )
    told = when(drawn, number)
    everywhere = list(passages(drawn.flow.items, drawn.flows))
    path = {str(config_of(each).get("name")) for each in everywhere}
    said = {"expected": names, "actual": ran}
    extra = ran[at] if at < len(ran) else ""
    last = next((each for group in reversed(wanted.groups) for each in reversed(group)), None)
    if extra and extra not in path:
        return Difference(
            "arm",
            f"the node {extra} was reached {told}, which stands in an arm that the run does not take",
            **said,
            cause=ALL_ARMS,
        )
    if extra and wanted.halted and at >= len(names) and number >= len(wanted.groups) - 1:
        cause = IN_A_SUB_FLOW if last is not None and last.around else HALTS
        return Difference(
            "halt", f"the node {extra} was reached {told}, behind one that halts ({last})", **said, cause=cause
        )
    if Counter(names) == Counter(ran):
        return Difference(
            "order",
            f"nodes ran in another order {told}: {due[at]} was expected, and {extra} was reached",
            **said,
            cause="nodes run in an order of their own, for example that of their ids, or all at once: reach() one after the other",
        )
    if at < len(names) and extra not in names[at + 1 :] and (extra or at == len(ran)):
        missed = due[at]
        behind = str(config_of(due[at - 1]).get("status")) if at else ""
        cause = _near(drawn, everywhere, missed)
        if behind in CONTINUE and cause != ONCE_ENTERED:
            cause = f"the walk does not continue after a node with the status {behind!r}"
        elif not cause and drawn.flow.pacing == "eager" and not ran:
            cause = (
                "Deferred is passed for a flow that is not client-paced, or the host starts reach() in the background and answers "
                "before it has ended: await it"
            )
        elif not cause and drawn.flow.pacing == "deferred":
            cause = OF_THE_STEP
        return Difference(
            "missing",
            f"{missed} was not reached {told}" + (f", and {extra} was" if extra else ""),
            **said,
            cause=cause,
        )
    if at < len(names):
        return Difference(
            "missing",
            f"{due[at]} was left out {told}",
            **said,
            cause=_near(drawn, everywhere, due[at]) or ONE_OF_SEVERAL,
        )
    cause = (
        ""
        if drawn.flow.pacing == "eager"
        else "pacing is left out of Walk, whose default is eager, or nodes are recorded against another step than the next one, or reached again"
    )
    return Difference(
        "extra", f"the node {extra} was reached {told}, and nothing more was expected", **said, cause=cause
    )


def _entered_before(everywhere: Sequence[Passage], missed: Passage) -> bool:
    """Whether the run has come by the same node in another place of its sub-flow."""
    before = everywhere[: everywhere.index(missed)]
    pairs = [
        pair
        for each in before
        if each.item == missed.item
        for pair in zip(each.around, missed.around, strict=False)
    ]
    return any(one != other and one.kind == other.kind == "sub-flow" for one, other in pairs)


def _near(drawn: Drawn, everywhere: Sequence[Passage], passage: Passage) -> str:
    """Return in words what may be the reason that a node is lost, from what is around it or before it."""
    if _entered_before(everywhere, passage):
        return ONCE_ENTERED
    for flow in drawn.flows.values():
        for before, item in zip(flow.items, flow.items[1:], strict=False):
            if item == passage.item and not isinstance(before, (Step, Action)):
                empty = "the empty arm of " if isinstance(before, Branch) and not before.taken else ""
                return f"what stands behind {empty}{type(before).__name__.lower()} {name_of(before)} is lost"
    if not passage.around:
        return ""
    if passage.depth > 1:
        return "sub-flows are entered, or looked into, only so deep: enter each, however deep"
    return f"what stands in a {passage.around[-1].kind} is left out, or a part of its rounds"


def _short(value: object) -> object:
    text = str(value)
    return value if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(text)} characters)"


def _of_the_walk(drawn: Drawn, passage: Passage, reached: Reached, run: Run) -> Difference | None:
    walk = reached["walk"]
    for field, value in run.walk.items():
        if walk[field] == value:
            continue
        cause, more = OF_ANOTHER, text_change(value, walk[field])
        if more or str(walk[field]).strip().lower() == value.strip().lower():
            cause = CHANGED
        if any(walk[field] == sub.get(field) for sub in run.subs):
            more = ", but the sub-flow's"
            cause = "the nodes of a sub-flow get its own flow_id or agent_id: those of the opened flow stay"
        of = f" ({run.kinds})" if run.kinds and field in {"userId", "content"} else ""
        what = f"{field} of the walk is not the run's{more}{of}: at {passage}"
        return Difference(field, what, _short(value), _short(walk[field]), cause)
    kind, pacing = walk["pacing"]["kind"], drawn.flow.pacing
    if kind != pacing:
        cause = "Deferred is passed in every flow, or in none: pass it where the user goes from step to step"
        return Difference(
            "pacing", f"the walk of a flow has another pacing than the flow: at {passage}", pacing, kind, cause
        )
    text = config_of(passage).get("text")
    if reached["node"]["config"].get("text") != text:
        return Difference(
            "config",
            f"a node ran with the config of another flow's: {passage}",
            text,
            reached["node"]["config"].get("text"),
            "nodes are looked up by their ids alone: two flows may have nodes with the same ids",
        )
    return None


def _of_the_passages(both: Sequence[tuple[Passage, Mapping[str, Any], int]]) -> Difference | None:
    known: dict[tuple[str, str], Passage] = {}
    for passage, walk, _ in both:
        if walk["runId"] != both[0][1]["runId"]:
            return Difference(
                "run",
                f"run_id changed within a run: at {passage}",
                both[0][1]["runId"],
                walk["runId"],
                "run_id is made at each call, and not once for each run",
            )
        key = (passage.item.id, walk["visit"])
        if key not in known:
            known[key] = passage
            continue
        other = known[key]
        cause = "visit names the loop, and not which of its rounds this is, or not all of its digits, or is cut to a length"
        differs = [pair for pair in zip(other.around, passage.around, strict=False) if pair[0] != pair[1]]
        if walk["visit"] == "1":
            cause = "Walk.visit is left at its default: name the passage, for example loop:2"
        elif differs and differs[0][0].kind == "sub-flow":
            cause = "visit does not name the place from which the sub-flow was entered"
        elif differs and differs[0][0] is not other.around[-1]:
            cause = "visit counts the rounds of the innermost loop only: name those of all loops around, as in outer:3/inner:1"
        return Difference(
            "visit",
            f"{passage} has the visit of {other}: the passages of a run are not distinguished",
            "a visit for each passage",
            walk["visit"],
            cause,
        )
    return None


def _of_the_steps(both: Sequence[tuple[Passage, Mapping[str, Any], int]]) -> Difference | None:
    steps: dict[int, tuple[str | None, Passage]] = {}
    for passage, walk, number in both:
        step = walk["pacing"].get("nextStepId")
        own, first = steps.setdefault(number, (step, passage))
        if own != step:
            return Difference(
                "step",
                f"nodes before one step were recorded against several: {first} and {passage}",
                own,
                step,
                "Deferred names the content step that comes next in the walk",
            )
        for other, (known, there) in steps.items():
            if other != number and known == step:
                return Difference(
                    "step",
                    f"nodes before two steps were recorded against one: {there} and {passage}",
                    "a step's id for each passage",
                    step,
                    "the step's id in the flow is given for each round: make one of step and passage, for advance() and Deferred",
                )
    return None


def outline(drawn: Drawn) -> str:
    """Return a flow with its sub-flows in one line."""

    def told(items: Sequence[Item]) -> str:
        return ", ".join(map(one, items)) or "nothing"

    def one(item: Item) -> str:
        name = name_of(item)
        if isinstance(item, Step):
            return f"step {name}"
        if isinstance(item, Loop):
            return f"loop {name} x {item.times} ({told(item.items)})"
        if isinstance(item, Branch):
            return f"branch {name} (taken: {told(item.taken)}; other: {told(item.other)})"
        if isinstance(item, SubFlow):
            return f"sub-flow {name} ({told(drawn.flows[item.flow].items)})"
        return f"node {name}{' that halts' if item.config.get('halt') else ''}"

    return told(drawn.flow.items)
