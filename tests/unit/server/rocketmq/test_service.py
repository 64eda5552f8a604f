"""Both services as a whole: names, start-up of a client, hostile requests."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.memory_broker import message, receive_request
from tests.support.rocketmq_service import (
    TELEMETRY,
    ServiceBench,
    consumer_settings,
    reply_type_of,
    request_type_of,
)
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.core.clients import EXPIRY_MS
from trovemq_broker.server.wire.rocketmq_services import ADMIN_SERVICE, MESSAGING_SERVICE
from trovemq_daemon.calls import CallHandler, for_coroutines
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

NOT_SERVED = {"SyncLiteSubscription", "DeleteSubscription"}
MESSAGING = [method.name for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods]
ADMIN = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods]
CALLS = sorted({*MESSAGING, *ADMIN} - NOT_SERVED - {TELEMETRY})


@pytest.mark.asyncio
async def test_every_call_has_a_handler_but_those_that_make_no_sense_here() -> None:
    bench = ServiceBench()
    assert set(bench.service.messaging_handlers()) == set(MESSAGING) - NOT_SERVED
    assert set(bench.service.admin_handlers()) == set(ADMIN) - NOT_SERVED


class GrpcForm:
    """grpcio's server, for handlers of both forms."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        forms = {
            name: for_coroutines(one) if isinstance(one, CallHandler) else one
            for name, one in handlers.items()
        }
        self._server.add_registered_method_handlers(service, forms)


@pytest.mark.asyncio
async def test_a_clients_whole_life_over_a_network() -> None:
    bench = ServiceBench()
    server = grpc.aio.server()
    services: Any = GrpcForm(server)
    bench.service.add_to(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = (("x-mq-client-id", "c@1"),)
    group, topic = v2.Resource(name="workers"), v2.Resource(name="orders")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        def unary(name: str, service: str = MESSAGING_SERVICE) -> Any:
            return channel.unary_unary(
                f"/{service}/{name}",
                request_serializer=request_type_of(name).SerializeToString,
                response_deserializer=reply_type_of(name).FromString,
            )

        heartbeat = service_pb2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER, group=group)
        reply = await unary("Heartbeat")(heartbeat, metadata=metadata)
        assert reply.status.code == v2.UNRECOGNIZED_CLIENT_TYPE
        reply = await unary("QueryRoute")(service_pb2.QueryRouteRequest(topic=topic), metadata=metadata)
        assert (reply.status.code, len(reply.message_queues)) == (v2.OK, 4)
        telemetry = channel.stream_stream(
            f"/{MESSAGING_SERVICE}/Telemetry",
            request_serializer=service_pb2.TelemetryCommand.SerializeToString,
            response_deserializer=service_pb2.TelemetryCommand.FromString,
        )(metadata=metadata)
        await telemetry.write(service_pb2.TelemetryCommand(settings=consumer_settings()))
        answer = await telemetry.read()
        assert (answer.status.code, answer.settings.subscription.receive_batch_size) == (v2.OK, 32)
        assert (await unary("Heartbeat")(heartbeat, metadata=metadata)).status.code == v2.OK
        request = service_pb2.QueryAssignmentRequest(topic=topic, group=group)
        assert len((await unary("QueryAssignment")(request, metadata=metadata)).assignments) == 1
        termination = service_pb2.NotifyClientTerminationRequest(group=group)
        assert (await unary("NotifyClientTermination")(termination, metadata=metadata)).status.code == v2.OK
        assert await telemetry.read() is grpc.aio.EOF
        assert await telemetry.code() is grpc.StatusCode.OK
        reply = await unary("NotifyClientTermination")(termination, metadata=metadata)
        assert reply.status.code == v2.UNRECOGNIZED_CLIENT_TYPE
        stats = await unary("GetProxyRuntimeStats", ADMIN_SERVICE)(admin_pb2.GetProxyRuntimeStatsRequest())
        assert (stats.status.code, stats.version) == (v2.OK, "1.2.3")
        for name in NOT_SERVED:
            service = MESSAGING_SERVICE if name in MESSAGING else ADMIN_SERVICE
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(name, service)(request_type_of(name)(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


@pytest.mark.parametrize("name", sorted(set(MESSAGING) & set(CALLS)))
@pytest.mark.asyncio
async def test_a_call_without_a_client_id_is_refused_in_its_reply(name: str) -> None:
    bench = ServiceBench()
    reply = await bench.ask(name, request_type_of(name)(), RpcContext(""))
    assert reply.status.code == v2.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.asyncio
async def test_an_empty_request_is_answered(name: str) -> None:
    bench = ServiceBench()
    replies = await bench.call(name, b"")
    code = getattr(replies[0], "status", v2.Status(code=v2.OK)).code
    assert code not in (v2.CODE_UNSPECIFIED, v2.INTERNAL_SERVER_ERROR)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.asyncio
async def test_bytes_that_are_no_request_are_refused_in_the_reply(name: str) -> None:
    bench = ServiceBench()
    for data in (b"\xff", b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 300):
        reply = await bench.ask(name, data)
        if name == "ChangeLogLevel":
            assert "not a ChangeLogLevelRequest" in reply.remark
        else:
            assert reply.status.code == v2.BAD_REQUEST, data


VALID = {
    "SendMessage": service_pb2.SendMessageRequest(messages=[message()]),
    "ReceiveMessage": receive_request(),
    "AckMessage": service_pb2.AckMessageRequest(
        group=v2.Resource(name="g"),
        topic=v2.Resource(name="orders"),
        entries=[service_pb2.AckMessageEntry(message_id="01AA", receipt_handle="abc")],
    ),
    "QueryMessage": admin_pb2.ListMessageRequest(topic=v2.Resource(name="orders"), message_key="k"),
    "ResetGroupOffset": admin_pb2.ResetGroupOffsetRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="orders")
    ),
    "QueryOffset": service_pb2.QueryOffsetRequest(
        message_queue=v2.MessageQueue(topic=v2.Resource(name="orders")), query_offset_policy=v2.TIMESTAMP
    ),
    "QueryTimeSpan": admin_pb2.QueryTimeSpanRequest(
        group=v2.Resource(name="g"), topics=[v2.Resource(name="orders")]
    ),
}


