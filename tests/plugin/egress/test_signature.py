from __future__ import annotations

import pytest

from flowactions_plugin.egress.signature import sign


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
