"""Hostile and broken clients of the v2 protocol, at a real broker: they harm no other client.

A healthy producer and consumer continue all the while; every test looks whether they still get on.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.rocketmq_client import SERVICE, RawClient, message, receive_request
from tests.support.stubs import ADMIN as NATIVE_ADMIN
from tests.support.stubs import stub_of
from tests.support.trials import SOAK
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import admin_pb2 as native_pb2

pytestmark = pytest.mark.slow

TOPICS = {"healthy": "NORMAL", "orders": "NORMAL", "later": "DELAY", "paid": "TRANSACTION", "idle": "NORMAL"}
ADMIN = "/apache.rocketmq.v2.Admin/"
PROGRESS_S_MAX = 15.0
BODY_SIZE_MAX = 4 << 20

IDLE_POLLS = 1_000 if SOAK else 300
IDLE_GROUPS = 10
IDLE_CHANNELS = 10
IDLE_MEASURE_S = 2.0
IDLE_SHARE_GOAL = 0.02
IDLE_SHARE_MAX = 0.15  # the machine is shared with other tests


class HealthyPair:
    """Sends one message, receives it, acknowledges it, over and over."""

    def __init__(self, address: str) -> None:
        self.rounds = 0
        self.error: BaseException | None = None
        self._address = address
        self._stopping = threading.Event()
        self.going = threading.Event()
        self.going.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with RawClient(self._address, "healthy-pair") as client:
                while self.going.wait() and not self._stopping.wait(0.05):
                    body = b"%d" % self.rounds
                    sent = client.send("healthy", body)
                    assert sent.status.code == v2.OK, sent
                    taken = client.receive_until("healthy", "healthy", 1)
                    assert [one.body for one in taken] == [body], taken
                    assert taken[0].system_properties.delivery_attempt == 1
                    assert client.acknowledge("healthy", taken).status.code == v2.OK
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """It is still getting on."""
        before, end = self.rounds, time.monotonic() + PROGRESS_S_MAX
        while self.rounds < before + 2 and self.error is None:
            assert time.monotonic() < end, "the healthy pair stands still"
            time.sleep(0.02)
        assert self.error is None, self.error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    path: Path = tmp_path_factory.mktemp("hostile")
    settings = ("mappedFileSizeCommitLog=67108864", "mappedFileSizeConsumeQueue=60000")
    process = BrokerProcess(path / "store", settings, small_files=False)
    try:
        assert process.address, process.lines
        with grpc.insecure_channel(process.address) as channel:
            for name, kind in TOPICS.items():
                stub_of(NATIVE_ADMIN, channel).CreateTopic(
                    native_pb2.CreateTopicRequest(topic=name, queue_count=2, message_type=kind)
                )
        yield process
        assert process.stop() == 0, "a clean stop, whatever the hostile clients have left behind"
    finally:
        process.end()


@pytest.fixture(scope="module")
def pair(broker: BrokerProcess) -> Iterator[HealthyPair]:
    with RawClient(broker.address) as client:
        begin = poll(client, "healthy", 0, topic="healthy")  # the group begins here
        wait_until_polls_wait(broker, 1)
        begin.cancel()
    healthy = HealthyPair(broker.address)
    yield healthy
    healthy.stop()
    assert healthy.error is None, healthy.error


@pytest.fixture
def client(broker: BrokerProcess, pair: HealthyPair) -> Iterator[RawClient]:
    with RawClient(broker.address) as one:
        yield one
    pair.check()


# --- random bytes -----------------------------------------------------------------------------------------
def methods() -> list[tuple[str, Any]]:
    """(path, descriptor) of every call of both services."""
    found = []
    for prefix, module in ((SERVICE, service_pb2), (ADMIN, admin_pb2)):
        for service in module.DESCRIPTOR.services_by_name.values():
            found += [(prefix + method.name, method) for method in service.methods]
    return found


def broken_requests(method: Any, chance: random.Random) -> Iterator[bytes]:
    """Noise, and well-formed messages of this call's type with noise in every text and number."""
    for size in (1, 7, 64, 1_000, 65_536):
        yield chance.randbytes(size)
    module = admin_pb2 if method.containing_service.name == "Admin" else service_pb2
    kind = getattr(module, method.input_type.name)
    for _ in range(6):
        request = kind()
        _fill(request, chance, 0)
        yield request.SerializeToString()


