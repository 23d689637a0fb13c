"""An end user's client: which step it shows, which nodes ran to get there, and what it must not get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowactions_conformance.kit.outcomes import DriverFault, NotTestable
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Flow, Turn

MOST_STEPS = 30


class Client:
    """Goes through one run of a client-paced flow.

    Steps are counted and not named, because a host gives them ids of its own: 0 is the first of the run, and -1 is
    before it, for hosts that show no step when a flow is opened.

    Attributes:
        turn: the newest.
        shown: ids of the steps that were shown, in order.
        turns: all that were seen.
    """

    def __init__(self, trial: Trial, turn: Turn) -> None:
        self.turn = turn
        self.shown: list[str] = []
        self.turns: list[Turn] = []
        self._trial = trial
        self._see(turn)

    @classmethod
    async def opened(
        cls, trial: Trial, flow: Flow, user: str | None = None, content: str = "content"
    ) -> Client:
        """Open a flow."""
        return cls(trial, await trial.open(flow, user=user, content=content))

    @property
    def at(self) -> int:
        """The number of the step that is shown."""
        return len(self.shown) - 1

    async def next(self) -> Turn:
        """Goes on once."""
        self.turn = await self._trial.next(self.turn)
        self._see(self.turn)
        return self.turn

    def saw(self, *turns: Turn) -> None:
        """Record turns of this run that other requests have returned, in the order of the run."""
        further = [turn for turn in turns if turn.done or (turn.step_id and turn.step_id not in self.shown)]
        for turn in sorted(further, key=lambda each: each.done):
            self.turn = turn
            self._see(turn)

    async def go_to(self, number: int) -> None:
        """Goes on until the step of that number is shown.

        Raises:
            CheckFailed: the run ends before, or stays where it is.
        """
        while self.at < number:
            before = self.at
            await self.next()
            self._trial.expect(
                self.at > before,
                f"next did not lead to step {number + 1} of the flow",
                actual=f"{len(self.shown)} shown, and then {self.turn}",
            )

    async def to_end(self) -> list[list[str]]:
        """Goes on until the run is done or halted.

        Returns:
            The names of the probe nodes that ran with each ``next`` that led to a step, and with the last one.

        Raises:
            CheckFailed: it does not end.
        """
        ran: list[list[str]] = []
        while not (self.turn.done or self.turn.halted):
            self._trial.expect(
                len(ran) < MOST_STEPS, f"the run is not done after {MOST_STEPS} times next", actual=self.turn
            )
            before = len(self._trial.ran())
            await self.next()
            ran.append(self._trial.ran(before))
        return ran

    async def try_next(self, times: int = 2) -> None:
        """Goes on in a run that has ended or was halted; the host may refuse."""
        for _ in range(times):
            turn = await attempt(self._trial, self.turn)
            if turn is not None:
                self.turn = turn
                self._see(turn)

    def _see(self, turn: Turn) -> None:
        self.turns.append(turn)
        if turn.step_id is not None and turn.step_id not in self.shown[-1:]:
            self.shown.append(turn.step_id)


def pacings(trial: Trial) -> Iterator[str]:
    """Yield each pacing that the host has. What is made meanwhile has ids of its own, and only that is seen."""
    yield trial.pacing
    if "pacing" in trial.session.claims:
        trial.pacing = "deferred"
        yield trial.pacing
        trial.pacing = "eager"


async def walked(trial: Trial, flow: Flow, user: str | None = None, content: str = "content") -> list[Turn]:
    """Open a flow, and go to the end of the run as its user does; return each turn.

    Raises:
        CheckFailed: it does not end.
    """
    client = await Client.opened(trial, flow, user=user, content=content)
    if flow.pacing == "deferred":
        await client.to_end()
    return client.turns


async def attempt(trial: Trial, turn: Turn, step: str | None = None) -> Turn | None:
    """Goes on where the host may refuse, with an error that its driver raises; then there is no turn."""
    try:
        return await trial.next(turn, step)
    except DriverFault as exc:
        trial.note("host", f"refuses next: {exc}")
        return None


def hides(trial: Trial, turn: Turn, words: Mapping[str, str]) -> None:
    """Fails the check if the end user's client got one of these words.

    Args:
        trial: of the check.
        turn: what it got.
        words: what a word is → the word.

    Raises:
        CheckFailed: it did.
        NotTestable: the driver does not say what it got.
    """
    if not turn.raw:
        raise NotTestable("Turn.raw is empty: put everything that the end user's client received there")
    for what, word in words.items():
        trial.expect(
            word not in turn.raw,
            f"the end user's client got {what}",
            expected=f"no {word!r} in what it received",
            actual=turn.raw,
        )


def long_flow(trial: Trial) -> Flow:
    """Return a client-paced flow with nodes before, between and behind its steps a, b, c and d."""
    return trial.flow(
        trial.probe("before-a"),
        trial.step("a"),
        trial.step("b"),
        trial.probe("before-c-1"),
        trial.probe("before-c-2"),
        trial.step("c"),
        trial.probe("before-d"),
        trial.step("d"),
        trial.probe("end-1"),
        trial.probe("end-2"),
        pacing="deferred",
    )
