"""The report as a file: ``report.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.outcomes import Report
from flowactions_conformance.kit.report.summary import profiles, verdict

SCHEMA_VERSION = 1
"""Of ``report.json``; one more when a reader of the last one could go wrong."""


def write_report(report: Report, folder: Path) -> Path:
    """Write the file; the folder is made, and a file of that name in it is replaced.

    Returns:
        The file's path.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    follows = {
        "schemaVersion": SCHEMA_VERSION,
        "verdict": verdict(report),  # "proved" only after a run of all checks
        "exitStatus": report.exit_status,
        "profiles": profiles(report),
    }
    data = msgspec.json.encode(encodable(msgspec.to_builtins({**follows, **msgspec.to_builtins(report)})))
    path = folder / "report.json"
    path.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    return path
