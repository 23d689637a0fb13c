from __future__ import annotations

import hmac
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions, Node, OriginGone
from flowactions_plugin.nodes.webhook import Reading, attempts_in_words
from flowactions_plugin.settings.model import Settings
from tests.plugin.nodes.running import Running, a_draft, running
from tests.recorder import status
from tests.support import SmallHost, a_walk, development
from tests.waiting import until


def a_node(url: str, **config: Any) -> Node:
    return Node(id="n1", type="webhook", config={"webhookUrl": url, **config})


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    async with running(SmallHost(development(database_url))) as started:
        yield started


HOSTILE = {
    "line feed": ("a\nx-evil: 1", b"a x-evil: 1"),
    "carriage return": ("a\rx-evil: 1", b"a x-evil: 1"),
    "both": ("a\r\nx-evil: 1\r\n\r\nGET / HTTP/1.1", b"a  x-evil: 1    GET / HTTP/1.1"),
    "at the end": ("a\r\n", b"a"),
    "NUL": ("a\x00b", b"a b"),
    "every control character": ("".join(map(chr, [*range(32), *range(127, 160)])) + "z", b"z"),
    "a next line": ("a\x85b", b"a b"),
    "a line separator": ("a\u2028b", "a\u2028b".encode()),
    "Latin": ("né", "né".encode()),
    "wide": ("注文😀", "注文😀".encode()),
    "half a character": ("a\ud800b", "a\ufffdb".encode()),
    "a header of ours": ("1\r\nx-service-webhook-id: evt_other", b"1  x-service-webhook-id: evt_other"),
    "templates": ("{{userId}}{{content}}", b"{{userId}}{{content}}"),
    "nothing but space": (" \t ", b""),
}
"""Values that an end user may type, and the bytes that a header then holds."""


class TestDelivery:
    @pytest.mark.parametrize("variable", ["userId", "content"])
    async def test_an_end_user_cannot_add_a_header(self, run: Running, variable: str) -> None:
        """Exactly the decided bytes arrive, in one header; in the body they are JSON text of the same value."""
        token = "{{" + variable + "}}"
        node = a_node(
            run.receiver.url,
            webhookBody='{"said": ' + token + "}",
            webhookHeaders=[{"key": "x-said", "value": token}, {"key": "x-last", "value": "end"}],
        )
        walk = {"userId": "user_id", "content": "content"}[variable]
        for what, (said, expected) in HOSTILE.items():
            run.receiver.requests.clear()
            await run.ended(await run.reach(node, **{walk: said}))
            (request,) = run.receiver.requests
            assert [value for name, value in request.headers if name == "x-said"] == [expected], what
            assert sorted(name for name, _ in request.headers) == [
                "accept",
                "content-length",
                "content-type",
                "host",
                "user-agent",
                "x-last",
                "x-said",
                "x-service-webhook-event",
                "x-service-webhook-id",
                "x-service-webhook-timestamp",
            ], what
            assert json.loads(request.body) == {"said": said.replace("\ud800", "\ufffd")}, what

    async def test_a_webhook_arrives_signed_with_every_header(self, run: Running) -> None:
        """A receiver that follows §5.3 verifies what arrives, and finds the headers of §2.6 (§5.3.1)."""
        run.host.secret = "s3cret"
        node = a_node(
            run.receiver.url,
            webhookBody='{"user": {{userId}}, "n": 1.10}',
            webhookHeaders=[{"key": "X-Said", "value": "{{content}}"}, {"value": "no name"}],
        )
        result = await run.reach(node, user_id='a"b', content="héllo")
        row = await run.ended(result)
        (request,) = run.receiver.requests
        assert request.line == "POST /hook HTTP/1.1"
        assert request.body == b'{"user": "a\\"b", "n": 1.10}'
        assert request.header("user-agent") == "Service-Webhooks/1"
        assert request.header("x-service-webhook-event") == "experience.flow_node.webhook"
        assert request.header("x-service-webhook-id") == row["eventId"]
        assert request.header("content-type") == "application/json"
        assert request.header("x-said") == "héllo"
        signed = request.header("x-service-webhook-timestamp").encode() + b"." + request.body
        expected = hmac.new(b"s3cret", signed, "sha256").hexdigest()
        assert request.header("x-service-webhook-signature") == f"v1,{expected}"
        names = {name for name, _ in request.headers}
        assert names == {
            "accept",
            "host",
            "content-length",
            "content-type",
            "user-agent",
            "x-said",
            "x-service-webhook-id",
            "x-service-webhook-event",
            "x-service-webhook-timestamp",
            "x-service-webhook-signature",
        }
        assert (row["status"], row["attempts"], row["lastStatusCode"]) == ("delivered", 1, 200)
        assert [attempt["response"] for attempt in row["attemptLog"]] == ["ok"]

    @pytest.mark.parametrize("secret", [None, ""])
    async def test_without_a_secret_there_is_no_signature(self, run: Running, secret: str | None) -> None:
        """An unsigned delivery carries a timestamp but no signature header (§5.3, §5.3.7)."""
        run.host.secret = secret
        await run.ended(await run.reach(a_node(run.receiver.url)))
        names = {name for name, _ in run.receiver.requests[0].headers}
        assert "x-service-webhook-signature" not in names
        assert "x-service-webhook-timestamp" in names
        assert "content-type" not in names

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_get_and_head_have_no_body(self, run: Running, method: str) -> None:
        """A body is not sent with GET and HEAD (§2.4)."""
        if method == "HEAD":
            run.receiver.answer = lambda number: b"HTTP/1.1 200 OK\r\n\r\n"
        node = a_node(run.receiver.url, webhookMethod=method.lower(), webhookBody='{"a": 1}')
        row = await run.ended(await run.reach(node))
        (request,) = run.receiver.requests
        assert (request.line, request.body) == (f"{method} /hook HTTP/1.1", b"")
        assert row["body"] is None

    async def test_one_attempt_without_retry(self, run: Running) -> None:
        """With retry off, a failure makes the row dead at once (§2.4, §3.1)."""
        run.receiver.answer = lambda number: status(500, body=b"x" * 5000)
        row = await run.ended(await run.reach(a_node(run.receiver.url)))
        assert (row["status"], row["attempts"], row["lastStatusCode"]) == ("dead", 1, 500)
        assert row["attemptLog"][0]["response"] == "x" * 2048
        assert len(run.receiver.requests) == 1

    @pytest.mark.parametrize("code", [302, 404, 410, 199])
    async def test_anything_but_2xx_is_a_failure(self, run: Running, code: int) -> None:
        """Redirects are not followed, and only 2xx delivers (§4.5)."""
        if code == 199:
            run.receiver.answer = lambda number: b"garbage\r\n\r\n"
        else:
            run.receiver.answer = lambda number: status(code, f"location: {run.receiver.url}")
        row = await run.ended(await run.reach(a_node(run.receiver.url)))
        assert row["status"] == "dead"
        assert len(run.receiver.requests) == 1

    async def test_a_cookie_of_one_delivery_is_not_sent_with_the_next(self, run: Running) -> None:
        """Deliveries share nothing, cookies included."""
        run.receiver.answer = lambda number: status(200, "set-cookie: a=b; path=/")
        url = run.receiver.url.replace("127.0.0.1", "localhost")  # jars take no cookies from bare addresses
        for _ in range(2):
            await run.ended(await run.reach(a_node(url)))
        assert not any(name == "cookie" for request in run.receiver.requests for name, _ in request.headers)