def _fill(target: Any, chance: random.Random, depth: int) -> None:
    """Every field something, of its type."""
    for field in target.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        many = getattr(target, field.name) if field.is_repeated else None
        if field.message_type is not None:
            if depth < 5 and chance.random() < 0.8:
                _fill(many.add() if many is not None else getattr(target, field.name), chance, depth + 1)
                if many is None:
                    getattr(target, field.name).SetInParent()
            continue
        value = _noise(field, chance)
        if many is not None:
            many.append(value)
        else:
            setattr(target, field.name, value)


def _noise(field: Any, chance: random.Random) -> Any:
    texts = ("", " ", "orders", "g", "%RETRY%g_orders", "a\x00b", "é" * 200, "x" * 5_000, "TBW102", "$")
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            return chance.randbytes(40) if field.type == field.TYPE_BYTES else chance.choice(texts)
        case field.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return chance.choice((0.0, -1.0, float("inf"), float("nan")))
        case field.CPPTYPE_INT64:
            return chance.choice((0, -1, 1, 2**63 - 1, -(2**63)))
        case field.CPPTYPE_ENUM:
            return chance.choice((0, 1, 2, 99))
        case _:
            return chance.choice((0, -1, 1, 2**31 - 1, -(2**31)))


@pytest.mark.parametrize(
    ("path", "method"), methods(), ids=[path.rpartition("/")[2] for path, _ in methods()]
)
def test_random_bytes_are_answered_with_a_status(client: RawClient, path: str, method: Any) -> None:
    chance = random.Random(path)
    channel, metadata = client._channel, (("x-mq-client-id", f"noise-{method.name}"),)
    module = admin_pb2 if method.containing_service.name == "Admin" else service_pb2
    read = getattr(module, method.output_type.name).FromString
    for data in broken_requests(method, chance):
        try:
            if method.client_streaming:
                replies = list(
                    channel.stream_stream(path, None, read)(iter([data]), timeout=30, metadata=metadata)
                )
            elif method.server_streaming:
                replies = list(channel.unary_stream(path, None, read)(data, timeout=30, metadata=metadata))
            else:
                replies = [channel.unary_unary(path, None, read)(data, timeout=30, metadata=metadata)]
        except grpc.RpcError as error:
            refusals = {grpc.StatusCode.UNIMPLEMENTED}
            if method.client_streaming:
                refusals |= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
            if error.code() not in refusals:
                raise
            continue
        if not method.client_streaming and "status" in method.output_type.fields_by_name:
            assert replies[0].status.code not in (v2.CODE_UNSPECIFIED, v2.INTERNAL_SERVER_ERROR), (
                data[:80],
                replies[0],
            )


# --- half-open streams ------------------------------------------------------------------------------------
def producer_settings(client: RawClient) -> service_pb2.TelemetryCommand:
    settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing())
    return service_pb2.TelemetryCommand(settings=settings)


def test_half_open_telemetry_streams_hold_nobody_up(broker: BrokerProcess, client: RawClient) -> None:
    """Some never send settings, some send theirs without end and never read an answer."""
    release = threading.Event()

    def silent() -> Iterator[Any]:
        release.wait()
        yield from ()

    def chatty(one: RawClient) -> Iterator[Any]:
        yield from itertools.repeat(producer_settings(one), 2_000)
        release.wait()

    clients = [RawClient(broker.address, f"half-open-{number}") for number in range(40)]
    streams = []
    try:
        for number, one in enumerate(clients):
            streams.append(one.telemetry(silent() if number % 4 else chatty(one)))
        time.sleep(1)
        with RawClient(broker.address, "well-behaved") as good:
            answers = good.telemetry(iter([producer_settings(good)]))
            assert next(answers).status.code == v2.OK
            answers.cancel()
        assert client.send("orders", b"beside them").status.code == v2.OK
    finally:
        release.set()
        for stream in streams:
            stream.cancel()
        for one in clients:
            one._channel.close()


