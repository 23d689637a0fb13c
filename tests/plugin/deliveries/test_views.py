"""What a dashboard is shown of a delivery: whatever of a corrupt row can be read, and no inner parts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert

from flowactions_plugin.clock import new_id
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.views import delivery_of, detail_of
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from tests.queueing import Queue


def a_row(**changes: Any) -> SimpleNamespace:
    values = {
        "id": "00000000-0000-7000-8000-000000000000",
        "status": "dead",
        "organization_id": "acme",
        "destination": "https://a.example:443",
        "event_id": "evt_1",
        "event_type": "t",
        "agent_id": "a",
        "url": "https://a.example/?token=abc",
        "method": "POST",
        "attempts": 1,
        "max_attempts": 5,
        "next_attempt_at": 0,
        "created_at": 0,
        "updated_at": 0,
        "finished_at": 0,
        "origin": b'{"kind":"flow_node","organizationId":"o","agentId":"a","flowId":"f","runId":"r","nodeId":"n"}',
        "headers": b'[["authorization","Bearer abc"],["x-user","u"]]',
        "body": b"\xff{}",
    }
    return SimpleNamespace(**{**dict.fromkeys(schema.outbox.c.keys()), **values, **changes})


def an_attempt(**changes: Any) -> SimpleNamespace:
    values = {"number": 1, "started_at": 0, "duration_ms": 3, "status_code": 500, "response": b"x"}
    return SimpleNamespace(**{**dict.fromkeys(schema.attempts.c.keys()), **values, **changes})


STRANGE = [
    "",
    "x",
    "[" * 100_000,
    "{",
    "7",
    '[["a"]]',
    '[["a","b","c"]]',
    '{"kind":"later"}',
    '[["\\ud800","b"]]',
]


class TestCorruptRows:
    def test_a_sound_row_has_no_defect(self) -> None:
        """The field is not there at all."""
        shown = msgspec.to_builtins(detail_of(a_row(), [an_attempt()], 0, {}, for_operators=False))
        assert "defect" not in shown
        assert shown["url"] == "https://a.example/?token=…"
        assert shown["headers"] == [{"key": "authorization", "value": "…"}, {"key": "x-user", "value": "u"}]
        assert shown["origin"]["flowId"] == "f"
        assert shown["body"] == "\ufffd{}"
        assert shown["createdAt"] == "1970-01-01T00:00:00.000Z"

    @pytest.mark.parametrize("column", ["origin", "headers"])
    def test_whatever_a_column_holds_the_row_is_shown(self, column: str) -> None:
        """And it can be written as JSON, in the list and in the detail, also with phases of an attempt that are none."""
        for value in STRANGE:
            row = a_row(**{column: value})
            msgspec.json.decode(msgspec.json.encode(delivery_of(row, for_operators=False)))
            log = [an_attempt(phases=value), an_attempt(number=2)]
            shown = msgspec.json.decode(msgspec.json.encode(detail_of(row, log, 0, {}, for_operators=False)))
            assert [each["number"] for each in shown["attemptLog"]] == [1, 2]

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"origin": b"{"}, "origin"),
            ({"origin": '{"kind":"later"}', "headers": "[7]"}, "origin, headers"),
        ],
    )
    def test_the_defect_names_what_cannot_be_read(self, changes: dict[str, Any], named: str) -> None:
        """What can be read is shown beside it."""
        shown = detail_of(a_row(**changes), [], 0, {}, for_operators=False)
        assert shown.defect == f"stored values that cannot be read: {named}"
        assert shown.event_id == "evt_1"


def test_a_redirect_is_said_to_be_none_that_is_followed() -> None:
    """Its receiver has moved: who reads "it answered 301" alone may wait for it."""
    for code, said in (
        (301, "it answered 301, a redirect: webhooks do not follow it"),
        (304, "it answered 304"),
        (404, "it answered 404"),
        (200, None),
    ):
        assert (
            delivery_of(a_row(last_status_code=code, last_error=None), for_operators=False).last_error == said
        )


async def test_inner_parts_of_a_reason_are_for_operators_alone(queue: Queue) -> None:
    """In lists and of one delivery, also where they are stored (§2.5)."""
    row_id = await queue.put(url="http://name.example/")
    stored = "Requests to 10.0.0.1 are not allowed (private)."
    await queue.run(f"UPDATE flowactions_outbox SET last_error = '{stored}'")  # noqa: S608
    shown = "Requests to (an address) are not allowed (private)."
    queries = Insights(queue.database, read_settings({}))
    for scope, reason in ((Scope("acme"), shown), (Scope(), stored)):
        (listed,) = (await queries.deliveries(scope, Filter(), None, 5)).rows
        found = await queries.delivery(scope, row_id)
        assert found is not None
        assert (listed.last_error, found.row.last_error) == (reason, reason)


async def test_who_is_not_shown_operators_reads_no_inner_parts_anywhere(queue: Queue) -> None:
    """Of all organizations, as of one: in findings of nodes, of what waits and of what was not sent, and in destinations."""
    now, inner = round(time.time() * 1000), "Requests to 10.0.0.1 are not allowed (private)."
    dead = {"status": "dead", "last_error": inner, "finished_at": now, "attempts": 1, "next_attempt_at": 0}
    for _ in range(3):
        await queue.put(id=new_id(time.time()), state={**dead, "error_class": "http_5xx"})
    await queue.put(id=new_id(time.time()), state={**dead, "error_class": "not_sent"})
    await queue.put(id=new_id(time.time()), state={"last_error": inner, "waiting_since": now - 60_000})
    place = {"organization_id": "acme", "destination": "https://h:443", "last_reason": inner, "updated_at": now}
    place |= {"failing_since": now - 9, "last_failure_at": now, "failures_in_row": 30, "last_error": "network"}
    await queue.run(insert(schema.destinations).values(place))
    queries = Insights(queue.database, read_settings({}))
    places = []
    for scope in (Scope(), Scope(None, hides_operators=True), Scope("acme")):
        overview = await queries.overview(scope)
        listed, _ = await queries.destinations(scope, 5)
        texts = {each.about: each.words for each in overview.findings} | {"listed": str(listed)}
        places.append({about for about, text in texts.items() if "10.0.0.1" in text})
    assert places == [{"destination", "listed", "node", "unsent", "waiting"}, set(), set()]
