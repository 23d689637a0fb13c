"""The report on a terminal: one line for each profile, and all that is known of each failure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final

from flowactions_conformance.kit.outcomes import CheckResult, Report, Status
from flowactions_conformance.kit.report.summary import (
    ProfileSummary,
    counted,
    headline,
    not_proved,
    profiles,
    stale_lines,
    verdict,
    worth_reading,
)

SHOWN_MOMENTS: Final = 40
RED, YELLOW, GREEN, DIM, BOLD = "31", "33", "32", "2", "1"
COLOUR_OF: Final = {
    Status.PASS: GREEN,
    Status.FAIL: RED,
    Status.NOT_TESTABLE: RED,
    Status.NOT_TRIED: YELLOW,
    Status.ERROR: RED,
    Status.WARN: YELLOW,
    Status.KNOWN: YELLOW,
    Status.NOT_CLAIMED: DIM,
}
STATE_WORDS: Final = {
    "passed": ("PASS", GREEN),
    "known": ("KNOWN", YELLOW),
    "failed": ("FAIL", RED),
    "error": ("ERROR", RED),
    "not_tried": ("not proved: a must was not tried", YELLOW),
    "not_claimed": ("not claimed, and so not proved", DIM),
    "not_run": ("not run", DIM),
}


class Paint:
    """Colours, or none.

    Args:
        colours: whether there are any.
    """

    def __init__(self, *, colours: bool = False) -> None:
        self._colours = colours

    def __call__(self, text: str, *codes: str) -> str:
        """Return the text in colour."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._colours and codes else text


PLAIN: Final = Paint()


def printable(text: str) -> str:
    """Return a host's text without what controls a terminal; its lines and tabs stay."""
    return re.sub(
        r"[^\n\t -~\u00a0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]",
        lambda found: f"\\x{ord(found[0]):02x}",
        text,
    )


def report_text(report: Report, paint: Paint = PLAIN) -> str:
    """Return the whole report."""
    return "\n".join(_lines(report, paint)) + "\n"


def _lines(report: Report, paint: Paint) -> Iterator[str]:
    yield paint(f"FlowActions conformance of {printable(report.host)}", BOLD)
    strict = ", strict" if report.strict else ""
    yield paint(f"contract {report.contract}, {report.mode}{strict}, {report.started_at}", DIM)
    for name, value in tested_lines(report):
        yield paint(f"  {name:<9} {printable(value)}", DIM)
    yield ""
    if report.error is not None:
        yield from _labelled("ERROR", report.error.message, paint, RED)
        yield from _causes(report.error.causes)
        if report.output and report.output.splitlines()[-1] not in report.error.message:
            yield "  the last lines that the host printed"
            yield textwrap.indent(printable("\n".join(report.output.splitlines()[-20:])), "    ")
        yield ""
    for result in worth_reading(report):
        yield from result_lines(result, paint)
        yield ""
    yield from profile_lines(report, paint)
    yield from closing_lines(report, paint)


def tested_lines(report: Report) -> Iterator[tuple[str, str]]:
    """Return what was tested, each with its name."""
    module = report.host.partition(":")[0]
    is_served = report.mode == "served"
    yield (
        "host",
        report.tested.host
        or f"{module}, of {'a host that runs elsewhere' if is_served else 'no distribution'}",
    )
    if report.tested.plugin:  # a served host whose probe has not said it is not known
        yield "plugin", report.tested.plugin
        yield "python", f"{report.tested.python}, {report.tested.platform}"
    yield "database", report.tested.database
    yield "seed", str(report.seed)


def profile_lines(report: Report, paint: Paint = PLAIN) -> Iterator[str]:
    """Return one line for each profile, nothing when no check was reached."""
    if report.error is None:
        for profile in profiles(report):
            yield _profile_line(profile, paint)
        yield ""


def closing_lines(report: Report, paint: Paint = PLAIN) -> Iterator[str]:
    """Return the verdict, and what it does not say."""
    yield from stale_lines(report)
    good = verdict(report) in {"proved", "selected_passed"}
    yield f"{paint(headline(report), BOLD, GREEN if good else RED)}, in {report.seconds:.1f} s"
    if report.error is None and not_proved(report):
        yield f"Not claimed, and so not proved: {', '.join(not_proved(report))}"


def _profile_line(profile: ProfileSummary, paint: Paint) -> str:
    word, colour = STATE_WORDS[profile.state]
    if profile.state in {"not_claimed", "not_run"}:
        return f"{profile.name:<12}{paint(word, colour)}"
    return f"{profile.name:<12}{paint((word + ' ').ljust(6), colour)}{counted(profile.counts)}"


def result_lines(result: CheckResult, paint: Paint = PLAIN) -> Iterator[str]:
    """Return all that is known of a check that did not simply pass."""
    colour = COLOUR_OF[result.status]
    provisional = "" if result.since else ", provisional: it will be required by a later contract"
    word = result.status.name.replace("_", " ")
    yield f"{paint(f'{word}  {result.id}', BOLD, colour)}  {printable(result.title)}"
    yield paint(f"  {result.profile}, {result.level}{provisional}", DIM)
    yield from _labelled("clause", result.clause, paint)
    finding = result.finding
    if finding is not None:
        yield from _labelled("what", finding.message, paint, BOLD)
        yield from _labelled("expected", finding.expected, paint)
        yield from _labelled("actual", finding.actual if finding.actual != finding.message else "", paint)
    if result.known:
        yield from _labelled("accepted", result.known, paint)
    if finding is not None and result.status is not Status.KNOWN:
        yield from _causes(finding.causes)
    if finding is not None and finding.logged:
        yield "  the host logged meanwhile"
        for line in finding.logged:
            yield paint(f"    {printable(line)}", DIM)
    if result.status is not Status.KNOWN:
        yield from _timeline(result, paint)
    if result.rerun:
        yield from _labelled("rerun", result.rerun, paint)


def _timeline(result: CheckResult, paint: Paint) -> Iterator[str]:
    if result.timeline:
        yield "  timeline"
        left_out = len(result.timeline) - SHOWN_MOMENTS
        if left_out > 0:
            yield f"    … {left_out} earlier"
        for moment in result.timeline[-SHOWN_MOMENTS:]:
            yield paint(f"    {moment.at:7.3f}  {moment.source:<9} {printable(moment.text)}", DIM)


def _causes(causes: tuple[str, ...]) -> Iterator[str]:
    if causes:
        yield "  usual causes"
        for number, cause in enumerate(causes, 1):
            yield f"    {number}. {printable(cause)}"


def _labelled(label: str, text: str, paint: Paint, *codes: str) -> Iterator[str]:
    if text:
        first, *rest = printable(text).split("\n")
        yield f"  {label:<9} {paint(first, *codes)}"
        for line in rest:
            yield f"            {line}"
