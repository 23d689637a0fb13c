"""What is made from the metrics of the code: ``python -m tests.docs.observability --write`` writes the alert rules and the dashboard.

The site has the metrics below their page, and ``python -m tests.docs.observability --metrics`` prints them.
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


def metrics() -> str:
    """Describe each metric, for the site and for ``--metrics``."""
    return "\n".join(_metrics()) + "\n"


def _metrics() -> Iterator[str]:
    for metric in METRICS:
        yield from (f"### `{metric.name}`", "", metric.meaning, "")
        yield f"- kind: {metric.kind}" + (f", in {_unit(metric.unit)}" if metric.unit else "")
        yield f"- in Prometheus: `{metric.prometheus}`"
        for label, values in metric.labels.items():
            yield f"- label `{label}`: {', '.join(f'`{value}`' for value in values)}"
        if metric.buckets:
            yield f"- buckets up to: {', '.join(f'{each:g}' for each in metric.buckets)}"
        yield ""


def _unit(unit: str) -> str:
    return "seconds" if unit == "s" else f"`{unit}`"


FILES: Final[Mapping[Path, Callable[[], str]]] = {
    DOCS / "observability" / "alerts.yaml": alerts.render,
    DOCS / "observability" / "dashboard.json": dashboard.render,
}


if __name__ == "__main__":
    if "--metrics" in sys.argv:
        sys.stdout.write(metrics())
        sys.exit()
    sys.exit(generated.run(COMMAND, __doc__, FILES))
