"""Checks of ``flowactions doctor`` on deliveries: the verdict, workers, what waits, and destinations that fail now.

What only one organization can have caused is a warning: a receiver of its own that fails, a flow that is wrong.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.cli.checks import NAMED, Checks, and_more
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.destinations import paused_words
from flowactions_plugin.cli.output import moment
from flowactions_plugin.insights.curl import quoted
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Delivery, Overview, Verdict, Worker
from flowactions_plugin.insights.verdict import ABSENT_MS, LATE_MS, SKEW_MS, WRONG_CLOCK_MS, clock_words
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.retention import HOUR_MS

NODE_FAILURES: Final = 3
"""From so many failed deliveries on, a node is judged."""

NODE_READ: Final = 50
"""How many of a node's last deliveries decide whether most of them fail."""

NODES_JUDGED: Final = 2 * NAMED
"""How many nodes of the overview are judged, those with the most failures first."""

NO_ATTEMPT: Final = frozenset({"waits", "not_sent", "cancelled"})
"""Kinds of failure that say nothing of a flow: it waits for the host, was ended by the plugin, or by a person."""

ADVICE: Final = {
    "stalled": "see that a worker runs and reaches the database: flowactions workers",
    "unwritable": "give the database room, or the right to write: the check 'writing' says which",
    "failing": "see which destinations fail: flowactions destinations list",
}
"""What to do about a verdict."""

SYNCHRONIZE: Final = (
    "synchronize both clocks (NTP): signatures carry the time of the machine that delivers, and receivers refuse those of "
    "five minutes away"
)
"""What to do about a clock that differs from the database's."""

START: Final = "start the host, or 'flowactions worker' where it leaves delivering to it"


async def check_deliveries(checks: Checks, context: CommandContext) -> str | None:
    """Check whether deliveries work; return the verdict, ``None`` when the database cannot be asked."""
    queries = Insights.of(context.database, context.settings)
    try:
        overview = await queries.overview(Scope(), NODES_JUDGED)
        now = int(await context.database.time() * 1000)
        _workers(checks, overview, now)
        _clocks(checks, overview.workers)
        _blocked(checks, overview)
        _quarantine(checks, overview)
        for each in overview.inbound:
            checks.warn(
                "inbound",
                f"no event of the {each.provider} provider was processed within the last hour; "
                f"{plural(each.requests, 'request was', 'requests were')} {each.result} since {moment(each.since)}: "
                f"{printable(each.reason or 'no reason is known', message=True)}",
                "see the page 'Inbound events'",
            )
        if overview.paused.destinations:
            advice = "see by whom and why: flowactions destinations list"
            checks.warn("paused", paused_words(overview.paused), advice)
        await _nodes(checks, queries, overview, await _destinations(checks, queries))
    except FlowActionsError as exc:
        checks.fail("deliveries", str(exc))
        return None
    if overview.alerts is not None:
        checks.warn(
            "alerts",
            f"alerts do not arrive at {printable(overview.alerts.destination)}: "
            f"{plural(overview.alerts.failures_in_row, 'failure')} in a row since {moment(overview.alerts.failing_since)}: "
            f"{printable(overview.alerts.last_reason, message=True)}",
            _see_answers(destination=overview.alerts.destination),
        )
    _verdict(checks, overview)
    return overview.verdict.state


def _verdict(checks: Checks, overview: Overview) -> None:
    verdict, more = overview.verdict, "" if overview.due_exact else "+"
    said = f"{verdict.state}: {verdict.reason} (due {overview.due}{more}, dead {overview.dead})"
    if verdict.state in ADVICE:
        checks.fail("deliveries", said, ADVICE[verdict.state])
    elif verdict.state == "no_worker":
        checks.warn("deliveries", said, "see that a worker runs: flowactions workers")
    elif verdict.failing_organization is not None:
        checks.warn("deliveries", said, _see_organization(verdict))
    elif overview.oldest_due_ms >= LATE_MS:
        advice = "see whose deliveries take the workers' time: flowactions outbox stats"
        if all(each.mode == "scheduled" for each in overview.workers if each.state == "alive"):
            advice += "; for any volume, set FLOWACTIONS_DELIVERY=continuous where workers run"
        checks.warn("deliveries", said, advice)
    else:
        checks.ok("deliveries", said)


def _see_organization(verdict: Verdict) -> str:
    whose = quoted(printable(verdict.failing_organization))
    return f"see what its receivers answer: flowactions destinations list --organization {whose}"


def _see_answers(**options: str) -> str:
    """Return the advice to look at deliveries, by the options of ``outbox list``."""
    wanted = " ".join(f"--{name} {quoted(value)}" for name, value in options.items())
    return f"see what it answers: flowactions outbox list {wanted}, then outbox show of one"


def _blocked(checks: Checks, overview: Overview) -> None:
    """Name each reason on this side for which deliveries wait. If several organizations wait for it, the check fails."""
    for each in overview.blocked[:NAMED]:
        number = each.deliveries
        waits = plural(number.number, "delivery waits", "deliveries wait", exact=number.exact)
        tell = checks.fail if each.organizations > 1 else checks.warn
        tell(
            "waiting",
            f"{waits}, without an attempt, since {moment(each.since)}: {printable(each.reason, message=True)}",
            "repair what is named, and they continue by themselves: flowactions outbox list --error waits",
        )
    more = len(overview.blocked) - NAMED
    and_more(
        checks, "waiting", more, ("reason", "reasons"), "flowactions outbox list --error waits", exact=False
    )


