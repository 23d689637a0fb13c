"""What a claim writes, what is kept of it in memory, and how a lease that ends is told from one that holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import ChatNodeOrigin, FlowNodeOrigin, UnsignedTestOrigin
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import Attempted, Returned
from flowactions_plugin.queue.lanes import Due, lane_of
from flowactions_plugin.queue.rules import Timing, Transition, failure_class
from flowactions_plugin.storage.database import Database
from tests.queueing import OutboxStore, Queue
from tests.rings import sampled
from tests.waiting import until

DESTINATION = "http://one.example.com:80"


async def put(queue: Queue, count: int, **changes: Any) -> list[str]:
    changes = {"url": f"{DESTINATION}/", "destination": DESTINATION, **changes}
    return [await queue.put(**changes) for _ in range(count)]


async def test_a_claim_leaves_the_due_time(queue: Queue) -> None:
    """A claim writes no column that is indexed; what it writes is gone when it ends, whichever way."""
    row_id = await queue.put()
    before = await queue.row(row_id)
    for end in ("release", "outcome"):
        (claim,) = await queue.store.claim(1)
        row = await queue.row(row_id)
        assert row.next_attempt_at == before.next_attempt_at
        assert row.claimed_until - row.updated_at == pytest.approx(30_000, abs=1000)
        assert row.claimed_by == claim.token
        if end == "release":
            await queue.store.complete([Returned(claim)])
        else:
            await queue.complete(claim, Outcome(0, 1, status_code=500), Transition("retrying", 5))
        row = await queue.row(row_id)
        assert (row.claimed_by, row.claimed_until) == (None, None)
        before = row


async def test_after_an_outage_a_worker_claims_at_once_what_is_its_own(queue: Queue) -> None:
    """Nobody else can have sent it. A lease of another worker that ended meanwhile has a grace."""
    queue.store.contact.prefix = "00000001"
    mine, others = [await queue.put() for _ in range(2)]
    assert len(await queue.store.claim(2)) == 2
    ended = int(await queue.database.time() * 1000)
    for row_id, prefix in ((mine, "00000001"), (others, "00000002")):
        changes = f"claimed_until = {ended}, claimed_by = '{prefix}{'0' * 24}'"
        await queue.run(f"UPDATE flowactions_outbox SET {changes} WHERE id = '{row_id}'")  # noqa: S608
    queue.store.contact.failed()
    assert [each.id for each in await queue.store.claim(2)] == [mine]


@pytest.mark.ci
async def test_claims_write_no_index_entry(queue: Queue) -> None:
    """On PostgreSQL nearly every claim is a heap-only update: there is room on the pages, and no indexed value changes."""
    if queue.database.dialect != "postgresql":
        pytest.skip("heap-only updates are PostgreSQL's")
    await put(queue, 200, body=b"x" * 300)
    for _ in range(4):
        await queue.store.claim(50, per_destination=1000)
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'flowactions_outbox'"

    async def counted() -> Any:
        async with queue.database.write() as connection:
            await connection.execute(text("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()"))
            row = (await connection.execute(text(query))).one()
        return row if row.n_tup_upd >= 200 else None

    row = await until(counted)
    assert row.n_tup_hot_upd >= 0.9 * row.n_tup_upd


@pytest.mark.parametrize(
    ("response", "kept"),
    [(b"", ""), (b"ok", "ok"), ("größer".encode(), "größer"), (b"\xffa\0\xfe", "\ufffda\ufffd\ufffd")],
)
async def test_the_attempt_that_delivers_is_in_the_log(queue: Queue, response: bytes, kept: str) -> None:
    """It is kept in its row, and yet is the last of the row's attempts, behind those that failed."""
    row_id = await queue.put(max_attempts=2)
    (claim,) = await queue.store.claim(1)
    await queue.complete(claim, Outcome(5, 6, status_code=503, response=b"no"), Transition("retrying"))
    (claim,) = await queue.store.claim(1)
    await queue.complete(claim, Outcome(7, 8, status_code=200, response=response), Transition("delivered"))
    found = await queue.queries.stored(row_id, "acme")
    assert found is not None
    log = [
        (each.number, each.started_at, each.duration_ms, each.status_code, each.error, bytes(each.response))
        for each in found[1]
    ]
    assert log == [(1, 5, 6, 503, None, b"no"), (2, 7, 8, 200, None, kept.encode())]
    async with queue.database.read() as connection:
        rows = await connection.execute(text("SELECT number FROM flowactions_attempts"))
        assert rows.scalars().all() == [1]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome(0, 0, status_code=503), "http_5xx"),
        (Outcome(0, 0, status_code=404), "http_4xx"),
        (Outcome(0, 0, error="timed out after 10 s while connecting"), "timeout"),
        (Outcome(0, 0, error="refused the connection"), "network"),
        (Outcome(0, 0, error="not allowed", final=True), "refused"),
    ],
)
def test_failures_are_of_a_kind(outcome: Outcome, kind: str) -> None:
    """Operators search by it."""
    assert failure_class(outcome) == kind


