from __future__ import annotations

import httpx
import msgspec
import pytest
from litestar import Litestar, get

from flowactions_hookspecs import DashboardPrincipal, Node
from flowactions_plugin.api.routes import RetryMany
from flowactions_plugin.insights import search as search_queries
from flowactions_plugin.insights.filters import FIELDS
from flowactions_plugin.nodes.chat_message import NOT_SET_UP
from tests.plugin.deliveries.running import Running
from tests.recorder import status
from tests.support import a_walk
from tests.waiting import until


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


async def test_a_dead_delivery_is_retried(run: Running) -> None:
    """The retry answers as §4.3 says, and the delivery is sent again."""
    run.receiver.answer = lambda number: status(500 if number == 1 else 200)
    delivery_id = await run.enqueue()
    await until(lambda: run.is_listed(delivery_id))
    answer = await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")
    assert (answer.status_code, answer.json()) == (200, {"data": {"id": delivery_id, "requeued": True}})
    await until(lambda: run.is_listed(delivery_id, "delivered"))
    again = await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")
    assert (again.status_code, again.json()) == (404, {"data": {"id": delivery_id, "requeued": False}})


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
    await until(lambda: run.is_listed(dead[1], "delivered"))
    await until(lambda: run.is_listed(dead[3], "delivered"))
    key = {"Idempotency-Key": "k"}
    named = {"ids": [dead[0], dead[1]], "resetAttempts": True}
    answers = [await run.client.post("/v1/webhooks/outbox/retry", json=named, headers=key) for _ in range(2)]
    first, second = (each.json()["data"] for each in answers)
    assert (first["counted"], first["delivered"]) == (1, {"number": 1, "exact": True})
    assert second["actionId"] == first["actionId"]
    await until(lambda: run.is_listed(dead[0], "delivered"))
    assert len(await run.rows(status="dead")) == 2
    nothing = await run.client.post("/v1/webhooks/outbox/retry", json={"eventId": "evt_none"})
    assert nothing.json()["data"] == {"actionId": None, "counted": 0, "delivered": left_out}


async def test_every_filter_has_one_name_in_queries_and_bodies(run: Running) -> None:
    """Those of the table of fields, which pages and commands read, too; each selects by its own column."""
    delivery_id = await run.enqueue()
    await until(lambda: run.is_listed(delivery_id, "delivered"))
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
    assert [len(await run.rows(statusCode=each)) for each in (200, 503)] == [1, 0]
    late = {"createdFrom": "2100-01-01T00:00:00Z"}
    assert await run.rows(**late) == []
    assert len(await run.rows(createdBefore="2100-01-01T00:00:00Z", errorClass="http_5xx")) == 0
    wrong = await run.client.get("/v1/webhooks/outbox", params={"errorClass": "nonsense"})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (400, "errorClass")


async def test_a_waiting_delivery_is_cancelled(run: Running) -> None:
    """It ends with the name of who did it; what is not waiting is a 404."""
    run.receiver.answer = lambda number: status(503)
    node = Node(id="n", type="webhook", config={"webhookUrl": run.receiver.url, "webhookRetryOnFailure": True})
    delivery_id = (await run.actions.reach(a_walk(), node)).delivery_id
    await until(lambda: run.is_listed(str(delivery_id), "retrying"))
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
    await until(lambda: run.is_listed(delivery_id))
    run.host.principal = DashboardPrincipal(
        organization_id="globex", user_id="g", user_name="G", may_change=True
    )
    assert await run.rows() == []
    assert (await run.client.get(f"/v1/webhooks/outbox/{delivery_id}")).status_code == 404
    assert (await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/retry")).status_code == 404


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


async def _all_ended(run: Running, count: int) -> bool:
    return len(await run.rows(status="dead")) == count
