"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: each status, and who is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.wire.acknowledgements import acknowledge_of, acknowledge_reply
from trovemq_broker.server.wire.statuses import code_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.topics.subscription_groups import SubscriptionGroup


async def received_by(parts: TestBroker, count: int = 1, topic: str = "orders", **fields: Any) -> list[str]:
    """Handles of that many new messages."""
    group = {"message_group": "mg"} if topic == "steps" else {}
    await parts.send(
        *[message(bytes([48 + n]), topic, message_id=f"M{n}", **group) for n in range(count)]  # type: ignore[arg-type]
    )
    await turns()
    found = await parts.messages(topic, **fields)
    return [one.system_properties.receipt_handle for one in found]


def parts_with(**fields: Any) -> TestBroker:
    return TestBroker(consumers=ConsumerSettings(new_group_start="begin", **fields))


async def change(parts: TestBroker, handle: str, invisible_ms: int, **fields: Any) -> Any:
    request = service.ChangeInvisibleDurationRequest(
        group=v2.Resource(name=fields.pop("group", "g")),
        topic=v2.Resource(name=fields.pop("topic", "orders")),
        receipt_handle=handle,
        **fields,
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    return await parts.acknowledger.change_invisible(request, RpcContext())


async def forward(parts: TestBroker, handle: str, topic: str = "orders", group: str = "g") -> Any:
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name=topic), receipt_handle=handle
    )
    return await parts.acknowledger.dead_letter(request, RpcContext())


# --- AckMessage -----------------------------------------------------------------------------------------
@fake_time
async def test_acknowledged_messages_do_not_come_back() -> None:
    parts = parts_with()
    handles = await received_by(parts, 3)
    response = await parts.acknowledge(*handles)
    assert response.status.code == v2.OK
    assert [(one.message_id, one.receipt_handle, one.status.code) for one in response.entries] == [
        (f"M{number}", handle, v2.OK) for number, handle in enumerate(handles)
    ]
    assert (await parts.acknowledge(*handles)).status.code == v2.OK, "once more is fine"
    parts.now_ms += 31_000
    assert await parts.messages() == []


@fake_time
async def test_each_entry_has_its_own_status() -> None:
    parts = parts_with()
    first, second = await received_by(parts, 2)
    response = await parts.acknowledge(first, "not a handle", second, "")
    assert response.status.code == v2.MULTIPLE_RESULTS
    assert [one.status.code for one in response.entries] == [
        v2.OK,
        v2.INVALID_RECEIPT_HANDLE,
        v2.OK,
        v2.INVALID_RECEIPT_HANDLE,
    ]


@fake_time
async def test_an_expired_handle_is_invalid() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    parts.now_ms += 30_000
    response = await parts.acknowledge(handle)
    assert response.status.code == v2.INVALID_RECEIPT_HANDLE


@fake_time
async def test_a_handle_of_another_group_or_topic_is_invalid() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    await parts.messages(group="h")
    for topic, group in (("orders", "h"), ("mixed", "g"), ("nowhere", "g"), ("orders", "nobody")):
        response = await parts.acknowledge(handle, topic=topic, group=group)
        assert response.status.code == v2.INVALID_RECEIPT_HANDLE, (topic, group)
    assert (await parts.acknowledge(handle)).status.code == v2.OK


class OtherNames:
    """The names of the cluster's other brokers."""

    def remembered(self) -> list[str]:
        return ["broker-x", "broker-b"]


@fake_time
async def test_a_handle_of_another_broker_settled_a_message_of_its_numbers() -> None:
    """Both brokers give the queue, the lease and its end the same numbers."""
    parts, other = (
        TestBroker(replace(ROOMY, broker=name), consumers=ConsumerSettings(new_group_start="begin"))
        for name in ("broker-a", "broker-b")
    )
    others: Any = OtherNames()
    parts.acknowledger = Acknowledger(parts, others)
    (handle,), (foreign,) = await received_by(parts), await received_by(other)
    assert handle.rsplit(".", 1)[0] == foreign.rsplit(".", 1)[0]
    reason = "is of broker broker-b, and this is broker-a"
    response = await parts.acknowledge(foreign, "no handle")
    assert [one.status.code for one in response.entries] == [v2.INVALID_RECEIPT_HANDLE] * 2
    assert [reason in one.status.message for one in response.entries] == [True, False]
    for call in (change(parts, foreign, 0), change(parts, foreign, 60_000), forward(parts, foreign)):
        with pytest.raises(TroveError, match=reason) as caught:
            await call
        assert code_of(caught.value) == v2.INVALID_RECEIPT_HANDLE
    for broker, own in ((parts, handle), (other, foreign)):
        assert (await broker.acknowledge(own)).status.code == v2.OK


