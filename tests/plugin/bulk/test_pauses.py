"""Pauses: rows of a paused destination wait, in every way of claiming, and are due in their order afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from flowactions_plugin.errors import ActionForbidden, ActionInvalid, TooManyPauses
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operations import port as pauses_module
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Actor, Scope
from flowactions_plugin.queue.claimed import Returned
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from flowactions_plugin.storage.schema import pauses as pauses_table
from tests.outages import waiting_for_locks
from tests.pausing import ACME, ALL, DOWN, MAYA, OLIVE, has_failed, put, rows_of
from tests.plugin.bulk.holding import a_worker_that_holds, look_again
from tests.queueing import Queue, an_executor, claimed
from tests.waiting import until

UP = "https://up.example:443"


async def claim_all(queue: Queue, **limits: Any) -> list[str]:
    return [each.id for each in await queue.store.claim(10, **limits)]


@pytest.mark.parametrize("per_destination", [None, 1, 5])
async def test_rows_of_a_paused_destination_are_not_claimed(queue: Queue, per_destination: int | None) -> None:
    """Those of other destinations are; the due times of the paused ones stay as they are."""
    ids = [await put(queue, number) for number in range(3)]
    up = await put(queue, 9, UP)
    pauses = Operations(queue.database)
    assert await pauses.pause(ACME, "https://down.example/hook", MAYA, "down")
    assert not await pauses.pause(ACME, DOWN, MAYA, "down")
    assert await claim_all(queue, per_destination=per_destination) == [up]
    assert await claim_all(queue, per_destination=per_destination) == []
    due = await rows_of(queue, "id, next_attempt_at FROM flowactions_outbox ORDER BY next_attempt_at")
    assert [tuple(row) for row in due] == [*zip(ids, range(1000, 1003), strict=True), (up, 1009)]


async def test_a_claim_whose_lane_was_found_before_the_pause_brings_nothing(queue: Queue) -> None:
    """Each claim asks what is paused now, whatever its worker knows."""
    await put(queue, 1)
    asks = await queue.store.oldest(10, None)
    assert len(asks) == 1
    pauses = Operations(queue.database)
    await pauses.pause(ACME, DOWN, MAYA)
    assert await queue.store.claim(asks) == []
    await pauses.resume(ACME, DOWN, MAYA)
    assert len(await queue.store.claim(asks)) == 1


async def test_a_pause_holds_for_one_organization_or_for_all(queue: Queue) -> None:
    """An operator's for every organization; a dashboard cannot resume that."""
    mine, theirs = await put(queue, 1), await put(queue, 2, organization_id="globex")
    pauses = Operations(queue.database)
    await pauses.pause(ACME, DOWN, MAYA)
    (claimed,) = await queue.store.claim(10)
    assert claimed.id == theirs
    await queue.store.complete([Returned(claimed)])
    await pauses.pause(ALL, DOWN, OLIVE, "maintenance")
    assert await claim_all(queue) == []
    assert await pauses.resume(ACME, DOWN, MAYA)
    assert await claim_all(queue) == []
    with pytest.raises(ActionForbidden):
        await pauses.resume(ACME, DOWN, MAYA)
    assert not await pauses.resume(ACME, UP, MAYA)
    assert [(each.organization_id, each.reason) for each in await Insights(queue.database).pauses(ACME)] == [
        ("", "maintenance")
    ]
    assert await pauses.resume(ALL, DOWN, OLIVE)
    assert set(await claim_all(queue)) == {mine, theirs}
    assert await rows_of(queue, "* FROM flowactions_pauses") == []


async def test_an_organization_sees_its_own_pauses_and_those_for_all_that_concern_it(queue: Queue) -> None:
    """Of those for all: the destinations to which it has sent something, or something of it waits; none where others send."""
    pauses, insights = Operations(queue.database), Insights(queue.database)
    for scope, actor in ((ACME, MAYA), (Scope("globex"), MAYA), (ALL, OLIVE)):
        assert await pauses.pause(scope, DOWN, actor)
    await pauses.pause(ALL, UP, OLIVE)

    async def shown() -> tuple[list[tuple[str, str]], int]:
        rows = [(each.organization_id, each.destination) for each in await insights.pauses(ACME)]
        return rows, (await insights.facts(ACME)).paused[0]

    assert await shown() == ([("acme", DOWN)], 1)
    await has_failed(queue, 1)
    assert await shown() == ([("", DOWN), ("acme", DOWN)], 2)
    waits = await put(queue, 1, UP)
    await put(queue, 2, "https://other.example:443")
    assert await shown() == ([("", DOWN), ("", UP), ("acme", DOWN)], 3)
    await queue.run(f"UPDATE flowactions_outbox SET organization_id = 'globex' WHERE id = '{waits}'")  # noqa: S608
    assert await shown() == ([("", DOWN), ("acme", DOWN)], 2)
    every = [(each.organization_id, each.destination) for each in await insights.pauses(ALL)]
    assert every == [("", DOWN), ("", UP), ("acme", DOWN), ("globex", DOWN)]


