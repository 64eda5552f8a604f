"""Small or lawful requests that would cost a careless server much: refused, within little memory and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_loop import run
from tests.support.services_here import (
    BrokerServices,
    NameserverServices,
    in_process,
    small_broker_settings,
)
from tests.support.trials import Trials
from trovemq_broker.server.wire.statuses import Malformed
from trovemq_daemon.request_bounds import PARTS_MAX, SIZE_ALWAYS_FINE, check_parts
from trovemq_nameserver.heartbeats import LargeHeartbeat, read_large
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.topics import TopicNames
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import BODY_SIZE_MAX_DEFAULT
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import cluster_config_pb2, query_pb2
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem

GROWN_KIB_MAX = 16 << 10
TOOK_MS_MAX = 400.0
"""100 ms are meant; the machine may be slow, and busy."""
SDK_BODY_KIB_MAX = (BODY_SIZE_MAX_DEFAULT >> 10) * 3 // 2
"""The SDK's limit of an inflated body that an application received; zlib joins it from blocks."""
ROOT = Path(__file__).parents[2]

REFUSALS = {
    "gzip body of 1 GiB": "MESSAGE_BODY_TOO_LARGE",
    "32 gzip bodies of 1 GiB": "MESSAGE_BODY_TOO_LARGE",
    "1,024 gzip bodies of the largest size": "PAYLOAD_TOO_LARGE",
    "a million properties": "BAD_REQUEST",
    "a million keys": "BAD_REQUEST",
    "one property of 4 MiB": "MESSAGE_PROPERTIES_TOO_LARGE",
    "batch within batch, 500 deep": "BATCH_ILLEGAL",
    "SQL of 4 MiB": "ILLEGAL_FILTER_EXPRESSION",
    "SQL with 100,000 parentheses": "ILLEGAL_FILTER_EXPRESSION",
    "SQL with 100,000 NOT": "ILLEGAL_FILTER_EXPRESSION",
    "a million tags": "ILLEGAL_FILTER_EXPRESSION",
    "a million tags to fetch": "LIMIT_EXCEEDED",
    "a million queues": "LIMIT_EXCEEDED",
    "a million dead letters": "LIMIT_EXCEEDED",
    "a million steps of back-off": "LIMIT_EXCEEDED",
    "a cursor of 4 MiB": "CURSOR_ILLEGAL",
    "an identifier of 4 MiB": "MESSAGE_ID_ILLEGAL",
    "a receipt handle of 4 MiB": "INVALID_RECEIPT_HANDLE",
    "a recall handle of 4 MiB": "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    "200,000 acknowledgements": "BAD_REQUEST",
    "200,000 subscriptions": "INVALID_ARGUMENT",
    "unknown groups, 100,000 deep": "BAD_REQUEST",
    "300,000 topics of one broker": "LIMIT_EXCEEDED",
    "4,194,304 empty topics of one broker": "LIMIT_EXCEEDED",
    "a placement of a million brokers": "LIMIT_EXCEEDED",
    "four million fields of a frame": "BATCH_ILLEGAL",
    "a million topics to watch": "LIMIT_EXCEEDED",
    "zlib body of 1 GiB, stored": "OK",  # it lies there as it came: 1 MiB
    "zlib body of 1 GiB, handed to a consumer": "CONSUMER_NOT_ONLINE",
    "zlib body of 1 GiB, in the SDK": "RECORD_DAMAGED",
    "lz4 body of 1 GiB, stored": "OK",
    "lz4 body of 1 GiB, handed to a consumer": "CONSUMER_NOT_ONLINE",
    "lz4 body of 1 GiB, in the SDK": "RECORD_DAMAGED",
    "zstd body of 1 GiB, stored": "OK",
    "zstd body of 1 GiB, handed to a consumer": "CONSUMER_NOT_ONLINE",
    "zstd body of 1 GiB, in the SDK": "RECORD_DAMAGED",
    "a file with 500,000 brackets to apply": "REQUEST_ILLEGAL",
    "a configuration with 500,000 brackets": "STORE_FAILED",  # the daemon says so and does not start
}