@st.composite
def _hostile(draw: st.DrawFn) -> tuple[str, bytes]:
    """A call with random bytes, or with a good request of which some bytes were changed."""
    name = draw(st.sampled_from(CALLS))
    good = VALID.get(name, request_type_of(name)()).SerializeToString()
    noise = draw(st.binary(max_size=60))
    match draw(st.sampled_from(["noise", "changed", "joined"])):
        case "noise":
            return name, noise
        case "joined":
            return name, good + noise
        case _:
            at = draw(st.integers(0, len(good)))
            return name, good[:at] + noise[:3] + good[at + draw(st.integers(0, 3)) :]


@given(st.lists(_hostile(), min_size=10, max_size=40))
@hypothesis_settings(max_examples=12, deadline=None)
def test_no_bytes_make_a_call_fail_unexpectedly(requests: list[tuple[str, bytes]]) -> None:
    async def run() -> None:
        bench = ServiceBench()
        bench.parts.waits.closed = True  # as if the broker were stopping: polls end at once
        bench.parts.long_polls.closed = True
        for name, data in requests:
            async with asyncio.timeout(240):
                replies = await bench.call(name, data)
            status = getattr(replies[0], "status", None)
            if status is not None:
                assert status.code not in (v2.CODE_UNSPECIFIED, v2.INTERNAL_SERVER_ERROR), (name, status)

    asyncio.run(run())


HOSTILE_TIMES = [-(2**63), -1, 2**63 - 1, 253_402_300_800]


