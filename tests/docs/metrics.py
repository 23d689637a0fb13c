"""The list of the metrics, made from their declarations: ``python -m tests.docs.metrics`` prints it. The site has it below its page on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from flowactions_plugin.telemetry.names import METRICS


def render() -> str:
    """Describe each metric."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
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


if __name__ == "__main__":
    sys.stdout.write(render())
