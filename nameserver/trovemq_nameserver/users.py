"""The file of a nameserver's users (`users_file`), in TOML:

    [[broker]]                    # registers under its name, and reads routes
    name = "broker-a"
    access_key = "broker-a"
    secret_key = "…"
    old_secret_key = "…"          # optional: also valid, while a secret is changed

    [[client]]                    # reads routes
    access_key = "alice"
    secret_key = "…"

    [[administrator]]             # reads routes, and has lost brokers forgotten
    access_key = "root"
    secret_key = "…"

The users are only in this file: a nameserver stores nothing on disk. Errors show names, but no secrets.
"""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.private_files import warn_of_mode
from trovemq_daemon.users import Secret, User, UserKind, check_access_key
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.errors import TroveError

FILE_SIZE_MAX: Final = 1 << 20
USERS_MAX: Final = 1_000  # the verifier of a secret takes a millisecond or two to compute

_MEMBERS: Final = {
    "broker": {"name", "access_key", "secret_key", "old_secret_key"},
    "client": {"access_key", "secret_key", "old_secret_key"},
    "administrator": {"access_key", "secret_key", "old_secret_key"},
}
_PLACE: Final = re.compile(r"\(at [^()]*\)$")


class KnownUsers:
    """The users from one reading of the file. An unchanged user is equal to the one before, so that sessions
    continue."""

    def __init__(
        self, users: Mapping[str, User] | None = None, brokers: Mapping[str, str] | None = None
    ) -> None:
        """users: by access key. brokers: the names under which they register, by access key."""
        self._users = dict(users or {})
        self._brokers = dict(brokers or {})

    def __len__(self) -> int:
        return len(self._users)

    def user(self, access_key: str) -> User | None:
        return self._users.get(access_key)

    def broker_of(self, access_key: str) -> str | None:
        """The broker name that this user may register; None for others."""
        return self._brokers.get(access_key)


def read_users(path: Path, salt_key: bytes, before: KnownUsers) -> KnownUsers:
    """Reads the file; blocks. Salts are derived from `salt_key`. Raises SettingsError, which names the file
    and its fault."""
    warn_of_mode(path)
    try:
        with path.open("rb") as file:
            content = file.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise SettingsError(f"users_file {path} cannot be read: {error.strerror}") from None
    if len(content) > FILE_SIZE_MAX:
        raise SettingsError(f"users_file {path} has more than {FILE_SIZE_MAX} bytes")
    try:
        return parse_users(content, salt_key, before)
    except ValueError as error:
        raise SettingsError(f"users_file {path}: {error}") from None


def parse_users(content: bytes, salt_key: bytes, before: KnownUsers) -> KnownUsers:
    """Parses the content. Raises ValueError, whose text shows no secret."""
    document = _toml(content)
    unknown = document.keys() - _MEMBERS.keys()
    if unknown:
        raise ValueError(
            f"{min(unknown)[:80]!a} is unknown; there are [[broker]], [[client]] and [[administrator]]"
        )
    entries = {kind: _list(document, kind) for kind in _MEMBERS}
    if not entries["broker"] or sum(map(len, entries.values())) > USERS_MAX:
        raise ValueError(f"it names no broker, or more than {USERS_MAX} users")
    users: dict[str, User] = {}
    brokers: dict[str, str] = {}
    for kind, members in _MEMBERS.items():
        for number, entry in enumerate(entries[kind], 1):
            values = _texts(entry, members, f"[[{kind}]] {number}")
            user = _user(kind, values, salt_key, before, f"[[{kind}]] {number}")
            if user.access_key in users:
                raise ValueError(f"access key {user.access_key} is there twice")
            users[user.access_key] = user
            if kind == "broker":
                brokers[user.access_key] = values["name"]
    return KnownUsers(users, brokers)


def _toml(content: bytes) -> dict[str, object]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        raise ValueError(f"it is not TOML {place[0] if place else ''}".rstrip()) from None


def _list(document: Mapping[str, object], kind: str) -> list[object]:
    entries = document.get(kind, [])
    if not isinstance(entries, list):
        raise ValueError(f"{kind} is not a list: write [[{kind}]]")
    return entries


def _texts(entry: object, members: set[str], where: str) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not a table")
    unknown = entry.keys() - members
    if unknown:
        raise ValueError(f"{where}: {min(unknown)[:80]!a} is unknown; there are {', '.join(sorted(members))}")
    for name in sorted(members):
        value = entry.get(name)
        if (value is None and name != "old_secret_key") or (value is not None and not isinstance(value, str)):
            raise ValueError(f"{where} lacks {name}, or it is not a text")
    return entry


def _user(kind: str, values: Mapping[str, str], salt_key: bytes, before: KnownUsers, where: str) -> User:
    try:
        access_key = check_access_key(values["access_key"])
        secrets = [values[name] for name in ("secret_key", "old_secret_key") if name in values]
        salt = hmac.digest(salt_key, b"known " + access_key.encode(), "sha256")[:SALT_SIZE]
        known = before.user(access_key)
        made = {secret.value: secret for secret in known.secrets} if known is not None else {}
        return User(
            access_key,
            UserKind.SUPER if kind == "administrator" else UserKind.NORMAL,
            tuple(
                made.get(secret.encode()) or Secret.make(secret.encode(), salt, 0)
                for secret in dict.fromkeys(secrets)
            ),
            salt,
        )
    except TroveError as error:
        raise ValueError(f"{where}: {error.message}") from None
