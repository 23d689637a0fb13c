from __future__ import annotations

import pytest

from flowactions_plugin.insights.verdict import HealthSample, Share, judge, patience_ms
from flowactions_plugin.storage.postgresql import Snapshot
from tests.rings import sampled

SCHEDULED = patience_ms("scheduled", 60)


@pytest.mark.parametrize(
    ("mode", "tick", "expected"),
    [("scheduled", 60, 180_000), ("scheduled", 0.01, 15_000), ("continuous", 60, 15_000)],
)
def test_patience_is_three_ticks_or_fifteen_seconds(mode: str, tick: float, expected: int) -> None:
    """Workers write every ten seconds when they last claimed, so no less is told apart."""
    assert patience_ms(mode, tick) == expected


@pytest.mark.parametrize(
    ("signs", "state", "says"),
    [
        (HealthSample(None, None, 0), "idle", "Nothing is due."),
        (HealthSample(None, 10**9, 1), "idle", "Nothing is due."),
        (HealthSample(SCHEDULED, None, 0), "ok", "due for 3 min"),
        (HealthSample(SCHEDULED + 1, None, 0), "stalled", "nothing has been claimed, and no worker is alive"),
        (HealthSample(SCHEDULED + 1, SCHEDULED + 1, 2), "stalled", "although 2 workers are alive"),
        (HealthSample(10**7, SCHEDULED, 1), "ok", "being claimed"),
        (HealthSample(1000, 10**9, 1), "ok", "being claimed"),
        (HealthSample(1000, 5000, 0, absent_ms=59_999), "ok", "No worker is alive now"),
        (HealthSample(1000, 0, 1, attempts=20, failed=11), "failing", "11 of the 20 attempts"),
        (HealthSample(None, 0, 1, attempts=20, failed=11), "failing", "11 of the 20 attempts"),
        (HealthSample(1000, 0, 1, attempts=20, failed=10), "ok", "being claimed"),
        (HealthSample(1000, 0, 1, attempts=19, failed=19), "ok", "being claimed"),
        (HealthSample(10**7, None, 0, attempts=20, failed=20), "stalled", "no worker"),
        (HealthSample(None, None, 0, absent_ms=59_999), "idle", "Nothing is due."),
        (HealthSample(None, None, 0, absent_ms=60_000), "no_worker", "No worker is alive"),
        (HealthSample(SCHEDULED, None, 0, absent_ms=60_000), "no_worker", "waits until one is"),
        (HealthSample(SCHEDULED + 1, None, 0, absent_ms=60_000), "stalled", "no worker"),
        (HealthSample(None, None, 0, attempts=20, failed=20, absent_ms=60_000), "no_worker", "No worker"),
        (
            HealthSample(None, None, 1, refusal="it is read-only"),
            "unwritable",
            "takes no writes: it is read-only.",
        ),
        (HealthSample(10**7, None, 0, refusal="its disk is full"), "unwritable", "its disk is full"),
    ],
)
def test_rows_that_nobody_claims_have_stalled(signs: HealthSample, state: str, says: str) -> None:
    """Both have to last: that rows are due, and that nothing is claimed. Nothing due is no stall, however long it is quiet."""
    verdict = judge(signs, SCHEDULED)
    assert verdict.state == state
    assert says in verdict.reason
    assert signs.alive or "being claimed" not in verdict.reason
    assert (verdict.waited_ms is not None) == (state == "stalled")


def test_a_stall_is_as_long_as_both() -> None:
    """A row that was enqueued long ago and claimed since has not waited for so long."""
    assert judge(HealthSample(10**7, SCHEDULED + 5, 1), SCHEDULED).waited_ms == SCHEDULED + 5


@sampled(
    ("attempts", "failed", "worst", "organization"),
    [
        (24, 24, Share("acme", 24, 24, 1), "acme"),
        (24, 24, Share("acme", 24, 24, 2), None),
        (30, 25, Share("acme", 24, 24, 2), "acme"),
        (30, 28, Share("acme", 24, 24, 1), None),
    ],
    3,
)
def test_failures_of_one_organization_alone_are_no_failure_of_the_service(
    attempts: int, failed: int, worst: Share, organization: str | None
) -> None:
    """Most attempts of the others arrive; where it alone sends, several destinations that fail have a cause in common."""
    verdict = judge(HealthSample(None, 0, 1, attempts=attempts, failed=failed, worst=worst), SCHEDULED)
    assert (verdict.state, verdict.failing_organization) == (
        "idle" if organization else "failing",
        organization,
    )
    assert f"{failed} of the {attempts} attempts" in verdict.reason


@sampled(
    ("ahead", "says"),
    [
        (4999, None),
        (-4999, None),
        (5000, "is 5 s ahead of the database's."),
        (-240_000, "is 4 min behind the database's: receivers refuse what it signs."),
        (599_900, "is 10 min ahead of the database's: receivers refuse what it signs."),
    ],
    2,
)
def test_a_wrong_clock_of_a_worker_is_part_of_the_reason(ahead: int, says: str | None) -> None:
    """From five seconds on; from four minutes on with what follows from it."""
    verdict = judge(HealthSample(None, 0, 1, clock_ahead_ms=ahead), SCHEDULED)
    assert verdict.state == "idle"
    assert verdict.reason == "Nothing is due." + (f" A worker's clock {says}" if says else "")
    assert verdict.clock_ahead_ms == ahead


@pytest.mark.parametrize(
    ("snapshot", "says"),
    [
        (None, ""),
        (Snapshot("process 7", 9000, 99_999), ""),
        (
            Snapshot("process 7 (pg_dump of backup)", 900, 100_000),
            (
                " PostgreSQL keeps what the process 7 (pg_dump of backup) may still read for 15 min: 100,000 old versions of rows, "
                "which claims and searches pass over."
            ),
        ),
        (
            Snapshot("replication slot old", None, 700_000),
            (
                " PostgreSQL keeps what the replication slot old may still read: 700,000 old versions of rows, which claims and "
                "searches pass over."
            ),
        ),
    ],
)
def test_what_keeps_old_versions_of_rows_is_part_of_the_reason(snapshot: Snapshot | None, says: str) -> None:
    """Who it is, since when, and what it costs; from a hundred thousand on, which is noticed."""
    verdict = judge(HealthSample(None, 0, 1, snapshot=snapshot), SCHEDULED)
    assert verdict.reason == f"Nothing is due.{says}"
