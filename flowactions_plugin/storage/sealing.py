"""Sealing: secrets at rest are encrypted with AES-256-GCM by a key ring."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flowactions_plugin.errors import NotConfigured, SealBroken

KEY_BYTES: Final = 32


class KeyRing:
    """Seals with the newest key and opens with any (§2.2).

    A sealed value is the key's id (8 bytes), a random nonce (12 bytes), then the ciphertext with its tag. The associated data
    binds it to one organization and one purpose: moved to another row, it does not open. What encrypts is imported at
    the first value, as most processes seal nothing.

    Args:
        keys: 32 bytes each, newest first; at least one.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): key for key in keys}
        self._newest = keys[0]

    def seal(self, secret: str, organization_id: str, purpose: str) -> bytes:
        """Encrypt a secret for one organization and purpose."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  see `KeyRing`

        nonce = os.urandom(12)
        sealed = AESGCM(self._newest).encrypt(nonce, secret.encode(), _bound(organization_id, purpose))
        return _key_id(self._newest) + nonce + sealed

    def open(self, sealed: bytes, organization_id: str, purpose: str) -> str:
        """Decrypt a secret.

        Raises:
            SealBroken: its key is not in the ring, it was altered, or it belongs to another row.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key_id, nonce, ciphertext = sealed[:8], sealed[8:20], sealed[20:]
        if key_id not in self._keys:
            raise SealBroken("The sealed value needs an encryption key that is not configured.")
        try:
            opened = AESGCM(self._keys[key_id]).decrypt(nonce, ciphertext, _bound(organization_id, purpose))
            return opened.decode()
        except (InvalidTag, ValueError) as exc:
            raise SealBroken from exc

    def is_newest(self, sealed: bytes) -> bool:
        """Return whether a value is sealed under the newest key."""
        return sealed[:8] == _key_id(self._newest)

    def sign(self, message: bytes, purpose: str) -> bytes:
        """Authenticate a message with a key derived from the newest key for this purpose."""
        return hmac.digest(_derived(self._newest, purpose), message, "sha256")

    def verify(self, message: bytes, signature: bytes, purpose: str) -> bool:
        """Return whether `sign` made the signature with any key of the ring."""
        candidates = (hmac.digest(_derived(key, purpose), message, "sha256") for key in self._keys.values())
        return any(hmac.compare_digest(candidate, signature) for candidate in candidates)


def key_ring(keys: Sequence[bytes], development_directory: Path | None) -> KeyRing:
    """Return the ring of the configured keys, newest first.

    Without any, it is that of a key file in the directory for development, which is created when missing.

    Raises:
        NotConfigured: there is no key.
    """
    if keys:
        return KeyRing(keys)
    if development_directory is None:
        raise NotConfigured("FLOWACTIONS_ENCRYPTION_KEYS is not set: secrets cannot be stored.")
    path = development_directory / "flowactions.key"
    try:
        if not path.exists():
            _make_key_file(path)
        key = base64.b64decode(path.read_bytes().strip(), validate=True)
    except ValueError:
        key = b""
    except OSError as exc:
        raise NotConfigured(
            f"{path}, which holds the key, can be neither read nor made: {exc.strerror}."
        ) from exc
    if len(key) != KEY_BYTES:
        raise NotConfigured(f"{path} holds no key: delete it to have a new one made.")
    return KeyRing([key])


def _make_key_file(path: Path) -> None:
    """Write a new key, readable by its owner only. When another process was first, its key is kept."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(os.urandom(KEY_BYTES)))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"flowactions key id" + key).digest()[:8]


def _derived(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"flowactions derived key: " + purpose.encode(), "sha256")


def _bound(organization_id: str, purpose: str) -> bytes:
    organization = organization_id.encode()
    return len(organization).to_bytes(4, "big") + organization + purpose.encode()
