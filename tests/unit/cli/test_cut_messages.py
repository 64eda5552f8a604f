"""cluster cut-records --resend: each message that its topic lacks is sent once."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq.models.replica import CutMessage, CutRecords
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message, encode_record


def cut_message(offset: int, key: str | None, topic: str = "orders", **properties: str) -> CutMessage:
    own = {"UNIQ_KEY": key} if key is not None else {}
    record = encode_record(topic, f"body {offset}".encode(), properties={**own, **properties})
    return CutMessage(offset=offset, message=decode_message(record))


class FakeReplicas:
    """Nodes with files of cut records; a part has two messages."""

    def __init__(self, **files: list[CutMessage]) -> None:
        self.files = files

    async def cut_records(self, group: str | None) -> list[CutRecords]:
        assert group in (None, "g")
        return [
            CutRecords(
                node=node, path=f"{node}/1", epoch=1, offset=0, end=9, records=len(found), dropped_bytes=0
            )
            for node, found in self.files.items()
        ]

    async def cut_messages(
        self, cut: CutRecords, *, offset: int, group: str | None
    ) -> tuple[list[CutMessage], int]:
        found = [one for one in self.files[cut.node] if one.offset >= offset][:2]
        return found, found[-1].offset + 1 if found else offset


@pytest.fixture
def cut(client: Any) -> Any:
    client.topics = {"orders": 1}
    client.replicas = FakeReplicas(
        b=[
            cut_message(10, "U1", KEYS="a b", TAGS="t", colour="red", __SHARDINGKEY="m"),
            cut_message(20, None),
            cut_message(30, "U2", topic="rmq_sys_trovemq_delivery"),
            cut_message(40, "U3"),
        ],
        c=[cut_message(10, "U1"), cut_message(50, "U4")],
    )
    client.sent = []
    inner = client.send

    async def send(topic: str, body: bytes, **fields: Any) -> Any:
        receipt = await inner(topic, body, **fields)
        client.sent.append({"topic": topic, "body": body, **fields})
        return receipt

    client.send = send
    return client


def sent(client: Any) -> list[dict[str, Any]]:
    return list(client.sent)


def results(ran: Any) -> list[tuple[str, int, str | None]]:
    return [(one["node"], one["offset"], one["result"]) for one in ran.objects]


def test_without_resend_the_files_are_listed_and_nothing_is_sent(run: Any, cut: Any) -> None:
    ran = run("--json", "cluster", "cut-records")
    assert [(one["node"], one["records"]) for one in ran.objects] == [("b", 4), ("c", 2)]
    assert sent(cut) == []


def test_each_message_is_sent_once_with_what_its_sender_gave_it(run: Any, cut: Any) -> None:
    ran = run("--json", "cluster", "cut-records", "--resend", "--yes")
    assert ran.code == 0, ran.err
    assert results(ran) == [
        ("b", 10, "sent"),
        ("b", 20, "no message id: it cannot be known whether the topic has it"),
        ("b", 30, "a record of the broker's own"),
        ("b", 40, "sent"),
        ("c", 10, "the topic has it"),
        ("c", 50, "sent"),
    ]
    first = sent(cut)[0]
    assert [one["message_id"] for one in sent(cut)] == ["U1", "U3", "U4"]
    assert (first["topic"], first["body"], first["keys"], first["tag"]) == (
        "orders",
        b"body 10",
        ("a", "b"),
        "t",
    )
    assert (first["properties"], first["message_group"]) == ({"colour": "red"}, "m")
    assert ran.note == {"resent": 3, "before": 1, "failed": 0, "skipped": 2}


def test_a_second_run_sends_nothing(run: Any, cut: Any) -> None:
    run("cluster", "cut-records", "--resend", "--yes")
    count = len(sent(cut))
    ran = run("--json", "cluster", "cut-records", "--resend", "--yes")
    assert len(sent(cut)) == count
    assert {one for _, _, one in results(ran)} == {
        "the topic has it",
        "a record of the broker's own",
        "no message id: it cannot be known whether the topic has it",
    }


def test_a_message_that_is_refused_is_named_and_the_others_are_sent(
    run: Any, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = cut.send

    async def refusing(topic: str, body: bytes, **fields: Any) -> Any:
        if body == b"body 40":
            raise TroveError(errors.NOT_ENOUGH_REPLICAS, "1 of 2")
        return await send(topic, body, **fields)

    monkeypatch.setattr(cut, "send", refusing)
    ran = run("--json", "cluster", "cut-records", "--resend", "--yes")
    failed = [one for one in ran.objects if one["error"]]
    assert [(one["offset"], one["error"]) for one in failed] == [(40, "NOT_ENOUGH_REPLICAS")]
    assert [one["message_id"] for one in sent(cut)] == ["U1", "U4"]


def test_nothing_is_sent_without_a_yes(run: Any, cut: Any) -> None:
    ran = run("cluster", "cut-records", "--resend")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert sent(cut) == []
