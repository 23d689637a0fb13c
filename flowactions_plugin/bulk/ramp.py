"""The rate of a bulk action, and the rule by which it stops itself. Pure, no I/O.

Without a canary an action is paced only. With one it continues in stages: so many rows as the canary has, then ten times as
many, and so on. Each stage waits for the first attempt of the rows of the stage before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from flowactions_plugin.log_text import plural

BURST_SECONDS: Final = 1.0
"""A process that was late makes up for so much time at the most."""

GROWTH: Final = 10
"""How many times as many rows as its predecessor a stage has."""

MOST_WATCHED: Final = 1000
"""Of how many rows of a stage the outcome is awaited. Of larger stages it is a sample, evenly spread."""

FAILING_SHARE: Final = 0.1
"""A stage of which a larger part fails stops the action."""

Result: TypeAlias = Literal["open", "delivered", "failed", "gone"]
"""What came of a row: no attempt yet; delivered; its first attempt failed; somebody else has changed it since."""


class Pace(NamedTuple):
    """From when on a rate counts.

    Attributes:
        since: Unix milliseconds.
        done: how many rows were done since then.
    """

    since: int
    done: int = 0


class Stage(msgspec.Struct, frozen=True):
    """A stage of an action with a canary. It is stored with the action, as JSON.

    Attributes:
        size: how many rows it has.
        done: how many of them were done.
        watched: the ids of those whose outcome is awaited.
    """

    size: int
    done: int = 0
    watched: tuple[str, ...] = ()

    @property
    def room(self) -> int:
        """How many rows are left to do in it."""
        return self.size - self.done

    @property
    def interval(self) -> int:
        """One row in so many is watched."""
        return -(-self.size // MOST_WATCHED)

    def with_done(self, ids: Sequence[str]) -> Stage:
        """Return the stage after more of its rows were done, in this order."""
        watched = [each for position, each in enumerate(ids, self.done) if position % self.interval == 0]
        return Stage(self.size, self.done + len(ids), (*self.watched, *watched))

    def next(self) -> Stage:
        """Return the stage that follows."""
        return Stage(self.size * GROWTH)


class Judgement(NamedTuple):
    """What the outcomes of a stage say.

    Attributes:
        verdict: ``continue`` with the next stage; ``wait`` for outcomes; ``stop``.
        reason: why it waits or stops, for people.
    """

    verdict: Literal["continue", "wait", "stop"]
    reason: str = ""


def allowed(rate: float | None, pace: Pace | None, now: int, most: int) -> tuple[int, Pace]:
    """Return how many rows may be done now, and the pace to count them in.

    Args:
        rate: rows per second; ``None``: as many as possible.
        pace: as it was stored; ``None``: nothing was done yet.
        now: Unix milliseconds.
        most: how many rows a transaction takes at the most.
    """
    if pace is None or now < pace.since:  # the clock was set back
        pace = Pace(now)
    if rate is None:
        return most, pace
    due = int(rate * (now - pace.since) / 1000) - pace.done
    burst = max(1, int(rate * BURST_SECONDS))
    if due > burst:
        pace = Pace(now - int(burst / rate * 1000))
        due = burst
    return max(0, min(due, most)), pace


def wait_seconds(rate: float, pace: Pace, now: int) -> float:
    """Return the seconds until the next row may be done."""
    return max(0.0, (pace.since + (pace.done + 1) / rate * 1000 - now) / 1000)


def judge(stage: Stage, results: Mapping[str, Result]) -> Judgement:
    """Return whether an action continues after a stage.

    A stage is stopped as soon as it cannot pass any more, and passes once all of its outcomes are known.

    Args:
        stage: the stage; not all of its rows need be done.
        results: of the rows that it watches; one that is missing is gone.
    """
    found = [results.get(each, "gone") for each in stage.watched]
    failed, unknown = found.count("failed"), found.count("open")
    later = -(-stage.size // stage.interval) - len(found)
    expected = len(found) + later - found.count("gone")
    if failed > expected * FAILING_SHARE:
        return Judgement(
            "stop", f"{failed} of {expected} first attempts failed in a stage of {plural(stage.size, 'row')}"
        )
    if stage.room:
        return Judgement("continue")
    if unknown:
        return Judgement(
            "wait",
            f"waits for {unknown} of {expected} first attempts in a stage of {plural(stage.size, 'row')}",
        )
    return Judgement("continue")
