"""A TLS client that can send records which no library sends: keys of its session come from the key log.

TLS 1.3: RFC 8446 sections 5.2 (records), 7.2 and 7.3 (keys). TLS 1.2: RFC 5246 section 6.3, RFC 5288.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA: Final = 23
HANDSHAKE: Final = 22
KEY_UPDATE: Final = bytes.fromhex("18 000001 00")
CLIENT_HELLO: Final = bytes.fromhex("01 000100") + bytes(256)
"""The start of an attempt to renegotiate."""
_VERSION: Final = b"\x03\x03"


class HostileTls:
    """One connection. First `handshake` until it is done; then the client's records are made by hand."""

    def __init__(self, version: ssl.TLSVersion, key_log: Path, protocol: str = "h2") -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ECDHE+AESGCM")
        context.set_alpn_protocols([protocol])
        context.keylog_filename = str(key_log)
        self._key_log = key_log
        self._came = ssl.MemoryBIO()
        self._goes = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._came, self._goes, server_hostname="localhost")
        self._first = b""
        self._number = 0
        self._secret = b""

    def handshake(self, received: bytes) -> tuple[bytes, bool]:
        """The bytes to send, and whether the handshake is done."""
        self._first = self._first or received
        self._came.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return self._goes.read(), False
        self._read_keys()
        return self._goes.read(), True

    def _read_keys(self) -> None:
        cipher = self._object.cipher()
        assert cipher is not None
        self._hash = "sha384" if "384" in cipher[0] else "sha256"
        self._key_size = 32 if "256_GCM" in cipher[0] or "AES256" in cipher[0] else 16
        self._is_1_3 = self._object.version() == "TLSv1.3"
        text = self._key_log.read_text()
        if self._is_1_3:
            self._use(bytes.fromhex(re.findall(r"CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)", text)[-1]))
            return
        client_random, master = re.findall(r"CLIENT_RANDOM (\w+) (\w+)", text)[-1]
        seed = b"key expansion" + self._first[11:43] + bytes.fromhex(client_random)
        block = self._p_hash(bytes.fromhex(master), seed, 2 * self._key_size + 8)
        self._key, self._iv = block[: self._key_size], block[2 * self._key_size :][:4]
        self._number = 1  # the handshake's last message was the first one that was sealed

    def _use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._key = self._expand(secret, b"key", self._key_size)
        self._iv = self._expand(secret, b"iv", 12)

    def _expand(self, secret: bytes, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1"
        return hmac.digest(secret, info, self._hash)[:size]

    def _p_hash(self, secret: bytes, seed: bytes, size: int) -> bytes:
        made, one = b"", seed
        while len(made) < size:
            one = hmac.digest(secret, one, self._hash)
            made += hmac.digest(secret, one + seed, self._hash)
        return made

    def record(self, kind: int, content: bytes) -> bytes:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        if self._is_1_3:
            nonce = bytes(a ^ b for a, b in zip(self._iv, bytes(4) + number, strict=True))
            content += bytes([kind])
            header = bytes([DATA]) + _VERSION + (len(content) + 16).to_bytes(2, "big")
            return header + AESGCM(self._key).encrypt(nonce, content, header)
        header = bytes([kind]) + _VERSION
        sealed = AESGCM(self._key).encrypt(
            self._iv + number, content, number + header + len(content).to_bytes(2, "big")
        )
        return header + (len(sealed) + 8).to_bytes(2, "big") + number + sealed

    def data(self, content: bytes) -> bytes:
        return self.record(DATA, content)

    def silent(self) -> bytes:
        """A record without data: a new key in TLS 1.3, an attempt to renegotiate before."""
        if not self._is_1_3:
            return self.record(HANDSHAKE, CLIENT_HELLO)
        record = self.record(HANDSHAKE, KEY_UPDATE)
        self._use(self._expand(self._secret, b"traffic upd", hashlib.new(self._hash).digest_size))
        return record
