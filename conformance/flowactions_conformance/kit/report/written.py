"""The report as files: ``report.json``, and ``report.html``, a page that needs neither network nor script."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.outcomes import Report
from flowactions_conformance.kit.report.summary import (
    counted,
    headline,
    profiles,
    stale_lines,
    verdict,
    worth_reading,
)
from flowactions_conformance.kit.report.terminal import STATE_WORDS, printable, result_lines

SCHEMA_VERSION = 1
"""Of ``report.json``; one more when a reader of the last one could go wrong."""


def write_report(report: Report, folder: Path) -> Path:
    """Write both files; the folder is made, and files of those names in it are replaced.

    Returns:
        The page's path.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    follows = {
        "schemaVersion": SCHEMA_VERSION,
        "verdict": verdict(report),  # "proved" only after a run of all checks
        "exitStatus": report.exit_status,
        "profiles": profiles(report),
    }
    data = msgspec.json.encode(encodable(msgspec.to_builtins({**follows, **msgspec.to_builtins(report)})))
    (folder / "report.json").write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8", errors="backslashreplace")
    return path


def page(report: Report) -> str:
    """Return the page. Everything that a host says is escaped, and the policy allows nothing but the one style."""
    template, style = (
        resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("report.template.html", "report.css")
    )
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_said
    )
    return environment.from_string(template).render(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        style=Markup(style),  # noqa: S704  the kit's own
        headline=headline(report),
        verdict=verdict(report),
        report=report,
        profiles=profiles(report),
        words=STATE_WORDS,
        counted=counted,
        stale="\n".join(stale_lines(report)),
        look=worth_reading(report),
        lines=lambda result: "\n".join(result_lines(result)),
    )


def _said(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value))
