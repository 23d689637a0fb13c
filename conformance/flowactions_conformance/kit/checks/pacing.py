"""PACING: in a client-paced flow, each node runs when the user gets to the step that it precedes."""

from __future__ import annotations

import asyncio
from typing import Final

from flowactions_conformance.kit.probing.control import Event
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client, attempt, long_flow
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Flow, Item, Turn

STEPS_SEEN: Final = {"pinned": 3, "live": 4}
AGAIN_SECONDS: Final = 60.0
AGAIN: Final = 3
"""How often a client asks again that stays where it is."""


@check(
    "PACING-4",
    profile="pacing",
    clause="contract: Advancing (several calls at once); spec 3.2",
    causes=(
        "the nodes are run by the host itself, or reached again with each next: only advance() runs a record once",
        "doubled requests get different run_ids or visits, so that their nodes are recorded twice",
    ),
)
async def doubled_next_runs_once(trial: Trial) -> None:
    """Several `next` at the same time run a node once."""
    flow = trial.flow(
        trial.step("a"),
        trial.probe("node"),
        trial.step("b"),
        trial.probe("behind"),
        trial.step("c"),
        pacing="deferred",
    )
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    turns = await asyncio.gather(*(attempt(trial, client.turn) for _ in range(4)))
    for _ in range(AGAIN):
        # On a busy machine, all four may have stayed while the node still ran: then the client asks again.
        if any(turn is not None and turn.step_id != client.turn.step_id for turn in turns):
            break
        turns.append(await attempt(trial, client.turn))
    trial.equal(len(trial.reached("node")), 1, "a node did not run once with four next at the same time")
    trial.expect(
        len(trial.reached("behind")) <= 1,
        "a node ran more than once with four next at the same time",
        actual=trial.ran(),
    )
    trial.expect(
        any(turn is not None and turn.step_id != client.turn.step_id for turn in turns),
        "none of four next at the same time led to the step behind",
        actual=turns,
    )


@check(
    "PACING-5",
    profile="pacing",
    clause="contract: Advancing (`running`); spec 3.2",
    causes=(
        "Advanced.state `running` is taken for `done`: stay where the run is, and let the client ask again",
        "the run's position moves before advance() is awaited",
    ),
)
async def running_is_not_done(trial: Trial) -> None:
    """A `next` beside one whose nodes still run waits or stays where it is, and stops when one of them halts."""
    flow = trial.flow(
        trial.step("a"),
        trial.probe("halting", gate=trial.gate("halting"), halt=True, status="failed"),
        trial.step("b"),
        trial.probe("behind"),
        trial.step("c"),
        pacing="deferred",
    )
    meanwhile = trial.flow(trial.step("m"), trial.probe("meanwhile"), name="meanwhile-flow")
    await trial.seed(flow, meanwhile)

    # A host that runs the node when the flow is opened is not to wait for a gate that is opened later.
    def open_at_once(_: Event) -> None:
        if trial.reached("halting"):
            trial.open_gate("halting")

    stop = trial.session.control.listen(open_at_once)
    client = await Client.opened(trial, flow)
    stop()
    trial.equal(trial.reached("halting"), [], "a node ran when the client-paced flow was opened")
    await client.go_to(0)
    first = asyncio.create_task(attempt(trial, client.turn))
    second: asyncio.Task[Turn | None] | None = None
    try:
        await trial.until(lambda: trial.reached("halting"), "the node did not begin to run with next")
        second = asyncio.create_task(attempt(trial, client.turn))
        # A host may answer the second one or have it wait. It has had time to answer when runs
        # that began later have ended.
        for _ in range(3):
            await trial.open(meanwhile)
    finally:
        trial.open_gate("halting")
        turns = [await task for task in (first, second) if task is not None]
    for turn in filter(None, turns):
        trial.expect(
            turn.step_id in {None, client.turn.step_id} or turn.done,
            "a next moved the run to the step behind a node that halts, while another next ran that node",
            expected=f"the step before it ({client.turn.step_id}), or the end of the run",
            actual=turn,
        )
    await client.try_next()
    trial.equal(len(trial.reached("halting")), 1, "the node that halts did not run once")
    trial.equal(trial.reached("behind"), [], "a node behind the one that halts ran")


