"""Acknowledgements that arrive in one iteration of the event loop are settled together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.rocketmq_door import ACKNOWLEDGE, MESSAGES, RECEIVE, Call, Door, handles, receive, scene
from trovemq_broker.server.core.acknowledger import Acknowledger
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


def request(handle: str, message_id: str = "M1", group: str = "g", topic: str = "orders") -> Any:
    return service.AckMessageRequest(
        group=v2.Resource(name=group),
        topic=v2.Resource(name=topic),
        entries=[service.AckMessageEntry(message_id=message_id, receipt_handle=handle)],
    )


def calls_for(found: list[str]) -> list[Call]:
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
        calls = calls_for(found)
        assert door.acknowledge(calls) == [v2.OK] * MESSAGES
        assert sum(one.count for one in door.acknowledged()) == MESSAGES
        assert door.parts.delivery.in_flight_count == 0

    scene(play)


def test_others_are_left_as_they_were() -> None:
    """Expired, anonymous, of no user, of a name that is not legal; twice in an iteration is consumed once."""

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
        assert door.acknowledge(calls) == [
            v2.OK,
            v2.OK,
            v2.CLIENT_ID_REQUIRED,
            v2.INVALID_RECEIPT_HANDLE,
            v2.ILLEGAL_CONSUMER_GROUP,
            v2.OK,
        ]
        assert door.parts.delivery.in_flight_count == 2
        door.parts.now_ms += 40_000
        assert door.acknowledge([Call(request(fourth))]) == [v2.INVALID_RECEIPT_HANDLE]
        assert sum(one.count for one in door.acknowledged()) == 2

    scene(play)


def test_joint_calls_are_counted_and_slow_ones_noted() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = calls_for(handles([got]))
        calls[2].over = True
        door.metrics.slow.set_limit(-1)
        door.turn(ACKNOWLEDGE, *calls)
        assert door.metrics.slow.counts == {ACKNOWLEDGE: 3}
        counts = {key[2]: sum(one.counts) for key, one in door.metrics._latencies.items()}
        assert counts == {"OK": 2, "CANCELLED": 1}

    scene(play)


def test_a_fault_in_a_joint_answer_failed_all_calls_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport ended them with its own status, and the text of the exception."""

    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        found = handles([got])
        calls = calls_for(found)
        settle = Acknowledger.settle

        def fail(self: Any, group: str, topic: str, some: Sequence[bytes]) -> Any:
            if found[1].encode() in some:
                raise MemoryError
            return settle(self, group, topic, some)

        monkeypatch.setattr(Acknowledger, "settle", fail)
        assert door.acknowledge(calls) == [v2.OK, v2.INTERNAL_SERVER_ERROR, v2.OK]
        assert door.parts.delivery.in_flight_count == 1

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
