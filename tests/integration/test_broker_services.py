"""Queries, topics, consumer offsets, routes, health and metrics of a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.support.broker_process import BrokerProcess, Stubs, refused, running_broker
from tests.support.services_here import NATIVE
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import decode_message, encode_offset_msg_id
from trovemq_proto.v1 import admin_pb2, message_pb2, query_pb2, route_pb2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("store"), arguments=["--name", "alone"]) as process:
        yield process
        assert process.stop() == 0


@pytest_asyncio.fixture
async def stubs(broker: BrokerProcess) -> AsyncIterator[Stubs]:
    """A connection; the topic is recreated for each test."""
    async with Stubs(broker.address) as connected:
        await connected.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=2))
        yield connected
        await connected.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"))


async def send(
    stubs: Stubs, body: bytes, queue_id: QueueId = QueueId(0), key: str = "", tag: str = ""
) -> message_pb2.AppendReply:
    message = message_pb2.OutgoingMessage(body=body, keys=[key] if key else [], tag=tag)
    request = message_pb2.SendRequest(topic="orders", queue_id=queue_id, messages=[message])
    reply = await stubs.messages.Send(request)
    assert isinstance(reply, message_pb2.AppendReply)
    return reply


async def query(stubs: Stubs, key: str, **fields: Any) -> tuple[list[bytes], query_pb2.QueryPage]:
    found, last = list[bytes](), None
    request = query_pb2.QueryByKeyRequest(**{"topic": "orders", "key": key, **fields})
    async for page in stubs.queries.QueryByKey(request):
        data, last = page.records, page
        while data:
            size = int.from_bytes(data[:4])
            found.append(decode_message(data[:size]).body)
            data = data[size:]
    assert last is not None
    assert last.last
    return found, last


# --- queries ------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_message_by_any_identifier(stubs: Stubs) -> None:
    reply = await send(stubs, b"one")
    offset_msg_id = encode_offset_msg_id(reply.store_host, PhysicalOffset(reply.physical_offset))
    found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=offset_msg_id))
    assert found.kind == query_pb2.OFFSET_MSG_ID
    message = decode_message(found.records)
    assert (message.body, message.offset_msg_id) == (b"one", offset_msg_id)
    found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=message.unique_key))
    assert (found.kind, found.records) == (query_pb2.UNIQUE_KEY, message.record)
    location = query_pb2.QueueLocation(topic="orders", queue_id=0, queue_offset=0)
    found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(location=location))
    assert (found.kind, found.records) == (query_pb2.QUEUE_LOCATION, message.record)
    inside = encode_offset_msg_id(reply.store_host, PhysicalOffset(reply.physical_offset + 1))
    for request, symbol in (
        (query_pb2.GetMessageRequest(id=inside), "MESSAGE_NOT_FOUND"),
        (query_pb2.GetMessageRequest(id=""), "MESSAGE_ID_ILLEGAL"),
        (query_pb2.GetMessageRequest(id="no id"), "MESSAGE_ID_ILLEGAL"),
        (query_pb2.GetMessageRequest(), "REQUEST_ILLEGAL"),
        (query_pb2.GetMessageRequest(location={"topic": "orders", "queue_offset": 1}), "OFFSET_OUT_OF_RANGE"),
        (query_pb2.GetMessageRequest(location={"topic": "orders", "queue_id": 7}), "QUEUE_NOT_FOUND"),
        (query_pb2.GetMessageRequest(location={"topic": "none"}), "TOPIC_NOT_FOUND"),
    ):
        assert (await refused(stubs.queries.GetMessage(request))).symbol == symbol


@pytest.mark.asyncio
async def test_key_queries_are_exact_newest_first_and_continue_by_cursor(stubs: Stubs) -> None:
    for number in range(10):
        await send(
            stubs, b"%d" % number, queue_id=QueueId(number % 2), key="Aa" if number % 3 else "BB", tag="t"
        )
    expected = [b"%d" % number for number in range(9, -1, -1) if number % 3]
    found, last = await query(stubs, "Aa")
    assert (found, last.complete, last.cursor) == (expected, True, "")
    first, last = await query(stubs, "Aa", messages_max=4)
    assert (first, last.complete) == (expected[:4], False)
    rest, last = await query(stubs, "Aa", messages_max=4, cursor=last.cursor)
    assert (rest, last.complete) == (expected[4:], True)
    tagged, _ = await query(stubs, "t", type=query_pb2.TAG)
    assert len(tagged) == 10
    assert (await query(stubs, "none"))[0] == []


@pytest.mark.asyncio
async def test_query_refusals(stubs: Stubs) -> None:
    for fields, symbol in (
        ({"topic": "", "key": "k"}, "REQUEST_ILLEGAL"),
        ({"topic": "orders", "key": "k", "begin": 2, "end": 1}, "REQUEST_ILLEGAL"),
        ({"topic": "orders", "key": "k", "messages_max": -1}, "REQUEST_ILLEGAL"),
        ({"topic": "orders", "key": "k", "type": 9}, "REQUEST_ILLEGAL"),
        ({"topic": "orders", "key": "k", "cursor": "forged"}, "CURSOR_ILLEGAL"),
    ):
        call = stubs.queries.QueryByKey(query_pb2.QueryByKeyRequest(**fields))
        assert (await refused(call.read())).symbol == symbol


@pytest.mark.asyncio
async def test_offsets_by_time_and_ranges(stubs: Stubs) -> None:
    times = [(await send(stubs, b"%d" % number)).store_timestamp for number in range(5)]
    for upper, expected in (
        (False, times.index(times[2])),
        (True, max(i for i, t in enumerate(times) if t == times[2])),
    ):
        request = query_pb2.SearchOffsetRequest(topic="orders", timestamp=times[2], upper=upper)
        assert (await stubs.queries.SearchOffset(request)).offset == expected
    reply = await stubs.queries.QueueOffsets(query_pb2.QueueOffsetsRequest(topic="orders"))
    assert [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in reply.queues] == [
        (0, 0, 5),
        (1, 0, 0),
    ]
    unknown = query_pb2.QueueOffsetsRequest(topic="orders", queue_ids=[9])
    assert (await refused(stubs.queries.QueueOffsets(unknown))).symbol == "QUEUE_NOT_FOUND"


@pytest.mark.asyncio
async def test_without_an_index_keys_are_refused_and_the_rest_works(tmp_path: Path) -> None:
    with running_broker(tmp_path, "messageIndexEnable=false") as broker:
        async with Stubs(broker.address) as stubs:
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
            reply = await send(stubs, b"one", key="k")
            call = stubs.queries.QueryByKey(query_pb2.QueryByKeyRequest(topic="orders", key="k"))
            assert (await refused(call.read())).symbol == "INDEX_DISABLED"
            offset_msg_id = encode_offset_msg_id(reply.store_host, PhysicalOffset(reply.physical_offset))
            found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=offset_msg_id))
            assert decode_message(found.records).body == b"one"
            request = query_pb2.SearchOffsetRequest(topic="orders", timestamp=reply.store_timestamp)
            assert (await stubs.queries.SearchOffset(request)).offset == 0
        assert broker.stop() == 0
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            assert (await query(stubs, "k"))[0] == [b"one"]


# --- topics -------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_topics_are_created_altered_described_listed_and_deleted(stubs: Stubs) -> None:
    admin = stubs.admin
    made = await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="made", message_type="FIFO"))
    assert (made.queue_count, made.message_type, made.broker) == (8, "FIFO", "alone")
    altered = await admin.AlterTopic(admin_pb2.AlterTopicRequest(topic="made", queue_count=9))
    assert (altered.queue_count, altered.message_type, len(altered.queues)) == (9, "FIFO", 9)
    for call, symbol in (
        (admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="made")), "TOPIC_EXISTS"),
        (admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="../x")), "TOPIC_ILLEGAL"),
        (admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="x", queue_count=1025)), "REQUEST_ILLEGAL"),
        (
            admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="x", message_type="?")),
            "MESSAGE_TYPE_UNSUPPORTED",
        ),
        (admin.AlterTopic(admin_pb2.AlterTopicRequest(topic="made", queue_count=3)), "REQUEST_ILLEGAL"),
        (admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="none")), "TOPIC_NOT_FOUND"),
        (admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="none")), "TOPIC_NOT_FOUND"),
    ):
        assert (await refused(call)).symbol == symbol
    last = await send(stubs, b"x", queue_id=QueueId(1))
    described = await admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="orders"))
    assert [(queue.max_offset, queue.last_store_timestamp) for queue in described.queues] == [
        (0, 0),
        (1, last.store_timestamp),
    ]
    listed = await admin.ListTopics(admin_pb2.ListTopicsRequest())
    assert [topic.topic for topic in listed.topics] == ["made", "orders"]
    await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="made"))


@pytest.mark.asyncio
async def test_a_topic_made_again_begins_at_zero_and_its_old_messages_are_gone(stubs: Stubs) -> None:
    old = await send(stubs, b"old", key="k")
    await stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"))
    await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=2))
    assert (await query(stubs, "k"))[0] == []
    gone = query_pb2.GetMessageRequest(
        id=encode_offset_msg_id(old.store_host, PhysicalOffset(old.physical_offset))
    )
    assert (await refused(stubs.queries.GetMessage(gone))).symbol == "MESSAGE_NOT_FOUND"
    assert (await send(stubs, b"new", key="k")).first_queue_offset == 0
    assert (await query(stubs, "k"))[0] == [b"new"]


# --- consumer offsets ---------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_offsets_are_committed_read_and_reset(stubs: Stubs) -> None:
    times = [(await send(stubs, b"x")).store_timestamp for _ in range(5)]
    admin = stubs.admin

    async def offset() -> int:
        reply = await admin.GetOffset(admin_pb2.GetOffsetRequest(group="g", topic="orders"))
        return int(reply.offset)

    assert await offset() == -1
    await admin.CommitOffset(admin_pb2.CommitOffsetRequest(group="g", topic="orders", offset=5))
    assert await offset() == 5
    for fields, symbol in (
        ({"group": "g", "topic": "orders", "offset": 6}, "OFFSET_OUT_OF_RANGE"),
        ({"group": "g", "topic": "orders", "offset": -1}, "OFFSET_OUT_OF_RANGE"),
        ({"group": "g", "topic": "none"}, "TOPIC_NOT_FOUND"),
        ({"group": "g", "topic": "orders", "queue_id": 2}, "QUEUE_NOT_FOUND"),
        ({"group": "", "topic": "orders"}, "GROUP_ILLEGAL"),
    ):
        assert (await refused(admin.CommitOffset(admin_pb2.CommitOffsetRequest(**fields)))).symbol == symbol
    reset = await admin.ResetOffset(admin_pb2.ResetOffsetRequest(group="g", topic="orders", to_min=True))
    assert [(e.queue_id, e.offset_before, e.offset) for e in reset.entries] == [(0, 5, 0), (1, -1, 0)]
    request = admin_pb2.ResetOffsetRequest(group="g", topic="orders", queue_id=0, timestamp=times[0])
    assert (await admin.ResetOffset(request)).entries[0].offset == 0
    request = admin_pb2.ResetOffsetRequest(group="g", topic="orders", queue_id=0, timestamp=times[-1] + 1)
    assert (await admin.ResetOffset(request)).entries[0].offset == 5
    request = admin_pb2.ResetOffsetRequest(group="g", topic="orders", queue_id=0, offset=9)
    assert (await refused(admin.ResetOffset(request))).symbol == "OFFSET_OUT_OF_RANGE"
    request = admin_pb2.ResetOffsetRequest(group="g", topic="orders")
    assert (await refused(admin.ResetOffset(request))).symbol == "REQUEST_ILLEGAL"
    assert await offset() == 5


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_committed_offset_survives_a_kill(tmp_path: Path, flush_mode: str) -> None:
    with running_broker(tmp_path, f"flush_mode={flush_mode}", "flush_interval_ms=60000") as broker:
        async with Stubs(broker.address) as stubs:
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
            await send(stubs, b"x")
            commit = admin_pb2.CommitOffsetRequest(group="g", topic="orders", offset=1)
            await stubs.admin.CommitOffset(commit)
            statistics = await stubs.admin.GetStatistics(admin_pb2.GetStatisticsRequest())
            counters = statistics.counters
            assert counters["log_flushed_offset"] == counters["log_end_offset"], "the log went to disk first"
            broker.kill()
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            reply = await stubs.admin.GetOffset(admin_pb2.GetOffsetRequest(group="g", topic="orders"))
            assert reply.offset == 1


# --- around the services ------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_the_broker_serves_its_own_route_health_and_services(
    broker: BrokerProcess, stubs: Stubs
) -> None:
    route = await stubs.routes.GetRoute(route_pb2.GetRouteRequest(topic="orders"))
    (entry,) = route.brokers
    assert (entry.broker.name, entry.broker.address) == ("alone", broker.address)
    assert [(topic.topic, topic.queue_count) for topic in entry.topics] == [("orders", 2)]
    assert entry.broker.batch_size_max == 1_048_576 - 8, "a batch must fit into a segment"
    info = await stubs.routes.GetServerInfo(route_pb2.GetServerInfoRequest())
    assert info.role == route_pb2.BROKER


@pytest.mark.asyncio
async def test_health_and_reflection_missed_half_of_the_services(stubs: Stubs) -> None:
    """Both list the registered services: every service that answers is in it, RocketMQ's too."""
    served = {
        *(service.full_name for service in NATIVE),
        "apache.rocketmq.v2.MessagingService",
        "apache.rocketmq.v2.Admin",
    }
    health = health_pb2_grpc.HealthStub(stubs.channel)
    for name in ("", *served):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(stubs.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection.ServerReflectionInfo(iter([request]))
    listed = (await call.read()).list_services_response.service
    of_grpc = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert {service.name for service in listed} == served | of_grpc
    call.cancel()


@pytest.mark.asyncio
async def test_metrics_and_readiness(broker: BrokerProcess, stubs: Stubs) -> None:
    await send(stubs, b"x" * 100, tag="t")
    await stubs.messages.Pull(message_pb2.FetchRequest(topic="orders"))
    call = stubs.messages.Fetch()
    for offset, wait_ms in ((0, 0), (1, 1), (9, 0)):
        request = message_pb2.FetchRequest(topic="orders", offset=offset, wait_ms=wait_ms)
        await call.write(request)
        await call.read()
    await call.done_writing()
    await stubs.admin.CommitOffset(admin_pb2.CommitOffsetRequest(group="g", topic="orders", offset=0))
    status, text = await asyncio.to_thread(broker.get, "/metrics")
    assert status == 200
    lines = text.splitlines()

    def value(name: str, **labels: str) -> float:
        wanted = [f'{key}="{text}"' for key, text in labels.items()]
        found = [
            line for line in lines if line.startswith(name + "{") and all(label in line for label in wanted)
        ]
        assert len(found) == 1, (name, found)
        return float(found[0].rpartition(" ")[2])

    assert value("rocketmq_messages_in_total", topic="orders", message_type="NORMAL") == 1
    assert value("rocketmq_messages_out_total", topic="orders") == 2
    assert value("rocketmq_throughput_in_total", topic="orders") > 100
    assert value("rocketmq_consumer_lag_messages", consumer_group="g", topic="orders") == 1
    assert value("rocketmq_storage_size") > 0
    assert value("rocketmq_broker_permission", node_id="alone") == 6
    for name in ("storage_flush_behind_bytes", "storage_dispatch_behind_bytes"):
        assert value(f"rocketmq_{name}") == 0
    assert value("rocketmq_topic_number") == 1
    assert value("rocketmq_message_size_count", topic="orders") == 1
    assert value("rocketmq_consumer_lag_latency", consumer_group="g", topic="orders") >= 0
    assert value("rocketmq_processor_watermark", processor="append") == 0
    assert value("rocketmq_rpc_latency_count", request_code="Send", response_code="OK") >= 1
    fetches = {"request_code": "Fetch", "protocol_type": "grpc"}
    assert value("rocketmq_rpc_latency_count", **fetches, response_code="OK", is_long_polling="false") >= 1
    assert value("rocketmq_rpc_latency_count", **fetches, response_code="OK", is_long_polling="true") >= 1
    assert value("rocketmq_rpc_latency_count", **fetches, response_code="OFFSET_OUT_OF_RANGE") >= 1
    assert value("trovemq_build_info") == 1
    assert value("trovemq_long_polls") == 0
    assert value("trovemq_index_create_failures_total") == 0
    assert (await asyncio.to_thread(broker.get, "/readyz"))[0] == 200
    assert (await asyncio.to_thread(broker.get, "/healthz"))[0] == 200


@pytest.mark.asyncio
async def test_topics_are_made_by_sending_where_that_is_on(tmp_path: Path) -> None:
    with running_broker(tmp_path, "autoCreateTopicEnable=true") as broker:
        async with Stubs(broker.address) as stubs:
            await send(stubs, b"x", queue_id=QueueId(7))
            described = await stubs.admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="orders"))
            assert described.queue_count == 8
            illegal = message_pb2.SendRequest(topic="%RETRY%g", messages=[{}])
            assert (await refused(stubs.messages.Send(illegal))).symbol == "TOPIC_ILLEGAL"
        assert broker.stop() == 0
