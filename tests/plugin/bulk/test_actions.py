"""Bulk actions: the set that was shown, undo, batches, canary, pace and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from flowactions_plugin.bulk import engine as engines
from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.bulk.engine import Engine
from flowactions_plugin.bulk.results import Action
from flowactions_plugin.clock import new_id
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.retention import prune_actions, prune_audit
from flowactions_plugin.errors import ActionInvalid, SetChanged
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.claimed import Return
from tests.queueing import Queue

ALL = Scope(None)
ACME = Scope("acme")
MAYA = Actor("u1", "Maya", "dashboard")
OPERATOR = Actor("root", "Op", "operator")
EVERYTHING = Filter()


async def rows(queue: Queue, columns: str = "*") -> Sequence[Any]:
    async with queue.database.read() as connection:
        found = await connection.exec_driver_sql(f"SELECT {columns} FROM flowactions_outbox ORDER BY id")  # noqa: S608
        return found.all()


async def states(queue: Queue) -> list[str]:
    return [row[0] for row in await rows(queue, "status")]


async def audit(queue: Queue) -> list[Any]:
    async with queue.database.read() as connection:
        found = await connection.exec_driver_sql("SELECT * FROM flowactions_audit ORDER BY id")
        return list(found.all())


async def put(queue: Queue, count: int, **changes: Any) -> list[str]:
    return [
        await queue.put(id=new_id(queue.database.clock() + number / 100), **changes) for number in range(count)
    ]


async def put_dead(queue: Queue, count: int, **changes: Any) -> list[str]:
    """Write dead rows that died a while ago."""
    ids = await put(queue, count, **changes)
    await queue.run(
        "UPDATE flowactions_outbox SET status = 'dead', attempts = 4, error_class = 'http_5xx', last_error = 'x',"  # noqa: S608
        f" finished_at = created_at - 1000 WHERE id IN ({', '.join(repr(each) for each in ids)})"
    )
    return ids


async def begun(
    actions: Actions, kind: Any, *, scope: Scope = ACME, wanted: Filter = EVERYTHING, **options: Any
) -> Action:
    preview = await actions.preview(scope, kind, wanted)
    options.setdefault("undo_seconds", 0.0)
    return await actions.begin(scope, kind, preview.token, MAYA, "receiver is back", **options)


async def run_step(queue: Queue, action_id: str) -> None:
    """Do everything of an action that can be done now."""
    engine = Engine(queue.database, "me")
    while await engine.run_step(action_id) == 0.0:
        pass


async def test_a_replay_makes_the_dead_rows_of_its_set_due(queue: Queue) -> None:
    """Those of the filter and of the organization, with their attempts as asked for, and named by the action."""
    mine = await put_dead(queue, 3)
    await put_dead(queue, 1, agent_id="b")
    await put_dead(queue, 1, organization_id="globex")
    await put(queue, 1)
    actions = Actions(queue.database)
    action = await begun(actions, "replay", wanted=Filter(agent_id="a"), reset_attempts=True)
    assert (action.state, action.counted, action.done) == ("waiting", 3, 0)
    await run_step(queue, action.id)
    done = await actions.get(ACME, action.id)
    assert done is not None
    assert (done.state, done.done, done.state_reason) == ("done", 3, None)
    changed = [row for row in await rows(queue) if row.action_id == action.id]
    assert [row.id for row in changed] == mine
    assert {(row.status, row.attempts, row.earlier_attempts, row.finished_at) for row in changed} == {
        ("pending", 0, 4, None)
    }
    assert (await states(queue)).count("dead") == 2


async def test_rows_that_come_later_are_not_in_the_set(queue: Queue) -> None:
    """What died after the preview stays dead, and a set of which a row has left is refused."""
    ids = await put_dead(queue, 2)
    actions = Actions(queue.database)
    preview = await actions.preview(ACME, "retry", EVERYTHING)
    (late,) = await put_dead(queue, 1)
    await queue.run(f"UPDATE flowactions_outbox SET finished_at = {preview.as_of + 60_000} WHERE id = '{late}'")  # noqa: S608
    action = await actions.begin(ACME, "retry", preview.token, MAYA, "", undo_seconds=0)
    await run_step(queue, action.id)
    assert (await queue.row(late)).status == "dead"
    assert (await queue.row(ids[0])).status == "pending"
    preview = await actions.preview(ACME, "retry", Filter(ids=tuple(ids[:1])))
    assert preview.count == 0


@pytest.mark.parametrize(
    "change", ["DELETE FROM flowactions_outbox", "UPDATE flowactions_outbox SET status = 'delivered'"]
)
async def test_a_changed_set_is_refused(queue: Queue, change: str) -> None:
    """When a row has left the set, nothing is begun."""
    ids = await put_dead(queue, 3)
    actions = Actions(queue.database)
    preview = await actions.preview(ACME, "delete", EVERYTHING)
    await queue.run(f"{change} WHERE id = '{ids[1]}'")
    with pytest.raises(SetChanged, match="3 then, 2 now"):
        await actions.begin(ACME, "delete", preview.token, MAYA, "")
    assert await actions.list(ACME) == []
    assert await audit(queue) == []


async def test_a_set_of_as_many_other_rows_is_refused(queue: Queue) -> None:
    """The count alone does not tell that one row has left and another has come."""
    first, second = await put_dead(queue, 2)
    await queue.run(f"UPDATE flowactions_outbox SET finished_at = finished_at + 10 WHERE id = '{second}'")  # noqa: S608
    await queue.run(f"UPDATE flowactions_outbox SET status = 'delivered' WHERE id = '{second}'")  # noqa: S608
    actions = Actions(queue.database)
    preview = await actions.preview(ACME, "retry", EVERYTHING)
    await queue.run(f"UPDATE flowactions_outbox SET status = 'delivered' WHERE id = '{first}'")  # noqa: S608
    await queue.run(f"UPDATE flowactions_outbox SET status = 'dead' WHERE id = '{second}'")  # noqa: S608
    with pytest.raises(SetChanged):
        await actions.begin(ACME, "retry", preview.token, MAYA, "")


async def test_nothing_leaves_before_the_time_for_undoing_has_passed(queue: Queue) -> None:
    """Until then workers find nothing to do, and undo leaves every row as it was."""
    await put_dead(queue, 3)
    before = await rows(queue)
    actions = Actions(queue.database)
    action = await begun(actions, "replay", undo_seconds=60.0)
    assert action.starts_at - action.created_at == 60_000
    assert await Engine(queue.database, "me").open() == []
    assert await Engine(queue.database, "me").run_step(action.id) is None
    assert await rows(queue) == before
    undone = await actions.undo(ACME, action.id, MAYA)
    assert undone is not None
    assert undone.state == "undone"
    assert undone.finished_at is not None
    assert await Engine(queue.database, "me").run_step(action.id) is None
    assert await rows(queue) == before
    assert [(row.action, row.number, row.actor_name, row.reason) for row in await audit(queue)] == [
        ("replay", 3, "Maya", "receiver is back"),
        ("undo", 0, "Maya", ""),
    ]


async def test_a_cancellation_stops_rows_at_once_and_undo_brings_back_exactly_those(queue: Queue) -> None:
    """No worker claims what is held; undone, every row waits as it did."""
    ids = await put(queue, 5)
    await queue.run(
        "UPDATE flowactions_outbox SET status = 'retrying', attempts = 2, last_error = 'x', error_class = 'timeout',"  # noqa: S608
        f" next_attempt_at = next_attempt_at + 777 WHERE id = '{ids[1]}'"
    )
    (held,) = await queue.store.claim(1)
    columns = (
        "id, status, attempts, next_attempt_at, updated_at, last_error, error_class, claimed_by, takeovers"
    )
    before = await rows(queue, columns)
    actions = Actions(queue.database)
    action = await begun(actions, "cancel", undo_seconds=60.0)
    assert action.counted == 4
    assert await queue.store.claim(10) == []
    assert await queue.store.claim(10, per_destination=5) == []
    assert await queue.store.rescue() == 0
    undone = await actions.undo(ACME, action.id, MAYA)
    assert undone is not None
    assert (undone.state, undone.finished_at is not None) == ("undone", True)
    assert await rows(queue, columns) == before
    assert held.id not in {each.id for each in await queue.store.claim(10)}


async def test_a_cancellation_ends_its_rows_when_the_time_for_undoing_has_passed(queue: Queue) -> None:
    """Rows that were on their way at first, and wait again, too; rows that came later, and others' rows, not."""
    await put(queue, 4)
    (claimed,) = await queue.store.claim(1)
    other = await queue.put(organization_id="globex")
    actions = Actions(queue.database)
    preview = await actions.preview(ACME, "cancel", EVERYTHING)
    assert preview.count == 3
    action = await actions.begin(ACME, "cancel", preview.token, MAYA, "wrong customer", undo_seconds=60.0)
    await queue.store.give_back([Return(claimed)])
    late = await queue.put()
    await queue.run(f"UPDATE flowactions_outbox SET created_at = {preview.as_of + 1} WHERE id = '{late}'")  # noqa: S608
    await queue.run("UPDATE flowactions_actions SET starts_at = 0")
    await run_step(queue, action.id)
    found = {row.id: row for row in await rows(queue)}
    assert (found[late].status, found[other].status) == ("pending", "pending")
    ended = [row for row in found.values() if row.status == "dead"]
    assert {(row.error_class, row.last_error, row.action_id) for row in ended} == {
        ("cancelled", "wrong customer", action.id)
    }
    assert len(ended) == 4
    done = await actions.get(ACME, action.id)
    assert done is not None
    assert (done.state, done.done) == ("done", 4)
    assert len(await queue.store.claim(10)) == 2


