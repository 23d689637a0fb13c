"""One verdict on whether deliveries work, for pages, ``flowactions doctor`` and metrics: pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from flowactions_plugin import clock
from flowactions_plugin.insights.results import Verdict

if TYPE_CHECKING:
    from flowactions_plugin.storage.postgresql import Snapshot

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

MANY_KEPT: Final = 100_000
"""So many old versions of rows make statements noticeably slower."""


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


class HealthSample(NamedTuple):
    """What the verdict is made of.

    Attributes:
        oldest_due_ms: for how long the oldest row that may be claimed now has been due, rows of paused destinations apart;
            ``None``: there is none.
        claimed_ms_ago: when a row was last claimed; ``None``: it is not known of any.
        alive: how many workers are alive.
        attempts: how many were made within the last minutes.
        failed: how many of these have failed, to destinations that still fail.
        absent_ms: for how long no worker has been alive, as far as is known; ``None``: one is.
        refusal: why the database takes no writes; ``None``: it does.
        worst: the organization with the most failures, where several are judged together; ``None``: it is not known, or
            one is judged.
        clock_ahead_ms: by how much the clock of a live worker is ahead of the database's, that which is farthest from it;
            less than 0: behind.
        snapshot: what has kept the database from removing old versions of rows for long; ``None``: nothing.
        in_ticks: whether every worker delivers in scheduled mode.
    """

    oldest_due_ms: int | None
    claimed_ms_ago: int | None
    alive: int
    attempts: int = 0
    failed: int = 0
    absent_ms: int | None = None
    refusal: str | None = None
    worst: Share | None = None
    clock_ahead_ms: int = 0
    snapshot: Snapshot | None = None
    in_ticks: bool = False


def patience_ms(mode: str, tick_seconds: float) -> int:
    """Return for how long rows may be due while nothing is claimed.

    Args:
        mode: of the workers: ``scheduled`` or ``continuous``.
        tick_seconds: from one tick to the next, in scheduled mode.
    """
    seconds = CONTINUOUS_SECONDS
    if mode != "continuous":
        seconds = max(seconds, TICKS * tick_seconds)
    return int(seconds * 1000)


def judge(sample: HealthSample, patience: int) -> Verdict:
    """Return the verdict.

    Args:
        sample: how deliveries stand.
        patience: see `patience_ms`.

    Returns:
        ``unwritable`` first: nothing is queued then, and nothing is claimed. ``stalled`` before ``failing``: what is not
        claimed cannot arrive, whatever became of the rest. Failures of one organization alone are no ``failing``: the
        verdict names the organization. A wrong clock of a worker is part of the reason, and so is a transaction that makes
        claims slower.
    """
    verdict = _judged(sample, patience)
    more = ""
    if abs(sample.clock_ahead_ms) >= SKEW_MS:
        more += f" A worker's clock is {clock_words(sample.clock_ahead_ms)}."
    if sample.snapshot is not None and sample.snapshot.kept >= MANY_KEPT:
        more += f" {snapshot_words(sample.snapshot)}."
    return replace(verdict, reason=verdict.reason + more, clock_ahead_ms=sample.clock_ahead_ms)


def snapshot_words(snapshot: Snapshot) -> str:
    """Return what keeps old versions of rows, for how long, and what follows."""
    since = "" if snapshot.seconds is None else f" for {about(int(snapshot.seconds * 1000))}"
    return (
        f"PostgreSQL keeps what the {snapshot.holder} may still read{since}: {snapshot.kept:,} old versions of rows, which "
        "claims and searches pass over"
    )


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


def _judged(sample: HealthSample, patience: int) -> Verdict:
    if sample.refusal is not None:
        return Verdict(
            state="unwritable",
            reason=f"The database takes no writes: {sample.refusal}. Nothing is queued, claimed or completed.",
        )
    due = sample.oldest_due_ms
    claimed = sample.claimed_ms_ago
    if due is not None and due > patience and (claimed is None or claimed > patience):
        nobody = "and no worker is alive" if not sample.alive else f"although {_workers(sample.alive)}"
        last = "nothing has been claimed" if claimed is None else f"the last claim was {about(claimed)} ago"
        return Verdict(
            state="stalled",
            reason=f"Rows have been due for {about(due)} and {last}, {nobody}.",
            waited_ms=due if claimed is None else min(due, claimed),
        )
    if sample.absent_ms is not None and sample.absent_ms >= ABSENT_MS:
        return Verdict(state="no_worker", reason="No worker is alive: what is queued waits until one is.")
    own: Share | None = None
    said = ""
    if mostly_fail(sample.attempts, sample.failed):
        said = f"{sample.failed} of the {sample.attempts} attempts of the last {FAILING_MINUTES} minutes have failed"
        own = sample.worst if sample.worst is not None and _is_own_fault(sample, sample.worst) else None
        if own is None:
            return Verdict(state="failing", reason=f"{said}.")
        said = f" {said}: {own.failed} of them are one organization's."
    organization = None if own is None else own.organization_id
    if due is None:
        return Verdict(state="idle", reason=f"Nothing is due.{said}", failing_organization=organization)
    if sample.in_ticks and due >= LATE_MS:
        said += " Every worker delivers in scheduled mode, which limits how many leave at each tick."
    claims = "Rows are being claimed" if sample.alive else "No worker is alive now, as while one is restarted"
    reason = f"{claims}; the oldest has been due for {about(due)}.{said}"
    return Verdict(state="ok", reason=reason, failing_organization=organization)


def mostly_fail(attempts: int, failed: int) -> bool:
    """Return whether so many of the last minutes' attempts have failed that somebody should know."""
    return attempts >= LEAST_ATTEMPTS and failed > FAILING_SHARE * attempts


def _is_own_fault(sample: HealthSample, worst: Share) -> bool:
    """Return whether the failures are one organization's own: most attempts of all others arrive."""
    attempts, failed = sample.attempts - worst.attempts, sample.failed - worst.failed
    if attempts <= 0:
        return worst.destinations == 1
    return failed <= FAILING_SHARE * attempts


def _workers(alive: int) -> str:
    return "a worker is alive" if alive == 1 else f"{alive} workers are alive"