async def test_resuming_for_all_leaves_what_an_organization_has_paused(queue: Queue) -> None:
    """Its rows stay parked until it resumes, too."""
    mine, theirs = await put(queue, 1), await put(queue, 2, organization_id="globex")
    pauses = Operations(queue.database)
    await pauses.pause(ALL, DOWN, MAYA)
    await pauses.pause(ACME, DOWN, MAYA)
    await pauses.resume(ALL, DOWN, MAYA)
    assert await claim_all(queue) == [theirs]
    await pauses.resume(ACME, DOWN, MAYA)
    assert await claim_all(queue) == [mine]


async def test_resumed_rows_are_due_at_once_in_their_order(queue: Queue) -> None:
    """Each when it was due before; what waited for a retry still does."""
    ids = [await put(queue, number) for number in (3, 1, 2, 5, 4)]
    later = await put(queue, 6)
    far = int((queue.database.clock() + 300) * 1000)
    await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {far} WHERE id = '{later}'")  # noqa: S608
    before = await rows_of(queue, "id, next_attempt_at, updated_at FROM flowactions_outbox ORDER BY id")
    pauses = Operations(queue.database)
    await pauses.pause(ACME, DOWN, MAYA)
    assert await claim_all(queue) == []
    assert await pauses.resume(ACME, DOWN, MAYA)
    assert await rows_of(queue, "id, next_attempt_at, updated_at FROM flowactions_outbox ORDER BY id") == before
    order = [(await queue.store.claim(1))[0].id for _ in range(5)]
    assert order == [ids[1], ids[2], ids[0], ids[4], ids[3]]


async def test_a_row_in_quarantine_is_paused_too(queue: Queue) -> None:
    """It is neither seen nor claimed."""
    await put(queue, 1)
    await queue.run(f"UPDATE flowactions_outbox SET takeovers = {QUARANTINE_AFTER}")  # noqa: S608
    assert await queue.store.any_quarantined()
    pauses = Operations(queue.database)
    await pauses.pause(ALL, DOWN, MAYA)
    assert not await queue.store.any_quarantined()
    assert await queue.store.claim_quarantined() is None
    await pauses.resume(ALL, DOWN, MAYA)
    assert await queue.store.claim_quarantined() is not None


async def test_what_waits_in_memory_is_given_back(queue: Queue) -> None:
    """Within a second of the pause; what was sent is finished."""
    for number in range(12):
        await put(queue, number)
    going_on = asyncio.Event()
    sent: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        await going_on.wait()
        return httpx.Response(200)

    claims = await a_worker_that_holds(queue, an_executor(queue, answer), 12)
    await until(lambda: len(sent) == 2)
    await Operations(queue.database).pause(ACME, DOWN, MAYA)
    await look_again(claims)
    assert claims._lanes.total.waiting == 0
    going_on.set()
    await claims.quiesce()
    await claims._executor.completer.flush()
    assert len(sent) == 2
    found = await rows_of(queue, "status, claimed_by FROM flowactions_outbox ORDER BY status")
    assert [tuple(row) for row in found] == [("delivered", None)] * 2 + [("pending", None)] * 10


async def test_a_pause_is_in_the_audit(queue: Queue) -> None:
    """With who, why, and what was paused before."""
    pauses = Operations(queue.database)
    await pauses.pause(ACME, DOWN, MAYA, "down\nfor\x00now")
    await pauses.resume(ACME, DOWN, Actor("u2", "Noor", "dashboard"), "back")
    lines = await rows_of(
        queue,
        "action, organization_id, destination, actor_name, reason, before FROM flowactions_audit ORDER BY id",
    )
    assert [tuple(line)[:5] for line in lines] == [
        ("pause", "acme", DOWN, "Maya", "down for now"),
        ("resume", "acme", DOWN, "Noor", "back"),
    ]
    assert '"pausedBy":"Maya"' in lines[1].before


