from __future__ import annotations

from typing import Any

import pytest

from flowactions_plugin.insights.findings import findings_of, worst_of
from flowactions_plugin.insights.results import Bucket, Counted, Finding, Worker, Worst
from flowactions_plugin.insights.verdict import Facts, Share, judge
from flowactions_plugin.storage.postgresql import Snapshot
from tests.rings import sampled

NOW = 10**12
SCHEDULED = 180_000
NONE = Counted(number=0, exact=True)


def a_worker(seen_ms_ago: int, **changes: Any) -> Worker:
    values = dict.fromkeys(("id", "name", "version", "host_name"), "w") | {
        "pid": 1,
        "slots": 1,
        "in_flight": 0,
        "slow": 0,
    }
    times = {
        "last_seen_at": NOW - seen_ms_ago,
        "last_claim_at": None,
        "stopped_at": None,
        "clock_ahead_ms": None,
    }
    return Worker(**{**values, **times, "started_at": 0, "mode": "scheduled", "state": "alive", **changes})


def facts(due: int | None = None, claimed: int | None = None, alive: int = 1, **more: Any) -> Facts:
    """Give how deliveries stand: the oldest row is due, and a row was claimed, for so long."""
    gone = more.pop("absent_ms", None)
    stale = [] if gone is None else [a_worker(gone, state="stale")]
    values = {
        "now": NOW, "sees_all": True, "mode": "scheduled", "tick_seconds": 60, "uptime_ms": 0, "refusal": None,
        "due": NONE, "oldest_due_ms": due, "held_ms_ago": claimed, "waiting": NONE, "dead": NONE, "chat": NONE,
        "blocked": (), "paused": (0, 0), "paused_since": None, "alerts": None, "limited": {}, "buckets": (),
        "workers": [*[a_worker(0)] * alive, *stale],
    }  # fmt: skip
    return Facts(**{**values, **more})


def failing(attempts: int, *shares: Share) -> dict[str, Any]:
    """Give the attempts of the last minutes; those of these organizations have failed."""
    failed = sum(each.failed for each in shares)
    return {"buckets": [Bucket(at=0, delivered=attempts - failed, failed=failed)], "shares": shares}


def mine(attempts: int, failed: int) -> dict[str, Any]:
    """Give failures as one of the organization's own people sees them."""
    return {**failing(attempts, Share("acme", attempts, failed, 1)), "sees_all": False}


@pytest.mark.parametrize(
    ("mode", "tick", "expected"),
    [("scheduled", 60, 180_000), ("scheduled", 0.01, 15_000), ("continuous", 60, 15_000)],
)
def test_patience_is_three_ticks_or_fifteen_seconds(mode: str, tick: float, expected: int) -> None:
    """Workers write every ten seconds when they last claimed, so no less is told apart."""
    assert facts(alive=0, mode=mode, tick_seconds=tick).patience_ms == expected


@pytest.mark.parametrize(
    ("signs", "state", "says"),
    [
        (facts(alive=0), "idle", "Nothing is due."),
        (facts(None, 10**9), "idle", "Nothing is due."),
        (facts(SCHEDULED, alive=0), "ok", "due for 3 min"),
        (facts(SCHEDULED + 1, alive=0), "stalled", "nothing has been claimed, and no worker is alive"),
        (facts(SCHEDULED + 1, SCHEDULED + 1, 2), "stalled", "although 2 workers are alive"),
        (facts(10**7, SCHEDULED), "ok", "being claimed"),
        (facts(1000, 10**9), "ok", "being claimed"),
        (facts(1000, 5000, 0, absent_ms=59_999), "ok", "No worker is alive now"),
        (facts(1000, 0, **mine(20, 11)), "failing", "11 of the 20 attempts"),
        (facts(None, 0, **mine(20, 11)), "failing", "11 of the 20 attempts"),
        (facts(1000, 0, **mine(20, 10)), "ok", "being claimed"),
        (facts(1000, 0, **mine(19, 19)), "ok", "being claimed"),
        (facts(10**7, None, 0, **mine(20, 20)), "stalled", "no worker"),
        (facts(alive=0, absent_ms=59_999), "idle", "Nothing is due."),
        (facts(alive=0, absent_ms=60_000), "no_worker", "No worker is alive"),
        (facts(SCHEDULED, alive=0, absent_ms=60_000), "no_worker", "waits until one is"),
        (facts(SCHEDULED + 1, alive=0, absent_ms=60_000), "stalled", "no worker"),
        (facts(alive=0, absent_ms=60_000, **mine(20, 20)), "no_worker", "No worker"),
        (facts(refusal="it is read-only"), "unwritable", "takes no writes: it is read-only."),
        (facts(10**7, alive=0, refusal="its disk is full"), "unwritable", "its disk is full"),
    ],
)
def test_rows_that_nobody_claims_have_stalled(signs: Facts, state: str, says: str) -> None:
    """Both have to last: that rows are due, and that nothing is claimed. Nothing due is no stall, however long it is quiet."""
    verdict = judge(signs)
    assert verdict.state == state
    assert says in verdict.reason
    assert signs.alive or "being claimed" not in verdict.reason


