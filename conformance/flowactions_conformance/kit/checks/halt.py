"""HALT: a walk goes on after a node that failed, and stops at one that halts."""

from __future__ import annotations

from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import hides
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action


@check(
    "HALT-1",
    profile="core",
    clause="contract: Advancing (fail-open); spec 7.1",
    causes=(
        "the walk stops at a NodeResult whose status is failed or skipped: only `halt` says whether to stop",
        "the walk continues only after the statuses that it knows",
    ),
)
async def goes_on_after_a_failure(trial: Trial) -> None:
    """A node that failed or was skipped does not stop the walk."""
    names = ("failed", "skipped", "queued", "crashed", "last")
    chat = Action(
        id=trial.id("chat"), type="chat_message", config={"chatActionType": "channel", "chatChannelId": "C1"}
    )
    flow = trial.flow(
        trial.step("a"),
        # The organization has no chat connection: it fails with not_connected.
        chat,
        trial.probe("failed", status="failed", reason="send_failed"),
        trial.step("b"),
        trial.probe("skipped", status="skipped", reason="missing_url"),
        trial.probe("queued", status="queued"),
        trial.probe("crashed", crash=True),
        trial.step("c"),
        trial.probe("last"),
    )
    await trial.seed(flow)
    await trial.open(flow)
    began = [str(event.data["node"]["config"]["name"]) for event in trial.reached()]
    trial.equal(began, list(names), "the walk did not continue to its end")


@check(
    "HALT-2",
    profile="core",
    clause="contract: facade (reach), Structs (NodeResult.halt); spec 7.1",
    causes=(
        "the walk does not look at NodeResult.halt",
        "only the failed ones of the results that halt are obeyed: `halt` alone says whether to stop",
        "the halt is not kept with the run, so that the next call continues",
    ),
)
async def stops_at_a_halt(trial: Trial) -> None:
    """A node that halts stops the run: nothing behind it is reached, then or later."""
    for status in ("failed", "skipped", "sent"):
        first, second = f"first-{status}", f"second-{status}"
        flow = trial.flow(
            trial.step(f"a-{status}"),
            trial.probe(first, halt=True, status=status),
            trial.step(f"b-{status}"),
            trial.probe(second),
            name=f"flow-{status}",
        )
        await trial.seed(flow)
        turn = await trial.open(flow)
        trial.equal(len(trial.reached(first)), 1, "the node that halts was not reached once")
        trial.expect(
            not trial.reached(second),
            f"a node was reached behind one that halts (its status is {status})",
            expected="nothing is reached behind it",
            actual=trial.ran(),
        )
        trial.expect(
            turn.done or turn.halted,
            f"the run continues after a node that halts (its status is {status})",
            expected="done or halted",
            actual=turn,
        )
        for _ in range(2):
            try:
                turn = await trial.next(turn)
            except DriverFault as exc:
                # A host may refuse to go on in a run that has ended.
                trial.note("host", f"refuses next: {exc}")
        trial.expect(
            not trial.reached(second),
            "a run that was halted went on with next",
            expected="nothing is reached behind the node that halts",
            actual=trial.ran(),
        )
        trial.equal(len(trial.reached(first)), 1, "the node that halts was reached again with next")


@check(
    "HALT-3",
    profile="core",
    clause="contract: how-to Call the plugin from your walk; spec 6.3, 7.1",
    causes=(
        "NodeResult.reason or message is shown to the end user: both are for the flow's author",
        "the reason is the answer's error text: the run just ends",
    ),
)
async def says_nothing_of_it_to_the_user(trial: Trial) -> None:
    """The end user's client does not learn why a node failed, was skipped or halted the run."""
    for status, halt in (("failed", False), ("skipped", False), ("failed", True)):
        name = f"{status}-{halt}".lower()
        words = {
            "a node's reason": trial.id(f"reason-{name}"),
            "a node's message": trial.id(f"message-{name}"),
        }
        reason, message = words.values()
        node = trial.probe(f"node-{name}", status=status, reason=reason, message=message, halt=halt)
        flow = trial.flow(trial.step(f"a-{name}"), node, trial.step(f"b-{name}"), name=f"flow-{name}")
        await trial.seed(flow)
        hides(trial, await trial.open(flow), words)
