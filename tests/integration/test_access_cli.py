"""Users and rules from the command line, against a real broker that asks who calls."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.command_line import run_here

pytestmark = pytest.mark.slow

ON = ("authenticationEnabled=true", "authorizationEnabled=true")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access") / "store"


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[BrokerProcess]:
    with running_broker(store, *ON) as running:
        yield running


@pytest.fixture
def admin(store: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The first user, alone: others, left by other tests, are removed."""
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(store.with_name("store.admin-credentials")))
    admin = CommandLine(broker.address)
    for quota in admin.answer("quota", "list"):
        admin.answer("quota", "set", quota["subject"])
    for user in admin.answer("user", "list"):
        if user["user"] != "admin":
            admin.answer("user", "delete", user["user"], "--yes")  # and the rules with it
    return admin


class CommandLine:
    def __init__(self, server: str) -> None:
        self.server = server

    def answer(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        given, out, err = run_here(self.server, *arguments)
        assert given == code, err
        return [json.loads(line) for line in out.splitlines()]

    def error(self, *arguments: str) -> str:
        code, _, err = run_here(self.server, *arguments)
        assert code == 1
        return str(json.loads(err)["error"])


def test_a_user_is_made_uses_its_secret_and_goes(
    admin: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.answer("topic", "create", "orders", "--queues", "1")
    (made,) = admin.answer("user", "create", "alice")
    (rule,) = admin.answer("acl", "allow", "alice", "pub", "Topic:orders*")
    assert (rule["actions"], rule["resource"], rule["decision"]) == ("Pub", "Topic:orders*", "allow")
    file = tmp_path / "alice"
    file.write_text(f"access_key=alice\nsecret_key={made['secretKey']}\n", encoding="utf-8")
    with monkeypatch.context() as alice:
        alice.setenv("TROVEMQ_CREDENTIALS", str(file))
        admin.answer("send", "orders", "hello")
        assert admin.error("user", "list") == "ACCESS_DENIED"
        assert admin.error("topic", "delete", "orders", "--yes") == "ACCESS_DENIED"
        assert admin.error("query", "orders", "k") == "ACCESS_DENIED"
    (allowed,) = admin.answer("acl", "test", "alice", "Pub", "Topic:orders-new")
    assert (allowed["allowed"], allowed["rule"]) == (True, rule["rule"])
    (denied,) = admin.answer("acl", "test", "alice", "Sub", "Topic:orders", code=1)
    assert denied["reason"] == "no rule matches: access is denied without a rule"
    (rule,) = admin.answer("acl", "deny", "alice", "All", "*", "--from", "10.0.0.0/8")
    (denied,) = admin.answer("acl", "test", "alice", "Pub", "Topic:orders", "--from", "10.1.1.1", code=1)
    assert denied["rule"] == rule["rule"]
    admin.answer("acl", "test", "alice", "Pub", "Topic:orders", "--from", "127.0.0.1")
    numbers = [one["rule"] for one in admin.answer("acl", "list", "--user", "alice")]
    assert len(numbers) == 2
    assert numbers[1] == rule["rule"]
    admin.answer("acl", "delete", str(numbers[1]))
    admin.answer("user", "delete", "alice", "--yes")
    assert admin.answer("acl", "list") == []
    assert [user["user"] for user in admin.answer("user", "list")] == ["admin"]


def test_users_go_through_a_file_without_their_secrets(
    admin: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = admin.answer("user", "create", "carol")
    admin.answer("acl", "allow", "carol", "Pub,List", "Topic:carol*", "--from", "127.0.0.1")
    admin.answer("user", "disable", "carol")
    (exported,) = admin.answer("export", "--user", "carol", "--user", "admin")
    assert made["secretKey"] not in json.dumps(exported)
    file, secrets = tmp_path / "users.json", tmp_path / "secrets"
    file.write_text(json.dumps(exported), encoding="utf-8")
    admin.answer("user", "delete", "carol", "--yes")
    applied = admin.answer("apply", str(file), "--secrets", str(secrets))
    assert {one["name"]: one["change"] for one in applied} == {"admin": "unchanged", "carol": "created"}
    assert admin.answer("export", "--user", "carol", "--user", "admin") == [exported]
    admin.answer("user", "enable", "carol")
    with monkeypatch.context() as carol:
        carol.setenv("TROVEMQ_CREDENTIALS", str(secrets / "carol.credentials"))
        assert admin.answer("topic", "list") == []
        assert admin.error("export", "--user", "carol") == "ACCESS_DENIED"
    admin.answer("user", "delete", "carol", "--yes")


def test_quotas_are_set_listed_and_removed(admin: CommandLine) -> None:
    (quota,) = admin.answer("quota", "set", "user:admin", "--bytes-in", "10MiB", "--requests", "1000")
    assert (quota["subject"], quota["bytesInPerS"], quota["requestsPerS"]) == ("User:admin", 10 << 20, 1_000)
    admin.answer("quota", "set", "Address:*", "--calls", "500", "--connections", "50")
    found = {one["subject"]: one for one in admin.answer("quota", "list")}
    (quota,) = admin.answer("quota", "set", "User:*", "--topics", "9", "--groups", "8", "--query-ms", "70")
    assert (quota["topicsMax"], quota["groupsMax"], quota["queryMsPerS"]) == (9, 8, 70)
    assert admin.error("quota", "set", "Address:*", "--topics", "9") == "REQUEST_ILLEGAL"
    found = {one["subject"]: one for one in admin.answer("quota", "list")}
    assert (found["Address:*"]["callsMax"], found["Address:*"]["connectionsMax"]) == (500, 50)
    for subject in found:
        admin.answer("quota", "set", subject)
    assert admin.answer("quota", "list") == []


def test_secrets_rotate_with_two_of_them_valid(
    admin: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("first-secret-of-bob\n", encoding="utf-8")
    (made,) = admin.answer("user", "create", "bob", "--super", "--secret-file", str(file))
    assert "secretKey" not in made
    (rotated,) = admin.answer("user", "rotate", "bob")

    def works(secret: str) -> bool:
        with monkeypatch.context() as bob:
            bob.setenv("TROVEMQ_ACCESS_KEY", "bob")
            bob.setenv("TROVEMQ_SECRET_KEY", secret)
            return run_here(admin.server, "user", "list")[0] == 0

    secrets = ("first-secret-of-bob", str(rotated["secretKey"]))
    assert [works(secret) for secret in secrets] == [True, True]
    admin.answer("user", "rotate", "bob", "--drop-old")
    assert [works(secret) for secret in secrets] == [False, True]
    (disabled,) = admin.answer("user", "disable", "bob")
    assert disabled["enabled"] is False
    assert [works(secret) for secret in secrets] == [False, False]
    admin.answer("user", "enable", "bob")
    assert [works(secret) for secret in secrets] == [False, True]
    admin.answer("user", "delete", "bob", "--yes")


@pytest.mark.parametrize(
    ("arguments", "symbol"),
    [
        (("user", "create", "a b"), "USER_ILLEGAL"),
        (("user", "create", "admin"), "USER_EXISTS"),
        (("user", "rotate", "nobody"), "USER_NOT_FOUND"),
        (("user", "delete", "admin", "--yes"), "REQUEST_ILLEGAL"),
        (("user", "disable", "admin"), "REQUEST_ILLEGAL"),
        (("acl", "allow", "nobody", "Pub", "Topic:a"), "USER_NOT_FOUND"),
        (("acl", "allow", "admin", "Fly", "Topic:a"), "RULE_ILLEGAL"),
        (("acl", "allow", "admin", "Pub", "Queue:a"), "RULE_ILLEGAL"),
        (("acl", "allow", "admin", "Pub", "Topic:a", "--from", "nowhere"), "RULE_ILLEGAL"),
        (("acl", "delete", "99"), "RULE_NOT_FOUND"),
        (("acl", "test", "admin", "Pub", "everything"), "REQUEST_ILLEGAL"),
        (("quota", "set", "User:nobody", "--calls", "1"), "USER_NOT_FOUND"),
        (("quota", "set", "Topic:orders", "--calls", "1"), "REQUEST_ILLEGAL"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    admin: CommandLine, arguments: tuple[str, ...], symbol: str
) -> None:
    assert admin.error(*arguments) == symbol
    assert [user["user"] for user in admin.answer("user", "list")] == ["admin"]
    assert admin.answer("acl", "list") == []


def test_a_support_bundle_has_no_secret_and_no_body(
    admin: CommandLine, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    (made,) = admin.answer("user", "create", "carol")
    admin.answer("topic", "create", "bundled", "--queues", "1")
    admin.answer("send", "bundled", "canary-body", "--key", "canary-key", "--property", "p=canary-property")
    path = tmp_path / "bundle.zip"
    (answer,) = admin.answer("support-bundle", str(path), "--http", broker.http)
    assert answer["errors"] == {}
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "bundled" in found["topics.jsonl"]
    assert "rocketmq_messages_in_total{" in found["http-1/metrics"]
    assert json.loads(found["http-1/readyz"])["ready"] is True
    everything = "".join(found.values())
    admin_file = store.with_name("store.admin-credentials").read_text(encoding="utf-8")
    secrets = [made["secretKey"], admin_file.partition("secret_key=")[2].strip()]
    assert all(len(secret) > 10 and secret not in everything for secret in secrets)
    assert "canary" not in everything