@pytest.mark.slow
def test_bombs_are_refused_within_16_mib_and_a_tenth_of_a_second(trials: Trials) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability.bombs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # others are of the log
    results = {row["name"]: row for row in map(json.loads, lines)}
    assert results.keys() == REFUSALS.keys()
    for name, row in results.items():
        optional = name.startswith(("lz4", "zstd")) and row["seen"] == "COMPRESSION_UNSUPPORTED"
        assert row["seen"] == REFUSALS[name] or optional, row
        bound_kib = SDK_BODY_KIB_MAX if "in the SDK" in name else 0
        assert row["kib"] <= GROWN_KIB_MAX + bound_kib, row
        assert row["ms"] <= TOOK_MS_MAX, row
        trials.count("S3", "bombs")


@pytest.mark.slow
def test_every_method_of_every_daemon_bounds_its_requests_and_streams() -> None:
    """A stream's messages, too. 100,000 unknown fields are too many for each of them, before protobuf."""
    bomb = b"\xc8\x3e\x00" * 100_000  # field 1,001
    assert len(bomb) > SIZE_ALWAYS_FINE

    async def check() -> None:
        with in_process():
            files = MemoryFileSystem()
            services = BrokerServices(files, small_broker_settings(Path("/nowhere"))), NameserverServices()
            for calls in services:
                for name in calls.methods:
                    if calls.handler(name) is not None:
                        read = calls.reader(name)(bomb)
                        if isinstance(read, LargeHeartbeat):  # it is read, and refused, in steps
                            with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
                                finished(read_large(read.data, RouteLimits(), TopicNames()))
                        else:
                            assert isinstance(read, (TroveError, Malformed)) or read.fault, name

    run(check())


def _refused(data: bytes, descriptor: Any, parts_max: int = PARTS_MAX) -> bool:
    try:
        check_parts(data, descriptor, parts_max)
    except TroveError as error:
        return error.spec is errors.LIMIT_EXCEEDED
    return False


def test_parts_of_a_large_request_are_counted_where_they_are() -> None:
    big = "x" * SIZE_ALWAYS_FINE
    one = v2.Message(body=big.encode(), system_properties=v2.SystemProperties(keys=["a"] * 10))
    request = service_pb2.SendMessageRequest(messages=[one, one])
    data, descriptor = request.SerializeToString(), service_pb2.SendMessageRequest.DESCRIPTOR
    parts = 2 * (1 + 2 + 10)  # each message, its body and system properties, their keys
    assert not _refused(data, descriptor, parts)
    assert _refused(data, descriptor, parts - 1)
    packed = query_pb2.QueueOffsetsRequest(topic=big, queue_ids=range(100)).SerializeToString()
    assert not _refused(packed, query_pb2.QueueOffsetsRequest.DESCRIPTOR, 2 + 100)
    assert _refused(packed, query_pb2.QueueOffsetsRequest.DESCRIPTOR, 2 + 99)


def test_what_is_not_a_message_is_left_to_protobuf() -> None:
    descriptor = service_pb2.SendMessageRequest.DESCRIPTOR
    for data in (b"\x0a\xff", b"\x0b", b"\x0a", b"\xff" * 20, b"\x08"):
        assert not _refused(data * (SIZE_ALWAYS_FINE + 1), descriptor, 1 << 30)


def test_a_message_without_lists_or_messages_is_one_part() -> None:
    names = [cluster_config_pb2.ConfigName(kind="topic", name=f"{i:060}", message="x") for i in range(5_000)]
    data = cluster_config_pb2.ConfigStatus(unlisted=names).SerializeToString()
    descriptor = cluster_config_pb2.ConfigStatus.DESCRIPTOR
    assert len(data) > SIZE_ALWAYS_FINE
    assert not _refused(data, descriptor, 5_000)
    assert _refused(data, descriptor, 4_999)


def test_a_request_that_is_not_large_is_not_looked_at() -> None:
    request = query_pb2.QueueOffsetsRequest(topic="t", queue_ids=range(1_000)).SerializeToString()
    assert not _refused(request, query_pb2.QueueOffsetsRequest.DESCRIPTOR, 1)
