"""The signature of RocketMQ's own clients: HMAC-SHA1 over the value of `x-mq-date-time`, nothing else.

    authorization: MQv2-HMAC-SHA1 Credential=ACCESS_KEY, SignedHeaders=x-mq-date-time, Signature=HEX

It covers neither the call nor its content, and clients write local times as if they were UTC, so the time
cannot be checked: a header that was read on the network can be used for any call. Therefore it is accepted
only from loopback and over TLS (trovemq_broker.server.access).
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.users import User
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ALGORITHM: Final = "MQv2-HMAC-SHA1"
SIGNED_HEADERS: Final = "x-mq-date-time"
HEADER_SIZE_MAX: Final = 1_024
DATE_SIZE_MAX: Final = 64
REMEMBERED_MAX: Final = 1_024
FORM: Final = f"{ALGORITHM} Credential=ACCESS_KEY, SignedHeaders={SIGNED_HEADERS}, Signature=40 hex digits"

_SIGNATURE: Final = re.compile(r"[0-9a-fA-F]{40}")
_NO_SECRET: Final = b"\0" * 32


def parse_header(header: str) -> tuple[str, bytes] | None:
    """The access key and the signature; None if it is not such a header."""
    algorithm, separator, rest = header.partition(" ")
    if algorithm != ALGORITHM or not separator or len(header) > HEADER_SIZE_MAX:
        return None
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip(" ").partition("=")
        if not equals or name in fields:
            return None
        fields[name] = value
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"}:
        return None
    if fields["SignedHeaders"] != SIGNED_HEADERS or not _SIGNATURE.fullmatch(fields["Signature"]):
        return None
    access_key = fields["Credential"].partition("/")[0]  # the Go client adds "//SERVICE"
    return access_key, bytes.fromhex(fields["Signature"])


class SignatureChecker:
    """Checks headers, and caches valid ones: a client sends the same one for all calls of a second."""

    def __init__(self, table: SecurityTable) -> None:
        self._table = table
        self._right: dict[tuple[str, str], User] = {}

    def user_of(self, header: str, date: str) -> User:
        """The user who signed. Raises TroveError AUTHENTICATION_FAILED. Its text depends on the form of the
        two headers alone: it is the same for an unknown user, a disabled one and a wrong secret."""
        known = self._right.get((header, date))
        if known is not None and self._table.user(known.access_key) is known:
            return known  # a changed user is another User object
        user = self._check(header, date)
        if len(self._right) >= REMEMBERED_MAX:
            self._right.clear()
        self._right[header, date] = user
        return user

    def _check(self, header: str, date: str) -> User:
        if not header:
            raise _failed("the call has no credentials: give the client an access key and a secret")
        parsed = parse_header(header)
        if parsed is None:
            raise _failed(f"the authorization header is not of the form {FORM}")
        if not date or len(date) > DATE_SIZE_MAX:
            raise _failed(f"{SIGNED_HEADERS} is missing, or has more than {DATE_SIZE_MAX} characters")
        access_key, signature = parsed
        user = self._table.user(access_key)
        secrets = [secret.value for secret in user.secrets] if user is not None else [_NO_SECRET]
        signed = date.encode()
        right = [hmac.compare_digest(hmac.digest(one, signed, "sha1"), signature) for one in secrets]
        if user is None or not user.enabled or not any(right):
            raise _failed("the access key or the signature is wrong")
        return user


def _failed(message: str) -> TroveError:
    return TroveError(errors.AUTHENTICATION_FAILED, message)
