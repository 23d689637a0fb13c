"""What somebody should look at: the same findings for the overview, ``doctor`` and the gauges. Pure, no I/O.

What only one organization can have caused is a warning: a receiver of its own that fails, a flow that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, get_args
from urllib.parse import urlencode

from flowactions_plugin.insights.curl import quoted
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Finding, Level, Verdict, Worker, Worst
from flowactions_plugin.insights.verdict import ABSENT_MS, SKEW_MS, Facts, about, clock_words, moment
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.storage.retention import HOUR_MS

FAILING_COUNTED: Final = 200
"""Up to how many destinations that fail are counted."""

NAMED: Final = 5
"""How many of one kind are named; further ones are counted."""

MANY: Final = 5
"""From so many destinations on that fail at once, it is a failure of the service."""

MANY_KEPT: Final = 100_000
"""So many old versions of rows make statements noticeably slower."""

LEVELS: Final[tuple[Level, ...]] = get_args(Level)

SYNCHRONIZE: Final = (
    "synchronize both clocks (NTP): signatures carry the time of the machine that delivers, and receivers refuse those of "
    "five minutes away"
)
"""What to do about a clock that differs from the database's."""


def findings_of(facts: Facts) -> list[Finding]:
    """Return what somebody should look at beside the verdict, the worst first."""
    found = [
        *_workers(facts),
        *(_clocks(facts) if facts.sees_all else ()),
        *_blocked(facts),
        *_quarantined(facts),
        *_destinations(facts),
        *_others(facts),
    ]
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def worst_of(verdict: Verdict, findings: Sequence[Finding]) -> Worst:
    """Return the worst level; ``ok``: there is none but notes."""
    levels = {verdict.level, *(each.level for each in findings)}
    return "failed" if "failed" in levels else "warning" if "warning" in levels else "ok"


def see(**fields: str) -> str:
    """Return the advice to look at the deliveries that meet a filter."""
    where = quoted(str(Filter.of(**fields)))
    return f"see what it answers: flowactions outbox list --where {where}, then outbox show of one"


def listed(**fields: str | None) -> str:
    """Return the link to the deliveries that meet a filter."""
    return f"/deliveries?{urlencode({'q': str(Filter.of(**fields))})}"


def _more(
    about: str, number: int, one: str, several: str, advice: str, link: str, *, exact: bool = True
) -> Iterator[Finding]:
    """Give the number of those that are not named."""
    if number > 0:
        words = plural(number, f"more {one}", f"more {several}", exact=exact)
        yield Finding("warning", about, words, advice, link)


def _workers(facts: Facts) -> Iterator[Finding]:
    """Give whether workers are alive, and whether some do not answer."""
    if not facts.alive:
        yield _no_worker(facts)
        return
    silent, replaced = _lost(facts.workers, facts.now)
    if not facts.sees_all or not (silent or replaced > 1):
        return
    words = ""
    if silent:
        some = [f"{printable(each.name)} does not answer since {moment(each.last_seen_at)}" for each in silent]
        more = f", and {len(silent) - NAMED} more do not" if len(silent) > NAMED else ""
        words = f"; {', '.join(some[:NAMED])}{more}: killed, crashed, frozen, or without the database"
    advice = "see which: flowactions status; then the last lines of their logs, and what their memory was"
    yield Finding("warning", "workers", workers_words(facts.workers, facts.now, words), advice)


def workers_words(workers: Sequence[Worker], now: int, silent: str = "") -> str:
    """Return how many workers are alive, which do not answer, and how many were started in the place of others."""
    alive = [each for each in workers if each.state == "alive"]
    words = f"{len(alive)} alive, {sum(each.in_flight for each in alive)} in flight"
    if slow := sum(each.slow for each in alive):
        words += f", {slow} of these to slow receivers"
    words += silent
    if replaced := _lost(workers, now)[1]:
        words += (
            f"; {replaced} of the last hour ended without being stopped, and others were started in their place"
        )
    return words


