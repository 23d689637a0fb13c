"""LOOPS: flows with loops, branches and sub-flows, in which a run comes by a node more than once, or never."""

from __future__ import annotations

from typing import Literal

from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.control import Event
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Branch, Flow, Loop, SubFlow


@check(
    "LOOPS-1",
    profile="loops",
    clause="contract: Ids (visit); spec 2.5",
    causes=(
        "Walk.visit is left at its default: name the passage, for example loop:2",
        "visit names the loop, and not which of its rounds this is",
    ),
)
async def rounds_are_apart(trial: Trial) -> None:
    """A node that a run comes by several times has another visit, and its webhook another event id, each time."""
    node, order = trial.probe("node"), trial.webhook("order")
    loop = Loop(id=trial.id("loop"), times=3, items=(trial.step("a"), node, order))
    flow = trial.flow(loop, trial.probe("last"))
    await trial.seed(flow)
    await trial.open(flow)
    trial.equal(trial.ran(), ["node", "node", "node", "last"], "the nodes of a loop did not run in each round")
    _passages_are_apart(trial, "node", 3)
    await _events_are_apart(trial, "order", 3)


@check(
    "LOOPS-2",
    profile="loops",
    clause="contract: Ids (visit; each passage has its own step ids), Advancing; spec 3.2",
    causes=(
        "the step's id in the flow is given for each round: make one of step and passage, for advance() and Deferred",
        "Walk.visit is left at its default, so that only one of the rounds is recorded",
    ),
)
async def rounds_of_a_client_paced_loop(trial: Trial) -> None:
    """In a client-paced loop, the nodes of a round run when the user gets to that round's step."""
    loop = Loop(
        id=trial.id("loop"),
        times=3,
        items=(trial.probe("before"), trial.step("a"), trial.probe("behind"), trial.webhook("order")),
    )
    flow = trial.flow(loop, trial.step("z"), pacing="deferred")
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    trial.equal(trial.ran(), [], "action nodes ran when the client-paced flow was opened")
    ran = [names for names in await client.to_end() if names]
    trial.equal(
        ran,
        [["before"], ["behind", "before"], ["behind", "before"], ["behind"]],
        "the nodes of a loop did not run with the next to the step of their round (a list for each next)",
    )
    _passages_are_apart(trial, "before", 3)
    steps = [event.data["walk"]["pacing"].get("nextStepId") for event in _reached(trial, "before")]
    trial.equal(len(set(steps)), 3, f"the rounds of a loop have the same step ids: {steps}")
    await _events_are_apart(trial, "order", 3)


@check(
    "LOOPS-3",
    profile="loops",
    clause="contract: Ids (visit)",
    causes=(
        "visit counts the rounds of the innermost loop only: name those of all loops around, as in outer:3/inner:1",
        "visit names rounds and not loops, so that the rounds of two loops are the same",
    ),
)
async def nested_loops_are_apart(trial: Trial) -> None:
    """Each passage through nested loops has a visit and steps of its own."""
    for pacing in ("eager", "deferred"):
        name = f"node-{pacing}"
        inner = Loop(
            id=trial.id(f"inner-{pacing}"), times=2, items=(trial.probe(name), trial.step(f"a-{pacing}"))
        )
        outer = Loop(id=trial.id(f"outer-{pacing}"), times=3, items=(inner,))
        await _walked(trial, trial.flow(outer, trial.step(f"z-{pacing}"), pacing=pacing, name=f"flow-{pacing}"))
        trial.equal(
            len(_reached(trial, name)), 6, f"a node in nested loops did not run in each round ({pacing})"
        )
        _passages_are_apart(trial, name, 6)


