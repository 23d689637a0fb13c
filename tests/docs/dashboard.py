"""The Grafana dashboard, made from the names of the metrics."""

from __future__ import annotations

import json
from typing import Any, Final

from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.names import Metric

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH: Final = 12
HEIGHT: Final = 8
WINDOW: Final = "$__rate_interval"

_RED: Final = {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]}


def render() -> str:
    """Makes the file of the dashboard."""
    panels = [
        _panel("Verdict", _latest(names.VERDICT, "verdict"), kind="state-timeline", unit="short"),
        _panel(
            "Due deliveries",
            [
                (f"max({names.DUE.prometheus})", "due"),
                (f"sum({names.IN_FLIGHT.prometheus})", "in flight"),
                (f"sum({names.SLOW.prometheus})", "in flight, slow"),
            ],
        ),
        _panel("Age of the oldest due delivery", [(f"max({names.OLDEST_DUE.prometheus})", "age")], unit="s"),
        _panel("Age of what waits for something here", [(f"max({names.BLOCKED.prometheus})", "age")], unit="s"),
        _panel("Limited destinations", [(f"max({names.LIMITED.prometheus})", "limited")]),
        _panel("Clock offset of workers", [(f"max({names.CLOCK.prometheus})", "offset")], unit="s"),
        _panel("Enqueued per second, by origin", _rates(names.ENQUEUED, "origin"), unit="cps"),
        _panel("Not queued per second, by reason", _rates(names.REFUSED, "reason"), unit="cps"),
        _panel("Attempts per second, by outcome", _rates(names.ATTEMPTS, "outcome"), unit="cps"),
        _panel("Ended per second", _rates(names.ENDED, "status"), unit="cps"),
        _panel("From enqueue to delivery", _quantiles(names.LATENCY), unit="s"),
        _panel("Duration of attempts", _quantiles(names.ATTEMPT_DURATION), unit="s"),
        _panel("Duration of phases, 95th percentile", _by_label(names.PHASE_DURATION, "phase"), unit="s"),
        _panel("Expired leases per second", _rates(names.RECLAIMS, None), unit="cps"),
        _panel("Refused by the egress guard per second", _rates(names.REFUSALS, "at"), unit="cps"),
        _panel("Chat messages per second, by result", _rates(names.CHAT_SENDS, "result"), unit="cps"),
        _panel("Inbound requests per second, by result", _rates(names.INBOUND, "result"), unit="cps"),
    ]
    for number, panel in enumerate(panels):
        place = {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT}
        panel |= {"id": number + 1, "gridPos": place}
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "title": "flowactions",
        "uid": "flowactions",
        "description": "Deliveries, chat messages and inbound events. Generated: python -m tests.docs.observability --write",
        "schemaVersion": 39,
        "tags": ["flowactions"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"


def queries() -> list[str]:
    """Gives every query of the dashboard."""
    panels: list[dict[str, Any]] = json.loads(render())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def _panel(
    title: str, targets: list[tuple[str, str]], kind: str = "timeseries", unit: str = "short"
) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    if kind == "state-timeline":
        defaults |= {"thresholds": _RED, "color": {"mode": "thresholds"}}
    return {
        "title": title,
        "type": kind,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(targets)
        ],
    }


def _latest(metric: Metric, label: str) -> list[tuple[str, str]]:
    return [(f"max by ({label}) ({metric.prometheus})", f"{{{{{label}}}}}")]


def _rates(metric: Metric, label: str | None) -> list[tuple[str, str]]:
    rate = f"(rate({metric.prometheus}[{WINDOW}]))"
    if label is None:
        return [(f"sum{rate}", "all")]
    assert label in metric.labels
    return [(f"sum by ({label}) {rate}", f"{{{{{label}}}}}")]


def _quantiles(metric: Metric) -> list[tuple[str, str]]:
    rate = f"sum by (le) (rate({metric.prometheus}_bucket[{WINDOW}]))"
    return [(f"histogram_quantile({share}, {rate})", f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def _by_label(metric: Metric, label: str) -> list[tuple[str, str]]:
    rate = f"sum by (le, {label}) (rate({metric.prometheus}_bucket[{WINDOW}]))"
    return [(f"histogram_quantile(0.95, {rate})", f"{{{{{label}}}}}")]