@pytest.mark.parametrize("kind", [FlowNodeOrigin, ChatNodeOrigin, UnsignedTestOrigin])
async def test_a_row_knows_its_flow_and_node(
    queue: Queue, kind: type[FlowNodeOrigin | ChatNodeOrigin | UnsignedTestOrigin]
) -> None:
    """Operators search by them, whether it is a webhook, a chat message or an author's test."""
    origin = kind(organization_id="acme", agent_id="a", flow_id="f", node_id="n")
    row = await queue.row(await queue.put(origin=origin))
    assert (row.flow_id, row.node_id) == ("f", "n")


@sampled("mode", ["ACCESS EXCLUSIVE", "SHARE"], size=1)
@pytest.mark.parametrize("is_new", [False, True])
async def test_a_claim_that_waits_takes_nothing_whose_outcome_waits_as_well(
    queue: Queue, mode: str, is_new: bool
) -> None:
    """Leases end while both wait for a lock; whoever claims had no failure, or starts when they have ended."""
    ids = set(await put(queue, 20))
    due = Due(lane_of("acme", DESTINATION, f"{DESTINATION}/"), "acme", DESTINATION, rows=20)
    url = queue.database._own_url
    asked, passed = 0, 0.0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return lease_clock() + passed

    async with Database(url) as other, Database(url) as third:
        # The time that the holder has after the lock does not end here.
        holder, later = OutboxStore(queue.database), OutboxStore(other, Timing(900.0, 899.0))
        later.contact.clock = clock
        holder.contact.prefix, later.contact.prefix = "a" * 8, "b" * 8
        claimed = await holder.claim([due])
        assert len(claimed) == 20
        await put(queue, 1, url=f"{DESTINATION}/other")
        if not is_new:
            assert len(await later.scan()) == 1
        async with third.write() as locking:
            if third.sql.is_server:
                await locking.execute(text(f"LOCK TABLE flowactions_outbox IN {mode} MODE"))
            now = {"now": await locking.run_sync(third.time_on) + 1}
            ending = text("UPDATE flowactions_outbox SET claimed_until = :now WHERE claimed_by IS NOT NULL")
            await locking.execute(ending, now)

            async def have_expired() -> bool:
                return await locking.run_sync(third.time_on) > now["now"]

            async def waits() -> bool:
                if not third.sql.is_server:
                    return asked > 0  # its thread asks for the lock
                # Not pg_stat_activity, whose list of sessions stays as it is within a transaction.
                query = (
                    "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
                    " WHERE datname = current_database() AND NOT granted"
                )
                return (await locking.execute(text(query))).first() is not None

            await until(have_expired)
            asked = 0
            claiming = asyncio.create_task(later.claim(20 if is_new else [due]))
            await until(waits)
            passed = 10.0
        for again in (await claiming, await later.claim(20)):  # the holder tries a moment later
            assert ids.isdisjoint(each.id for each in again)
        done = Outcome(0, 0, status_code=200)
        ends = await holder.complete([Attempted(each, done, Transition("delivered")) for each in claimed])
        assert {end.kind for end in ends.values()} == {"written"}