@pytest.mark.parametrize(
    "text", ["", "x", "ftp://a", "https://user:pw@a", "https://a\0b", "https://" + "a" * 9000]
)
async def test_what_is_no_destination_is_refused(queue: Queue, text: str) -> None:
    """With the reason."""
    with pytest.raises(ActionInvalid, match="no destination"):
        await Operations(queue.database).pause(ALL, text, MAYA)


@pytest.mark.parametrize("role", ["operator", "command"])
async def test_only_operators_end_what_an_operator_has_paused(queue: Queue, role: Any) -> None:
    """Nor does a person of the dashboard get hold of it by pausing it again; an operator gets hold of theirs."""
    pauses, operator = Operations(queue.database), Actor("root", "Olive", role)

    async def state() -> tuple[str, str | None]:
        (pause,) = await Insights(queue.database).pauses(ACME)
        return pause.paused_by, pause.paused_role

    assert await pauses.pause(ACME, DOWN, MAYA, "ours")
    assert await pauses.pause(ACME, DOWN, operator, "their certificate")
    assert not await pauses.pause(ACME, DOWN, operator, "their certificate")
    for _ in range(2):
        assert await state() == ("Olive", role)
        with pytest.raises(ActionForbidden, match="only operators"):
            await pauses.resume(ACME, DOWN, MAYA)
        with pytest.raises(ActionForbidden, match="only operators"):
            await pauses.pause(ACME, DOWN, MAYA)
    done = [
        (row.action, row.actor_name) for row in await rows_of(queue, "* FROM flowactions_audit ORDER BY id")
    ]
    assert done == [("pause", "Maya"), ("pause", "Olive")]
    assert await pauses.resume(ACME, DOWN, operator)
    # Whoever pauses next may end it.
    assert await pauses.pause(ACME, DOWN, MAYA)
    assert await pauses.resume(ACME, DOWN, operator)
    assert await pauses.pause(ACME, DOWN, MAYA)
    assert await pauses.resume(ACME, DOWN, MAYA)


async def test_among_equals_the_last_pause_wins_and_the_audit_tells(queue: Queue) -> None:
    """Two operators, or two people of an organization: neither has to know of the other."""
    operations, noor = Operations(queue.database), Actor("u2", "Noor", "dashboard")
    for first, second in ((MAYA, noor), (OLIVE, Actor("root", "root@box", "command"))):
        assert await operations.pause(ACME, DOWN, first, "the first")
        assert await operations.pause(ACME, DOWN, second, "the second")
        (pause,) = await Insights(queue.database).pauses(ACME)
        assert (pause.paused_by, pause.reason) == (second.name, "the second")
        assert await operations.resume(ACME, DOWN, first)
    done = [
        (row.action, row.actor_name) for row in await rows_of(queue, "* FROM flowactions_audit ORDER BY id")
    ]
    assert done == [
        *(("pause", "Maya"), ("pause", "Noor"), ("resume", "Maya")),
        *(("pause", "Olive"), ("pause", "root@box"), ("resume", "Olive")),
    ]


async def test_a_pause_of_nobody_who_is_known_is_ended_by_operators(queue: Queue) -> None:
    """It may have been an operator's."""
    pauses = Operations(queue.database)
    await pauses.pause(ACME, DOWN, MAYA)
    await queue.run("UPDATE flowactions_pauses SET paused_role = NULL")
    with pytest.raises(ActionForbidden):
        await pauses.resume(ACME, DOWN, MAYA)
    assert await pauses.resume(ACME, DOWN, OLIVE)


