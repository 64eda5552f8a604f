"""RocketMQ's v2 Admin service: the same facts as everywhere, in its shapes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.engine import NOW_MS
from tests.support.memory_broker import message
from tests.support.rocketmq_service import ServiceBench, consumer_settings
from tests.support.rpc_context import RpcContext
from trovemq_broker.groups.lag.filtered import Position, QueueLag
from trovemq_broker.server.core.clients import Subscription
from trovemq_broker.server.wire.group_progress import Accumulation, accumulation_reply
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import admin_pb2 as pb
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand, ThreadStackTrace, VerifyMessageResult

GROUP = v2.Resource(name="workers")
TOPIC = v2.Resource(name="orders")
ANONYMOUS = RpcContext("")


@pytest.mark.asyncio
async def test_the_log_level() -> None:
    bench = ServiceBench()
    request = pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.WARN)
    assert "warning" in (await bench.ask("ChangeLogLevel", request, ANONYMOUS)).remark
    unknown = b"\x08\x63"  # level 99
    assert "unknown" in (await bench.ask("ChangeLogLevel", unknown, ANONYMOUS)).remark
    assert bench.levels == ["warning"]


@pytest.mark.asyncio
async def test_runtime_stats() -> None:
    bench = ServiceBench()
    producer = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing())
    async with bench.connected("p", producer), bench.connected("c", consumer_settings()):
        await bench.parts.send(message())
        reply = await bench.ask("GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest(), ANONYMOUS)
        assert (reply.connections, reply.producers, reply.consumers) == (2, 1, 1)
        assert reply.proxy_name == "broker-a"
        assert reply.in_tps > 0
        again = await bench.ask("GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest(), ANONYMOUS)
        assert again.in_tps == 0, "nothing was sent since"


@pytest.mark.asyncio
async def test_a_topic() -> None:
    bench = ServiceBench()
    request = pb.DescribeTopicStatusRequest(topic=v2.Resource(name="steps"))
    reply = await bench.ask("DescribeTopicStatus", request)
    assert reply.topic_message_type == v2.FIFO
    assert dict(reply.tags) == {
        "message_type": "FIFO",
        "queue_count": "4",
        "write_queue_count": "4",
        "perm": "6",
    }
    reply = await bench.ask("GetTopicRoute", pb.GetTopicRouteRequest(topic=TOPIC))
    route = json.loads(reply.topic_route_data)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:8081"}
    assert route["queueDatas"][0]["readQueueNums"] == 4
    missing = v2.Resource(name="missing")
    for name, missed in (
        ("DescribeTopicStatus", pb.DescribeTopicStatusRequest(topic=missing)),
        ("GetTopicRoute", pb.GetTopicRouteRequest(topic=missing)),
    ):
        assert (await bench.ask(name, missed)).status.code == v2.TOPIC_NOT_FOUND


@pytest.mark.asyncio
async def test_subscriptions_and_connections() -> None:
    bench = ServiceBench()
    async with (
        bench.connected("a", consumer_settings(expression="x")),
        bench.connected("b", consumer_settings(expression="y")),
        bench.connected("c", consumer_settings("others", "mixed")),
    ):
        bench.registry.subscribed("workers", "steps", Subscription("sql", "a > 1", NOW_MS))
        listed = await bench.ask("ListSubscription", pb.ListSubscriptionRequest(group=GROUP))
        orders, steps = listed.subscription_info
        assert (orders.topic.name, orders.online, orders.subscription_consistency) == ("orders", True, False)
        assert (orders.expression.expression, orders.message_model) == ("y", pb.CLUSTERING)
        assert orders.last_update_timestamp.ToMilliseconds() == NOW_MS
        assert (steps.expression.type, steps.online) == (v2.SQL, False)
        everything = await bench.ask("ListSubscription", pb.ListSubscriptionRequest())
        assert len(everything.subscription_info) == 3
        described = await bench.ask("DescribeSubscription", pb.DescribeSubscriptionRequest(topic=TOPIC))
        assert [
            (entry.client_info.client_id, entry.subscription_info.expression.expression)
            for entry in described.client_subscription_info
        ] == [("a", "x"), ("b", "y")]
        found = await bench.ask(
            "ListConsumerConnection", pb.ListConsumerConnectionRequest(group=GROUP, topic=TOPIC)
        )
        assert [client.client_id for client in found.client_info] == ["a", "b"]
        first = found.client_info[0]
        assert (first.language, first.version, first.hostname) == ("PYTHON", "5.1.2", "here")
        found = await bench.ask(
            "ListConsumerConnection",
            pb.ListConsumerConnectionRequest(group=GROUP, topic=v2.Resource(name="mixed")),
        )
        assert not found.client_info


@pytest.mark.asyncio
async def test_a_groups_accumulation() -> None:
    bench = ServiceBench()
    async with bench.connected("c", consumer_settings()):
        for number in range(5):
            await bench.parts.send(message(b"%d" % number, message_id=f"M{number}"))
        bench.parts.now_ms += 7_000
        taken = await bench.parts.messages(group="workers", batch_size=2)
        assert taken
        request = pb.DescribeGroupAccumulationRequest(group=GROUP, topics=[TOPIC])
        reply = await bench.ask("DescribeGroupAccumulation", request)
        total = reply.accumulation
        assert total == reply.topic_accumulation["orders"]
        assert total.inflight_messages == len(taken)
        assert total.ready_messages == 5 - len(taken)
        assert total.accumulation == 5
        assert total.deliver_delay_time.ToMilliseconds() == 7_000
        found = await bench.ask("DescribeGroupAccumulation", pb.DescribeGroupAccumulationRequest(group=GROUP))
        assert found.accumulation == total, "without topics: all that the group has to do with"
        assert list(found.topic_accumulation) == ["orders"]


def test_an_accumulation_of_many_queues_was_summed_in_one_step() -> None:
    """The handler sums each topic's queues in the step that reads them; the reply has the sums only."""
    lag = QueueLag("orders", QueueId(0), 0, 9, Position(None, QueueOffset(0), 2), 5, 7_000, False)
    one = Accumulation.of([lag] * 64)
    assert one == Accumulation(in_flight=128, ready=192, total=320, oldest_ms=7_000)
    reply = accumulation_reply(None, [("orders", one), ("steps", Accumulation.of([]))])
    assert reply.accumulation == reply.topic_accumulation["orders"]
    assert reply.accumulation.accumulation == 320
    assert reply.accumulation.deliver_delay_time.ToMilliseconds() == 7_000
    assert reply.topic_accumulation["steps"].accumulation == 0


