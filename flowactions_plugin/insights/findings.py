"""What somebody should look at: one list for the overview, ``doctor``, gauges and the sentence of one delivery. Pure, no I/O.

The verdict on all deliveries is the worst finding that is about the service; where there is none, they go on. What only one
organization can have caused is a warning: a receiver of its own that fails, a flow that is wrong. A finding has one action at the
most, for a button or a command. What has healed is not found any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, get_args

from flowactions_plugin.egress.attempt import CHAT_LIMITED
from flowactions_plugin.egress.transport_errors import PROXY_FAILED
from flowactions_plugin.insights.curl import quoted
from flowactions_plugin.insights.facts import (
    ABSENT_MS,
    LATELY_MINUTES,
    SKEW_MS,
    WRONG_CLOCK_MS,
    Facts,
    Share,
    about,
    clock_offset,
    moment,
)
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import (
    DeliveryDetail,
    DestinationState,
    Finding,
    Level,
    Pause,
    Verdict,
    Worker,
    Worst,
)
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.queue.rules import QUARANTINE_ROUNDS, UNKNOWN
from flowactions_plugin.storage.outages import IS_READ_ONLY
from flowactions_plugin.storage.retention import DAY_MS, HOUR_MS
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from flowactions_plugin.watch.statistics import ALERT_MS

FAILING_COUNTED: Final = 200
"""Up to how many destinations that fail are counted."""

NAMED: Final = 5
"""How many of one kind are named; further ones are counted."""

MANY: Final = 5
"""From so many on, of several organizations, destinations that fail, or nodes whose deliveries end without an attempt, are a
failure of the service."""

UNSENT_READ: Final = 1000
"""How many deliveries that ended without an attempt are read."""

LEAST_IN_A_ROW: Final = 3
"""So many failures in a row make a destination one that fails."""

LEAST_ATTEMPTS: Final = 20
"""With fewer attempts within the last minutes, nothing is said about their failures."""

FAILING_SHARE: Final = 0.5

MANY_KEPT: Final = 100_000
"""So many old versions of rows make statements noticeably slower."""

LATE_MS: Final = 300_000
"""Deliveries that leave so late are a warning, as in the alert ``FlowactionsOldestDue``."""

FORGOTTEN_MS: Final = DAY_MS
"""A pause that holds for longer may have been forgotten."""

SLOT_MS: Final = 10_000
"""What has been due for longer waits for a slot, as a rule one for its destination."""

NOT_KNOWN: Final = UNKNOWN[0].partition(";")[0]
"""Why rows wait whose node or action the host does not know, however often it was asked."""

LEVELS: Final[tuple[Level, ...]] = get_args(Level)
STATES: Final = ("unwritable", "stalled", "no_worker", "failing")

SYNCHRONIZE: Final = (
    "synchronize both clocks (NTP): signatures carry the time of the machine that delivers, and receivers refuse those of "
    "five minutes away"
)
"""What to do about a clock that differs from the database's."""

GRANT: Final = (
    "grant it, as in production.md: SELECT, INSERT, UPDATE, DELETE ON ALL TABLES, USAGE ON ALL SEQUENCES"
)
START: Final = "start the host, or 'flowactions worker' if the host does not deliver by itself"
TAKE_WRITES: Final = "have the URL name the primary, or have the server take writes"
TERMINATE: Final = "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends it"


