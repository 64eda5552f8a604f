"""Every message that a client sends goes through one function, whichever call brought it. The messages of an
atomic transaction are appended together instead, with its acknowledgements and its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

import trovemq
from tests.support.broker_here import broker_here
from tests.support.certificates import Certificates
from tests.support.engine import read_queue, record
from tests.support.engine import with_crc_property as with_crc
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.remoting_client import remoting_client
from tests.support.rpc_context import RpcContext
from tests.support.sent_calls import begin, send_call
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from tests.unit.remoting.test_broker import batch_of
from tests.unit.remoting.test_signatures import SECRET, Signing
from tests.unit.server.access.access_here import rocketmq_metadata
from tests.unit.server.test_broker_tracing import Traced
from tests.unit.server.test_joined_frames import Context, frame_of
from tests.unit.server.test_transact_stream import BEGIN, COMMIT, TRANSACT
from tests.unit.server.test_transact_stream import messages as transacted
from trovemq import TlsOptions
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.native.message_service import MessageService
from trovemq_broker.server.remoting.retries import Retries
from trovemq_broker.server.remoting.sending import Sends
from trovemq_broker.server.wire.send_requests import reading
from trovemq_daemon.calls import AwaitedCall
from trovemq_daemon.remoting.request import Request
from trovemq_proto.positions import QueueId
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import admin_pb2, message_pb2
from trovemq_store.files.memory import MemoryFileSystem

REQUEST = service.SendMessageRequest(messages=[message()])
NATIVE = message_pb2.SendRequest(topic="orders", messages=[message_pb2.OutgoingMessage(body=b"x")])


def native(parts: TestBroker) -> MessageService:
    return MessageService(parts)


async def v2_call(parts: TestBroker) -> None:
    begin(parts, message())


async def v2_task(parts: TestBroker) -> None:
    task = asyncio.create_task(parts.sender.send(reading(REQUEST), RpcContext()))
    await turns()
    task.cancel()


async def v2_turn(parts: TestBroker) -> None:
    parts.sender.on_calls([send_call(message()), send_call(message())])


async def v2_by_group(parts: TestBroker) -> None:
    begin(parts, message(topic="steps", message_group="g"))


async def native_call(parts: TestBroker) -> None:
    native_send(native(parts), NATIVE)


def native_send(service_: MessageService, request: message_pb2.SendRequest) -> asyncio.Future[Any]:
    """The answer."""
    call = AwaitedCall(Context("ipv4:10.0.0.2:5000"), None, request)
    service_.on_sends([call])
    return call.ending


async def frame_in_callback(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("ipv4:10.0.0.2:5000"))
    assert stream.handle_now(frame_of(with_crc(record(b"x"))))


async def frame_in_task(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("ipv6:%5B::1%5D:5000"))
    await stream.handle(frame_of(with_crc(record(b"x"))))


async def batch_of_frames(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("unix:socket"))
    assert stream.handle_now(frame_of(with_crc(record(b"x")) * 3))


class RemotingConnection:
    """Of a client that reads no answers."""

    peer = "ipv4:10.0.0.2:5000"
    is_lost = False

    def answered(self, *_answer: Any) -> None:
        pass


async def remoting_send(parts: TestBroker) -> None:
    fields = {"b": "orders", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    header = Header(RequestCode.SEND_MESSAGE_V2, 1, fields=fields)
    Sends(parts, Retries(parts)).send_short(
        Request(cast("Any", RemotingConnection()), header, JSON, b"x", 100)
    )


async def remoting_batch(parts: TestBroker) -> None:
    fields = {"b": "orders", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    header = Header(RequestCode.SEND_BATCH_MESSAGE, 1, fields=fields)
    Sends(parts, Retries(parts)).send_batch(
        Request(cast("Any", RemotingConnection()), header, JSON, batch_of([(b"one", ""), (b"two", "")]), 100)
    )


def traced_parts() -> TestBroker:
    return Traced().parts


def deduplicating_parts() -> TestBroker:
    parts = TestBroker(replace(ROOMY, tree_index_enable=True))
    for topic in ("orders", "steps"):
        parts.store.topics.alter(topic, options={"deduplicate": "10s"})
    return parts


BROKERS: dict[str, Callable[[], TestBroker]] = {
    "async flush": TestBroker,
    "sync flush": lambda: TestBroker(replace(ROOMY, flush_mode="sync")),
    "traced": traced_parts,
    "deduplicating": deduplicating_parts,
}
ENTRIES = (
    v2_call,
    v2_task,
    v2_turn,
    v2_by_group,
    native_call,
    frame_in_callback,
    frame_in_task,
    batch_of_frames,
    remoting_send,
    remoting_batch,
)


@fake_time
@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_each_entry_is_one_submission(
    broker: str, entry: Callable[[TestBroker], Awaitable[None]]
) -> None:
    parts = BROKERS[broker]()
    submitted: list[Any] = []
    submit = parts.accumulator.submit

    def noted(batch: Any, done: Any) -> None:
        submitted.append(batch)
        submit(batch, done)

    parts.accumulator.submit = noted  # type: ignore[method-assign]
    await entry(parts)
    await turns()
    assert len(submitted) == 1
    assert parts.store.end_offset > 0, "and nothing else appends"


def test_users_and_tls_take_the_same_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[str] = []
    submit = Accumulator.submit

    def noted(self: Accumulator, batch: Any, done: Any) -> None:
        submitted.append(batch.topic)
        submit(self, batch, done)

    monkeypatch.setattr(Accumulator, "submit", noted)

    async def main() -> None:
        certificates = Certificates.made(tmp_path / "certificates")
        settings: dict[str, Any] = {
            "tls_listen": "127.0.0.1:0",
            "tls_certificate": str(certificates.pem("server")),
            "tls_key": str(certificates.key("server")),
            "authentication_enable": True,
            "authorization_enable": True,
            "init_authentication_user": f'{{"username": "admin", "password": "{SECRET}"}}',
            "remoting_enable": True,
        }
        async with broker_here(tmp_path / "store", **settings) as broker:
            address = str((await broker.app.serving).tls)
            await by_sdk(address, certificates)
            assert submitted.count("orders") == 1
            await by_remoting(address, certificates)
            assert submitted.count("orders") == 2
            await by_v2(address, certificates)
            assert submitted.count("orders") == 3

    asyncio.run(main())


async def by_sdk(address: str, certificates: Certificates) -> None:
    tls = TlsOptions(ca=certificates.ca)
    async with trovemq.connect(address, tls=tls, access_key="admin", secret_key=SECRET) as client:
        await client.admin.create_topic("orders", queue_count=1)
        await client.send("orders", b"one")


async def by_remoting(address: str, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    fields = {"a": "p", "b": "orders", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
    async with remoting_client(address, tls=context) as client:
        sent = await Signing(client).ask(RequestCode.SEND_MESSAGE_V2, fields, b"two")
    assert sent.code == ResponseCode.SUCCESS, sent.header.remark


async def by_v2(address: str, certificates: Certificates) -> None:
    credentials = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
    async with grpc.aio.secure_channel(address, credentials) as channel:
        send = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        reply = await send(REQUEST, metadata=rocketmq_metadata("admin", SECRET), timeout=10)
    assert reply.status.code == v2.OK, reply


def test_the_messages_of_a_transaction_are_one_append(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with in_process():
            broker = BrokerServices(MemoryFileSystem(), small_broker_settings())
            async with broker.working():
                create = admin_pb2.CreateTopicRequest(topic="orders", queue_count=1)
                await broker.call("trovemq.v1.AdminService.CreateTopic", [create.SerializeToString()])
                appended: list[list[str]] = []
                append = broker.store.append

                def noted(batch: Any, parts: Any, *rest: Any, **named: Any) -> Any:
                    appended.append([topic for topic, _, _ in parts])
                    return append(batch, parts, *rest, **named)

                monkeypatch.setattr(broker.store, "append", noted)
                monkeypatch.setattr(
                    broker.core.accumulator, "submit", lambda *_: pytest.fail("it is no send")
                )
                frames = [BEGIN, transacted(), transacted(), COMMIT]
                outcome = await broker.call(TRANSACT, [frame.SerializeToString() for frame in frames])
                assert outcome.symbol == ""
                assert [topics.count("orders") for topics in appended if "orders" in topics] == [2]

    run(main())


@fake_time
@pytest.mark.parametrize("broker", BROKERS)
async def test_submissions_of_all_kinds_keep_the_order_of_their_queue(broker: str) -> None:
    parts = BROKERS[broker]()
    answers: list[asyncio.Future[Any]] = []
    service_ = native(parts)
    context: Any = Context("ipv4:10.0.0.2:5000")
    stream = AppendStream(parts, context)
    for number in range(4):
        send = message_pb2.SendRequest(topic="orders", queue_id=0)
        send.messages.add(body=b"send %d" % number)
        answers.append(native_send(service_, send))
        stream.handle_now(frame_of(with_crc(record(b"frame %d" % number)), number))
    await turns()
    found = [one.body for one in parts_read(parts)]
    assert found == [b"%b %d" % (kind, number) for number in range(4) for kind in (b"send", b"frame")]
    if not parts.appender.sync:
        assert all(answer.done() for answer in answers)
        assert [reply.frame_id for reply in context.replies] == list(range(4))


def parts_read(parts: TestBroker) -> Any:
    if (work := parts.store.begin_flush()) is not None and parts.appender.sync:
        work.run()
        parts.store.finish_flush(work)
    return read_queue(parts.store, "orders", QueueId(0))