class TestBeingTold:
    async def test_the_host_learns_how_a_delivery_ended(self, run: Running) -> None:
        """A delivered one and a dead one are told once each, and a retry in between is not."""
        await run.ended(await run.reach(a_node(run.receiver.url)))
        run.receiver.answer = lambda number: status(410)
        dead = await run.reach(a_node(run.receiver.url))
        await run.ended(dead)
        await until(lambda: len(run.host.finished) == 2)
        told = [(one.status, one.attempts, one.status_code, one.organization_id) for one in run.host.finished]
        assert told == [("delivered", 1, 200, "acme"), ("dead", 1, 410, "acme")]
        assert run.host.finished[1].id == dead.delivery_id
        assert run.host.finished[1].url == run.receiver.url

    async def test_a_delivery_whose_action_is_gone_is_told(self, run: Running) -> None:
        """An end without an attempt counts, too, with its reason; nothing is sent."""
        run.host.secret_error = OriginGone()
        row = await run.ended(await run.reach(a_node(run.receiver.url)))
        assert row["status"] == "dead"
        assert "no longer exists" in row["lastError"]
        assert run.receiver.requests == []
        (told,) = await until(lambda: run.host.finished)
        assert (told.status, told.attempts) == ("dead", 0)
        assert "no longer exists" in (told.error or "")


