"""The first user of a cluster is made once: by the owner of its configuration, not by each broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, open_store
from tests.unit.server.access.access_here import LOOPBACK, AccessHere, rocketmq_metadata
from trovemq_broker.daemon.security import FIRST_USER, gate_of, open_security
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"


def opened(path: Path, files: FileSystem, *, makes_first_user: bool, init: str = "") -> BrokerSecurity:
    settings = BrokerSettings(
        store=str(path / "store"), authentication_enable=True, init_authentication_user=init
    )
    gate = gate_of(settings)
    assert gate is not None
    return open_security(settings, open_store(files), gate, makes_first_user=makes_first_user)


def test_a_single_broker_makes_an_admin_and_its_credentials(tmp_path: Path) -> None:
    security = opened(tmp_path, MemoryFileSystem(), makes_first_user=True)
    assert list(security.table.state.users) == [FIRST_USER]
    assert (tmp_path / "store.admin-credentials").exists()


def test_the_users_of_a_new_store_were_in_the_file_alone(tmp_path: Path) -> None:
    """Its table of users was empty, and passed for none: a node that followed had no users."""
    settings = BrokerSettings(store=str(tmp_path / "store"), authentication_enable=True)
    store = MessageStore.open(MemoryFileSystem(), replace(SMALL_SYNC, tables_in_log=True), NOW_MS)
    gate = gate_of(settings)
    assert gate is not None
    open_security(settings, store, gate)
    assert store.security is not None
    assert store.security.places.keys() == {"table", f"user/{FIRST_USER}"}


def test_a_broker_that_follows_made_an_admin_with_another_secret(tmp_path: Path) -> None:
    files = MemoryFileSystem()
    init = '{"username": "root", "password": "password-1"}'
    security = opened(tmp_path, files, makes_first_user=False, init=init)
    assert security.table.state.users == {}
    assert list(tmp_path.glob("*admin-credentials*")) == []
    key = SealingKey.parse(next(iter(tmp_path.glob("*sealing-key*"))).read_bytes())
    assert security.table.sealer("cluster:").key_id == key.key_id
    security = opened(tmp_path, files.after_process_kill(), makes_first_user=False)
    assert security.table.sealer("cluster:").key_id == key.key_id, "the key of the first start"


def test_a_log_in_before_the_users_came_had_a_wrong_secret() -> None:
    here = AccessHere()
    credentials = here.gate.credentials(SEND, rocketmq_metadata("admin"))
    with pytest.raises(TroveError, match="no users yet: they come with the cluster") as caught:
        here.gate.caller(credentials, LOOPBACK)
    assert caught.value.symbol == "SERVICE_NOT_AVAILABLE"
    here.user("bob")
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        here.gate.caller(credentials, LOOPBACK)