def _quarantine(checks: Checks, overview: Overview) -> None:
    """Name deliveries in quarantine: one of them may be what ends the workers."""
    for each in overview.quarantined[:NAMED]:
        checks.warn(
            "quarantine",
            f"{each.reclaims} workers ended while they sent a delivery to {printable(each.destination)} of organization "
            f"{printable(each.organization_id)}: it is sent alone",
            f"see whether it ends them: flowactions outbox show {quoted(each.id)}",
        )
    more = len(overview.quarantined) - NAMED
    what = ("delivery is in quarantine", "deliveries are in quarantine")
    and_more(checks, "quarantine", more, what, "flowactions workers", exact=False)


async def _nodes(checks: Checks, queries: Insights, overview: Overview, failing: Container[str]) -> None:
    """Name nodes that have several failed deliveries now, and most of whose last ones failed, if their destinations work."""
    wrong = 0
    for origin in overview.failures.nodes:
        organization, flow, node = origin.organization_id, origin.flow_id or "", origin.node_id or ""
        if origin.failed < NODE_FAILURES:
            break
        wanted = Filter(organization_id=organization, flow_id=origin.flow_id, node_id=origin.node_id)
        page = await queries.deliveries(Scope(), wanted, None, NODE_READ)
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
            _see_answers(organization=organization, flow=flow, node=node),
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


async def _destinations(checks: Checks, queries: Insights) -> frozenset[str]:
    """Name destinations that fail now, and return them."""
    found, number = await queries.status.failing(NAMED)
    for each in found:
        paused = "; it is paused" if each.paused else ""
        if each.limited_since is not None:
            paused += f"; it is limited to one delivery at a time since {moment(each.limited_since)}"
        checks.warn(
            "destination",
            f"{printable(each.destination)} of organization {printable(each.organization_id)} has failed "
            f"{each.failures_in_row} times in a row since {moment(each.failing_since)}: "
            f"{printable(each.last_reason, message=True)}{paused}",
            _see_answers(destination=each.destination),
        )
    see, what = (
        "flowactions destinations list, column 'failing since'",
        ("destination fails", "destinations fail"),
    )
    and_more(checks, "destination", number.number - len(found), what, see, exact=number.exact)
    return frozenset(each.destination for each in found)


def _workers(checks: Checks, overview: Overview, now: int) -> None:
    """Check whether workers are alive, and whether some do not answer."""
    alive = [each for each in overview.workers if each.state == "alive"]
    lost = [each for each in overview.workers if each.state == "stale" and each.last_seen_at > now - HOUR_MS]
    if not alive:
        _no_worker(checks, overview, now)
        return
    silent, replaced = _replaced(lost, alive)
    said = f"{len(alive)} alive, {sum(each.in_flight for each in alive)} in flight"
    if silent:
        some = ", ".join(
            f"{printable(each.name)} does not answer since {moment(each.last_seen_at)}"
            for each in silent[:NAMED]
        )
        more = f", and {len(silent) - NAMED} more do not" if len(silent) > NAMED else ""
        said += f"; {some}{more}: killed, crashed, frozen, or without the database"
    if replaced:
        said += (
            f"; {replaced} of the last hour ended without being stopped, and others were started in their place"
        )
    if silent or replaced > 1:
        advice = "see which: flowactions workers; then the last lines of their logs, and what their memory was"
        checks.warn("workers", said, advice)
    else:
        checks.ok("workers", said)


def _clocks(checks: Checks, workers: Sequence[Worker]) -> None:
    """Name live workers whose clock differs from the database's, as they last wrote it."""
    wrong = [each for each in workers if each.state == "alive" and abs(each.clock_ahead_ms or 0) >= SKEW_MS]
    for each in sorted(wrong, key=lambda each: -abs(each.clock_ahead_ms or 0))[:NAMED]:
        ahead = each.clock_ahead_ms or 0
        tell = checks.fail if abs(ahead) >= WRONG_CLOCK_MS else checks.warn
        tell("clock", f"the clock of worker {printable(each.name)} is {clock_words(ahead)}", SYNCHRONIZE)
    what = ("worker has a wrong clock", "workers have a wrong clock")
    and_more(checks, "clock", len(wrong) - NAMED, what, "flowactions workers")


def _replaced(lost: Sequence[Worker], alive: Sequence[Worker]) -> tuple[list[Worker], int]:
    """Return the workers that do not answer and were not started again, and how many were."""
    # One that began on the same machine after another was last seen has taken its place, and takes one place only.
    free = list(alive)
    silent: list[Worker] = []
    for each in lost:
        place = next(
            (
                other
                for other in free
                if other.host_name == each.host_name and other.started_at >= each.last_seen_at
            ),
            None,
        )
        if place is None:
            silent.append(each)
        else:
            free.remove(place)
    return silent, len(lost) - len(silent)


def _no_worker(checks: Checks, overview: Overview, now: int) -> None:
    """Say since when no worker is alive, and what waits for one."""
    seen = max((each.last_seen_at for each in overview.workers), default=None)
    since = "none was alive within the last day" if seen is None else f"none is alive since {moment(seen)}"
    waiting = overview.waiting
    if not waiting.number:
        checks.warn("workers", since, START)
        return
    rows = plural(waiting.number, "delivery waits", "deliveries wait", exact=waiting.exact)
    due = f", the oldest due since {moment(now - overview.oldest_due_ms)}" if overview.oldest_due_ms else ""
    said = f"{since}, although {rows}{due}"
    # As while the only one is restarted.
    if seen is not None and now - seen < ABSENT_MS:
        checks.warn("workers", said, START)
    else:
        checks.fail("workers", said, START)