def findings_of(facts: Facts) -> list[Finding]:
    """Return what somebody should look at, the worst first."""
    found = [
        *_writing(facts),
        *_stalled(facts),
        *_workers(facts),
        *_most_fail(facts),
        *_unsent(facts),
        *_destinations(facts),
        *_late(facts),
        *(_clocks(facts) if facts.sees_all else ()),
        *(_timeouts(facts) if facts.sees_all else ()),
        *_blocked(facts),
        *_behind(facts),
        *_quarantined(facts),
        *_nodes(facts),
        *_others(facts),
        *_notes(facts),
    ]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def verdict_of(facts: Facts, findings: Sequence[Finding]) -> Verdict:
    """Return whether deliveries work: the first finding of `STATES` that says no; otherwise how they go on.

    What is not claimed cannot arrive, whatever became of the rest.
    """
    told = sorted((finding for finding in findings if finding.state), key=lambda each: STATES.index(each.state))
    for finding in told[:1]:
        level: Worst = "failed" if finding.level == "failed" else "warning"
        return Verdict(finding.state or "ok", f"{finding.words[:1].upper()}{finding.words[1:]}.", level)
    if facts.oldest_due_ms is None:
        return Verdict("idle", "Nothing is due.")
    going = "Rows are being claimed" if facts.alive else "No worker is alive now, as while one is restarted"
    return Verdict("ok", f"{going}; the oldest has been due for {about(facts.oldest_due_ms)}.")


def worst_of(findings: Sequence[Finding]) -> Worst:
    """Return the worst level; ``ok``: there is none but notes."""
    levels = {finding.level for finding in findings}
    return "failed" if "failed" in levels else "warning" if "warning" in levels else "ok"


def advice_of(finding: Finding) -> str:
    """Return what to do about a finding, with the commands that show what it is about, and that do its action."""
    place, whose, where = quoted(finding.destination), "", f" --where {quoted(finding.where)}"
    if finding.organization_id:
        whose = f" --organization {quoted(finding.organization_id)}"
    shows = f"outbox list{where}" if finding.where else _shown_by(finding.page)
    acts = {
        "pause": f"to pause it: flowactions destinations pause {place}{whose}",
        "retry": f"to retry them: flowactions outbox retry{where}",
    }
    said = [
        f"{finding.advice or 'see them'}: flowactions {shows}" if shows else finding.advice,
        acts.get(finding.act, ""),
    ]
    return "; ".join(filter(None, said))


def _shown_by(page: str) -> str:
    """Return the command that shows what a page does; empty: none does."""
    root, _, row_id = page.removeprefix("/").partition("/")
    return f"outbox show {quoted(row_id)}" if row_id else "destinations list" if root == "destinations" else ""


def fails(place: DestinationState, now: int) -> bool:
    """Return whether a destination fails now: in a row or for long, and lately or with deliveries that wait for it."""
    since, last = place.failing_since, place.last_failure_at
    if since is None or last is None:
        return False
    lasts = place.failures_in_row >= LEAST_IN_A_ROW or last - since >= ALERT_MS
    return lasts and (last >= now - LATELY_MINUTES * 60_000 or bool(place.waiting.number))


def mostly_fail(attempts: int, failed: int) -> bool:
    """Return whether so many of the last minutes' attempts have failed that somebody should know."""
    return attempts >= LEAST_ATTEMPTS and failed > FAILING_SHARE * attempts


def _where(facts: Facts, organization_id: str | None = None, **fields: Any) -> str:
    """Return a filter in words; people of an organization need not name it."""
    return str(Filter.of(organization=(organization_id or None) if facts.sees_all else None, **fields))


def _whose(facts: Facts, organization_id: str) -> str:
    return f" of organization {printable(organization_id)}" if facts.sees_all else ""


def _more(kind: str, number: int, one: str, several: str, page: str, *, exact: bool) -> Iterator[Finding]:
    """Give the number of those that are not named."""
    if number > 0:
        words = plural(number, f"more {one}", f"more {several}", exact=exact)
        yield Finding("warning", kind, words, page=page)


