"""One delivered webhook that is sent again: over HTTP, to a real receiver."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import DashboardPrincipal, Node
from flowactions_plugin.operators.scope import Scope
from tests.plugin.deliveries.running import Running
from tests.queueing import Queue
from tests.recorder import Request, status
from tests.support import a_walk, services_of
from tests.waiting import until

SIGNATURE = "x-service-webhook-signature"
TIMES = {"x-service-webhook-timestamp", SIGNATURE}


async def delivered(run: Running) -> str:
    """Send a webhook; give its id once it is delivered."""
    config = {
        "webhookUrl": run.receiver.url,
        "webhookBody": '{"order": 7}',
        "webhookHeaders": [{"key": "x-own", "value": "{{userId}}"}],
    }
    result = await run.actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
    assert result.delivery_id is not None
    await ended(run, result.delivery_id)
    return result.delivery_id


async def ended(run: Running, delivery_id: str, state: str = "delivered") -> None:
    await until(lambda: run.is_listed(delivery_id, state))


def signature(request: Request, secret: str) -> str:
    signed = f"{request.header('x-service-webhook-timestamp')}.".encode() + request.body
    return "v1," + hmac.new(secret.encode(), signed, "sha256").hexdigest()


async def test_it_arrives_with_the_same_event_and_is_signed_with_the_present_secret(run: Running) -> None:
    """Headers and body are the first one's; an action without a secret is sent unsigned again (§2.5, §5.3.6)."""
    run.host.secret = "before"
    first = await delivered(run)
    run.host.secret = "after"
    answer = await run.client.post(f"/v1/webhooks/outbox/{first}/resend")
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert (data["id"], data["resent"]) == (first, True)
    await ended(run, data["resentAs"])
    run.host.secret = None
    again = (await run.client.post(f"/v1/webhooks/outbox/{data['resentAs']}/resend")).json()["data"]["resentAs"]
    await ended(run, again)
    one, two, three = run.receiver.requests
    assert signature(one, "before") == one.header(SIGNATURE)
    assert signature(two, "after") == two.header(SIGNATURE)
    assert SIGNATURE not in {name for name, _ in three.headers}
    kept = [[each for each in request.headers if each[0] not in TIMES] for request in (one, two, three)]
    assert kept[0] == kept[1] == kept[2]
    assert one.body == two.body == three.body == b'{"order": 7}'
    shown = (await run.client.get(f"/v1/webhooks/outbox/{data['resentAs']}")).json()["data"]
    assert (shown["resentFrom"], shown["attempts"], shown["status"]) == (first, 1, "delivered")
    assert (await run.client.get(f"/v1/webhooks/outbox/{first}")).json()["data"]["resentFrom"] is None


async def test_only_what_is_delivered_is_sent_again_by_who_may_change_it(run: Running) -> None:
    """Another organization's, a dead and a missing one are not there; a reader may not; nothing is written."""
    run.receiver.answer = lambda _: status(500)
    node = Node(id="n", type="webhook", config={"webhookUrl": run.receiver.url})
    dead = (await run.actions.reach(a_walk(), node)).delivery_id
    assert dead is not None
    await ended(run, dead, "dead")
    run.receiver.answer = lambda _: status(200)
    first = await delivered(run)

    async def resend(delivery_id: str) -> tuple[int, object]:
        answer = await run.client.post(f"/v1/webhooks/outbox/{delivery_id}/resend")
        return answer.status_code, answer.json().get("data") or answer.json()["code"]

    for missing in (dead, first.replace(first[:4], "ffff"), "nonsense"):
        assert await resend(missing) == (404, {"id": missing, "resent": False, "resentAs": None})
    person = run.host.principal
    run.host.principal = DashboardPrincipal(
        organization_id="globex", user_id="g", user_name="G", may_change=True
    )
    assert (await resend(first))[0] == 404
    run.host.principal = DashboardPrincipal(
        organization_id="acme", user_id="r", user_name="R", may_change=False
    )
    assert await resend(first) == (403, "forbidden")
    run.host.principal = person
    assert len(await run.rows()) == 2
    answer = await run.client.post("/v1/webhooks/outbox/retry", json={"ids": [first, dead]})
    begun = answer.json()["data"]
    assert (begun["counted"], begun["delivered"]) == (1, {"number": 1, "exact": True})


@pytest.mark.ci
async def test_a_row_whose_origin_cannot_be_read_is_not_sent_again(run: Running) -> None:
    """Nobody could say with which secret; the answer is the same as for a row that is not there."""
    first = await delivered(run)
    database = services_of(run.host)._database
    await Queue(database).run("UPDATE flowactions_outbox SET origin = '[]'")
    assert (await run.client.post(f"/v1/webhooks/outbox/{first}/resend")).status_code == 404
    assert len(await run.rows()) == 1


