"""MODEL: drawn flows, whose runs are compared whole with what a model of the contract says."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from flowactions_conformance.kit.drawn import NEEDS, THEMES, Drawing, smaller
from flowactions_conformance.kit.model import (
    HALTS,
    OF_VALUES,
    Difference,
    Drawn,
    Expected,
    Passage,
    Reached,
    Run,
    config_of,
    difference,
    expected,
    name_of,
    named,
    outline,
)
from flowactions_conformance.kit.outcomes import CheckFailed, DriverFault, NotTestable
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.client import attempt, pacings
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Agent, Turn

FLAT: Final = 4
"""Flows of steps and nodes only."""
WALKS: Final = 12
"""Of flows with loops, branches and sub-flows, in each pacing."""
STAYS: Final = 3
STAY_SECONDS: Final = 0.2
"""How often a ``next`` that stays where it is, because the node still runs, is asked again."""
MOST_WALKS, MOST_SECONDS = 40, 20.0
"""For a smaller flow that shows the same difference."""
NODE_FINDS: Final = "Host.node does not find the node by organization, opened flow and node alone: it gets the ids that Walk and Node had"


LATE_LOOKS: Final = 20
"""For nodes that run after open() has returned: so many looks, 0.05 s apart, without a new one end the wait."""
LATE: Final = Difference(
    "late",
    "action nodes had not run when open() returned",
    cause="the host starts reach() in the background and answers before it has ended: await it",
)
SAME_RUN: Final = Difference(
    "session",
    "open() returned the session of another run, of the same user and content",
    "a session, and a run, of its own",
    cause="the host takes a second opening for the first one sent again: each opening is a run, and run_id is new for every run",
)
NOT_PACED: Final = (
    "pacing is left out of Walk, whose default is eager: pass Deferred(next_step_id) in a client-paced flow"
)
Meanwhile: TypeAlias = Callable[[], Awaitable[None]]


class Walks:
    """Walks drawn flows, and compares.

    Args:
        trial: of the check.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._runs: dict[str, str] = {}
        self._sessions: set[str] = set()
        self._sent: dict[str, list[tuple[Passage, str, str]]] = {}

    async def seed(self, flows: Iterable[Drawn]) -> None:
        """Have the host make flows. Their sub-flows are another agent's."""
        trial = self._trial
        other = Agent(id=trial.id("other-agent"), name="Other agent", organization=trial.organization)
        await trial.seed(
            world=trial.world(*(sub for each in flows for sub in (*each.subs, each.flow)), agents=(other,))
        )

    async def walk(
        self,
        drawn: Drawn,
        user: str,
        content: str,
        *,
        kinds: str = "",
        beside: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        """Walk a flow to its end, and fail the check if anything differs.

        Args:
            drawn: the flow.
            user: of the run.
            content: of the run.
            kinds: of both, in words.
            beside: other runs of the flow go on at the same time: a run's nodes are known by its content.
            meanwhile: awaited in the middle of the run.
        """
        found = await self._walked(drawn, user, content, kinds, beside=beside, meanwhile=meanwhile)
        if found is None:
            return
        smallest = drawn
        if not beside and meanwhile is None and found is not SAME_RUN:  # any flow shows that
            smallest, found = await self._smallest(drawn, found, user, content, kinds)
        trial = self._trial
        trial.saw_wrong_value = found.kind in OF_VALUES
        trial.note("kit", f"the flow: {outline(smallest)}")
        raise CheckFailed(
            f"{found.what}. The flow: {outline(smallest)}",
            expected=found.expected,
            actual=found.actual,
            causes=(found.cause,) if found.cause and not beside else trial.check.causes,
        )

    async def _smallest(
        self, drawn: Drawn, found: Difference, user: str, content: str, kinds: str
    ) -> tuple[Drawn, Difference]:
        ends, walks, again = time.monotonic() + MOST_SECONDS, 0, True
        while again:
            again = False
            for less in smaller(drawn):
                walks += 1
                if walks > MOST_WALKS or time.monotonic() > ends:
                    return drawn, found
                try:
                    await self.seed([less])
                    other = await self._walked(less, user, content, kinds)
                except (CheckFailed, DriverFault, NotTestable):  # a host may refuse it
                    continue
                if other is not None and other.kind == found.kind:
                    drawn, found, again = less, other, True
                    break
        return drawn, found

    async def _walked(
        self,
        drawn: Drawn,
        user: str,
        content: str,
        kinds: str = "",
        *,
        beside: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> Difference | None:
        trial, wanted = self._trial, expected(drawn, content)
        before, seen = len(trial.reached(kind="reached")), list[list[Reached]]()

        def new() -> list[Reached]:
            all_ = [event.data for event in trial.reached(kind="reached")[before:]]
            mine = [each for each in all_ if not beside or each["walk"]["content"] == content]
            return mine[sum(map(len, seen)) :]

        turn = await trial.open(drawn.flow, user=user, content=content)
        if turn.session in self._sessions:
            return SAME_RUN
        self._sessions.add(turn.session)
        if drawn.flow.pacing == "eager":
            if await _more_comes(lambda: len(new()), len(wanted.probes[0])):
                return LATE
            seen.append(new())
            if meanwhile is not None:
                await meanwhile()
        else:
            if new():
                return Difference(
                    "opened", f"{named(new()[0])} ran when the client-paced flow was opened", cause=NOT_PACED
                )
            turn = await self._through(turn, wanted, seen, new, meanwhile)
        run = self._run(drawn, user, content, kinds)
        found = difference(drawn, wanted, seen, run) or _of_the_end(drawn, wanted, len(seen), turn)
        if found is not None:
            return found
        for _ in range(2):
            await attempt(trial, turn)
        seen += [[] for _ in range(len(wanted.groups) - len(seen))]
        seen.append(new())
        return difference(drawn, wanted, seen, run) or self._known(drawn, wanted, seen, user, content)

    async def _through(
        self,
        turn: Turn,
        wanted: Expected,
        seen: list[list[Reached]],
        new: Callable[[], list[Reached]],
        meanwhile: Meanwhile | None,
    ) -> Turn:
        """Goes through a client-paced run, and adds what ran with each step."""
        if turn.step_id is not None:
            seen.append([])
        while not (turn.done or turn.halted) and len(seen) < len(wanted.groups):
            if meanwhile is not None and len(seen) == 1:
                await meanwhile()
            turn = await self._next(turn, lambda: bool(new() or not wanted.probes[len(seen)]))
            seen.append(new())
        return turn

    async def _next(self, turn: Turn, ran: Callable[[], bool]) -> Turn:
        """Goes on once; again while the turn stays where it is, and what is due has not run."""
        after = await self._trial.next(turn)
        for _ in range(STAYS):
            if ran() or after.step_id != turn.step_id or after.done or after.halted:
                break
            await asyncio.sleep(STAY_SECONDS)
            after = await self._trial.next(after)
        return after

    def _run(self, drawn: Drawn, user: str, content: str, kinds: str) -> Run:
        of = self._trial.of_host
        walk = {
            "organizationId": of(drawn.flow.organization),
            "agentId": of(drawn.flow.agent),
            "flowId": of(drawn.flow.id),
            "userId": user,
            "content": content,
        }
        subs = tuple({"agentId": of(each.agent), "flowId": of(each.id)} for each in drawn.subs)
        return Run(walk, subs, kinds)

    def _known(
        self, drawn: Drawn, wanted: Expected, seen: list[list[Reached]], user: str, content: str
    ) -> Difference | None:
        """Remember what the run has sent and its id, which no other one may have."""
        for group in wanted.groups:
            for passage in group:
                if isinstance(passage.item, Action) and passage.item.type == "webhook":
                    self._sent.setdefault(passage.item.config["webhookUrl"], []).append(
                        (passage, user, content)
                    )
        ids = {each["walk"]["runId"] for group in seen for each in group}
        for each in ids:
            if each == self._trial.of_host(drawn.flow.id):
                return Difference(
                    "run",
                    "run_id is the flow's id",
                    cause="run_id is the flow's id, the user's or the session's, and not new for every run",
                )
            if each in self._runs:
                return Difference(
                    "run",
                    "two runs of a flow have the same run_id",
                    actual=each,
                    cause="run_id is the flow's id, the user's or the session's, or made of the time, and not new for every run",
                )
            self._runs[each] = content
        return None

    def _lost(self, passage: Passage) -> bool:
        """Whether `Host.node` has answered None for a webhook, so that it waits."""
        node = self._trial.of_host(passage.item.id)
        return any(each.data["lost"] and each.data["node"] == node for each in self._trial.reports("host_call"))

    def _arrived(self, hook: str, count: int, passage: Passage) -> bool:
        """Whether so many webhooks of a node have arrived, or none of them can any more."""
        return len(self._trial.arrivals(hook)) >= count or self._lost(passage)

    async def sent(self) -> None:
        """Wait for the webhooks of all runs, and compare them."""
        trial = self._trial
        for url, due in self._sent.items():
            hook = url.rpartition("/")[2]
            hook = hook.removesuffix("-paced") if trial.pacing == "deferred" else hook
            passage = due[0][0]
            causes = trial.check.causes
            if passage.around:
                deep = (
                    "the flow and the sub-flows directly in it" if passage.depth > 1 else "the top of the flow"
                )
                causes = (
                    f"Host.node looks only at {deep}: look into every loop, branch and sub-flow, however deep",
                    NODE_FINDS,
                )
            await trial.until(
                partial(self._arrived, hook, len(due), passage),
                f"the webhook of {passage} did not arrive for each passage",
                expected=f"{len(due)} requests",
                causes=causes,
            )
            trial.expect(
                len(trial.arrivals(hook)) >= len(due),
                f"the webhook of {passage} waits: Host.node answers None, and not the node",
                expected="the node as its flow has it now, by the organization, the opened flow and the node's id",
                actual=None,
                causes=causes,
            )
            arrivals = trial.arrivals(hook)
            bodies = Counter(json.dumps({"user": user, "content": content}) for _, user, content in due)
            came = Counter(json.dumps(json.loads(each.body)) for each in arrivals)
            trial.equal(
                came,
                bodies,
                f"the webhooks of {passage} have not the users and contents of the runs",
                causes=causes,
            )
            events = {each.event_id for each in arrivals}
            trial.equal(
                len(events),
                len(due),
                f"webhooks of several passages through {name_of(passage.item)} have the same event id, so receivers drop them",
            )
            for each in arrivals:
                signed = trial.signature_of(each, str(config_of(passage)["webhookSecret"]))
                trial.equal(
                    signed,
                    "verified",
                    f"the webhook of {passage} is not signed with the secret of its node",
                    causes=(NODE_FINDS, *causes),
                )


async def _more_comes(count: Callable[[], int], due: int) -> bool:
    """Return whether more comes than there is now. What is due is waited for until `LATE_LOOKS` looks find nothing new."""
    before = newest = count()
    looks = 0
    while newest < due and looks < LATE_LOOKS:
        await asyncio.sleep(0.05)
        came = count()
        looks, newest = looks + 1 if came == newest else 0, came
    return newest > before


def _of_the_end(drawn: Drawn, wanted: Expected, count: int, turn: Turn) -> Difference | None:
    steps = len(wanted.groups)
    if count < steps and not wanted.halted:
        cause = "the run begins at a later step than its first, skips one, or is done as soon as its last step is shown"
        what = "the run was done before the user had continued from its last step"
        return Difference("end", what, f"{steps} times next, or {steps - 1} if open shows a step", turn, cause)
    if turn.done or turn.halted or (drawn.flow.pacing == "eager" and not wanted.halted):
        return None
    if wanted.halted:
        return Difference("end", "the run continues after a node that halts", "done", turn, HALTS)
    cause = "advance(walk, None) is not called when the user continues from the last step"
    return Difference("end", "the run is not done after the next from its last step", "done", turn, cause)


def drawn_flows(trial: Trial, structured: bool, halts: str | None = None, name: str = "f") -> list[Drawn]:
    """Draw the flows of a check; with loops, branches and sub-flows, as far as the host has them, one for each theme."""
    kinds = {"loop", "branch", "subflow"} - trial.session.lacks if structured else set[str]()
    themes = [each for each in THEMES if structured and NEEDS.get(each) not in trial.session.lacks]
    return [
        Drawing(trial, trial.values.draw, f"{name}{number}", kinds, halts).flow(theme)
        for number, theme in enumerate(themes or ["steps", *["mixed"] * (FLAT - 1)])
    ]


async def each_walked(trial: Trial, flows: list[Drawn], most: int | None = None) -> None:
    """Walk flows with users and contents of each kind, or of so many kinds, and compare the webhooks of all."""
    walks = Walks(trial)
    await walks.seed(flows)
    for number, (user, content, kinds) in enumerate(trial.values.runs()[:most]):
        await walks.walk(flows[number % len(flows)], user, content, kinds=kinds)
    # Of the same user with the same content: nothing but the run tells the two apart.
    for _ in range(2):
        await walks.walk(flows[0], "Ada", "again")
    await walks.sent()
    one, other = await asyncio.gather(*(trial.open(flows[0].flow, "Ada", "again") for _ in range(2)))
    trial.expect(one.session != other.session, f"{SAME_RUN.what}, at the same moment", causes=(SAME_RUN.cause,))


async def halted(trial: Trial, flows: list[Drawn]) -> None:
    """Walk flows of which a node halts the runs with one content."""
    walks = Walks(trial)
    await walks.seed(flows)
    for flow in flows:
        await walks.walk(flow, "Ada", "halted")
        await walks.walk(flow, "Ada", "not halted")
    await walks.sent()


async def beside_each_other(trial: Trial, flows: list[Drawn]) -> None:
    """Walk several runs of each flow at once, and one, of one of their users, that is interrupted by another."""
    walks = Walks(trial)
    await walks.seed(flows)
    for flow in flows:
        users = ("Ada", "Zoë", "Eve", "Ada")
        await asyncio.gather(
            *(
                walks.walk(flow, user, f"run {number} of {user}", beside=True)
                for number, user in enumerate(users)
            )
        )

        async def another(flow: Drawn = flow) -> None:
            await walks.walk(flow, "Ada", "the second run of Ada", beside=True)

        await walks.walk(flow, "Ada", "the first run of Ada", beside=True, meanwhile=another)
    await walks.sent()


GIVES_THE_WALK: Final = (
    "the user's id or message is trimmed, escaped or rendered before it becomes the walk's",
    "the message is normalized, or cut at the width of a column or at a limit of the client's",
    "Walk is built from something else than the run, for example from the flow's own values",
    "organization_id is taken from who is signed in, and not from the flow",
)


@check(
    "MODEL-1",
    profile="core",
    clause="contract: Advancing, Structs (Walk), Ids; spec 2.3, 2.5, 3.2",
    causes=GIVES_THE_WALK,
    covers=("users", "texts"),
)
async def eager_flows(trial: Trial) -> None:
    """In drawn eager flows each node runs when the walk comes by it, before open() returns, with the walk of its run."""
    await each_walked(trial, drawn_flows(trial, structured=False))


@check(
    "MODEL-2",
    profile="pacing",
    clause="contract: Advancing, Structs (Walk, Deferred), Ids; spec 2.3, 3.2",
    causes=(
        "Deferred names the step before the node, or the first one: it is the content step that comes next in the walk",
        "advance() is called with the step that the user leaves, and not with the one that comes",
        "advance(walk, None) is not called when the user continues from the last step",
        *GIVES_THE_WALK,
    ),
    covers=("users", "texts"),
)
async def client_paced_flows(trial: Trial) -> None:
    """In drawn client-paced flows each node runs once, with the next to the step behind it, or to the end, with the walk of its run."""
    trial.pacing = "deferred"
    await each_walked(trial, drawn_flows(trial, structured=False))


@check(
    "MODEL-3",
    profile="core",
    clause="contract: facade (reach), Structs (NodeResult.halt); spec 7.1",
    causes=(
        HALTS,
        "only the failed ones of the results that halt are obeyed: `halt` alone says whether to stop",
    ),
)
async def halting_nodes(trial: Trial) -> None:
    """In drawn flows, a node that halts ends the run, and no other run; nodes that failed or were skipped end none."""
    for _ in pacings(trial):
        await halted(trial, drawn_flows(trial, structured=False, halts="halted"))


@check(
    "MODEL-4",
    profile="core",
    clause="contract: Ids, Advancing; spec 2.5, 3.2",
    causes=(
        "run_id is the flow's or the agent's id: two users in one flow then share their records",
        "the pacing, the user or the position is kept for the flow or the process, and not for the run",
    ),
)
async def runs_are_apart(trial: Trial) -> None:
    """Runs of a drawn flow at the same time, or in the middle of each other, do not affect each other."""
    for _ in pacings(trial):
        await beside_each_other(trial, drawn_flows(trial, structured=False)[:2])


@check(
    "MODEL-5",
    profile="loops",
    clause="contract: Ids (visit, sub-flows), Advancing; spec 2.5, 3.2",
    causes=(
        "visit does not name each passage",
        "the nodes of a sub-flow get its own ids, and not those of the opened flow",
        "the nodes of all arms are reached",
    ),
)
async def structured_flows(trial: Trial) -> None:
    """In drawn flows with loops, branches and sub-flows, up to three deep, each passage runs when it is due, told apart."""
    for _ in pacings(trial):
        await each_walked(trial, drawn_flows(trial, structured=True), WALKS)


@check("MODEL-6", profile="loops", clause="contract: Advancing (`halted`), Ids; spec 3.2, 7.1", causes=(HALTS,))
async def structured_flows_halt(trial: Trial) -> None:
    """In drawn flows with loops, branches and sub-flows, a halt ends the whole run, and runs at once are apart."""
    for _ in pacings(trial):
        await halted(trial, drawn_flows(trial, structured=True, halts="halted"))
    for _ in pacings(trial):
        await beside_each_other(
            trial, trial.values.draw.sample(drawn_flows(trial, structured=True, name="g"), 2)
        )
