"""LOOPS: flows with loops, branches and sub-flows, in which a run comes by a node more than once, or never."""

from __future__ import annotations

from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.control import Event
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import Client, pacings, walked
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Loop, SubFlow


@check(
    "LOOPS-4",
    profile="loops",
    clause="contract: Ids (visit, sub-flows), What a host provides (signing_secret); spec 2.5",
    causes=(
        "visit does not name the place from which the sub-flow was entered",
        "node looks only into the flow, and not into its sub-flows: it gets the ids that Walk and Node had",
        "the nodes of a sub-flow are recorded with its own flow_id, and advance() is called with the outer one's",
        "sub-flows are put into the flow when it is saved, or kept in a cache: read them when a run is opened",
    ),
    needs=("subflow",),
)
async def sub_flows_are_apart(trial: Trial) -> None:
    """The nodes of a sub-flow run in each place from which it is entered, told apart, as it is now, signed with their secrets."""
    for pacing in pacings(trial):
        for number, version in enumerate(("old", "new"), start=1):
            secret = trial.id(f"secret-{version}")
            order = trial.webhook("order", webhookSecret=secret)
            once = Loop(id=trial.id("once"), times=1, items=(order,))
            sub = trial.flow(trial.probe("node", text=version), once, trial.step("s"), name="sub")
            places = [SubFlow(id=trial.id(f"place-{place}"), flow=sub.id) for place in (1, 2)]
            flow = trial.flow(trial.step("a"), *places, trial.step("z"))
            # The second time only the sub-flow is saved.
            await trial.seed(*((sub, flow) if version == "old" else (sub,)))
            await walked(trial, flow)
            count = len(_reached(trial, "node"))
            trial.equal(count, 2 * number, f"a sub-flow's node did not run in each of two places ({pacing})")
            _passages_are_apart(trial, "node", 2 * number)
            await _events_are_apart(trial, "order", 2 * number)
            texts = [event.data["node"]["config"]["text"] for event in _reached(trial, "node")[-2:]]
            trial.equal(texts, [version] * 2, "a run does not see that a sub-flow was edited before it began")
            for arrival in trial.arrivals("order")[-2:]:
                trial.equal(
                    trial.signature_of(arrival, secret),
                    "verified",
                    f"a sub-flow's webhook is not signed with its secret ({version})",
                )


@check(
    "LOOPS-7",
    profile="loops",
    clause="contract: Ids (visit, the same when a walk is repeated)",
    causes=(
        "visit is counted in memory: after a restart, the next passage has the number of the first one",
        "visit is made of something that changes from walk to walk, so that a node that was recorded is recorded again",
        "which round the run is in is kept in memory",
    ),
    alone=True,
    served="restart",
)
async def passages_survive_a_restart(trial: Trial) -> None:
    """When the host was restarted in the middle of a run, the passages behind are still told apart from those before.

    The host is a process of its own, so that none of its memory is left. A host whose runs end with its process passes: it repeats
    no walk. A host that claims durability has no such runs.
    """
    host = await trial.start(child=True)
    loop = Loop(
        id=trial.id("loop"), times=4, items=(trial.probe("node"), trial.webhook("order"), trial.step("a"))
    )
    flow = trial.flow(loop, pacing="deferred")
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    await trial.until_arrived("order")
    await trial.stop()
    trial.host = await trial.start(beside=host, child=True)
    try:
        await client.next()
    except DriverFault as exc:
        trial.expect(
            "durability" not in trial.session.claims,
            "a run in the middle of a loop cannot continue after a restart",
            expected="next() continues from the step that was shown before",
            actual=exc,
        )
        trial.note("kit", f"the run ended with its process: {exc}")
        return
    await client.to_end()
    trial.equal(
        trial.ran(), ["node"] * 4, "the node of a loop did not run once in each round, with a restart between"
    )
    _passages_are_apart(trial, "node", 4)
    await _events_are_apart(trial, "order", 4)


def _reached(trial: Trial, name: str) -> list[Event]:
    """Returns the reports of a node by its name: the host may give it other ids in sub-flows."""
    return [event for event in trial.reached(kind="reached") if event.data["node"]["config"]["name"] == name]


def _passages_are_apart(trial: Trial, name: str, count: int) -> None:
    passages = [
        (event.data["walk"]["runId"], event.data["node"]["id"], event.data["walk"]["visit"])
        for event in _reached(trial, name)
    ]
    trial.expect(
        len(passages) == len(set(passages)) == count,
        f"the passages of a run through the node {name!r} are not distinguished",
        actual=[visit for _, _, visit in passages],
    )


async def _events_are_apart(trial: Trial, name: str, count: int) -> None:
    events = [arrival.event_id for arrival in await trial.until_arrived(name, count)]
    trial.equal(len(events), count, f"the webhook {name!r} was not sent once for each passage")
    trial.equal(
        len(set(events)), count, "webhooks of several passages have the same event id, so receivers drop them"
    )
