"""The facts on deliveries, and one verdict on whether they work, for pages, ``flowactions doctor`` and metrics: pure, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowactions_plugin import clock
from flowactions_plugin.insights.curl import quoted
from flowactions_plugin.insights.results import Bucket, Counted, DestinationState, Verdict, Worker, Worst
from flowactions_plugin.log_text import printable
from flowactions_plugin.watch.fleet import Limited
from flowactions_plugin.watch.statistics import BUCKET_MS

if TYPE_CHECKING:
    from flowactions_plugin.storage.postgresql import Blocker, Snapshot

TICKS: Final = 3
"""Ticks without a claim after which deliveries have stalled, in scheduled mode."""

CONTINUOUS_SECONDS: Final = 15.0
"""Seconds without a claim after which they have, in continuous mode; also the least in scheduled mode, because workers
write every ten seconds when they last claimed."""

LEAST_ATTEMPTS: Final = 20
"""With fewer attempts within the last minutes, nothing is said about their failures."""

FAILING_SHARE: Final = 0.5

FAILING_MINUTES: Final = 15

SKEW_MS: Final = 5000
"""A clock that is so far from the database's is told; less may be the way there and back."""

WRONG_CLOCK_MS: Final = 240_000
"""Receivers reject a signature whose time is five minutes away."""

LATE_MS: Final = 300_000
"""Deliveries that leave so late are a warning, as in the alert ``FlowactionsOldestDue``."""

ABSENT_MS: Final = 60_000
"""For so long no worker may be alive, as while the only one is restarted."""


class Share(NamedTuple):
    """What one organization has of the attempts of the last minutes.

    Attributes:
        organization_id: which.
        attempts: how many are its own.
        failed: how many of these have failed, to destinations that still fail.
        destinations: how many destinations these are.
    """

    organization_id: str
    attempts: int
    failed: int
    destinations: int


class Blocked(NamedTuple):
    """Deliveries that wait without an attempt, because something fails here: a method of the host, or the egress proxy."""

    reason: str
    deliveries: Counted
    organizations: int
    since: int | None


class Facts(NamedTuple):
    """How deliveries stand, as far as a scope may see it: of this, verdict, findings and gauges are made.

    Attributes:
        now: Unix milliseconds.
        sees_all: whether operators look, who may read the names of machines.
        mode: how workers deliver by the settings: ``scheduled`` or ``continuous``. It counts where no worker is alive.
        tick_seconds: from one tick to the next, in scheduled mode.
        uptime_ms: for how long this process could have seen a worker, where none has ever been.
        refusal: why the database takes no writes; ``None``: it does.
        due: rows that may be claimed now, without those of paused destinations.
        oldest_due_ms: for how long the oldest of these has been due; ``None``: none is due.
        held_ms_ago: how long ago the newest claim that is held was made; ``None``: no row is claimed.
        waiting: rows that are neither delivered nor dead.
        dead: rows that ended without success.
        chat: chat connections that cannot send.
        blocked: why deliveries wait for something here, the most deliveries first.
        paused: how many pauses hold, and how many of them were set automatically.
        paused_since: when the first of them began.
        alerts: the destination of alerts, if it fails.
        workers: the processes that deliver, those seen last first.
        limited: of organizations, the destinations that workers limit, since when.
        buckets: the last day.
        shares: organizations with failed attempts of the last minutes, the most failures first; empty if most arrive.
        snapshot: what has kept the database from removing old versions of rows for long; ``None``: nothing.
        blockers: who holds locks for which others wait.
        lacking: rights on the tables that this process's role lacks.
        failing: destinations that fail now, those that have failed for longest first.
        quarantined: rows of the outbox that are in quarantine.
        inbound: of each provider of which no event was processed, the row of why the latest request failed.
    """

    now: int
    sees_all: bool
    mode: str
    tick_seconds: float
    uptime_ms: int
    refusal: str | None
    due: Counted
    oldest_due_ms: int | None
    held_ms_ago: int | None
    waiting: Counted
    dead: Counted
    chat: Counted
    blocked: Sequence[Blocked]
    paused: tuple[int, int]
    paused_since: int | None
    alerts: DestinationState | None
    workers: Sequence[Worker]
    limited: Limited
    buckets: Sequence[Bucket]
    shares: Sequence[Share] = ()
    snapshot: Snapshot | None = None
    blockers: Sequence[Blocker] = ()
    lacking: Sequence[str] = ()
    failing: Sequence[DestinationState] = ()
    quarantined: Sequence[Any] = ()
    inbound: Sequence[Any] = ()

    @property
    def alive(self) -> list[Worker]:
        """The workers that are alive."""
        return [each for each in self.workers if each.state == "alive"]

    @property
    def clock_ahead_ms(self) -> int:
        """By how much the clock of a live worker is ahead of the database's, that which is farthest; less than 0: behind."""
        return max((each.clock_ahead_ms or 0 for each in self.alive), key=abs, default=0)

    @property
    def in_ticks(self) -> bool:
        """Whether every worker delivers in scheduled mode; of none that is alive, what the settings say."""
        return "continuous" not in ({each.mode for each in self.alive} or {self.mode})

    @property
    def patience_ms(self) -> int:
        """For how long rows may be due while nothing is claimed."""
        return int(1000 * max(CONTINUOUS_SECONDS, TICKS * self.tick_seconds if self.in_ticks else 0))


