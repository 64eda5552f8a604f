"""The secrets of users in the file of the cluster's table: sealed, with a key that is not in the store."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.cluster_config.config_parts import MARK, START, created, make
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.owner import Owner, begin_founding
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table_file import BACKUP_PATH, PATH
from trovemq_broker.security.sealing import SealingKey, SecretSealer
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem

CANARY = b"canary-secret-0"


def sealer(key: int = 1) -> SecretSealer:
    numbers = itertools.count(key << 32)
    return SecretSealer(SealingKey(bytes([key] * 32)), lambda size: next(numbers).to_bytes(size), "cluster:")


def owner_of(files: MemoryFileSystem, seal: SecretSealer | None) -> Owner:
    stored = StoredTable.load(files, seal)
    work = begin_founding(stored, "a", "store-a", cluster="c1", mark=MARK)
    work.run()
    stored.finish(work)
    return Owner(stored, "a", START)


def user(name: str, secrets: bytes = CANARY) -> ConfigChange:
    return ConfigChange(ChangeKind.CREATE, Kind.USER, name, secrets=secrets)


def test_secrets_are_read_back_and_never_on_disk_in_the_clear() -> None:
    files = MemoryFileSystem()
    owner = owner_of(files, sealer())
    make(owner, created("orders"))
    make(owner, user("alice"), user("bob", b"another-secret"))
    make(owner, user("carol", b"third"))
    make(owner, created("audit"))
    image = owner._stored.table.image()
    for path in (PATH, BACKUP_PATH):
        assert not any(secret in files.read_bytes(path) for secret in (CANARY, b"another-secret", b"third"))
    again = StoredTable.load(files, sealer())
    assert again.table.image() == image
    work = again.begin(image)
    work.run()
    again.finish(work)
    assert StoredTable.load(files, sealer()).table.image() == image
    entry = again.table.live(Kind.USER, "alice")
    assert entry is not None
    assert entry.secrets == CANARY


@pytest.mark.parametrize("key", [2, None])
def test_another_key_or_none_is_refused_by_name(key: int | None) -> None:
    files = MemoryFileSystem()
    make(owner_of(files, sealer()), user("alice"))
    with pytest.raises(TroveError) as caught:
        StoredTable.load(files, None if key is None else sealer(key))
    assert caught.value.symbol == "SEALING_KEY_MISMATCH"
    assert caught.value.fields["file"] == PATH


def test_a_broker_without_authentication_keeps_no_users_of_the_cluster() -> None:
    files = MemoryFileSystem()
    owner = owner_of(files, None)
    make(owner, created("orders"))
    with pytest.raises(TroveError, match="switch authentication_enable on") as caught:
        make(owner, user("alice"))
    assert caught.value.symbol == "AUTHENTICATION_DISABLED"
    assert owner.head.version == 2
    make(owner, created("audit"))
    assert StoredTable.load(files).table.count(Kind.TOPIC) == 2


def test_the_first_users_of_a_table_that_was_made_without_a_key_name_it() -> None:
    files = MemoryFileSystem()
    make(owner_of(files, None), created("orders"))
    make(Owner(StoredTable.load(files, sealer()), "a", START), user("alice"))
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        StoredTable.load(files, sealer(2))
    assert StoredTable.load(files, sealer()).table.count(Kind.USER) == 1


def test_a_table_that_has_no_users_needs_no_key() -> None:
    files = MemoryFileSystem()
    make(owner_of(files, sealer()), created("orders"))
    assert StoredTable.load(files, None).table.count(Kind.TOPIC) == 1


def test_secrets_of_one_user_cannot_be_given_to_another_one_in_the_file() -> None:
    one = sealer()
    with pytest.raises(ValueError, match="cannot be opened"):
        one.open("bob", one.seal("alice", CANARY))
    other = SecretSealer(SealingKey(bytes([1] * 32)), bytes, "")
    with pytest.raises(ValueError, match="cannot be opened"):
        one.open("alice", other.seal("alice", CANARY))
