"""DURABILITY: what was queued, recorded, connected or promised is there after a restart, and after a crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from flowactions_conformance.kit.outcomes import CheckFailed, DriverFault, NotTestable, NotTried
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support import chat
from flowactions_conformance.kit.support.client import Client
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Flow

CONNECTION = "/integrations/chat/connection"
NO_DELIVERIES = {"FLOWACTIONS_HOST_WORKER": "off"}
"""Holds back what is queued, until a start without it."""

LEASE_SECONDS: Final = 45.0
"""The plugin goes on with what a killed process had begun to deliver within half a minute."""

CONFIRMED: Final = "the answer leaves before the commit, or an error of the commit is only logged: answer when it has committed"
CAUSES = (
    "each start makes a new database, or a restart does not find the old one",
    "runs, or where they are, are kept in memory: keep them with what client and host need to continue",
    "settings are not the same at each start, for example an encryption key that is made when the process starts",
)


@check(
    "DURABILITY-1",
    profile="durability",
    clause="contract: Advancing, enqueue; spec 2.5, 3.2",
    alone=True,
    causes=CAUSES,
    served="restart",
)
async def survives_a_restart(trial: Trial) -> None:
    """Deliveries, deferred nodes, sessions, keys and the chat connection are there after a restart."""
    await trial.start(settings=NO_DELIVERIES)
    await _survives(trial, trial.stop, "a restart")


@check(
    "DURABILITY-2",
    profile="durability",
    clause="contract: Advancing, enqueue; spec 2.5, 3.2",
    alone=True,
    causes=(
        *CAUSES,
        "what the host has written is kept back until it stops: write it before the answer is given",
    ),
    served="kill",
)
async def survives_a_kill(trial: Trial) -> None:
    """Deliveries, deferred nodes, sessions, keys and the chat connection are there after the process was killed."""
    await trial.start(settings=NO_DELIVERIES, child=True)
    await _survives(trial, trial.kill, "its process was killed and started again")


@check(
    "DURABILITY-3",
    profile="durability",
    clause="contract: What a host does (Runs), Transactions",
    alone=True,
    causes=(
        "reach() is called without the transaction in which the run is written, before that has committed",
        "the transaction that is given to reach() is another one than that of the run",
        "the driver's fail_commit() does not make the commit fail",
        CONFIRMED,
    ),
)
async def rolls_back_with_the_host(trial: Trial) -> None:
    """Nothing is sent for a run of which the host has kept nothing, because its commit failed."""
    await trial.start()
    flow = trial.flow(trial.step("shown"), trial.probe("node"), trial.webhook("hook"))
    await trial.seed(flow)
    kept = await _kept_of_a_failed_commit(trial, flow, "node")
    await trial.nothing_more_is_sent()
    events = {arrival.event_id for arrival in trial.arrivals("hook")}
    trial.expect(
        len(events) <= bool(kept),
        "the commit of a run failed, but its webhook was sent",
        expected="one event, of the run that was kept" if kept else "nothing",
        actual=events,
    )
    await trial.open(flow, content="committed")
    arrived = await trial.until_arrived("hook", bool(kept) + 1)
    trial.expect(
        "committed" in arrived[-1].body,
        "after a failed commit, the webhook of the next run was not sent",
        actual=arrived[-1].body,
    )


async def _kept_of_a_failed_commit(trial: Trial, flow: Flow, node: str) -> int:
    """Open a run whose commit fails; return how many runs were kept: one, if the host repeats what has failed.

    What the host has confirmed, it must know: then it has repeated the transaction, or only its own store.

    Raises:
        CheckFailed: it does not know the run.
        NotTestable: no commit has failed.
        NotTried: nobody says whether one has.
    """
    await trial.call("fail_commit")
    try:
        turn = await trial.open(flow, content="first")
    except DriverFault as exc:
        trial.note("host", f"open failed, as it should: {exc}")
        return 0
    # A host may repeat a transaction that failed: then the run that it has kept is the last one.
    if (kept := len(trial.reached(node)) - 1) >= 1:
        return kept
    try:
        await trial.next(turn)
    except DriverFault as exc:
        # A host that knows no next of such a flow refuses it for a run that it has kept, too.
        await trial.next(await trial.open(flow, content="asked"))
        raise CheckFailed(
            "open() confirmed a run that the host has not kept, because its commit failed",
            expected="open() raises, or the host repeats the transaction and keeps the run",
            actual=f"open() returned the session {turn.session}; next() of it: {exc}",
            causes=(CONFIRMED,),
        ) from exc
    try:
        failed: int = await trial.call("failed_commits")
    except NotTried:
        raise NotTried(
            "open() returned a run that the host has kept: it repeats what failed, which is right, or fail_commit() of the driver"
            " has no effect. If it repeats, write failed_commits() of the driver, and this is tried"
        ) from None
    if not failed:
        raise NotTestable(
            "fail_commit() has no effect: open() returned a run as if nothing had failed, and the host has kept it. Make the"
            " commit fail by which the host stores the next opened run"
        )
    return 1


async def _survives(trial: Trial, end: Callable[[], Awaitable[None]], what: str) -> None:
    """Look for what a host had to keep that delivered nothing, once it was ended and started again with deliveries.

    A served host delivers, and has to deliver again what has failed.
    """
    url = trial.hook("pending", fails=int(trial.is_served))
    eager = trial.flow(trial.webhook("pending", webhookUrl=url), name="eager")
    paced = trial.flow(
        trial.step("a"),
        trial.probe("early"),
        trial.step("b"),
        trial.step("c"),
        trial.webhook("recorded"),
        trial.step("d"),
        trial.probe("last"),
        trial.step("e"),
        pacing="deferred",
        name="paced",
    )
    await trial.seed(eager, paced)
    workspace = await chat.connect(trial, trial.author)
    await trial.open(eager)
    client = await Client.opened(trial, paced)
    await client.go_to(2)
    receipt = await trial.enqueue("keyed", key=trial.id("key"))
    trial.equal(receipt.get("status"), "queued", "a webhook with a key that is new was not queued")
    await end()
    trial.host = await trial.start(beside=trial.host)
    await trial.until(
        lambda: len(trial.arrivals("pending")) > int(trial.is_served),
        f"a delivery that was pending is lost after {what}",
        expected="it leaves by itself once the host has started",
        at_least=LEASE_SECONDS if trial.is_served else 0.0,
    )
    seen = list(client.shown)
    try:
        turn = await client.next()
    except DriverFault as exc:
        trial.expect(
            False,
            f"an end user's run cannot continue after {what}",
            expected="next() continues from the step that was shown before",
            actual=exc,
        )
        return
    trial.expect(
        turn.step_id is not None and turn.step_id not in seen,
        f"an end user's run is not where it was after {what}: next from its third step did not lead to the fourth",
        actual=f"{turn}; shown before: {', '.join(seen)}",
        causes=(
            "where a run is is kept in memory, or written now and then: write it before next answers",
            *CAUSES,
        ),
    )
    await trial.until(
        lambda: trial.arrivals("recorded"),
        f"a deferred node that was recorded is lost after {what}",
    )
    await client.go_to(4)
    for name, when in (("early", "before"), ("last", "after")):
        trial.equal(len(trial.reached(name)), 1, f"a deferred node of {when} {what} did not run once")
        walk = trial.reached(name)[0].data["walk"]
        trial.equal(
            (walk["userId"], walk["content"]),
            (trial.id("user"), "content"),
            f"the walk of a run that continues after {what} has another user or content",
        )
    receipt = await trial.enqueue("keyed", key=trial.id("key"))
    trial.equal(
        receipt.get("status"),
        "duplicate",
        f"an idempotency key is forgotten after {what}: the same webhook was enqueued again",
    )
    # Whether people stay signed in is the host's own matter.
    await trial.seed()
    answer = await trial.request("GET", CONNECTION, who=trial.author)
    card: dict[str, Any] = (answer.json().get("data") if answer.status_code == 200 else None) or {}
    trial.answers(answer, card, f"the chat connection is lost after {what}", "the card of the connection")
    trial.equal(
        (card["workspace"]["name"], card["status"]),
        (workspace.name, "active"),
        f"the chat connection cannot be used after {what}",
        causes=(
            "each start makes a new encryption key: keep the first, and give it in the settings",
            *CAUSES,
        ),
    )