def _lost(workers: Sequence[Worker], now: int) -> tuple[list[Worker], int]:
    """Return the workers of the last hour that do not answer and were not started again, and how many were."""
    # One that began on the same machine after another was last seen has taken its place, and takes one place only.
    free = [each for each in workers if each.state == "alive"]
    lost = [each for each in workers if each.state == "stale" and each.last_seen_at > now - HOUR_MS]
    silent: list[Worker] = []
    for each in lost:
        for other in free:
            if other.host_name == each.host_name and other.started_at >= each.last_seen_at:
                free.remove(other)
                break
        else:
            silent.append(each)
    return silent, len(lost) - len(silent)


def _no_worker(facts: Facts) -> Finding:
    """Give since when no worker is alive, and what waits for one."""
    seen = max((each.last_seen_at for each in facts.workers), default=None)
    words = (
        "no worker was alive within the last day"
        if seen is None
        else f"no worker is alive since {moment(seen)}"
    )
    level: Level = "warning"
    waiting = facts.waiting
    if waiting.number:
        rows = plural(waiting.number, "delivery waits", "deliveries wait", exact=waiting.exact)
        words += f", although {rows}"
        if facts.oldest_due_ms:
            words += f", the oldest due since {moment(facts.now - facts.oldest_due_ms)}"
        # As while the only one is restarted.
        is_restarted = seen is not None and facts.now - seen < ABSENT_MS
        level = "warning" if is_restarted else "failed"
    advice = "start the host, or 'flowactions worker' if the host does not deliver by itself"
    return Finding(level, "workers", words, advice)


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Name live workers whose clock differs from the database's, as they last wrote it."""
    wrong = [each for each in facts.alive if abs(each.clock_ahead_ms or 0) >= SKEW_MS]
    for each in sorted(wrong, key=lambda each: -abs(each.clock_ahead_ms or 0))[:NAMED]:
        words = f"the clock of worker {printable(each.name)} is {clock_words(each.clock_ahead_ms or 0)}"
        yield Finding("warning", "clock", words, SYNCHRONIZE)
    what = ("worker has a wrong clock", "workers have a wrong clock")
    yield from _more("clock", len(wrong) - NAMED, *what, "flowactions status", "")


def _blocked(facts: Facts) -> Iterator[Finding]:
    """Name each reason on this side for which deliveries wait. If several organizations wait for it, it is a failure."""
    link = listed(error="waits")
    for each in facts.blocked[:NAMED]:
        number = each.deliveries
        waits = plural(number.number, "delivery waits", "deliveries wait", exact=number.exact)
        yield Finding(
            "failed" if each.organizations > 1 else "warning",
            "waiting",
            f"{waits}, without an attempt, since {moment(each.since)}: {printable(each.reason, message=True)}",
            "repair what is named, and they continue by themselves: flowactions outbox list --where error:waits",
            link,
        )
    see_them = "flowactions outbox list --where error:waits"
    yield from _more("waiting", len(facts.blocked) - NAMED, "reason", "reasons", see_them, link, exact=False)


def _quarantined(facts: Facts) -> Iterator[Finding]:
    """Name deliveries in quarantine: one of them may be what ends the workers."""
    for each in facts.quarantined[:NAMED]:
        of = f" of organization {printable(each.organization_id)}" if facts.sees_all else ""
        yield Finding(
            "warning",
            "quarantine",
            f"{each.takeovers} workers ended while they sent a delivery to {printable(each.destination)}{of}: it is sent alone",
            f"see whether it ends them: flowactions outbox show {quoted(each.id)}",
            f"/deliveries/{each.id}",
        )
    what = ("delivery is in quarantine", "deliveries are in quarantine")
    yield from _more("quarantine", len(facts.quarantined) - NAMED, *what, "flowactions status", "", exact=False)