def _writing(facts: Facts) -> Iterator[Finding]:
    """Give that nothing can be queued, claimed or completed; rights that are missing; and locks for which others wait."""
    if facts.refusal is not None:
        words = f"the database takes no writes: {facts.refusal}. Nothing is queued, claimed or completed"
        advice = (
            TAKE_WRITES if facts.refusal == IS_READ_ONLY else "free disk space, and see the database's logs"
        )
        advice = GRANT if facts.lacking else TERMINATE if facts.blockers else advice
        yield Finding("failed", "writing", words, advice, state="unwritable")
    if facts.lacking:
        words = f"this process's role lacks {', '.join(facts.lacking)}"
        yield Finding("failed", "rights", words, GRANT)
    for held in facts.blockers:
        words = f"{printable(held.words)}: what needs it waits{', also who only reads' if held.reads else ''}"
        yield Finding("warning", "locks", words, TERMINATE)


def _stalled(facts: Facts) -> Iterator[Finding]:
    """Give that rows are due, and none is claimed. Both have to last."""
    due, patience, alive = facts.oldest_due_ms, facts.patience_ms, len(facts.alive)
    claims = _claims(facts)
    if due is None or due <= patience or min(claims, default=due) <= patience:
        return
    last = f"the last claim was {about(min(claims))} ago" if claims else "nothing has been claimed"
    nobody = f"although {'a worker is' if alive == 1 else f'{alive} workers are'} alive"
    words = f"rows have been due for {about(due)} and {last}, {nobody if alive else 'and no worker is alive'}"
    advice = "read the last lines of their logs, which say why nothing is claimed; then start them again"
    yield Finding(
        "failed",
        "deliveries",
        words,
        advice if alive else START,
        page="/deliveries?q=status%3Adue",
        state="stalled",
    )


def _claims(facts: Facts) -> list[int]:
    """Return how long ago workers have claimed; one that holds a claim may not have reported itself yet."""
    claims = [facts.now - worker.last_claim_at for worker in facts.workers if worker.last_claim_at is not None]
    return claims if facts.held_ms_ago is None else [*claims, facts.held_ms_ago]


def _workers(facts: Facts) -> Iterator[Finding]:
    """Give whether workers are alive, and whether some do not answer."""
    if not facts.alive:
        yield _no_worker(facts)
        return
    silent, replaced = _lost(facts.workers, facts.now)
    if facts.sees_all and (silent or replaced > 1):
        some = [
            f"{printable(worker.name)} does not answer since {moment(worker.last_seen_at)}" for worker in silent
        ]
        more = f", and {len(silent) - NAMED} more do not" if len(silent) > NAMED else ""
        words = (
            f"; {', '.join(some[:NAMED])}{more}: killed, crashed, frozen, or without the database"
            if silent
            else ""
        )
        advice = "see which: flowactions status; then the last lines of their logs, and what their memory was"
        yield Finding("warning", "workers", workers_words(facts.workers, facts.now, words), advice)


def workers_words(workers: Sequence[Worker], now: int, silent: str = "") -> str:
    """Return how many workers are alive, which do not answer, and how many were started in the place of others."""
    alive = [worker for worker in workers if worker.state == "alive"]
    words = f"{len(alive)} alive, {sum(worker.in_flight for worker in alive)} in flight"
    if slow := sum(worker.slow for worker in alive):
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
    free = [worker for worker in workers if worker.state == "alive"]
    lost = [worker for worker in workers if worker.state == "stale" and worker.last_seen_at > now - HOUR_MS]
    silent: list[Worker] = []
    for worker in lost:
        for other in free:
            if other.host_name == worker.host_name and other.started_at >= worker.last_seen_at:
                free.remove(other)
                break
        else:
            silent.append(worker)
    return silent, len(lost) - len(silent)


def _no_worker(facts: Facts) -> Finding:
    """Give since when no worker is alive, and what waits for one."""
    seen = max((worker.last_seen_at for worker in facts.workers), default=None)
    words = (
        "no worker was alive within the last day"
        if seen is None
        else f"no worker is alive since {moment(seen)}"
    )
    signs = [*_claims(facts), *([] if seen is None else [facts.now - seen])]
    is_absent = min(signs, default=facts.uptime_ms) >= ABSENT_MS
    level: Level = "warning"
    if facts.waiting.number:
        rows = plural(facts.waiting.number, "delivery waits", "deliveries wait", exact=facts.waiting.exact)
        words += f", although {rows}"
        if facts.oldest_due_ms:
            words += f", the oldest due since {moment(facts.now - facts.oldest_due_ms)}"
        # As while the only one is restarted.
        is_restarted = seen is not None and facts.now - seen < ABSENT_MS
        level = "warning" if is_restarted else "failed"
    return Finding(level, "workers", words, START, state="no_worker" if is_absent else "")


