"""What operators see of inbound requests: what was answered, and why."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert

from flowactions_hookspecs import AuthEvent, FlowActions
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.inbound import store
from flowactions_plugin.inbound.requests import Throttle
from flowactions_plugin.inbound.routes import MOST_RECORDED
from flowactions_plugin.insights.inbound import InboundPage
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import inbound_events
from tests.auth_provider import CREATED, OTHER, Running, signed
from tests.queueing import Queue
from tests.support import SmallHost, development, services_of
from tests.telemetry import Recorded

NOT_SIGNED = "the signature does not fit any of the 2 secrets of AUTH_WEBHOOK_SIGNING_SECRET: compare with the provider's"


async def seen(run: Running, event_id: str | None = None) -> Sequence[Any]:
    return (await services_of(run.host)._insights.inbound(Scope(), event_id, None, 50)).rows


async def reasons(run: Running, event_id: str | None = None) -> Sequence[Any]:
    return (await services_of(run.host)._insights.inbound(Scope(), event_id, None, 50)).reasons


async def test_an_event_has_its_type_and_its_repetitions(run: Running) -> None:
    """Each repetition is counted with the event, and the last one has its time (§4.4)."""
    for _ in range(3):
        assert (await run.send()).status_code == 200
    (event,) = await seen(run)
    shown = (event.provider, event.event_id, event.event_type, event.repeats)
    assert shown == ("auth", "msg_1", "user.created", 2)
    assert event.repeated_at is not None
    assert event.repeated_at >= event.received_at
    assert await reasons(run) == []


@pytest.mark.parametrize(
    ("body", "how", "shown"),
    [
        (CREATED, {"secret": OTHER}, ("refused", 401, "msg_1", None, NOT_SIGNED)),
        pytest.param(
            CREATED,
            {"headers": {}},
            ("refused", 401, None, None, "svix-id and svix-timestamp and svix-signature missing"),
            marks=pytest.mark.ci,
        ),
        ({"type": "user.created"}, {}, ("invalid", 400, "msg_1", None, "The event has no data.")),
        (b"x" * (1024 * 1024 + 1), {}, ("refused", 413, "msg_1", None, "the body is larger than 1,024 KB")),
    ],
    ids=["signature", "headers", "body", "size"],
)
async def test_what_is_not_processed_is_recorded_with_its_answer(
    run: Running, recorded: Recorded, body: Any, how: dict[str, Any], shown: tuple[str | int | None, ...]
) -> None:
    """With the id that the request names, and the reason in the words of the log; and it is counted."""
    answer = await run.send(body, **how)
    (event,) = await reasons(run)
    assert (event.result, event.status_code, event.event_id, event.event_type, event.reason) == shown
    assert answer.status_code == event.status_code
    assert (
        answer.json()["code"]
        == {401: "unauthorized", 400: "invalid_request", 413: "too_large"}[event.status_code]
    )
    assert recorded.value("flowactions.inbound.requests", source="auth", result=str(shown[0])) == 1


async def test_a_failed_event_is_recorded_beside_its_repetition(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a search by id shows that it failed, and that it was processed when it was sent again (§4.4)."""

    async def fail(_: AuthEvent) -> None:
        raise LookupError("a secret of the host")

    with monkeypatch.context() as patched:
        patched.setattr(run.host, "auth_event", fail)
        assert (await run.send()).status_code == 500
    assert (await run.send()).json()["data"]["duplicate"] is False
    await run.send(event_id="msg_2")
    assert [each.event_type for each in await seen(run, "msg_1")] == ["user.created"]
    (failed,) = await reasons(run, "msg_1")
    assert (failed.result, failed.event_type, failed.requests) == ("failed", "user.created", 1)
    assert failed.reason == "Host.auth_event failed: LookupError; the log has the details"


async def test_without_a_secret_the_503_is_recorded(database_url: str) -> None:
    """Answer and reason name the setting (§5.5)."""
    host = SmallHost(development(database_url))
    actions = FlowActions.load(host)
    async with actions.lifespan():
        run = Running(host, actions)
        answer = await run.send(headers=signed(b"{}"))
        assert (answer.status_code, answer.json()["code"]) == (503, "not_configured")
        assert "AUTH_WEBHOOK_SIGNING_SECRET" in answer.json()["detail"]
        (event,) = await reasons(run)
    assert (event.result, event.status_code, event.event_id) == ("refused", 503, "msg_1")
    assert "AUTH_WEBHOOK_SIGNING_SECRET" in str(event.reason)


