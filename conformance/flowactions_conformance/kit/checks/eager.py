"""EAGER: in a flow that is walked to its end at once, each node runs when the walk reaches it."""

from __future__ import annotations

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.trial import Trial


@check(
    "EAGER-1",
    profile="core",
    clause="contract: Advancing; spec 3.2",
    causes=(
        "the host starts reach() in the background and answers before it has ended: await it",
        "the host passes Deferred for a flow that is not client-paced",
    ),
)
async def runs_before_open_returns(trial: Trial) -> None:
    """Each action node of an eager flow has run when the flow has been opened."""
    flow = trial.flow(trial.step("a"), trial.probe("one"), trial.step("b"), trial.probe("two"))
    await trial.seed(flow)
    await trial.open(flow)
    ran = [event.data["node"]["id"] for event in trial.reached(kind="reached")]
    expected = [trial.of_host(trial.id("one")), trial.of_host(trial.id("two"))]
    trial.equal(ran, expected, "the action nodes had not run, in order, when open() returned")


@check(
    "EAGER-2",
    profile="core",
    clause="contract: enqueue; spec 5.3",
    causes=(
        "the lifespan of FlowActions is not entered in the process that serves",
        "FLOWACTIONS_HOST_WORKER is off",
    ),
)
async def delivers_a_webhook(trial: Trial) -> None:
    """A webhook node's request arrives at its receiver, with the run's values."""
    flow = trial.flow(trial.webhook("order"))
    await trial.seed(flow)
    await trial.open(flow, user="Ada", content="two")
    arrived = await trial.until_arrived("order")
    trial.equal(arrived[0].body, '{"user": "Ada", "content": "two"}', "the webhook arrived with another body")
