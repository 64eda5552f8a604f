"""Audit records of a real broker: who has one, who may read them, and that they survive."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.support.command_line import run_here
from trovemq import TroveError, errors, sync
from trovemq.testing import BrokerProcess
from trovemq_proto.audit import AUDIT_TOPIC

pytestmark = pytest.mark.slow

CANARY = "canary-body-8"
WAIT_MAX_S = 240


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(store: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=store, authenticationEnabled=True, authorizationEnabled=True) as running:
        yield running


@pytest.fixture
def admin(store: Path, broker: BrokerProcess) -> Iterator[sync.Client]:
    credentials = store.with_name("store.admin-credentials")
    options = trovemq.ClientOptions(credentials_file=str(credentials))
    with sync.connect(broker.address, options=options) as client:
        yield client


def client_of(broker: BrokerProcess, admin: sync.Client, name: str, *rules: tuple[str, str]) -> sync.Client:
    made = admin.admin.users.create(name)
    for actions, resource in rules:
        admin.admin.rules.allow(name, actions, resource)
    return sync.connect(broker.address, access_key=name, secret_key=made.secret_key)


def listed(
    broker: BrokerProcess, store: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> list[dict[str, Any]]:
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(store.with_name("store.admin-credentials")))
    code, out, err = run_here(broker.address, "audit", "list", *options)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def listed_with(
    broker: BrokerProcess, store: Path, monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Any], bool]
) -> list[dict[str, Any]]:
    """All records, once there is such a one: those of denials and reads follow the reply."""
    deadline = time.monotonic() + WAIT_MAX_S
    while not any(map(wanted, records := listed(broker, store, monkeypatch))):
        assert time.monotonic() < deadline, records
        time.sleep(0.05)
    return records


def test_acts_reads_log_ins_and_denials_have_records(
    broker: BrokerProcess, admin: sync.Client, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.admin.create_topic("orders", queue_count=1)
    with pytest.raises(TroveError):
        admin.admin.create_topic("orders", queue_count=1)
    admin.send("orders", CANARY.encode(), keys="k")
    admin.query("orders", "k")
    with client_of(broker, admin, "alice", ("Pub", "Topic:orders")) as alice:
        alice.send("orders", CANARY.encode())
        for _ in range(3):
            with pytest.raises(TroveError, match="ACCESS_DENIED"):
                alice.admin.delete_topic("orders")
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        sync.connect(broker.address, access_key="alice", secret_key="canary-secret-8")
    records = listed_with(broker, store, monkeypatch, lambda one: one["kind"] == "denied" and not one["user"])
    made = [one for one in records if one["method"].endswith("AdminService/CreateTopic")]
    acts = [(one["phase"], one["outcome"]) for one in made]
    assert acts == [("begun", ""), ("ended", "OK"), ("begun", ""), ("ended", "TOPIC_EXISTS")]
    kinds = {(one["kind"], one["user"], one["method"].rpartition("/")[2]) for one in records}
    assert ("read", "admin", "QueryByKey") in kinds
    assert ("login", "alice", "Authenticate") in kinds
    assert ("act", "admin", "CreateUser") in kinds
    first, *counted = listed(broker, store, monkeypatch, "--kind", "denied", "--user", "alice")
    assert (first["outcome"], first["count"]) == ("ACCESS_DENIED", 1)
    assert "Topic:orders" in first["resources"]
    assert sum(one["count"] for one in counted) in (0, 1, 2), "where the minute ended among them"
    (failed,) = [one for one in records if one["kind"] == "denied" and not one["user"]]
    assert failed["outcome"] == "AUTHENTICATION_FAILED"
    assert not [one for one in records if one["method"].endswith(("Append", "Send", "SendMessage"))]
    assert "canary" not in json.dumps(records)


def test_only_the_right_to_audit_reads_the_records(broker: BrokerProcess, admin: sync.Client) -> None:
    admin.admin.groups.create("has-the-first-record")
    (found,) = [one for one in admin.pull(AUDIT_TOPIC) if one.queue_offset == 0]
    everything = ("Pub,Sub,Create,Update,Delete,Get,List,Read,Command,Backup", "*")
    with client_of(broker, admin, "operator", everything) as operator:
        for call in (
            lambda: next(iter(operator.pull(AUDIT_TOPIC))),
            lambda: operator.query(AUDIT_TOPIC, "admin"),
            lambda: operator.get_at(AUDIT_TOPIC, 0, 0),
            lambda: operator.queue_offsets(AUDIT_TOPIC),
        ):
            with pytest.raises(TroveError) as refused:
                call()
            assert refused.value.spec is errors.ACCESS_DENIED
        for identify in (operator.get, operator.track):
            with pytest.raises(TroveError) as refused:
                identify(found.offset_msg_id)
            assert refused.value.spec is errors.MESSAGE_NOT_FOUND
        names = [topic.topic for topic in operator.admin.list_topics(include_system=True)]
        assert AUDIT_TOPIC not in names
    with client_of(broker, admin, "auditor", ("Audit", f"Topic:{AUDIT_TOPIC}")) as auditor:
        assert next(iter(auditor.pull(AUDIT_TOPIC))).body == found.body
        assert auditor.query(AUDIT_TOPIC, "admin").messages
        with pytest.raises(TroveError, match="ACCESS_DENIED"):
            auditor.query("orders", "k")
    for change in (
        lambda: admin.send(AUDIT_TOPIC, b"forged"),
        lambda: admin.admin.delete_topic(AUDIT_TOPIC),
        lambda: admin.admin.alter_topic(AUDIT_TOPIC, queue_count=2),
        lambda: admin.admin.create_topic(AUDIT_TOPIC),
    ):
        with pytest.raises(TroveError, match=r"TOPIC_ILLEGAL|TOPIC_NOT_FOUND"):
            change()


def test_who_reads_the_records_has_one(
    broker: BrokerProcess, admin: sync.Client, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.admin.groups.create("has-a-record")
    next(iter(admin.pull(AUDIT_TOPIC)))

    def of_reading(one: dict[str, Any]) -> bool:
        return (one["kind"], one["user"], one["resources"]) == ("read", "admin", f"Topic:{AUDIT_TOPIC}")

    listed_with(broker, store, monkeypatch, of_reading)
    reads = listed(broker, store, monkeypatch, "--kind", "read", "--user", "admin")
    assert any(map(of_reading, reads))


def test_records_of_acts_survive_a_kill(
    broker: BrokerProcess, admin: sync.Client, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.admin.groups.create("before-the-kill")
    broker.restart(kill=True)
    acts = listed(broker, store, monkeypatch, "--kind", "act")
    found = [one["phase"] for one in acts if "before-the-kill" in one["resources"]]
    assert found[:1] == ["begun"]
    assert len({one["id"] for one in acts}) == len(acts)
