from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowactions_plugin.insights.facts import Behind, Facts, FailingNode, Share, Unsent
from flowactions_plugin.insights.findings import advice_of, fails, findings_of, verdict_of, worst_of
from flowactions_plugin.insights.results import (
    Bucket,
    Counted,
    DestinationState,
    Finding,
    Verdict,
    Worker,
    Worst,
)
from flowactions_plugin.insights.standing import may_only_read
from flowactions_plugin.storage.postgresql import Blocker, Snapshot
from flowactions_plugin.storage.retention import DAY_MS
from flowactions_plugin.storage.schema import metadata
from flowactions_plugin.watch.fleet import BEAT_SECONDS

NOW = 10**12
SCHEDULED = 180_000
NONE, ONE = (Counted(number=each, exact=True) for each in range(2))


def a_worker(seen_ms_ago: int, **changes: Any) -> Worker:
    values = dict.fromkeys(("id", "name", "version", "host_name"), "w") | {
        "pid": 1,
        "slots": 1,
        "delivery_timeout": 10,
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


def judge(stands: Facts) -> Verdict:
    return verdict_of(stands, findings_of(stands))


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
    assert expected > 1000 * BEAT_SECONDS
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
        (facts(SCHEDULED, alive=0, absent_ms=60_000), "no_worker", "No worker is alive since"),
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
    stalled = [each for each in findings_of(signs) if each.state == "stalled"]
    does = "read the last lines of their logs" if signs.alive else "start the host, or 'flowactions worker'"
    assert [advice_of(each).startswith(does) for each in stalled] == [True] * len(stalled)


SIX = [Share(f"o{number}", 24, 24, 1) for number in range(6)]


@pytest.mark.parametrize(
    ("attempts", "shares", "organization"),
    [
        (24, [Share("acme", 24, 24, 1)], "acme"),
        (24, [Share("acme", 24, 24, 2)], None),
        (30, [Share("acme", 24, 24, 2), Share("globex", 6, 1, 1)], "acme"),
        (30, [Share("acme", 24, 24, 1), Share("globex", 6, 4, 1)], None),
        (30, [Share("acme", 24, 24, 1), Share("globex", 6, 3, 1)], "acme"),
        # Six fail alike beside those that work: none of them is the cause.
        (264, SIX, None),
        (400, [Share("acme", 130, 130, 1), *SIX[:5]], "acme"),
        (400, [Share("acme", 120, 120, 1), *SIX[:5]], None),
    ],
)
def test_failures_of_one_organization_alone_are_no_failure_of_the_service(
    attempts: int, shares: list[Share], organization: str | None
) -> None:
    """It has most failures, and most attempts of the others arrive; alone, several of its destinations have a cause in common."""
    stands = facts(None, 0, **failing(attempts, *shares))
    verdict, found = judge(stands), findings_of(stands)[0]
    assert verdict.state == ("idle" if organization else "failing")
    assert f"{sum(share.failed for share in shares)} of the {attempts} attempts" in found.words
    assert (found.level, found.page) == (("warning", "") if organization else ("failed", "/destinations"))
    assert ("of organization acme" in found.words) == (organization is not None)
    assert (f"of {len(shares)} organizations" in found.words) == (organization is None and len(shares) > 1)


def a_place(number: int = 0, **changes: Any) -> DestinationState:
    """Give a destination that has failed three times in a row, now."""
    values: dict[str, Any] = {
        "destination": f"https://h{number}.example:443",
        "organization_id": f"o{number}",
        "failing_since": NOW - 60_000,
        "last_failure_at": NOW,
        "failures_in_row": 3,
        "last_reason": f"cannot connect to h{number}.example:443: it refused the connection",
    }
    return DestinationState(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"failures_in_row": 2}, False),
        ({"failures_in_row": 1, "failing_since": NOW - 3_600_000}, True),
        ({"failures_in_row": 1, "failing_since": NOW - 3_599_999}, False),
        ({"last_failure_at": NOW - 900_000, "failing_since": 1}, True),
        ({"last_failure_at": NOW - 900_001, "failing_since": 1}, False),
        ({"last_failure_at": 2, "failing_since": 1, "waiting": Counted(number=1, exact=True)}, True),
        ({"failing_since": None}, False),
    ],
)
def test_a_destination_fails_in_a_row_or_for_long_and_now(changes: dict[str, Any], told: bool) -> None:
    """One that has healed does not: nor one of which nothing was tried lately, and nothing waits for it."""
    place = a_place(**changes)
    assert fails(place, NOW) == told
    assert [each.about for each in findings_of(facts(None, 0, failing=[place]))] == ["destination"] * told


