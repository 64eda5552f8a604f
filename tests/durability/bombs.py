"""Requests that are small or legal in form and would cost a careless server much memory or time.

Run as a program it lets each of them go off at a broker in its own process, and prints a line of JSON for
each: name, the client's outcome, memory in KiB, processor time in ms. Memory is what the process grew by at
most while the request was served, beside one copy of the request's bytes.
"""

from __future__ import annotations

import gc
import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.durability.process_memory import memory_kib, restart_peak
from tests.support.engine import NOW_MS
from tests.support.fake_loop import run
from tests.support.fuzz_ledger import MESSAGING, NATIVE
from tests.support.memory_broker import message, receive_request
from tests.support.services_here import (
    BrokerServices,
    Calls,
    NameserverServices,
    Outcome,
    faults_seen,
    in_process,
    small_broker_settings,
)
from trovemq.cli.apply_file import parse_file
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_offset_msg_id
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.message import decode_message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, common_pb2, group_pb2, message_pb2, query_pb2, route_pb2
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.json_file import JsonFile

MILLION: Final = 1_000_000
GIB: Final = 1 << 30
COMPRESSED: Final = {
    "zlib": (0x301, b""),
    "lz4": (0x101, bytes.fromhex("04224d18")),
    "zstd": (0x201, bytes.fromhex("28b52ffd")),
}
"""By method the system flag, and the first bytes without which the door refuses a body."""
BODY_SIZE_MAX: Final = 4_194_304
APPEND: Final = f"{NATIVE}MessageService.Append"

Bomb = tuple[str, bytes]
"""Method (full name) and the request."""