async def test_an_organization_pauses_so_many_destinations_at_the_most(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, too. Another may pause as many, a paused one may be paused again, and a resumed one makes room."""
    monkeypatch.setattr(pauses_module, "MOST_PAUSES", 3)
    pauses = Operations(queue.database)
    for number in range(2):
        await pauses.pause(ACME, f"https://h{number}.example", MAYA)
    raced = [pauses.pause(ACME, f"https://r{number}.example", MAYA) for number in range(4)]
    answers = await asyncio.gather(*raced, return_exceptions=True)
    assert sorted(map(str, answers))[3:] == ["True"]
    assert sum(isinstance(each, TooManyPauses) for each in answers) == 3
    assert not await pauses.pause(ACME, "https://h1.example", MAYA)
    assert await pauses.pause(ACME, "https://h1.example", OLIVE)
    assert await pauses.pause(Scope("globex"), DOWN, MAYA)
    assert await pauses.pause(ALL, DOWN, OLIVE)
    await pauses.resume(ACME, "https://h0.example", MAYA)
    assert await pauses.pause(ACME, DOWN, MAYA)


async def test_who_pauses_at_the_same_moment_is_counted(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause waits for another one of its organization that is not committed, and finds it."""
    monkeypatch.setattr(pauses_module, "MOST_PAUSES", 2)
    url = read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url
    async with Database(url) as database, Database(url) as elsewhere:
        pauses, store = Operations(database), Operations(elsewhere)
        await pauses.pause(ACME, DOWN, MAYA)

        async def waits() -> bool:
            async with database.read() as connection:
                return bool(
                    (await connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted")).all()
                )

        async with elsewhere.write() as first:
            await store._check_room(first, "acme", UP)
            await first.execute(
                insert(pauses_table).values(
                    organization_id="acme", destination=UP, paused_at=1, paused_by="", reason=""
                )
            )
            second = asyncio.create_task(pauses.pause(ACME, "https://third.example", MAYA))
            await until(lambda: second.done() or waits())
        with pytest.raises(TooManyPauses):
            await second


async def test_any_number_of_pauses_is_read_by_pages(queue: Queue) -> None:
    """In the order of organizations and destinations."""
    pauses = Operations(queue.database)
    targets = [f"https://h{number}.example:443" for number in range(5)]
    for target in targets:
        await pauses.pause(ACME, target, MAYA)
    await pauses.pause(ALL, DOWN, OLIVE)
    read, after = [], None
    while page := await Insights(queue.database).pauses(ALL, after=after, limit=4):
        assert len(page) <= 4
        read += [(each.organization_id, each.destination) for each in page]
        after = read[-1]
    assert read == [("", DOWN), *(("acme", target) for target in targets)]


async def test_what_a_worker_holds_is_withdrawn_by_a_pause_or_when_its_claim_has_ended(queue: Queue) -> None:
    """By the pauses of its organization and destination, and those for all; what another claim has is not its own."""
    for scope, target in ((ACME, DOWN), (ALL, UP), (ACME, "https://other.example:443")):
        await Operations(queue.database).pause(scope, target, OLIVE)
    places = [
        ("acme", DOWN),
        ("initech", DOWN),
        ("acme", UP),
        ("initech", UP),
        ("initech", "https://ok.example:443"),
    ]
    held = [
        claimed(id=str(number), organization_id=one, destination=other)
        for number, (one, other) in enumerate(places)
    ]
    for each in held:
        await queue.put(id=each.id, organization_id=each.organization_id, destination=each.destination)
    await queue.run("UPDATE flowactions_outbox SET claimed_by = 't', claimed_until = 0")
    assert await queue.store.withdrawn(held) == {"0", "2", "3"}
    await queue.run("UPDATE flowactions_outbox SET claimed_by = 'u' WHERE id = '1'")
    await queue.run("DELETE FROM flowactions_outbox WHERE id = '4'")
    assert await queue.store.withdrawn(held) == {"0", "1", "2", "3", "4"}
    assert await queue.store.withdrawn([]) == set()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_who_pauses_at_the_same_moment_as_the_worker_replaces_its_pause(queue: Queue) -> None:
    """Otherwise the destination would resume itself against their will."""
    pauses = Operations(queue.database)
    async with queue.database.write() as connection:
        row = {"organization_id": "acme", "destination": DOWN, "paused_at": 1, "paused_by": AUTOMATIC.name}
        row |= {"paused_role": AUTOMATIC.role, "reason": "it fails", "probes": 0}
        await connection.execute(insert(pauses_table).values(row))
        pausing = asyncio.create_task(pauses.pause(ACME, DOWN, MAYA, "down"))
        await until(lambda: waiting_for_locks(queue.database))
    assert await pausing
    (pause,) = await rows_of(queue, "paused_by, paused_role, reason, probes FROM flowactions_pauses")
    assert tuple(pause) == ("Maya", "dashboard", "down", None)
