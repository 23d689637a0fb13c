"""What the model says of flows, and how it tells a difference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from flowactions_conformance.kit.drawn import THEMES, Drawing, smaller
from flowactions_conformance.kit.model import (
    OF_VALUES,
    Drawn,
    Expected,
    Run,
    difference,
    expected,
    outline,
    passages,
)
from flowactions_conformance.kit.parts import Parts
from flowactions_conformance.kit.under_test import Branch, Flow, Loop, SubFlow

KINDS = ("branch", "loop", "subflow")
Report = dict[str, Any]


def parts_of(pacing: str) -> Parts:
    """Return what makes ids."""
    parts = Parts("MODEL-5", "http://receiver")
    parts.pacing = pacing
    return parts


def draw(seed: int, theme: str, pacing: str = "eager", halts: str | None = None) -> Drawn:
    """Draw a flow."""
    return Drawing(parts_of(pacing), Random(seed), "f", KINDS, halts).flow(theme)  # noqa: S311


def reports(drawn: Drawn, wanted: Expected) -> list[list[Report]]:
    """Return what the probe reports of a run that does what is expected."""
    told = []
    for number, group in enumerate(wanted.probes):
        step = str(number) if number < len(wanted.groups) - 1 or wanted.halted else None
        pacing = {"kind": "eager"} if drawn.flow.pacing == "eager" else {"kind": "deferred", "nextStepId": step}
        told.append(
            [
                {
                    "walk": {
                        **RUN.walk,
                        "runId": "run",
                        "visit": "/".join(map(str, each.around)),
                        "pacing": pacing,
                    },
                    "node": {"id": each.item.id, "config": getattr(each.item, "config", {})},
                }
                for each in group
            ]
        )
    return told


RUN = Run({"flowId": "f", "userId": "Ada", "content": "said"}, ({"flowId": "sub", "agentId": "other"},))


@pytest.mark.parametrize("pacing", ["eager", "deferred"])
@pytest.mark.parametrize("theme", THEMES)
def test_a_run_as_expected_has_no_difference(theme: str, pacing: str) -> None:
    """Whatever is drawn, halted or not."""
    for seed in range(20):
        drawn = draw(seed, theme, pacing, "halted")
        for content in ("halted", "said"):
            wanted = expected(drawn, content)
            assert wanted.halted is (content == "halted")
            assert difference(drawn, wanted, reports(drawn, wanted), RUN) is None


def test_a_seed_draws_the_same_again() -> None:
    """And another one draws other flows."""
    texts = [outline(draw(seed, "mixed")) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_what_is_always_drawn() -> None:
    """More than ten rounds, an empty arm before a node, sub-flows three deep with a webhook, one entered twice, long ids of loops."""
    for seed in range(20):
        deep = list(passages((drawn := draw(seed, "deep")).flow.items, drawn.flows))
        assert max(each.depth for each in deep if getattr(each.item, "type", "") == "webhook") == 3
        assert "x 11" in outline(draw(seed, "rounds"))
        assert "(taken: nothing; other: node" in outline(draw(seed, "arms"))
        assert len(draw(seed, "twice").subs) >= 1
        # A visit that names two loops is longer than a short column.
        for pacing in ("eager", "deferred"):
            ids = re.findall(r"Loop\(id='([^']+)'", repr(draw(seed, "nested", pacing).flow))
            assert len(ids) > 1
            assert all(32 <= len(each) <= 40 for each in ids)


def test_smaller_flows_end() -> None:
    """Each has less than the one before, so shrinking comes to an end."""
    drawn, count = draw(1, "mixed"), 0
    while drawn.flow.items:
        drawn = next(smaller(drawn))
        count += 1
    assert count < 50


def small(pacing: str = "deferred") -> Drawn:
    """Return a flow with a loop in a loop, an empty arm and a sub-flow in two places."""
    parts = parts_of(pacing)
    sub = Flow(id="sub", name="", organization="", agent="other", pacing="eager", items=(parts.probe("n1"),))
    inner = Loop(id="l2", times=2, items=(parts.probe("n2"), parts.step("s1")))
    items = (
        Loop(id="l1", times=2, items=(inner,)),
        Branch(id="b1", other=(parts.probe("n3"),)),
        parts.probe("n4"),
        SubFlow(id="p1", flow="sub"),
        SubFlow(id="p2", flow="sub"),
    )
    kind: Any = pacing
    flow = Flow(id="f", name="", organization="", agent="a", pacing=kind, items=items)
    return Drawn(flow, (sub,))


def walks(change: Mapping[str, Any], of: str) -> Callable[[list[list[Report]]], None]:
    """Return what changes fields of a node's walks."""

    def changed(seen: list[list[Report]]) -> None:
        for group in seen:
            for each in group:
                if each["node"]["config"]["name"] == of:
                    each["walk"] |= change

    return changed