def deflated_zeros(size: int, wbits: int) -> bytes:
    """A stream that inflates to that number of zeros. It has no end: no reader comes that far."""
    block = zlib.compressobj(9, zlib.DEFLATED, wbits)
    head = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    again = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    return head + again * (size // (1 << 20) - 1)


def _sent(one: v2.Message, count: int = 1) -> bytes:
    return service_pb2.SendMessageRequest(messages=[one] * count).SerializeToString()


def _gzipped(body: bytes) -> v2.Message:
    made = message(body)
    made.system_properties.body_encoding = v2.GZIP
    return made


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _many_properties() -> bytes:
    """Written by hand: a million different ones take protobuf long to make."""
    entries = b"".join(_field(2, b"\x0a\x07k%06d\x12\x01v" % number) for number in range(MILLION))
    plain = message().SerializeToString()
    return _field(1, plain + entries)


def _expression(text: str, kind: int = v2.SQL) -> bytes:
    return receive_request(expression=text, kind=kind, polling_ms=0).SerializeToString()


def _frame(body: bytes, **fields: Any) -> bytes:
    records = encode_record("orders", body, append_property_crc=True, born_timestamp=NOW_MS, **fields)
    return message_pb2.AppendFrame(frame_id=1, topic="orders", records=records).SerializeToString()


def _nested_batch() -> bytes:
    inner = encode_record("orders", b"x", append_property_crc=True)
    for _ in range(500):
        inner = encode_record("orders", inner, append_property_crc=True)
    records = encode_record(
        "orders", inner, properties={"INNER_NUM": str(GIB)}, sys_flag=0x1 << 15, append_property_crc=True
    )
    return message_pb2.AppendFrame(frame_id=1, topic="orders", records=records * 20).SerializeToString()


def bombs() -> dict[str, Bomb]:
    """By name."""
    gzip_1gib = deflated_zeros(GIB, 31)
    text = "x" * (4 << 20)
    subscription = v2.SubscriptionEntry(topic=v2.Resource(name="orders"))
    settings = v2.Settings(
        client_type=v2.PUSH_CONSUMER,
        subscription=v2.Subscription(group=v2.Resource(name="g"), subscriptions=[subscription] * 200_000),
    )
    entries = [service_pb2.AckMessageEntry(message_id="M", receipt_handle="h")] * 200_000
    ack = service_pb2.AckMessageRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="orders"), entries=entries
    )
    topics = [common_pb2.TopicRoute(topic=f"t{i}", queue_count=1) for i in range(300_000)]
    broker = common_pb2.BrokerInfo(cluster="c", name="b", address="10.0.0.1:8081")
    send, receive = f"{MESSAGING}SendMessage", f"{MESSAGING}ReceiveMessage"
    many = range(MILLION)
    return {
        "gzip body of 1 GiB": (send, _sent(_gzipped(gzip_1gib))),
        "32 gzip bodies of 1 GiB": (send, _sent(_gzipped(gzip_1gib), 32)),
        "1,024 gzip bodies of the largest size": (
            send,
            _sent(_gzipped(gzip.compress(bytes(BODY_SIZE_MAX))), 1_024),
        ),
        "a million properties": (send, _many_properties()),
        "a million keys": (send, _sent(message(keys=[f"k{i:06}" for i in many]))),
        "one property of 4 MiB": (send, _sent(message(properties={"p": text}))),
        "batch within batch, 500 deep": (APPEND, _nested_batch()),
        "SQL of 4 MiB": (receive, _expression("a = 1 OR " * 450_000 + "TRUE")),
        "SQL with 100,000 parentheses": (receive, _expression("(" * 100_000 + "TRUE" + ")" * 100_000)),
        "SQL with 100,000 NOT": (receive, _expression("NOT " * 100_000 + "TRUE")),
        "a million tags": (receive, _expression(" || ".join(f"t{i:06}" for i in many), v2.TAG)),
        "a million tags to fetch": (
            f"{NATIVE}MessageService.Pull",
            message_pb2.FetchRequest(topic="orders", tags=[f"t{i:06}" for i in many]).SerializeToString(),
        ),
        "a million queues": (
            f"{NATIVE}QueryService.QueueOffsets",
            query_pb2.QueueOffsetsRequest(topic="orders", queue_ids=many).SerializeToString(),
        ),
        "a million dead letters": (
            f"{NATIVE}GroupService.ResendDeadLetters",
            group_pb2.ResendDeadLettersRequest(group="g", offsets=many).SerializeToString(),
        ),
        "a million steps of back-off": (
            f"{NATIVE}GroupService.CreateGroup",
            group_pb2.CreateGroupRequest(
                group="steps", settings=group_pb2.GroupSettings(backoff_ms=many)
            ).SerializeToString(),
        ),
        "a cursor of 4 MiB": (
            f"{NATIVE}QueryService.QueryByKey",
            query_pb2.QueryByKeyRequest(topic="orders", key="k", cursor=text).SerializeToString(),
        ),
        "an identifier of 4 MiB": (
            f"{NATIVE}QueryService.GetMessage",
            query_pb2.GetMessageRequest(id="AB" * (2 << 20)).SerializeToString(),
        ),
        "a receipt handle of 4 MiB": (
            f"{MESSAGING}ChangeInvisibleDuration",
            service_pb2.ChangeInvisibleDurationRequest(
                group=v2.Resource(name="g"), topic=v2.Resource(name="orders"), receipt_handle=text
            ).SerializeToString(),
        ),
        "a recall handle of 4 MiB": (
            f"{MESSAGING}RecallMessage",
            service_pb2.RecallMessageRequest(
                topic=v2.Resource(name="orders"), recall_handle=text
            ).SerializeToString(),
        ),
        "200,000 acknowledgements": (f"{MESSAGING}AckMessage", ack.SerializeToString()),
        "200,000 subscriptions": (
            f"{MESSAGING}Telemetry",
            service_pb2.TelemetryCommand(settings=settings).SerializeToString(),
        ),
        "unknown groups, 100,000 deep": (send, b"\x7b" * 100_000),
        "300,000 topics of one broker": (
            f"{NATIVE}RegistrationService.Register",
            route_pb2.Heartbeat(broker=broker, topics=topics, data_version=1).SerializeToString(),
        ),
        "4,194,304 empty topics of one broker": (
            f"{NATIVE}RegistrationService.Register",
            route_pb2.Heartbeat(broker=broker).SerializeToString() + b"\x12\x00" * (4 << 20),
        ),
        "a placement of a million brokers": (
            f"{NATIVE}RegistrationService.Register",
            route_pb2.Heartbeat(
                broker=broker,
                topics=[common_pb2.TopicRoute(topic="t", placement={f"b{i:06}": 1 for i in many})],
            ).SerializeToString(),
        ),
        "four million fields of a frame": (APPEND, b"\x28\x00" * (4 << 20)),
        "a million topics to watch": (
            f"{NATIVE}RouteService.WatchRoutes",
            route_pb2.WatchRoutesRequest(topics=[f"t{i:06}" for i in many]).SerializeToString(),
        ),
    }