@pytest.mark.asyncio
async def test_times_of_the_queues_and_a_reset() -> None:
    bench = ServiceBench()
    start_ms = bench.parts.now_ms
    for number in range(3):
        bench.parts.now_ms = start_ms + number * 1_000
        await bench.parts.send(message(b"x", "steps", message_id=f"M{number}", message_group="g"))
    steps = v2.Resource(name="steps")
    spans = pb.QueryTimeSpanRequest(group=GROUP, topics=[steps])
    (span,) = [
        span for span in (await bench.ask("QueryTimeSpan", spans)).queue_time_span_list if span.min_timestamp
    ]
    assert (span.min_timestamp, span.max_timestamp) == (start_ms, start_ms + 2_000)
    assert (span.consume_timestamp, span.delay_time_ms) == (start_ms, 2_000)
    request = pb.ResetGroupOffsetRequest(group=GROUP, topic=steps)
    assert (await bench.ask("ResetGroupOffset", request)).status.code == v2.BAD_REQUEST
    request.reset_timestamp.FromMilliseconds(start_ms + 1_000)
    assert (await bench.ask("ResetGroupOffset", request)).status.code == v2.OK
    queue_id = span.message_queue.id
    assert bench.parts.store.offsets.get("workers", "steps", queue_id) == 1
    (span,) = [
        span for span in (await bench.ask("QueryTimeSpan", spans)).queue_time_span_list if span.min_timestamp
    ]
    assert span.consume_timestamp == start_ms + 1_000
    taken = await bench.parts.messages("steps", group="workers")
    assert [one.system_properties.message_id for one in taken] == ["M1", "M2"]