def judge(facts: Facts) -> Verdict:
    """Return the verdict.

    Returns:
        ``unwritable`` first: nothing is queued then, and nothing is claimed. ``stalled`` before ``failing``: what is not
        claimed cannot arrive, whatever became of the rest. Failures of one organization alone are no ``failing``: the
        verdict names the organization.
    """
    return _stopped(facts) or _going(facts)


def _stopped(facts: Facts) -> Verdict | None:
    """Return the verdict on deliveries of which none leaves; ``None``: they leave, or nothing is due."""
    due, patience, alive = facts.oldest_due_ms, facts.patience_ms, len(facts.alive)
    claims = [facts.now - each.last_claim_at for each in facts.workers if each.last_claim_at is not None]
    if facts.held_ms_ago is not None:
        claims.append(facts.held_ms_ago)  # its worker may not have reported itself yet
    if facts.refusal is not None:
        reason = f"The database takes no writes: {facts.refusal}. Nothing is queued, claimed or completed."
        advice = "free disk space, end who holds the lock, or give the role its rights: flowactions doctor, check 'writing'"
        return Verdict("unwritable", reason, "failed", advice)
    if due is not None and due > patience and min(claims, default=due) > patience:
        last = f"the last claim was {about(min(claims))} ago" if claims else "nothing has been claimed"
        nobody = f"although {'a worker is' if alive == 1 else f'{alive} workers are'} alive"
        if not alive:
            nobody = "and no worker is alive"
        reason = f"Rows have been due for {about(due)} and {last}, {nobody}."
        advice = "see that a worker runs and reaches the database: flowactions status"
        return Verdict("stalled", reason, "failed", advice)
    seen = [facts.now - each.last_seen_at for each in facts.workers]
    if not alive and min([*seen, *claims], default=facts.uptime_ms) >= ABSENT_MS:
        reason = "No worker is alive: what is queued waits until one is."
        return Verdict("no_worker", reason, "warning", "see that a worker runs: flowactions status")
    return None


def _going(facts: Facts) -> Verdict:
    """Return the verdict on deliveries that leave, from what becomes of them."""
    said, advice, organization = "", "", None
    level: Worst = "ok"
    attempts, failed = attempts_of(facts.buckets)[0], sum(each.failed for each in facts.shares)
    if mostly_fail(attempts, failed):
        said = f"{failed} of the {attempts} attempts of the last {FAILING_MINUTES} minutes have failed"
        worst = facts.shares[0]
        if not facts.sees_all or not _is_own_fault(worst, attempts - worst.attempts, failed - worst.failed):
            advice = "see which destinations fail: flowactions destinations list"
            return Verdict("failing", f"{said}.", "failed", advice)
        said, organization = f" {said}: {worst.failed} of them are one organization's.", worst.organization_id
        whose = quoted(printable(organization))
        level = "warning"
        advice = f"see what its receivers answer: flowactions destinations list --organization {whose}"
    if (due := facts.oldest_due_ms) is None:
        return Verdict("idle", f"Nothing is due.{said}", level, advice, organization)
    if due >= LATE_MS:
        level = "warning"
        advice = advice or "see whose deliveries take the workers' time: flowactions status"
        if facts.in_ticks:
            said += " Every worker delivers in scheduled mode, which limits how many leave at each tick."
            if organization is None:
                advice += "; for any volume, set FLOWACTIONS_DELIVERY=continuous where workers run"
    going = "Rows are being claimed" if facts.alive else "No worker is alive now, as while one is restarted"
    reason = f"{going}; the oldest has been due for {about(due)}.{said}"
    return Verdict("ok", reason, level, advice, organization)


def clock_words(ahead_ms: int) -> str:
    """Return how far a clock is from the database's, and what follows."""
    said = f"{clock_offset(ahead_ms)}{' of' if ahead_ms > 0 else ''} the database's"
    return f"{said}: receivers refuse what it signs" if abs(ahead_ms) >= WRONG_CLOCK_MS else said


def clock_offset(ahead_ms: int | None) -> str:
    """Return how far a clock is from the database's: ``10 min ahead``, ``agrees``; empty where it is not known."""
    if ahead_ms is None or abs(ahead_ms) < SKEW_MS:
        return "" if ahead_ms is None else "agrees"
    return f"{about(abs(ahead_ms))} {'ahead' if ahead_ms > 0 else 'behind'}"


def moment(value: int | str | None) -> str:
    """Return a time to the second, in UTC."""
    return clock.moment(value, "an unknown time")


def about(milliseconds: int) -> str:
    """Return a duration to the nearest second, from two minutes on to the nearest minute, from two hours on to the nearest hour."""
    seconds = round(milliseconds / 1000)
    if seconds < 120:
        return f"{seconds} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"


def attempts_of(buckets: Sequence[Bucket]) -> tuple[int, int]:
    """Return how many attempts were made within the last minutes, and how many of these have failed."""
    late = buckets[-FAILING_MINUTES * 60_000 // BUCKET_MS :]
    failed = sum(each.failed for each in late)
    return failed + sum(each.delivered for each in late), failed


def mostly_fail(attempts: int, failed: int) -> bool:
    """Return whether so many of the last minutes' attempts have failed that somebody should know."""
    return attempts >= LEAST_ATTEMPTS and failed > FAILING_SHARE * attempts


def _is_own_fault(worst: Share, attempts: int, failed: int) -> bool:
    """Return whether the failures are one organization's own: most attempts of all others arrive."""
    return worst.destinations == 1 if attempts <= 0 else failed <= FAILING_SHARE * attempts