def _most_fail(facts: Facts) -> Iterator[Finding]:
    """Give that most attempts fail, to destinations that still fail; of one organization alone, it is a warning."""
    (attempts, failed), counted = facts.attempts, sum(share.failed for share in facts.shares)
    if len(facts.failing) <= FAILING_COUNTED:  # those of all that fail are known
        failed = counted
    if not facts.shares or not mostly_fail(attempts, failed):
        return
    said = f"{failed} of the {attempts} attempts of the last {LATELY_MINUTES} minutes have failed"
    worst = facts.shares[0]
    if facts.sees_all and is_own_fault(worst, attempts - worst.attempts, failed - worst.failed):
        words = f"{said}: {worst.failed} of them are those of organization {printable(worst.organization_id)}"
        where = _where(facts, worst.organization_id, status="retrying")
        yield Finding("warning", "attempts", words, where=where)
        return
    several = f", of {len(facts.shares)} organizations" if len(facts.shares) > 1 else ""
    advice = "see which destinations fail"
    yield Finding(
        "failed", "deliveries", f"{said}{several}{_alike(facts)}", advice, page="/destinations", state="failing"
    )


def is_own_fault(worst: Share, attempts: int, failed: int) -> bool:
    """Return whether failures are one organization's own: it has most of them, and most attempts of all others arrive.

    Args:
        worst: the organization with the most failures.
        attempts: of all others.
        failed: how many of these have failed.
    """
    if attempts <= 0:
        return worst.destinations == 1
    return worst.failed > failed and failed <= FAILING_SHARE * attempts


def _alike(facts: Facts) -> str:
    """Return what most of the destinations that fail have in common, if it is more than one organization's."""
    found = [place for place in facts.failing if fails(place, facts.now)]
    counted = Counter(_common(place) for place in found)
    reason, number = counted.most_common(1)[0] if counted else ("", 0)
    whose = {place.organization_id for place in found if _common(place) == reason}
    if number < MANY or len(whose) < 2 or 2 * number <= len(found):
        return ""
    return f"; {number} destinations fail alike: {printable(reason, message=True)}"


def _common(place: DestinationState) -> str:
    """Return the reason of a destination's failures without its own name."""
    host_and_port = place.destination.partition("://")[2]
    reason = (place.last_reason or "").replace(host_and_port, "…")
    return reason.replace(host_and_port.rpartition(":")[0], "…")


def _unsent(facts: Facts) -> Iterator[Finding]:
    """Give deliveries that ended without an attempt: of a few nodes as a note, as where these were deleted."""
    if not facts.unsent:
        return
    last = facts.unsent[0].ended_at
    nodes = {row[:3] for row in facts.unsent if row.ended_at >= last - LATELY_MINUTES * 60_000}
    organizations = {row.organization_id for row in facts.unsent}
    (reason, _), *others = Counter(row.reason for row in facts.unsent).most_common()
    since = facts.unsent[-1].ended_at
    rows = plural(len(facts.unsent), "delivery", "deliveries", exact=len(facts.unsent) < UNSENT_READ)
    of = f" of {plural(len({row[:3] for row in facts.unsent}), 'node')}"
    of += f" and {plural(len(organizations), 'organization')}" if facts.sees_all else ""
    more = f", and for {plural(len(others), 'other reason')}" if others else ""
    words = f"{rows}{of} ended without an attempt, the first at {moment(since)}: {printable(reason, message=True)}{more}"
    advice = "see whether the host still knows these nodes; then retry them"
    where = _where(facts, status="dead", error="not_sent", ended_since=since)
    yield Finding("failed" if len(nodes) >= MANY else "note", "unsent", words, advice, where=where, act="retry")


