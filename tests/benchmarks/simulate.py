"""What an hour's outage of a receiver does to the queue, and how long it takes to recover: a simulation.

    python -m tests.benchmarks.simulate [--plot docs/images/recovery.svg] [--json]

One destination gets webhooks at a steady rate; for an hour it either refuses connections or takes them and never answers.
The rules of backoff, attempts and states are the plugin's own functions; claims, slots and per-destination limits are counted in steps of
a second. Rows that are dead when the receiver is back are replayed then, with all their attempts.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowactions_plugin.egress.attempt import DEADLINE_SECONDS, Outcome
from flowactions_plugin.queue.rules import transition
from tests.benchmarks.field import show

BEFORE = 600
OUTAGE = 3600
LIMIT = 6 * 3600
MAX_ATTEMPTS = 4
ANSWER_SECONDS = 0.05
PER_DESTINATION = 10
WORKER_PER_S = 4000
TICK_SECONDS = 60
CLAIM_LIMIT = 50

DELIVERED = Outcome(0, 0, status_code=200)
FAILED = Outcome(0, 0, error="down")


class Case(NamedTuple):
    """A way to run, and a load."""

    mode: str
    outage: str
    rate_per_s: float


CASES = (
    Case("scheduled", "refuses", 0.5),
    Case("scheduled", "hangs", 0.5),
    Case("continuous", "refuses", 20),
    Case("continuous", "hangs", 20),
    Case("continuous", "hangs", 100),
)


class Course(NamedTuple):
    """What came of it.

    Attributes:
        backlog: rows that were neither delivered nor dead, for each second.
        peak: the most of them.
        replayed: rows that were dead when the receiver was back.
        recovery_minutes: from then until no row waited longer than the mode lets it when nothing is wrong;
            ``None``: not within six hours.
    """

    backlog: list[int]
    peak: int
    replayed: int
    recovery_minutes: float | None


def simulate(case: Case) -> Course:
    """Run a case."""
    due: list[tuple[float, int, int]] = []  # due at, number, attempts
    dead: list[int] = []
    backlog: list[int] = []
    arrived, owed, replayed = 0, 0.0, 0
    recovered: int | None = None
    usual = case.rate_per_s * (TICK_SECONDS if case.mode == "scheduled" else 1)
    for second in range(BEFORE + OUTAGE + LIMIT):
        down = BEFORE <= second < BEFORE + OUTAGE
        owed += case.rate_per_s
        while owed >= 1:
            heapq.heappush(due, (second, arrived, 0))
            arrived, owed = arrived + 1, owed - 1
        if second == BEFORE + OUTAGE:
            replayed = len(dead)
            for number in dead:
                heapq.heappush(due, (second, number, 0))
            dead.clear()
        for _ in range(_attempts(case, second, down=down)):
            if not due or due[0][0] > second:
                break
            _, number, attempts = heapq.heappop(due)
            change = transition(attempts + 1, MAX_ATTEMPTS, FAILED if down else DELIVERED)
            if change.status == "retrying":
                heapq.heappush(due, (second + change.delay_seconds, number, attempts + 1))
            elif change.status == "dead":
                dead.append(number)
        backlog.append(len(due))
        if second >= BEFORE + OUTAGE and len(due) <= usual + 1:
            recovered = second
            break
    minutes = None if recovered is None else (recovered - BEFORE - OUTAGE) / 60
    return Course(backlog, max(backlog), replayed, minutes)


def _attempts(case: Case, second: int, *, down: bool) -> int:
    """Give how many attempts this second has room for."""
    if case.mode == "scheduled":
        return CLAIM_LIMIT if second % TICK_SECONDS == 0 else 0
    if down and case.outage == "refuses":
        return WORKER_PER_S
    return int(PER_DESTINATION / (DEADLINE_SECONDS if down else ANSWER_SECONDS))


def row_of(case: Case, course: Course) -> str:
    """Write a row of the table in the page on scaling."""
    minutes = "not within 6 h" if course.recovery_minutes is None else f"{course.recovery_minutes:.0f} min"
    return f"| {case.mode} | {case.outage} | {case.rate_per_s:g}/s | {course.peak:,} | {course.replayed:,} | {minutes} |"


def plot(courses: Sequence[tuple[Case, Course]]) -> str:
    """Draw the backlogs, each as a share of its own peak, as SVG."""
    width, height, left, top = 760, 300, 50, 20
    colours = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#64473a")
    longest = max(len(course.backlog) for _, course in courses)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 80} {height + 170}" font-family="sans-serif"'
            ' font-size="12">'
        ),
        f'<rect width="{width + 80}" height="{height + 170}" fill="white"/>',
        (
            f'<rect x="{left + BEFORE / longest * width:.1f}" y="{top}" width="{OUTAGE / longest * width:.1f}"'
            f' height="{height}" fill="#f3e2e2"/>'
        ),
        f'<text x="{left + (BEFORE + 200) / longest * width:.1f}" y="{top + 14}">receiver down</text>',
        f'<path d="M{left},{top} v{height} h{width}" fill="none" stroke="#444"/>',
        f'<text x="{left - 40}" y="{top + 5}">peak</text><text x="{left - 15}" y="{top + height}">0</text>',
    ]
    for minute in range(0, longest // 60 + 1, 30):
        x = left + minute * 60 / longest * width
        lines.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{minute} min</text>')
    for index, (case, course) in enumerate(courses):
        points = " ".join(
            f"{left + second / longest * width:.1f},{top + height - course.backlog[second] / course.peak * height:.1f}"
            for second in range(0, len(course.backlog), 20)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[index]}" stroke-width="2"/>')
        y = top + height + 45 + 20 * index
        label = f"{case.mode}, {case.outage}, {case.rate_per_s:g}/s: peak {course.peak:,} rows waiting"
        lines.append(f'<path d="M{left},{y - 4} h30" stroke="{colours[index]}" stroke-width="2"/>')
        lines.append(f'<text x="{left + 40}" y="{y}">{label}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    courses = [(case, simulate(case)) for case in CASES]
    if options.plot:
        options.plot.write_text(plot(courses))
    if options.json:
        found = [{**case._asdict(), **course._asdict(), "backlog": None} for case, course in courses]
        show({"cases": found}, as_json=True)
    else:
        print("\n".join(row_of(case, course) for case, course in courses))


if __name__ == "__main__":
    main()
