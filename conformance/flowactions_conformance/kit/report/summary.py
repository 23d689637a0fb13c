"""A run in short: a state for each profile, and what may be said of the host."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, TypeAlias

from flowactions_conformance.kit.outcomes import CheckResult, Report, Status
from flowactions_conformance.kit.registry import PROFILES
from flowactions_conformance.kit.under_test import Wire

State: TypeAlias = Literal["passed", "not_tried", "failed", "error", "not_claimed", "not_run"]
Verdict: TypeAlias = Literal["proved", "selected_passed", "failed", "error", "interrupted"]

ATTENTION: Final = (Status.ERROR, Status.FAIL, Status.NOT_TESTABLE, Status.WARN, Status.NOT_TRIED)
"""Outcomes that are shown with all that is known of them, the worst first."""
WORDS: Final = {
    Status.PASS: "passed",
    Status.FAIL: "failed",
    Status.WARN: "with a warning",
    Status.NOT_TESTABLE: "not testable",
    Status.NOT_TRIED: "not tried",
    Status.ERROR: "in error",
    Status.NOT_CLAIMED: "not claimed",
}
LACKED: Final = {"branch": "branches", "subflow": "sub-flows"}


class ProfileSummary(Wire, frozen=True):
    """One profile.

    Args:
        state: ``not_tried``: it would have passed, but for a required check that was not tried. ``not_run``: none of its checks was selected, or the run ended before.
        counts: outcome → number of checks.
    """

    name: str
    state: State
    counts: dict[Status, int]


def profiles(report: Report) -> tuple[ProfileSummary, ...]:
    """Return every profile in the kit's order, also those of which nothing was run."""
    return tuple(_summary(report, name) for name in PROFILES)


def _summary(report: Report, name: str) -> ProfileSummary:
    mine = [result for result in report.results if result.profile == name]
    counts = Counter(result.status for result in mine)
    state: State
    if counts.keys() <= {Status.NOT_CLAIMED}:
        state = "not_claimed" if report.claims and name not in report.claims else "not_run"
    elif counts[Status.ERROR]:
        state = "error"
    elif counts[Status.FAIL] or counts[Status.NOT_TESTABLE]:
        state = "failed"
    elif any(result.status is Status.NOT_TRIED and result.since for result in mine):
        state = "not_tried"
    else:
        state = "passed"
    return ProfileSummary(name=name, state=state, counts={key: count for key, count in counts.items() if count})


def verdict(report: Report) -> Verdict:
    """Return what the run shows of the host."""
    if report.interrupted:
        return "interrupted"
    if report.exit_status:
        return "error" if report.exit_status == 2 else "failed"
    return "selected_passed" if report.selected else "proved"


def headline(report: Report) -> str:
    """Return the verdict as a sentence."""
    if report.error is not None:
        return "ERROR: no check ran, so nothing is known about the host"
    if report.interrupted:
        beside = f", while {', '.join(report.running)} ran" if report.running else ""
        return f"INTERRUPTED after {len(report.results)} of {report.checks} checks{beside}: nothing is proved"
    counts = Counter(result.status for result in report.results)
    untried = counts[Status.NOT_TRIED]
    ran = len(report.results) - counts[Status.NOT_CLAIMED] - untried
    if not ran:
        return "NOT PROVED: no check ran"
    if report.exit_status:
        wrong = ", ".join(f"{counts[each]} {WORDS[each]}" for each in ATTENTION if counts[each])
        return f"{'ERROR' if report.exit_status == 2 else 'NOT PROVED'}: {wrong} of {ran + untried} checks"
    if report.selected:
        return f"PASSED: {ran} selected {'check' if ran == 1 else 'checks'}. Only a run of all checks proves a host"
    # Those of which no required check was left untried.
    proved = [_claimed(report, each.name) for each in profiles(report) if each.state == "passed"]
    left = f", {untried} {'check' if untried == 1 else 'checks'} not tried" if untried else ""
    named = ", ".join(proved) or "no profile as a whole"
    return f"PROVED for contract {report.contract}{left}: {named} ({ran} checks)"


def _claimed(report: Report, profile: str) -> str:
    """Return a profile's name, with what the host lacks of it."""
    lacks = " and ".join(LACKED[each] for each in report.lacks) if profile == "loops" else ""
    return f"{profile} without {lacks}" if lacks else profile


def worth_reading(report: Report) -> list[CheckResult]:
    """Return what did not simply pass, the worst first."""
    return [result for status in ATTENTION for result in report.results if result.status is status]


def counted(counts: dict[Status, int]) -> str:
    """Return counts as text, for example ``8 passed, 1 failed``."""
    return ", ".join(f"{counts[each]} {WORDS[each]}" for each in Status if counts.get(each))
