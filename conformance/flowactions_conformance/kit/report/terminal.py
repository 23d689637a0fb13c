"""The report on a terminal: one line for each profile, and all that is known of each failure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from flowactions_conformance.kit.outcomes import CheckResult, Report, Status
from flowactions_conformance.kit.report.summary import (
    counted,
    headline,
    profiles,
    verdict,
    worth_reading,
)

SHOWN_MOMENTS: Final = 40
RED, YELLOW, GREEN, DIM, BOLD = "31", "33", "32", "2", "1"
YELLOW_ONES: Final = {Status.NOT_TRIED, Status.WARN}
STATE_WORDS: Final = {
    "passed": ("PASS", GREEN),
    "failed": ("FAIL", RED),
    "error": ("ERROR", RED),
    "not_tried": ("not proved: a required check was not tried", YELLOW),
    "not_claimed": ("not claimed, and so not proved", DIM),
    "not_run": ("not run", DIM),
}


Paint: TypeAlias = Callable[..., str]
"""Gives a text and the codes of its colours for a terminal, or for what is none."""


def coloured(text: str, *codes: str) -> str:
    """Return the text in colour."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text


def plain(text: str, *_: str) -> str:
    """Return the text as it is."""
    return text


def printable(text: str) -> str:
    """Return a host's text without what controls a terminal; its lines and tabs stay."""
    return re.sub(
        r"[^\n\t -~\u00a0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]",
        lambda found: f"\\x{ord(found[0]):02x}",
        text,
    )


def report_text(report: Report, paint: Paint = plain) -> str:
    """Return the whole report."""
    return "\n".join(_lines(report, paint)) + "\n"


def _lines(report: Report, paint: Paint) -> Iterator[str]:
    yield paint(f"FlowActions conformance of {printable(report.host)}", BOLD)
    yield paint(f"contract {report.contract}, {report.mode}, {report.started_at}", DIM)
    for name, value in {**report.tested, "seed": str(report.seed)}.items():
        yield paint(f"  {name:<9} {printable(value)}", DIM)
    yield ""
    if report.error is not None:
        yield from _labelled("ERROR", report.error.message, paint, RED)
        printed = report.output.splitlines()[-20:]
        if printed and printed[-1] not in report.error.message:
            yield "  the last lines that the host printed"
            yield textwrap.indent(printable("\n".join(printed)), "    ")
        yield ""
    for result in worth_reading(report):
        yield from result_lines(result, paint)
        yield ""
    if report.error is None:
        for profile in profiles(report):
            word, colour = STATE_WORDS[profile.state]
            counts = "" if profile.state in {"not_claimed", "not_run"} else counted(profile.counts)
            yield f"{profile.name:<12}{paint(f'{word} '.ljust(6) if counts else word, colour)}{counts}"
        yield ""
    good = verdict(report) in {"proved", "selected_passed"}
    yield f"{paint(headline(report), BOLD, GREEN if good else RED)}, in {report.seconds:.1f} s"
    unclaimed = [each.name for each in profiles(report) if each.state == "not_claimed"]
    if report.error is None and unclaimed:
        yield f"Not claimed, and so not proved: {', '.join(unclaimed)}. Add what your host has to the driver's claims"


def result_lines(result: CheckResult, paint: Paint = plain) -> Iterator[str]:
    """Return all that is known of a check that did not simply pass."""
    provisional = "" if result.since else ", provisional: it will be required by a later contract"
    word = f"{result.status.name.replace('_', ' ')}  {result.id}"
    yield f"{paint(word, BOLD, YELLOW if result.status in YELLOW_ONES else RED)}  {printable(result.title)}"
    yield paint(f"  {result.profile}{provisional}", DIM)
    yield from _labelled("clause", result.clause, paint)
    if (finding := result.finding) is not None:
        yield from _labelled("what", finding.message, paint, BOLD)
        yield from _labelled("expected", finding.expected, paint)
        yield from _labelled("actual", finding.actual if finding.actual != finding.message else "", paint)
        if finding.causes:
            yield "  usual causes"
        for number, cause in enumerate(finding.causes, 1):
            yield f"    {number}. {printable(cause)}"
        if finding.logged:
            yield "  the host logged meanwhile"
        for line in finding.logged:
            yield paint(f"    {printable(line)}", DIM)
        yield from _timeline(result, paint)
    yield from _labelled("rerun", result.rerun, paint)


def _timeline(result: CheckResult, paint: Paint) -> Iterator[str]:
    if result.timeline:
        yield "  timeline"
        if (left_out := len(result.timeline) - SHOWN_MOMENTS) > 0:
            yield f"    … {left_out} earlier"
        for moment in result.timeline[-SHOWN_MOMENTS:]:
            yield paint(f"    {moment.at:7.3f}  {moment.source:<9} {printable(moment.text)}", DIM)


def _labelled(label: str, text: str, paint: Paint, *codes: str) -> Iterator[str]:
    if text:
        first, *rest = printable(text).split("\n")
        yield f"  {label:<9} {paint(first, *codes)}"
        for line in rest:
            yield f"            {line}"
