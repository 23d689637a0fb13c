"""PACING, continued: nodes that fail at their step, and flows that are edited meanwhile."""

from __future__ import annotations

from typing import Final

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Flow, Item

STEPS_SEEN: Final = {"pinned": 3, "live": 4}


AGAIN_SECONDS: Final = 60.0


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
    """A recorded node whose plugin fails keeps nobody: the user goes on, and the node runs again."""
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
    """A run whose flow is edited goes on: what was recorded runs as it was, once, no step is shown twice, and it ends."""
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
        expected="each step once",
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
