"""PACING: in a client-paced flow, each node runs when the user gets to the step that it precedes."""

from __future__ import annotations

import asyncio

from flowactions_conformance.kit.client import Client
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Flow, Turn


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
    flow = _long_flow(trial)
    await trial.seed(flow)
    client = await Client.opened(trial, flow, user="Zoë")
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
    trial.equal(
        recorded, shown, "nodes were recorded against other steps than those that were shown when they ran"
    )
    trial.equal(
        {event.data["walk"]["userId"] for event in trial.reached()}, {"Zoë"}, "the walk has another user"
    )


@check(
    "PACING-3",
    profile="pacing",
    clause="contract: Advancing, Structs (Deferred(None)); spec 3.2",
    causes=(
        "advance(walk, None) is not called when the user goes on from the last step",
        "nodes behind the last step are recorded against that step, and not against None",
        "the run is done as soon as its last step is shown, so that the user cannot go on from it",
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


@check(
    "PACING-4",
    profile="pacing",
    clause="contract: Advancing (however many calls race); spec 3.2",
    causes=(
        "the nodes are run by the host itself, or reached again with each next: only advance() runs a record once",
        "walks of doubled requests are told apart, by run_id or visit, so that their nodes are recorded twice",
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
    turns = await asyncio.gather(*(trial.next(client.turn) for _ in range(4)))
    trial.equal(len(trial.reached("node")), 1, "a node did not run once with four next at the same time")
    trial.expect(
        len(trial.reached("behind")) <= 1,
        "a node ran more than once with four next at the same time",
        expected="once at the most",
        actual=trial.ran(),
    )
    trial.expect(
        any(turn.step_id != client.turn.step_id for turn in turns),
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
    opening = asyncio.create_task(Client.opened(trial, flow))
    early_run = asyncio.create_task(trial.until(lambda: trial.reached("halting"), ""))
    await asyncio.wait({opening, early_run}, return_when=asyncio.FIRST_COMPLETED)
    early_run.cancel()
    if trial.reached("halting"):
        trial.open_gate("halting")
    client = await opening
    trial.equal(trial.reached("halting"), [], "a node ran when the client-paced flow was opened")
    await client.go_to(0)
    first = asyncio.create_task(trial.next(client.turn))
    second: asyncio.Task[Turn] | None = None
    try:
        await trial.until(lambda: trial.reached("halting"), "the node did not begin to run with next")
        second = asyncio.create_task(trial.next(client.turn))
        # A host may answer the second one or have it wait. It has had time to answer when runs that began later ended.
        for _ in range(3):
            await trial.open(meanwhile)
        early = second.result() if second.done() else None
    finally:
        trial.open_gate("halting")
        turns = [await task for task in (first, second) if task is not None]
    for turn in [*turns, *([] if early is None else [early])]:
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
        "the step that advance() gets, or the position to go on from, is the client's: keep the position with the run",
    ),
)
async def does_not_trust_the_client(trial: Trial) -> None:
    """A client that says it is at a later step does not get there, and does not run what waits for it."""
    flow = _long_flow(trial)
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    for claimed in ("c", "b", "d"):
        before = trial.ran()
        try:
            turn = await trial.next(client.turn, step=trial.of_host(trial.id(claimed)))
        except DriverFault as exc:
            trial.note("host", f"refuses: {exc}")
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
            trial.note("kit", "the host goes on by one: its clients do not name their step")
            return
    await client.go_to(1)
    trial.equal(trial.ran(), ["before-a"], "after a forged step, next does not go on as it should")


@check(
    "PACING-7",
    profile="pacing",
    clause="contract: Advancing (`halted`); spec 7.1",
    causes=(
        "only the results are looked at: Advanced.state is `halted` also when a node halted the run before",
        "the halt is not kept with the run, so that the next call goes on",
    ),
)
async def halts_at_its_step(trial: Trial) -> None:
    """A node that halts stops a client-paced run at its step, for good."""
    for status in ("failed", "sent"):
        halting = trial.probe(f"halting-{status}", halt=True, status=status)
        flow = trial.flow(
            trial.step(f"a-{status}"),
            halting,
            trial.probe(f"behind-{status}"),
            trial.step(f"b-{status}"),
            trial.probe(f"later-{status}"),
            trial.step(f"c-{status}"),
            trial.probe(f"end-{status}"),
            pacing="deferred",
            name=f"flow-{status}",
        )
        await trial.seed(flow)
        client = await Client.opened(trial, flow)
        await client.go_to(0)
        turn = await client.next()
        trial.equal(
            trial.ran()[-1:], [f"halting-{status}"], "next did not run the node that halts, and no more"
        )
        trial.expect(
            turn.done or turn.halted,
            f"the run goes on after a node that halts (its status is {status})",
            expected="done or halted",
            actual=turn,
        )
        shown = client.shown[:1]
        await client.try_next(3)
        trial.equal(trial.ran()[-1:], [f"halting-{status}"], "nodes ran after the run was halted")
        trial.equal(client.shown, shown, "a run that was halted showed further steps on next")


@check(
    "PACING-8",
    profile="pacing",
    clause="contract: Advancing (fail-open); spec 6.3, 7.1",
    causes=(
        "the run stops at a result whose status is failed or skipped: only the state `halted` stops it",
        "Advanced.results is part of what the end user's client gets",
    ),
)
async def goes_on_after_a_failure(trial: Trial) -> None:
    """A node that fails at its step does not stop the run, and the user's client learns nothing of it."""
    words = {
        "a node's reason": trial.id("reason"),
        "a node's message": trial.id("message"),
        "a node's secret": trial.id("secret"),
        "a node's config": trial.id("text"),
    }
    reason, message, secret, text = words.values()
    failing = trial.probe(
        "failing", status="failed", reason=reason, message=message, probeSecret=secret, text=text
    )
    flow = trial.flow(
        trial.step("a"),
        failing,
        trial.probe("crashed", crash=True),
        trial.probe("skipped", status="skipped", reason=reason),
        trial.step("b"),
        trial.probe("last"),
        trial.step("c"),
        pacing="deferred",
    )
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    trial.hides(client.turn, words)
    for number in range(3):
        await client.go_to(number)
        trial.hides(client.turn, words)
    trial.equal(trial.ran(), ["failing", "skipped", "last"], "the run did not go on behind nodes that failed")


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
    """Runs of a flow side by side do not touch each other, and eager flows beside them stay eager."""
    paced = trial.flow(
        trial.step("a"), trial.probe("node"), trial.step("b"), trial.probe("end"), pacing="deferred"
    )
    eager = trial.flow(trial.step("c"), trial.probe("eager"), name="eager-flow")
    await trial.seed(paced, eager)
    ada = await Client.opened(trial, paced, user="Ada")
    zoe = await Client.opened(trial, paced, user="Zoë")
    await trial.open(eager, user="Eve")
    trial.equal(
        _who(trial), [("eager", "Eve")], "beside client-paced runs, an eager one did not run, or not alone"
    )
    await ada.go_to(1)
    await ada.next()
    expected = [("eager", "Eve"), ("node", "Ada"), ("end", "Ada")]
    trial.equal(_who(trial), expected, "one user's next ran nodes of another run, or not all of its own")
    await zoe.go_to(1)
    await zoe.next()
    expected += [("node", "Zoë"), ("end", "Zoë")]
    trial.equal(_who(trial), expected, "the second user's next did not run the nodes of their run")


@check(
    "PACING-10",
    profile="pacing",
    clause="contract: What a host provides (signing_secret, node), Advancing; spec 3.2, 5.3.6",
    causes=(
        "signing_secret or node looks the node up in the run, or in the flow as it was when the user opened it",
        "Host.node returns another node, for example the first of its type",
        "the session's values are used in place of the walk's",
    ),
)
async def deferred_webhooks_are_signed(trial: Trial) -> None:
    """A deferred webhook is sent at its step, signed with its node's secret; a deferred node has its whole config."""
    secret = trial.id("signing-secret")
    text, own = trial.id("text"), trial.id("probe-secret")
    flow = trial.flow(
        trial.probe("other", probeSecret=trial.id("other-secret")),
        trial.step("a"),
        trial.webhook("order", webhookSecret=secret),
        trial.probe("node", text=text, count=0, flag=False, probeSecret=own),
        trial.step("b"),
        pacing="deferred",
    )
    await trial.seed(flow)
    client = await Client.opened(trial, flow, user="Ada")
    await client.go_to(0)
    await trial.nothing_more_is_sent()
    trial.equal(trial.arrivals("order"), [], "a deferred webhook was sent before the user got to its step")
    await client.go_to(1)
    arrived = (await trial.until_arrived("order"))[0]
    trial.equal(arrived.body, '{"user": "Ada", "content": "content"}', "the webhook arrived with another body")
    trial.equal(
        trial.signature_of(arrived, secret),
        "verified",
        "a deferred webhook is not signed with its node's secret",
    )
    config = trial.reached("node")[0].data["node"]["config"]
    kept = {name: config.get(name) for name in ("text", "count", "flag")}
    trial.equal(kept, {"text": text, "count": 0, "flag": False}, "a deferred node ran with another config")
    # A host without the method `node` keeps no secrets of other node types.
    trial.expect(
        config.get("probeSecret") in {None, own},
        "a deferred node ran with another node's secret",
        expected=own,
        actual=config.get("probeSecret"),
    )


def _long_flow(trial: Trial) -> Flow:
    return trial.flow(
        trial.probe("before-a"),
        trial.step("a"),
        trial.step("b"),
        trial.probe("before-c-1"),
        trial.probe("before-c-2"),
        trial.step("c"),
        trial.probe("before-d"),
        trial.step("d"),
        trial.probe("end"),
        pacing="deferred",
    )


def _who(trial: Trial) -> list[tuple[str, str]]:
    events = trial.reached(kind="reached")
    return [(event.data["node"]["config"]["name"], event.data["walk"]["userId"]) for event in events]