def _destinations(facts: Facts) -> Iterator[Finding]:
    """Name destinations that fail now, the latest failure first; many of several organizations are a failure of the service."""
    found = [place for place in facts.failing if fails(place, facts.now)]
    exact = len(facts.failing) <= FAILING_COUNTED
    whose = {place.organization_id for place in found}
    if len(found) >= MANY and len(whose) > 1:
        words = plural(len(found), "destination fails", "destinations fail", exact=exact)
        words += f", of {len(whose)} organizations{_alike(facts)}"
        advice = "see what they have in common: network, resolver, egress proxy, clock"
        yield Finding("failed", "destinations", words, advice, page="/destinations")
    for place in found[:NAMED]:
        more = "; it is paused" if place.paused else ""
        if place.limited_since is not None:
            more += f"; it is limited to one delivery at a time since {moment(place.limited_since)}"
        yield Finding(
            "warning",
            "destination",
            f"{printable(place.destination)}{_whose(facts, place.organization_id)} has failed {place.failures_in_row} times in "
            f"a row since {moment(place.failing_since)}: {printable(place.last_reason, message=True)}{more}",
            where=_where(facts, place.organization_id, destination=place.destination),
            act="" if place.paused else "pause",
            destination=place.destination,
            organization_id=place.organization_id,
        )
    what = ("destination fails", "destinations fail")
    yield from _more("destination", len(found) - NAMED, *what, "/destinations", exact=exact)


def _late(facts: Facts) -> Iterator[Finding]:
    """Give that deliveries leave late although workers claim, and whose they are."""
    due = facts.oldest_due_ms
    if due is None or due < LATE_MS or any(_stalled(facts)):
        return
    words, advice, where = f"the oldest delivery has been due for {about(due)}", "", "status:due"
    if facts.busiest is not None:
        organization, place, number = facts.busiest
        words += f"; {number:,} of those that are due are for {printable(place)}{_whose(facts, organization)}"
        where = _where(facts, organization, status="due", destination=place)
    if facts.in_ticks:
        words += "; every worker delivers in scheduled mode, which limits how many leave at each tick"
        advice = "for any volume, set FLOWACTIONS_DELIVERY=continuous where workers run"
    yield Finding(
        "warning",
        "late",
        words,
        advice or "see whether it answers slowly, and start another worker",
        where=where,
    )


def _timeouts(facts: Facts) -> Iterator[Finding]:
    """Give that live workers end attempts after different times, and one of each."""
    named = {each.delivery_timeout: printable(each.name) for each in facts.alive}
    if len(named) > 1:
        each = ", ".join(f"after {seconds} s ({name})" for seconds, name in sorted(named.items())[:NAMED])
        words = f"workers end attempts after different times: {each}"
        yield Finding("warning", "timeout", words, "give every process the same FLOWACTIONS_DELIVERY_TIMEOUT")


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Name live workers whose clock differs from the database's, as they last wrote it."""
    wrong = [worker for worker in facts.alive if abs(worker.clock_ahead_ms or 0) >= SKEW_MS]
    for worker in sorted(wrong, key=lambda worker: -abs(worker.clock_ahead_ms or 0))[:NAMED]:
        ahead = worker.clock_ahead_ms or 0
        words = f"the clock of worker {printable(worker.name)} is {clock_offset(ahead)}{' of' if ahead > 0 else ''} the database's"
        if abs(ahead) >= WRONG_CLOCK_MS:
            words += ": receivers refuse what it signs"
        yield Finding("warning", "clock", words, SYNCHRONIZE)
    what = ("worker has a wrong clock", "workers have a wrong clock")
    yield from _more("clock", len(wrong) - NAMED, *what, "", exact=True)