async def test_a_stopped_cancellation_has_the_rest_wait_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has ended stays ended."""
    monkeypatch.setattr(engines, "BATCH", 2)
    await put(queue, 6)
    actions = Actions(queue.database)
    action = await begun(actions, "cancel", undo_seconds=60.0)
    assert await queue.store.claim(10) == []
    await queue.run("UPDATE flowactions_actions SET starts_at = 0")
    assert await Engine(queue.database).run_step(action.id) == 0.0
    stopped = await actions.stop(ACME, action.id, MAYA)
    assert stopped is not None
    assert (stopped.state, stopped.done, stopped.state_reason) == ("stopped", 2, "stopped by Maya")
    assert sorted(await states(queue)) == ["dead"] * 2 + ["pending"] * 4
    assert len(await queue.store.claim(10)) == 4


@pytest.mark.xfail(
    strict=True, reason="a cancellation leaves rows alone that a worker has claimed and not begun"
)
async def test_a_worker_begins_nothing_after_a_cancellation(queue: Queue) -> None:
    """Of the rows that it has claimed and that wait in its memory, it sends none once the cancellation has ended."""
    await put(queue, 4)
    held = await queue.store.claim(2)
    action = await begun(Actions(queue.database), "cancel")
    await run_step(queue, action.id)
    assert await queue.store.withdrawn(held) == {each.id for each in held}


async def test_deleted_rows_are_gone_with_their_attempts(queue: Queue) -> None:
    """And nothing else."""
    ids = await put_dead(queue, 3)
    kept = (await put_dead(queue, 1, agent_id="b"))[0]
    for row_id in (*ids, kept):
        await queue.run(
            "INSERT INTO flowactions_attempts (delivery_id, number, started_at, duration_ms)"  # noqa: S608
            f" VALUES ('{row_id}', 1, 1, 1)"
        )
    action = await begun(Actions(queue.database), "delete", wanted=Filter(agent_id="a"))
    await run_step(queue, action.id)
    assert [row.id for row in await rows(queue)] == [kept]
    async with queue.database.read() as connection:
        logged = await connection.exec_driver_sql("SELECT delivery_id FROM flowactions_attempts")
        assert logged.scalars().all() == [kept]


async def test_a_process_that_is_killed_leaves_its_action_to_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its lease; the other goes on behind the last batch, so that no row is replayed twice."""
    monkeypatch.setattr(engines, "BATCH", 2)
    await put_dead(queue, 5)
    actions = Actions(queue.database)
    action = await begun(actions, "retry")
    killed, other = Engine(queue.database, "killed"), Engine(queue.database, "other")
    assert await killed.run_step(action.id) == 0.0
    assert await other.open() == []
    assert await other.run_step(action.id) is None
    first = await queue.store.claim(10)
    assert len(first) == 2
    for claim in first:
        assert await queue.mark_dead(claim, "again")
    await queue.run("UPDATE flowactions_actions SET held_until = 0")
    assert await other.open() == [action.id]
    while await other.run_step(action.id) == 0.0:
        pass
    assert sorted(await states(queue)) == ["dead"] * 2 + ["pending"] * 3
    done = await actions.get(ACME, action.id)
    assert done is not None
    assert (done.state, done.done) == ("done", 5)


