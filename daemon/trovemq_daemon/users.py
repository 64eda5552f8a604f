"""Users and their secrets.

A user has one secret or two: a rotation creates a new one, and the one before stays valid until it is dropped
or the next rotation. Neither repr() nor an error shows a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trovemq_proto import errors
from trovemq_proto.authentication.scram import SALT_SIZE, Verifier
from trovemq_proto.errors import TroveError

SECRETS_MAX: Final = 2
SECRET_LENGTH_MIN: Final = 8
SECRET_LENGTH_MAX: Final = 256

_ACCESS_KEY: Final = re.compile(r"[a-zA-Z0-9_.@-]{1,64}")
_SECRET: Final = re.compile(rb"[!-~]{8,256}")


class UserKind(StrEnum):
    """A super user may do everything, whatever the rules are."""

    SUPER = "Super"
    NORMAL = "Normal"


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret, its verifier for proofs, and when it was created (epoch ms)."""

    value: bytes = field(repr=False)
    verifier: Verifier = field(repr=False)
    created_ms: int

    @classmethod
    def make(cls, value: bytes, salt: bytes, now_ms: int) -> Secret:
        """Computes the verifier, which takes a millisecond or two. TroveError USER_ILLEGAL."""
        return cls(check_secret(value), Verifier.of(value, salt), now_ms)


@dataclass(frozen=True, slots=True)
class User:
    """A user. `secrets`: the newest first."""

    access_key: str
    kind: UserKind
    secrets: tuple[Secret, ...] = field(repr=False)
    salt: bytes = field(repr=False)
    enabled: bool = True
    created_ms: int = 0

    @property
    def is_super(self) -> bool:
        return self.kind is UserKind.SUPER


def check_access_key(access_key: str) -> str:
    """Returns the access key if it is legal, else raises TroveError USER_ILLEGAL."""
    if not _ACCESS_KEY.fullmatch(access_key):
        raise TroveError(
            errors.USER_ILLEGAL, "an access key has 1 to 64 letters, digits, '_', '.', '@' and '-'"
        )
    return access_key


def check_secret(secret: bytes) -> bytes:
    """Returns the secret if it is legal, else raises TroveError USER_ILLEGAL, which does not show it."""
    if not _SECRET.fullmatch(secret):
        raise TroveError(
            errors.USER_ILLEGAL,
            f"a secret has {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX} printable ASCII characters, no spaces",
        )
    return secret


def parse_kind(text: str) -> UserKind:
    """Parses Super or Normal, in any case; empty: Normal. TroveError USER_ILLEGAL."""
    try:
        return UserKind(text.capitalize()) if text else UserKind.NORMAL
    except ValueError:
        raise TroveError(errors.USER_ILLEGAL, f"{text[:40]!a} is not Super or Normal") from None


def new_user(access_key: str, kind: UserKind, secret: bytes, *, salt: bytes, now_ms: int) -> User:
    """Makes a user. `salt`: 16 random bytes. TroveError USER_ILLEGAL."""
    assert len(salt) == SALT_SIZE, "a salt has 16 bytes"
    made = Secret.make(secret, salt, now_ms)
    return User(check_access_key(access_key), kind, (made,), salt, created_ms=now_ms)
