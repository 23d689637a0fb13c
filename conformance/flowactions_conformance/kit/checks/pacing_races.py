"""PACING, continued: requests and runs side by side, and clients that say what is not so."""

from __future__ import annotations

import asyncio

from flowactions_conformance.kit.probing.control import Event
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client, attempt, long_flow
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Turn


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
        expected="once at the most",
        actual=trial.ran(),
    )
    trial.expect(
        any(turn is not None and turn.step_id != client.turn.step_id for turn in turns),
        "none of four next at the same time led to the step behind",
        expected="one of them does",
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
        # A host whose clients do not name their step goes on by one.
        skipped = {"b": ["before-c-1", "before-c-2"], "c": ["before-d"], "d": ["end"]}
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
    """Runs of a flow side by side, also of one user, do not touch each other, and eager flows beside them stay eager."""
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
