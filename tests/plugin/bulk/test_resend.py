"""Sending delivered rows again in bulk: the set, the new rows, and that each is sent once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from flowactions_plugin.clock import id_at, new_id
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.views import source_of
from flowactions_plugin.operations import store as stores
from flowactions_plugin.operations.bulk import Selection
from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.resend import origin_naming
from flowactions_plugin.operators.scope import Scope
from tests.plugin.bulk.test_actions import ACME, MAYA, audit, begun, put, rows, run_step
from tests.plugin.bulk.test_long_actions import prune_all
from tests.queueing import Queue

LATELY = Filter.of(since=1)
COPIED = (
    "organization_id, agent_id, event_id, event_type, url, destination, method, headers, body, max_attempts, flow_id,"
    " node_id, idempotency_key"
)


async def put_delivered(queue: Queue, count: int, **changes: Any) -> list[str]:
    """Write rows that were delivered a while ago, at their second attempt."""
    ended = int(queue.database.clock() * 1000) - 1000
    state = {"status": "delivered", "attempts": 2, "last_status_code": 200, "finished_at": ended}
    return await put(queue, count, state=state, **changes)


async def resent(queue: Queue) -> dict[str, list[str]]:
    """Give the new rows by the delivered row that each names."""
    found: dict[str, list[str]] = {}
    for row in await rows(queue, "id, origin"):
        source = source_of(row.origin)
        if source is not None:
            found.setdefault(source, []).append(row.id)
    return found


async def test_each_delivered_row_of_the_set_is_sent_again_as_a_new_row(queue: Queue) -> None:
    """With the same event, request and origin, all attempts and the row's name; the delivered row and all others stay."""
    ids = await put_delivered(queue, 3, idempotency_key="order 7", headers=(("x", "1"),))
    await put_delivered(queue, 1, organization_id="globex")
    await put(queue, 1)
    before = await rows(queue)
    action = await begun(Operations(queue.database), "resend", wanted=LATELY)
    assert action.counted == 3
    await run_step(queue, action.id)
    found = await Insights(queue.database).action(ACME, action.id)
    assert found is not None
    assert (found.state, found.done) == ("done", 3)
    assert [row for row in await rows(queue) if row.id in {each.id for each in before}] == before
    copies = await resent(queue)
    assert sorted(copies) == ids
    first = {row.id: tuple(row) for row in await rows(queue, f"id, {COPIED}")}
    for source, (copy,) in copies.items():
        row = await queue.row(copy)
        assert first[copy][1:] == first[source][1:]
        assert (row.status, row.attempts, row.earlier_attempts, row.action_id) == ("pending", 0, 0, action.id)
        assert msgspec.json.decode(row.origin) == {
            **msgspec.json.decode((await queue.row(source)).origin),
            "resentFrom": source,
        }
    assert [(line.action, line.number) for line in await audit(queue)] == [("resend", 3)]
    assert len(await queue.store.claim(10)) == 4


async def test_one_delivery_is_sent_again_with_its_line_of_the_audit(queue: Queue) -> None:
    """Of the caller's organization, and once it was delivered."""
    actions = Operations(queue.database)
    (row_id,), (waits,) = await put_delivered(queue, 1), await put(queue, 1)
    for scope, unknown in ((Scope("globex"), row_id), (ACME, waits)):
        assert await actions.one(scope, "resend", unknown, MAYA) is None
    made = await actions.one(ACME, "resend", row_id, MAYA, "lost")
    assert await resent(queue) == {row_id: [made]}
    (line,) = await audit(queue)
    assert (line.action, line.delivery_id, line.number, line.reason) == ("resend", row_id, 1, "lost")


async def test_a_form_that_is_sent_twice_sends_once(queue: Queue) -> None:
    """The delivered rows are still there after it, so the token is good for one action; another preview is another one."""
    await put_delivered(queue, 2)
    actions = Operations(queue.database)
    chosen = (await actions.preview(ACME, "resend", LATELY)).chosen
    both = [actions.change(ACME, chosen, MAYA, "") for _ in range(2)]
    first, second = await asyncio.gather(*both)
    assert first is not None
    assert second is not None
    assert first.id == second.id
    await run_step(queue, first.id)
    again = await actions.change(ACME, chosen, MAYA, "")
    assert again is not None
    assert (again.id, again.state) == (first.id, "done")
    assert [len(each) for each in (await resent(queue)).values()] == [1, 1]
    assert len(await audit(queue)) == 1
    await asyncio.sleep(0.002)
    assert (await begun(actions, "resend", wanted=LATELY)).id != first.id