@sampled(
    ("attempts", "shares", "organization"),
    [
        (24, [Share("acme", 24, 24, 1)], "acme"),
        (24, [Share("acme", 24, 24, 2)], None),
        (30, [Share("acme", 24, 24, 2), Share("globex", 6, 1, 1)], "acme"),
        (30, [Share("acme", 24, 24, 1), Share("globex", 6, 4, 1)], None),
    ],
    3,
)
def test_failures_of_one_organization_alone_are_no_failure_of_the_service(
    attempts: int, shares: list[Share], organization: str | None
) -> None:
    """Most attempts of the others arrive; where it alone sends, several destinations that fail have a cause in common."""
    verdict = judge(facts(None, 0, **failing(attempts, *shares)))
    assert (verdict.state, verdict.failing_organization) == (
        "idle" if organization else "failing",
        organization,
    )
    assert f"{sum(each.failed for each in shares)} of the {attempts} attempts" in verdict.reason


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (4999, None),
        (-4999, None),
        (5000, "is 5 s ahead of the database's"),
        (-240_000, "is 4 min behind the database's: receivers refuse what it signs"),
        (599_900, "is 10 min ahead of the database's: receivers refuse what it signs"),
    ],
)
def test_a_wrong_clock_of_a_worker_is_a_warning_to_operators(ahead: int, says: str | None) -> None:
    """From five seconds on; from four minutes on with what follows from it. Machines are nothing for an organization."""
    stands = facts(None, 0, workers=[a_worker(0, clock_ahead_ms=each) for each in (None, ahead, 9)])
    found = [(each.level, each.about, each.words) for each in findings_of(stands)]
    assert found == ([("warning", "clock", f"the clock of worker w {says}")] if says else [])
    assert findings_of(stands._replace(sees_all=False)) == []
    assert judge(stands).reason == "Nothing is due."
    assert stands.clock_ahead_ms == ahead


@pytest.mark.parametrize(
    ("snapshot", "level", "says"),
    [
        (Snapshot("process 7", 9000, 99_999), "note", "process 7 may still read for 2 h: 99,999"),
        (
            Snapshot("process 7 (pg_dump)", 900, 100_000),
            "warning",
            "process 7 (pg_dump) may still read for 15 min: 100,000",
        ),
        (
            Snapshot("replication slot old", None, 700_000),
            "warning",
            "replication slot old may still read: 700,000",
        ),
    ],
)
def test_what_keeps_old_versions_of_rows_is_found(snapshot: Snapshot, level: str, says: str) -> None:
    """Who it is, since when, and what it costs; from a hundred thousand on, which is noticed, a warning."""
    (found,) = findings_of(facts(None, 0, snapshot=snapshot))
    assert (found.level, found.about) == (level, "transactions")
    assert (
        found.words
        == f"PostgreSQL keeps what the {says} old versions of rows, which claims and searches pass over"
    )


@pytest.mark.parametrize(
    ("stands", "level"),
    [
        (facts(None, 0), "ok"),
        (facts(299_999, 0), "ok"),
        (facts(300_000, 0), "warning"),
        (facts(alive=0, absent_ms=60_000), "warning"),
        (facts(10**7, alive=0), "failed"),
    ],
)
def test_the_worst_of_verdict_and_findings_counts(stands: Facts, level: Worst) -> None:
    """A note is as good as nothing."""
    verdict, note = judge(stands), Finding("note", "paused", "")
    assert (verdict.level, bool(verdict.advice)) == (level, level != "ok")
    assert worst_of(verdict, [note]) == level
    assert worst_of(verdict, [note, Finding("failed", "workers", "")]) == "failed"
