"""Bulk actions: the set that was shown, batches, pace and the audit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import insert, update

from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.insights.filters import Filter, parse
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Action
from flowactions_plugin.operations import engine as engines
from flowactions_plugin.operations.bulk import Selection
from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.retention import prune_actions, prune_audit
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.claimed import Returned
from flowactions_plugin.queue.outcomes import MAY_BE_SENT
from flowactions_plugin.queue.rules import HELD_SECONDS, Transition
from flowactions_plugin.storage.schema import attempts, outbox
from tests.outages import waiting_for_locks
from tests.pausing import rows_of
from tests.plugin.bulk.holding import a_worker_that_holds, look_again
from tests.plugin.stored import a_dead_one
from tests.queueing import Queue, a_schedule, an_executor
from tests.waiting import until

ALL = Scope(None)
ACME = Scope("acme")
MAYA = Actor("u1", "Maya", "dashboard")
OPERATOR = Actor("root", "Op", "operator")
EVERYTHING = Filter()


async def rows(queue: Queue, columns: str = "*") -> Sequence[Any]:
    return await rows_of(queue, f"{columns} FROM flowactions_outbox ORDER BY id")


async def states(queue: Queue) -> list[str]:
    return [row[0] for row in await rows(queue, "status")]


async def audit(queue: Queue) -> list[Any]:
    return await rows_of(queue, "* FROM flowactions_audit ORDER BY id")


async def put(queue: Queue, count: int, write: Any = Queue.put, **changes: Any) -> list[str]:
    now = queue.database.clock()
    return [await write(queue, id=new_id(now + number / 100), **changes) for number in range(count)]


async def put_dead(queue: Queue, count: int, ended_at: int | None = None, **changes: Any) -> list[str]:
    """Write dead rows that died a while ago."""
    ended_at = int(queue.database.clock() * 1000) - 1000 if ended_at is None else ended_at
    return await put(queue, count, a_dead_one, state={"finished_at": ended_at}, **changes)


async def begun(
    actions: Operations, kind: Any, *, scope: Scope = ACME, wanted: Filter = EVERYTHING, **options: Any
) -> Action:
    preview = await actions.preview(scope, kind, wanted)
    action = await actions.change(scope, preview.chosen, MAYA, "receiver is back", **options)
    assert action is not None
    return action


async def run_step(queue: Queue, action_id: str) -> None:
    """Do everything of an action that can be done now."""
    engine = Engine(queue.database, "me")
    while await engine.run_step(action_id) == 0.0:
        pass


async def test_a_retry_makes_the_dead_rows_of_its_set_due(queue: Queue) -> None:
    """Those of the filter and of the organization, with their attempts as asked for, and named by the action."""
    mine = await put_dead(queue, 3)
    await put_dead(queue, 1, agent_id="b")
    await put_dead(queue, 1, organization_id="globex")
    await put(queue, 1)
    actions = Operations(queue.database)
    action = await begun(actions, "retry", wanted=Filter.of(agent="a"), reset_attempts=True)
    assert (action.state, action.counted, action.done) == ("waiting", 3, 0)
    await run_step(queue, action.id)
    done = await Insights(queue.database).action(ACME, action.id)
    assert done is not None
    assert (done.state, done.done, done.state_reason) == ("done", 3, None)
    changed = [row for row in await rows(queue) if row.action_id == action.id]
    assert [row.id for row in changed] == mine
    assert {(row.status, row.attempts, row.earlier_attempts, row.finished_at) for row in changed} == {
        ("pending", 0, 4, None)
    }
    assert (await states(queue)).count("dead") == 2


@pytest.mark.parametrize(("reset", "attempts", "then"), [(False, 2, "dead"), (True, 0, "retrying")])
async def test_attempts_are_kept_or_counted_anew(queue: Queue, reset: bool, attempts: int, then: str) -> None:
    """If attempts are kept, a row gets one more; if they are reset, it gets all of them. Its log is kept in both cases (§3.1, §4.3)."""
    row_id = await queue.put(max_attempts=2)
    for _ in range(2):
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
        await a_schedule(queue, lambda request: httpx.Response(500)).tick()
    assert (await queue.row(row_id)).status == "dead"
    action = await begun(Operations(queue.database), "retry", reset_attempts=reset)
    await run_step(queue, action.id)
    row = await queue.row(row_id)
    assert (row.status, row.attempts, row.finished_at) == ("pending", attempts, None)
    await a_schedule(queue, lambda request: httpx.Response(503)).tick()
    assert (await queue.row(row_id)).status == then
    found = await queue.queries.stored(row_id, "acme")
    assert found is not None
    assert [(attempt.number, attempt.status_code) for attempt in found[1]] == [(1, 500), (2, 500), (3, 503)]


async def test_rows_that_come_later_are_not_in_the_set(queue: Queue) -> None:
    """What died after the preview stays dead."""
    ids = await put_dead(queue, 2)
    actions = Operations(queue.database)
    preview = await actions.preview(ACME, "retry", EVERYTHING)
    (late,) = await put_dead(queue, 1)
    at = preview.chosen.as_of + 60_000
    await queue.run(f"UPDATE flowactions_outbox SET finished_at = {at} WHERE id = '{late}'")  # noqa: S608
    action = await actions.change(ACME, preview.chosen, MAYA, "")
    assert action is not None
    await run_step(queue, action.id)
    assert (await queue.row(late)).status == "dead"
    assert (await queue.row(ids[0])).status == "pending"
    assert (await actions.preview(ACME, "retry", Filter.of(id=tuple(ids[:1])))).count == 0


async def test_rows_that_have_left_a_set_are_left_as_they_are(queue: Queue) -> None:
    """They were delivered or deleted since it was shown. Of a set of which nothing is left, nothing is begun."""
    ids = await put_dead(queue, 3)
    actions = Operations(queue.database)
    preview = await actions.preview(ACME, "delete", EVERYTHING)
    assert preview.count == 3
    await queue.run(f"UPDATE flowactions_outbox SET status = 'delivered' WHERE id = '{ids[1]}'")  # noqa: S608
    action = await actions.change(ACME, preview.chosen, MAYA, "")
    assert action is not None
    await run_step(queue, action.id)
    assert (action.counted, await states(queue)) == (2, ["delivered"])
    preview = await actions.preview(ACME, "delete", EVERYTHING)
    assert await actions.change(ACME, preview.chosen, MAYA, "") is None
    assert [each.id for each in await Insights(queue.database).actions(ACME)] == [action.id]


@pytest.mark.parametrize("kind", ["retry", "delete", "cancel"])
async def test_a_form_that_is_sent_twice_begins_one_action(queue: Queue, kind: Any) -> None:
    """Together or one after the other; what is shown again is another set."""
    await (put if kind == "cancel" else put_dead)(queue, 3)
    actions = Operations(queue.database)
    chosen = (await actions.preview(ACME, kind, EVERYTHING)).chosen
    both = await asyncio.gather(*(actions.change(ACME, chosen, MAYA, "") for _ in range(2)))
    again = await actions.change(ACME, chosen, MAYA, "")
    assert len({each.id for each in [*both, again] if each is not None}) == 1
    assert [line.action for line in await audit(queue)] == [kind]
    assert await actions.change(Scope("globex"), chosen, MAYA, "") is None, (
        "another organization has no row of these"
    )


async def test_an_action_that_is_stopped_before_a_worker_takes_it_up_changes_nothing(queue: Queue) -> None:
    """The audit says who ordered it, and who stopped it."""
    await put_dead(queue, 3)
    before = await rows(queue)
    actions = Operations(queue.database)
    action = await begun(actions, "retry")
    stopped = await actions.stop(ACME, action.id, MAYA)
    assert stopped is not None
    assert (stopped.state, stopped.done, stopped.finished_at is None) == ("stopped", 0, False)
    assert await Engine(queue.database, "me").open() == []
    assert await Engine(queue.database, "me").run_step(action.id) is None
    assert await rows(queue) == before
    assert [(row.action, row.number, row.actor_name, row.reason) for row in await audit(queue)] == [
        ("retry", 3, "Maya", "receiver is back"),
        ("stop", 0, "Maya", ""),
    ]


async def test_a_cancellation_ends_its_rows_at_once(queue: Queue) -> None:
    """Those that wait for a retry, too; rows that came later, and others' rows, not. All their attempts come back by a retry."""
    ids = await put(queue, 5)
    await queue.run(f"UPDATE flowactions_outbox SET status = 'retrying', attempts = 2 WHERE id = '{ids[1]}'")  # noqa: S608
    other = await queue.put(organization_id="globex")
    actions = Operations(queue.database)
    preview = await actions.preview(ACME, "cancel", EVERYTHING)
    late = await queue.put()
    at = preview.chosen.as_of + 1
    await queue.run(f"UPDATE flowactions_outbox SET created_at = {at} WHERE id = '{late}'")  # noqa: S608
    action = await actions.change(ACME, preview.chosen, MAYA, "wrong customer")
    assert action is not None
    assert (action.state, action.counted, action.done, action.sent) == ("done", 5, 5, 0)
    ended = [row for row in await rows(queue) if row.status == "dead"]
    assert [row.id for row in ended] == ids
    assert {(row.error_class, row.last_error, row.action_id) for row in ended} == {
        ("cancelled", "wrong customer", action.id)
    }
    assert {each.id for each in await queue.store.claim(10)} == {late, other}
    again = await begun(actions, "retry", reset_attempts=True)
    await run_step(queue, again.id)
    assert {(row.status, row.attempts) for row in await rows(queue)} == {("pending", 0)}