async def test_a_batch_reads_a_few_rows_and_the_batches_together_send_each_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows of those that were delivered are in the set, and however large their bodies are."""
    monkeypatch.setattr(stores, "READ_AHEAD", 3)
    monkeypatch.setattr(stores, "BATCH_BYTES", 10)
    now = queue.database.clock()
    wanted: list[str] = []
    batches: list[int] = []
    # Of four rows in a row, one is in the set; at the end three of three are, with bodies of nine bytes.
    for number in range(23):
        is_wanted = number % 4 == 3 or number >= 20
        changes = {"agent_id": "b", "body": b"x" * (40 if number == 7 else 9)} if is_wanted else {}
        row_id = await queue.put(id=new_id(now + number), **changes)
        wanted += [row_id] if is_wanted else []
    await queue.run("UPDATE flowactions_outbox SET status = 'delivered', finished_at = created_at - 1")
    action = await begun(Operations(queue.database), "resend", wanted=Filter.of(since=1, agent="b"))
    engine = Engine(queue.database, "me")
    while len(batches) < 50:
        before = len(await resent(queue))
        wait = await engine.run_step(action.id)
        batches.append(len(await resent(queue)) - before)
        if wait is None:
            break
    assert {source: len(ids) for source, ids in (await resent(queue)).items()} == dict.fromkeys(wanted, 1)
    assert (max(batches), len(batches) < 50) == (1, True)


async def test_what_was_delivered_is_not_sent_again_without_a_bound(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter names rows, an event, a key, or a time of enqueue, and selects no more than may be sent again."""
    monkeypatch.setattr(stores, "MOST_RESENT", 2)
    monkeypatch.setattr("flowactions_plugin.operations.bulk.MOST_RESENT", 2)
    ids = await put_delivered(queue, 5)
    actions = Operations(queue.database)
    for wanted in (Filter(), Filter.of(agent="a"), Filter.of(ended_since=1), Filter.of(status="delivered")):
        with pytest.raises(ActionInvalid, match="time from which they were enqueued"):
            await actions.preview(ACME, "resend", wanted)
    with pytest.raises(ActionInvalid, match="More than 2 delivered"):
        await actions.preview(ACME, "resend", LATELY)
    selection = Selection(kind="resend", organization_id="acme", filter=LATELY, as_of=1 << 50)
    assert await stores.ActionStore(queue.database).count(selection) == 3
    assert (await actions.preview(ACME, "resend", Filter.of(id=tuple(ids[:2])))).count == 2
    assert (await actions.preview(Scope("globex"), "resend", Filter.of(id=tuple(ids)))).count == 0


@pytest.mark.ci
async def test_retention_passes_over_what_is_still_to_be_sent_again(queue: Queue) -> None:
    """Delivered rows stay while an action may be for them, dead ones do not; afterwards both go."""
    await put_delivered(queue, 3)
    await queue.run("UPDATE flowactions_outbox SET finished_at = 1")
    actions = Operations(queue.database)
    action = await begun(actions, "resend", wanted=LATELY)
    assert await queue.queries.prune("delivered", 1, 10) == 0
    await queue.run("UPDATE flowactions_outbox SET status = 'dead'")
    assert await prune_all(queue) == 3
    await put_delivered(queue, 2)
    await queue.run("UPDATE flowactions_outbox SET finished_at = 1")
    await actions.stop(ACME, action.id, MAYA)
    assert await queue.queries.prune("delivered", 1, 10) == 2
    assert await resent(queue) == {}


@pytest.mark.ci
async def test_a_replay_says_how_many_delivered_rows_it_leaves_out(queue: Queue) -> None:
    """Of its own filter and organization; where a state is named that they are not in, that is no question."""
    await put_delivered(queue, 2)
    await put_delivered(queue, 1, agent_id="b")
    await put_delivered(queue, 1, organization_id="globex")
    actions = Operations(queue.database)
    for wanted, number in ((Filter(), 3), (Filter.of(agent="b"), 1)):
        preview = await actions.preview(ACME, "retry", wanted)
        assert preview.delivered is not None
        assert (preview.count, preview.delivered.number, preview.delivered.exact) == (0, number, True)
    assert (await actions.preview(ACME, "retry", Filter.of(status="dead"))).delivered is None
    assert (await actions.preview(ACME, "delete", Filter())).delivered is None


def test_an_origin_that_cannot_be_read_names_nothing() -> None:
    """It is neither an error nor a source, and no copy is made of it."""
    for origin in ("", "[]", "{", '"x"', None, 7, b"\xff", "{" * 100_000, "\ud800"):
        assert source_of(origin) is None
        assert origin_naming(id_at(1), origin) is None


def test_only_an_id_is_a_source() -> None:
    """An origin says nothing else in this field, whoever has written it, and a copy of a copy names the last one."""
    assert source_of('{"resentFrom":"<script>"}') is None
    assert source_of('{"kind":"host","name":"\\"resentFrom\\":\\"x\\""}') is None
    first = origin_naming(id_at(1), '{"kind":"host"}')
    assert source_of(first) == id_at(1)
    assert source_of(origin_naming(id_at(2), first)) == id_at(2)
