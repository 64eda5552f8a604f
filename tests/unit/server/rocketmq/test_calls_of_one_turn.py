"""ReceiveMessage and AckMessage without a task: calls that arrive together are answered as each alone."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import append, record
from tests.support.fake_loop import turns
from tests.support.memory_broker import receive_request
from tests.support.rocketmq_door import (
    ACKNOWLEDGE,
    MESSAGES,
    RECEIVE,
    Call,
    Door,
    handles,
    messages,
    receive,
    scene,
)
from tests.support.settling import change_invisible
from trovemq_broker.server.wire import receives
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_proto.records.layout import COMPRESSION_ZLIB, SYS_FLAG_COMPRESSED
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service


def acknowledgement(handles: Sequence[str], group: str = "g", topic: str = "orders") -> Call:
    entries = [service.AckMessageEntry(message_id=f"M{n}", receipt_handle=h) for n, h in enumerate(handles)]
    request = service.AckMessageRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries
    )
    return Call(request)


def statuses(call: Call) -> list[v2.Code]:
    (reply,) = call.written
    return [one.status.code for one in service.AckMessageResponse.FromString(reply).entries]


# --- acknowledgements -----------------------------------------------------------------------------------
def test_neighbours_acknowledged_by_many_calls_are_one_event() -> None:
    async def play() -> None:
        door = Door()
        await door.send()
        door.turn(RECEIVE, first := receive(batch_size=MESSAGES))
        found = handles([first])
        assert len(found) == MESSAGES
        by_queue = Counter(one.system_properties.queue_id for one in messages(first))
        calls = [acknowledgement([handle]) for handle in reversed(found)]
        door.turn(ACKNOWLEDGE, *calls)
        assert [statuses(call) for call in calls] == [[v2.OK]] * MESSAGES
        assert {one.queue_id: one.count for one in door.acknowledged()} == by_queue
        assert len(door.acknowledged()) == len(by_queue)
        assert door.parts.delivery.in_flight_count == 0

    scene(play)


CHOICES = st.one_of(
    st.tuples(st.just("g"), st.integers(0, MESSAGES - 1)),
    st.tuples(st.just("h"), st.integers(0, MESSAGES - 1)),
    st.tuples(st.just("returned"), st.integers(0, 2)),
    st.tuples(st.just("never"), st.sampled_from(["", "x", "0.0.1.1.0.1.00000000", "é", "." * 600])),
)
CALLS = st.lists(
    st.tuples(st.sampled_from("ghi"), st.lists(CHOICES, min_size=1, max_size=5)), min_size=1, max_size=8
)


async def some_delivered() -> tuple[Door, dict[str, list[str]]]:
    """Messages that two groups have; the handles of some were replaced."""
    door = Door()
    await door.send()
    found = {}
    for group in "gh":
        calls = [receive(group=group, batch_size=size) for size in (5, MESSAGES)]
        door.turn(RECEIVE, *calls)
        found[group] = handles(calls)
        assert len(found[group]) == MESSAGES
    found["returned"] = found["g"][:3]
    for handle in found["returned"]:
        change_invisible(door.parts.delivery, "g", "orders", handle, 0, door.parts.now_ms)
    door.turn(RECEIVE, again := receive(batch_size=3))
    found["g"][:3] = handles([again])
    return door, found


def request_of(group: str, choices: Sequence[tuple[str, Any]], found: dict[str, list[str]]) -> Call:
    return acknowledgement([value if of == "never" else found[of][value] for of, value in choices], group)


def consumed(door: Door) -> Counter[tuple[Any, ...]]:
    """Each message of the events."""
    return Counter(
        (one.group, one.topic, one.queue_id, offset, one.attempt, one.lease)
        for one in door.acknowledged()
        for offset in range(one.offset, one.offset + one.count)
    )


@pytest.mark.slow
@given(drawn=CALLS)
@settings(max_examples=40, deadline=None)
def test_calls_of_one_turn_are_answered_as_one_after_the_other(drawn: Any) -> None:
    """Handles of another group, twice in one call or in two, replaced, never handed out."""

    async def play() -> None:
        (alone, some), (together, same) = await some_delivered(), await some_delivered()
        assert some == same
        one_by_one = [request_of(group, choices, some) for group, choices in drawn]
        of_a_turn = [request_of(group, choices, same) for group, choices in drawn]
        for call in one_by_one:
            await alone.by_itself(ACKNOWLEDGE, call)
        together.turn(ACKNOWLEDGE, *of_a_turn)
        assert [call.written for call in of_a_turn] == [call.written for call in one_by_one]
        assert consumed(together) == consumed(alone)
        assert max(consumed(together).values(), default=1) == 1
        assert len(together.acknowledged()) <= len(alone.acknowledged())
        for group in "gh":
            progress = [
                door.parts.delivery.progress(group, "orders", door.parts.now_ms) for door in (alone, together)
            ]
            assert progress[0] == progress[1]
            offsets = [door.parts.store.offsets.of(group, "orders") for door in (alone, together)]
            assert offsets[0] == offsets[1] == [(one.queue_id, one.committed) for one in progress[0]]

    scene(play)


def test_a_caller_that_is_gone_has_acknowledged_and_others_are_answered() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = [acknowledgement([handle]) for handle in handles([got])]
        calls[1].over = True
        door.turn(ACKNOWLEDGE, *calls)
        assert [len(call.written) for call in calls] == [1, 0, 1]
        assert sum(one.count for one in door.acknowledged()) == 3

    scene(play)


def test_a_call_that_is_malformed_costs_the_others_nothing() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = [acknowledgement([handle]) for handle in handles([got])]
        calls[1].request = b"\xff"
        door.turn(ACKNOWLEDGE, *calls)
        (refused,) = calls[1].written
        assert service.AckMessageResponse.FromString(refused).status.code == v2.BAD_REQUEST
        assert [statuses(calls[0]), statuses(calls[2])] == [[v2.OK], [v2.OK]]
        assert sum(one.count for one in door.acknowledged()) == 2

    scene(play)


# --- receives -------------------------------------------------------------------------------------------
RECEIVES = st.lists(
    st.fixed_dictionaries(
        {
            "group": st.sampled_from("gh"),
            "batch_size": st.integers(0, 40),
            "expression": st.sampled_from(["*", "a", "b", "a || b", "a >", ""]),
            "invisible_ms": st.sampled_from([30_000, 1, 60_000]),
        }
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(drawn=RECEIVES, size=st.sampled_from([5, 4_000]))
@settings(max_examples=15, deadline=None)
def test_receives_of_one_turn_get_what_they_get_by_themselves(drawn: Any, size: int) -> None:
    async def play() -> None:
        doors = []
        for _ in range(2):
            doors.append(Door())
            await doors[-1].send(MESSAGES * 3, size)
        alone, together = doors
        calls = [receive(**fields) for fields in drawn]
        together.turn(RECEIVE, *calls)
        for fields, call in zip(drawn, calls, strict=True):
            if not call.over:
                if call not in [one.context for one in together.taken]:
                    break  # it waits for messages; who comes later may get others by then
                await turns(300)
            await alone.by_itself(RECEIVE, by_itself := receive(**fields))
            assert call.written == by_itself.written

    scene(play)


def test_large_replies_are_written_as_they_are_read() -> None:
    async def play() -> None:
        door = Door()
        await door.send(MESSAGES, 8_000)
        door.turn(RECEIVE, call := receive())
        assert not call.written
        assert door.parts.delivery.in_flight_count == MESSAGES
        await turns(50)
        call.end()
        got = messages(call)
        assert [len(one.body) for one in got] == [8_004] * MESSAGES
        assert [one.system_properties.delivery_attempt for one in got] == [1] * MESSAGES
        assert door.parts.traffic.messages_out["orders"] == MESSAGES
        assert not door.taken

    scene(play)


def test_bodies_that_inflate_are_written_as_they_are_read() -> None:
    """Ten kilobytes of the log are ten megabytes of replies: not in one step."""

    async def play() -> None:
        door = Door()
        flag = SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB
        body = zlib.compress(bytes(1 << 20))
        append(door.parts.store, *(record(body, unique_key=f"U{n}", sys_flag=flag) for n in range(10)))
        door.parts.store.dispatch()
        door.turn(RECEIVE, call := receive())
        assert not call.written
        await turns(50)
        assert [len(one.body) for one in messages(call)] == [1 << 20] * 10

    scene(play)


def test_large_replies_come_back_where_the_client_left_before_they_began() -> None:
    async def play() -> None:
        door = Door()
        await door.send(MESSAGES, 8_000)
        door.turn(RECEIVE, call := receive())
        call.end()
        await turns()
        door.turn(RECEIVE, again := receive())
        await turns(50)
        got = messages(again)
        assert len(got) == MESSAGES
        assert {one.system_properties.delivery_attempt for one in got} == {1}, "no attempt was counted"

    scene(play)


def test_an_answer_that_was_refused_gives_its_messages_back() -> None:
    async def play() -> None:
        door = Door()
        await door.send(2)
        call = receive()

        def refused(_replies: Sequence[Any]) -> None:
            call.over = call.is_done = True

        vars(call)["reply_all"] = refused
        door.turn(RECEIVE, call)
        door.turn(RECEIVE, again := receive())
        assert len(messages(again)) == 2

    scene(play)


def test_messages_come_back_where_their_replies_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        door = Door()
        await door.send(2)

        def fails(*_arguments: object) -> bytes:
            raise ValueError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(receives, "fast_element", fails)
            door.turn(RECEIVE, call := receive())
        (reply,) = call.written
        assert service.ReceiveMessageResponse.FromString(reply).status.code == v2.INTERNAL_SERVER_ERROR
        door.turn(RECEIVE, again := receive())
        assert len(messages(again)) == 2

    scene(play)


def test_without_space_for_replies_a_receive_takes_nothing() -> None:
    async def play() -> None:
        door = Door(ReplyBudget(ReplyLimits(total_max=4_096, connection_max=4_096), transport_counts=True))
        await door.send(40, 1_000)
        calls = [receive(batch_size=4) for _ in range(6)]
        door.turn(RECEIVE, *calls)
        answered = [call for call in calls if call.over]
        assert len(answered) == 1, "the reply of the first fills it until the client has read"
        assert door.parts.delivery.in_flight_count == 4

    scene(play)


def test_a_refused_receive_says_its_status() -> None:
    async def play() -> None:
        door = Door()
        door.turn(
            RECEIVE,
            call := Call(receive_request("nowhere")),
            anonymous := Call(receive_request("orders"), ""),
        )
        for refused, code in ((call, v2.TOPIC_NOT_FOUND), (anonymous, v2.CLIENT_ID_REQUIRED)):
            (reply,) = refused.written
            assert service.ReceiveMessageResponse.FromString(reply).status.code == code
        assert door.metrics._streams == {RECEIVE: 0}

    scene(play)