def _blocked(facts: Facts) -> Iterator[Finding]:
    """Name each reason on this side for which deliveries wait. If several organizations wait for it, it is a failure."""
    for reason in facts.blocked[:NAMED]:
        number = reason.deliveries
        waits = plural(number.number, "delivery waits", "deliveries wait", exact=number.exact)
        yield Finding(
            "failed" if reason.organizations > 1 else "warning",
            "waiting",
            f"{waits}, without an attempt, since {moment(reason.since)}: {printable(reason.reason, message=True)}",
            "repair what is named, and they continue by themselves"
            if reason.reason != NOT_KNOWN
            else "have the host's methods 'node' and 'logic_action' find them: after four questions, a minute apart, they are dead",
            where="error:waits",
        )
    yield from _more("waiting", len(facts.blocked) - NAMED, "reason", "reasons", "", exact=False)


def _behind(facts: Facts) -> Iterator[Finding]:
    """Name deliveries behind which others wait in order, but not at a destination that fails: another finding names it."""
    failing = {(place.organization_id, place.destination) for place in facts.failing if fails(place, facts.now)}
    found = [each for each in facts.behind if (each.organization_id, each.destination) not in failing]
    for head in found[:NAMED]:
        waits = plural(head.number, "delivery waits", "deliveries wait")
        place = f"{printable(head.destination)}{_whose(facts, head.organization_id)}"
        why = f": {printable(head.reason, message=True)}" if head.reason else ""
        yield Finding(
            "warning",
            "behind",
            f"{waits} in order for {place}, the first since {moment(head.since)}, behind one that has not ended{why}",
            "when it arrives or is cancelled, the next one is sent",
            page=f"/deliveries/{head.id}",
        )
    what = ("delivery keeps others waiting", "deliveries keep others waiting")
    yield from _more("behind", len(found) - NAMED, *what, "", exact=False)


def _quarantined(facts: Facts) -> Iterator[Finding]:
    """Name deliveries in quarantine: one of them may be what ends the workers."""
    for row in facts.quarantined[:NAMED]:
        yield Finding(
            "warning",
            "quarantine",
            f"{row.takeovers} workers ended while they sent a delivery to {printable(row.destination)}"
            f"{_whose(facts, row.organization_id)}: it is sent alone",
            "see whether it ends them",
            page=f"/deliveries/{row.id}",
        )
    what = ("delivery is in quarantine", "deliveries are in quarantine")
    yield from _more("quarantine", len(facts.quarantined) - NAMED, *what, "", exact=False)


def _nodes(facts: Facts) -> Iterator[Finding]:
    """Name nodes most of whose last deliveries have failed, although their destinations work."""
    for node in facts.nodes[:NAMED]:
        whose = f"node {printable(node.node_id)} of flow {printable(node.flow_id)}{_whose(facts, node.organization_id)}"
        words = f"{whose}: {node.failed} of its last {node.ended} deliveries have failed: {printable(node.reason, message=True)}"
        where = _where(facts, node.organization_id, flow=node.flow_id, node=node.node_id)
        yield Finding("warning", "node", words, where=where)
    what = ("node has deliveries that fail", "nodes have deliveries that fail")
    yield from _more("node", len(facts.nodes) - NAMED, *what, "", exact=False)


def _others(facts: Facts) -> Iterator[Finding]:
    """Give providers whose events are refused, chat that cannot send, and alerts that do not arrive."""
    for row in facts.inbound:
        requests = plural(row.requests, "request was", "requests were")
        yield Finding(
            "warning",
            "inbound",
            f"no event of the {row.provider} provider was processed within the last hour; {requests} {row.result} "
            f"since {moment(row.first_at)}: {printable(row.reason or 'no reason is known', message=True)}",
            "see the page 'Inbound events'",
            page="/inbound",
        )
    if facts.chat.number:
        several = ("chat connection is", "chat connections are")
        words = plural(facts.chat.number, *several, exact=facts.chat.exact)
        words += " revoked, or could not send a message within the last day"
        yield Finding("warning", "chat", words, "see the page 'Chat connections'", page="/connections")
    if (alerts := facts.alerts) is not None:
        yield Finding(
            "warning",
            "alerts",
            f"alerts do not arrive at {printable(alerts.destination)}: "
            f"{plural(alerts.failures_in_row, 'failure')} in a row since {moment(alerts.failing_since)}: "
            f"{printable(alerts.last_reason, message=True)}",
            where=str(Filter.of(destination=alerts.destination)),
        )