@fake_time
async def test_a_void_handle_was_compared_with_those_of_all_brokers() -> None:
    class Many:
        tried = 0

        def remembered(self) -> Iterator[str]:
            for number in range(1_000):
                self.tried += 1
                yield f"broker-{number}"

    many: Any = Many()
    parts = TestBroker(ROOMY, consumers=ConsumerSettings(new_group_start="begin"))
    parts.acknowledger = Acknowledger(parts, many)
    (handle,) = await received_by(parts)
    await change(parts, handle, 60_000)
    assert (await parts.acknowledge(handle)).status.code == v2.INVALID_RECEIPT_HANDLE
    assert many.tried == 0
    assert (await parts.acknowledge("no handle")).status.code == v2.INVALID_RECEIPT_HANDLE
    assert many.tried == 1_000


@fake_time
@pytest.mark.parametrize(
    ("topic", "group", "count", "code"),
    [
        ("orders", "g", 0, v2.BAD_REQUEST),
        ("orders", "g", 4_097, v2.BAD_REQUEST),
        ("a b", "g", 1, v2.ILLEGAL_TOPIC),
        ("orders", "", 1, v2.ILLEGAL_CONSUMER_GROUP),
    ],
)
async def test_an_acknowledgement_that_is_refused(topic: str, group: str, count: int, code: v2.Code) -> None:
    with pytest.raises(TroveError) as caught:
        await parts_with().acknowledge(*["x"] * count, topic=topic, group=group)
    assert code_of(caught.value) == code


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_hostile_handles_are_invalid_and_harm_nobody(text: str, place: int, change_by: int) -> None:
    async def scene() -> None:
        parts = parts_with()
        (handle,) = await received_by(parts)
        place_in = place % len(handle)
        bent = handle[:place_in] + chr(change_by) + handle[place_in + 1 :]
        for hostile in {text, bent, handle[:place_in], handle + "x"} - {handle}:
            response = await parts.acknowledge(hostile)
            assert response.status.code == v2.INVALID_RECEIPT_HANDLE
            for call in (change(parts, hostile, 0), forward(parts, hostile)):
                with pytest.raises(TroveError) as caught:
                    await call
                assert code_of(caught.value) == v2.INVALID_RECEIPT_HANDLE
        assert (await parts.acknowledge(handle)).status.code == v2.OK

    run(scene())


@fake_time
async def test_one_acknowledgement_by_callback_is_answered_as_in_a_task() -> None:
    parts = parts_with()
    handle, another = await received_by(parts, 2)
    for one, message_id in ((handle, "M0"), (another, ""), ("not a handle", "M1"), ("", "")):
        request = service.AckMessageRequest(
            group=v2.Resource(name="g"),
            topic=v2.Resource(name="orders"),
            entries=[service.AckMessageEntry(message_id=message_id, receipt_handle=one)],
        )
        answer = await parts.acknowledged(request)
        command = acknowledge_of(request)
        again = acknowledge_reply(command, await parts.acknowledger.settle_in_steps(command))
        assert answer == again
    assert await parts.messages() == []


@fake_time
async def test_an_acknowledgement_lets_the_next_of_its_message_group_come() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup("g", orderly=True))
    handles = await received_by(parts, 2, "steps", batch_size=1)
    waiting = asyncio.ensure_future(parts.messages("steps"))
    await turns()
    assert not waiting.done(), "the message group is locked"
    await parts.acknowledge(*handles, topic="steps")
    assert [one.body for one in await waiting] == [b"1"]


@fake_time
async def test_an_acknowledgement_makes_space_in_a_full_queue() -> None:
    parts = parts_with(in_flight_max=2)
    handles = await received_by(parts, 3)
    assert len(handles) == 2
    waiting = asyncio.ensure_future(parts.messages())
    await turns()
    assert not waiting.done()
    await parts.acknowledge(handles[0])
    assert [one.body for one in await waiting] == [b"2"]


# --- ChangeInvisibleDuration ----------------------------------------------------------------------------
@fake_time
async def test_a_new_handle_takes_the_old_one_s_place() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    response = await change(parts, handle, 60_000)
    assert response.status.code == v2.OK
    assert response.receipt_handle not in ("", handle)
    assert (await parts.acknowledge(handle)).status.code == v2.INVALID_RECEIPT_HANDLE
    parts.now_ms += 59_999
    assert (await parts.acknowledge(response.receipt_handle)).status.code == v2.OK


@fake_time
async def test_a_nack_with_no_delay_wakes_a_poll() -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    (handle,) = await received_by(parts)
    waiting = asyncio.ensure_future(parts.messages())
    await turns()
    await change(parts, handle, 0)
    (again,) = await waiting
    assert again.system_properties.delivery_attempt == 2
    assert loop.time() < 0.1


@fake_time
async def test_a_suspended_message_keeps_its_attempt() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    await change(parts, handle, 0, suspend=True)
    (again,) = await parts.messages()
    assert again.system_properties.delivery_attempt == 1


@fake_time
@pytest.mark.parametrize("invisible_ms", [-1, 43_200_001])
async def test_an_invisible_time_out_of_range(invisible_ms: int) -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    with pytest.raises(TroveError) as caught:
        await change(parts, handle, invisible_ms)
    assert code_of(caught.value) == v2.ILLEGAL_INVISIBLE_TIME
    assert (await change(parts, handle, 43_200_000)).status.code == v2.OK