async def test_requests_of_one_reason_are_one_row(run: Running) -> None:
    """With their number, the first and the last; another reason has its own. Of one, so many an hour are written."""
    for number in range(3):
        await run.send(secret=OTHER, event_id=f"msg_{number}")
    for _ in range(MOST_RECORDED + 5):
        assert (await run.send(headers={})).status_code == 401
    missing, wrong = await reasons(run)
    assert (wrong.requests, wrong.event_id) == (3, "msg_2")
    assert wrong.first_at <= wrong.last_at <= missing.last_at
    assert missing.requests == MOST_RECORDED


async def test_workers_count_one_reason_together(database_url: str) -> None:
    """Each adds what it has not written before. Of what a provider calls its event, 200 characters are kept."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url) as database:
        for more in (1, 6):
            record = partial(
                store.record_unprocessed, database, "auth", "refused", 401, "headers", event_type="t" * 201
            )
            await asyncio.gather(*(record(reason="why", requests=more) for _ in range(2)))
        (row,) = (await Insights(database).inbound(Scope(), None, None, 50)).reasons
    assert (row.requests, row.reason, row.event_type) == (14, "why", "t" * 200)


def test_what_is_not_admitted_is_counted_with_the_next() -> None:
    """Once the oldest that was admitted is so long ago."""
    times = iter([0.0, 10.0, 20.0, 59.0, 60.0, 61.0, 70.0])
    throttle = Throttle(2, 60.0, lambda: next(times))
    assert [throttle.admit("x") for _ in range(7)] == [0, 0, None, None, 2, None, 1]


@pytest.mark.ci
async def test_the_answer_does_not_depend_on_the_record(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table, a refused request is refused as before."""
    await Queue(services_of(run.host)._database).run("DROP TABLE flowactions_inbound_requests")
    answer = await run.send(secret=OTHER)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_pages_follow_each_other_without_gap_or_repetition(run: Running) -> None:
    """By their time, also where many rows have the same one."""
    database, now = services_of(run.host)._database, int(time.time() * 1000)
    moments = [now - 1000 * (number // 7) for number in range(40)]
    events = [
        {"provider": "auth", "event_id": f"e{number}", "received_at": moment}
        for number, moment in enumerate(moments)
    ]
    async with database.write() as connection:
        await connection.execute(insert(inbound_events), events)
    queries, rows, cursor = services_of(run.host)._insights, list[Any](), None
    for _ in range(len(moments)):
        page = await queries.inbound(Scope(), None, cursor, 3)
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break
    assert cursor is None
    assert sorted(each.event_id for each in rows) == sorted(str(each["event_id"]) for each in events)
    assert [each.received_at for each in rows] == sorted(moments, reverse=True)
    for wrong in ("x", "1", "-1.auth.e", "1.other.e", "9" * 16 + ".auth.e", "1\n.auth.e", "1.auth.\0"):
        with pytest.raises(FilterInvalid):
            await queries.inbound(Scope(), None, wrong, 3)


async def test_a_member_of_an_organization_sees_no_inbound_event(run: Running) -> None:
    """They belong to no organization."""
    await run.send()
    queries = services_of(run.host)._insights
    await run.send(secret=OTHER)
    assert await queries.inbound(Scope("acme"), None, None, 50) == InboundPage()


@pytest.mark.ci
async def test_old_requests_are_pruned(run: Running) -> None:
    """After the retention, as events are."""
    await run.send(secret=OTHER)
    services = services_of(run.host)
    database = services._database
    await Queue(database).run("UPDATE flowactions_inbound_requests SET last_at = 5")
    for prune in services._prunes():
        await prune(10)
    assert await reasons(run) == []


@pytest.mark.ci
async def test_a_type_of_any_text_is_stored(run: Running) -> None:
    """NUL, which PostgreSQL cannot store, is replaced, and what is long is cut (§4.4)."""
    event = {"type": "a\0" + "ü" * 150, "data": {}}
    assert (await run.send(json.dumps(event).encode())).status_code == 200
    (shown,) = await seen(run)
    assert shown.event_type == "a " + "ü" * 150
