"""The signatures of a session's calls, and of the messages in them.

Metadata `trovemq-auth-bin` of each call

| bytes | content                                                                      |
|-------|------------------------------------------------------------------------------|
| 16    | id of the session                                                            |
| 8     | number of the call, big-endian; each number is used once                     |
| 32    | HMAC-SHA256(session key, "call" 0 id number path), path as `/Service/Method` |

Each request message ends with an unknown field of protobuf's, which readers skip

| bytes | content                                                                             |
|-------|-------------------------------------------------------------------------------------|
| 2     | FA 7F: field 2047, bytes                                                            |
| 1     | 16, the length                                                                      |
| 16    | HMAC-SHA256(session key, "frame" 0 call number, message number, all before it), cut |

Messages of a call are numbered from 0. So on a connection without TLS an attacker cannot change, repeat,
reorder or add calls, or messages of a call. But they can read everything, leave out the rest of a stream, and
change replies: only TLS prevents that.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from hmac import compare_digest
from struct import Struct
from typing import Final

METADATA_KEY: Final = "trovemq-auth-bin"
SESSION_ID_SIZE: Final = 16
TRAILER_SIZE: Final = 19

_NUMBER: Final = Struct(">Q")
_MAC_SIZE: Final = 32
_CREDENTIAL_SIZE: Final = SESSION_ID_SIZE + 8 + _MAC_SIZE
_TAG: Final = b"\xfa\x7f\x10"
_FRAME_MAC_SIZE: Final = 16
_BLOCK_SIZE: Final = 64  # of SHA-256

Buffer = bytes | bytearray | memoryview


class SigningKey:
    """The key of one session, for both sides.

    The HMAC of a message is made by its definition (RFC 2104): the hashes of the key's two blocks are kept,
    and a message costs a copy of each. By `hmac` a short message costs twice as much.
    """

    __slots__ = ("_inner", "_key", "_outer", "session_id")

    def __init__(self, session_id: bytes, key: bytes) -> None:
        assert len(session_id) == SESSION_ID_SIZE, "a session's id has 16 bytes"
        assert len(key) <= _BLOCK_SIZE, "HMAC would hash a longer key first"
        self.session_id: Final = session_id
        self._key = key
        block = key.ljust(_BLOCK_SIZE, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + b"frame\0")
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def __repr__(self) -> str:
        return "SigningKey()"

    def credential(self, number: int, path: str) -> bytes:
        """The metadata's value for a call."""
        head = self.session_id + _NUMBER.pack(number)
        return head + self._call_mac(head, path)

    def check_credential(self, credential: bytes, path: str) -> int | None:
        """The call's number; None if it is not signed by this key for this path."""
        if len(credential) != _CREDENTIAL_SIZE:
            return None
        head = credential[: SESSION_ID_SIZE + 8]
        if not compare_digest(credential[len(head) :], self._call_mac(head, path)):
            return None
        return int(_NUMBER.unpack_from(head, SESSION_ID_SIZE)[0])

    def _call_mac(self, head: bytes, path: str) -> bytes:
        return hmac.digest(self._key, b"call\0" + head + path.encode(), "sha256")

    def message_mac(self, call: int) -> Callable[[int, Buffer], bytes]:
        """The MACs of one call's messages, by their number."""
        of_call, outer, pack = self._inner.copy(), self._outer, _NUMBER.pack
        of_call.update(pack(call))

        def mac(number: int, message: Buffer) -> bytes:
            inner = of_call.copy()
            inner.update(pack(number))
            inner.update(message)
            whole = outer.copy()
            whole.update(inner.digest())
            return whole.digest()[:_FRAME_MAC_SIZE]

        return mac

    def sign(self, call: int, number: int, message: bytes) -> bytes:
        """The message with its trailer."""
        return b"".join((message, _TAG, self.message_mac(call)(number, message)))


def session_id_of(credential: bytes) -> bytes:
    """The session id that a credential names; any bytes if the credential is malformed."""
    return credential[:SESSION_ID_SIZE]


def message_signer(key: SigningKey, call: int) -> Callable[[bytes], bytes]:
    """Signs the messages of one call in their order."""
    mac, number = key.message_mac(call), -1

    def sign(message: bytes) -> bytes:
        nonlocal number
        number += 1
        return b"".join((message, _TAG, mac(number, message)))

    return sign


def message_checker(key: SigningKey, call: int) -> Callable[[Buffer], bool]:
    """Checks the messages of one call in their order; after a wrong one all later ones count as wrong."""
    mac, number, sound = key.message_mac(call), -1, True

    def check(message: Buffer) -> bool:
        nonlocal number, sound
        number += 1
        sound = (
            sound
            and message[-TRAILER_SIZE:-_FRAME_MAC_SIZE] == _TAG
            and compare_digest(message[-_FRAME_MAC_SIZE:], mac(number, memoryview(message)[:-TRAILER_SIZE]))
        )
        return sound

    return check
