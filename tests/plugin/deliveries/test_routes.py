from __future__ import annotations

import hmac
import time
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar, get
from sqlalchemy import text

from flowactions_hookspecs import DashboardPrincipal, Node
from flowactions_plugin.api.routes import RetryMany
from flowactions_plugin.insights import search as search_queries
from flowactions_plugin.insights.filters import FIELDS
from flowactions_plugin.nodes.chat_message import NOT_SET_UP
from tests.plugin.deliveries.running import Running
from tests.recorder import status
from tests.rings import sampled
from tests.support import a_walk, services_of
from tests.waiting import until


async def test_deliveries_are_listed_newest_first_and_page_by_page(run: Running) -> None:
    """Pages of two lead through all five rows without gap or repetition."""
    ids = [await run.enqueue() for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await run.client.get("/v1/webhooks/outbox", params=query)).json()
        seen += [row["id"] for row in page["data"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids)
    assert seen == sorted(seen, reverse=True)


async def test_a_filter_without_an_index_is_read_back_in_pages(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may be empty and lead on; the pages together hold every row once, the newest first."""
    monkeypatch.setattr(search_queries, "READ_BACK", 2)
    ids = [await run.enqueue() for _ in range(5)]
    wanted = {"eventType": (await run.rows())[0]["eventType"]}
    for query, expected in (
        (wanted, ids),
        ({"eventType": "none"}, []),
        ({"finishedFrom": "2090-01-01T00:00:00Z"}, []),
    ):
        seen: list[str] = []
        pages = 0
        cursor: str | None = None
        while pages == 0 or cursor is not None:
            asked = {**query, **({"cursor": cursor} if cursor else {})}
            page = (await run.client.get("/v1/webhooks/outbox", params=asked)).json()
            assert len(page["data"]) <= 2
            seen += [row["id"] for row in page["data"]]
            cursor, pages = page["nextCursor"], pages + 1
        assert (seen, pages) == (sorted(expected, reverse=True), 3)
    found = await run.rows(destination=run.receiver.url.removesuffix("/hook"), cursor=max(ids))
    assert len(found) == 2
    answer = await run.client.get("/v1/webhooks/outbox", params={"cursor": f"-.{max(ids)}"})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "cursor")


async def test_deliveries_are_filtered_by_status_and_agent(run: Running) -> None:
    """A filter shows only what it names."""
    run.receiver.answer = lambda number: status(500)
    dead = await run.enqueue(agent_id="agent-9")
    await until(lambda: _ended(run, dead))
    assert [row["id"] for row in await run.rows(status="dead")] == [dead]
    assert await run.rows(status="delivered") == []
    (row,) = await run.rows(agentId="agent-9", statusCode=500)
    assert (row["id"], row["lastError"], row["lastStatusCode"]) == (dead, "it answered 500", 500)
    assert await run.rows(statusCode=503) == []
    assert await run.rows(agentId="agent-1") == []


async def test_a_dead_delivery_is_retried(run: Running) -> None:
    """The retry answers as §4.3 says, and the delivery is sent again."""
    run.receiver.answer = lambda number: status(500 if number == 1 else 200)
    delivery_id = await run.enqueue()
    await until(lambda: _ended(run, delivery_id))
    answer = await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")
    assert (answer.status_code, answer.json()) == (200, {"data": {"id": delivery_id, "requeued": True}})
    await until(lambda: _ended(run, delivery_id, "delivered"))
    again = await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")
    assert (again.status_code, again.json()) == (404, {"data": {"id": delivery_id, "requeued": False}})


async def test_a_retry_is_signed_anew(run: Running) -> None:
    """With the secret of the moment and a timestamp of its own, over the same bytes (§5.3.5, §5.3.6)."""
    run.receiver.answer = lambda number: status(500 if number == 1 else 200)
    run.host.secret = "old"
    delivery_id = await run.enqueue()
    await until(lambda: _ended(run, delivery_id))
    (first,) = run.receiver.requests
    await until(lambda: time.time() >= int(first.header("x-service-webhook-timestamp")) + 1)
    run.host.secret = "new"
    await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")
    await until(lambda: _ended(run, delivery_id, "delivered"))
    stamps = [int(request.header("x-service-webhook-timestamp")) for request in run.receiver.requests]
    assert stamps[1] > stamps[0]
    assert run.receiver.requests[1].body == first.body
    for request, secret in zip(run.receiver.requests, (b"old", b"new"), strict=True):
        signed = request.header("x-service-webhook-timestamp").encode() + b"." + request.body
        expected = hmac.new(secret, signed, "sha256").hexdigest()
        assert request.header("x-service-webhook-signature") == f"v1,{expected}"


async def test_dead_deliveries_are_replayed_by_filter(run: Running) -> None:
    """What the list shows under a filter is what the replay takes; each is then sent again."""
    run.receiver.answer = lambda number: status(500)
    dead = [await run.enqueue(agent_id=f"agent-{number % 2}") for number in range(5)]
    await until(lambda: _all_ended(run, 5))
    row = (await run.rows(status="dead"))[0]
    query = {
        "status": "dead",
        "agentId": "agent-1",
        "destination": run.receiver.url.removesuffix("/hook"),
        "eventType": "experience.flow_node.webhook",
        "finishedFrom": "2020-01-01T00:00:00Z",
        "finishedBefore": "2100-01-01T00:00:00+01:00",
    }
    assert sorted(each["id"] for each in await run.rows(**query)) == sorted([dead[1], dead[3]])
    assert await run.rows(finishedFrom="2100-01-01T00:00:00Z") == []
    assert row["id"] not in [each["id"] for each in await run.rows(finishedBefore=row["finishedAt"])]
    run.receiver.answer = lambda number: status(200)
    body = {name: value for name, value in query.items() if name != "status"}
    answer = await run.client.post("/v1/webhooks/outbox/retry", json=body)
    begun = answer.json()["data"]
    left_out = {"number": 0, "exact": True}
    assert (answer.status_code, begun) == (
        202,
        {"actionId": begun["actionId"], "counted": 2, "delivered": left_out},
    )
    await until(lambda: _ended(run, dead[1], "delivered"))
    await until(lambda: _ended(run, dead[3], "delivered"))
    key = {"Idempotency-Key": "k"}
    named = {"ids": [dead[0], dead[1]], "resetAttempts": True}
    answers = [await run.client.post("/v1/webhooks/outbox/retry", json=named, headers=key) for _ in range(2)]
    first, second = (each.json()["data"] for each in answers)
    assert (first["counted"], first["delivered"]) == (1, {"number": 1, "exact": True})
    assert second["actionId"] == first["actionId"]
    await until(lambda: _ended(run, dead[0], "delivered"))
    assert len(await run.rows(status="dead")) == 2
    nothing = await run.client.post("/v1/webhooks/outbox/retry", json={"eventId": "evt_none"})
    assert nothing.json()["data"] == {"actionId": None, "counted": 0, "delivered": left_out}


async def test_every_filter_has_one_name_in_queries_and_bodies(run: Running) -> None:
    """Those of the table of fields, which pages and commands read, too; each selects by its own column."""
    delivery_id = await run.enqueue()
    await until(lambda: _ended(run, delivery_id, "delivered"))
    shown = (await run.rows())[0]
    names = {field.json for field in FIELDS if field.json}
    assert names <= {each.encode_name for each in msgspec.structs.fields(RetryMany)} | {"status"}
    for name in names & shown.keys():
        if shown[name] is not None:
            assert [each["id"] for each in await run.rows(**{name: shown[name]})] == [delivery_id], name
            other = (
                "dead" if name == "status" else "https://other.example" if name == "destination" else "other"
            )
            if name != "errorClass":
                assert await run.rows(**{name: other}) == [], name
    late = {"createdFrom": "2100-01-01T00:00:00Z"}
    assert await run.rows(**late) == []
    assert len(await run.rows(createdBefore="2100-01-01T00:00:00Z", errorClass="http_5xx")) == 0
    wrong = await run.client.get("/v1/webhooks/outbox", params={"errorClass": "nonsense"})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (400, "errorClass")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"ids": ["x"]}, "ids"),
        ({"ids": ["0" * 36] * 1001}, "ids"),
        ({"agentId": "\x00"}, "agentId"),
        ({"agentid": "a"}, ""),
        ({"limit": 1}, "limit"),
        ({"rate": 0}, "rate"),
        ({"all": True, "agentId": "a"}, "all"),
        ({"resetAttempts": "yes"}, "resetAttempts"),
        ({"finishedFrom": "yesterday"}, "finishedFrom"),
        ({"finishedFrom": "2030-01-31T12:00:00"}, "finishedFrom"),
        ([], ""),
        (None, ""),
    ],
)
async def test_a_replay_that_is_not_understood_retries_nothing(run: Running, body: Any, named: str) -> None:
    """A misspelt filter is an error, never a wider replay."""
    answer = await run.client.post("/v1/webhooks/outbox/retry", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    if named:
        assert [error["path"].split("[")[0].split(".")[0] for error in answer.json()["errors"]] == [named]


async def test_a_waiting_delivery_is_cancelled(run: Running) -> None:
    """It ends with the name of who did it; what is not waiting is a 404."""
    run.receiver.answer = lambda number: status(503)
    node = Node(id="n", type="webhook", config={"webhookUrl": run.receiver.url, "webhookRetryOnFailure": True})
    delivery_id = (await run.actions.reach(a_walk(), node)).delivery_id
    await until(lambda: _ended(run, str(delivery_id), "retrying"))
    path = f"/v1/webhooks/outbox/{delivery_id}/cancel"
    answer = await run.client.post(path)
    assert (answer.status_code, answer.json()) == (200, {"data": {"id": delivery_id, "cancelled": True}})
    (row,) = await run.rows()
    assert (row["status"], row["lastError"]) == ("dead", "cancelled by Ada")
    again = await run.client.post(path)
    assert (again.status_code, again.json()["data"]["cancelled"]) == (404, False)


async def test_another_organization_sees_nothing(run: Running) -> None:
    """Rows of another tenant are as if they did not exist (§5.1)."""
    run.receiver.answer = lambda number: status(500)
    delivery_id = await run.enqueue()
    await until(lambda: _ended(run, delivery_id))
    run.host.principal = DashboardPrincipal(
        organization_id="globex", user_id="g", user_name="G", may_change=True
    )
    assert await run.rows() == []
    assert (await run.client.get(f"/v1/webhooks/outbox/{delivery_id}")).status_code == 404
    assert (await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/webhooks/outbox"),
        ("GET", "/v1/webhooks/outbox/1"),
        ("POST", "/v1/webhooks/outbox/retry"),
        ("POST", "/v1/webhooks/outbox/1/retry"),
        ("POST", "/v1/webhooks/outbox/1/cancel"),
        ("GET", "/integrations/chat/install"),
        ("GET", "/integrations/chat/connection"),
        ("DELETE", "/integrations/chat/connection"),
        ("PUT", "/integrations/chat/connection/default-channel"),
        ("POST", "/integrations/chat/send-message"),
        ("GET", "/integrations/chat/channels"),
        ("GET", "/integrations/chat/members"),
    ],
)
async def test_nobody_gets_in_without_a_session(run: Running, method: str, path: str) -> None:
    """Every dashboard route answers 401 with a problem to strangers (§5.1)."""
    run.host.principal = None
    answer = await run.client.request(method, path, json={"text": "x", "channelId": "C"})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthorized"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/webhooks/outbox?status=lost", "status"),
        ("/v1/webhooks/outbox?limit=0", "limit"),
        ("/v1/webhooks/outbox?limit=many", "limit"),
        ("/v1/webhooks/outbox?limit=1000", "limit"),
        ("/v1/webhooks/outbox?finishedFrom=yesterday", "finishedFrom"),
        ("/v1/webhooks/outbox?finishedBefore=2030-01-31T12:00:00", "finishedBefore"),
    ],
)
async def test_a_wrong_query_names_its_field(run: Running, path: str, named: str) -> None:
    """Validation answers 400 with the field's path."""
    answer = await run.client.get(path)
    assert answer.status_code == 400
    assert [error["path"] for error in answer.json()["errors"]] == [named]


async def test_credentials_are_masked_in_what_is_shown(run: Running) -> None:
    """Values of credential-like headers and query parameters; what is sent keeps them."""
    config = {
        "webhookUrl": f"{run.receiver.url}?token=hush-hush&x=1",
        "webhookHeaders": [
            {"key": "Authorization", "value": "Bearer hush-hush"},
            {"key": "X-Api-Key", "value": "hush-hush"},
            {"key": "X-User", "value": "u"},
        ],
    }
    result = await run.actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
    await until(lambda: _ended(run, str(result.delivery_id), "delivered"))
    answer = await run.client.get(f"/v1/webhooks/outbox/{result.delivery_id}")
    shown = answer.json()["data"]
    headers = {header["key"].lower(): header["value"] for header in shown["headers"]}
    assert headers["user-agent"] == "Service-Webhooks/1"
    assert (headers["authorization"], headers["x-api-key"], headers["x-user"]) == ("…", "…", "u")
    assert shown["url"] == f"{run.receiver.url}?token=…&x=1"
    assert "hush-hush" not in answer.text + (await run.client.get("/v1/webhooks/outbox")).text
    (request,) = run.receiver.requests
    assert (request.header("authorization"), request.header("x-api-key")) == ("Bearer hush-hush", "hush-hush")
    assert "token=hush-hush" in request.line


CORRUPT = {"origin": '\'{"kind":"later"}\'', "headers": "'[[[['"}


async def test_a_corrupt_row_is_shown_beside_the_others(run: Running) -> None:
    """Each column alone and all at once: 200, with a note where origin or headers cannot be read."""
    corrupt, sound = await run.enqueue(), await run.enqueue()
    await until(lambda: _ended(run, corrupt, "delivered"))
    await until(lambda: _ended(run, sound, "delivered"))
    database = services_of(run.host)._database
    for columns in ([name] for name in CORRUPT), [list(CORRUPT)]:
        for names in columns:
            changes = ", ".join(f"{name} = {CORRUPT[name]}" for name in names)
            async with database.write() as connection:
                await connection.execute(
                    text(f"UPDATE flowactions_outbox SET {changes} WHERE id = :id"),  # noqa: S608  our own words
                    {"id": corrupt},
                )
            answer = await run.client.get(f"/v1/webhooks/outbox/{corrupt}")
            assert (answer.status_code, answer.json()["data"]["id"]) == (200, corrupt), names
            for name in {"origin", "headers"}.intersection(names):
                assert name in answer.json()["data"]["defect"]
            listed = await run.rows()
            assert [row["id"] for row in listed] == sorted([corrupt, sound], reverse=True), names


@sampled("cursor", ["", "x", "é", "%00", "'; DROP TABLE x", "9" * 3000], size=3)
async def test_any_cursor_is_answered(run: Running, cursor: str) -> None:
    """A cursor that was made up lists what it lists, and is never a server error."""
    answer = await run.client.get("/v1/webhooks/outbox", params={"cursor": cursor})
    assert answer.status_code in {200, 400}
    for path in (f"/v1/webhooks/outbox/{cursor}x", f"/v1/webhooks/outbox/{cursor}x/retry"):
        answer = await run.client.request("POST" if "retry" in path else "GET", path)
        assert answer.status_code in {400, 404}


async def test_without_chat_settings_its_routes_name_them_and_the_rest_works(run: Running) -> None:
    """The chat provider is unavailable and nothing else breaks (§5.5)."""
    for method, path in (
        ("GET", "/integrations/chat/install"),
        ("GET", "/integrations/chat/callback"),
        ("GET", "/integrations/chat/connection"),
        ("POST", "/integrations/chat/send-message"),
        ("GET", "/integrations/chat/channels"),
    ):
        answer = await run.client.request(method, path, json={"text": "x"})
        assert answer.status_code == 503
        assert "CHAT_CLIENT_ID" in answer.json()["detail"]
    assert not run.actions.node_types["chat_message"].available
    assert run.actions.node_types["chat_message"].unavailable_reason == NOT_SET_UP
    assert run.actions.node_types["webhook"].available


async def test_mounting_changes_nothing_in_the_host(run: Running) -> None:
    """The host's own errors keep the host's own shape."""

    @get("/own", sync_to_thread=False)
    def own() -> None:
        raise LookupError

    app = Litestar([own, *run.actions.route_handlers], logging_config=None, openapi_config=None)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        answer = await client.get("/own")
        missing = await client.get("/nothing")
    assert answer.headers["content-type"] == "application/json"
    assert (answer.status_code, missing.status_code) == (500, 404)
    assert "code" not in missing.json()


async def _ended(run: Running, delivery_id: str, state: str = "dead") -> bool:
    rows = await run.rows()
    return any(row["id"] == delivery_id and row["status"] == state for row in rows)


async def _all_ended(run: Running, count: int) -> bool:
    return len(await run.rows(status="dead")) == count