@pytest.mark.parametrize(
    ("number", "organizations", "level"),
    [(4, 4, None), (5, 5, "failed"), (6, 2, "failed"), (6, 1, None), (200, 2, "failed")],
)
def test_many_destinations_of_several_organizations_are_a_failure(
    number: int, organizations: int, level: str | None
) -> None:
    """With what they have in common; those of one organization alone are its own."""
    places = [a_place(each, organization_id=f"o{each % organizations}") for each in range(number)]
    found = findings_of(facts(None, 0, failing=places))
    many = [each for each in found if each.about == "destinations"]
    assert [each.level for each in many] == ([level] if level else [])
    for each in many:
        alike = f"{number} destinations fail alike: cannot connect to …: it refused the connection"
        assert each.words == f"{number} destinations fail, of {organizations} organizations; {alike}"
    named = [each for each in found if each.about == "destination" and each.act == "pause"]
    assert [each.destination for each in named] == [each.destination for each in places[:5]]
    assert ("1 more destination fails" in [each.words for each in found]) == (number == 6)
    different = [replace(each, last_reason=str(at)) for at, each in enumerate(places)]
    assert all("alike" not in each.words for each in findings_of(facts(None, 0, failing=different)))


def ended(nodes: int, rows: int = 1, ago: int = 0, reason: str = "the node was deleted") -> list[Unsent]:
    """Give deliveries of so many nodes that ended without an attempt."""
    return [
        Unsent(f"o{node % 3}", "f", f"n{node}", reason, NOW - ago - number)
        for number in range(rows)
        for node in range(nodes)
    ]


@pytest.mark.parametrize(
    ("unsent", "level", "says"),
    [
        (ended(1), "note", "1 delivery of 1 node and 1 organization ended without an attempt"),
        (ended(4, 100), "note", "400 deliveries of 4 nodes and 3 organizations"),
        (ended(5), "failed", "5 deliveries of 5 nodes and 3 organizations"),
        # Not within minutes.
        ([*ended(4), *[each._replace(node_id="x") for each in ended(1, ago=1_000_000)]], "note", "5 deliveries of 5 nodes"),
        ([*ended(5), *ended(2, reason="other")], "failed", "the node was deleted, and for 1 other reason"),
        (ended(1, 1000), "note", "1,000+ deliveries"),
    ],
)  # fmt: skip
def test_deliveries_that_ended_without_an_attempt_are_found(
    unsent: list[Unsent], level: str, says: str
) -> None:
    """How many, since when, whose and why; of many nodes within minutes it is a failure, a few were deleted. They can be retried."""
    (found,) = findings_of(facts(None, 0, unsent=unsent))
    assert (found.level, found.about, found.act, says in found.words) == (level, "unsent", "retry", True), (
        found.words
    )
    assert "the first at 2001-09-09T01:" in found.words
    assert found.where.startswith("status:dead error:not_sent ended-since:2001-09-09T01:")
    assert f"to retry them: flowactions outbox retry --where '{found.where}'" in advice_of(found)
    assert "organization" not in findings_of(facts(None, 0, unsent=unsent, sees_all=False))[0].words


