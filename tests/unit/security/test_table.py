"""Users and rules on disk: durable, whole, sealed."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trovemq_broker.security import changes
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import Quota
from trovemq_broker.security.sealing import SealingKey, key_file_content
from trovemq_broker.security.table import PATH, SecurityTable
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.json_file import JsonFile

KEY = SealingKey(bytes(range(32)))
CANARY = b"canary-secret-0"
SALT = b"0123456789abcdef"


def numbered_bytes() -> Callable[[int], bytes]:
    numbers = itertools.count()
    return lambda size: next(numbers).to_bytes(size)


def load(files: FileSystem, key: SealingKey = KEY) -> SecurityTable:
    return SecurityTable.load(files, key, numbered_bytes())


def apply(table: SecurityTable, after: SecurityState) -> None:
    change = table.begin(after)
    try:
        change.run()
    finally:
        table.finish(change)


def with_user(table: SecurityTable, name: str = "alice", kind: UserKind = UserKind.NORMAL) -> None:
    apply(table, changes.add_user(table.state, new_user(name, kind, CANARY, salt=SALT, now_ms=1)))


def test_users_and_rules_are_there_after_a_restart() -> None:
    files = MemoryFileSystem()
    table = load(files)
    with_user(table)
    state, _ = changes.add_rule(
        table.state, "alice", allow=True, actions="Pub,Sub", resource="Topic:a*", sources=["10.0.0.0/8"]
    )
    apply(table, state)
    apply(table, changes.rotate_secret(table.state, "alice", b"another-secret", EpochMs(2)))
    apply(table, changes.set_quota(table.state, "User:alice", Quota(requests_per_s=7, connections_max=1)))
    apply(table, changes.set_quota(table.state, "Address:*", Quota(bytes_out_per_s=1 << 40)))
    mine = Quota(topics_max=3, groups_max=4, query_ms_per_s=5)
    apply(table, changes.set_quota(table.state, "User:*", mine))
    again = load(files)
    assert again.state == table.state
    assert [secret.value for secret in again.state.users["alice"].secrets] == [b"another-secret", CANARY]


def test_no_secret_is_readable_on_disk_or_in_a_text() -> None:
    files = MemoryFileSystem()
    table = load(files)
    with_user(table)
    content = files.read_bytes(PATH) + files.read_bytes(f"{PATH}.bak")
    assert CANARY not in content
    assert table.state.users["alice"].secrets[0].verifier.stored_key.hex().encode() not in content
    assert CANARY.decode() not in repr(table.state)


def test_the_second_copy_of_the_file_is_as_new_as_the_first() -> None:
    """Else a damaged file would bring back a user who was deleted."""
    files = MemoryFileSystem()
    table = load(files)
    with_user(table)
    with_user(table, "bob")
    apply(table, changes.delete_user(table.state, "alice"))
    files.write_atomic(PATH, b"{damaged")
    assert load(files).state.users.keys() == {"bob"}


def test_another_sealing_key_is_reported_as_such() -> None:
    files = MemoryFileSystem()
    with_user(load(files))
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        load(files, SealingKey(bytes(32)))


@pytest.mark.parametrize("failing", range(1, 4))
def test_a_change_that_could_not_be_saved_is_not_there(failing: int) -> None:
    files = MemoryFileSystem()
    with_user(load(files))
    table = load(FaultyFileSystem(files, fail_at("write_atomic", failing, errno.ENOSPC)))
    try:
        with_user(table, "bob")
        saved = True
    except TroveError:
        saved = False
    assert saved == (failing == 3), "a save is two writes"
    assert ("bob" in table.state.users) == saved
    assert ("bob" in load(files).state.users) == saved
    with_user(load(files), "carol")


def test_one_change_at_a_time() -> None:
    table = load(MemoryFileSystem())
    change = table.begin(SecurityState())
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        table.begin(SecurityState())
    table.finish(change)
    table.finish(table.begin(SecurityState()))


def _edited(edit: Callable[[dict[str, object]], object]) -> MemoryFileSystem:
    files = MemoryFileSystem()
    table = load(files)
    with_user(table)
    state, _ = changes.add_rule(table.state, "alice", allow=True, actions="Pub", resource="Topic:a")
    apply(table, state)
    document = json.loads(files.read_bytes(PATH))
    edit(document)
    del document["crc32"]
    for path in (PATH, f"{PATH}.bak"):
        files.write_atomic(path, json.dumps(document).encode())
    return files


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["rules"].append(document["rules"][0]),
        lambda document: document["rules"][0].update(actions="Fly"),
        lambda document: document["rules"][0].update(decision="Maybe"),
        lambda document: document["rules"][0].update(subject="alice"),
        lambda document: document["rules"][0].update(number=7),
        lambda document: document.update(rules={}),
        lambda document: document["users"]["alice"].update(secrets=[]),
        lambda document: document["users"]["alice"].update(kind="Root"),
        lambda document: document["users"]["alice"].update(enabled="yes"),
        lambda document: document["users"]["alice"].update(salt="00"),
        lambda document: document["users"]["alice"]["secrets"][0].update(sealed="!!"),
        lambda document: document["users"].update(bob=document["users"]["alice"]),
        lambda document: document["users"].update({"a b": document["users"]["alice"]}),
        lambda document: document.update(quotas={"Topic:a": {}}),
        lambda document: document.update(quotas={"User:alice": {"callsMax": -1}}),
        lambda document: document.update(quotas={"User:alice": {"callsMax": "many"}}),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_whole(edit: Callable[[dict[str, object]], object]) -> None:
    with pytest.raises(TroveError, match="STORE_FAILED") as raised:
        load(_edited(edit))
    assert CANARY.decode() not in str(raised.value)


def test_a_file_of_a_newer_version_is_refused() -> None:
    with pytest.raises(TroveError, match="STORE_NEWER"):
        load(_edited(lambda document: document.update(version=2)))


@pytest.mark.parametrize("content", [b"", b"abc", b"0" * 63, b"0" * 65, b"g" * 64])
def test_a_key_file_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        SealingKey.parse(content)


def test_a_key_file_is_read_as_it_is_written() -> None:
    assert SealingKey.parse(key_file_content(bytes(range(32)))).key_id == KEY.key_id


def test_a_sealed_secret_belongs_to_its_user() -> None:
    sealed = KEY.seal("alice", CANARY, bytes(12))
    assert KEY.open("alice", sealed) == CANARY
    with pytest.raises(ValueError, match="cannot be opened"):
        KEY.open("bob", sealed)


def test_quotas_go_with_their_user_and_without_limits() -> None:
    table = load(MemoryFileSystem())
    with_user(table, "admin", UserKind.SUPER)
    with_user(table)
    for subject in ("User:alice", "User:*"):
        apply(table, changes.set_quota(table.state, subject, Quota(calls_max=1)))
    apply(table, changes.set_quota(table.state, "User:*", Quota()))
    assert list(table.state.quotas) == ["User:alice"]
    apply(table, changes.delete_user(table.state, "alice"))
    assert not table.state.quotas
    with pytest.raises(TroveError, match="USER_NOT_FOUND"):
        changes.set_quota(table.state, "User:alice", Quota(calls_max=1))
    for quota in (Quota(calls_max=9), Quota(connections_max=9, requests_per_s=1)):
        with pytest.raises(TroveError, match="admin is a super user"):
            changes.set_quota(table.state, "User:admin", quota)
    for subject in ("Address:*", "Client:c"):
        with pytest.raises(TroveError, match="counted for users"):
            changes.set_quota(table.state, subject, Quota(topics_max=1))


def test_a_file_of_before_there_were_quotas_has_none() -> None:
    files = MemoryFileSystem()
    table = load(files)
    with_user(table)
    document = json.loads(files.read_bytes(PATH))
    del document["quotas"], document["crc32"]
    JsonFile(files, PATH, mirror=True, sealed=True).save(document)
    assert load(files).state == table.state


def test_the_last_super_user_stays() -> None:
    table = load(MemoryFileSystem())
    with_user(table, "admin", UserKind.SUPER)
    for refused in (changes.delete_user, lambda state, name: changes.set_enabled(state, name, enabled=False)):
        with pytest.raises(TroveError, match="last super user"):
            refused(table.state, "admin")
    with_user(table, "root", UserKind.SUPER)
    apply(table, changes.delete_user(table.state, "admin"))


def test_a_third_secret_ends_the_first() -> None:
    table = load(MemoryFileSystem())
    with_user(table)
    state = changes.rotate_secret(table.state, "alice", b"second-secret", EpochMs(2))
    state = changes.rotate_secret(state, "alice", b"third-secret", EpochMs(3))
    assert [one.value for one in state.users["alice"].secrets] == [b"third-secret", b"second-secret"]
    assert [one.value for one in changes.drop_old_secret(state, "alice").users["alice"].secrets] == [
        b"third-secret"
    ]


def test_the_same_rule_again_is_one_rule() -> None:
    table = load(MemoryFileSystem())
    with_user(table)
    state, first = changes.add_rule(table.state, "alice", allow=True, actions="pub, sub", resource="topic:a")
    again, second = changes.add_rule(state, "alice", allow=True, actions="Sub,Pub", resource="Topic:a")
    assert first == second
    assert again is state


def test_a_number_of_a_rule_is_never_used_again() -> None:
    table = load(MemoryFileSystem())
    with_user(table)
    state, first = changes.add_rule(table.state, "alice", allow=True, actions="Pub", resource="*")
    state = changes.delete_rule(state, first.number)
    _, second = changes.add_rule(state, "alice", allow=True, actions="Pub", resource="*")
    assert second.number > first.number


@pytest.mark.parametrize("secret", [b"short", b"with space", b"\xc3\xa4" * 8, b"x" * 257, b""])
def test_a_secret_of_a_wrong_form_is_not_shown_in_the_error(secret: bytes) -> None:
    with pytest.raises(TroveError, match="USER_ILLEGAL") as raised:
        new_user("alice", UserKind.NORMAL, secret, salt=SALT, now_ms=0)
    assert not secret or secret.decode("latin-1") not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a,b", "a=b", "x" * 65, "ä", "a\n"])
def test_an_access_key_of_a_wrong_form_is_refused(name: str) -> None:
    with pytest.raises(TroveError, match="USER_ILLEGAL"):
        new_user(name, UserKind.NORMAL, CANARY, salt=SALT, now_ms=0)


class TableMachine(RuleBasedStateMachine):
    """Changes and restarts against plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.table = load(self.files)
        self.secrets: dict[str, list[bytes]] = {}
        self.enabled: dict[str, bool] = {}
        self.subjects: dict[int, str] = {}

    names = st.sampled_from(("alice", "bob"))

    @rule(name=names, number=st.integers(0, 9))
    def create(self, name: str, number: int) -> None:
        secret = b"secret-%d" % number
        user = new_user(name, UserKind.NORMAL, secret, salt=SALT, now_ms=0)
        if name in self.secrets:
            with pytest.raises(TroveError, match="USER_EXISTS"):
                changes.add_user(self.table.state, user)
            return
        apply(self.table, changes.add_user(self.table.state, user))
        self.secrets[name], self.enabled[name] = [secret], True

    @rule(name=names, number=st.integers(10, 19))
    def rotate(self, name: str, number: int) -> None:
        if name in self.secrets:
            secret = b"secret-%d" % number
            apply(self.table, changes.rotate_secret(self.table.state, name, secret, EpochMs(0)))
            self.secrets[name] = [secret, *self.secrets[name]][:2]

    @rule(name=names, enabled=st.booleans())
    def enable(self, name: str, enabled: bool) -> None:
        if name in self.secrets:
            apply(self.table, changes.set_enabled(self.table.state, name, enabled=enabled))
            self.enabled[name] = enabled

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name in self.secrets:
            apply(self.table, changes.delete_user(self.table.state, name))
            del self.secrets[name], self.enabled[name]
            self.subjects = {number: subject for number, subject in self.subjects.items() if subject != name}

    @rule(name=names, topic=st.sampled_from("ab"))
    def allow(self, name: str, topic: str) -> None:
        if name in self.secrets:
            state, made = changes.add_rule(
                self.table.state, name, allow=True, actions="Pub", resource=f"Topic:{topic}"
            )
            apply(self.table, state)
            self.subjects[made.number] = name

    @rule()
    def restart(self) -> None:
        self.table = load(self.files)

    @invariant()
    def equals_the_model(self) -> None:
        users = self.table.state.users
        assert {name: [one.value for one in user.secrets] for name, user in users.items()} == self.secrets
        assert {name: user.enabled for name, user in users.items()} == self.enabled
        assert {number: one.subject for number, one in self.table.state.rules.items()} == self.subjects
        for name in self.secrets:
            assert [one.number for one in self.table.rules(name).rules] == sorted(
                number for number, subject in self.subjects.items() if subject == name
            )


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = hypothesis_settings(max_examples=25, stateful_step_count=12, deadline=None)


def test_a_user_of_another_salt_is_not_taken() -> None:
    user = new_user("alice", UserKind.NORMAL, CANARY, salt=SALT, now_ms=0)
    with pytest.raises(AssertionError):
        new_user("alice", UserKind.NORMAL, CANARY, salt=b"short", now_ms=0)
    assert replace(user, enabled=False) != user
