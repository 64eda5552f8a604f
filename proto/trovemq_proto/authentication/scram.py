"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the client proves that it knows the secret, and so does the server.

    client                                   server
    n,,n=ACCESS_KEY,r=NONCE          ->
                                     <-      r=NONCE+MORE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+MORE,p=PROOF      ->
                                     <-      v=SIGNATURE

Neither the secret nor anything that could be replayed is sent: the proof is valid for these two nonces alone.
The key of the session is derived from values that both sides know at the end, and that no listener knows.
There is no channel binding (the transports do not give access to that of TLS): a session's calls are signed
instead (calls.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

ITERATIONS: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000
SALT_SIZE: Final = 16
KEY_SIZE: Final = 32
MESSAGE_SIZE_MAX: Final = 1_024

_NO_BINDING: Final = "n,,"
_BINDING: Final = "biws"  # base64 of it
_SESSION: Final = b"TroveMQ session key\0"
_CLIENT_FIRST: Final = re.compile(r"n,,(n=([^,=\0]{1,64}),r=([!-+\--~]{16,128}))")
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]{16,256}),s=([A-Za-z0-9+/=]{8,128}),i=([0-9]{1,7})")
_CLIENT_FINAL: Final = re.compile(
    r"(c=([A-Za-z0-9+/=]{1,64}),r=([!-+\--~]{16,256})),p=([A-Za-z0-9+/=]{8,128})"
)


class ScramError(Exception):
    """The other side's message is malformed, or its proof is wrong."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The server's stored values: enough to check a proof, not enough to make one."""

    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        salted = _salted(secret, salt, iterations)
        return cls(hashlib.sha256(_client_key(salted)).digest(), _server_key(salted))


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message, read."""

    access_key: str
    nonce: str
    bare: str

    @classmethod
    def parse(cls, message: str) -> ClientFirst:
        """Raises ScramError if it is not one."""
        found = _CLIENT_FIRST.fullmatch(message[: MESSAGE_SIZE_MAX + 1])
        if found is None:
            raise ScramError("the first message is not n,,n=ACCESS_KEY,r=NONCE")
        return cls(found[2], found[3], found[1])


class ServerHandshake:
    """The server's side, between the client's two messages."""

    def __init__(
        self, first: ClientFirst, salt: bytes, server_nonce: str, iterations: int = ITERATIONS
    ) -> None:
        self.access_key: Final = first.access_key
        self.nonce: Final = first.nonce + server_nonce
        self.message: Final = f"r={self.nonce},s={_text(salt)},i={iterations}"
        self._bare = first.bare

    def check(self, message: str, verifiers: tuple[Verifier, ...]) -> tuple[int, str, bytes]:
        """The index of the verifier that the proof fits, the reply, and the session's key. ScramError."""
        found = _CLIENT_FINAL.fullmatch(message[: MESSAGE_SIZE_MAX + 1])
        if found is None or found[2] != _BINDING:
            raise ScramError("the last message is not c=biws,r=NONCE,p=PROOF")
        if not hmac.compare_digest(found[3].encode(), self.nonce.encode()):
            raise ScramError("the nonce is not the one that was sent")
        proof = _bytes(found[4])
        auth_message = f"{self._bare},{self.message},{found[1]}".encode()
        for number, verifier in enumerate(verifiers):
            client_key = _xor(proof, hmac.digest(verifier.stored_key, auth_message, "sha256"))
            if hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
                signature = hmac.digest(verifier.server_key, auth_message, "sha256")
                return number, f"v={_text(signature)}", session_key(client_key, auth_message)
        raise ScramError("the proof is wrong")


def client_first(access_key: str, nonce: str) -> str:
    """The client's first message. `nonce`: 16 printable characters or more, without a comma."""
    return f"{_NO_BINDING}n={access_key},r={nonce}"


class ClientHandshake:
    """The client's side, once the server has answered its first message."""

    def __init__(self, first: str, server_first: str, secret: bytes) -> None:
        """Raises ScramError if the server's message is not a reply to the first one."""
        sent, answer = _CLIENT_FIRST.fullmatch(first), _SERVER_FIRST.fullmatch(server_first)
        assert sent is not None, "our own message"
        if answer is None or not answer[1].startswith(sent[3]) or len(answer[1]) < len(sent[3]) + 16:
            raise ScramError("the server's answer does not belong to the handshake")
        iterations = int(answer[3])
        if not ITERATIONS <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"the server asks for {iterations} iterations")
        salted = _salted(secret, _bytes(answer[2]), iterations)
        client_key = _client_key(salted)
        final = f"c={_BINDING},r={answer[1]}"
        auth_message = f"{sent[1]},{server_first},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
        self.message: Final = f"{final},p={_text(_xor(client_key, signature))}"
        self._expected = f"v={_text(hmac.digest(_server_key(salted), auth_message, 'sha256'))}"
        self._session_key = session_key(client_key, auth_message)

    def finish(self, server_final: str) -> bytes:
        """The session's key. ScramError if the server does not know the secret."""
        if not hmac.compare_digest(server_final.encode(), self._expected.encode()):
            raise ScramError("the server does not know the secret")
        return self._session_key


def session_key(client_key: bytes, auth_message: bytes) -> bytes:
    """The common secret of both sides after the handshake."""
    return hmac.digest(client_key, _SESSION + auth_message, "sha256")


def _salted(secret: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", secret, salt, iterations)


def _client_key(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", "sha256")


def _server_key(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ScramError("the proof has another size")
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("a part is not base64") from None
