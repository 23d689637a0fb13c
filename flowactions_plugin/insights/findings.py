"""What somebody should look at: the same findings for the overview, ``doctor`` and the gauges. Pure, no I/O.

What only one organization can have caused is a warning: a receiver of its own that fails, a flow that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import urlencode

from flowactions_plugin.clock import to_iso
from flowactions_plugin.insights.curl import quoted
from flowactions_plugin.insights.results import (
    Blocked,
    Counted,
    DestinationState,
    Finding,
    InboundFailing,
    Level,
    LimitedNow,
    PausedNow,
    Quarantined,
    Verdict,
    Worker,
)
from flowactions_plugin.insights.verdict import ABSENT_MS, LATE_MS, SKEW_MS, clock_words
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.storage.retention import HOUR_MS

NAMED: Final = 20
"""How many of one kind are named; further ones are counted."""

MANY: Final = 5
"""From so many destinations on that fail at once, it is a failure of the service."""

LEVELS: Final[tuple[Level, ...]] = ("failed", "warning", "note")
"""The worst first. A note concerns nobody at night: somebody has paused something."""

SYNCHRONIZE: Final = (
    "synchronize both clocks (NTP): signatures carry the time of the machine that delivers, and receivers refuse those of "
    "five minutes away"
)
"""What to do about a clock that differs from the database's."""

START: Final = "start the host, or 'flowactions worker' if the host does not deliver by itself"

_OF_VERDICT: Final = {
    "stalled": "see that a worker runs and reaches the database: flowactions status",
    "unwritable": "free disk space, or make the database writable: the check 'writing' says which",
    "failing": "see which destinations fail: flowactions destinations list",
}


class Facts(NamedTuple):
    """How deliveries stand, as far as a scope may see it; see `Overview`.

    Attributes:
        now: Unix milliseconds.
        sees_all: whether operators look, who may read the names of machines.
        failing: destinations that fail now, those that have failed for longest first.
        failing_number: how many these are.
        chat: chat connections that cannot send.
    """

    now: int
    sees_all: bool
    verdict: Verdict
    due: Counted
    oldest_due_ms: int
    waiting: Counted
    dead: Counted
    workers: Sequence[Worker]
    failing: Sequence[DestinationState]
    failing_number: Counted
    blocked: Sequence[Blocked]
    quarantined: Sequence[Quarantined]
    paused: PausedNow
    limited: LimitedNow
    chat: Counted
    inbound: Sequence[InboundFailing]
    alerts: DestinationState | None


def findings_of(facts: Facts) -> list[Finding]:
    """Return what somebody should look at, the worst first."""
    found = [
        *_deliveries(facts),
        *_workers(facts),
        *(_clocks(facts) if facts.sees_all else ()),
        *_blocked(facts),
        *_quarantined(facts),
        *_destinations(facts),
        *_others(facts),
    ]
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def worst_of(findings: Sequence[Finding]) -> Level | Literal["ok"]:
    """Return the worst level; ``ok``: there is none but notes."""
    levels = {each.level for each in findings}
    return next((level for level in LEVELS[:2] if level in levels), "ok")


def moment(milliseconds: int | None) -> str:
    """Return a time to the second, in UTC."""
    try:
        return "an unknown time" if milliseconds is None else f"{to_iso(milliseconds)[:19]}Z"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def see(**options: str) -> str:
    """Return the advice to look at deliveries, by the options of ``outbox list``."""
    wanted = " ".join(f"--{name} {quoted(value)}" for name, value in options.items())
    return f"see what it answers: flowactions outbox list {wanted}, then outbox show of one"


def listed(**fields: str) -> str:
    """Return the link to the deliveries that meet a filter."""
    return f"/deliveries?{urlencode({name: value for name, value in fields.items() if value})}"


def _more(
    about: str, number: int, one: str, several: str, advice: str, link: str, *, exact: bool = True
) -> Iterator[Finding]:
    """Give the number of those that are not named."""
    if number > 0:
        words = plural(number, f"more {one}", f"more {several}", exact=exact)
        yield Finding(level="warning", about=about, words=words, advice=advice, link=link)