@pytest.mark.ci
async def test_many_are_sent_again_by_a_bulk_action(run: Running) -> None:
    """Those of the filter and of the organization; workers carry it out, and who may only look begins none."""
    await delivered(run)
    body = {"createdFrom": "2020-01-01T00:00:00Z", "eventType": "experience.flow_node.webhook", "rate": 100.0}
    for wrong, words in (
        ({}, "Say which deliveries"),
        ({"agentId": "agent-1"}, "Say which deliveries"),
        ({**body, "rate": 0}, "rate"),
        ({**body, "nothing": 1}, "nothing"),
        ({**body, "createdFrom": "2020-01-01"}, "createdFrom"),
    ):
        answer = await run.client.post("/v1/webhooks/outbox/resend", json=wrong)
        assert (answer.status_code, words in answer.text) == (400, True), wrong
    person = run.host.principal
    for organization_id, may_change, status_code in (("globex", True, 202), ("acme", False, 403)):
        run.host.principal = DashboardPrincipal(
            organization_id=organization_id, user_id="g", user_name="G", may_change=may_change
        )
        answer = await run.client.post("/v1/webhooks/outbox/resend", json=body)
        assert answer.status_code == status_code
        assert answer.json().get("data") in ({"actionId": None, "counted": 0, "delivered": None}, None)
    run.host.principal = person
    answer = await run.client.post("/v1/webhooks/outbox/resend", json={**body, "reason": "lost"})
    data = answer.json()["data"]
    assert (answer.status_code, data["counted"]) == (202, 1)
    await until(lambda: len(run.receiver.requests) == 2)
    (entry,) = await services_of(run.host)._insights.audit(Scope("acme"), None, 10)
    assert (entry.action, entry.action_id, entry.reason) == ("resend", data["actionId"], "lost")


async def test_a_request_that_is_repeated_with_its_key_sends_once(run: Running) -> None:
    """Also when they arrive together; a key is the organization's and the delivery's; the audit has one line a copy."""
    first, second = await delivered(run), await delivered(run)

    async def resend(delivery_id: str, key: str) -> str:
        answer = await run.client.post(
            f"/v1/webhooks/outbox/{delivery_id}/resend", headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 200, answer.text
        sent: str = answer.json()["data"]["resentAs"]
        return sent

    together = set(await asyncio.gather(*(resend(first, "k 1") for _ in range(5))))
    assert len(together) == 1
    assert await resend(first, "k 1") in together
    others = {await resend(first, "k 2"), await resend(second, "k 1")}
    assert len(others | together) == 3
    listed = {row["id"]: row["resentFrom"] for row in await run.rows()}
    sources = [listed[each] for each in sorted(together | others)]
    assert sorted(sources) == sorted([first, first, second])
    assert [listed[each] for each in (first, second)] == [None, None]
    assert len(await services_of(run.host)._insights.audit(Scope("acme"), None, 10)) == 3
    for wrong in ("", "x" * 201, "\x7f"):
        answer = await run.client.post(
            f"/v1/webhooks/outbox/{first}/resend", headers={"Idempotency-Key": wrong}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), wrong
        assert "Idempotency-Key" in answer.text


async def test_a_bulk_resend_that_is_repeated_with_its_key_is_the_first_one(run: Running) -> None:
    """Without a key each call begins another; with another filter the key is refused."""
    first = await delivered(run)

    async def begin(body: dict[str, object], key: str | None = "k") -> tuple[int, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await run.client.post("/v1/webhooks/outbox/resend", json=body, headers=headers)
        return answer.status_code, answer.json().get("data") or answer.json()["detail"]

    assert (await begin({"ids": ["0" * 8 + first[8:]]})) == (
        202,
        {"actionId": None, "counted": 0, "delivered": None},
    )
    one = await begin({"ids": [first]})
    await asyncio.sleep(0.002)  # another set has another time
    assert await begin({"ids": [first]}) == one
    assert one[1]["counted"] == 1
    assert await begin({"createdFrom": "2020-01-01T00:00:00Z"}) == (
        400,
        "This idempotency key was used for another request.",
    )
    assert (await begin({"ids": [first]}, "other"))[1]["actionId"] != one[1]["actionId"]
    assert (await begin({"ids": [first]}, None))[1]["actionId"] != one[1]["actionId"]
    async with services_of(run.host)._database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM flowactions_actions"))).scalar_one() == 3
