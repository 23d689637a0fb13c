"""What not everybody may read is masked: credentials in headers, and in a URL's path and query."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.http.masking import (
    MASK,
    is_credential_name,
    masked_header,
    masked_url,
    reason_for_tenants,
)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "X-Authentication",
        "Cookie",
        "X-Api-Key",
        "Api_Key",
        "apikey",
        "Ocp-Apim-Subscription-Key",
        "X-Auth-Token",
        "client_secret",
        "X-Hub-Signature-256",
        "Password",
        "x-passwd",
        "X-Credentials",
        "X-Session-Id",
        "X-JWT",
        "sig",
        "pwd",
        " X-Token ",
    ],
)
def test_a_header_name_that_means_a_credential_is_recognized(name: str) -> None:
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
def test_other_names_are_shown(name: str) -> None:
    """A short word inside another one is none, and what operators look for when something came twice is shown."""
    assert not is_credential_name(name)
    assert masked_header(name, "the value") == "the value"


@pytest.mark.parametrize("value", ["Bearer x", "bearer  x", "Basic eDp5", " Token x", "Digest username=x"])
def test_credentials_are_known_under_any_name(value: str) -> None:
    """By their scheme."""
    assert masked_header("X-Forwarded-As", value) == MASK


@pytest.mark.parametrize("value", ["", "Bearer", "basically fine", "tokens: 3"])
def test_other_values_are_shown(value: str) -> None:
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
def test_a_url_hides_the_values_of_credentials_only(url: str, shown: str) -> None:
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
        ("https://api.telegram.org/file/bot12:secret/a.png", "https://api.telegram.org/file/bot…"),
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
def test_a_path_that_is_a_credential_is_hidden(url: str, shown: str) -> None:
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
def test_other_paths_are_shown(path: str) -> None:
    """Words and numbers are no random text, and a path means nothing at another host."""
    assert masked_url(f"https://a.example/{path}") == f"https://a.example/{path}"


@given(st.text())
def test_any_text_is_a_name_a_value_and_a_url(text: str) -> None:
    """Nothing raises."""
    assert masked_header(text, text) in {text, MASK}
    assert masked_url(text).count("?") == text.count("?") or MASK in masked_url(text)


@pytest.mark.parametrize(
    ("text", "authored", "shown"),
    [
        (
            "cannot connect to a:9: [Errno 111] Connect call failed ('127.0.0.1', 9)",
            "localhost",
            "cannot connect to a:9: the network failed",
        ),
        (
            "a has no address now: [Errno -2] Name or service not known",
            "",
            "a has no address now: the network failed",
        ),
        (
            "the connection to a:443 broke: [SSL: X] oops (_ssl.c:1)",
            "",
            "the connection to a:443 broke: the network failed",
        ),
        ("Host.signing_secret of H raised KeyError", "", "Host.signing_secret of H failed"),
        ("it failed unexpectedly: KeyError", "", "it failed unexpectedly"),
        ("Not allowed (private). Set FLOWACTIONS_EGRESS_ALLOW to permit it.", "", "Not allowed (private)."),
        ("to ::1 and [fe80::1%lo]:443.", "", "to (an address) and [(an address)%lo]:443."),
        ("10.0.0.1:443, 2001:db8::7.", "", "(an address), (an address)"),
        ("Requests to 10.0.0.1 are not allowed", "http://10.0.0.1/", "Requests to 10.0.0.1 are not allowed"),
        (
            "timed out after 10.5 s at 12:30:45, HTTP/1.1, v1.2.3",
            "",
            "timed out after 10.5 s at 12:30:45, HTTP/1.1, v1.2.3",
        ),
        ("a dead bee: cafe.", "", "a dead bee: cafe."),
    ],
)
def test_tenants_read_no_inner_parts_of_a_reason(text: str, authored: str, shown: str) -> None:
    """Neither what a name resolves to nor errors of Python and settings; everything else of a message stays."""
    assert reason_for_tenants(text, authored) == shown
