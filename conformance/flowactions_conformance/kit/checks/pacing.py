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


@check(
    "PACING-2",
    profile="pacing",
    clause="contract: Advancing, Structs (Deferred, Deferred(None)); spec 3.2",
    causes=(
        "pacing is left out of Walk, whose default is eager: pass Deferred(next_step_id) in a client-paced flow",
        "Deferred names the step before the node, or the first one: it is the content step that comes next in the walk",
        "advance() is called with the step that the user leaves, and not with the one that comes",
        "nodes are reached again on next although they were recorded when the flow was opened",
        "advance(walk, None) is not called when the user continues from the last step, or nodes behind it are recorded against it",
        "the run is done as soon as its last step is shown, so that the user cannot continue from it",
    ),
)
async def runs_at_its_step(trial: Trial) -> None:
    """A node runs once, in the order of the walk, with the `next` to the step behind it, or to the end of the run."""
    flow = long_flow(trial)
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    trial.equal(trial.ran(), [], "action nodes ran when the client-paced flow was opened")
    seen: list[list[str]] = []
    shown: list[str | None] = []
    for number in range(4):
        before = len(trial.ran())
        if client.at < number:
            await client.go_to(number)
        seen.append(trial.ran(before))
        shown += [client.turn.step_id] * len(seen[-1])
    trial.equal(
        seen,
        [["before-a"], [], ["before-c-1", "before-c-2"], ["before-d"]],
        "action nodes did not run with the next to the step behind them (a list for each of the steps a, b, c, d)",
    )
    recorded = [event.data["walk"]["pacing"].get("nextStepId") for event in trial.reached(kind="reached")]
    # The ids are the host's, and need not be those of the steps that it shows: each passage of a loop has its own.
    trial.equal(
        [recorded.index(step) for step in recorded],
        [shown.index(step) for step in shown],
        "nodes of one step were recorded against several, or those of several against one",
    )
    before = len(trial.ran())
    turn = await client.next()
    end = ["end-1", "end-2"]
    trial.equal(trial.ran(before), end, "nodes behind the last step did not run at the end of the flow")
    trial.expect(turn.done, "the run is not done after the next from its last step", actual=turn)
    await client.try_next()
    trial.equal(trial.ran(before), end, "nodes behind the last step ran again")


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
    "PACING-9",
    profile="pacing",
    clause="contract: Ids, Advancing (the walk as it was recorded); spec 3.2",
    causes=(
        "run_id is the flow's or the agent's id: two users in one flow then share their records",
        "the pacing, the user or the position is kept for the flow or the process, and not for the run",
    ),
)
async def runs_are_apart(trial: Trial) -> None:
    """Several runs of a flow, also of one user, do not affect each other. An eager flow beside them stays eager."""
    paced = trial.flow(
        trial.step("a"), trial.probe("node"), trial.step("b"), trial.probe("end"), pacing="deferred"
    )
    eager = trial.flow(trial.step("c"), trial.probe("eager"), name="eager-flow")
    await trial.seed(paced, eager)
    ada = await Client.opened(trial, paced, user="Ada", content="of Ada")
    zoe = await Client.opened(trial, paced, user="Zoë", content="of Zoë")
    again = await Client.opened(trial, paced, user="Ada", content="of Ada again")
    await trial.open(eager, user="Eve")
    trial.equal(
        _who(trial), [("eager", "Eve")], "beside client-paced runs, an eager one did not run, or not alone"
    )
    await ada.go_to(1)
    await ada.next()
    expected = [("eager", "Eve"), ("node", "Ada"), ("end", "Ada")]
    said = [event.data["walk"]["content"] for event in trial.reached(kind="reached")[1:]]
    trial.equal(said, ["of Ada"] * 2, "a user has two runs of a flow, and the next of one went on in the other")
    trial.equal(_who(trial), expected, "one user's next ran nodes of another run, or not all of its own")
    await zoe.go_to(1)
    await zoe.next()
    expected += [("node", "Zoë"), ("end", "Zoë")]
    trial.equal(_who(trial), expected, "the second user's next did not run the nodes of their run")
    await again.go_to(1)
    await again.next()
    expected += [("node", "Ada"), ("end", "Ada")]
    trial.equal(_who(trial), expected, "the second run of a user did not run its nodes")
    for name in ("node", "end"):
        said = [event.data["walk"]["content"] for event in trial.reached(name)]
        trial.equal(
            said, ["of Ada", "of Zoë", "of Ada again"], "the walk of one run has the content of another run"
        )


def _who(trial: Trial) -> list[tuple[str, str]]:
    events = trial.reached(kind="reached")
    return [(event.data["node"]["config"]["name"], event.data["walk"]["userId"]) for event in events]


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
