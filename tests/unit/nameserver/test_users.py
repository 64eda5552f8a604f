"""The file of a nameserver's users: what is read, and what is refused without showing a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.users import UserKind
from trovemq_nameserver.users import USERS_MAX, KnownUsers, parse_users, read_users

CANARY = "canary-secret-4"
BROKER = f'[[broker]]\nname = "broker-a"\naccess_key = "a-key"\nsecret_key = "{CANARY}"\n'
CLIENT = f'[[client]]\naccess_key = "alice"\nsecret_key = "{CANARY}"\n'


def parsed(text: str, before: KnownUsers | None = None) -> KnownUsers:
    return parse_users(text.encode(), bytes(32), before or KnownUsers())


def test_brokers_and_clients_are_read() -> None:
    users = parsed(BROKER + CLIENT)
    assert len(users) == 2
    assert users.broker_of("a-key") == "broker-a"
    assert users.broker_of("alice") is None
    assert users.user("nobody") is None


def test_only_administrators_are_super_users() -> None:
    users = parsed(BROKER + CLIENT + CLIENT.replace("client", "administrator").replace("alice", "root"))
    kinds = {name: user.kind for name in ("a-key", "alice", "root") if (user := users.user(name))}
    assert kinds == {"a-key": UserKind.NORMAL, "alice": UserKind.NORMAL, "root": UserKind.SUPER}
    assert users.broker_of("root") is None


def test_a_user_who_did_not_change_is_the_same_when_read_again() -> None:
    first = parsed(BROKER)
    rotated = BROKER.replace(CANARY, "another-secret") + f'old_secret_key = "{CANARY}"\n'
    again, both = parsed(BROKER + CLIENT, first), parsed(rotated, first)
    known, user = first.user("a-key"), both.user("a-key")
    assert known is not None
    assert user is not None
    assert again.user("a-key") == known
    assert [secret.value for secret in user.secrets] == [b"another-secret", CANARY.encode()]
    assert user.secrets[1] == known.secrets[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no broker"),
        (CLIENT, "names no broker"),
        (BROKER + BROKER, "a-key is there twice"),
        (BROKER + CLIENT.replace("alice", "a-key"), "a-key is there twice"),
        (BROKER.replace("name", "names"), "'names' is unknown"),
        (BROKER.replace('name = "broker-a"\n', ""), r"\[\[broker\]\] 1 lacks name"),
        (BROKER.replace(f'"{CANARY}"', "7"), "lacks secret_key, or it is not a text"),
        (BROKER.replace(f"{CANARY}", "short"), "a secret has 8 to 256"),
        (BROKER.replace("a-key", "a key"), "an access key has"),
        (BROKER + "[[server]]\n", "'server' is unknown"),
        (BROKER + "client = 1\n", "'client' is unknown"),
        ("client = 1\n" + BROKER, "client is not a list"),
        ("client = [1]\n" + BROKER, "is not a table"),
        (BROKER.replace('"\n', "\n"), "it is not TOML .at line"),
        (CLIENT + "".join(BROKER.replace("a-key", f"k{n}") for n in range(3)) + "\xff", "it is not TOML"),
    ],
)
def test_a_file_with_a_fault_is_refused_and_shows_no_secret(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as raised:
        parsed(text)
    assert "canary" not in str(raised.value)


def test_too_many_users_are_refused_before_their_secrets_cost_time() -> None:
    many = "".join(CLIENT.replace("alice", f"c{number}") for number in range(USERS_MAX))
    with pytest.raises(ValueError, match=f"more than {USERS_MAX}"):
        parsed(BROKER + many)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, fault in ((tmp_path / "none.toml", "none.toml cannot be read"), (tmp_path, "cannot be read")):
        with pytest.raises(SettingsError, match=fault):
            read_users(path, bytes(32), KnownUsers())
    path = tmp_path / "users.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match=r"users\.toml: it is not UTF-8"):
        read_users(path, bytes(32), KnownUsers())
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(SettingsError, match="more than"):
        read_users(path, bytes(32), KnownUsers())
