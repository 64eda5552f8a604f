"""Brokers that are away: each command line answers without them, and names them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq import GetAnswer, ReplicaLag
from trovemq.cli.away import Away

READS = [("topic", "list")]
CHANGES = [
    ("topic", "create", "bills"),
    ("topic", "alter", "orders", "--queues", "3"),
    ("topic", "delete", "orders", "--yes"),
]


@pytest.mark.parametrize(
    ("words", "kind"), [*((one, "missing") for one in READS), *((one, "pending") for one in CHANGES)]
)
def test_a_broker_that_is_away_is_named_beside_the_answer(
    run: Any, client: FakeClient, words: tuple[str, ...], kind: str
) -> None:
    client.away = ("broker-c", "broker-b")
    client.topics["orders"] = 2
    ran = run("--json", *words)
    assert ran.code == 0
    assert ran.objects
    assert ran.note[kind] == ["broker-b", "broker-c"]
    assert ran.note.get("complete", True) == (kind == "pending")


def test_people_read_which_broker_is_away(run: Any, client: FakeClient) -> None:
    client.away = ("broker-b",)
    assert "not all brokers answered, broker-b is missing" in run("topic", "list").err
    assert "not done on broker-b, which did not answer" in run("topic", "create", "bills").err


def test_a_topic_that_another_broker_had_is_said_to_exist(run: Any, client: FakeClient) -> None:
    client.existing = ("broker-b",)
    ran = run("topic", "create", "bills")
    assert (ran.code, "it existed on broker-b already, with the same settings" in ran.err) == (0, True)
    assert "existed" not in run("topic", "create", "bills", "--exist-ok").err


class Written:
    """An Output that keeps notes and remarks."""

    def __init__(self) -> None:
        self.notes: dict[str, object] = {}
        self.remarks: list[str] = []

    def note(self, **fields: object) -> None:
        self.notes |= fields

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def test_the_lag_of_a_replica_is_said_once_beside_all_its_answers() -> None:
    written: Any = Written()
    away = Away(written)
    for lag_ms in (40, 41):
        away.note(GetAnswer("message_id", (), replica=ReplicaLag(7, lag_ms)))
    away.note(GetAnswer("message_id", ()))
    assert written.notes == {"replica": {"lagBytes": 7, "lagMs": 41}}
    assert written.remarks == ["from a replica, whose lag is 40 ms"]
    other: Any = Written()
    Away(other).note(GetAnswer("message_id", (), replica=ReplicaLag(None, None)))
    assert other.remarks == ["from a replica, whose lag is not known yet"]


@pytest.mark.parametrize(("count", "named"), [(1, "1 more broker,"), (2, "2 more brokers,")])
def test_one_brokers_address_was_taken_for_the_whole_cluster(
    run: Any, client: FakeClient, count: int, named: str
) -> None:
    """As through one forwarded port: its topics were listed, and others did not exist."""
    client._pool.unseen_count = count
    ran = run("topic", "list")
    assert (ran.code, f"the cluster has {named} to which" in ran.err) == (0, True)
    assert run("--json", "topic", "list").note == {"complete": False, "unseen": count}
    ran = run("topic", "delete", "elsewhere", "--yes")
    assert ran.code == 1
    assert f"the cluster has {named} to which" in ran.err
    assert run("--json", "topic", "delete", "elsewhere", "--yes").note["unseen"] == count
    for words in (("query", "orders", "k"), ("group", "list"), ("stats", "--seconds", "0")):
        ran = run("--json", *words)
        assert (ran.note["complete"], ran.note["unseen"]) == (False, count), words
    client.topics["orders"] = 2
    ran = run("topic", "describe", "orders", "--broker", "broker-a")
    assert "the cluster has" not in ran.err, "that broker has answered"
    client._pool.unseen_count = 0
    assert "the cluster has" not in run("topic", "list").err + run("topic", "delete", "no", "--yes").err


def test_a_file_is_not_applied_to_brokers_that_are_away(run: Any, client: FakeClient, tmp_path: Any) -> None:
    (tmp_path / "topics.yaml").write_text("topics:\n  - {name: bills, queues: 2}\n")
    client.away = ("broker-a",)
    ran = run("--json", "apply", str(tmp_path / "topics.yaml"))
    assert (ran.code, ran.note["error"]) == (1, "BROKER_UNREACHABLE")
    assert "bills" not in client.topics
    client.away = ("broker-lost",)
    assert run("apply", str(tmp_path / "topics.yaml")).code == 0, "it is in no route"