@pytest.mark.parametrize("seconds", HOSTILE_TIMES)
@pytest.mark.parametrize("nanos", [-(2**31), 2**31 - 1])
@pytest.mark.asyncio
async def test_times_outside_of_any_calendar_are_answered(seconds: int, nanos: int) -> None:
    bench = ServiceBench()
    bench.parts.waits.closed = True  # as if the broker were stopping: polls end at once
    await bench.parts.send(message(b"one"))
    group, topic = v2.Resource(name="g"), v2.Resource(name="orders")
    reset = admin_pb2.ResetGroupOffsetRequest(group=group, topic=topic)
    reset.reset_timestamp.seconds, reset.reset_timestamp.nanos = seconds, nanos
    query = service_pb2.QueryOffsetRequest(
        message_queue=v2.MessageQueue(topic=topic), query_offset_policy=v2.TIMESTAMP
    )
    query.timestamp.seconds, query.timestamp.nanos = seconds, nanos
    listed = admin_pb2.ListMessageRequest(topic=topic, message_key="k")
    listed.begin_timestamp.seconds, listed.begin_timestamp.nanos = seconds, nanos
    listed.end_timestamp.seconds, listed.end_timestamp.nanos = seconds, nanos
    sent = service_pb2.SendMessageRequest(messages=[message(b"x")])
    born = sent.messages[0].system_properties.born_timestamp
    born.seconds, born.nanos = seconds, nanos
    later = service_pb2.SendMessageRequest(messages=[message(b"x", "mixed")])
    at = later.messages[0].system_properties.delivery_timestamp
    at.seconds, at.nanos = seconds, nanos
    change = service_pb2.ChangeInvisibleDurationRequest(group=group, topic=topic, receipt_handle="x")
    change.invisible_duration.seconds, change.invisible_duration.nanos = seconds, nanos
    receive = receive_request(batch_size=-5)
    receive.invisible_duration.seconds, receive.invisible_duration.nanos = seconds, nanos
    for name, request in (
        ("ResetGroupOffset", reset),
        ("QueryOffset", query),
        ("QueryMessage", listed),
        ("SendMessage", sent),
        ("SendMessage", later),
        ("ChangeInvisibleDuration", change),
        ("ReceiveMessage", receive),
    ):
        (reply, *_) = await bench.call(name, request)
        assert reply.status.code not in (v2.CODE_UNSPECIFIED, v2.INTERNAL_SERVER_ERROR), name


@pytest.mark.asyncio
async def test_heartbeats_keep_a_client_and_lite_clients_are_refused() -> None:
    bench = ServiceBench()
    async with bench.connected("c", consumer_settings()) as context:
        first_ms = bench.parts.now_ms
        for step in range(3):
            bench.parts.now_ms = first_ms + (step + 1) * (EXPIRY_MS - 1)
            for kind in (v2.PUSH_CONSUMER, v2.CLIENT_TYPE_UNSPECIFIED):
                request = service_pb2.HeartbeatRequest(client_type=kind)
                assert (await bench.ask("Heartbeat", request, context)).status.code == v2.OK
            assert bench.registry.expire(bench.parts.now_ms) == []
        for kind in (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER, v2.PULL_CONSUMER):
            request = service_pb2.HeartbeatRequest(client_type=kind)
            reply = await bench.ask("Heartbeat", request, context)
            assert reply.status.code == v2.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.asyncio
async def test_a_producer_is_asked_about_the_transaction_that_it_left_open() -> None:
    bench = ServiceBench()
    settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing())
    async with bench.connected("p", settings) as context:
        half = message(b"half", "deals", message_id="01FE", message_type=v2.TRANSACTION, tag="t")
        reply = await bench.ask("SendMessage", service_pb2.SendMessageRequest(messages=[half]), context)
        assert reply.status.code == v2.OK
        transaction_id = reply.entries[0].transaction_id
        bench.parts.transactions.catch_up()
        bench.parts.now_ms += 60_000
        (transaction,) = bench.parts.transactions.due_checks(bench.parts.now_ms)
        await bench.service.check_transaction(transaction)
        async with asyncio.timeout(240):
            while len(context.written) < 2:
                await asyncio.sleep(0)
        command = context.written[1].recover_orphaned_transaction_command
        assert command.transaction_id == transaction_id
        asked = command.message
        assert (asked.topic.name, asked.body) == ("deals", b"half")
        system = asked.system_properties
        assert (system.message_id, system.tag, system.body_encoding) == ("01FE", "t", v2.IDENTITY)
        assert system.body_digest.checksum
        assert not asked.user_properties, "nothing of the store's own shows"
        end = service_pb2.EndTransactionRequest(
            topic=v2.Resource(name="deals"),
            message_id="01FE",
            transaction_id=transaction_id,
            resolution=v2.COMMIT,
            source=v2.SOURCE_SERVER_CHECK,
        )
        assert (await bench.ask("EndTransaction", end, context)).status.code == v2.OK


@pytest.mark.asyncio
async def test_a_refused_send_is_counted() -> None:
    bench = ServiceBench()
    request = service_pb2.SendMessageRequest(messages=[message(topic="missing")])
    assert (await bench.ask("SendMessage", request)).status.code == v2.TOPIC_NOT_FOUND
    assert bench.parts.traffic.refusals == {"TOPIC_NOT_FOUND": 1}
