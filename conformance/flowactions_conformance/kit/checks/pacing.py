"""PACING: in a client-paced flow, each node runs when the user gets to the step that it precedes."""

from __future__ import annotations

from flowactions_conformance.kit.checks import pacing_later as _later  # noqa: F401  their checks are of this group
from flowactions_conformance.kit.checks import pacing_races as _races  # noqa: F401
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client, long_flow
from flowactions_conformance.kit.trial import Trial


@check(
    "PACING-1",
    profile="pacing",
    clause="contract: Advancing; spec 3.2",
    causes=(
        "pacing is left out of Walk, whose default is eager: pass Deferred(next_step_id) in a client-paced flow",
        "advance() is called when the flow is opened",
    ),
)
async def opening_runs_nothing(trial: Trial) -> None:
    """Opening a client-paced flow runs none of its action nodes."""
    flow = trial.flow(
        trial.probe("before-a"), trial.step("a"), trial.probe("before-b"), trial.step("b"), pacing="deferred"
    )
    await trial.seed(flow)
    await trial.open(flow)
    trial.equal(trial.ran(), [], "action nodes ran when the client-paced flow was opened")


@check(
    "PACING-2",
    profile="pacing",
    clause="contract: Advancing, Structs (Deferred); spec 3.2",
    causes=(
        "Deferred names the step before the node, or the first one: it is the content step that comes next in the walk",
        "advance() is called with the step that the user leaves, and not with the one that comes",
        "nodes are reached again on next although they were recorded when the flow was opened",
    ),
)
async def runs_at_its_step(trial: Trial) -> None:
    """A node runs once, with the `next` that leads to the step behind it; several run in the order of the walk."""
    flow = long_flow(trial)
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
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


@check(
    "PACING-3",
    profile="pacing",
    clause="contract: Advancing, Structs (Deferred(None)); spec 3.2",
    causes=(
        "advance(walk, None) is not called when the user continues from the last step",
        "nodes behind the last step are recorded against that step, and not against None",
        "the run is done as soon as its last step is shown, so that the user cannot continue from it",
    ),
)
async def runs_at_the_end(trial: Trial) -> None:
    """Nodes behind the last step run, once, when the user goes on from it, and the run is done."""
    flow = trial.flow(
        trial.step("a"), trial.step("b"), trial.probe("end-1"), trial.probe("end-2"), pacing="deferred"
    )
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(1)
    trial.equal(trial.ran(), [], "nodes behind the last step ran before the user went on from it")
    turn = await client.next()
    trial.equal(
        trial.ran(), ["end-1", "end-2"], "nodes behind the last step did not run at the end of the flow"
    )
    trial.expect(
        turn.done, "the run is not done after the next from its last step", expected="done", actual=turn
    )
    await client.try_next()
    trial.equal(trial.ran(), ["end-1", "end-2"], "nodes behind the last step ran again")
