"""A run in short: a state for each profile, and what may be said of the host."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final, Literal, TypeAlias

from flowactions_conformance.kit.outcomes import CheckResult, Report, Status
from flowactions_conformance.kit.registry import PROFILES
from flowactions_conformance.kit.under_test import Wire

State: TypeAlias = Literal["passed", "known", "not_tried", "failed", "error", "not_claimed", "not_run"]
Verdict: TypeAlias = Literal["proved", "selected_passed", "failed", "error", "interrupted"]

ATTENTION: Final = (Status.ERROR, Status.FAIL, Status.NOT_TESTABLE, Status.WARN, Status.KNOWN, Status.NOT_TRIED)
"""Outcomes that are shown with all that is known of them, the worst first."""
WORDS: Final = {
    Status.PASS: "passed",
    Status.FAIL: "failed",
    Status.WARN: "with a warning",
    Status.NOT_TESTABLE: "not testable",
    Status.NOT_TRIED: "not tried",
    Status.KNOWN: "known to fail",
    Status.ERROR: "in error",
    Status.NOT_CLAIMED: "not claimed",
}


LACKED: Final = {"branch": "branches", "subflow": "sub-flows"}


class ProfileSummary(Wire, frozen=True):
    """One profile.

    Args:
        state: ``known``: it would have passed, but for failures that the baseline accepts. ``not_tried``: but for a must
            that was not tried. ``not_run``: none of its checks was selected, or the run ended before.
        counts: outcome → number of checks.
    """

    name: str
    state: State
    counts: dict[Status, int]


def profiles(report: Report) -> tuple[ProfileSummary, ...]:
    """Return every profile in the kit's order, also those of which nothing was run."""
    return tuple(_summary(report, name) for name in PROFILES)


def _summary(report: Report, name: str) -> ProfileSummary:
    counts = Counter(result.status for result in report.results if result.profile == name)
    ran = sum(counts.values()) - counts[Status.NOT_CLAIMED]
    state: State
    if not ran:
        state = "not_claimed" if report.claims and name not in report.claims else "not_run"
    elif counts[Status.ERROR]:
        state = "error"
    elif counts[Status.FAIL] or counts[Status.NOT_TESTABLE]:
        state = "failed"
    elif any(_is_untried_must(result) for result in report.results if result.profile == name):
        state = "not_tried"
    else:
        state = "known" if counts[Status.KNOWN] else "passed"
    return ProfileSummary(name=name, state=state, counts=dict(counts))


def _is_untried_must(result: CheckResult) -> bool:
    return result.status is Status.NOT_TRIED and result.level == "must" and result.since is not None


def verdict(report: Report) -> Verdict:
    """Return what the run shows of the host."""
    if report.interrupted is not None:
        return "interrupted"
    if report.exit_status:
        return "error" if report.exit_status == 2 else "failed"
    return "selected_passed" if report.selected else "proved"


def headline(report: Report) -> str:
    """Return the verdict as a sentence."""
    if report.error is not None:
        return "ERROR: no check ran, so nothing is known about the host"
    if report.interrupted is not None:
        word = "INTERRUPTED" if report.interrupted == "signal" else "OUT OF TIME"
        return f"{word} after {len(report.results)} of {report.checks} checks: nothing is proved"
    counts = Counter(result.status for result in report.results)
    untried = counts[Status.NOT_TRIED]
    ran = len(report.results) - counts[Status.NOT_CLAIMED] - untried
    if not ran:
        return "NOT PROVED: no check ran"
    if report.exit_status:
        wrong = ", ".join(f"{counts[each]} {WORDS[each]}" for each in ATTENTION if counts[each])
        stale = ", ".join(report.stale_baseline)
        parts = [
            f"{wrong} of {ran + untried} checks" if wrong else "",
            f"stale in the baseline: {stale}" if stale else "",
        ]
        word = "ERROR" if report.exit_status == 2 else "NOT PROVED"
        return f"{word}: {'; '.join(part for part in parts if part)}"
    if report.selected:
        return f"PASSED: {ran} selected {'check' if ran == 1 else 'checks'}. Only a run of all checks proves a host"
    named = ", ".join(map(partial(claimed_as, report), proved(report))) or "no profile as a whole"
    known = f", {counts[Status.KNOWN]} known to fail" if counts[Status.KNOWN] else ""
    left = f", {untried} {'check' if untried == 1 else 'checks'} not tried" if untried else ""
    return f"PROVED for contract {report.contract}{left}: {named} ({ran} checks{known})"


def proved(report: Report) -> list[ProfileSummary]:
    """Return the profiles that a proved host may claim: none of whose musts was left untried."""
    return [each for each in profiles(report) if each.state in {"passed", "known"}]


def claimed_as(report: Report, profile: ProfileSummary) -> str:
    """Return a profile's name, with what the host lacks of it."""
    lacks = " and ".join(LACKED[each] for each in report.lacks) if profile.name == "loops" else ""
    return f"{profile.name} without {lacks}" if lacks else profile.name


def not_proved(report: Report) -> list[str]:
    """Return the profiles that the host does not claim, and of which nothing is proved."""
    return [each.name for each in profiles(report) if each.state == "not_claimed"]


def stale_lines(report: Report) -> list[str]:
    """Return why each stale entry of the baseline is to be removed there."""
    passed = {result.id for result in report.results if result.status is Status.PASS}
    older = f'is in the baseline with an "until" before contract {report.contract}'
    return [
        f"{id_} {'is in the baseline and passes' if id_ in passed else older}: remove it there"
        for id_ in report.stale_baseline
    ]


def worth_reading(report: Report) -> list[CheckResult]:
    """Return what did not simply pass, the worst first."""
    return [result for status in ATTENTION for result in report.results if result.status is status]


def counted(counts: dict[Status, int]) -> str:
    """Return counts as text, for example ``8 passed, 1 failed``."""
    return ", ".join(f"{counts[each]} {WORDS[each]}" for each in Status if counts.get(each))