def _destinations(facts: Facts) -> Iterator[Finding]:
    """Name destinations that fail now; many of them are a failure of the service."""
    number = min(len(facts.failing), FAILING_COUNTED)
    exact = len(facts.failing) <= FAILING_COUNTED
    list_them = "flowactions destinations list, column 'failing since'"
    if number >= MANY:
        words = plural(number, "destination fails", "destinations fail", exact=exact)
        yield Finding("failed", "destinations", words, list_them, "/destinations")
    for each in facts.failing[:NAMED]:
        of = f" of organization {printable(each.organization_id)}" if facts.sees_all else ""
        more = "; it is paused" if each.paused else ""
        if each.limited_since is not None:
            more += f"; it is limited to one delivery at a time since {moment(each.limited_since)}"
        yield Finding(
            "warning",
            "destination",
            f"{printable(each.destination)}{of} has failed {each.failures_in_row} times in a row since "
            f"{moment(each.failing_since)}: {printable(each.last_reason, message=True)}{more}",
            see(destination=each.destination),
            listed(destination=each.destination, organization=each.organization_id if facts.sees_all else None),
        )
    what = ("destination fails", "destinations fail")
    yield from _more("destination", number - NAMED, *what, list_them, "/destinations", exact=exact)


def _others(facts: Facts) -> Iterator[Finding]:
    """Give providers whose events are refused, chat, alerts that do not arrive, limits and pauses."""
    for each in facts.inbound:
        requests = plural(each.requests, "request was", "requests were")
        yield Finding(
            "warning",
            "inbound",
            f"no event of the {each.provider} provider was processed within the last hour; {requests} {each.result} "
            f"since {moment(each.first_at)}: {printable(each.reason or 'no reason is known', message=True)}",
            "see the page 'Inbound events'",
            "/inbound",
        )
    if facts.chat.number:
        connections = plural(
            facts.chat.number, "chat connection is", "chat connections are", exact=facts.chat.exact
        )
        yield Finding(
            "warning",
            "chat",
            f"{connections} revoked, or could not send a message within the last day",
            "see the page 'Chat connections'",
            "/connections",
        )
    alerts = facts.alerts
    if alerts is not None:
        yield Finding(
            "warning",
            "alerts",
            f"alerts do not arrive at {printable(alerts.destination)}: "
            f"{plural(alerts.failures_in_row, 'failure')} in a row since {moment(alerts.failing_since)}: "
            f"{printable(alerts.last_reason, message=True)}",
            see(destination=alerts.destination),
            listed(destination=alerts.destination),
        )
    if facts.snapshot is not None:
        kept = facts.snapshot
        since = "" if kept.seconds is None else f" for {about(int(kept.seconds * 1000))}"
        yield Finding(
            "warning" if kept.kept >= MANY_KEPT else "note",
            "transactions",
            f"PostgreSQL keeps what the {kept.holder} may still read{since}: {kept.kept:,} old versions of rows, which "
            "claims and searches pass over",
            "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends a process, pg_drop_replication_slot a slot",
        )
    if facts.lacking:
        yield Finding(
            "failed",
            "rights",
            f"this process's role lacks {', '.join(facts.lacking)}",
            "give it the rights, as production.md says: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA …",
        )
    for held in facts.blockers:
        yield Finding(
            "warning",
            "locks",
            f"{printable(held.words)}: what needs it waits{', also who only reads' if held.reads else ''}",
            "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends it",
        )
    if facts.limited:
        limited = [since for own in facts.limited.values() for since in own.values()]
        number, since = plural(len(limited), "destination is", "destinations are"), moment(min(limited))
        yield Finding(
            "note",
            "limited",
            f"{number} limited to one delivery at a time since {since}: attempts time out",
            "see which: flowactions destinations list",
            "/destinations",
        )
    paused, automatic = facts.paused
    if paused:
        words = plural(paused, "destination is paused", "destinations are paused")
        if automatic:
            words += " automatically" if automatic == paused else f" ({automatic:,} of them automatically)"
        words += " since" if paused == 1 else ", the first since"
        yield Finding(
            "note",
            "paused",
            f"{words} {moment(facts.paused_since)}: deliveries to {'it' if paused == 1 else 'them'} wait",
            "see by whom and why: flowactions destinations list",
            "/destinations",
        )