@pytest.mark.parametrize(
    ("due", "more", "says"),
    [
        (299_999, {}, None),
        (300_000, {}, "the oldest delivery has been due for 5 min; every worker delivers in scheduled mode"),
        (300_000, {"workers": [a_worker(0, mode="continuous")]}, "the oldest delivery has been due for 5 min"),
        (
            300_000,
            {"workers": [a_worker(0, mode="continuous")], "busiest": ("acme", "https://h.example:443", 1200)},
            "5 min; 1,200 of those that are due are for https://h.example:443 of organization acme",
        ),
    ],
)
def test_deliveries_that_leave_late_are_a_warning(due: int, more: dict[str, Any], says: str | None) -> None:
    """With whose they are; deliveries go on all the same. What has stalled is not told twice."""
    stands = facts(due, 0, **more)
    found = [each for each in findings_of(stands) if each.about == "late"]
    assert [(each.level, each.words.endswith(says or "") or (says or "") in each.words) for each in found] == (
        [("warning", True)] if says else []
    )
    assert all(("DELIVERY=continuous" in each.advice) == ("scheduled mode" in each.words) for each in found)
    assert judge(stands).state == "ok"
    assert not [each for each in findings_of(facts(10**7, 10**7)) if each.about == "late"]


def test_locks_and_rights_are_found() -> None:
    """Who holds which lock, since when; the rights that are missing."""
    held = Blocker("process 7 (psql of ann)", "flowactions_audit", False, 90.0)
    found = findings_of(facts(None, 0, blockers=[held], lacking=["DELETE on flowactions_audit"]))
    assert [(each.level, each.about) for each in found] == [("failed", "rights"), ("warning", "locks")]
    assert found[0].words == "this process's role lacks DELETE on flowactions_audit"
    assert found[1].words.startswith(
        "process 7 (psql of ann) holds a lock on flowactions_audit for 1 min 30 s: what needs"
    )


def test_a_node_is_named_with_the_command_that_shows_its_deliveries() -> None:
    """An organization's people need not name it."""
    node = FailingNode("acme", "flow 1", "n", 3, 4, "it answered 404")
    (found,) = findings_of(facts(None, 0, nodes=[node]))
    assert (
        found.words
        == "node n of flow flow 1 of organization acme: 3 of its last 4 deliveries have failed: it answered 404"
    )
    assert (
        advice_of(found)
        == "see them: flowactions outbox list --where 'organization:acme flow:\"flow 1\" node:n'"
    )
    (mine_,) = findings_of(facts(None, 0, nodes=[node], sees_all=False))
    assert (mine_.where, "acme" in mine_.words) == ('flow:"flow 1" node:n', False)


def test_workers_that_end_attempts_after_different_times_are_a_warning_to_operators() -> None:
    """Once, with one of each; of those that are gone, nothing is said, and patience is with the longest."""
    alive = [a_worker(0, name=name, delivery_timeout=each) for name, each in (("a", 60), ("b", 10), ("c", 60))]
    gone = a_worker(0, name="d", delivery_timeout=1, state="stopped")
    stands = facts(None, 0, workers=[*alive, gone])
    words = "workers end attempts after different times: after 10 s (b), after 60 s (c)"
    assert ("warning", words) in [(each.level, each.words) for each in findings_of(stands)]
    assert stands._replace(mode="continuous", workers=[a_worker(0, mode="continuous")]).patience_ms == 15_000
    for each in (a_worker(0, mode="continuous", delivery_timeout=seconds) for seconds in (1, 9)):
        assert facts(workers=[each]).patience_ms == 15_000
    assert facts(workers=[a_worker(0, mode="continuous", delivery_timeout=60)]).patience_ms == 65_000
    for quiet in (stands._replace(sees_all=False), stands._replace(workers=[alive[0], alive[2], gone])):
        assert "timeout" not in [each.about for each in findings_of(quiet)]


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