@pytest.mark.asyncio
async def test_messages_by_id_and_key() -> None:
    bench = ServiceBench()
    for number in range(3):
        await bench.parts.send(message(b"%d" % number, message_id=f"M{number}", keys=("k",)))
    by_id = await bench.ask("QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_id="M1"))
    assert [found.body for found in by_id.messages] == [b"1"]
    by_key = await bench.ask("QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_key="k"))
    assert sorted(found.system_properties.message_id for found in by_key.messages) == ["M0", "M1", "M2"]
    assert by_key.scroll_id == ""
    first = await bench.ask(
        "QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_key="k", max_message_nums=2)
    )
    rest = await bench.ask(
        "QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_key="k", scroll_id=first.scroll_id)
    )
    assert (len(first.messages), len(rest.messages)) == (2, 1)
    missing = await bench.ask("QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_id="M9"))
    assert missing.status.code == v2.MESSAGE_NOT_FOUND
    other = await bench.ask("QueryMessage", pb.ListMessageRequest(topic=TOPIC, subscription="workers"))
    assert other.status.code == v2.NOT_IMPLEMENTED
    negative = pb.ListMessageRequest(topic=TOPIC, message_key="k", max_message_nums=-1)
    assert (await bench.ask("QueryMessage", negative)).status.code == v2.BAD_REQUEST


@pytest.mark.asyncio
async def test_a_message_sent_by_an_operator() -> None:
    bench = ServiceBench()
    request = pb.AdminSendMessageRequest(
        topic=TOPIC, tag="t", key="k", body=b"hello", user_properties={"colour": "red"}
    )
    reply = await bench.ask("AdminSendMessage", request, ANONYMOUS)
    assert reply.status.code == v2.OK
    assert reply.message_id == "ID" + "0" * 32
    found = await bench.ask("QueryMessage", pb.ListMessageRequest(topic=TOPIC, message_id=reply.message_id))
    (stored,) = found.messages
    assert (stored.body, stored.system_properties.tag, list(stored.system_properties.keys)) == (
        b"hello",
        "t",
        ["k"],
    )
    assert dict(stored.user_properties) == {"colour": "red"}
    empty = await bench.ask("AdminSendMessage", pb.AdminSendMessageRequest(topic=TOPIC))
    assert empty.status.code == v2.MESSAGE_BODY_EMPTY


async def _command(context: RpcContext) -> TelemetryCommand:
    async with asyncio.timeout(240):
        while len(context.written) < 2:
            await asyncio.sleep(0)
    command: TelemetryCommand = context.written[1]
    return command


@pytest.mark.asyncio
async def test_a_consumer_is_made_to_consume_a_message() -> None:
    bench = ServiceBench()
    await bench.parts.send(message(b"hello", message_id="M1"))
    async with bench.connected("c", consumer_settings()) as context:
        request = pb.VerifyMessageRequest(client_id="c", group=GROUP, topic=TOPIC, message_id="M1")
        asked = asyncio.create_task(bench.ask("VerifyMessage", request))
        verify = (await _command(context)).verify_message_command
        assert (verify.message.body, verify.message.topic.name) == (b"hello", "orders")
        assert verify.message.system_properties.delivery_attempt == 1
        context.requests.put_nowait(
            TelemetryCommand(
                status=v2.Status(code=v2.FAILED_TO_CONSUME_MESSAGE, message="no"),
                verify_message_result=VerifyMessageResult(nonce=verify.nonce),
            )
        )
        reply = await asked
        assert reply.status == v2.Status(code=v2.FAILED_TO_CONSUME_MESSAGE, message="no")
        request.message_id = "M9"
        assert (await bench.ask("VerifyMessage", request)).status.code == v2.MESSAGE_NOT_FOUND
        request.client_id = "unknown"
        assert (await bench.ask("VerifyMessage", request)).status.code == v2.NOT_FOUND


@pytest.mark.asyncio
async def test_a_consumers_stacks_and_running_info() -> None:
    bench = ServiceBench()
    await bench.parts.send(message(b"hello", message_id="M1"))
    async with bench.connected("c", consumer_settings()) as context:
        request = pb.PrintThreadStackTraceRequest(client_id="c", group=GROUP)
        asked = asyncio.create_task(bench.ask("PrintThreadStackTrace", request))
        nonce = (await _command(context)).print_thread_stack_trace_command.nonce
        trace = ThreadStackTrace(nonce=nonce, thread_stack_trace="main: busy")
        context.requests.put_nowait(TelemetryCommand(status=v2.Status(code=v2.OK), thread_stack_trace=trace))
        reply = await asked
        assert (reply.status.code, reply.thread_stack_trace) == (v2.OK, "main: busy")
        received = service_pb2.ReceiveMessageRequest(
            group=GROUP, message_queue=v2.MessageQueue(topic=TOPIC), batch_size=1, auto_renew=True
        )
        replies = await bench.call("ReceiveMessage", received, RpcContext("c", deadline_s=30.0))
        assert any(one.HasField("message") for one in replies)
        info: Any = await bench.ask(
            "GetConsumerRunningInfo", pb.GetConsumerRunningInfoRequest(client_id="c", group=GROUP)
        )
        running = info.consumer_running_info
        assert running.properties["client_type"] == "PUSH_CONSUMER"
        assert running.properties["messages_held"] == "1"
        assert running.subscriptions["orders"].expression == "*"
        assert {item.message_queue.topic.name for item in running.message_queue_table} == {"orders"}
    unknown = pb.GetConsumerRunningInfoRequest(client_id="x", group=GROUP)
    assert (await bench.ask("GetConsumerRunningInfo", unknown)).status.code == v2.NOT_FOUND
