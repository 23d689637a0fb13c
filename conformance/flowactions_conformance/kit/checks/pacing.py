"""PACING: in a client-paced flow, each node runs when the user gets to the step that it precedes."""

from __future__ import annotations

from flowactions_conformance.kit.checks import pacing_later as _later  # noqa: F401  their checks are of this group
from flowactions_conformance.kit.checks import pacing_races as _races  # noqa: F401
from flowactions_conformance.kit.checks.eager import GIVES_THE_WALK
from flowactions_conformance.kit.checks.edit import CONFIG, KEPT
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client, hides, long_flow
from flowactions_conformance.kit.support.compare import difference, text_change
from flowactions_conformance.kit.support.samples import DECOMPOSED
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
    user, content = DECOMPOSED
    client = await Client.opened(trial, flow, user=user, content=content)
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
    for field, given in (("userId", user), ("content", content)):
        for event in trial.reached():
            found = event.data["walk"][field]
            change = text_change(given, found)
            trial.equal(found, given, f"{field} of the walk is not the run's{change}", causes=GIVES_THE_WALK)


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


@check(
    "PACING-7",
    profile="pacing",
    clause="contract: Advancing (`halted`); spec 7.1",
    causes=(
        "only the results are looked at: Advanced.state is `halted` also when a node halted the run before",
        "the halt is not kept with the run, so that the next call continues",
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
            f"the run continues after a node that halts (its status is {status})",
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
    hides(trial, client.turn, words)
    for number in range(3):
        await client.go_to(number)
        hides(trial, client.turn, words)
    trial.equal(trial.ran(), ["failing", "skipped", "last"], "the run did not continue after nodes that failed")


@check(
    "PACING-10",
    profile="pacing",
    clause="contract: What a host provides (signing_secret, node), Advancing; spec 3.2, 5.3.6",
    causes=(
        "node looks the node up in the run, or in the flow as it was when the user opened it",
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
        trial.probe("node", **{**CONFIG, "text": text}, probeSecret=own),
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
    expected = {"token": trial.token, "name": "node", **CONFIG, "text": text}
    kept = {name: value for name, value in config.items() if name != "probeSecret"}
    found = difference(expected, kept, "config")
    trial.expect(
        found is None,
        f"a deferred node ran with another config: {found}",
        expected=expected,
        actual=kept,
        causes=KEPT,
    )
    trial.equal(config.get("probeSecret"), own, "a deferred node ran without its own secret")