class TestSkipped:
    async def test_what_cannot_be_queued_is_skipped_and_halts_only_when_told(self, run: Running) -> None:
        """Nothing is enqueued; the walk halts only on an explicit false (§7.2)."""
        for config, reason in (
            ({"webhookUrl": ""}, "missing_url"),
            ({"webhookUrl": None}, "missing_url"),
            ({"webhookUrl": "http://169.254.169.254/latest"}, "blocked_url"),
            ({"webhookUrl": "http://127.0.0.1/", "webhookBody": "{"}, "invalid_body"),
            ({"webhookUrl": "http://127.0.0.1/", "webhookBody": {"a": 1}}, "invalid_body"),
            ({"webhookBody": "{", "webhookHeaders": [{"key": "k", "value": "x" * 10_000}]}, "invalid_body"),
        ):
            for proceed in (None, True, False, "false", 0):
                said = {} if proceed is None else {"webhookContinueOnFailure": proceed}
                result = await run.reach(Node(id="n", type="webhook", config={**config, **said}))
                found = (result.status, result.reason, result.delivery_id, result.halt)
                assert found == ("skipped", reason, None, proceed is False), (config, proceed)
                assert result.message

    async def test_production_refuses_loopback_and_private_destinations(
        self, database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A private or loopback host skips the node (§2.4); the author is told no setting, and the log has what allows it."""
        settings = {"FLOWACTIONS_DATABASE_URL": database_url}
        async with running(SmallHost(settings)) as run:
            for url in (run.receiver.url, "http://localhost:9/", "https://10.0.0.1/", "http://[::1]/"):
                result = await run.reach(a_node(url))
                assert (result.status, result.reason) == ("skipped", "blocked_url")
                assert "FLOWACTIONS" not in (result.message or "FLOWACTIONS")
                assert "FLOWACTIONS_EGRESS_ALLOW" in caplog.messages[-1]
            assert run.receiver.requests == []

    @pytest.mark.parametrize(
        ("allowed", "host", "other"),
        [("127.0.0.1", "127.0.0.1", "127.0.0.2"), ("localhost", "LocalHost", "127.0.0.1")],
    )
    async def test_what_is_allowed_passes_in_production(
        self, database_url: str, allowed: str, host: str, other: str
    ) -> None:
        """Self-hosters may allow networks and names of their own; another name or address is refused, in drafts, too."""
        settings = {
            "FLOWACTIONS_DATABASE_URL": database_url,
            "FLOWACTIONS_EGRESS_ALLOW": allowed,
            "FLOWACTIONS_TICK_SECONDS": "0.05",
        }
        async with running(SmallHost(settings)) as run:
            fits, refused = (run.receiver.url.replace("127.0.0.1", each) for each in (host, other))
            assert await run.actions.check(a_draft(webhookUrl=fits)) == ()
            (problem,) = await run.actions.check(a_draft(webhookUrl=refused))
            assert problem.code == "blocked_url"
            assert (await run.reach(a_node(refused))).reason == "blocked_url"
            row = await run.ended(await run.reach(a_node(fits)))
        assert row["status"] == "delivered"


async def test_skipping_is_logged_with_the_node(run: Running, caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees in the log which node was skipped, and why."""
    caplog.set_level(logging.WARNING)
    await run.reach(Node(id="n-7", type="webhook"))
    assert "webhook node n-7 skipped: missing_url" in caplog.text


@pytest.mark.parametrize(
    ("delays", "tick_seconds", "words"),
    [
        ((5, 5, 8), None, "4 attempts: at once, then about 5 s, 10 s and 18 s after the first."),
        ((), None, "1 attempt: at once."),
        ((5,), 90, "2 attempts: within 1.5 min, then about 1.5 min after the first."),
        ((5, 5, 8), 5, "4 attempts: within 5 s, then about 10 s, 20 s and 30 s after the first."),
        ((5, 300, 7200), None, "4 attempts: at once, then about 5 s, 5.1 min and 2.1 h after the first."),
        ((60,), 60, "2 attempts: within 1 min, then about 2 min after the first."),
        ((), 60, "1 attempt: within 1 min."),
    ],
)
def test_attempts_are_told_with_their_times(
    delays: tuple[float, ...], tick_seconds: float | None, words: str
) -> None:
    """The times follow from the delays and, with scheduled delivery, from the ticks (§8)."""
    assert attempts_in_words(delays, tick_seconds) == words


@pytest.mark.parametrize(
    ("settings", "attempts", "first"),
    [
        ({"FLOWACTIONS_DELIVERY": "continuous"}, 4, "at once, then about 5 s, 10 s and 18 s after"),
        ({}, 4, "within 1 min, then about 1 min, 2 min and 3 min after the first"),
        (
            {"FLOWACTIONS_DELIVERY": "continuous", "FLOWACTIONS_RETRY_SCHEDULE": "long"},
            8,
            "at once, then about 5 s, 5.1 min, 35.1 min, 2.6 h, 7.6 h, 17.6 h and 27.6 h after",
        ),
    ],
)
def test_the_palette_and_the_form_say_what_the_defaults_do(
    settings: dict[str, str], attempts: int, first: str
) -> None:
    """The form has the attempts of the mode and schedule that are set; the palette promises no signature and no retry (§2.4, §8)."""
    described = FlowActions.load(SmallHost(settings)).node_types["webhook"].describe()
    help_text = described["configSchema"]["properties"]["webhookRetryOnFailure"]["description"].splitlines()
    assert help_text[0].startswith("Off, 1 attempt:")
    assert help_text[1].startswith(f"On, up to {attempts} attempts: {first}")
    assert (
        f"Signed if you set a secret. One attempt; with retries on, up to {attempts}."
        in described["description"]
    )


@pytest.mark.parametrize(
    ("in_order", "user", "expected"),
    [(True, "ada", "ada"), (True, None, "r1"), (True, "", "r1"), (False, "ada", None)],
)
def test_what_is_sent_in_order_is_so_for_each_user(
    in_order: bool, user: str | None, expected: str | None
) -> None:
    """Over all runs of one user; where nobody knows who it is, within one run."""
    node = a_node("http://127.0.0.1/", webhookInOrder=in_order)
    walk = a_walk(user_id=user, run_id="r1")
    assert Reading(node, Settings()).webhook(walk, node).order_key == expected