def _deliveries(facts: Facts) -> Iterator[Finding]:
    verdict, due = facts.verdict, facts.due
    words = f"{verdict.state}: {verdict.reason} (due {due}, dead {facts.dead})"
    if verdict.state in _OF_VERDICT:
        yield Finding(level="failed", about="deliveries", words=words, advice=_OF_VERDICT[verdict.state])
    elif verdict.state == "no_worker":
        advice = "see that a worker runs: flowactions status"
        yield Finding(level="warning", about="deliveries", words=words, advice=advice)
    elif verdict.failing_organization is not None:
        whose = quoted(printable(verdict.failing_organization))
        advice = f"see what its receivers answer: flowactions destinations list --organization {whose}"
        yield Finding(level="warning", about="deliveries", words=words, advice=advice)
    elif facts.oldest_due_ms >= LATE_MS:
        advice = "see whose deliveries take the workers' time: flowactions status"
        if all(each.mode == "scheduled" for each in facts.workers if each.state == "alive"):
            advice += "; for any volume, set FLOWACTIONS_DELIVERY=continuous where workers run"
        yield Finding(level="warning", about="deliveries", words=words, advice=advice)


def _workers(facts: Facts) -> Iterator[Finding]:
    """Give whether workers are alive, and whether some do not answer."""
    alive = [each for each in facts.workers if each.state == "alive"]
    if not alive:
        yield _no_worker(facts)
        return
    late = facts.now - HOUR_MS
    lost = [each for each in facts.workers if each.state == "stale" and each.last_seen_at > late]
    silent, replaced = _replaced(lost, alive)
    if not facts.sees_all or not (silent or replaced > 1):
        return
    words = alive_words(facts.workers)
    if silent:
        some = ", ".join(
            f"{printable(each.name)} does not answer since {moment(each.last_seen_at)}"
            for each in silent[:NAMED]
        )
        more = f", and {len(silent) - NAMED} more do not" if len(silent) > NAMED else ""
        words += f"; {some}{more}: killed, crashed, frozen, or without the database"
    words += _replaced_words(replaced)
    advice = "see which: flowactions status; then the last lines of their logs, and what their memory was"
    yield Finding(level="warning", about="workers", words=words, advice=advice)


def workers_words(workers: Sequence[Worker], now: int) -> str:
    """Return how many workers are alive, and how many were started in the place of others."""
    alive = [each for each in workers if each.state == "alive"]
    lost = [each for each in workers if each.state == "stale" and each.last_seen_at > now - HOUR_MS]
    return alive_words(workers) + _replaced_words(_replaced(lost, alive)[1])


def alive_words(workers: Sequence[Worker]) -> str:
    """Return how many workers are alive, and what they are doing."""
    alive = [each for each in workers if each.state == "alive"]
    return f"{len(alive)} alive, {sum(each.in_flight for each in alive)} in flight"


def _replaced_words(number: int) -> str:
    if not number:
        return ""
    return f"; {number} of the last hour ended without being stopped, and others were started in their place"


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


def _no_worker(facts: Facts) -> Finding:
    """Give since when no worker is alive, and what waits for one."""
    seen = max((each.last_seen_at for each in facts.workers), default=None)
    words = "none was alive within the last day" if seen is None else f"none is alive since {moment(seen)}"
    level: Level = "warning"
    waiting = facts.waiting
    if waiting.number:
        rows = plural(waiting.number, "delivery waits", "deliveries wait", exact=waiting.exact)
        since = moment(facts.now - facts.oldest_due_ms)
        words += f", although {rows}{f', the oldest due since {since}' if facts.oldest_due_ms else ''}"
        # As while the only one is restarted.
        is_restarted = seen is not None and facts.now - seen < ABSENT_MS
        level = "warning" if is_restarted else "failed"
    return Finding(level=level, about="workers", words=words, advice=START)


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Name live workers whose clock differs from the database's, as they last wrote it."""
    wrong = [
        each for each in facts.workers if each.state == "alive" and abs(each.clock_ahead_ms or 0) >= SKEW_MS
    ]
    for each in sorted(wrong, key=lambda each: -abs(each.clock_ahead_ms or 0))[:NAMED]:
        words = f"the clock of worker {printable(each.name)} is {clock_words(each.clock_ahead_ms or 0)}"
        yield Finding(level="warning", about="clock", words=words, advice=SYNCHRONIZE)
    what = ("worker has a wrong clock", "workers have a wrong clock")
    yield from _more("clock", len(wrong) - NAMED, *what, "flowactions status", "")