# --- many polls -------------------------------------------------------------------------------------------
def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_many_idle_polls_cost_next_to_nothing(broker: BrokerProcess, pair: HealthyPair) -> None:
    channels = [
        grpc.insecure_channel(broker.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(IDLE_CHANNELS)
    ]
    calls = []
    try:
        for channel in channels:
            # Calls that are made before the connection is there begin in no order.
            grpc.channel_ready_future(channel).result(timeout=30)
        pair.going.clear()
        time.sleep(0.2)
        before = _share(broker, 1.0)
        for number in range(IDLE_POLLS):
            request = receive_request(f"idle-{number % IDLE_GROUPS}", "idle", poll_s=20)
            method = channels[number % IDLE_CHANNELS].unary_stream(
                SERVICE + "ReceiveMessage",
                request_serializer=service_pb2.ReceiveMessageRequest.SerializeToString,
                response_deserializer=service_pb2.ReceiveMessageResponse.FromString,
            )
            calls.append(method(request, timeout=25, metadata=(("x-mq-client-id", f"idle-{number}"),)))
        wait_until_polls_wait(broker, IDLE_POLLS)
        share = _share(broker, IDLE_MEASURE_S)
        assert _waiting_polls(broker) >= IDLE_POLLS, "they waited all the time"
        print(
            f"\n{IDLE_POLLS} idle polls: {share:.1%} of a core, {before:.1%} before them"
            f" (goal: {IDLE_SHARE_GOAL:.0%} more)"
        )
        assert share - before <= IDLE_SHARE_MAX
        with RawClient(broker.address) as client:
            client.send("idle", b"one")
        first = [next(iter(call)).status.code for call in calls[:1]]
        assert first == [v2.OK], "the first of its group is woken"
        pair.going.set()
        pair.check()
    finally:
        pair.going.set()
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()
    pair.check()


def _share(broker: BrokerProcess, seconds: float) -> float:
    begin, cpu = time.monotonic(), cpu_seconds(broker.process.pid)
    time.sleep(seconds)
    return (cpu_seconds(broker.process.pid) - cpu) / (time.monotonic() - begin)


def wait_until_polls_wait(broker: BrokerProcess, count: int) -> None:
    """Polls wait 20 s at most, so that all of them must have come before."""
    end = time.monotonic() + 15
    while (waiting := _waiting_polls(broker)) < count:
        assert time.monotonic() < end, f"{waiting} polls wait"
        time.sleep(0.1)


def _waiting_polls(broker: BrokerProcess) -> int:
    with grpc.insecure_channel(broker.address) as channel:
        stub = stub_of(NATIVE_ADMIN, channel)
        return int(stub.GetStatistics(native_pb2.GetStatisticsRequest()).counters["receives_waiting"])


# --- unread messages ---------------------------------------------------------------------------------------
def test_messages_do_not_go_with_the_calls_of_clients_that_are_gone(
    broker: BrokerProcess, client: RawClient
) -> None:
    """Their invisible time is long: were they lost with a call, they would not come before its end."""
    catch_up(client, "cut-off")
    lost = []
    for number in range(8):
        with RawClient(broker.address) as cut:
            calls = [poll(cut, "cut-off", number) for number in range(4)]
            time.sleep(0.1)
            for call in calls:
                call.cancel()
            client.send("orders", b"round %d" % number)
        taken = client.receive_until("cut-off", "orders", 1, within_s=60)
        if [one.body for one in taken] == [b"round %d" % number]:
            client.acknowledge("cut-off", taken)
        else:
            lost.append(number)
    assert len(lost) <= 1, f"messages of rounds {lost} went with calls that were cut off"


def poll(client: RawClient, group: str, number: int, topic: str = "orders") -> Any:
    method = client._channel.unary_stream(
        SERVICE + "ReceiveMessage", lambda one: one.SerializeToString(), None
    )
    request = receive_request(group, topic, invisible_s=600, poll_s=10)
    return method(request, timeout=15, metadata=(("x-mq-client-id", f"{client.client_id}-{number}"),))


def catch_up(client: RawClient, group: str) -> None:
    """The group has not read the messages that other tests have left in the topic."""
    for number in (0, 1):
        end = ask("QueryOffset", message_queue=queue(number=number), query_offset_policy=v2.END)(client)
        position = {"group": named(group), "message_queue": queue(number=number), "offset": end.offset}
        assert ask("UpdateOffset", **position)(client).status.code == v2.OK


def test_a_receipt_handle_of_another_group_settles_nothing(client: RawClient) -> None:
    for group in ("mine", "theirs"):
        catch_up(client, group)
    client.send("orders", b"handles")
    mine = client.receive_until("mine", "orders", 1)
    theirs = client.receive_until("theirs", "orders", 1)
    assert client.acknowledge("theirs", mine).status.code == v2.INVALID_RECEIPT_HANDLE
    assert client.change_invisible("theirs", mine[0], 0).status.code == v2.INVALID_RECEIPT_HANDLE
    dead = service_pb2.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="theirs"),
        topic=v2.Resource(name="orders"),
        receipt_handle=mine[0].system_properties.receipt_handle,
    )
    reply = client.call(
        "ForwardMessageToDeadLetterQueue", dead, service_pb2.ForwardMessageToDeadLetterQueueResponse
    )
    assert reply.status.code == v2.INVALID_RECEIPT_HANDLE
    assert client.acknowledge("theirs", theirs).status.code == v2.OK
    assert client.acknowledge("mine", mine).status.code == v2.OK


