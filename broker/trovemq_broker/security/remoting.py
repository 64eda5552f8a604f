"""The signature of remoting clients: HMAC-SHA1 over the values of a request's fields, and its body.

    text = values of all fields, by their names in order, without Signature; then the body
    Signature = Base64(HMAC-SHA1(secret, text))

The fields are signed as they arrive, unknown ones, too. Nothing in it is a time or a number: a frame that was
read on the network can be sent again. Therefore it is accepted only from loopback and over TLS. Clients of Go
leave out the value of SecurityToken; those before 4.9.4 the field _UNIQUE_KEY_QUERY.
Facts: org.apache.rocketmq.acl.common.AclUtils, AclClientRPCHook.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection, Mapping
from typing import Final

from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.users import User
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.errors import TroveError

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
SIGNATURE_SIZE_MAX: Final = 64
_LEFT_OUT: Final = ((SIGNATURE,), (SIGNATURE, SECURITY_TOKEN), (SIGNATURE, UNIQUE_KEY_QUERY))
_NO_SECRET: Final = b"\0" * 32


def user_of_fields(table: SecurityTable, fields: Mapping[str, str], body: bytes) -> User:
    """The user who signed the request. Raises TroveError AUTHENTICATION_FAILED. Its text is the same for an
    unknown user, a disabled one and a wrong secret."""
    access_key, text = fields.get(ACCESS_KEY, ""), fields.get(SIGNATURE, "")
    if not access_key or not text:
        raise _failed("the request has no credentials: give the client an access key and a secret")
    try:
        signature = binascii.a2b_base64(text, strict_mode=True) if len(text) <= SIGNATURE_SIZE_MAX else b""
    except (binascii.Error, ValueError):
        signature = b""
    user = table.user(access_key)
    secrets = [secret.value for secret in user.secrets] if user is not None else [_NO_SECRET]
    variants = [names for names in _LEFT_OUT if names[-1] in fields]
    signed = [signed_text(fields, names) + body for names in variants]
    right = [
        hmac.compare_digest(hmac.digest(one, data, "sha1"), signature) for one in secrets for data in signed
    ]
    if user is None or not user.enabled or not any(right):
        raise _failed("the access key or the signature is wrong")
    return user


def signed_fields(fields: Mapping[str, str], credentials: Credentials) -> dict[str, str]:
    """The fields of a request without a body, signed by that user."""
    signed = {**fields, ACCESS_KEY: credentials.access_key}
    digest = hmac.digest(credentials.secret_key.encode(), signed_text(signed), "sha1")
    return {**signed, SIGNATURE: base64.b64encode(digest).decode()}


def signed_text(fields: Mapping[str, str], left_out: Collection[str] = (SIGNATURE,)) -> bytes:
    """The values, by the names of the fields in the order of their UTF-16 code units."""
    names = sorted(
        (name for name in fields if name not in left_out), key=lambda name: name.encode("utf-16-be")
    )
    return "".join(fields[name] for name in names).encode()


def _failed(message: str) -> TroveError:
    return TroveError(errors.AUTHENTICATION_FAILED, message)
