"""The badge: JSON that shields.io reads from a URL (its endpoint format)."""

from __future__ import annotations

from flowactions_conformance.kit.outcomes import COUNTS_AS_FAILURE, Report, Status
from flowactions_conformance.kit.report.summary import claimed_as, proved, verdict


def badge(report: Report) -> dict[str, object]:
    """Return what ``badge.json`` holds. Only a run of all checks, all of which passed, gives a green one."""
    message, colour = _said(report)
    return {
        "schemaVersion": 1,
        "label": f"flowactions {report.contract}",
        "message": message,
        "color": colour,
        "isError": verdict(report) in {"failed", "error", "interrupted"},
    }


def _said(report: Report) -> tuple[str, str]:
    kind = verdict(report)
    if kind == "error":
        return "error", "lightgrey"
    if kind in {"selected_passed", "interrupted"}:
        return "not proved", "lightgrey"
    failed = sum(result.status in COUNTS_AS_FAILURE for result in report.results)
    if kind == "failed":
        return (f"{failed} failed" if failed else "not proved"), "red"
    named = ", ".join(claimed_as(report, each) for each in proved(report)) or "no whole profile"
    known, untried = (
        sum(result.status is status for result in report.results) for status in (Status.KNOWN, Status.NOT_TRIED)
    )
    left = ", ".join(f"{count} {word}" for count, word in ((known, "known"), (untried, "not tried")) if count)
    colour = "yellow" if known else "yellowgreen" if untried else "brightgreen"
    return (f"{named} ({left})" if left else named), colour