# --- the rows of the protocol's table of statuses -----------------------------------------------------------
def send(topic: str = "orders", body: bytes = b"x", **properties: Any) -> Callable[[RawClient], Any]:
    return lambda client: client.call(
        "SendMessage",
        service_pb2.SendMessageRequest(messages=[message(topic, body, **properties)]),
        service_pb2.SendMessageResponse,
    )


def receive(group: str = "rows", topic: str = "orders", **how: Any) -> Callable[[RawClient], Any]:
    kind = how.pop("kind", v2.TAG)
    seconds = how.pop("seconds", 8.0)

    def call(client: RawClient) -> Any:
        request = receive_request(group, topic, **how)
        request.filter_expression.type = kind
        return client.stream("ReceiveMessage", request, service_pb2.ReceiveMessageResponse, seconds=seconds)[
            0
        ]

    return call


def ask(name: str, **fields: Any) -> Callable[[RawClient], Any]:
    return lambda client: client.call(
        name, getattr(service_pb2, f"{name}Request")(**fields), getattr(service_pb2, f"{name}Response")
    )


def named(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def acknowledge(*handles: str) -> Callable[[RawClient], Any]:
    entries = [service_pb2.AckMessageEntry(message_id="M", receipt_handle=handle) for handle in handles]
    return ask("AckMessage", group=named("rows"), topic=named("orders"), entries=entries)


def acknowledge_one_of_two(client: RawClient) -> Any:
    client.send("orders", b"x")
    one, *_ = client.receive_until("rows-of-acks", "orders", 1)
    entries = [
        service_pb2.AckMessageEntry(receipt_handle=handle)
        for handle in (one.system_properties.receipt_handle, "none")
    ]
    return ask("AckMessage", group=named("rows-of-acks"), topic=named("orders"), entries=entries)(client)


def send_with_wrong_digest(client: RawClient) -> Any:
    wrong = message("orders", b"x")
    wrong.system_properties.body_digest.CopyFrom(v2.Digest(type=v2.MD5, checksum="00"))
    return ask("SendMessage", messages=[wrong])(client)


def without_client_id(client: RawClient) -> Any:
    method = client._channel.unary_unary(
        SERVICE + "Heartbeat", None, service_pb2.HeartbeatResponse.FromString
    )
    return method(b"", timeout=30)


def queue(topic: str = "orders", number: int = 0) -> v2.MessageQueue:
    return v2.MessageQueue(topic=named(topic), id=number)


BAD_ENDPOINTS = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="", port=0)])
BLANK = "\u00a0 "

