from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowactions_hookspecs import DashboardPrincipal, Node, NodeDraft
from tests.plugin.nodes.running import Running, running
from tests.support import SmallHost, a_walk, development

CHECK, PREVIEW, TEST = (f"/integrations/nodes/{name}" for name in ("check", "preview", "test"))


def body_of(run: Running, **config: Any) -> dict[str, Any]:
    values = {"webhookUrl": run.receiver.url, **config}
    return {"agentId": "agent-1", "node": {"id": "n1", "type": "webhook", "config": values}}


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    async with running(SmallHost(development(database_url))) as started:
        yield started


async def test_check_answers_the_problems(run: Running) -> None:
    """The route and the facade say the same, camelCase, with path, code, severity and place."""
    body = body_of(run, webhookBody='{"a": {{userId}}\n x}', webhookHeaders=[{"key": "host", "value": "a"}])
    answer = await run.client.post(CHECK, json=body)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    first, second = answer.json()["data"]
    assert (first["path"], first["code"]) == (["webhookHeaders", 0, "key"], "header_dropped")
    assert (second["path"], second["code"], second["severity"]) == (["webhookBody"], "invalid_body", "error")
    assert (second["line"], second["column"]) == (2, 2)
    assert (await run.client.post(CHECK, json=body_of(run, webhookBody="{}"))).json() == {"data": []}


async def test_preview_answers_what_the_facade_shows(run: Running) -> None:
    """With the run that the body names, or a sample of one."""
    walk = {"flowId": "f", "runId": "r", "userId": "u", "content": "c", "visit": "2"}
    body = body_of(run, webhookBody='["{{userId}}", {{content}}]', webhookSecret="S3CRET")
    answer = (await run.client.post(PREVIEW, json={**body, "walk": walk})).json()["data"]
    assert (answer["method"], answer["url"], answer["body"]) == ("POST", run.receiver.url, '["u", "c"]')
    draft = NodeDraft(
        organization_id="acme",
        agent_id="agent-1",
        node=Node(id="n1", type="webhook", config=body["node"]["config"]),
    )
    same = a_walk(flow_id="f", run_id="r", user_id="u", content="c", visit="2")
    expected = await run.actions.preview(draft, same)
    assert [(each["key"], each["value"]) for each in answer["headers"]] == [
        (each.key, each.value) for each in expected.headers
    ]
    assert answer["headers"][-1] == {"key": "x-service-webhook-signature", "value": "v1,…"}
    assert "S3CRET" not in str(answer)
    sample = (await run.client.post(PREVIEW, json=body)).json()["data"]
    assert sample["body"] == '["sample-user", "This is a sample message."]'
    assert run.receiver.requests == []


async def test_test_sends_once(run: Running) -> None:
    """The receiver gets one request, and the answer says what it answered."""
    answer = await run.client.post(TEST, json=body_of(run), timeout=300)
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert (data["status"], data["statusCode"], data["response"]) == ("delivered", 200, "ok")
    assert len(run.receiver.requests) == 1
    shown = await run.client.get(f"/v1/webhooks/outbox/{data['deliveryId']}")
    assert shown.json()["data"]["status"] == "delivered"


@pytest.mark.parametrize("path", [CHECK, PREVIEW, TEST])
async def test_the_organization_is_the_principals(run: Running, path: str) -> None:
    """A body that names one is refused, whichever it is; what is done is done for the principal's."""
    for place in ("body", "node", "walk"):
        body: dict[str, Any] = {**body_of(run), "walk": {}}
        (body if place == "body" else body[place])["organizationId"] = "globex"
        answer = await run.client.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert run.receiver.requests == []


@pytest.mark.parametrize(("path", "status"), [(CHECK, 200), (PREVIEW, 200), (TEST, 403)])
async def test_who_may_only_look_may_check_and_preview(run: Running, path: str, status: int) -> None:
    """They change nothing; a test sends something."""
    run.host.principal = DashboardPrincipal(
        organization_id="acme", user_id="u", user_name="U", may_change=False
    )
    assert (await run.client.post(path, json=body_of(run))).status_code == status
    run.host.principal = None
    assert (await run.client.post(path, json=body_of(run))).status_code == 401
    assert run.receiver.requests == []


@pytest.mark.parametrize("path", [CHECK, PREVIEW, TEST])
async def test_pages_of_other_sites_and_bodies_of_other_kinds_are_refused(run: Running, path: str) -> None:
    """All three are protected like what changes something."""
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        answer = await run.client.post(path, json=body_of(run), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    answer = await run.client.post(path, content=b"a=b", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert (await run.client.post(path)).status_code == 400
    assert run.receiver.requests == []


@pytest.mark.parametrize("path", [CHECK, PREVIEW, TEST])
async def test_bodies_are_read_strictly(run: Running, path: str) -> None:
    """What cannot be used is a 400 with the field, before anything happens."""
    changes: list[dict[str, Any]] = [
        {"agentId": ""},
        {"agentId": "a\x00b"},
        {"agentId": "a" * 256},
        {"agentId": 5},
        {"agentId": None},
        {"node": {}},
        {"node": {"type": "", "config": {}}},
        {"node": {"type": "webhook", "id": "", "config": {}}},
        {"node": {"type": "webhook", "config": []}},
        {"node": {"type": "webhook", "version": "1"}},
        {"askProvider": "yes"},
        {"more": 1},
    ]
    for change in changes:
        answer = await run.client.post(path, json={**body_of(run), **change})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), change
        (error,) = answer.json()["errors"]
        assert error["path"].startswith(next(iter(change)))
    assert run.receiver.requests == []


async def test_a_walk_is_read_strictly(run: Running) -> None:
    """Its ids are ids."""
    for walk in ({"flowId": ""}, {"runId": "\x00"}, {"visit": "v" * 256}, {"userId": 5}, {"more": 1}):
        for path in (PREVIEW, TEST):
            answer = await run.client.post(path, json={**body_of(run), "walk": walk})
            assert answer.status_code == 400
    assert run.receiver.requests == []


async def test_bodies_have_up_to_two_mebibytes(run: Running) -> None:
    """So that a webhook's largest body fits; more is a 413."""
    big = '"' + "x" * ((1 << 20) - 2) + '"'
    assert (await run.client.post(CHECK, json=body_of(run, webhookBody=big))).json() == {"data": []}
    answer = await run.client.post(CHECK, json=body_of(run, webhookBody="x" * (2 << 20)))
    assert answer.status_code == 413


async def test_an_unknown_type_is_a_problem_of_the_draft(run: Running) -> None:
    """Not an error of the request: an editor shows it beside the others."""
    body = {"agentId": "agent-1", "node": {"type": "nobody"}}
    assert (await run.client.post(CHECK, json=body)).json()["data"][0]["code"] == "unknown_node_type"
    assert (await run.client.post(PREVIEW, json=body)).json()["data"]["problems"][0][
        "code"
    ] == "unknown_node_type"
    assert (await run.client.post(TEST, json=body)).json()["data"]["status"] == "skipped"
