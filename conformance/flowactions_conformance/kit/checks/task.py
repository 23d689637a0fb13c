"""TASK: plugins' tasks and lifespans live exactly as long as the host serves."""

from __future__ import annotations

from collections import Counter
from typing import Final

from flowactions_conformance.kit.checks.inbound import send_event
from flowactions_conformance.kit.checks.methods import Answers, Asked, Question
from flowactions_conformance.kit.hosts.limits import SLOW
from flowactions_conformance.kit.outcomes import NothingKnown, NotTried
from flowactions_conformance.kit.probing.host_calls import SLOW_SECONDS
from flowactions_conformance.kit.probing.plugin import ROUTES
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.session import Host
from flowactions_conformance.kit.support.evidence import provides
from flowactions_conformance.kit.support.survey import Survey
from flowactions_conformance.kit.trial import Trial

LIFESPAN = (
    "the lifespan of FlowActions is not entered: lifespan=[actions.lifespan], or actions.wrap around the app"
)
OPENED_LATE = (
    "the lifespan is opened at the first request, or in a task that the start does not wait for",
    "another app is mounted around this one, and its server does not pass the lifespan on: enter it by hand",
)
ROUNDS: Final = 5
"""How often a method of the host is called at least, before anything is said of it."""
LEFT_OPEN = "the lifespan is entered by hand and never left: use async with, or give it to the framework"


@check(
    "TASK-1",
    profile="core",
    clause="contract: Lifetime and event loop",
    causes=(
        LIFESPAN,
        *OPENED_LATE,
    ),
)
async def is_open_before_the_first_request(trial: Trial) -> None:
    """The lifespan of the plugins is open, and each of their tasks runs once, before the host serves."""
    host = trial.host
    opened = [event.number for event in trial.reports("opened")]
    trial.expect(
        opened,
        "the lifespan of the plugins is never opened",
        expected="flowactions_lifespan of every plugin is entered while the app starts",
        actual="the probe's was not",
    )
    trial.expect(
        min(opened) <= host.reports_at_start,
        "the lifespan of the plugins is opened only after the app has started to serve",
        actual="the probe's was opened later",
        causes=OPENED_LATE,
    )
    await _runs_once(trial, host)


@check(
    "TASK-2",
    profile="core",
    clause="contract: Lifetime and event loop, Hooks",
    alone=True,
    causes=(
        "the host ends, or answers 503, when an error is logged",
        "the host runs tasks of plugins itself: leave them to actions.lifespan",
    ),
)
async def survives_a_crash(trial: Trial) -> None:
    """A plugin's task that crashes is started again, and harms neither requests nor deliveries."""
    # A host of its own: where a crash does harm, it would do it to all checks.
    host = await trial.start()
    await trial.until(
        lambda: trial.reports("crash_task_started"),
        "the probe's second task is not started",
        causes=(LIFESPAN,),
    )
    before = len(trial.reports("crash_task_started"))
    flow = trial.flow(trial.webhook("after"))
    await trial.seed(flow)
    answer = await trial.request("POST", f"{ROUTES}/crash")
    trial.answers(answer, 200, "the probe's route for crashing its task is not answered by the probe")
    if trial.is_served and not answer.json()["ok"]:
        raise NotTried("the process that was asked to have a task crash runs no tasks")
    await trial.until(
        lambda: trial.reports("task_crashed"), "the kit has asked the probe's task to crash, and it did not"
    )
    await trial.until(
        lambda: len(trial.reports("crash_task_started")) > before,
        "a plugin's task that has crashed is not started again",
        expected="it is started again within a few seconds",
    )
    answer = await trial.request("GET", f"{ROUTES}/echo")
    trial.equal(
        answer.status_code, 200, "after a plugin's task has crashed, requests are not answered any more"
    )
    await trial.open(flow)
    await trial.until_arrived("after")
    await _runs_once(trial, host)


@check(
    "TASK-3",
    profile="core",
    clause="contract: Lifetime and event loop; spec 2.5",
    alone=True,
    causes=(
        LEFT_OPEN,
        "something of the host keeps its shutdown from ending",
        "what the host makes at import, or once for all starts, belongs to the event loop of the first one",
        "run ids are counted in memory, and begin again with the process: take random ones, or the table's",
    ),
    served="restart",
)
async def stops_and_starts_again(trial: Trial) -> None:
    """The host sends what is queued by itself, stops cleanly, and does both again when it is started again, with new run ids."""
    flow = trial.flow(trial.webhook("hook"))
    host: Host | None = None
    for number in (1, 2):
        again = "" if number == 1 else " when the host was started again with what it had kept"
        host = trial.host = await trial.start(beside=host)
        trial.expect(
            trial.reports("opened"),
            f"the lifespan of the plugins was not opened{again}",
            actual="the probe's was not",
            causes=(LIFESPAN,),
        )
        await trial.seed(flow)
        await trial.open(flow)
        # From here on the kit asks nothing of the host.
        events = {arrival.event_id for arrival in await trial.until_arrived("hook", number)}
        trial.equal(len(events), number, f"the webhook of a run has the event id of an earlier run{again}")
        await _runs_once(trial, host)
        await trial.stop()
        if not host.met:
            _check_end(trial, host)


