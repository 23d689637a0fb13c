"""What a dashboard is shown of a delivery: no credentials, and whatever of a corrupt row can be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.http.masking import MASK, is_credential_name, masked_header, masked_url
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.views import delivery_of, detail_of
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from tests.queueing import Queue


class TestMasking:
    @pytest.mark.parametrize(
        "name",
        [
            "Authorization",
            "Proxy-Authorization",
            "X-Authentication",
            "Cookie",
            "Set-Cookie",
            "X-Api-Key",
            "Api_Key",
            "apikey",
            "Ocp-Apim-Subscription-Key",
            "X-Auth-Token",
            "X-Gitlab-Token",
            "client_secret",
            "X-Hub-Signature-256",
            "Password",
            "x-passwd",
            "X-Credentials",
            "X-Session-Id",
            "X-JWT",
            "sig",
            "X-Sig",
            "pwd",
            " X-Token ",
        ],
    )
    def test_a_header_name_that_means_a_credential_is_recognized(self, name: str) -> None:
        """By what it holds, whatever its spelling."""
        assert is_credential_name(name)
        assert masked_header(name, "the value") == MASK

    @pytest.mark.parametrize(
        "name",
        [
            "Content-Type",
            "X-Request-Id",
            "X-User",
            "X-Design",
            "X-Signal",
            "X-Mapping",
            "X-Patient",
            "Idempotency-Key",
            "x-idempotency-key",
            "Accept",
        ],
    )
    def test_other_names_are_shown(self, name: str) -> None:
        """A short word inside another one is none, and what operators look for when something came twice is shown."""
        assert not is_credential_name(name)
        assert masked_header(name, "the value") == "the value"

    @pytest.mark.parametrize("value", ["Bearer x", "bearer  x", "Basic eDp5", " Token x", "Digest username=x"])
    def test_credentials_are_known_under_any_name(self, value: str) -> None:
        """By their scheme."""
        assert masked_header("X-Forwarded-As", value) == MASK

    @pytest.mark.parametrize("value", ["", "Bearer", "basically fine", "tokens: 3"])
    def test_other_values_are_shown(self, value: str) -> None:
        """A scheme alone is no credential."""
        assert masked_header("X-Note", value) == value

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://a.example/hook", "https://a.example/hook"),
            ("https://a.example/token/secret", "https://a.example/token/secret"),
            ("https://a.example/?token=abc&x=1", "https://a.example/?token=…&x=1"),
            ("https://a.example/?x=1&API_KEY=abc#token=b", "https://a.example/?x=1&API_KEY=…#token=b"),
            ("https://a.example/?sig=a%20b;key=c&key=", "https://a.example/?sig=…;key=…&key="),
            ("https://a.example/?a?token=b", "https://a.example/?a?token=…"),
            ("https://a.example/?monday=1&token", "https://a.example/?monday=1&token"),
            ("https://a.example/?Code=abc&country_code=de", "https://a.example/?Code=…&country_code=de"),
            ("", ""),
        ],
    )
    def test_a_url_hides_the_values_of_credentials_only(self, url: str, shown: str) -> None:
        """The rest stays as it is stored."""
        assert masked_url(url) == shown

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://hooks.slack.com/services/T0/B0/secret", "https://hooks.slack.com/services/…"),
            (
                "HTTPS://Hooks.Slack.com:443/triggers/T0/1/secret?a=1",
                "HTTPS://Hooks.Slack.com:443/triggers/…?a=1",
            ),
            ("https://hooks.slack-gov.com/workflows/T0/A0/1/x/", "https://hooks.slack-gov.com/workflows/…"),
            ("https://discord.com/api/webhooks/12/secret", "https://discord.com/api/webhooks/…"),
            (
                "https://ptb.discordapp.com/api/v10/webhooks/12/secret",
                "https://ptb.discordapp.com/api/v10/webhooks/…",
            ),
            ("https://hooks.zapier.com/hooks/catch/12/secret/", "https://hooks.zapier.com/hooks/catch/…"),
            ("https://api.telegram.org/bot12:secret/sendMessage", "https://api.telegram.org/bot…"),
            (
                "https://maker.ifttt.com/trigger/new/json/with/key/secret",
                "https://maker.ifttt.com/trigger/new/json/with/key/…",
            ),
            ("https://hook.eu1.make.com/4kq7x1b2m9v8c3n5z6l0a1s2d3f4g5h6", "https://hook.eu1.make.com/…"),
            (
                "https://n8n.a.example/webhook/0b9f1c3e-7a52-4d06-9e88-5c1d2a3b4c5d",
                "https://n8n.a.example/webhook/…",
            ),
            ("https://a.example/hooks/x7q1m3k9p5w2z8r4t6y0b1n3c5/v2", "https://a.example/hooks/…/v2"),
            ("https://a.example/abc12def345ghijk", "https://a.example/…"),
            (
                (
                    "https://a.webhook.office.com/webhookb2/0b9f1c3e-7a52-4d06-9e88-5c1d2a3b4c5d@0b9f1c3e-7a52-4d06-9e88"
                    "-5c1d2a3b4c5d/IncomingWebhook/0b9f1c3e7a524d069e885c1d2a3b4c5d/0b9f1c3e-7a52-4d06-9e88-5c1d2a3b4c5d"
                ),
                "https://a.webhook.office.com/webhookb2/…/IncomingWebhook/…/…",
            ),
            (
                (
                    "https://p.westeurope.logic.azure.com:443/workflows/0b9f1c3e7a524d069e885c1d2a3b4c5d/triggers/manual"
                    "/paths/invoke?api-version=1&sp=%2Ftriggers&sig=secret"
                ),
                (
                    "https://p.westeurope.logic.azure.com:443/workflows/…/triggers/manual/paths/invoke?api-version=1"
                    "&sp=%2Ftriggers&sig=…"
                ),
            ),
        ],
    )
    def test_a_path_that_is_a_credential_is_hidden(self, url: str, shown: str) -> None:
        """By its service, or because it looks random; the host and what is a word stay."""
        assert masked_url(url) == shown

    @pytest.mark.parametrize(
        "path",
        [
            "services/orders",
            "a1b2c3d4e5f6g7h",
            "api/webhooks/12/orders",
            "bot12:x/sendMessage",
            "2026-summer-campaign-v2",
            "orderCreatedNotificationHandler",
            "order-confirmations-2026-01-31",
            "%D0%B7%D0%B0%D0%BA%D0%B0%D0%B7%D1%8B",
            "0123456789012345678901234567890",
            "v1/organizations/acme-42/hooks",
        ],
    )
    def test_other_paths_are_shown(self, path: str) -> None:
        """Words and numbers are no random text, and a path means nothing at another host."""
        assert masked_url(f"https://a.example/{path}") == f"https://a.example/{path}"

    @given(st.text())
    def test_any_text_is_a_name_a_value_and_a_url(self, text: str) -> None:
        """Nothing raises."""
        assert masked_header(text, text) in {text, MASK}
        assert masked_url(text).count("?") == text.count("?") or MASK in masked_url(text)


def a_row(**changes: Any) -> SimpleNamespace:
    values = {
        "id": "00000000-0000-7000-8000-000000000000",
        "status": "dead",
        "organization_id": "acme",
        "destination": "https://a.example:443",
        "flow_id": None,
        "node_id": None,
        "error_class": None,
        "idempotency_key": None,
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
        "last_status_code": None,
        "last_error": None,
        **dict.fromkeys(
            ("claimed_until", "waiting_since", "takeovers", "quarantine_rounds", "trace", "action_id")
        ),
        "origin": b'{"kind":"flow_node","organizationId":"o","agentId":"a","flowId":"f","runId":"r","nodeId":"n"}',
        "headers": b'[["authorization","Bearer abc"],["x-user","u"]]',
        "body": b"\xff{}",
    }
    return SimpleNamespace(**{**values, **changes})


def an_attempt(**changes: Any) -> SimpleNamespace:
    values = {
        "number": 1,
        "started_at": 0,
        "duration_ms": 3,
        "phases": None,
        "status_code": 500,
        "error": None,
        "response": b"x",
        "worker": None,
    }
    return SimpleNamespace(**{**values, **changes})


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
        assert shown["headers"] == [{"key": "authorization", "value": MASK}, {"key": "x-user", "value": "u"}]
        assert shown["origin"]["flowId"] == "f"
        assert shown["body"] == "\ufffd{}"
        assert shown["createdAt"] == "1970-01-01T00:00:00.000Z"

    @pytest.mark.parametrize("column", ["origin", "headers"])
    def test_whatever_a_column_holds_the_row_is_shown(self, column: str) -> None:
        """And it can be written as JSON, in the list and in the detail."""
        for value in STRANGE:
            row = a_row(**{column: value})
            msgspec.json.decode(msgspec.json.encode(delivery_of(row, for_operators=False)))
            shown = msgspec.json.decode(
                msgspec.json.encode(detail_of(row, [an_attempt()], 0, {}, for_operators=False))
            )
            assert shown["attemptLog"][0]["number"] == 1

    def test_whatever_the_phases_of_an_attempt_hold_the_row_is_shown(self) -> None:
        """With its other attempts."""
        for value in STRANGE:
            log = [an_attempt(phases=value), an_attempt(number=2)]
            shown = msgspec.json.decode(
                msgspec.json.encode(detail_of(a_row(), log, 0, {}, for_operators=False))
            )
            assert shown["attemptLog"][1]["number"] == 2

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

    def test_the_largest_counts_are_no_defect(self) -> None:
        """They are numbers like others."""
        shown = delivery_of(a_row(attempts=2**31 - 1, max_attempts=2**31 - 1), for_operators=False)
        assert (shown.attempts, shown.max_attempts) == (2**31 - 1, 2**31 - 1)


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