ROWS: list[tuple[int, str, Callable[[RawClient], Any]]] = [
    (v2.OK, "send", send()),
    (v2.MULTIPLE_RESULTS, "acks", acknowledge_one_of_two),
    (v2.BAD_REQUEST, "ack_nothing", acknowledge()),
    (v2.ILLEGAL_ACCESS_POINT, "route", ask("QueryRoute", topic=named("orders"), endpoints=BAD_ENDPOINTS)),
    (v2.ILLEGAL_TOPIC, "route", ask("QueryRoute", topic=named("a b"))),
    (v2.ILLEGAL_TOPIC, "system", send("TBW102")),
    (v2.ILLEGAL_TOPIC, "long", send("t" * 128)),
    (v2.ILLEGAL_CONSUMER_GROUP, "receive", receive("a b")),
    (v2.ILLEGAL_CONSUMER_GROUP, "system", receive("CID_RMQ_SYS_X")),
    (v2.ILLEGAL_CONSUMER_GROUP, "assignment", ask("QueryAssignment", topic=named("orders"), group=named(""))),
    (v2.ILLEGAL_MESSAGE_TAG, "send", send(tag="a|b")),
    (v2.ILLEGAL_MESSAGE_KEY, "send", send(keys=[BLANK])),
    (v2.ILLEGAL_MESSAGE_GROUP, "send", send(message_group="g" * 64)),
    (v2.ILLEGAL_MESSAGE_PROPERTY_KEY, "send", send(user_properties={"KEYS": "x"})),
    (v2.INVALID_TRANSACTION_ID, "blank", ask("EndTransaction", topic=named("paid"), resolution=v2.COMMIT)),
    (
        v2.INVALID_TRANSACTION_ID,
        "unknown",
        ask("EndTransaction", topic=named("paid"), transaction_id="none", resolution=v2.COMMIT),
    ),
    (v2.ILLEGAL_MESSAGE_ID, "send", send(message_id=" ")),
    (v2.ILLEGAL_FILTER_EXPRESSION, "sql", receive(expression="a >", kind=v2.SQL)),
    (v2.ILLEGAL_INVISIBLE_TIME, "receive", receive(invisible_s=9)),
    (v2.ILLEGAL_INVISIBLE_TIME, "long", receive(invisible_s=43_201)),
    (v2.ILLEGAL_DELIVERY_TIME, "send", send("later", deliver_at_ms=4_102_444_800_000)),
    (v2.INVALID_RECEIPT_HANDLE, "ack", acknowledge("none")),
    (v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "send", send("orders", message_group="g")),
    (
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "recall",
        ask("RecallMessage", topic=named("orders"), recall_handle="x"),
    ),
    (v2.BAD_REQUEST, "recall", ask("RecallMessage", topic=named("later"), recall_handle="x")),
    (v2.UNRECOGNIZED_CLIENT_TYPE, "heartbeat", ask("Heartbeat", client_type=v2.PRODUCER)),
    (v2.UNRECOGNIZED_CLIENT_TYPE, "termination", ask("NotifyClientTermination")),
    (v2.MESSAGE_CORRUPTED, "nothing", ask("SendMessage")),
    (
        v2.MESSAGE_CORRUPTED,
        "two_topics",
        ask("SendMessage", messages=[message("orders", b"x"), message("paid", b"x")]),
    ),
    (
        v2.MESSAGE_CORRUPTED,
        "digest",
        send_with_wrong_digest,
    ),
    (v2.CLIENT_ID_REQUIRED, "heartbeat", without_client_id),
    (v2.ILLEGAL_POLLING_TIME, "receive", receive(poll_s=20, seconds=3.0)),
    (
        v2.ILLEGAL_OFFSET,
        "update",
        ask("UpdateOffset", group=named("rows"), message_queue=queue(), offset=1 << 40),
    ),
    (v2.NOT_FOUND, "queue", ask("QueryOffset", message_queue=queue(number=99), query_offset_policy=v2.END)),
    (v2.BAD_REQUEST, "policy", ask("QueryOffset", message_queue=queue(), query_offset_policy=v2.TIMESTAMP)),
    (v2.MESSAGE_NOT_FOUND, "receive", receive("nothing-for-it", "later", seconds=20.0)),
    (v2.TOPIC_NOT_FOUND, "route", ask("QueryRoute", topic=named("none"))),
    (v2.TOPIC_NOT_FOUND, "send", send("none")),
    (v2.TOPIC_NOT_FOUND, "receive", receive(topic="none")),
    (v2.OFFSET_NOT_FOUND, "offset", ask("GetOffset", group=named("new"), message_queue=queue())),
    (
        v2.PAYLOAD_TOO_LARGE,
        "batch",
        ask("SendMessage", messages=[message("orders", b"x" * BODY_SIZE_MAX)] * 3),
    ),
    (v2.MESSAGE_BODY_TOO_LARGE, "send", send(body=b"x" * (BODY_SIZE_MAX + 1))),
    (v2.OK, "largest_body", send(body=b"x" * BODY_SIZE_MAX)),
    (v2.MESSAGE_BODY_EMPTY, "send", send(body=b"")),
    (v2.MESSAGE_PROPERTIES_TOO_LARGE, "count", send(user_properties={f"p{i}": "x" for i in range(129)})),
    (v2.MESSAGE_PROPERTIES_TOO_LARGE, "size", send(user_properties={"p": "x" * 16_384})),
]