def lost(name: str) -> Callable[[list[list[Report]]], None]:
    """Return what loses a node."""

    def changed(seen: list[list[Report]]) -> None:
        for group in seen:
            group[:] = [each for each in group if each["node"]["config"]["name"] != name]

    return changed


def added(seen: list[list[Report]]) -> None:
    """Add a node of an arm that is not taken."""
    seen[0].append({"walk": seen[0][0]["walk"], "node": {"id": "n3", "config": {"name": "n3"}}})


def later(seen: list[list[Report]]) -> None:
    """Have a node run a step too late."""
    seen[1].append(seen[0].pop())


def again(seen: list[list[Report]]) -> None:
    """Reach a node again."""
    seen[-1].append(seen[-1][-1])


def turned(seen: list[list[Report]]) -> None:
    """Turn the order around."""
    seen[-1].reverse()


@pytest.mark.parametrize(
    ("change", "what", "cause"),
    [
        (walks({"flowId": "sub"}, "n1"), "not the run's, but the sub-flow's: at node n1 in sub-flow p1", "those of the opened"),
        (walks({"content": "sai"}, "n4"), "it was cut after 3 of 4 characters", "cut before it becomes"),
        (walks({"visit": "1"}, "n2"), "node n2 in round 2 of loop l2 in round 1 of loop l1 has the visit", "left at its default"),
        (walks({"visit": "sub"}, "n1"), "node n1 in sub-flow p2 has the visit of node n1 in sub-flow p1", "the place from which"),
        (walks({"pacing": {"kind": "eager"}}, "n2"), "has another pacing than the flow", "Deferred is passed"),
        (walks({"pacing": {"kind": "deferred", "nextStepId": "1"}}, "n2"), "before two steps were recorded against one", "step and passage"),
        (later, "node n2 in round 1 of loop l2 in round 1 of loop l1 was not reached with the next to step s1", "Deferred names another step"),
        (again, "node n1 in sub-flow p2 was reached twice", "calls reach() again"),
        (lost("n4"), "node n4 was left out", "behind the empty arm of branch b1"),
        (lost("n1"), "node n1 in sub-flow p1 was not reached", "what stands in a sub-flow is left out"),
        (added, "the node n3 was reached with the next to step s1", "the nodes of all arms"),
        (turned, "nodes ran in another order", "an order of their own"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_a_difference_is_named(change: Callable[[list[list[Report]]], None], what: str, cause: str) -> None:
    """With the passage at which it shows, and what causes it."""
    drawn = small()
    wanted = expected(drawn, "said")
    seen = reports(drawn, wanted)
    change(seen)
    found = difference(drawn, wanted, seen, RUN)
    assert found is not None
    assert (what in found.what, cause in found.cause) == (True, True), found


def test_a_slow_machine_may_lose_and_delay_and_writes_no_other_value() -> None:
    """The fields of a walk, and a node's config, are the host's own doing; what comes, when and how often need not be."""

    def other_config(seen: list[list[Report]]) -> None:
        seen[0][0]["node"]["config"] = {**seen[0][0]["node"]["config"], "text": "another"}

    run = Run({**RUN.walk, "organizationId": "acme", "agentId": "a"})
    fields = {**dict.fromkeys([*run.walk, "runId"], "other"), "visit": "1", "pacing": {"kind": "eager"}}
    written = [other_config, *(walks({field: value}, "n2") for field, value in fields.items())]
    drawn = small()
    wanted = expected(drawn, "said")
    for change in (*written, later, again, lost("n4"), added, turned):
        seen = reports(drawn, wanted)
        for each in (each for group in seen for each in group):
            each["walk"] |= run.walk
        change(seen)
        found = difference(drawn, wanted, seen, run)
        assert found is not None
        assert (found.kind in OF_VALUES) == (change in written), found


def test_what_runs_behind_a_halt_is_named() -> None:
    """A halt in a loop ends the run."""
    parts = parts_of("eager")
    items: Sequence[Any] = (Loop(id="l1", times=2, items=(parts.probe("n1", halt=True),)), parts.probe("n2"))
    flow = Flow(id="f", name="", organization="", agent="a", pacing="eager", items=tuple(items))
    drawn = Drawn(flow)
    seen = reports(drawn, expected(drawn, "said"))
    seen[0].append({"walk": seen[0][0]["walk"], "node": {"id": "n2", "config": {"name": "n2"}}})
    found = difference(drawn, expected(drawn, "said"), seen, RUN)
    assert found is not None
    assert "behind one that halts (node n1 in round 1 of loop l1)" in found.what
    assert "a halt ends the loop" in found.cause
