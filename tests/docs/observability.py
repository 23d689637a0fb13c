"""What is made from the metrics and log events of the code: ``python -m tests.docs.observability --write``.

Two reference pages, the alert rules and the dashboard.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from flowactions_plugin.telemetry.names import METRICS
from tests.docs import alerts, dashboard, log_events

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = "python -m tests.docs.observability --write"


def metrics_page() -> str:
    """Makes the reference page of the metrics."""
    return "\n".join(_metrics()) + "\n"


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield (
        "The plugin's metrics, by OpenTelemetry. Nothing is exported until the host configures the SDK: see\n"
        "[watch](../how-to/watch.md). The meter is named `flowactions`. The second name is the one that OpenTelemetry's exporters\n"
        f"give a metric in Prometheus. This page is generated: `{COMMAND}`."
    )
    yield ""
    yield (
        "Labels have only the values in this list, so the number of series is bounded. Organizations, destinations and\n"
        "ids are not labels: they are found on the operators' pages and in traces."
    )
    yield ""
    yield (
        "The gauges are read every 15 seconds, in each process whose lifespan is open. All processes read the same about the\n"
        "outbox: take the largest. A gauge that could not be read for a minute is not reported."
    )
    for metric in METRICS:
        yield from ("", f"## `{metric.name}`", "", metric.meaning, "")
        yield f"- kind: {metric.kind}" + (f", in {_unit(metric.unit)}" if metric.unit else "")
        yield f"- in Prometheus: `{metric.prometheus}`"
        for label, values in metric.labels.items():
            yield f"- label `{label}`: {', '.join(f'`{value}`' for value in values)}"
        if metric.buckets:
            yield f"- buckets up to: {', '.join(f'{each:g}' for each in metric.buckets)}"


def _unit(unit: str) -> str:
    return "seconds" if unit == "s" else f"`{unit}`"


FILES: Final[Mapping[Path, Callable[[], str]]] = {
    DOCS / "reference" / "metrics.md": metrics_page,
    DOCS / "reference" / "log-events.md": log_events.render,
    DOCS / "observability" / "alerts.yaml": alerts.render,
    DOCS / "observability" / "dashboard.json": dashboard.render,
}


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND.removesuffix(" --write"), description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files anew")
    if parser.parse_args().write:
        for path, render in FILES.items():
            path.write_text(render())
        return 0
    old = [path.name for path, render in FILES.items() if not path.exists() or path.read_text() != render()]
    if old:
        sys.stdout.write(f"out of date: {', '.join(old)}: {COMMAND}\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
