"""The report as files: ``report.json`` with its schema, and ``report.html``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.outcomes import Report
from flowactions_conformance.kit.report.html import page
from flowactions_conformance.kit.report.summary import ProfileSummary, Verdict, profiles, verdict


class WrittenReport(Report, frozen=True, kw_only=True):
    """What ``report.json`` holds: the report, and what follows from it.

    Args:
        schema_version: of this file; one more when a reader of the last one could go wrong.
        verdict: ``proved`` only after a run of all checks.
        exit_status: of the command.
        profiles: all that there are.
    """

    schema_version: Literal[1] = 1
    verdict: Verdict
    exit_status: int
    profiles: tuple[ProfileSummary, ...]


def written(report: Report) -> WrittenReport:
    """Return the report as it is written."""
    return WrittenReport(
        **msgspec.structs.asdict(report),
        verdict=verdict(report),
        exit_status=report.exit_status,
        profiles=profiles(report),
    )


def write_report(report: Report, folder: Path) -> Path:
    """Write the three files; the folder is made, and files of those names in it are replaced.

    Returns:
        The page's path.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (
        ("report", encodable(msgspec.to_builtins(written(report)))),
        ("report.schema", schema()),
    ):
        json = msgspec.json.format(msgspec.json.encode(data), indent=2)
        (folder / f"{name}.json").write_bytes(json + b"\n")
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8", errors="backslashreplace")
    return path


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``report.json``."""
    made = msgspec.json.schema(WrittenReport)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of the flowactions conformance kit",
        **made,
    }
