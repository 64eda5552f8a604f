"""Users and rules in the files of export and apply: alike on every broker, and without a secret."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_users import FakeUsers
from tests.unit.cli.conftest import FakeClient
from trovemq.cli.apply_users_file import action_names, parse_user
from trovemq_broker.security.rules import make_rule
from trovemq_daemon.users import check_access_key
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

SAMPLE = """
users:
- name: root
  super: true
- name: alice
  rules:
  - {allow: "Pub,Sub", resource: "Topic:orders"}
  - {deny: All, resource: "Topic:secret*", from: [10.0.0.7]}
- name: bob
  enabled: false
"""


@pytest.fixture(autouse=True)
def two_brokers(client: FakeClient) -> None:
    client.brokers = ("broker-a", "broker-b")
    client.users = FakeUsers()


@pytest.fixture
def applied(run: Any, tmp_path: Path) -> Callable[..., Any]:
    def apply(text: str, *options: str, secrets: bool = True) -> Any:
        file = tmp_path / "users.yaml"
        file.write_text(text)
        place = ("--secrets", str(tmp_path / "secrets")) if secrets else ()
        return run("--json", "apply", str(file), *place, *options)

    return apply


def changes(ran: Any) -> set[tuple[str, str, str]]:
    return {(one["name"], one["broker"], one["change"]) for one in ran.objects}


def test_users_are_made_with_their_rules_and_then_nothing_is_left_to_do(
    applied: Callable[..., Any], client: FakeClient, tmp_path: Path
) -> None:
    ran = applied(SAMPLE)
    places = [(name, broker) for name in ("root", "alice", "bob") for broker in client.brokers]
    assert changes(ran) == {(*place, "created") for place in places}
    found = {place: (user.kind, user.enabled) for place, user in client.users.by_place.items()}
    assert found["root", "broker-b"] == ("Super", True)
    assert found["alice", "broker-a"] == ("Normal", True)
    assert found["bob", "broker-a"] == ("Normal", False)
    mine = [rule for rule in client.rules.rules if rule.broker == "broker-a"]
    assert [(rule.allow, rule.actions, rule.resource) for rule in mine] == [
        (False, "All", "Topic:secret*"),
        (True, "Pub,Sub", "Topic:orders"),
    ]
    for name in ("root", "alice", "bob"):
        path = tmp_path / "secrets" / f"{name}.credentials"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        secret = client.users.secrets[name, "broker-a"]
        assert secret == client.users.secrets[name, "broker-b"]
        assert path.read_text() == f"access_key={name}\nsecret_key={secret}\n"
        assert secret.encode() not in ran.out + ran.err.encode()
    again = applied(SAMPLE, secrets=False)
    assert changes(again) == {(*place, "unchanged") for place in places}
    assert len(client.rules.rules) == 4


def test_what_was_exported_makes_the_same_users_elsewhere(
    run: Any, applied: Callable[..., Any], client: FakeClient
) -> None:
    applied(SAMPLE)
    exported = run("export", "--user", "alice", "--user", "bob", "--user", "root").out.decode()
    for secret in client.users.secrets.values():
        assert secret not in exported
    (alice,) = [user for user in yaml.safe_load(exported)["users"] if user["name"] == "alice"]
    assert alice == {
        "name": "alice",
        "super": False,
        "enabled": True,
        "rules": [
            {"deny": "All", "resource": "Topic:secret*", "from": ["10.0.0.7"]},
            {"allow": "Pub,Sub", "resource": "Topic:orders"},
        ],
    }
    users, rules = dict(client.users.by_place), list(client.rules.rules)
    client.users.by_place.clear()
    client.rules.rules.clear()
    applied(exported)
    assert client.users.by_place == users
    assert client.rules.rules == rules
    assert yaml.safe_load(run("export", "--user", "bob").out) == {
        "topics": [],
        "groups": [],
        "users": [{"name": "bob", "super": False, "enabled": False, "rules": []}],
    }
    assert run("--json", "export", "--user", "absent").note["error"] == "USER_NOT_FOUND"


def test_a_rule_that_means_the_same_is_not_added_again(
    applied: Callable[..., Any], client: FakeClient
) -> None:
    for broker in client.brokers:
        client.users.add("alice", broker)
        client.rules.add(True, "alice", "Sub,Pub", "Topic:orders", ["10.0.0.0/8"], broker)
        client.rules.add(True, "alice", "Get", "Topic:more", [], broker)
    rules = '[{allow: "pub, sub", resource: "topic:orders", from: [10.0.0.0/255.0.0.0]}]'
    ran = applied(f"users: [{{name: alice, rules: {rules}}}]")
    assert {one["change"] for one in ran.objects} == {"unchanged"}
    assert ran.objects[0]["details"] == ["keeps 1 rule that the file does not have"]
    assert action_names("*") == action_names("ALL") != action_names("Pub")


def test_a_user_is_switched_off_and_stays_what_it_is(applied: Callable[..., Any], client: FakeClient) -> None:
    for broker in client.brokers:
        client.users.add("alice", broker)
    ran = applied("users: [{name: alice, super: true, enabled: false}]")
    assert ran.objects[0]["change"] == "altered"
    assert ran.objects[0]["details"] == [
        "disabled",
        "stays normal (the file differs: delete the user, then apply)",
    ]
    assert [user.enabled for user in client.users.by_place.values()] == [False, False]
    assert applied("users: [{name: alice, enabled: true}]").objects[0]["details"] == ["enabled"]


def test_a_new_user_needs_a_place_for_its_secret(applied: Callable[..., Any], client: FakeClient) -> None:
    ran = applied(SAMPLE, secrets=False)
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert ran.note["message"].endswith(
        "new users: root, alice, bob; name a directory for their secrets: --secrets DIR"
    )
    assert client.users.by_place == {}
    assert {one["change"] for one in applied(SAMPLE, "--dry-run", secrets=False).objects} == {"created"}
    assert client.users.by_place == {}


def test_a_broker_that_lacks_a_user_gets_the_secret_that_the_others_have(
    applied: Callable[..., Any], client: FakeClient, tmp_path: Path
) -> None:
    client.users.add("alice", "broker-a")
    text = "users: [{name: alice}]"
    path = tmp_path / "secrets" / "alice.credentials"
    assert f"put its secret into {path}" in applied(text).note["message"]
    path.parent.mkdir()
    path.write_text("access_key=bob\nsecret_key=a-secret-of-bob\n")
    assert "has the access key of another user" in applied(text).note["message"]
    path.write_text("access_key=alice\nsecret_key=the-secret-of-alice\n")
    applied(text)
    assert client.users.secrets == {("alice", "broker-b"): "the-secret-of-alice"}


def test_a_directory_that_cannot_be_written_makes_no_user(
    applied: Callable[..., Any], client: FakeClient, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text("a file")
    assert "cannot be written" in applied(SAMPLE).note["message"]
    assert client.users.by_place == {}


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ("[{name: a, secret: b}]", "unknown member 'secret'"),
        ("[{name: a, super: 1}]", "super must be true or false"),
        ("[{name: a, rules: {}}]", "rules must be a list"),
        ("[{name: a, rules: [b]}]", "rules[0] is not an object"),
        ("[{name: a, rules: [{resource: '*'}]}]", "give allow or deny"),
        ("[{name: a, rules: [{allow: All, deny: All, resource: '*'}]}]", "give allow or deny"),
        ("[{name: a, rules: [{allow: Fly, resource: '*'}]}]", "actions are All or Pub, Sub"),
        ("[{name: a, rules: [{allow: 5, resource: '*'}]}]", "actions are All or Pub, Sub"),
        ("[{name: a, rules: [{allow: All, resource: orders}]}]", "resource must be '*', or one of"),
        ("[{name: a, rules: [{allow: All, resource: '*', from: here}]}]", "from must be a list"),
        ("[{name: a, rules: [{allow: All, resource: '*', from: [here]}]}]", "'here' is neither an address"),
        ("[{name: a, rules: [{allow: All, resource: '*', 1: 2}]}]", "unknown member '1'"),
        ("[{name: a}, {name: a b}]", "users[1] (a b): a user's name has 1 to 64"),
        ("[{name: a}, {name: b, rules: [{allow: All, resource: 'Topic:a b'}]}]", "resource must be '*'"),
        ("[{name: a, rules: [{allow: All, resource: '*', from: [10.1.2.3/8]}]}]", "is neither an address"),
        ("[{name: a, rules: [{allow: All, resource: '*', from: [5]}]}]", "'5' is neither an address"),
        (f"[{{name: a, rules: [{{allow: All, resource: '*', from: {['::1'] * 65}}}]}}]", "more than 64"),
        ("[{name: a, rules: [{deny: Sub, deny: Pub, resource: '*'}]}]", "line 2, column 27: a member is"),
        ("[{name: a, name: b}]", "line 2, column 9: a member is there twice"),
    ],
)
def test_a_wrong_user_says_what_is_wrong(
    applied: Callable[..., Any], client: FakeClient, users: str, message: str
) -> None:
    ran = applied(f"topics: [{{name: new}}]\nusers: {users}")
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert message in ran.note["message"]
    assert "new" not in client.topics


def test_a_secret_that_cannot_be_used_was_found_after_the_users_before_it(
    applied: Callable[..., Any], client: FakeClient, tmp_path: Path
) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    for text, message in (
        ("x y", "line 1 is not access_key"),
        ("access_key=b\nsecret_key=the-secret-of-b", "access key of another user"),
        ("access_key=bob\nsecret_key=short", "a secret has 8 to 256"),
    ):
        (folder / "bob.credentials").write_text(text)
        (folder / "bob.credentials").chmod(0o600)
        ran = applied(f"topics: [{{name: new}}]\n{SAMPLE}")
        assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
        assert message in ran.note["message"]
        assert client.users.by_place == {}
        assert "new" not in client.topics


@given(
    st.text("aZ0_.@- :%", min_size=1, max_size=66),
    st.text("aZ%|.+-_ *:/", max_size=6),
    st.lists(st.sampled_from(["10.0.0.1", "10.0.0.0/8", "::/0", "10.0.0.0/255.0.0.0", "1.2.3.4/8", "x"])),
)
def test_the_file_takes_no_name_or_rule_that_the_broker_refuses(
    name: str, resource: str, sources: list[str]
) -> None:
    """It would have refused it after it had made the users before it."""
    rule = {"allow": "pub, GET", "resource": f"topic:{resource}", "from": sources}
    try:
        user = parse_user("", {"name": name, "rules": [rule]})
    except TroveError:
        return
    check_access_key(user.name)
    (only,) = user.rules
    make_rule(1, name, allow=True, actions=only.actions, resource=only.resource, sources=only.sources)


def test_who_may_not_list_users_exports_the_rest(run: Any, client: FakeClient) -> None:
    client.users.error = errors.ACCESS_DENIED
    ran = run("--json", "export")
    assert "users" not in ran.objects[0]
    assert ran.note["leftOut"] == ["users"]
    assert run("--json", "export", "--user", "alice").note["error"] == "ACCESS_DENIED"
    client.users.error = errors.AUTHENTICATION_DISABLED
    assert run("--json", "export").code == 0