@check(
    "LOOPS-4",
    profile="loops",
    clause="contract: Ids (visit, sub-flows), What a host provides (signing_secret); spec 2.5",
    causes=(
        "visit does not name the place from which the sub-flow was entered",
        "node looks only into the flow, and not into its sub-flows: it gets the ids that Walk and Node had",
        "the nodes of a sub-flow are recorded with its own flow_id, and advance() is called with the outer one's",
    ),
    needs=("subflow",),
)
async def sub_flows_are_apart(trial: Trial) -> None:
    """The nodes of a sub-flow run in each place from which it is entered, told apart and signed with their secrets."""
    secret = trial.id("signing-secret")
    for pacing in ("eager", "deferred"):
        node, order = f"node-{pacing}", f"order-{pacing}"
        sub = trial.flow(
            trial.probe(node),
            trial.webhook(order, webhookSecret=secret),
            trial.step(f"s-{pacing}"),
            pacing=pacing,
            name=f"sub-{pacing}",
        )
        places = [SubFlow(id=trial.id(f"place-{number}-{pacing}"), flow=sub.id) for number in (1, 2)]
        flow = trial.flow(
            trial.step(f"a-{pacing}"), *places, trial.step(f"z-{pacing}"), pacing=pacing, name=f"flow-{pacing}"
        )
        await _walked(trial, flow, sub)
        trial.equal(
            len(_reached(trial, node)), 2, f"a sub-flow's node did not run in each of two places ({pacing})"
        )
        _passages_are_apart(trial, node, 2)
        await _events_are_apart(trial, order, 2)
        for arrival in trial.arrivals(order):
            trial.equal(
                trial.signature_of(arrival, secret),
                "verified",
                "a sub-flow's webhook is not signed with its secret",
            )


@check(
    "LOOPS-5",
    profile="loops",
    clause="contract: Advancing; spec 3.2",
    causes=(
        "the nodes of all arms are reached, and the steps of one are shown: reach what the run comes by",
        "a node is recorded against the step that follows it in the flow's list, and not in the run",
    ),
    needs=("branch",),
)
async def untaken_branches_do_not_run(trial: Trial) -> None:
    """The nodes of an arm that the run does not take never run, and those of the one that it takes do."""
    for pacing in ("eager", "deferred"):

        def node(name: str, pacing: str = pacing) -> Action:
            return trial.probe(f"{name}-{pacing}")

        first = Branch(
            id=trial.id(f"first-{pacing}"),
            taken=(node("taken"), trial.step(f"t-{pacing}"), node("taken-too")),
            other=(node("other"), trial.step(f"o-{pacing}"), node("other-too")),
        )
        empty = Branch(id=trial.id(f"empty-{pacing}"), other=(node("nothing"), trial.step(f"n-{pacing}")))
        flow = trial.flow(
            trial.step(f"a-{pacing}"),
            node("before"),
            first,
            empty,
            node("after"),
            trial.step(f"z-{pacing}"),
            pacing=pacing,
            name=f"flow-{pacing}",
        )
        before = len(trial.ran())
        await _walked(trial, flow)
        names = [f"{name}-{pacing}" for name in ("before", "taken", "taken-too", "after")]
        trial.equal(trial.ran(before), names, "other nodes ran than those of the arm that the run takes")


