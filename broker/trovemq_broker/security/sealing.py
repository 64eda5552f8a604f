"""Seals secrets with a key that is not in the store.

A sealed text is base64 of

| bytes | content                                                        |
|-------|----------------------------------------------------------------|
| 12    | nonce                                                          |
| n     | AES-256-GCM of the secret                                      |
| 16    | its tag, which covers the name that the secret belongs to, too |

The key has 32 bytes; its file has 64 hex digits. A copy of the store or of a backup reveals no secret without
the key file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE: Final = 32
NONCE_SIZE: Final = 12

_KEY_TEXT: Final = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")


class SealingKey:
    """Seals and opens secrets. `key_id` identifies the key without revealing it."""

    __slots__ = ("_aead", "_key", "key_id")

    def __init__(self, key: bytes) -> None:
        """Raises ValueError if the key has another size."""
        if len(key) != KEY_SIZE:
            raise ValueError(f"a key has {KEY_SIZE} bytes")
        self._key = key
        self._aead = AESGCM(key)
        self.key_id: Final = self.derive(b"key id")[:8].hex()

    def __repr__(self) -> str:
        return f"SealingKey({self.key_id})"

    @classmethod
    def parse(cls, content: bytes) -> SealingKey:
        """Parses the content of a key file. Raises ValueError, whose text does not show the content."""
        found = _KEY_TEXT.fullmatch(content)
        if found is None:
            raise ValueError("a key file has 64 hex digits and nothing else")
        return cls(bytes.fromhex(found[1].decode()))

    def seal(self, name: str, secret: bytes, nonce: bytes) -> str:
        """`nonce`: 12 random bytes, never used before."""
        assert len(nonce) == NONCE_SIZE, "a nonce has 12 bytes"
        sealed = self._aead.encrypt(nonce, secret, name.encode())
        return base64.b64encode(nonce + sealed).decode()

    def open(self, name: str, sealed: str) -> bytes:
        """Raises ValueError if the text was sealed with another key or for another name, or is damaged."""
        try:
            data = base64.b64decode(sealed, validate=True)
            return self._aead.decrypt(data[:NONCE_SIZE], data[NONCE_SIZE:], name.encode())
        except (binascii.Error, InvalidTag, ValueError):
            raise ValueError(f"the secret of {name} cannot be opened with this key") from None

    def derive(self, purpose: bytes) -> bytes:
        """32 bytes for one purpose, always the same."""
        return hmac.digest(self._key, b"trovemq " + purpose, hashlib.sha256)


class SecretSealer:
    """Seals secrets for another file than the users': with another nonce for each, and for names
    with a prefix, so that a sealed text of one file is worth nothing in the other."""

    def __init__(self, key: SealingKey, random_bytes: Callable[[int], bytes], prefix: str) -> None:
        self._key = key
        self._random_bytes = random_bytes
        self._prefix = prefix
        self.key_id: Final = key.key_id

    def seal(self, name: str, secrets: bytes) -> str:
        return self._key.seal(self._prefix + name, secrets, self._random_bytes(NONCE_SIZE))

    def open(self, name: str, sealed: str) -> bytes:
        """The secrets under that name. Raises ValueError if the text was sealed with another key or for
        another name, or is damaged."""
        return self._key.open(self._prefix + name, sealed)


def key_file_content(key: bytes) -> bytes:
    """The text that SealingKey.parse() reads."""
    return key.hex().encode() + b"\n"
