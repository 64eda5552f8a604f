"""ReceiveMessage: the order of its stream, each status, how long it waits and which event wakes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.call_forms import called
from tests.support.engine import NOW_MS
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import TestBroker, message, receive_request
from tests.support.rpc_context import RpcContext
from tests.support.settling import dead_letter
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.clients import ClientDescription
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_broker.server.wire.statuses import code_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


FROM_BEGIN = ConsumerSettings(new_group_start="begin")


def parts_with(**fields: Any) -> TestBroker:
    return TestBroker(consumers=FROM_BEGIN, **fields)


async def refusal(parts: TestBroker, *, context: RpcContext | None = None, **fields: Any) -> v2.Code:
    with pytest.raises(TroveError) as caught:
        await parts.receive(context=context, **fields)
    assert len(parts.waits) == 0
    return code_of(caught.value)


def bodies(messages: list[v2.Message]) -> list[bytes]:
    return [one.body for one in messages]


# --- the stream -----------------------------------------------------------------------------------------
async def test_status_then_messages_then_the_time() -> None:
    parts = parts_with()
    for number in range(3):
        await parts.send(message(str(number).encode(), message_id=f"M{number}", tag="t"))
    await turns()
    replies = await parts.receive()
    kinds = [reply.WhichOneof("content") for reply in replies]
    assert kinds == ["status", "message", "message", "message", "delivery_timestamp"]
    assert replies[0].status.code == v2.OK
    assert replies[-1].delivery_timestamp.ToMilliseconds() == NOW_MS
    system = replies[1].message.system_properties
    assert system.receipt_handle
    assert system.delivery_attempt == 1
    assert parts.traffic.messages_out["orders"] == 3
    known = parts.registry.subscription("g", "orders")
    assert known is not None
    assert (known.kind, known.expression) == ("tag", "*")


async def test_nothing_within_the_polling_time_is_not_an_error() -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    reply, end = await parts.receive(polling_ms=7_000)
    assert reply.status.code == v2.MESSAGE_NOT_FOUND
    assert end.delivery_timestamp.ToMilliseconds() == NOW_MS, "an empty receive had no delivery time"
    assert loop.time() == pytest.approx(7.0)
    assert len(parts.waits) == 0


@pytest.mark.parametrize(
    ("polling_ms", "deadline_s", "waited_s"),
    [
        (None, None, 20.0),
        (None, 10.0, 8.5),  # the deadline less half of the default request timeout
        (1_000, None, 5.0),
        (40_000, None, 20.0),
        (-5_000, None, 5.0),
        (20_000, 23.0, 20.0),
        (20_000, 12.0, 11.9),
        (20_000, 20.05, 19.95),
        (5_000, 5.0, 4.9),
    ],
)
async def test_the_polling_time(polling_ms: int | None, deadline_s: float | None, waited_s: float) -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    await parts.receive(polling_ms=polling_ms, context=RpcContext(deadline_s=deadline_s))
    assert loop.time() == pytest.approx(waited_s)


async def test_long_polls_end_together_unless_their_deadline_is_near() -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    await asyncio.sleep(0.03)
    ends: list[float] = []

    async def poll(polling_ms: int, deadline_s: float | None) -> None:
        await parts.receive(polling_ms=polling_ms, context=RpcContext(deadline_s=deadline_s))
        ends.append(loop.time())

    polls = [(7_000, None), (7_050, 30.0), (7_200, 7.31), (5_100, None)]
    await asyncio.gather(*(poll(*one) for one in polls))
    assert ends == pytest.approx([5.5, 7.23, 7.5, 7.5])


async def test_the_shortest_polling_time_is_a_setting() -> None:
    loop = asyncio.get_running_loop()
    parts = TestBroker(consumers=replace(FROM_BEGIN, receive_poll_min_ms=250))
    await parts.receive(polling_ms=0)
    assert loop.time() == pytest.approx(0.25)


# --- refusals -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a b"}, v2.ILLEGAL_TOPIC),
        ({"topic": ""}, v2.ILLEGAL_TOPIC),
        ({"topic": "rmq_sys_wheel_timer"}, v2.ILLEGAL_TOPIC),
        ({"topic": "nowhere"}, v2.TOPIC_NOT_FOUND),
        ({"topic": "%DLQ%g"}, v2.TOPIC_NOT_FOUND),
        ({"group": ""}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"group": "a b"}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"group": "CID_RMQ_SYS_TRANS"}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"expression": "a" * 8_193}, v2.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "a > ", "kind": v2.SQL}, v2.ILLEGAL_FILTER_EXPRESSION),
        ({"kind": 7}, v2.ILLEGAL_FILTER_EXPRESSION),
        ({"invisible_ms": 9_999}, v2.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": 43_200_001}, v2.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": -1}, v2.ILLEGAL_INVISIBLE_TIME),
    ],
)
async def test_a_receive_that_is_refused(fields: dict[str, Any], code: v2.Code) -> None:
    assert await refusal(parts_with(), **fields) == code


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("5.2.0", v2.ILLEGAL_POLLING_TIME),
        ("5.0.3-SNAPSHOT", v2.ILLEGAL_POLLING_TIME),
        ("5.0.2", v2.BAD_REQUEST),
        ("", v2.ILLEGAL_POLLING_TIME),
        ("x.y", v2.ILLEGAL_POLLING_TIME),
    ],
)
async def test_a_deadline_that_is_too_short_to_wait(version: str, code: v2.Code) -> None:
    context = RpcContext(deadline_s=4.9, x_mq_client_version=version)
    assert await refusal(parts_with(), context=context, polling_ms=5_000) == code


async def test_a_group_that_is_not_made_by_itself() -> None:
    parts = TestBroker(consumers=ConsumerSettings(auto_create_group=False))
    assert await refusal(parts) == v2.CONSUMER_GROUP_NOT_FOUND
    parts.groups.create(SubscriptionGroup("g"))
    assert (await parts.receive())[0].status.code == v2.MESSAGE_NOT_FOUND


async def test_what_may_not_be_read_is_forbidden() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup("stopped", consume_enable=False))
    assert await refusal(parts, group="stopped") == v2.FORBIDDEN
    parts.store.topics.alter("orders", perm=2)
    assert await refusal(parts) == v2.FORBIDDEN


async def test_too_many_polls_are_refused() -> None:
    parts = parts_with(receive_polls_max=1)
    first = asyncio.ensure_future(parts.receive(group="other"))
    await turns()
    with pytest.raises(TroveError) as caught:
        await parts.receive()
    assert code_of(caught.value) == v2.TOO_MANY_REQUESTS
    await parts.send(message())
    assert (await first)[0].status.code == v2.OK


# --- received messages ----------------------------------------------------------------------------------
async def test_a_batch_has_at_most_32_and_at_least_one() -> None:
    parts = parts_with()
    await parts.send(*[message(bytes([65 + n]), message_id=f"M{n}") for n in range(40)])
    await turns()
    assert len(await parts.messages(batch_size=0)) == 1
    assert len(await parts.messages(batch_size=1_000)) == 32
    assert len(await parts.messages(batch_size=5)) == 5


async def test_filters_by_tag_and_by_sql() -> None:
    parts = parts_with()
    for number, tag in enumerate(("a", "b", "c", "")):
        sent = message(tag.encode() or b"-", message_id=f"M{number}", properties={"n": str(number)})
        sent.system_properties.tag = tag
        await parts.send(sent)
    await turns()
    assert sorted(bodies(await parts.messages(group="g1", expression="a || c"))) == [b"a", b"c"]
    assert len(await parts.messages(group="g2", expression="", kind=0)) == 4
    assert bodies(await parts.messages(group="g3", expression="n = 1", kind=v2.SQL)) == [b"b"]
    (reply, _) = await parts.receive(group="g4", expression="zzz")
    assert reply.status.code == v2.MESSAGE_NOT_FOUND, "all filtered out"


async def test_auto_renew_needs_no_duration() -> None:
    parts = parts_with()
    await parts.send(message())
    await turns()
    (one,) = await parts.messages(invisible_ms=-1, auto_renew=True, context=RpcContext("push-1"))
    assert one.system_properties.receipt_handle
    assert parts.delivery.held_by("push-1") == 1


async def test_dead_letters_can_be_read() -> None:
    parts = parts_with()
    await parts.send(message(b"bad", message_id="M1"))
    await turns()
    (one,) = await parts.messages()
    dead_letter(parts.delivery, "g", "orders", one.system_properties.receipt_handle, NOW_MS)
    await turns()
    (dead,) = await parts.messages("%DLQ%g", group="reader")
    assert (dead.body, dead.topic.name) == (b"bad", "%DLQ%g")
    assert dead.system_properties.dead_letter_queue == v2.DeadLetterQueue(topic="orders", message_id="M1")


async def test_a_namespaced_topic_is_answered_by_the_client_s_name() -> None:
    parts = parts_with()
    parts.store.topics.create("ns%orders", 4)
    sent = message()
    sent.topic.resource_namespace = "ns"
    await parts.send(sent)
    await turns()
    request = receive_request()
    request.message_queue.topic.resource_namespace = "ns"
    stream = called(parts.receives.on_calls, streams=True)(request, RpcContext())
    replies = [service.ReceiveMessageResponse.FromString(element) async for element in stream]
    assert replies[1].message.topic == v2.Resource(resource_namespace="ns", name="orders")


# --- waiting --------------------------------------------------------------------------------------------
async def test_a_poll_is_woken_by_the_first_message() -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    task = asyncio.ensure_future(parts.messages())
    other = asyncio.ensure_future(parts.messages("mixed"))
    await asyncio.sleep(1.5)
    await parts.send(message(b"news"))
    assert bodies(await task) == [b"news"]
    assert loop.time() == pytest.approx(1.5)
    assert await other == []


async def test_one_new_message_goes_to_one_poll_and_the_others_wait_on() -> None:
    parts = parts_with()
    looks = 0
    receive = parts.delivery.receive

    def counted(request: Any) -> Any:
        nonlocal looks
        looks += 1
        return receive(request)

    parts.delivery.receive = counted  # type: ignore[method-assign]
    tasks = [asyncio.ensure_future(parts.messages()) for _ in range(10)]
    await turns()
    looks = 0
    await parts.send(message(b"1"))
    await turns(40)
    assert [task.done() for task in tasks] == [True] + [False] * 9
    assert looks <= 2, "the one that got it, and the next"
    await parts.send(message(b"2", message_id="M2"))
    assert bodies(await tasks[1]) == [b"2"]
    assert [len(found) for found in await asyncio.gather(*tasks)] == [1, 1] + [0] * 8


async def test_more_than_one_poll_takes_goes_to_the_next() -> None:
    parts = parts_with()
    tasks = [asyncio.ensure_future(parts.messages(batch_size=2)) for _ in range(4)]
    await turns()
    await parts.send(*[message(bytes([48 + n]), message_id=f"M{n}") for n in range(6)])
    await turns(20)
    assert [task.done() for task in tasks] == [True, True, True, False]
    taken = [body for task in tasks[:3] for body in bodies(task.result())]
    assert sorted(taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await tasks[3] == []


async def test_each_group_gets_the_message() -> None:
    parts = parts_with()
    tasks = [asyncio.ensure_future(parts.messages(group=f"g{n}")) for n in range(3)]
    await turns()
    await parts.send(message(b"all"))
    assert [bodies(found) for found in await asyncio.gather(*tasks)] == [[b"all"]] * 3


async def test_a_poll_is_woken_by_a_redelivery() -> None:
    parts = parts_with()
    parts.follow_loop()
    loop = asyncio.get_running_loop()
    started = loop.time()
    watch = asyncio.ensure_future(parts.receiver.watch_redeliveries())
    await parts.send(message(b"again"))
    await turns()
    (first,) = await parts.messages(invisible_ms=10_000)
    (second,) = await parts.messages(polling_ms=20_000)
    watch.cancel()
    assert second.body == b"again"
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.receipt_handle != first.system_properties.receipt_handle
    assert 10.0 <= loop.time() - started < 10.1


async def test_a_stop_answers_every_poll() -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(parts.receive()) for _ in range(3)]
    await turns()
    parts.waits.close()
    assert [found[0].status.code for found in await asyncio.gather(*tasks)] == [v2.MESSAGE_NOT_FOUND] * 3
    assert (await parts.receive())[0].status.code == v2.MESSAGE_NOT_FOUND
    assert loop.time() < 0.1


async def test_a_poll_hears_that_its_topic_was_deleted() -> None:
    parts = parts_with()
    task = asyncio.ensure_future(parts.receive())
    await turns()
    parts.store.delete_topic("orders", NOW_MS)
    parts.waits.wake_topic("orders")
    with pytest.raises(TroveError) as caught:
        await task
    assert code_of(caught.value) == v2.TOPIC_NOT_FOUND


# --- clients that go away -------------------------------------------------------------------------------
async def test_a_cancelled_poll_takes_nothing() -> None:
    parts = parts_with()
    gone = asyncio.ensure_future(parts.messages())
    await turns()
    stays = asyncio.ensure_future(parts.messages())
    await turns()
    send = asyncio.ensure_future(parts.send(message(b"1")))
    parts.waits.wake(("g", "orders"))
    gone.cancel()
    await send
    assert bodies(await stays) == [b"1"]
    assert len(parts.waits) == 0
    assert parts.delivery.in_flight_count == 1


async def test_a_poll_whose_client_is_gone_takes_nothing() -> None:
    parts, context = parts_with(), RpcContext()
    gone = asyncio.ensure_future(parts.receive(context=context))
    await turns()
    stays = asyncio.ensure_future(parts.messages())
    await turns()
    context.is_done = True
    await parts.send(message(b"1"))
    gone.cancel()
    assert bodies(await stays) == [b"1"]
    assert parts.delivery.in_flight_count == 1


def with_moving_clock(parts: TestBroker) -> None:
    """The broker's clock is the loop's from now on, and redeliveries are watched for."""
    parts.follow_loop()


async def broken_off(parts: TestBroker, elements: int) -> list[v2.Message]:
    """The messages that a client was written before it broke its receive off."""
    stream = called(parts.receives.on_calls, streams=True)(receive_request(), RpcContext())
    taken = [service.ReceiveMessageResponse.FromString(await anext(stream)) for _ in range(elements)]
    await stream.aclose()
    return [reply.message for reply in taken if reply.HasField("message")]


async def test_a_stream_that_is_broken_off_at_once_gives_its_messages_back() -> None:
    parts = parts_with()
    await parts.send(message(b"1", message_id="M1"), message(b"2", message_id="M2"))
    await turns()
    stream = called(parts.receives.on_calls, streams=True)(receive_request(), RpcContext())
    await anext(stream)
    waiting = asyncio.ensure_future(parts.messages())
    await turns()
    assert not waiting.done()
    await stream.aclose()
    found = await waiting
    assert bodies(found) == [b"1", b"2"]
    assert [one.system_properties.delivery_attempt for one in found] == [1, 1], "nobody has seen them"


@pytest.mark.parametrize("elements", [2, 3])
async def test_what_a_broken_stream_has_written_comes_again_a_second_later(elements: int) -> None:
    parts, loop = parts_with(), asyncio.get_running_loop()
    with_moving_clock(parts)
    watch = asyncio.ensure_future(parts.receiver.watch_redeliveries())
    await parts.send(message(b"1", message_id="M1"), message(b"2", message_id="M2"))
    await turns()
    written = await broken_off(parts, elements)
    found: list[v2.Message] = []
    while len(found) < 2:
        found += await parts.messages()
    watch.cancel()
    assert sorted(bodies(found)) == [b"1", b"2"]
    assert found[-1].body == written[0].body or len(written) == 2
    assert [one.system_properties.delivery_attempt for one in found] == [1, 1], "no attempt is counted"
    assert 1.0 <= loop.time() < 1.2


async def test_an_acknowledgement_was_lost_when_its_receive_was_cancelled() -> None:
    """All messages of a receive whose stream was not written to its end were returned under new handles,
    also those that the client had and was just acknowledging: they were delivered again, with attempt 1."""
    parts = parts_with()
    with_moving_clock(parts)
    watch = asyncio.ensure_future(parts.receiver.watch_redeliveries())
    await parts.send(message(b"1", message_id="M1"), message(b"2", message_id="M2"))
    await turns()
    written = await broken_off(parts, 3)
    handles = [one.system_properties.receipt_handle for one in written]
    reply = await parts.acknowledge(*handles)
    assert [entry.status.code for entry in reply.entries] == [v2.OK, v2.OK]
    assert await parts.messages() == []
    watch.cancel()
    assert parts.delivery.in_flight_count == 0


async def test_what_was_settled_is_not_returned_with_its_cancelled_receive() -> None:
    parts = parts_with()
    await parts.send(message(b"1", message_id="M1"), message(b"2", message_id="M2"))
    await turns()
    stream = called(parts.receives.on_calls, streams=True)(receive_request(), RpcContext())
    await anext(stream)
    first = service.ReceiveMessageResponse.FromString(await anext(stream)).message
    await parts.acknowledge(first.system_properties.receipt_handle)
    await stream.aclose()
    (again,) = await parts.messages()
    assert (again.body == b"1") is (first.body == b"2")
    assert parts.delivery.in_flight_count == 1


async def test_a_stream_that_was_written_keeps_its_messages() -> None:
    parts = parts_with()
    await parts.send(message(b"1"))
    await turns()
    assert len(await parts.messages()) == 1
    assert parts.delivery.in_flight_count == 1
    assert await parts.messages() == []


async def test_a_receive_that_came_after_its_clients_end_took_messages() -> None:
    """They were invisible to all others until the broker looked whether to renew them, 50 s later."""
    parts = parts_with()
    description = ClientDescription(client_type=ClientType.PUSH_CONSUMER, group="g")
    parts.registry.settle("client-1", description, NOW_MS)
    parts.registry.terminate("client-1", NOW_MS)
    await parts.send(message(b"one"))
    assert await parts.messages(invisible_ms=-1, auto_renew=True) == []
    assert bodies(await parts.messages(context=RpcContext("client-2"))) == [b"one"]
    parts.registry.settle("client-1", description, NOW_MS)
    await parts.send(message(b"two"))
    assert bodies(await parts.messages(invisible_ms=-1, auto_renew=True)) == [b"two"]


async def test_the_last_poll_of_a_client_that_ended_took_messages() -> None:
    """They were invisible to all others until the broker looked whether to renew them."""
    parts = parts_with()
    description = ClientDescription(client_type=ClientType.PUSH_CONSUMER, group="g")
    parts.registry.settle("client-1", description, NOW_MS)
    gone = asyncio.ensure_future(parts.messages(invisible_ms=-1, auto_renew=True))
    other = asyncio.ensure_future(parts.messages(context=RpcContext("client-2")))
    await turns()
    parts.registry.terminate("client-1", NOW_MS)
    await parts.send(message(b"one"))
    assert await gone == []
    assert bodies(await other) == [b"one"]
