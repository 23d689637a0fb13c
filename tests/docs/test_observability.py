from __future__ import annotations

import json
import re

from flowactions_plugin.telemetry.names import METRICS
from tests.docs.alerts import RULES
from tests.docs.dashboard import queries
from tests.docs.log_events import calls
from tests.docs.observability import DOCS


def test_every_log_call_has_an_event() -> None:
    """A stable name, in lower case, with the part that it is about in front; one name is logged at one level."""
    found = list(calls())
    assert len(found) > 80
    assert [call.place for call in found if not re.fullmatch(r"[a-z_]+\.[a-z_]+", call.event)] == []
    levels = {(call.event, call.level) for call in found}
    assert len(levels) == len({event for event, _ in levels}), sorted(levels)


def test_rules_and_dashboard_use_metrics_that_exist() -> None:
    """Each name in a query is one of the registry; each metric is on the dashboard."""
    known = {metric.prometheus for metric in METRICS}
    histograms = {f"{metric.prometheus}_bucket" for metric in METRICS if metric.kind == "histogram"}
    expressions = [*queries(), *(rule.expression for rule in RULES)]
    used = {name for query in expressions for name in re.findall(r"flowactions_[a-z_]+", query)}
    assert used <= known | histograms
    shown = {name for query in queries() for name in re.findall(r"flowactions_[a-z_]+", query)}
    assert {name.removesuffix("_bucket") for name in shown} == known


def test_the_dashboard_is_one_that_grafana_can_place() -> None:
    """Panels have ids of their own and do not lie on each other."""
    panels = json.loads((DOCS / "observability" / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_names_are_those_of_opentelemetry_and_bounded() -> None:
    """Lower case with dots, a unit, a sentence; every label has all its values."""
    for metric in METRICS:
        assert re.fullmatch(r"flowactions(\.[a-z_]+)+", metric.name)
        assert metric.meaning.endswith(".")
        assert all(len(values) > 1 for values in metric.labels.values())
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
