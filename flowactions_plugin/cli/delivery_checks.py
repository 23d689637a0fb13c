"""Checks of ``flowactions doctor`` on deliveries: the findings of the overview, and nodes most of whose deliveries fail."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.cli.checks import NAMED, Checks, and_more
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.findings import see, workers_words
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Delivery, Finding, Overview
from flowactions_plugin.log_text import printable
from flowactions_plugin.operators.scope import Scope

NODE_FAILURES: Final = 3
"""From so many failed deliveries on, a node is judged."""

NODE_READ: Final = 50
"""How many of a node's last deliveries decide whether most of them fail."""

NODES_JUDGED: Final = 2 * NAMED
"""How many nodes of the overview are judged, those with the most failures first."""

NO_ATTEMPT: Final = frozenset({"waits", "not_sent", "cancelled"})
"""Kinds of failure that say nothing of a flow: it waits for the host, was ended by the plugin, or by a person."""


async def check_deliveries(checks: Checks, context: CommandContext) -> str | None:
    """Check whether deliveries work; return the verdict, ``None`` when the database cannot be asked."""
    insights = Insights.of(context.database, context.settings)
    try:
        overview = await insights.overview(Scope(), NODES_JUDGED)
        now = int(await context.database.time() * 1000)
        failing = frozenset(each.destination for each in await insights.failing(NAMED))
        about = {each.about for each in overview.findings}
        if "workers" not in about:
            checks.ok("workers", workers_words(overview.workers, now))
        for each in overview.findings:
            if each.about != "deliveries":
                _tell(checks, each)
        await _nodes(checks, insights, overview, failing)
    except FlowActionsError as exc:
        checks.fail("deliveries", str(exc))
        return None
    of_verdict = [each for each in overview.findings if each.about == "deliveries"]
    for each in of_verdict:
        _tell(checks, each)
    if not of_verdict:
        verdict = overview.verdict
        checks.ok("deliveries", f"{verdict.state}: {verdict.reason} (due {overview.due}, dead {overview.dead})")
    return overview.verdict.state


def _tell(checks: Checks, finding: Finding) -> None:
    tell = checks.fail if finding.level == "failed" else checks.warn
    tell(finding.about, finding.words, finding.advice)


async def _nodes(checks: Checks, insights: Insights, overview: Overview, failing: Container[str]) -> None:
    """Name nodes that have several failed deliveries now, and most of whose last ones failed, if their destinations work."""
    wrong = 0
    for origin in overview.failures.nodes:
        organization, flow, node = origin.organization_id, origin.flow_id or "", origin.node_id or ""
        if origin.failed < NODE_FAILURES:
            break
        wanted = Filter(organization_id=organization, flow_id=origin.flow_id, node_id=origin.node_id)
        page = await insights.deliveries(Scope(), wanted, None, NODE_READ)
        rows = [each for each in page.rows if each.destination not in failing]
        ended = [each for each in rows if each.status == "delivered" or _has_failed(each)]
        bad = [each for each in ended if each.status != "delivered"]
        if len(bad) < NODE_FAILURES or 2 * len(bad) <= len(ended):
            continue
        wrong += 1
        if wrong > NAMED:
            continue
        checks.warn(
            "node",
            f"node {printable(node)} of flow {printable(flow)} of organization {printable(organization)}: {len(bad)} of its "
            f"last {len(ended)} deliveries have failed: {printable(bad[0].last_error, message=True)}",
            see(organization=organization, flow=flow, node=node),
        )
    and_more(
        checks,
        "node",
        wrong - NAMED,
        ("node has deliveries that fail", "nodes have deliveries that fail"),
        "flowactions outbox list --status dead",
        exact=False,
    )


def _has_failed(row: Delivery) -> bool:
    """Return whether a delivery has failed, by an attempt or because it may not be sent there."""
    return row.error_class is not None and row.error_class not in NO_ATTEMPT