@check(
    "PACING-6",
    profile="pacing",
    clause="contract: Advancing; spec 3.2",
    causes=(
        "the step that advance() gets, or the position to continue from, is the client's: keep the position with the run",
    ),
)
async def does_not_trust_the_client(trial: Trial) -> None:
    """A client that says it is at a later step does not get there, and does not run what waits for it."""
    flow = long_flow(trial)
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    for claimed in ("c", "b", "d"):
        before = trial.ran()
        turn = await attempt(trial, client.turn, trial.of_host(trial.id(claimed)))
        if turn is None:
            continue
        # If a host's clients do not name their step, each call moves the run on by one step.
        skipped = {"b": ["before-c-1", "before-c-2"], "c": ["before-d"], "d": ["end-1", "end-2"]}
        trial.expect(
            not turn.done and trial.ran()[len(before) :] != skipped[claimed],
            f"a client at step a that says it is at step {claimed} went on from there",
            expected="nothing, a refusal, or the next step of the run",
            actual=f"{turn}, and the nodes {trial.ran()} ran",
        )
        if trial.ran() != before or turn.step_id != client.turn.step_id:
            trial.note("kit", "the host continues by one: its clients do not name their step")
            return
    await client.go_to(1)
    trial.equal(trial.ran(), ["before-a"], "after a forged step, next does not continue as it should")


@check(
    "PACING-12",
    profile="pacing",
    clause="contract: Advancing",
    causes=(
        "the node is reached when the user gets there, and not recorded before: the plugin repeats recorded nodes only",
        "the host rolls back the transaction that it gave to advance()",
        "no process of the host runs the plugins' tasks",
    ),
)
async def failed_steps_are_repeated(trial: Trial) -> None:
    """A recorded node whose plugin fails does not stop the user, who continues; the node runs again."""
    flow = trial.flow(
        trial.step("a"),
        trial.probe("crashes", crash="once"),
        trial.step("b"),
        trial.step("c"),
        pacing="deferred",
    )
    await trial.seed(flow)
    await (await Client.opened(trial, flow)).go_to(2)
    await trial.until(
        lambda: len(trial.reached("crashes")) > 1,
        "a recorded node whose plugin failed did not run again",
        expected="a second run within a minute",
        at_least=AGAIN_SECONDS,
    )


@check(
    "PACING-11",
    profile="pacing",
    clause="contract: Advancing (a recorded node runs as it was recorded), What a host does (Client-paced flows)",
    causes=(
        "the run knows its position as a number, and counts in the newest version of the flow: keep the step's id",
        "saving a flow ends its runs, or what they have recorded",
        "next() reaches the nodes of the newest version: they were recorded when the flow was opened, and run as they were",
        "`edits` of the driver says what the host does not do: pinned shows the steps of the version in which the run began",
    ),
)
async def goes_on_when_the_flow_is_edited(trial: Trial) -> None:
    """A run whose flow is edited continues to its end: recorded nodes run once, unchanged, and no step is shown twice."""
    await trial.seed(_flow(trial, "old"))
    client = await Client.opened(trial, _flow(trial, "old"))
    await client.go_to(0)
    await trial.seed(_flow(trial, "new"))
    trial.note("kit", "the author has saved the flow with a step before this one, and one behind it")
    await client.to_end()
    for name in ("first", "removed", "added", "last"):
        recorded, ran = (_versions(trial, name, kind) for kind in ("recorded", "reach"))
        # Which version a host records is its own matter, if it does so only when its user gets near.
        trial.expect(
            ran == recorded[:1] and (ran or name in {"removed", "added"}),
            f"after its flow was edited, the node {name!r} did not run once as it was recorded",
            expected=f"once, with its config of the version that was recorded first: {', '.join(recorded[:1]) or 'any'}",
            actual=f"it ran {len(ran)} time(s), with its config of the version: {', '.join(ran) or 'none'}",
        )
    trial.expect(
        len(client.shown) == len(set(client.shown)),
        "after its flow was edited, a run showed a step twice",
        actual=client.shown,
    )
    promised = trial.host.running.about.edits
    if promised is not None:
        trial.equal(
            len(client.shown),
            STEPS_SEEN[promised],
            f"a run whose flow was edited did not show the steps that `edits = {promised!r}` promises",
        )


def _versions(trial: Trial, name: str, kind: str) -> list[str]:
    return [str(event.data["node"]["config"].get("text")) for event in trial.reached(name, kind)]


def _flow(trial: Trial, version: str) -> Flow:
    def node(name: str) -> Action:
        return trial.probe(name, text=version, told=True)

    old: list[Item] = [
        trial.step("a"),
        node("first"),
        trial.step("b"),
        node("removed"),
        trial.step("c"),
        node("last"),
    ]
    new: list[Item] = [trial.step("before"), trial.step("a"), node("first"), trial.step("between"), *old[2:3]]
    new += [node("added"), trial.step("c"), node("last")]
    return trial.flow(*(old if version == "old" else new), pacing="deferred")
