from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from sqlalchemy import text

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Actor, Scope
from flowactions_plugin.queue.claimed import Attempted, Ended, Returned
from flowactions_plugin.queue.lanes import Due, lane_of
from flowactions_plugin.queue.outcomes import MAY_BE_SENT
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.queue.statements import FOLDER, statement
from tests.bulk import copy
from tests.outages import a_database
from tests.queueing import SOMEBODY, Queue, claimed

OK = Outcome(0, 1, status_code=200)
FAILED = Outcome(0, 1, status_code=500)
OWN, OTHERS = "0123abcd", "4567cdef"

STATES: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "pending": ({}, True),
    "retrying": ({"status": "retrying"}, True),
    "dead": ({"status": "dead"}, False),
    "delivered": ({"status": "delivered"}, False),
    "not due": ({"next_attempt_at": 60_000}, False),
    "claimed": ({"claimed_by": OTHERS, "claimed_until": 60_000}, False),
    "own": ({"claimed_by": OWN, "claimed_until": 60_000}, False),
    "expired in the grace": ({"claimed_by": OTHERS, "claimed_until": -10_000}, False),
    "own, expired in the grace": ({"claimed_by": OWN, "claimed_until": -10_000}, True),
    "expired": ({"claimed_by": OTHERS, "claimed_until": -60_000}, True),
}
"""States of rows, times from now on, and whether a worker may take them that believes no lease to have ended for 30 s."""

PAUSES: Final[dict[str, tuple[Scope, Actor, bool]]] = {
    "of its organization": (Scope("acme"), SOMEBODY, False),
    "of all": (Scope(None), SOMEBODY, False),
    "of another organization": (Scope("globex"), SOMEBODY, True),
    "automatic": (Scope("acme"), AUTOMATIC, False),
}


async def test_a_claim_waits_for_no_row_that_another_transaction_holds(postgres_url: str) -> None:
    """It passes it over, and takes the next one; SQLite has one writer at a time."""
    async with a_database(postgres_url) as database:
        queue = Queue(database)
        held, free = [await queue.put() for _ in range(2)]
        async with database.write() as other:
            await other.execute(
                text("SELECT 1 FROM flowactions_outbox WHERE id = :id FOR UPDATE"), {"id": held}
            )
            async with asyncio.timeout(300):
                assert [each.id for each in await queue.store.claim(10)] == [free]


class TestClaims:
    async def test_a_claim_takes_the_oldest_up_to_the_limit(self, queue: Queue) -> None:
        """Rows that are due are claimed oldest first, and no more than the limit (§8)."""
        ids = [await queue.put() for _ in range(5)]
        for age, row_id in enumerate(ids):
            due = 1000 - age
            await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {due} WHERE id = '{row_id}'")  # noqa: S608
        for _ in range(2):
            await queue.put(url="http://127.0.0.1/other", state={"next_attempt_at": 999})
        claimed = await queue.store.claim(3)
        assert {delivery.id for delivery in claimed} == set(ids[2:])

    @pytest.mark.parametrize("due", [-(1 << 63), -1])
    async def test_a_due_time_before_1970_is_due(self, queue: Queue, due: int) -> None:
        """Whoever writes one by hand means at once; a signal finds it, too."""
        row_id = await queue.put()
        await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {due}")  # noqa: S608
        (found,) = await queue.store.scan()
        heard = Due(found.lane, found.organization_id, found.destination)
        for asks in ([found], [heard]):
            assert [each.id for each in await queue.store.claim(asks)] == [row_id]
            await queue.run("UPDATE flowactions_outbox SET claimed_by = NULL, claimed_until = NULL")
        assert [each.id for each in await queue.store.claim(1)] == [row_id]

    async def test_a_claim_takes_a_thousand_rows_of_one_lane(self, queue: Queue) -> None:
        """As many as a tick may claim."""
        await copy(queue.database, await queue.put(), 1100)
        assert len(await queue.store.claim(1000)) == 1000

    async def test_of_a_destination_no_more_than_its_limit_is_claimed(self, queue: Queue) -> None:
        """Over its lanes, with what was sent before; the limit of all counts that, too."""
        for url in ("http://a/x", "http://a/y", "http://b/x", "http://b/y") * 2:
            await queue.put(url=url, destination=url[:8])
        claimed = await queue.store.claim(10, per_destination=3)
        assert Counter(row.destination for row in claimed) == {"http://a": 3, "http://b": 3}
        for limit, sent, left in (
            (10, 2, ["http://a", "http://b"]),
            (10, 3, ["http://b"]),
            (4, 3, ["http://b"]),
            (3, 3, []),
        ):
            asks = await queue.store.oldest(limit, 3, {("acme", "http://a"): sent})
            assert sorted(due.destination for due in asks for _ in range(due.rows)) == left

    async def test_a_claimed_row_is_claimed_by_nobody_else(self, queue: Queue) -> None:
        """Simultaneous claims share the rows out without overlap."""
        ids = {await queue.put() for _ in range(30)}
        claims = await asyncio.gather(*(queue.store.claim(10) for _ in range(4)))
        taken = [delivery.id for claim in claims for delivery in claim]
        assert sorted(taken) == sorted(ids)

    async def test_an_expired_lease_is_reclaimed_without_using_up_an_attempt(self, queue: Queue) -> None:
        """The new holder writes; the old one, waking late, changes nothing."""
        row_id = await queue.put()
        (late,) = await queue.store.claim(1)
        await queue.expire_claims()
        (second,) = await queue.store.claim(1)
        assert (second.id, second.attempts, second.reclaims) == (row_id, 0, 1)
        assert [await queue.store.whole(each) for each in (late, second)] == [None, second]
        assert not await queue.complete(late, OK, Transition("delivered"))
        assert (await queue.store.complete([Returned(late)]))[row_id].kind == "reclaimed"
        assert not await queue.mark_dead(late, "late")
        assert (await queue.row(row_id)).status == "pending"
        assert await queue.complete(second, FAILED, Transition("retrying", 5))
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.takeovers, row.claimed_by) == ("retrying", 1, 0, None)

    async def test_a_row_that_was_reclaimed_three_times_is_claimed_for_quarantine_only(
        self, queue: Queue
    ) -> None:
        """The next claims pass over it, wherever they search, and it is sent alone."""
        row_id = await queue.put()
        for reclaims in range(4):
            (claimed,) = await queue.store.claim(10)
            assert (claimed.id, claimed.reclaims) == (row_id, reclaims)
            await queue.expire_claims()
        assert await queue.store.claim(10) == []
        assert await queue.store.claim(10, per_destination=5) == []
        place = Due(lane_of("acme", claimed.destination, claimed.url), "acme", claimed.destination)
        assert await queue.store.claim([place._replace(rows=10)]) == []
        assert await queue.store.scan() == await queue.store.look() == []
        alone = await queue.store.claim_quarantined()
        assert alone is not None
        assert alone.id == row_id
        await queue.expire_claims()
        holder = await queue.store.claim_quarantined()
        assert holder is not None
        assert await queue.store.begin_quarantined(alone) is None  # it woke too late: the other one sends it
        assert await queue.store.begin_quarantined(holder) == holder
        assert (await queue.row(row_id)).quarantine_rounds == 1