@fake_time
async def test_an_expired_handle_cannot_be_changed() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    parts.now_ms += 30_000
    with pytest.raises(TroveError) as caught:
        await change(parts, handle, 1_000)
    assert code_of(caught.value) == v2.INVALID_RECEIPT_HANDLE


@fake_time
async def test_too_many_requests_leave_the_client_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    monkeypatch.setattr("trovemq_store.events.event_log.PENDING_MAX", 0)
    response = await change(parts, handle, 1_000)
    assert response.status.code == v2.TOO_MANY_REQUESTS
    assert response.receipt_handle == handle


@fake_time
async def test_the_last_attempt_returned_was_no_dead_letter_until_a_receive() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup("g", retry_max=1))
    (first,) = await received_by(parts)
    assert (await change(parts, first, 0)).status.code == v2.OK
    (again,) = await parts.messages()
    last = again.system_properties.receipt_handle
    suspended = await change(parts, last, 0, suspend=True)
    await turns()
    assert read_queue(parts.store, "%DLQ%g", QueueId(0)) == [], "it is delivered again with the same attempt"
    (again,) = await parts.messages()
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.receipt_handle != suspended.receipt_handle
    assert (await change(parts, again.system_properties.receipt_handle, 0)).status.code == v2.OK
    await turns()
    assert [dead.body for dead in read_queue(parts.store, "%DLQ%g", QueueId(0))] == [b"0"]
    assert await parts.messages() == []


@fake_time
async def test_a_last_attempt_whose_copy_is_refused_stays_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup("g", retry_max=0))
    (handle,) = await received_by(parts)

    def refused(*_: Any, **__: Any) -> None:
        raise TroveError(errors.DISK_FULL)

    with monkeypatch.context() as full:
        full.setattr("trovemq_broker.groups.delivery.settlements.copy_open_message", refused)
        assert (await change(parts, handle, 0)).status.code == v2.OK
    assert await parts.messages() == []
    await turns()
    assert [dead.body for dead in read_queue(parts.store, "%DLQ%g", QueueId(0))] == [b"0"], "by the receive"


# --- ForwardMessageToDeadLetterQueue --------------------------------------------------------------------
@fake_time
async def test_a_forwarded_message_is_a_dead_letter_and_consumed() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    assert (await forward(parts, handle)).status.code == v2.OK
    assert (await forward(parts, handle)).status.code == v2.OK, "a repeated call is fine"
    await turns()
    (dead,) = read_queue(parts.store, "%DLQ%g", QueueId(0))
    assert dead.body == b"0"
    parts.now_ms += 31_000
    assert await parts.messages() == []


@fake_time
async def test_a_dead_letter_that_was_answered_was_not_listed_yet() -> None:
    """In sync mode readers see synced messages: the reply waits for that."""
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))

    def synced() -> None:
        flush(parts.store)
        parts.group_commit._resolve_up_to(parts.store.flushed_offset)

    sending = asyncio.ensure_future(parts.send(message(b"0")))
    await turns(10)
    synced()
    await sending
    (one,) = await parts.messages()
    forwarding = asyncio.ensure_future(forward(parts, one.system_properties.receipt_handle))
    await turns(10)
    assert not forwarding.done()
    synced()
    assert (await forwarding).status.code == v2.OK
    assert [dead.body for dead in read_queue(parts.store, "%DLQ%g", QueueId(0))] == [b"0"]


@fake_time
async def test_a_forwarded_message_lets_its_message_group_continue() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup("g", orderly=True))
    (handle,) = await received_by(parts, 2, "steps", batch_size=1)
    waiting = asyncio.ensure_future(parts.messages("steps"))
    await turns()
    await forward(parts, handle, "steps")
    assert [one.body for one in await waiting] == [b"1"]


@fake_time
@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("a b", "g", v2.ILLEGAL_TOPIC),
        ("orders", "a b", v2.ILLEGAL_CONSUMER_GROUP),
        ("orders", "g", v2.INVALID_RECEIPT_HANDLE),
    ],
)
async def test_changes_and_forwards_that_are_refused(topic: str, group: str, code: v2.Code) -> None:
    parts = parts_with()
    calls: list[Callable[[], Any]] = [
        lambda: change(parts, "x", 1_000, topic=topic, group=group),
        lambda: forward(parts, "x", topic, group),
    ]
    for call in calls:
        with pytest.raises(TroveError) as caught:
            await call()
        assert code_of(caught.value) == code


@fake_time
async def test_a_duration_of_any_size_is_answered() -> None:
    parts = parts_with()
    (handle,) = await received_by(parts)
    request = service.ChangeInvisibleDurationRequest(
        group=v2.Resource(name="g"),
        topic=v2.Resource(name="orders"),
        receipt_handle=handle,
        invisible_duration=Duration(seconds=(1 << 63) - 1, nanos=-(1 << 31)),
    )
    with pytest.raises(TroveError) as caught:
        await parts.acknowledger.change_invisible(request, RpcContext())
    assert code_of(caught.value) == v2.ILLEGAL_INVISIBLE_TIME
    assert parts.now_ms == NOW_MS
