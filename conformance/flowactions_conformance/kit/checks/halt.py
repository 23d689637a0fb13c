"""HALT: a walk goes on after a node that failed, and stops at one that halts."""

from __future__ import annotations

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import pacings, walked
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action


@check(
    "HALT-1",
    profile="core",
    clause="contract: Advancing (fail-open); spec 7.1",
    causes=(
        "the walk stops at a NodeResult whose status is failed or skipped: only `halt` says whether to stop",
        "the walk continues only after the statuses that it knows",
        "the host takes a failed node for a failure of its own, and rolls back or answers an error",
        "the host does not move on when advance() says 'unavailable'",
    ),
)
async def goes_on_after_a_failure(trial: Trial) -> None:
    """A node that failed, was skipped or could not write does not stop the walk."""
    for _ in pacings(trial):
        # The organization has no chat connection: it fails with not_connected.
        config = {"chatActionType": "channel", "chatChannelId": "C1"}
        flow = trial.flow(
            trial.step("a"),
            Action(id=trial.id("chat"), type="chat_message", config=config),
            trial.probe("failed", status="failed", reason="send_failed"),
            trial.step("b"),
            trial.probe("skipped", status="skipped", reason="missing_url"),
            trial.probe("queued", status="queued"),
            trial.probe("crashed", crash=True),
            trial.step("c"),
            trial.probe("unwritten", write_fails=True),
            trial.step("d"),
            trial.probe("last"),
        )
        await trial.seed(flow)
        await walked(trial, flow)
        began = [str(event.data["node"]["config"]["name"]) for event in trial.reached()]
        # A recorded node that crashed, or whose SQL failed, may be repeated meanwhile.
        trial.equal(
            list(dict.fromkeys(began)),
            ["failed", "skipped", "queued", "crashed", "unwritten", "last"],
            "the walk did not continue to its end",
        )