def _notes(facts: Facts) -> Iterator[Finding]:
    """Give what works as somebody wants it to, and is worth knowing: old versions of rows, limits and pauses."""
    if (kept := facts.snapshot) is not None:
        since = "" if kept.seconds is None else f" for {about(int(kept.seconds * 1000))}"
        yield Finding(
            "warning" if kept.kept >= MANY_KEPT else "note",
            "transactions",
            f"PostgreSQL keeps what the {kept.holder} may still read{since}: {kept.kept:,} old versions of rows, which "
            "claims and searches pass over",
            "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends a process, pg_drop_replication_slot a slot",
        )
    if facts.limited:
        limited = [since for own in facts.limited.values() for since in own.values()]
        words = f"{plural(len(limited), 'destination is', 'destinations are')} limited to one delivery at a time since"
        yield Finding(
            "note", "limited", f"{words} {moment(min(limited))}: attempts time out", page="/destinations"
        )
    if facts.reads_only:
        words = "this process's role may only read, so that it does not see whether others can write"
        yield Finding("note", "rights", words, "run 'flowactions doctor' with the role of the workers")
    paused, automatic = facts.paused
    if paused:
        words = plural(paused, "destination is paused", "destinations are paused")
        if automatic:
            words += " automatically" if automatic == paused else f" ({automatic:,} of them automatically)"
        words += " since" if paused == 1 else ", the first since"
        words += f" {moment(facts.paused_since)}: deliveries to {'it' if paused == 1 else 'them'} wait"
        is_forgotten = facts.paused_since is not None and facts.now - facts.paused_since >= FORGOTTEN_MS
        yield Finding(
            "warning" if is_forgotten else "note",
            "paused",
            words,
            page="/destinations",
        )


# Of one delivery.


def why_not_sent(
    row: DeliveryDetail,
    pause: Pause | None,
    now: int,
    *,
    workers: Sequence[Worker] = (),
    holder: Worker | None = None,
    limited_since: int | None = None,
    refusal: str | None = None,
    before: str | None = None,
) -> str:
    """Return why a delivery is not sent yet, or how it ended, in one sentence: of several reasons, that which has to end first.

    Args:
        row: the delivery.
        pause: of its destination; ``None``: it is not paused.
        now: Unix milliseconds.
        workers: the processes that deliver, whatever their state.
        holder: the one whose claim holds it, its name empty for people who may not read it; ``None``: none does, or nothing
            is known of it.
        limited_since: since when a worker limits its destination (Unix milliseconds); ``None``: none does.
        refusal: why the database takes no writes; ``None``: it does.
        before: the delivery that has to end first, as they are sent one after another; ``None``: none has.
    """
    if row.status == "delivered":
        return f"It was delivered at {moment(row.finished_at)}, by attempt {row.attempts}."
    if row.status == "dead":
        return f"It failed at {moment(row.finished_at)}: {_sentence(row.last_error)}"
    if before is not None:
        return (
            f"It waits for the delivery before it ({before}), which has not arrived yet and was not given up."
        )
    due = now if row.next_attempt_at is None else _ms(row.next_attempt_at)
    return _waits(row, pause, now, due, holder) or _is_due(row, now, due, workers, limited_since, refusal)


