"""AckMessage of one message a call: requests and replies by hand are those of protobuf."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rocketmq_door import ACKNOWLEDGE, MESSAGES, RECEIVE, Call, Door, handles, receive, scene
from trovemq_broker.server.core.acknowledger import reply_of_one
from trovemq_broker.server.core.usual_acknowledgements import read_usual, reply_to_entry
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.events.receipt_handle import (
    HEADS_KEPT,
    HandleReader,
    encode_handle,
    handle_head,
    handle_seed,
)

TEXTS = st.one_of(st.sampled_from(["", "g", "%RETRY%g", "é", "x" * 130]), st.text(max_size=70))


def request(handle: str, message_id: str = "M1", group: str = "g", topic: str = "orders") -> Any:
    return service.AckMessageRequest(
        group=v2.Resource(name=group),
        topic=v2.Resource(name=topic),
        entries=[service.AckMessageEntry(message_id=message_id, receipt_handle=handle)],
    )


def check_as_protobuf(data: bytes) -> None:
    """If the request is usual, protobuf reads the same, and general code would make the same reply."""
    usual = read_usual(data)
    if usual is None:
        return
    try:
        whole = service.AckMessageRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):  # such names are refused
            service.AckMessageRequest.FromString(usual.names)
        return
    names = service.AckMessageRequest.FromString(usual.names)
    (entry,) = whole.entries
    assert (names.group, names.topic) == (whole.group, whole.topic)
    assert not names.entries
    assert entry.receipt_handle.encode() == usual.handle
    if usual.handle:
        assert reply_to_entry(usual.entry) == reply_of_one(entry.message_id, entry.receipt_handle)


@given(handle=TEXTS, message_id=TEXTS, group=TEXTS, topic=TEXTS, namespace=TEXTS, lite=st.none() | TEXTS)
def test_a_request_is_read_as_protobuf_reads_it(
    handle: str, message_id: str, group: str, topic: str, namespace: str, lite: str | None
) -> None:
    whole = request(handle, message_id, group, topic)
    whole.group.resource_namespace = namespace
    if lite is not None:
        whole.entries[0].lite_topic = lite
    check_as_protobuf(whole.SerializeToString())


@given(at=st.integers(0, 60), byte=st.integers(0, 255), cut=st.integers(0, 3), more=st.binary(max_size=3))
@settings(max_examples=300)
def test_damaged_requests_are_read_as_protobuf_reads_them(at: int, byte: int, cut: int, more: bytes) -> None:
    data = bytearray(request("0.0.1.18b.0.1.0123abcd").SerializeToString())
    data[at % len(data)] = byte
    check_as_protobuf(bytes(data[: len(data) - cut]) + more)


def test_the_usual_form_is_the_one_of_official_clients() -> None:
    data = request("0.0.1.18b.0.1.0123abcd", "01A2B3").SerializeToString()
    usual = read_usual(data)
    assert usual is not None
    assert usual.handle == b"0.0.1.18b.0.1.0123abcd"
    assert data == usual.names + b"\x1a" + bytes([len(usual.entry)]) + usual.entry


def usual_calls(found: list[str]) -> list[Call]:
    return [Call(request(handle, f"M{number}")) for number, handle in enumerate(found)]


def test_messages_of_several_receives_are_acknowledged_in_any_order() -> None:
    async def play() -> None:
        door = Door()
        await door.send()
        receives = [receive(batch_size=4) for _ in range(3)]
        door.turn(RECEIVE, *receives)
        found = handles(receives)
        assert len(found) == MESSAGES
        random.Random(5).shuffle(found)
        calls = usual_calls(found)
        assert [reply is not None for reply in door.usual(calls)] == [True] * MESSAGES
        assert sum(one.count for one in door.acknowledged()) == MESSAGES
        assert door.parts.delivery.in_flight_count == 0

    scene(play)


def test_others_are_left_as_they_were() -> None:
    """Twice in a turn, expired, anonymous, of nobody, of a name that is not legal."""

    async def play() -> None:
        door = Door()
        await door.send(4)
        door.turn(RECEIVE, got := receive())
        first, second, third, fourth = handles([got])
        calls = [
            Call(request(first)),
            Call(request(first)),
            Call(request(second), ""),
            Call(request(third, group="nobody")),
            Call(request(third, group="a b")),
            Call(request(third, message_id="")),
        ]
        assert [reply is not None for reply in door.usual(calls)] == [True] + [False] * 5
        assert door.parts.delivery.in_flight_count == 3
        door.parts.now_ms += 40_000
        assert door.usual([Call(request(fourth))]) == [None]
        assert sum(one.count for one in door.acknowledged()) == 1

    scene(play)


def test_usual_calls_are_counted_and_slow_ones_noted() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = usual_calls(handles([got]))
        calls[2].over = True
        door.metrics.slow.set_limit(-1)
        door.turn(ACKNOWLEDGE, *calls)
        assert door.metrics.slow.counts == {ACKNOWLEDGE: 3}
        counts = {key[1]: sum(one.counts) for key, one in door.metrics._latencies.items()}
        assert counts == {"OK": 2, "CANCELLED": 1}

    scene(play)


def test_a_fault_in_the_usual_way_failed_all_calls_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport ended them with its own status, and the text of the exception."""

    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = usual_calls(handles([got]))

        def fail(*_: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(door.parts.delivery, "acknowledge_mixed", fail)
        door.turn(ACKNOWLEDGE, *calls)
        assert [len(call.written) for call in calls] == [1, 1, 1]
        assert door.parts.delivery.in_flight_count == 0

    scene(play)


def test_heads_of_leases_are_kept_no_longer_than_a_few_others() -> None:
    reader = HandleReader(handle_seed("g", "orders"))
    heads = [handle_head(0, QueueId(0), number, 395, False) for number in range(40)]
    made = [encode_handle(handle_seed("g", "orders"), head, 7).encode() for head in heads]
    forged = [head.encode() + b".7.00000000" for head in heads]
    assert reader.read_mixed(forged) == []
    assert reader._heads == {}
    for begin in range(0, len(made), 5):
        assert len(reader.read_mixed(made[begin : begin + 5])) == 5
        assert len(reader._heads) <= HEADS_KEPT
    assert len(reader.read_mixed(made)) == len(made)


def test_names_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        door = Door()
        usual = door.handlers[ACKNOWLEDGE].usual.__self__
        monkeypatch.setattr("trovemq_broker.server.core.usual_acknowledgements.NAMES_KEPT", 3)
        for number in range(10):
            assert door.usual([Call(request("0.0.1.18b.0.1.0123abcd", group=f"g{number}"))]) == [None]
            assert len(usual._names) <= 3

    scene(play)