async def test_a_cancellation_without_a_reason_says_who_did_it(queue: Queue) -> None:
    """As the error of its rows."""
    row_id = await queue.put()
    actions = Operations(queue.database)
    preview = await actions.preview(ACME, "cancel", EVERYTHING)
    assert await actions.change(ACME, preview.chosen, MAYA, "")
    assert (await queue.row(row_id)).last_error == "cancelled by Maya"


async def test_a_stopped_cancellation_leaves_the_rest_as_it_is(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has ended stays ended."""
    monkeypatch.setattr(engines, "BATCH", 2)
    monkeypatch.setattr("flowactions_plugin.operations.port.AT_ONCE_SECONDS", -1.0)
    await put(queue, 6)
    actions = Operations(queue.database)
    action = await begun(actions, "cancel")
    stopped = await actions.stop(ACME, action.id, MAYA)
    assert stopped is not None
    assert (stopped.state, stopped.done, stopped.state_reason) == ("stopped", 2, "stopped by Maya")
    assert sorted(await states(queue)) == ["dead"] * 2 + ["pending"] * 4
    assert len(await queue.store.claim(10)) == 4


class TestCancellationOfClaimedRows:
    """They end at once, too. What their worker has not begun, it gives back before the cancellation is done."""

    async def test_a_worker_begins_nothing_after_it(self, queue: Queue) -> None:
        """Of the rows that it has claimed and that wait in its memory, it sends none once the cancellation has ended."""
        await put(queue, 4)
        held = await queue.store.claim(2)
        before = queue.database.clock()
        action = await begun(Operations(queue.database), "cancel")
        await run_step(queue, action.id)
        assert await queue.store.withdrawn(held) == {each.id for each in held}
        done = await Insights(queue.database).action(ACME, action.id)
        assert done is not None
        # Their worker has said nothing of them yet.
        assert (done.state, done.counted, done.done, done.sent) == ("done", 4, 2, 2)
        assert queue.database.clock() - before >= 2 * HELD_SECONDS

    async def test_what_is_being_sent_is_not_counted_as_cancelled(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever becomes of it: it arrives, fails, or is still on its way. What a worker gives back is cancelled."""
        monkeypatch.setattr("flowactions_plugin.operations.port.AT_ONCE_SECONDS", -1.0)
        await put(queue, 7)
        arrives, fails, returned, _ = await queue.store.claim(4)
        action = await begun(Operations(queue.database), "cancel")
        assert action.state == "running"
        assert await queue.complete(arrives, Outcome(1, 5, status_code=200), Transition("delivered"))
        assert await queue.complete(fails, Outcome(1, 5, status_code=503), Transition("retrying", 5.0))
        await queue.store.complete([Returned(returned)])
        await queue.run("UPDATE flowactions_actions SET withdrawn_at = 1")
        await run_step(queue, action.id)
        done = await Insights(queue.database).action(ACME, action.id)
        assert done is not None
        assert (done.state, done.counted, done.done, done.sent) == ("done", 7, 4, 3)

    async def test_a_worker_sends_what_it_has_begun_and_nothing_else(self, queue: Queue) -> None:
        """Two of twelve are delivered; two that it has claimed, and eight that it has not, are cancelled."""
        going_on, sent = asyncio.Event(), list[httpx.Request]()

        async def answer(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            await going_on.wait()
            return httpx.Response(200)

        await put(queue, 12)
        claims = await a_worker_that_holds(queue, an_executor(queue, answer), 12)
        await until(lambda: len(sent) == 2)
        action = await begun(Operations(queue.database), "cancel")
        assert (action.state, action.done + action.sent) == ("done", 12)
        await look_again(claims)
        assert claims._lanes.total.waiting == 0
        going_on.set()
        await claims.quiesce()
        await claims._executor.completer.flush()
        assert len(sent) == 2
        found = Counter((row.status, row.last_error, row.claimed_by) for row in await rows(queue))
        assert found == {("delivered", None, None): 2, ("dead", "receiver is back", None): 10}

    @pytest.mark.usefixtures("nobody_to_wait_for")
    @pytest.mark.parametrize("single", [False, True])
    async def test_its_reason_says_that_it_may_have_been_sent_until_that_is_known(
        self, queue: Queue, single: bool
    ) -> None:
        """Given back, it was not; nobody claims it again, and a retry is not kept from it."""
        await put(queue, 2)
        first, second = await queue.store.claim(2)
        actions = Operations(queue.database)
        if single:
            for each in (first, second):
                assert await actions.one(ACME, "cancel", each.id, MAYA, "no") == each.id
        else:
            await actions.change(ACME, (await actions.preview(ACME, "cancel", EVERYTHING)).chosen, MAYA, "no")
        assert {(row.status, row.last_error) for row in await rows(queue)} == {("dead", "no" + MAY_BE_SENT)}
        await queue.store.complete([Returned(first)])
        row = await queue.row(first.id)
        ended = (row.status, row.last_error, row.error_class, row.claimed_by)
        assert ended == ("dead", "no", "cancelled", None)
        await queue.expire_claims()
        assert await queue.store.claim(10) == []
        # Of a worker that was killed, the claim has ended by itself.
        assert await actions.one(ACME, "retry", second.id, MAYA)
        assert [each.id for each in await queue.store.claim(10)] == [second.id]

    @pytest.mark.parametrize(
        ("outcome", "change", "state"),
        [
            (Outcome(1, 5, status_code=200), Transition("delivered"), ("delivered", None, None)),
            (Outcome(1, 5, status_code=503), Transition("retrying", 5.0), ("dead", "no", "cancelled")),
            (Outcome(1, 5, status_code=400), Transition("dead"), ("dead", None, "http_4xx")),
        ],
        ids=["delivered", "to-be-tried-again", "dead"],
    )
    async def test_the_outcome_of_a_request_on_its_way_is_kept(
        self, queue: Queue, outcome: Outcome, change: Transition, state: tuple[Any, ...]
    ) -> None:
        """What its receiver has taken is delivered; what failed is not tried again, and the attempt is logged."""
        await put(queue, 1)
        (claim,) = await queue.store.claim(1)
        assert await Operations(queue.database).one(ACME, "cancel", claim.id, MAYA, "no")
        assert await queue.complete(claim, outcome, change)
        row = await queue.row(claim.id)
        assert (row.status, row.last_error, row.error_class) == state
        assert (row.attempts, row.claimed_by, row.finished_at is None) == (1, None, False)
        assert await queue.store.claim(10) == []
        logged = await queue.queries.stored(claim.id, "acme")
        assert logged is not None
        assert [each.status_code for each in logged[1]] == [outcome.status_code]

    @pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
    async def test_an_outcome_that_is_being_written_is_waited_for(self, queue: Queue) -> None:
        """What was delivered meanwhile stays so."""
        (row_id,) = await put(queue, 1)
        async with queue.database.write() as connection:
            delivered = {"status": "delivered", "finished_at": 1}
            await connection.execute(update(outbox).where(outbox.c.id == row_id).values(delivered))
            cancels = asyncio.create_task(Operations(queue.database).one(ACME, "cancel", row_id, MAYA))
            await until(lambda: waiting_for_locks(queue.database))
        assert not await cancels
        assert (await queue.row(row_id)).status == "delivered"


async def test_deleted_rows_are_gone_with_their_attempts(queue: Queue) -> None:
    """And nothing else."""
    ids = await put_dead(queue, 3)
    kept = (await put_dead(queue, 1, agent_id="b"))[0]
    for row_id in (*ids, kept):
        await queue.run(insert(attempts).values(delivery_id=row_id, number=1, started_at=1, duration_ms=1))
    action = await begun(Operations(queue.database), "delete", wanted=Filter.of(agent="a"))
    await run_step(queue, action.id)
    assert [row.id for row in await rows(queue)] == [kept]
    assert await rows_of(queue, "delivery_id FROM flowactions_attempts") == [(kept,)]


async def test_a_process_that_is_killed_leaves_its_action_to_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its lease; the other goes on behind the last batch, so that no row is retried twice."""
    monkeypatch.setattr(engines, "BATCH", 2)
    await put_dead(queue, 5)
    actions = Operations(queue.database)
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
    done = await Insights(queue.database).action(ACME, action.id)
    assert done is not None
    assert (done.state, done.done) == ("done", 5)


async def test_an_organization_reaches_its_own_actions_only(queue: Queue) -> None:
    """Nor does it stop those of operators."""
    await put_dead(queue, 1)
    actions = Operations(queue.database)
    preview = await actions.preview(ALL, "retry", Filter.of(organization="acme"))
    assert await actions.change(Scope("globex"), preview.chosen, MAYA, "") is None
    action = await actions.change(ALL, preview.chosen, OPERATOR, "")
    assert action is not None
    assert await Insights(queue.database).action(Scope("globex"), action.id) is None
    assert await actions.stop(Scope("globex"), action.id, MAYA) is None
    assert await Insights(queue.database).actions(Scope("globex")) == []
    assert [each.id for each in await Insights(queue.database).actions(ACME)] == [action.id]
    with pytest.raises(ActionInvalid, match="operator"):
        await actions.stop(ACME, action.id, MAYA)
    assert (await Insights(queue.database).actions(ALL))[0].state == "waiting"


@pytest.mark.parametrize(
    ("kind", "wanted", "message"),
    [
        ("resend", "", "Say which deliveries"),
        ("resend", "type:t", "Say which deliveries"),
        ("cancel", "ended-since:1d", "has not ended"),
        ("cancel", "ended-before:1d", "has not ended"),
        ("cancel", "status:dead", "Cancel changes what is pending or retrying only"),
        ("retry", "status:waiting", "Retry changes what is dead only"),
        ("delete", "status:due,delivered", "Delete changes what is dead only"),
        ("resend", "since:1d status:dead", "Resend changes what is delivered only"),
    ],
)
async def test_a_filter_that_can_only_be_empty_is_refused(
    queue: Queue, kind: Any, wanted: str, message: str
) -> None:
    """With the preview as with the action; a state that is meant anyway may be named."""
    actions = Operations(queue.database)
    with pytest.raises(ActionInvalid, match=message):
        await actions.preview(ACME, kind, parse(wanted))
    with pytest.raises(ActionInvalid, match=message):
        await actions.change(ACME, Selection(kind, parse(wanted), 1), MAYA, "")
    for own, state in (("cancel", "due"), ("retry", "dead,pending"), ("cancel", "retrying")):
        assert (await actions.preview(ACME, own, parse(f"status:{state}"))).count == 0  # type: ignore[arg-type]


async def test_a_set_of_the_future_is_refused(queue: Queue) -> None:
    """Rows that come later would be in it."""
    with pytest.raises(ActionInvalid, match="time to come"):
        await Operations(queue.database).change(ACME, Selection("retry", EVERYTHING, 1 << 52), MAYA, "")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("retry", {"rate": 0.0}),
        ("retry", {"rate": float("nan")}),
        ("retry", {"rate": float("inf")}),
        ("delete", {"rate": 1.0}),
        ("cancel", {"rate": 1.0}),
        ("delete", {"reset_attempts": True}),
    ],
)
async def test_options_are_checked(queue: Queue, kind: Any, options: dict[str, Any]) -> None:
    """Rate and attempts go with kinds that send, within bounds."""
    await put_dead(queue, 1)
    await put(queue, 1)
    actions = Operations(queue.database)
    preview = await actions.preview(ACME, kind, EVERYTHING)
    with pytest.raises(ActionInvalid):
        await actions.change(ACME, preview.chosen, MAYA, "", **options)
    assert await Insights(queue.database).actions(ACME) == []


async def test_a_preview_names_the_destinations_and_organizations_with_the_most_rows(queue: Queue) -> None:
    """Those of all organizations, for operators."""
    await put_dead(queue, 3, destination="https://a.example:443")
    await put_dead(queue, 1, destination="https://b.example:443")
    await put_dead(queue, 2, organization_id="globex", destination="https://b.example:443")
    actions = Operations(queue.database)
    preview = await actions.preview(ALL, "retry", EVERYTHING)
    assert [(each.name, each.number) for each in preview.destinations] == [
        ("https://a.example:443", 3),
        ("https://b.example:443", 3),
    ]
    assert [(each.name, each.number) for each in preview.organizations] == [("acme", 4), ("globex", 2)]


async def test_one_delivery_is_changed_with_its_line_of_the_audit(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Retried or deleted when it is dead, cancelled when it waits, by whom it is reached; another one is left as it is."""
    actions = Operations(queue.database)
    (row_id,) = await put_dead(queue, 1)
    assert not await actions.one(Scope("globex"), "retry", row_id, MAYA)
    assert not await actions.one(ACME, "cancel", row_id, MAYA)
    assert await actions.one(ACME, "retry", row_id, MAYA, "it is back")
    assert not await actions.one(ACME, "retry", row_id, MAYA)
    assert not await actions.one(ACME, "delete", row_id, MAYA)
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
    dead = f"delivery {row_id} to http://127.0.0.1/ is dead: cancelled by an operator"
    assert [each.getMessage() for each in caplog.records if "is dead" in each.getMessage()] == [dead]


async def test_the_audit_and_finished_actions_are_kept_for_a_year(queue: Queue) -> None:
    """An action that is not finished stays."""
    await put_dead(queue, 1)
    await put_dead(queue, 1, agent_id="b")
    actions = Operations(queue.database)
    old, open_one, new = [
        (await begun(actions, "retry", wanted=Filter.of(agent=agent))).id for agent in ("a", "a", "b")
    ]
    assert await actions.stop(ACME, old, MAYA) is not None
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
    assert {each.id for each in await Insights(queue.database).actions(ACME)} == {new, renamed}
    assert len(await audit(queue)) == 2


async def test_a_rate_is_not_made_up_for_after_a_crash(queue: Queue) -> None:
    """Another process begins to count when it takes over; the same one may have been late by a second."""
    await put_dead(queue, 50)
    action = await begun(Operations(queue.database), "retry", rate=10.0)
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