@pytest.mark.parametrize(
    ("code", "row", "call"), ROWS, ids=[f"{v2.Code.Name(code)}-{row}" for code, row, _ in ROWS]
)
def test_each_status_is_returned_where_the_protocol_says(
    broker: BrokerProcess, pair: HealthyPair, code: int, row: str, call: Callable[[RawClient], Any]
) -> None:
    with RawClient(broker.address, f"rows-{row}") as client:
        status = call(client).status
    assert v2.Code.Name(status.code) == v2.Code.Name(code), status.message


# --- a broker with little space, in async mode
# ---------------------------------------------------------------
def test_polls_that_wait_took_every_call_that_the_server_had(tmp_path: Path) -> None:
    """No other client was served; and a clean stop with messages in flight failed in async mode."""
    settings = ("flushDiskType=ASYNC_FLUSH", "grpc_calls_max=20", "receive_polls_max=60", "clients_max=10")
    broker = BrokerProcess(tmp_path / "store", (*settings, "long_polls_max=10"))
    try:
        with grpc.insecure_channel(broker.address) as channel:
            stub_of(NATIVE_ADMIN, channel).CreateTopic(
                native_pb2.CreateTopicRequest(topic="orders", queue_count=1)
            )
        with RawClient(broker.address) as polls, RawClient(broker.address) as client:
            calls = [poll(polls, "waiting", number) for number in range(60)]
            wait_until_polls_wait(broker, 60)
            status = receive("in-flight", poll_s=5)(client).status
            assert status.code == v2.TOO_MANY_REQUESTS
            assert client.send("orders", b"beside them").status.code == v2.OK
            assert [one.body for one in client.receive("in-flight", "orders")] == [b"beside them"]
            for call in calls:
                call.cancel()
        assert broker.stop() == 0, broker.lines
    finally:
        broker.end()