async def test_a_canary_goes_on_in_stages(queue: Queue) -> None:
    """One row, then ten: each stage waits for the first attempts of the one before."""
    await put_dead(queue, 30)
    actions = Actions(queue.database)
    action = await begun(actions, "replay", canary=1)
    await run_step(queue, action.id)
    assert (await states(queue)).count("pending") == 1
    waiting = await actions.get(ACME, action.id)
    assert waiting is not None
    assert waiting.state_reason == "waits for 1 of 1 first attempts in a stage of 1 row"
    await queue.run("UPDATE flowactions_outbox SET status = 'delivered' WHERE status = 'pending'")
    await run_step(queue, action.id)
    assert (await states(queue)).count("pending") == 10
    await queue.run("UPDATE flowactions_outbox SET status = 'delivered' WHERE status = 'pending'")
    await run_step(queue, action.id)
    assert (await states(queue)).count("dead") == 0
    done = await actions.get(ACME, action.id)
    assert done is not None
    assert (done.state, done.done) == ("done", 30)


async def test_a_failing_stage_stops_the_action(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason; what is not replayed stays dead."""
    await put_dead(queue, 30)
    actions = Actions(queue.database)
    action = await begun(actions, "replay", canary=10)
    await run_step(queue, action.id)
    found = [row.id for row in await rows(queue) if row.status == "pending"]
    for row_id, status in zip(found, ("retrying", "dead", "delivered"), strict=False):
        await queue.run(
            f"UPDATE flowactions_outbox SET status = '{status}', error_class = 'http_5xx' WHERE id = '{row_id}'"  # noqa: S608
        )
    await run_step(queue, action.id)
    stopped = await actions.get(ACME, action.id)
    assert stopped is not None
    assert (stopped.state, stopped.done) == ("stopped", 10)
    assert stopped.state_reason == "2 of 10 first attempts failed in a stage of 10 rows"
    assert [row.action for row in await audit(queue)] == ["replay", "stop"]
    assert "2 of 10 first attempts failed" in caplog.text


async def test_an_organization_reaches_its_own_actions_only(queue: Queue) -> None:
    """Nor does it undo or stop those of operators."""
    await put_dead(queue, 1)
    actions = Actions(queue.database)
    preview = await actions.preview(ALL, "retry", Filter(organization_id="acme"))
    with pytest.raises(ActionInvalid, match="another preview"):
        await actions.begin(Scope("globex"), "retry", preview.token, MAYA, "")
    action = await actions.begin(ALL, "retry", preview.token, OPERATOR, "")
    assert await actions.get(Scope("globex"), action.id) is None
    assert await actions.undo(Scope("globex"), action.id, MAYA) is None
    assert await actions.list(Scope("globex")) == []
    assert [each.id for each in await actions.list(ACME)] == [action.id]
    with pytest.raises(ActionInvalid, match="operator"):
        await actions.undo(ACME, action.id, MAYA)
    assert (await actions.list(ALL))[0].state == "waiting"


@pytest.mark.parametrize(
    "token",
    ["", "x", "%%%", "é", "AAAA", "A" * 200_000, "eyJraW5kIjoicmV0cnkifQ", "\ud800", "bnVsbA", "W10"],
)
async def test_a_token_that_is_none_is_refused(queue: Queue, token: str) -> None:
    """Whatever it holds."""
    with pytest.raises(ActionInvalid, match="token of the preview"):
        await Actions(queue.database).begin(ACME, "retry", token, MAYA, "")


async def test_a_forged_set_is_refused(queue: Queue) -> None:
    """A token of another kind, of the future, or with text that no database can hold."""
    from flowactions_plugin.bulk.sets import Selection, write_token  # noqa: PLC0415

    actions = Actions(queue.database)
    future = Selection(kind="retry", organization_id="acme", filter=EVERYTHING, as_of=1 << 52, count=1)
    for forged, message in (
        (future, "time to come"),
        (msgspec.structs.replace(future, organization_id=None), "another preview"),
        (msgspec.structs.replace(future, kind="delete"), "another preview"),
        (msgspec.structs.replace(future, as_of=-1), "not valid"),
        (msgspec.structs.replace(future, count=0, as_of=1), "nothing to do"),
    ):
        with pytest.raises(ActionInvalid, match=message):
            await actions.begin(ACME, "retry", write_token(forged), MAYA, "")
    nul = msgspec.structs.replace(future, filter=Filter(agent_id="a\0"))
    with pytest.raises(ActionInvalid):
        await actions.begin(ACME, "retry", write_token(nul), MAYA, "")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("retry", {"rate": 0.0}),
        ("retry", {"rate": float("nan")}),
        ("retry", {"rate": float("inf")}),
        ("retry", {"canary": -1}),
        ("retry", {"undo_seconds": -1.0}),
        ("delete", {"rate": 1.0}),
        ("cancel", {"canary": 1}),
        ("delete", {"reset_attempts": True}),
    ],
)
async def test_options_are_checked(queue: Queue, kind: Any, options: dict[str, Any]) -> None:
    """Rate, canary and attempts go with kinds that send, within bounds."""
    await put_dead(queue, 1)
    await put(queue, 1)
    actions = Actions(queue.database)
    preview = await actions.preview(ACME, kind, EVERYTHING)
    with pytest.raises(ActionInvalid):
        await actions.begin(ACME, kind, preview.token, MAYA, "", **options)
    assert await actions.list(ACME) == []


async def test_a_preview_names_the_destinations_and_organizations_with_the_most_rows(queue: Queue) -> None:
    """And the time that they take, by what workers have delivered before and by the rate."""
    await put_dead(queue, 3, destination="https://a.example:443")
    await put_dead(queue, 1, destination="https://b.example:443")
    await put_dead(queue, 2, organization_id="globex", destination="https://b.example:443")
    actions = Actions(queue.database)
    preview = await actions.preview(ALL, "replay", EVERYTHING)
    assert [(each.name, each.number) for each in preview.destinations] == [
        ("https://a.example:443", 3),
        ("https://b.example:443", 3),
    ]
    assert [(each.name, each.number) for each in preview.organizations] == [("acme", 4), ("globex", 2)]
    assert preview.seconds_to_drain is None
    assert (await actions.preview(ALL, "replay", EVERYTHING, rate=2)).seconds_to_drain == 3
    now = int(queue.database.clock() * 1000)
    await queue.run(
        "INSERT INTO flowactions_statistics (bucket, organization_id, destination, delivered, failed, dead, duration_ms)"  # noqa: S608
        f" VALUES ({now}, 'acme', 'd', 200, 100, 0, 5)"
    )
    assert (await actions.preview(ALL, "replay", EVERYTHING, rate=2)).seconds_to_drain == 6


async def test_one_delivery_is_changed_with_its_line_of_the_audit(queue: Queue) -> None:
    """Retried, cancelled or deleted, by whom it is reached."""
    actions = Actions(queue.database)
    (row_id,) = await put_dead(queue, 1)
    assert not await actions.one(Scope("globex"), "retry", row_id, MAYA)
    assert not await actions.one(ACME, "cancel", row_id, MAYA)
    assert await actions.one(ACME, "retry", row_id, MAYA, "it is back")
    assert (await queue.row(row_id)).status == "pending"
    assert await actions.one(ALL, "cancel", row_id, OPERATOR)
    assert (await queue.row(row_id)).last_error == "cancelled by an operator"
    assert await actions.one(ACME, "delete", row_id, MAYA)
    assert await rows(queue) == []
    assert not await actions.one(ACME, "delete", "x' OR 1=1", MAYA)
    lines = await audit(queue)
    assert [(each.action, each.delivery_id, each.actor_id, each.organization_id) for each in lines] == [
        ("retry", row_id, "u1", "acme"),
        ("cancel", row_id, "root", "acme"),
        ("delete", row_id, "u1", "acme"),
    ]
    assert msgspec.json.decode(lines[0].before)["status"] == "dead"
    assert lines[0].reason == "it is back"


async def test_the_audit_and_finished_actions_are_kept_for_a_year(queue: Queue) -> None:
    """An action that is not finished stays."""
    await put_dead(queue, 2)
    actions = Actions(queue.database)
    old, open_one, new = [
        (await begun(actions, "retry", wanted=Filter(status="dead"), undo_seconds=60.0)).id for _ in range(3)
    ]
    assert await actions.undo(ACME, old, MAYA) is not None
    year_ago = queue.database.clock() - 366 * 86_400
    for number, row_id in enumerate((old, open_one)):
        renamed = new_id(year_ago + number)
        await queue.run(f"UPDATE flowactions_actions SET id = '{renamed}' WHERE id = '{row_id}'")  # noqa: S608
        await queue.run(
            f"UPDATE flowactions_audit SET id = '{renamed}' WHERE action_id = '{row_id}' AND action = 'retry'"  # noqa: S608
        )
    assert await prune_audit(queue.database, 1) == 1
    assert await prune_audit(queue.database, 10) == 1
    assert await prune_audit(queue.database, 10) == 0
    assert await prune_actions(queue.database, 10) == 1
    assert await prune_actions(queue.database, 10) == 0
    assert {each.id for each in await actions.list(ACME)} == {new, renamed}
    assert len(await audit(queue)) == 2


async def test_a_rate_is_not_made_up_for_after_a_crash(queue: Queue) -> None:
    """Another process begins to count when it takes over; the same one may have been late by a second."""
    await put_dead(queue, 50)
    action = await begun(Actions(queue.database), "replay", rate=10.0)
    killed, other = Engine(queue.database, "killed"), Engine(queue.database, "other")

    async def after_an_hour(engine: Engine) -> int:
        before = (await states(queue)).count("pending")
        await queue.run("UPDATE flowactions_actions SET paced_from = paced_from - 3600000, held_until = 0")
        assert await engine.run_step(action.id) is not None
        return (await states(queue)).count("pending") - before

    assert await killed.run_step(action.id) is not None
    assert await after_an_hour(killed) == 10
    assert await after_an_hour(other) == 0
    assert await after_an_hour(other) == 10