@check(
    "TASK-4",
    profile="core",
    clause="contract: What a host provides; settings; spec 5.5",
    alone=True,
    causes=(
        "the host reads settings of chat itself, and cannot start without them",
        "the palette leaves out types that are not available, or shows them as if they were",
    ),
    served="no",
)
async def starts_without_chat(trial: Trial) -> None:
    """Without the settings of chat the host starts, shows chat messages as unavailable, and sends webhooks."""
    await trial.start(chat=False)
    flow = trial.flow(trial.webhook("hook"))
    await trial.seed(flow)
    shown = [
        entry for entry in await trial.call("palette", trial.author) if entry.get("name") == "chat_message"
    ]
    trial.equal(len(shown), 1, "without the settings of chat, the palette must still offer 'chat_message' once")
    trial.expect(
        shown[0].get("available") is False and shown[0].get("unavailableReason"),
        "without the settings of chat, the palette must show chat_message as unavailable and say why",
        expected="'available': false and an 'unavailableReason', as NodeType.describe gives them",
        actual={name: shown[0].get(name) for name in ("available", "unavailableReason")},
    )
    await trial.open(flow)
    await trial.until_arrived("hook")


@check(
    "TASK-5",
    profile="core",
    clause="contract: What a host provides (methods may be called concurrently)",
    causes=(
        "the method sleeps, or asks a database or a service with a library that is not asynchronous: use await, or asyncio.to_thread",
        "the method computes for long, for example a slow hash of a password: use asyncio.to_thread",
    ),
)
async def leaves_the_event_loop_free(trial: Trial) -> None:
    """No method of the host keeps the event loop, on which deliveries and all other requests wait, to itself."""
    await _ask_everything(trial)
    blocking = {event.data["method"]: event.data for event in trial.reports("host_call")}
    # Of calls that give the loop back, single ones are slow on a busy machine, and never all.
    slow = {
        name: data["seconds"]
        for name, data in blocking.items()
        if data["slow"] >= ROUNDS - 1 and data["slow"] >= data["calls"] * 0.8
    }
    if slow and (slowness := trial.session.machine.slowness()) >= SLOW:
        # Most calls of a host may be slow there, but a machine does not stop a process within each of them.
        slow = {
            name: seconds for name, seconds in slow.items() if blocking[name]["slow"] == blocking[name]["calls"]
        }
        if not slow:
            raise NothingKnown(f"nothing is known: this machine was {slowness:.0f} times slower than needed")
    trial.expect(
        not slow,
        f"{' and '.join(f'Host.{name} keeps the event loop for {seconds:.1f} s' for name, seconds in slow.items())}"
        " at each call:"
        " meanwhile no other request is answered and nothing is delivered",
        expected=f"less than {SLOW_SECONDS:g} s between two awaits",
        actual={name: f"{seconds:.2f} s" for name, seconds in slow.items()},
    )


async def _ask_everything(trial: Trial) -> None:
    """Call each method of the host several times, within the host."""
    world, answers = Asked(trial), Answers(trial)
    await world.seed()
    ref = {**Survey(trial).ref(), "source": "experience_trigger", "triggerRowId": trial.id("nothing")}
    asked = [*world.people(), *world.things()]
    if provides(trial, "logic_action"):
        asked.append(Question("logic_action", "no action", None, (ref,)))
    for number in range(ROUNDS):
        for question in asked:
            await answers.ask(question)
        if provides(trial, "auth_event") and "inbound" in trial.session.claims:
            await send_event(trial, trial.id(f"event-{number}"))


async def _runs_once(trial: Trial, host: Host) -> None:
    """Sees that one set of tasks runs now, in each process that runs them.

    One that has run and ended, as for an upgrade at the start, is nobody's harm, and a host may have a process of its
    own for tasks.
    """
    await trial.until(
        lambda: trial.reports("task_started", host),
        "no background task of a plugin is started",
        causes=(LIFESPAN, "the lifespan is opened with tasks=False in the process that serves"),
    )
    for started, ended, what in (
        ("opened", "closed", "lifespans"),
        ("task_started", "task_stopped", "sets of background tasks"),
    ):
        running = Counter(event.pid for event in trial.reports(started, host))
        running.subtract(event.pid for event in trial.reports(ended, host))
        most = max(running.values())
        trial.equal(
            most,
            1,
            f"a process of the host runs {most} {what} of the plugins, not one",
            causes=(
                "FlowActions.load is called more than once in a process: load once, and share what it returns",
                LIFESPAN,
            ),
        )


def _check_end(trial: Trial, host: Host) -> None:
    left_at = host.running.left_at
    kinds = ("task_stopped", "closed")
    reports = [
        event
        for event in trial.session.control.events
        if event.host == host.name and event.kind in kinds and (left_at is None or event.at <= left_at)
    ]
    with_tasks = {event.pid for event in trial.reports("task_started", host)}
    for pid in {event.pid for event in trial.reports("opened", host)}:
        expected = list(kinds) if pid in with_tasks else ["closed"]
        trial.equal(
            [event.kind for event in reports if event.pid == pid][-len(expected) :],
            expected,
            "when the host had stopped, the plugins' tasks had not ended and their lifespans were not closed, in this "
            "order",
            causes=(LEFT_OPEN,),
        )