def _blocked(facts: Facts) -> Iterator[Finding]:
    """Name each reason on this side for which deliveries wait. If several organizations wait for it, it is a failure."""
    link = listed(error="waits")
    for each in facts.blocked[:NAMED]:
        number = each.deliveries
        waits = plural(number.number, "delivery waits", "deliveries wait", exact=number.exact)
        yield Finding(
            level="failed" if each.organizations > 1 else "warning",
            about="waiting",
            words=f"{waits}, without an attempt, since {moment(each.since)}: {printable(each.reason, message=True)}",
            advice="repair what is named, and they continue by themselves: flowactions outbox list --error waits",
            link=link,
        )
    see_them = "flowactions outbox list --error waits"
    yield from _more("waiting", len(facts.blocked) - NAMED, "reason", "reasons", see_them, link, exact=False)


def _quarantined(facts: Facts) -> Iterator[Finding]:
    """Name deliveries in quarantine: one of them may be what ends the workers."""
    for each in facts.quarantined[:NAMED]:
        of = f" of organization {printable(each.organization_id)}" if facts.sees_all else ""
        yield Finding(
            level="warning",
            about="quarantine",
            words=f"{each.reclaims} workers ended while they sent a delivery to {printable(each.destination)}{of}: it is sent alone",
            advice=f"see whether it ends them: flowactions outbox show {quoted(each.id)}",
            link=f"/deliveries/{each.id}",
        )
    what = ("delivery is in quarantine", "deliveries are in quarantine")
    yield from _more("quarantine", len(facts.quarantined) - NAMED, *what, "flowactions status", "", exact=False)


def _destinations(facts: Facts) -> Iterator[Finding]:
    """Name destinations that fail now; many of them are a failure of the service."""
    number = facts.failing_number
    list_them = "flowactions destinations list, column 'failing since'"
    if number.number >= MANY:
        words = plural(number.number, "destination fails", "destinations fail", exact=number.exact)
        yield Finding(level="failed", about="destinations", words=words, advice=list_them, link="/destinations")
    for each in facts.failing[:NAMED]:
        of = f" of organization {printable(each.organization_id)}" if facts.sees_all else ""
        more = "; it is paused" if each.paused else ""
        if each.limited_since is not None:
            more += f"; it is limited to one delivery at a time since {moment(each.limited_since)}"
        yield Finding(
            level="warning",
            about="destination",
            words=f"{printable(each.destination)}{of} has failed {each.failures_in_row} times in a row since "
            f"{moment(each.failing_since)}: {printable(each.last_reason, message=True)}{more}",
            advice=see(destination=each.destination),
            link=listed(
                destination=each.destination, organization=each.organization_id if facts.sees_all else ""
            ),
        )
    named = min(len(facts.failing), NAMED)
    what = ("destination fails", "destinations fail")
    yield from _more(
        "destination", number.number - named, *what, list_them, "/destinations", exact=number.exact
    )


def _others(facts: Facts) -> Iterator[Finding]:
    """Give providers whose events are refused, chat, alerts that do not arrive, limits and pauses."""
    for each in facts.inbound:
        requests = plural(each.requests, "request was", "requests were")
        yield Finding(
            level="warning",
            about="inbound",
            words=f"no event of the {each.provider} provider was processed within the last hour; {requests} {each.result} "
            f"since {moment(each.since)}: {printable(each.reason or 'no reason is known', message=True)}",
            advice="see the page 'Inbound events'",
            link="/inbound",
        )
    if facts.chat.number:
        connections = plural(
            facts.chat.number, "chat connection is", "chat connections are", exact=facts.chat.exact
        )
        yield Finding(
            level="warning",
            about="chat",
            words=f"{connections} revoked, or could not send a message within the last day",
            advice="see the page 'Chat connections'",
            link="/connections",
        )
    alerts = facts.alerts
    if alerts is not None:
        yield Finding(
            level="warning",
            about="alerts",
            words=f"alerts do not arrive at {printable(alerts.destination)}: "
            f"{plural(alerts.failures_in_row, 'failure')} in a row since {moment(alerts.failing_since)}: "
            f"{printable(alerts.last_reason, message=True)}",
            advice=see(destination=alerts.destination),
            link=listed(destination=alerts.destination),
        )
    if facts.limited.destinations:
        number = plural(facts.limited.destinations, "destination is", "destinations are")
        yield Finding(
            level="note",
            about="limited",
            words=f"{number} limited to one delivery at a time since {moment(facts.limited.since)}: attempts time out",
            advice="see which: flowactions destinations list",
            link="/destinations",
        )
    if facts.paused.destinations:
        them = "it" if facts.paused.destinations == 1 else "them"
        yield Finding(
            level="note",
            about="paused",
            words=f"{facts.paused} {moment(facts.paused.since)}: deliveries to {them} wait",
            advice="see by whom and why: flowactions destinations list",
            link="/destinations",
        )