def _is_due(
    row: DeliveryDetail,
    now: int,
    due: int,
    workers: Sequence[Worker],
    limited_since: int | None,
    refusal: str | None,
) -> str:
    """Return why a delivery that may be claimed is not claimed yet."""
    late, alive = f"It has been due since {moment(due)}", [each for each in workers if each.state == "alive"]
    if refusal is not None:
        return f"{late}, and the database takes no writes: {_sentence(refusal)}"
    if not alive:
        return f"{late}, and no worker is alive that could send it."
    if (row.reclaims or 0) >= QUARANTINE_AFTER:
        return (
            f"{late}, in quarantine: {row.reclaims} workers ended while they sent it, so it is sent alone; "
            f"{row.quarantine_rounds or 0} of {QUARANTINE_ROUNDS} such attempts have ended their worker: after "
            f"{QUARANTINE_ROUNDS} it is dead."
        )
    if limited_since is not None:
        since = f"since {moment(limited_since)}, because attempts to it time out"
        return f"{late}, and its destination is limited to one delivery at a time {since}."
    if all(worker.mode == "scheduled" for worker in alive):
        return f"{late}, and a worker claims it at its next tick."
    return f"{late}, and a worker claims it {'when it has a slot free for its destination' if now - due >= SLOT_MS else 'soon'}."


def _waits(row: DeliveryDetail, pause: Pause | None, now: int, due: int, holder: Worker | None) -> str | None:
    """Return why a delivery may not be claimed now; ``None``: it may."""
    attempt = f"attempt {row.attempts + 1}"
    if row.claimed_until is not None:
        return (
            f"It is claimed by {_holding(holder)} for {attempt} since {moment(row.claimed_at)}, and at the latest until "
            f"{moment(row.claimed_until)}, when any worker may claim it again."
        )
    if pause is not None and pause.probe_at is not None:
        return (
            f"Its destination was paused automatically at {moment(pause.paused_at)} ({pause.reason}): it waits, without "
            f"using up an attempt, until one delivery arrives; the next one is sent at {moment(pause.probe_at)}."
        )
    if pause is not None:
        whose = "this organization" if pause.organization_id else "all organizations"
        why = f" ({pause.reason})" if pause.reason else ""
        return (
            f"Its destination was paused for {whose} by {pause.paused_by} at {moment(pause.paused_at)}{why}: "
            "it waits, without using up an attempt, until the destination is resumed."
        )
    return _pauses(row, now, due, attempt)


def _pauses(row: DeliveryDetail, now: int, due: int, attempt: str) -> str | None:
    """Return why a delivery is due later; ``None``: it is due."""
    is_chat, again = kind_of(row.destination) == CHAT, f"it is tried again in {about(max(1000, due - now))}"
    if row.waiting_since is not None:
        what = "egress proxy" if (row.last_error or "").startswith(PROXY_FAILED) else "host"
        what = "chat settings of a worker" if is_chat else what
        again = again if due > now else "it is tried again"
        return f"It waits for the {what} since {moment(row.waiting_since)}, and {again}: {_sentence(row.last_error)}"
    if due > now and is_chat and row.error_class in {"waits", CHAT_LIMITED}:
        return f"It waits, without using up an attempt, and {again}: {_sentence(row.last_error)}"
    if due > now:
        status = "" if row.last_status_code is None else f" ({row.last_status_code})"
        last = "" if row.error_class is None else f"; the last one failed: {row.error_class}{status}"
        return f"The backoff before {attempt} ends in {about(max(1000, due - now))}, at {moment(due)}{last}."
    return None


def _holding(worker: Worker | None) -> str:
    """Return who has claimed a delivery, and whether they can still send it."""
    if worker is None:
        return "a worker"
    name = f"worker {worker.name}" if worker.name else "a worker"
    if worker.state == "stale":
        return f"{name}, which does not answer since {moment(worker.last_seen_at)},"
    return f"{name}, which has stopped," if worker.state == "stopped" else name


def _ms(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)


def _sentence(reason: str | None) -> str:
    """Return a stored reason with a full stop."""
    text = (reason or "it was answered with a failure").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
