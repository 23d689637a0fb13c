from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.errors import NotConfigured, SealBroken
from flowactions_plugin.storage.sealing import KeyRing, key_ring

OLD, NEW = b"o" * 32, b"n" * 32


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_sealed_secret_opens_for_its_row(secret: str) -> None:
    """Its text is not in the sealed bytes."""
    ring = KeyRing([NEW])
    sealed = ring.seal(secret, "acme", "token")
    assert ring.open(sealed, "acme", "token") == secret
    assert len(secret) < 4 or secret.encode() not in sealed
    assert sealed != ring.seal(secret, "acme", "token")


def test_old_keys_open_and_the_newest_key_seals() -> None:
    """Without the old key, old values do not open."""
    sealed = KeyRing([OLD]).seal("s", "acme", "token")
    rotated = KeyRing([NEW, OLD])
    assert rotated.open(sealed, "acme", "token") == "s"
    assert KeyRing([NEW]).open(rotated.seal("s", "acme", "token"), "acme", "token") == "s"
    assert [rotated.is_newest(each) for each in (sealed, rotated.seal("s", "acme", "token"))] == [False, True]
    with pytest.raises(SealBroken, match="not configured"):
        KeyRing([NEW]).open(sealed, "acme", "token")


@pytest.mark.parametrize(
    ("organization", "purpose"), [("globex", "token"), ("acme", "other"), ("acmet", "oken")]
)
def test_a_sealed_value_moved_to_another_row_does_not_open(organization: str, purpose: str) -> None:
    """It is bound to one organization and one purpose."""
    ring = KeyRing([NEW])
    with pytest.raises(SealBroken):
        ring.open(ring.seal("s", "acme", "token"), organization, purpose)


@given(st.binary(max_size=60), st.integers(0, 40))
def test_altered_bytes_do_not_open(garbage: bytes, position: int) -> None:
    """Any bytes that were not sealed raise SealBroken and nothing else."""
    ring = KeyRing([NEW])
    sealed = bytearray(ring.seal("secret", "acme", "token"))
    sealed[position % len(sealed)] ^= 1
    for altered in (bytes(sealed), garbage, bytes(sealed[:10])):
        with pytest.raises(SealBroken):
            ring.open(altered, "acme", "token")


def test_a_signature_verifies_for_one_message_and_purpose() -> None:
    """With any key of the ring."""
    signature = KeyRing([OLD]).sign(b"m", "state")
    ring = KeyRing([NEW, OLD])
    assert ring.verify(b"m", signature, "state")
    assert not ring.verify(b"m2", signature, "state")
    assert not ring.verify(b"m", signature, "other")
    assert not KeyRing([NEW]).verify(b"m", signature, "state")


def test_production_requires_a_key(tmp_path: Path) -> None:
    """The error names the setting."""
    with pytest.raises(NotConfigured, match="FLOWACTIONS_ENCRYPTION_KEYS"):
        key_ring((), None)


def test_development_creates_a_key_file_once(tmp_path: Path) -> None:
    """The key is kept, and only the owner can read it."""
    sealed = key_ring((), tmp_path).seal("s", "acme", "token")
    assert key_ring((), tmp_path).open(sealed, "acme", "token") == "s"
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_corrupt_key_file_is_named(tmp_path: Path) -> None:
    """The message says what to do."""
    (tmp_path / "flowactions.key").write_text("garbage")
    with pytest.raises(NotConfigured, match=r"flowactions\.key holds no key: delete it"):
        key_ring((), tmp_path)
