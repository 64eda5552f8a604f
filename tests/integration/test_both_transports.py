"""A real broker by grpcio and by our own transport: its clients, grpcio's and the SDK, see no difference."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor

import trovemq
from tests.durability.raw_http2 import RawCall
from tests.support.broker_process import BrokerProcess, Stubs, error_of, refused
from tests.support.rocketmq_client import RawClient
from tests.support.services_here import NATIVE, ROCKETMQ, methods_of, path_of
from tests.support.stubs import ADMIN, stub_of
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.grpc_transport import GrpcTransport
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import admin_pb2, message_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TRANSPORTS = get_args(GrpcTransport)
SEND = "/trovemq.v1.MessageService/Send"
TRIES = 300  # of something that becomes so in a moment


def started(store: Path, transport: str) -> BrokerProcess:
    broker = BrokerProcess(store, [f"grpc_transport={transport}"], ("--tls-listen", "127.0.0.1:0"))
    assert broker.address, broker.lines
    return broker


@pytest.fixture(scope="module", params=TRANSPORTS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    process = started(tmp_path_factory.mktemp("store"), request.param)
    try:
        yield process
        assert process.stop() == 0, "a clean stop, whatever the clients have left behind"
    finally:
        process.end()


@pytest_asyncio.fixture
async def stubs(broker: BrokerProcess) -> AsyncIterator[Stubs]:
    async with Stubs(broker.address) as connected:
        yield connected


async def create(stubs: Stubs, topic: str, **settings: Any) -> None:
    await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, queue_count=1, **settings))


async def test_the_sdk_sends_consumes_and_finds(broker: BrokerProcess) -> None:
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("sdk", queue_count=2)
        receipts = await asyncio.gather(*(client.send("sdk", b"%d" % i) for i in range(50)))
        (found,) = (await client.get(receipts[7].offset_msg_id)).messages
        assert (found.body, found.born_host.partition(":")[0]) == (b"7", "127.0.0.1")
        taken = set()
        async with client.subscribe("sdk", group="g") as messages:
            async for message in messages:
                await message.ack()
                taken.add(message.body)
                if len(taken) == 50:
                    break
        assert taken == {b"%d" % i for i in range(50)}


async def test_a_client_of_rocketmq_sends_and_receives(broker: BrokerProcess, stubs: Stubs) -> None:
    await create(stubs, "v2", message_type="NORMAL")

    def talk() -> None:
        with RawClient(broker.address, "raw") as client:
            sent = client.send("v2", b"a", b"b")
            assert sent.status.code == v2.OK
            taken = client.receive_until("g2", "v2", 2)
            assert [one.body for one in taken] == [b"a", b"b"]
            assert client.acknowledge("g2", taken).status.code == v2.OK
            assert client.send("nowhere", b"x").status.code == v2.TOPIC_NOT_FOUND
        with RawClient(broker.address, "") as unnamed:
            assert unnamed.send("v2", b"x").status.code == v2.CLIENT_ID_REQUIRED

    await asyncio.to_thread(talk)


async def test_the_methods_of_the_descriptors_are_served_and_no_others(stubs: Stubs) -> None:
    """Each is called with bytes that are no message: a method that is served refuses them, or its caller."""

    async def is_served(path: str, method: MethodDescriptor) -> bool:
        kind = [
            "stream" if streaming else "unary"
            for streaming in (method.client_streaming, method.server_streaming)
        ]
        make: Any = getattr(stubs.channel, "_".join(kind))
        call = make(path)(iter([b"\xff"]) if method.client_streaming else b"\xff", timeout=60)
        if method.server_streaming:
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass  # the code comes after the replies
        return await call.code() is not grpc.StatusCode.UNIMPLEMENTED

    methods = {path_of(method): method for method in methods_of((*NATIVE, *ROCKETMQ)).values()}
    unserved = {path for path, method in methods.items() if not await is_served(path, method)}
    assert unserved == {
        "/apache.rocketmq.v2.MessagingService/SyncLiteSubscription",
        "/apache.rocketmq.v2.Admin/DeleteSubscription",
    }
    (one,) = [method for path, method in methods.items() if path == SEND]
    assert not await is_served("/trovemq.v1.MessageService/Nothing", one)
    assert not await is_served("/trovemq.v1.RegistrationService/Register", one), "this is a nameserver's"


async def test_a_refusal_has_the_same_status_and_details(stubs: Stubs) -> None:
    send = stubs.messages.Send(message_pb2.SendRequest(topic="nowhere", messages=[{"body": b"x"}]))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await send
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert error_of(failed.value).fields["topic"] == "nowhere"
    assert (await refused(stubs.messages.Send(message_pb2.SendRequest()))).symbol == "REQUEST_ILLEGAL"
    call = stubs.messages.Append()
    await call.write(message_pb2.AppendFrame(frame_id=3, topic="nowhere", records=b"no records"))
    assert (await call.read()).error.symbol == "TOPIC_NOT_FOUND"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_deadline_ends_a_pull_that_waits(stubs: Stubs) -> None:
    await create(stubs, "late")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stubs.messages.Pull(message_pb2.FetchRequest(topic="late", wait_ms=60_000), timeout=0.2)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_wait(stubs, 0)


async def until_wait(stubs: Stubs, count: int) -> None:
    """Returns when `count` fetches and pulls wait for messages."""
    for _ in range(TRIES):
        reply = await stubs.admin.GetStatistics(admin_pb2.GetStatisticsRequest())
        if (waiting := reply.counters["long_polls"]) == count:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{waiting} wait, not {count}")


async def test_a_message_larger_than_windows_goes_through_both_ways(stubs: Stubs) -> None:
    await create(stubs, "large")
    body = bytes(range(256)) * 2_000
    request = message_pb2.SendRequest(topic="large", queue_id=0, messages=[{"body": body}])
    await asyncio.gather(*(stubs.messages.Send(request) for _ in range(8)))
    reply = await stubs.messages.Pull(message_pb2.FetchRequest(topic="large", bytes_max=8 << 20))
    assert reply.next_offset == 8
    assert len(reply.records) > 8 * len(body) // 8


async def test_clients_by_tls_and_plain_ones_at_its_port(broker: BrokerProcess) -> None:
    (line,) = [line for line in broker.lines if line["event"] == "broker.started"]
    at = parse_address(line["tls"])
    shown = await asyncio.to_thread(ssl.get_server_certificate, (at.host, at.port))
    credentials = grpc.ssl_channel_credentials(shown.encode())
    async with grpc.aio.secure_channel(line["tls"], credentials) as channel:
        await stub_of(ADMIN, channel).ListTopics(admin_pb2.ListTopicsRequest(), timeout=60)
    for address in (line["tls"], broker.address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(240):
            await reader.read()
        writer.close()


async def test_peers_that_break_the_protocol_harm_nobody(broker: BrokerProcess, stubs: Stubs) -> None:
    def misbehave() -> None:
        host, _, port = broker.address.rpartition(":")
        for garbage in (b"\0" * 10_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
            with socket.create_connection((host, int(port)), timeout=30) as peer:
                peer.sendall(garbage)
                while peer.recv(4_096):
                    pass
        for _ in range(20):
            with closing(RawCall(broker.address, SEND, "identity")) as call:
                call.send_beginning(64 << 20, 256 << 10)

    await asyncio.to_thread(misbehave)
    await asyncio.wait_for(stubs.admin.ListTopics(admin_pb2.ListTopicsRequest()), 30)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stop_answers_what_was_asked_and_ends_the_streams(tmp_path: Path, transport: str) -> None:
    broker = started(tmp_path, transport)
    try:
        async with Stubs(broker.address) as stubs:
            await create(stubs, "t")
            fetch, append = stubs.messages.Fetch(), stubs.messages.Append()
            await fetch.write(message_pb2.FetchRequest(topic="t", wait_ms=60_000, fetch_id=5))
            pull = asyncio.ensure_future(
                stubs.messages.Pull(message_pb2.FetchRequest(topic="t", wait_ms=60_000))
            )
            await append.write(message_pb2.AppendFrame(topic="nowhere"))
            await append.read()
            await until_wait(stubs, 2)  # grpcio begins the calls in any order
            stopped = asyncio.ensure_future(asyncio.to_thread(broker.stop))
            assert (await fetch.read()).fetch_id == 5
            assert (await pull).next_offset == 0
            for stream in (fetch, append):
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await stream.read()
                assert error_of(ended.value).symbol == "SERVICE_NOT_AVAILABLE"
            assert await stopped == 0
    finally:
        broker.end()
