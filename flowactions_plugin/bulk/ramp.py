"""The rate of a bulk action, and the rule by which its canary stops it. Pure, no I/O.

With a canary, an action does so many rows first, and waits for their first attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from flowactions_plugin.log_text import plural

BURST_SECONDS: Final = 1.0
"""A process that was late makes up for so much time at the most."""

FAILING_SHARE: Final = 0.1
"""A canary of which a larger part fails stops the action."""

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


class Judgement(NamedTuple):
    """What the outcomes of a canary say.

    Attributes:
        verdict: ``continue``; ``wait`` for outcomes; ``stop``.
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


def judge(size: int, results: Sequence[Result]) -> Judgement:
    """Return whether an action continues: it stops as soon as its canary cannot pass any more.

    Args:
        size: how many rows the canary has.
        results: of those that were done.
    """
    failed, unknown = results.count("failed"), results.count("open")
    expected = size - results.count("gone")
    if failed > expected * FAILING_SHARE:
        return Judgement(
            "stop", f"{failed} of {expected} first attempts failed in a canary of {plural(size, 'row')}"
        )
    if unknown and len(results) == size:
        return Judgement(
            "wait", f"waits for {unknown} of {expected} first attempts in a canary of {plural(size, 'row')}"
        )
    return Judgement("continue")