async def a_row(queue: Queue, name: str, **state: Any) -> tuple[str, str]:
    """Write a row of a destination of its own, which is paused if ``name`` is of a pause; give the ids of both."""
    host = f"https://host-{[*STATES, *PAUSES].index(name)}:443"
    if name in PAUSES:
        await Operations(queue.database).pause(PAUSES[name][0], host, PAUSES[name][1])
    return await queue.put(destination=host, state=state), host


@pytest.mark.parametrize("takeovers", [2, 3])
async def test_every_statement_finds_the_rows_that_may_be_taken(
    queue: Queue, takeovers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each state: what looks, claims and rounds in quarantine find, and in which order."""
    store, now = queue.store, int(queue.database.clock() * 1000)
    store.contact.prefix = OWN
    monkeypatch.setattr(store.contact, "grace", lambda: 30.0)
    asks, ages, free = {}, {}, []
    for number, name in enumerate([*STATES, *PAUSES]):
        since = {"next_attempt_at": -1000 + number // 2, "waiting_since": -7000, "expires_at": 60_000}
        state = {**since, "takeovers": takeovers, **STATES.get(name, ({},))[0]}
        for column in {*since, "claimed_until"} & state.keys():
            state[column] += now
        row_id, host = await a_row(queue, name, **state)
        ages[row_id] = state["next_attempt_at"]
        asks[row_id] = Due(lane_of("acme", host, "http://127.0.0.1/"), "acme", host, now - 30_000, 10)
        free += [row_id] * (STATES | PAUSES)[name][-1]
    shared, alone = (free, []) if takeovers < 3 else ([], free)
    assert store.contact.is_new
    for found in (await store.look(), await store.scan(), await store.oldest(100, None)):
        assert {due.lane for due in found} == {asks[row_id].lane for row_id in shared}
    assert not store.contact.is_new  # it has written before it looked, to know of an outage
    assert await store.any_quarantined() == bool(alone)
    taken = []
    while row := await store.claim_quarantined():
        taken.append(row)
    for row_id, due in asks.items():
        assert await store.claim([due._replace(since=now)]) == []
        rows = await store.claim([due])
        assert [row.id for row in rows] == [row_id] * (row_id in shared)
        taken += rows
    assert [row.id for row in taken] == sorted(alone, key=lambda each: (ages[each], each)) + shared
    assert all(7000 <= (row.waited_ms or 0) < 3_600_000 and 0 < (row.left_ms or 0) <= 60_000 for row in taken)
    assert not await store.any_quarantined()


async def test_what_may_not_begin_is_found(queue: Queue) -> None:
    """A held row whose claim has ended, that was cancelled, or whose destination somebody has paused."""
    held, names = [], {}
    for name in [*STATES, *PAUSES]:
        status = STATES.get(name, ({},))[0].get("status", "pending")
        token = OTHERS if name == "claimed" else OWN
        row_id, host = await a_row(queue, name, claimed_by=token, status=status)
        held.append(claimed(id=row_id, token=OWN, destination=host))
        names[row_id] = name
    found = {names[row_id] for row_id in await queue.store.withdrawn(held)}
    assert found == {"dead", "delivered", "claimed", "of its organization", "of all", "automatic"}


BEFORE: Final = {
    "takeovers": 2,
    "quarantine_rounds": 1,
    "waiting_since": 5,
    "last_status_code": 418,
    "attempts": 1,
}
CANCELLED: Final = {"status": "dead", "finished_at": 7, "error_class": "cancelled"}
KEPT: Final = (1, 4, 418)

RETRYING, DEAD = Transition("retrying", 60), Transition("dead")


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize(
    ("kind", "end", "ended", "if_cancelled"),
    [
        (
            Attempted,
            (OK, Transition("delivered")),
            ("delivered", (2, 4, 200), None, None, True, 0, None, []),
            None,
        ),
        (
            Attempted,
            (FAILED, RETRYING),
            ("retrying", (2, 4, 500), None, "http_5xx", False, 60, None, [2]),
            (2, 4, 500),
        ),
        (Attempted, (FAILED, DEAD), ("dead", (2, 4, 500), None, "http_5xx", True, 0, None, [2]), None),
        (
            "probe",
            (FAILED, RETRYING),
            ("retrying", (2, 5, 500), None, "http_5xx", False, 60, None, [2]),
            (2, 5, 500),
        ),
        (Ended, ("no",), ("dead", KEPT, "no", "not_sent", True, 0, None, []), None),
        (Returned, (), ("pending", KEPT, "before", "timeout", False, 0, 5, []), KEPT),
        (Returned, (60, "the host"), ("pending", KEPT, "the host", "waits", False, 60, 5, []), KEPT),
        (Returned, (0, None, None, True), ("pending", KEPT, "before", "timeout", False, 0, None, []), KEPT),
    ],
)
async def test_an_end_changes_what_it_says(
    queue: Queue, kind: Any, end: tuple[Any, ...], ended: tuple[Any, ...], if_cancelled: Any, *, cancelled: bool
) -> None:
    """Each way in which a claim ends, of a row with a history; of one that was cancelled meanwhile, a failure is its last attempt."""
    row_id = await queue.put(state={**BEFORE, "last_error": "before", "error_class": "timeout"})
    (claim,) = await queue.store.claim(1)
    if cancelled:
        state = ", ".join(f"{name} = '{value}'" for name, value in CANCELLED.items())
        await queue.run(f"UPDATE flowactions_outbox SET last_error = 'by Ada{MAY_BE_SENT}', {state}")  # noqa: S608
    if kind == "probe":
        kind, claim = Attempted, msgspec.structs.replace(claim, is_probe=True)
    now = int(await queue.database.time() * 1000)
    await queue.store.complete([kind(claim, *end)])
    row = await queue.row(row_id)
    async with queue.database.read() as connection:
        logged = (await connection.execute(text("SELECT number FROM flowactions_attempts"))).scalars().all()
    if cancelled and if_cancelled:
        waiting, log = ended[6:]
        ended = ("dead", if_cancelled, "by Ada", "cancelled", False, 0, waiting, log)
        assert row.finished_at == 7
    assert (
        row.status,
        (row.attempts, row.max_attempts, row.last_status_code),
        row.last_error,
        row.error_class,
        (row.finished_at or 0) >= now,
        (row.next_attempt_at - now + 5000) // 10_000 * 10,
        row.waiting_since,
        list(logged),
    ) == ended
    is_returned = kind is Returned
    assert (row.takeovers, row.quarantine_rounds) == ((2, 1) if is_returned else (0, 0))
    assert (row.claimed_by, row.claimed_until, row.settled_token) == (None, None, claim.token)
    assert row.delivered_duration_ms == (1 if row.status == "delivered" else None)
    assert (await queue.store.complete([kind(claim, *end)]))[row_id].kind == "written"


async def test_nothing_but_the_parts_is_left_to_fill_in(queue: Queue) -> None:
    """A name in braces that nothing fills in would be sent."""
    files = [path.stem for path in FOLDER.glob("*.sql")]
    own = {name for name in files if name.partition(".")[2] in {"", queue.database.sql.name}}
    for name in own:
        assert "{" not in statement(queue.database.sql, name.partition(".")[0]).text
