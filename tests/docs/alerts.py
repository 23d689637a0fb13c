"""The alert rules, made from the names of the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.names import Metric

GROUP: Final = "flowactions"

FROM_DATABASE: Final = 'reason!="blocked_url", reason!="too_large"'
"""Refusals that are no fault of the webhook."""


class Rule(NamedTuple):
    """An alert of Prometheus.

    Attributes:
        name: of the alert.
        expression: PromQL.
        minutes: for how long it has to hold.
        severity: ``critical``: nothing arrives; ``warning``: somebody should look today.
        summary: what is wrong, in a sentence.
        action: where to look.
    """

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    action: str


def series(metric: Metric, /, **labels: str) -> str:
    """Writes a selector of PromQL; a value that starts with ``!`` is one that is not wanted."""
    wanted = ", ".join(
        f'{label}!="{value[1:]}"' if value.startswith("!") else f'{label}="{value}"'
        for label, value in labels.items()
    )
    for label, value in labels.items():
        assert value.removeprefix("!") in metric.labels[label], (metric.name, label, value)
    return f"{metric.prometheus}{{{wanted}}}" if wanted else metric.prometheus


def share(part: str, whole: str, minutes: int) -> str:
    """Writes which share of events was of one kind."""
    return f"sum(rate({part}[{minutes}m])) / sum(rate({whole}[{minutes}m]))"


def increase(selector: str, minutes: int) -> str:
    """Writes how many events there were."""
    return f"sum(increase({selector}[{minutes}m]))"


def _rules() -> Iterator[Rule]:
    yield Rule(
        "FlowactionsStalled",
        f"max({series(names.VERDICT, verdict='stalled')}) == 1",
        1,
        "critical",
        "Deliveries are due, and no worker claims them.",
        "Is a worker running? The page of the workers and the log of each say; then the database.",
    )
    yield Rule(
        "FlowactionsUnwritable",
        f"max({series(names.VERDICT, verdict='unwritable')}) == 1",
        1,
        "critical",
        "The database takes no writes: nothing is queued, claimed or completed.",
        "Is it read-only, or full? The check 'writing' of flowactions doctor says which.",
    )
    yield Rule(
        "FlowactionsRefused",
        f"{increase(f'{names.REFUSED.prometheus}{{{FROM_DATABASE}}}', 15)} > 0",
        1,
        "critical",
        "Webhooks are not queued because of the database: walks go on without them.",
        "The label reason says why: read_only, full, unavailable or conflict. Then the database.",
    )
    yield Rule(
        "FlowactionsNoWorker",
        f"max({series(names.VERDICT, verdict='no_worker')}) == 1",
        5,
        "warning",
        "No worker is alive: what is queued will wait.",
        "Does a host or a worker run that delivers? FLOWACTIONS_HOST_WORKER=off leaves it to flowactions worker.",
    )
    yield Rule(
        "FlowactionsUnwatched",
        f"absent({names.VERDICT.prometheus})",
        10,
        "critical",
        "No process reports how deliveries stand: none is running, or none has OpenTelemetry configured.",
        "Are the hosts and workers running? Does what collects metrics reach them?",
    )
    yield Rule(
        "FlowactionsOldestDue",
        f"max({names.OLDEST_DUE.prometheus}) > 300",
        5,
        "warning",
        "Deliveries leave more than five minutes late.",
        "More due than workers send: more slots, or more workers; or one destination holds them up.",
    )
    yield Rule(
        "FlowactionsBlocked",
        # A delivery of a node that was deleted waits for up to six minutes, while the host is asked four times.
        f"max({names.BLOCKED.prometheus}) > 360",
        1,
        "critical",
        "Deliveries wait without an attempt, because something fails here: a method of the host, or the egress proxy.",
        "The overview and the check 'waiting' of flowactions doctor say what.",
    )
    yield Rule(
        "FlowactionsFailing",
        f"{share(series(names.ATTEMPTS, outcome='!delivered'), names.ATTEMPTS.prometheus, 15)} > 0.5",
        5,
        "warning",
        "More than half of the attempts fail.",
        "Which outcome, which destinations? If all fail alike, the way out of here is broken: proxy, DNS, certificates.",
    )
    yield Rule(
        "FlowactionsDead",
        f"{increase(series(names.ENDED, status='dead'), 15)} > 10",
        5,
        "warning",
        "Deliveries end without having arrived.",
        "Dead deliveries by destination and error; replay them when the cause is mended.",
    )
    yield Rule(
        "FlowactionsWorkersEnd",
        f"{increase(names.RECLAIMS.prometheus, 15)} > 10",
        5,
        "warning",
        "Workers end, or stand still, while they deliver: their leases expire, and others take over.",
        "Are workers restarted over and over? Look at their memory, and at the last lines of their logs.",
    )
    yield Rule(
        "FlowactionsClock",
        f"max({names.CLOCK.prometheus}) > 60",
        5,
        "warning",
        "A worker's clock is more than a minute from the database's: from four minutes on, receivers refuse what it signs.",
        "Which worker? flowactions status says so; then NTP on its machine.",
    )
    yield Rule(
        "FlowactionsChatFailing",
        f"{share(series(names.CHAT_SENDS, result='send_failed'), names.CHAT_SENDS.prometheus, 15)} > 0.5",
        5,
        "warning",
        "More than half of the chat messages are not sent.",
        "The log says which refusal of the provider, and what to do; a revoked connection is installed anew.",
    )
    yield Rule(
        "FlowactionsInboundRefused",
        f"{increase(series(names.INBOUND, result='refused'), 15)} > 10"
        f" unless {increase(series(names.INBOUND, result='processed'), 15)} > 0",
        5,
        "warning",
        "Events of a provider are refused, and none is taken: the signing secret is wrong.",
        "Compare AUTH_WEBHOOK_SIGNING_SECRET or CHAT_SIGNING_SECRET with the provider's.",
    )


RULES: Final = tuple(_rules())


def render() -> str:
    """Makes the file of the rules."""
    lines = [
        "# Alert rules for Prometheus. Generated: python -m tests.docs.observability --write",
        "groups:",
        f"  - name: {GROUP}",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            "        expr: >-",
            f"          {rule.expression}",
            f"        for: {rule.minutes}m",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f'          summary: "{rule.summary}"',
            f'          description: "{rule.action}"',
        ]
    return "\n".join(lines) + "\n"
