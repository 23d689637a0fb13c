"""What is made from the metrics of the code: ``python -m tests.docs.observability --write``.

The reference page, the alert rules and the dashboard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from flowactions_plugin.telemetry.names import METRICS
from tests.docs import alerts, dashboard, generated

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
    DOCS / "observability" / "alerts.yaml": alerts.render,
    DOCS / "observability" / "dashboard.json": dashboard.render,
}


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, FILES))
