"""The users of a file for apply.

The file has no secrets. A new user gets the secret in USER.credentials, in the directory that --secrets
names. If there is no such file, it is created with a new secret before the user is. Existing users keep their
secrets. Rules are only added, never removed; denials are added first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trovemq.cli.apply_steps import Step
from trovemq.cli.apply_users_file import WantedRule, WantedUser
from trovemq.cli.figures import counted
from trovemq.cli.file_checks import illegal

if TYPE_CHECKING:
    from trovemq import AccessRule, Client, UserDescription
    from trovemq.cli.session import Session

_SUFFIX: Final = ".credentials"
_SECRET: Final = re.compile(r"[!-~]{8,256}")


class SecretFiles:
    """The secrets of new users in a directory; None if no directory was named."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def check(self, users: Sequence[str], existing: Sequence[str]) -> None:
        """Raises TroveError REQUEST_ILLEGAL if a new user has no place for its secret, has one that cannot be
        used, or would get another secret than it has on a broker that knows it."""
        if users and self._directory is None:
            text = f"new users: {', '.join(users[:10])}; name a directory for their secrets: --secrets DIR"
            raise illegal(text)
        for user in users:
            if self._path(user).exists():
                self.secret(user)
            elif user in existing:
                raise illegal(f"only some brokers know user {user}: put its secret into {self._path(user)}")

    def secret(self, user: str) -> str:
        """The secret in the user's file, which is created if it does not exist. Raises TroveError
        REQUEST_ILLEGAL."""
        from trovemq._admin.users import new_secret
        from trovemq._common.credentials import read_credentials

        path = self._path(user)
        if not path.exists():
            self._write(path, f"access_key={user}\nsecret_key={new_secret()}\n")
        credentials = read_credentials(str(path))
        if credentials.access_key != user:
            raise illegal(f"{path} has the access key of another user")
        if not _SECRET.fullmatch(credentials.secret_key):
            raise illegal(f"{path}: a secret has 8 to 256 printable ASCII characters, no spaces")
        return credentials.secret_key

    @staticmethod
    def _write(path: Path, text: str) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise illegal(f"{path} cannot be written: {error.strerror}") from None

    def _path(self, user: str) -> Path:
        assert self._directory is not None, "checked before"
        return self._directory / f"{user}{_SUFFIX}"


async def user_steps(
    session: Session,
    client: Client,
    wanted: Sequence[WantedUser],
    brokers: Sequence[str],
    secrets: SecretFiles | None,
) -> list[Step]:
    """The changes on each of the brokers. Raises TroveError: a broker's refusal of the list of users, or
    REQUEST_ILLEGAL for a secret that is missing or cannot be used."""
    users = {
        (user.access_key, user.broker): user for user in await session.call(client.admin.users.list_all())
    }
    rules: dict[tuple[str, str], list[AccessRule]] = {}
    for rule in await session.call(client.admin.rules.list_all()):
        rules.setdefault((rule.access_key, rule.broker), []).append(rule)
    if secrets is not None:
        missing = [user.name for user in wanted if any((user.name, at) not in users for at in brokers)]
        secrets.check(missing, [name for name, _ in users])
    steps = []
    for user in wanted:
        for broker in brokers:
            place = (user.name, broker)
            steps.append(_step(client, user, broker, users.get(place), rules.get(place, []), secrets))
    return steps


def _step(
    client: Client,
    wanted: WantedUser,
    broker: str,
    found: UserDescription | None,
    rules: Sequence[AccessRule],
    secrets: SecretFiles | None,
) -> Step:
    known = {as_rule(rule).key for rule in rules}
    new = [rule for rule in wanted.rules if rule.key not in known]
    new.sort(key=lambda rule: rule.allow)
    if found is None:
        kind = "super" if wanted.is_super else "normal"
        details = (kind, *(["disabled"] if wanted.enabled is False else []), *map(str, new))
        return Step(
            "user",
            wanted.name,
            broker,
            "created",
            details,
            lambda: _create(client, wanted, broker, new, secrets),
        )
    enabled = wanted.enabled if wanted.enabled not in (None, found.enabled) else None
    changes = [] if enabled is None else ["enabled" if enabled else "disabled"]
    changes += map(str, new)
    if wanted.is_super not in (None, found.kind == "Super"):
        changes.append(f"stays {found.kind.lower()} (the file differs: delete the user, then apply)")
    others = known - {rule.key for rule in wanted.rules}
    if others:
        changes.append(f"keeps {counted(len(others), 'rule')} that the file does not have")
    if enabled is None and not new:
        return Step("user", wanted.name, broker, "unchanged", tuple(changes))
    return Step(
        "user",
        wanted.name,
        broker,
        "altered",
        tuple(changes),
        lambda: _alter(client, wanted.name, broker, enabled, new),
    )


async def _create(
    client: Client, wanted: WantedUser, broker: str, rules: Sequence[WantedRule], secrets: SecretFiles | None
) -> None:
    assert secrets is not None, "nothing is carried out in a dry run"
    secret = secrets.secret(wanted.name)
    await client.admin.users.create(
        wanted.name, secret_key=secret, is_super=bool(wanted.is_super), broker=broker
    )
    await _alter(client, wanted.name, broker, False if wanted.enabled is False else None, rules)


async def _alter(
    client: Client, name: str, broker: str, enabled: bool | None, rules: Sequence[WantedRule]
) -> None:
    if enabled is False:
        await client.admin.users.enable(name, enabled=False, broker=broker)
    for rule in rules:
        change = client.admin.rules.allow if rule.allow else client.admin.rules.deny
        await change(name, rule.actions, rule.resource, sources=rule.sources, broker=broker)
    if enabled:
        await client.admin.users.enable(name, broker=broker)


def as_rule(rule: AccessRule) -> WantedRule:
    """A broker's rule as a file has it."""
    return WantedRule(rule.allow, rule.actions, rule.resource, rule.sources)