def _config(content: bytes) -> object:
    files = MemoryFileSystem()
    files.write_atomic("config/topics.json", content)
    return JsonFile(files, "config/topics.json").load()


# --- one process -----------------------------------------------------------------------------------------
@contextmanager
def _measured(name: str, seen: list[str], size: int = 0) -> Iterator[None]:
    """Prints the cost of the block; `seen` gets the client's outcome in it, `size` is the request's."""
    gc.collect()
    restart_peak()
    before, started = memory_kib("VmRSS"), time.process_time()
    yield
    took_ms = (time.process_time() - started) * 1_000
    grown = max(0, memory_kib("VmHWM") - before - size // 1_024)
    print(json.dumps({"name": name, "seen": seen[-1], "kib": grown, "ms": took_ms}), flush=True)


async def _set_off(name: str, calls: Calls, bomb: Bomb) -> bytes:
    """The first reply."""
    method, request = bomb
    seen: list[str] = []
    with _measured(name, seen, len(request)):
        outcome = await calls.call(method, [request], (("x-mq-client-id", "client-1"),))
        seen.append(_seen(calls, method, outcome))
    return outcome.replies[0] if outcome.replies else b""


async def _set_off_stored(broker: Calls) -> None:
    """Compressed bodies are stored as they come. The broker inflates one where a consumer is to get it by
    hand, the SDK each that it receives."""
    zeros = deflated_zeros(GIB, 15)
    for method, (sys_flag, head) in COMPRESSED.items():
        body = head + zeros
        frame = _frame(body, sys_flag=sys_flag)
        reply = await _set_off(f"{method} body of 1 GiB, stored", broker, (APPEND, frame))
        placed = message_pb2.AppendReply.FromString(reply)
        identifier = encode_offset_msg_id(placed.store_host, PhysicalOffset(placed.physical_offset))
        direct = group_pb2.ConsumeDirectlyRequest(
            client_id="c", group="g", topic="orders", message=identifier
        ).SerializeToString()
        name = f"{method} body of 1 GiB, handed to a consumer"
        await _set_off(name, broker, (f"{NATIVE}GroupService.ConsumeDirectly", direct))
        records = encode_record("orders", body, sys_flag=sys_flag)
        _set_off_in_sdk(f"{method} body of 1 GiB, in the SDK", partial(decode_message, records))
    deep = b'{"topics": ' + b"[" * 500_000
    _set_off_in_sdk("a file with 500,000 brackets to apply", lambda: parse_file(deep))
    _set_off_in_sdk("a configuration with 500,000 brackets", lambda: _config(deep))


def _set_off_in_sdk(name: str, work: Callable[[], object]) -> None:
    seen = ["OK"]
    with _measured(name, seen):
        try:
            work()
        except (TroveError, ValueError) as error:
            seen.append(error.symbol if isinstance(error, TroveError) else type(error).__name__)


def _seen(calls: Calls, method: str, outcome: Outcome) -> str:
    if outcome.code != "OK" or not outcome.replies:
        return outcome.symbol or outcome.code
    reply = calls.parse(method, outcome.replies[0])
    if "error" in reply.DESCRIPTOR.fields_by_name and reply.HasField("error"):
        return str(reply.error.symbol)
    status = getattr(reply, "status", None)
    return v2.Code.Name(status.code) if isinstance(status, v2.Status) else "OK"


async def _main() -> None:
    with in_process(), TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory)
        settings = small_broker_settings(
            path,
            body_size_max=BODY_SIZE_MAX,
            batch_size_max=2 * BODY_SIZE_MAX,
            commit_log_file_size=16 << 20,
        )
        broker, nameserver = BrokerServices(RealFileSystem(path), settings), NameserverServices()
        stack.enter_context(faults_seen(broker))
        async with broker.working():
            create = admin_pb2.CreateTopicRequest(topic="orders", message_type="NORMAL")
            await broker.call(f"{NATIVE}AdminService.CreateTopic", [create.SerializeToString()])
            for _ in range(3):  # whatever is loaded and kept at the first use
                await broker.call(f"{MESSAGING}SendMessage", [_sent(message())], (("x-mq-client-id", "c"),))
            for name, bomb in bombs().items():
                await _set_off(name, nameserver if "Registration" in bomb[0] else broker, bomb)
            await _set_off_stored(broker)


if __name__ == "__main__":
    run(_main())