def test_of_wrong_clocks_the_worst_comes_first() -> None:
    """Those of workers that are alive; of more than five, how many more."""
    gone = a_worker(0, clock_ahead_ms=600_000, state="stale")
    alive = [a_worker(0, name=str(each), clock_ahead_ms=each) for each in (5000, -9000, 6000, 6500, 7000, 8000)]
    told = [each.words for each in findings_of(facts(workers=[gone, *alive])) if each.about == "clock"]
    assert [each.split()[4] for each in told[:5]] == ["-9000", "8000", "7000", "6500", "6000"]
    assert told[5:] == ["1 more worker has a wrong clock"]


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
        (facts(1000, 0, alive=0, absent_ms=59_999, waiting=ONE), "warning"),
        (facts(1000, 0, alive=0, absent_ms=60_000, waiting=ONE), "failed"),
        (facts(10**7, alive=0), "failed"),
        (facts(None, 0, paused=(1, 0), paused_since=NOW - DAY_MS + 1), "ok"),
        (facts(None, 0, paused=(1, 0), paused_since=NOW - DAY_MS), "warning"),
        (facts(None, 0, reads_only=True), "ok"),
    ],
)
def test_the_worst_finding_counts(stands: Facts, level: Worst) -> None:
    """A note is as good as nothing. They come the worst first."""
    found = findings_of(stands)
    assert worst_of(found) == level
    assert [each.level for each in found] == sorted(
        (each.level for each in found), key=["failed", "warning", "note"].index
    )
    assert worst_of([*found, Finding("failed", "workers", "")]) == "failed"


def test_a_finding_leads_to_the_page_that_shows_more() -> None:
    """Connections, or destinations."""
    found = findings_of(facts(chat=ONE, paused=(1, 0), paused_since=NOW, limited={"acme": {"https://h": NOW}}))
    pages = {"chat": "/connections", "paused": "/destinations", "limited": "/destinations"}
    assert {each.about: each.page for each in found} == pages


def test_a_role_that_writes_nowhere_and_reads_all_may_only_read() -> None:
    """One that lacks a right to read, or has one to write, was not made for that."""
    writes = [f"{kind} on {name}" for name in metadata.tables for kind in ("INSERT", "UPDATE", "DELETE")]
    lacking = (writes, writes[1:], [*writes, "SELECT on flowactions_outbox"])
    assert [may_only_read(each) for each in lacking] == [True, False, False]


def test_what_waits_behind_a_destination_that_fails_is_told_once() -> None:
    """With the destination: its failures are why the head has not arrived. Of another one, the head is named."""
    place = a_place(1)
    heads = [
        Behind("head", place.organization_id, destination, "it answered 500", 3, NOW - 3_600_000)
        for destination in (place.destination, "https://another.example:443")
    ]
    told = findings_of(facts(failing=[place], behind=heads))
    assert [each.words for each in told if each.about == "behind"] == [
        each.words for each in findings_of(facts(behind=heads[1:])) if each.about == "behind"
    ]
    assert [each.about for each in told].count("destination") == 1


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, "free disk space"),
        ({"refusal": "it is read-only"}, "have the URL name the primary"),
        ({"lacking": ["UPDATE on flowactions_outbox"]}, "grant it"),
        ({"blockers": [Blocker("process 7", "flowactions_outbox", False, 8.5)]}, "pg_terminate_backend"),
    ],
)
def test_what_to_do_about_refused_writes_depends_on_their_cause(more: dict[str, Any], advice: str) -> None:
    """Free disk space helps nobody whose role lacks a right."""
    told = [each for each in findings_of(facts(**{"refusal": "refused", **more})) if each.state == "unwritable"]
    assert [advice in advice_of(each) for each in told] == [True]


def test_a_worker_that_was_started_takes_the_place_of_one_only() -> None:
    """Of two of a machine that do not answer, one was started again: the other is named."""
    lost = [
        a_worker(seen, state="stale", name=name) for seen, name in ((300_000, "first"), (120_000, "second"))
    ]
    workers = [a_worker(0, started_at=NOW - 60_000), *lost]
    (found,) = [each for each in findings_of(facts(workers=workers)) if each.about == "workers"]
    assert "second does not answer since" in found.words
    assert "first does not" not in found.words
