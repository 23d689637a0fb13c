"""SCALE: several processes of one host work as one.

The checks share two child processes beside the host that all use, because each start costs seconds. One that is killed
is started for it. The processes of a served host are behind one address: who answers there is whoever gets the request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from flowactions_conformance.kit.hosts.limits import Late
from flowactions_conformance.kit.outcomes import NotTried
from flowactions_conformance.kit.probing.plugin import ROUTES
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.session import Host
from flowactions_conformance.kit.support.client import Client
from flowactions_conformance.kit.trial import POLL_SECONDS, Trial
from flowactions_conformance.kit.under_test import Turn

ROWS: Final = 200
LEASE_SECONDS: Final = 45.0
"""The plugin has another process go on with what a killed one left behind within half a minute."""
RACING: Final = 4
"""How many requests race in a served host, so that they do not all get to the same process."""
ROUNDS: Final = 8
"""How often so many ask which process answers."""
IDLE_SECONDS: Final = 10.0
"""For how long nothing may come while many webhooks are under way: two processes start and send at once."""
ANSWER_SECONDS: Final = 2.0
"""For how long an answer is waited for that a host may hold back until another one has ended."""

ONE_DATABASE: Final = "each process has a database of its own: all processes of a host share one"


@check(
    "SCALE-1",
    profile="scale",
    clause="contract: enqueue, Lifetime and event loop; spec 2.5",
    causes=(
        ONE_DATABASE,
        "only one process runs the tasks of plugins, and not all that is queued reaches it",
        "requests fail while another process writes: let SQLite wait for its writer (busy_timeout)",
    ),
)
async def loses_nothing(trial: Trial) -> None:
    """Of two hundred webhooks that are queued in two processes at once, each arrives."""
    hosts = await _pair(trial)
    expected = {trial.id(f"row{number}") for number in range(ROWS)}

    def lacking() -> set[str]:
        return expected - {str(json.loads(arrival.body)["entity"]) for arrival in trial.arrivals("row")}

    async with trial.session.kill_lock:
        await _enqueue(trial, hosts, sorted(expected))
        while left := len(lacking()):
            await trial.until(
                lambda: len(lacking()) < left,
                f"not all of {ROWS} webhooks that were queued in two processes have arrived",
                expected=f"{ROWS} different ones; {left} were lacking when no more came",
                at_least=IDLE_SECONDS,
            )


@check(
    "SCALE-2",
    profile="scale",
    clause="contract: Advancing; spec 3.2",
    causes=(
        "'running' is taken for 'done': while another process runs the nodes, stay at the step and let the client ask again",
        "a lock in memory finds doubled requests, and another process does not see it",
        ONE_DATABASE,
    ),
)
async def runs_a_node_once(trial: Trial) -> None:
    """When the same step is asked for in two processes at once, its node runs once, and nobody gets past it before."""
    first, second = await _pair(trial)
    node = trial.probe("node", gate=trial.gate("gate"))
    flow = trial.flow(trial.step("a"), node, trial.step("b"), trial.probe("last"), pacing="deferred")
    trial.host = first
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    turn = client.turn
    hosts = (first, second) if first is not second else (first,) * RACING
    racing = [asyncio.create_task(trial.next(turn, host=host)) for host in hosts]
    try:
        await trial.until(
            lambda: trial.reached("node"),
            "when two processes were asked for a step, its node was not reached in either",
        )
        # A host may also let the second caller wait until the first has ended.
        done, _ = await asyncio.wait(racing, timeout=ANSWER_SECONDS)
        for early in done:
            answered = early.result()
            trial.expect(
                not answered.done and answered.step_id in {turn.step_id, None},
                "a caller was let past a node that another process still runs",
                expected="the step before, or no answer until the node has run",
                actual=answered,
            )
    finally:
        trial.open_gate("gate")
        ended = await asyncio.gather(*racing, return_exceptions=True)
    trial.equal(len(trial.reached("node")), 1, "a node was run by two processes")
    trial.host = second
    # A host that ignores which step its client names has moved twice, when the second request waited for the first.
    client.saw(*(each for each in ended if isinstance(each, Turn)))
    await _ask_again(trial, client, 1)
    await client.to_end()
    trial.equal(
        [len(trial.reached(name)) for name in ("node", "last")],
        [1, 1],
        "a run that was asked for in two processes did not run each node once",
    )


@check(
    "SCALE-4",
    profile="scale",
    clause="contract: Advancing; spec 2.5, 3.2",
    causes=(
        "the process that was killed has left a lock or a mark of the host's own, and nobody removes it",
        "only one process runs the tasks of plugins: after its end, another one has to",
        ONE_DATABASE,
    ),
    served="no",
)
async def goes_on_without_a_process(trial: Trial) -> None:
    """When a process is killed, the others send what it has queued, and its runs go on."""
    first = await _process(trial, 0)
    # The third process sends what others have queued, too, and takes it along when it is killed, until its lease ends.
    async with trial.session.kill_lock:
        await _kill_at_work(trial, first)


async def _kill_at_work(trial: Trial, first: Host) -> None:
    killed = await trial.start(child=True, beside=first)
    trial.host = killed
    node = trial.probe("node", gate=trial.gate("gate"))
    flow = trial.flow(
        trial.step("a"), trial.step("b"), node, trial.step("c"), trial.probe("last"), pacing="deferred"
    )
    await trial.seed(flow)
    client = await Client.opened(trial, flow)
    await client.go_to(0)
    trial.host = first
    await client.go_to(1)
    stuck = asyncio.create_task(trial.next(client.turn, host=killed))
    try:
        await trial.until(
            lambda: trial.reached("node"), "the node of a step was not reached in a third process"
        )
        expected = {trial.id(f"row{number}") for number in range(20)}
        await _enqueue(trial, [killed], sorted(expected))
        trial.note("kit", "kill the host's process")
        await killed.running.kill()
    finally:
        trial.open_gate("gate")
        await asyncio.gather(stuck, return_exceptions=True)
    await trial.enqueue("after")
    await trial.until_arrived("after")
    await trial.until(
        lambda: expected == {str(json.loads(arrival.body)["entity"]) for arrival in trial.arrivals("row")},
        "what a process had queued before it was killed was not sent by the others",
        at_least=LEASE_SECONDS,
    )
    await trial.until(
        lambda: trial.reached("node", kind="reached"),
        "a node that ran in a process that was killed was not run again by another one",
        expected="within half a minute",
        at_least=LEASE_SECONDS,
    )
    await _ask_again(trial, client, 2)
    await client.to_end()
    trial.equal(len(trial.reached("last")), 1, "a run whose process was killed did not continue to its end")


async def _process(trial: Trial, number: int) -> Host:
    """Returns one of the processes of one host that all checks of this group share: 0, or 1 beside it."""
    session, beside = trial.session, None if number == 0 else await _process(trial, 0)
    if number not in session.processes:
        session.processes[number] = asyncio.create_task(session.start(child=True, beside=beside))
    return await asyncio.shield(session.processes[number])


async def _pair(trial: Trial) -> tuple[Host, Host]:
    """Returns two processes of one host, which all checks of this group share; of a served one, all that it has, twice."""
    if trial.is_served:
        await _several_answer(trial)
        return trial.host, trial.host
    trial.note("kit", "use two processes of one host")
    return await _process(trial, 0), await _process(trial, 1)


async def _several_answer(trial: Trial) -> None:
    """Asks a served host which of its processes answer."""
    answering: set[str] = set()
    for _ in range(ROUNDS):
        asked = (trial.request("GET", f"{ROUTES}/echo") for _ in range(RACING))
        for answer in await asyncio.gather(*asked):
            trial.answers(answer, 200, "the probe's echo route is not answered by the probe")
            answering.add(answer.json()["pid"])
        if len(answering) > 1:
            return
        await asyncio.sleep(1)  # those that were started last may still be starting
    raise NotTried("only one process of the host answers")


async def _enqueue(trial: Trial, hosts: Sequence[Host], entities: Sequence[str]) -> None:
    """Has the probe enqueue webhooks, in turns in each of the processes, several at once."""
    trial.note("kit", f"enqueue {len(entities)} webhooks in {len(hosts)} process(es)")
    slots = asyncio.Semaphore(8)

    async def enqueue(number: int, entity: str) -> None:
        async with slots:
            receipt = await trial.enqueue("row", hosts[number % len(hosts)], entity=entity)
        trial.equal(receipt["status"], "queued", f"one of {len(entities)} webhooks could not be queued")

    await asyncio.gather(*(enqueue(number, entity) for number, entity in enumerate(entities)))


async def _ask_again(trial: Trial, client: Client, number: int) -> None:
    """Goes on until a step is shown, as a client does while the host says that the step before is not done."""

    async def shown() -> None:
        while client.at < number and not client.turn.done:
            await client.next()
            await asyncio.sleep(POLL_SECONDS)

    with suppress(Late):
        await trial.session.patience.wait(shown(), "effect")
    if not client.turn.done:
        await client.go_to(number)