@check(
    "LOOPS-6",
    profile="loops",
    clause="contract: Advancing (`halted`); spec 7.1",
    causes=(
        "a halt ends the loop or the sub-flow in which it came, and not the run",
        "the state `halted` is looked at for the outer flow only",
    ),
    needs=("subflow",),
)
async def a_halt_ends_the_run(trial: Trial) -> None:
    """A node that halts in a sub-flow within a loop ends the whole run."""
    for pacing in ("eager", "deferred"):
        sub = trial.flow(
            trial.probe(f"halting-{pacing}", halt=True, status="failed"),
            trial.step(f"s-{pacing}"),
            trial.probe(f"in-the-sub-flow-{pacing}"),
            name=f"sub-{pacing}",
            pacing=pacing,
        )
        place = SubFlow(id=trial.id(f"place-{pacing}"), flow=sub.id)
        loop = Loop(
            id=trial.id(f"loop-{pacing}"),
            times=2,
            items=(place, trial.probe(f"in-the-loop-{pacing}"), trial.step(f"l-{pacing}")),
        )
        flow = trial.flow(
            loop,
            trial.probe(f"behind-{pacing}"),
            trial.step(f"z-{pacing}"),
            name=f"flow-{pacing}",
            pacing=pacing,
        )
        await trial.seed(sub, flow)
        before = len(trial.ran())
        client = await Client.opened(trial, flow)
        await client.try_next(4)
        trial.equal(trial.ran(before), [f"halting-{pacing}"], "nodes ran behind one that halts in a sub-flow")
        ended = client.turn.done or client.turn.halted
        trial.expect(
            ended, "the run continues after a halt in a sub-flow", expected="done or halted", actual=client.turn
        )


@check(
    "LOOPS-7",
    profile="loops",
    clause="contract: Ids (visit, the same when a walk is repeated)",
    causes=(
        "visit is counted in memory: after a restart, the next passage has the number of the first one",
        "visit is made of something that changes from walk to walk, so that a node that was recorded is recorded again",
        "which round the run is in is kept in memory",
    ),
    alone=True,
    served="restart",
)
async def passages_survive_a_restart(trial: Trial) -> None:
    """When the host was restarted in the middle of a run, the passages behind are still told apart from those before.

    The host is a process of its own, so that none of its memory is left. A host whose runs end with its process passes: it repeats
    no walk. A host that claims durability has no such runs.
    """
    host = await trial.start(mode="child")
    loop = Loop(
        id=trial.id("loop"), times=4, items=(trial.probe("node"), trial.webhook("order"), trial.step("a"))
    )
    flow = trial.flow(loop, pacing="deferred")
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    await trial.until_arrived("order")
    await trial.stop()
    trial.host = await trial.start(beside=host, mode="child")
    try:
        await client.next()
    except DriverFault as exc:
        trial.expect(
            "durability" not in trial.session.claims,
            "a run in the middle of a loop cannot continue after a restart",
            expected="next() continues from the step that was shown before",
            actual=exc,
        )
        trial.note("kit", f"the run ended with its process: {exc}")
        return
    await client.to_end()
    trial.equal(
        trial.ran(), ["node"] * 4, "the node of a loop did not run once in each round, with a restart between"
    )
    _passages_are_apart(trial, "node", 4)
    await _events_are_apart(trial, "order", 4)


async def _walked(trial: Trial, flow: Flow, *subs: Flow) -> None:
    """Seeds a flow, opens it, and goes to its end."""
    await trial.seed(*subs, flow)
    client = await Client.opened(trial, flow)
    if flow.pacing == "deferred":
        await client.to_end()


def _reached(trial: Trial, name: str, kind: Literal["reach", "reached"] = "reached") -> list[Event]:
    """Returns the reports of a node by its name: the host may give it other ids in sub-flows."""
    return [event for event in trial.reached(kind=kind) if event.data["node"]["config"]["name"] == name]


def _passages_are_apart(trial: Trial, name: str, count: int) -> None:
    passages = [
        (event.data["walk"]["flowId"], event.data["node"]["id"], event.data["walk"]["visit"])
        for event in _reached(trial, name)
    ]
    trial.expect(
        len(passages) == len(set(passages)) == count,
        f"the passages of a run through the node {name!r} are not distinguished",
        expected=f"{count} different visits",
        actual=[visit for _, _, visit in passages],
    )


async def _events_are_apart(trial: Trial, name: str, count: int) -> None:
    events = [arrival.event_id for arrival in await trial.until_arrived(name, count)]
    trial.equal(len(events), count, f"the webhook {name!r} was not sent once for each passage")
    trial.equal(
        len(set(events)), count, "webhooks of several passages have the same event id, so receivers drop them"
    )
