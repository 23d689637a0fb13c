from __future__ import annotations

import pytest

from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.request_head import head_of
from flowactions_plugin.egress.signature import (
    attempt_headers,
    event_id_of,
    sign,
    sign_standard,
    signing_key,
    with_standard_headers,
)


@pytest.mark.parametrize(
    ("secret", "body", "mac"),
    [
        ("s3cret", b'{"a":1}', "1698a50bc74d1ff1db85c4e0a5297c2ad9fdba245d5737cdb789e4cc6e098940"),
        ("schüssel", b"", "b9d929f6424d4a00bb155f49887964da124625f02bedc4c058e2fa7dc9753880"),
    ],
)
def test_the_signature_is_the_hmac_that_receivers_compute(secret: str, body: bytes, mac: str) -> None:
    """Vectors made with OpenSSL: printf '1700000000.<body>' | openssl dgst -sha256 -hmac <secret> (§5.3, §5.3.2, §5.3.3)."""
    assert sign(secret, 1_700_000_000, body) == f"v1,{mac}"


def test_the_standard_signature_is_that_of_the_schemes_own_example() -> None:
    """Of its specification: ``<id>.<timestamp>.<raw body>`` (§5.3.8)."""
    secret, message = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signature = sign_standard(secret, message, 1_614_265_330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_attempt_without_a_secret_has_no_signature() -> None:
    """Neither of the two (§5.3.7); a row that was stored without an event id has an empty one."""
    own = [("x-service-webhook-id", "e")]
    sent = with_standard_headers(attempt_headers(own, "1", None), "1", None)
    assert sent == [*own, ("x-service-webhook-timestamp", "1"), ("webhook-id", "e"), ("webhook-timestamp", "1")]
    assert event_id_of([("other", "e")]) == ""


def test_stored_headers_that_servers_read_as_ours_are_not_sent() -> None:
    """A row from before the setting may have names of the other scheme, with ``_`` for ``-`` (§2.6)."""
    own = [("x-service-webhook-id", "e"), ("x-service-webhook-event", "t"), ("x_other", "1")]
    forged = [
        ("Webhook_Signature", "forged"),
        ("content_length", "forged"),
        ("Transfer_Encoding", "forged"),
        ("HTTP_WEBHOOK_SIGNATURE", "forged"),
    ]
    sent = with_standard_headers(attempt_headers([*own, *forged], "1", "v1,s"), "1", "v1,s")
    request = Request("POST", parse_destination("http://example.com/"), sent, b"{}", Progress())
    head = head_of(request).decode()
    assert "forged" not in head
    assert "x_other: 1" in head
    assert head.count("x-service-webhook-signature: v1,s") == 1


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("whsec_BwgJCgsMDQ4P", bytes(range(7, 16))),
        ("whsec_BwgJCgsMDQ", bytes(range(7, 14))),
        ("whsec_", b"whsec_"),
        ("whsec_====", b"whsec_===="),
        ("whsec_a", b"whsec_a"),
        ("whsec_not base64", b"whsec_not base64"),
        ("whsec_é", "whsec_é".encode()),
        ("WHSEC_c2VjcmV0", b"WHSEC_c2VjcmV0"),
        (" whsec_c2VjcmV0", b" whsec_c2VjcmV0"),
        ("c2VjcmV0", b"c2VjcmV0"),
        ("schlüssel", "schlüssel".encode()),
    ],
)
def test_the_key_of_a_secret(secret: str, key: bytes) -> None:
    """Base64 behind `whsec_` is decoded; whatever else there is, is the key in UTF-8, and no key is empty (§5.3.8)."""
    assert signing_key(secret) == key
