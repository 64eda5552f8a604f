"""A broker whose descriptors are all taken, until they are released: its limit is below the number that it
has open, or idle connections without credentials take them.

A group passes no message, a look-up is exact or an error, and the broker continues.
"""

from __future__ import annotations

import re
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.rocketmq_client import RawClient, create_topics, message
from tests.support.stubs import QUERIES, stub_of
from trovemq_daemon.limits import CONNECTIONS_MIN
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import query_pb2

pytestmark = pytest.mark.slow

COUNT = 120
SIZE = 3_000
QUEUES = 4
SETTINGS = (
    "mappedFileSizeCommitLog=131072",
    "mappedFileSizeConsumeQueue=400",
    "projection_flush_interval_ms=50",
)
IDLE = 260


@contextmanager
def limited(broker: BrokerProcess, limit: int) -> Iterator[None]:
    """While it holds, the broker may have that many descriptors: with 1 each call for another one fails."""
    process = broker.process.pid
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)


def body_of(number: int) -> bytes:
    return f"{number:04d}".encode() + bytes(SIZE)


def fill(client: RawClient) -> None:
    for number in range(COUNT):
        one = message("orders", body_of(number), "", keys=[f"k{number}"])
        reply = client.call(
            "SendMessage", service.SendMessageRequest(messages=[one]), service.SendMessageResponse
        )
        assert reply.status.code == v2.OK


class Worker:
    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.numbers: list[int] = []

    def receive(self, poll_s: float = 5) -> bool:
        """Whether a receive was answered with messages."""
        found: list[Any] = []
        refusal = "RESOURCES_SCARCE"
        try:
            found = self.client.receive("workers", "orders", count=8, poll_s=poll_s, invisible_s=30)
        except (grpc.RpcError, AssertionError) as error:
            refusal = str(error)
        assert re.search("RESOURCES_SCARCE|Too many open files", refusal), refusal
        self.numbers += [int(one.body[:4]) for one in found]
        assert not any(one.system_properties.delivery_attempt > 1 for one in found)
        if found:
            self.client.acknowledge("workers", found)
        return bool(found)


def look_up(queries: Any, number: int) -> bool:
    """Whether it was answered. The answer has the message."""
    request = query_pb2.QueryByKeyRequest(topic="orders", key=f"k{number}")
    pages: list[query_pb2.QueryPage] = []
    refusal = ""
    try:
        pages = list(queries.QueryByKey(request, timeout=60))
    except grpc.RpcError as error:
        refusal = str(error.trailing_metadata())
    assert pages or re.search("RESOURCES_SCARCE", refusal), refusal
    if not pages:
        return False
    assert pages[-1].complete
    assert body_of(number) in b"".join(page.records for page in pages), f"{number} was not found"
    return True


def metric(broker: BrokerProcess, name: str) -> float:
    found = re.search(rf"^{name}{{[^}}]*}} (\S+)", broker.get("/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


def test_a_broker_without_a_free_descriptor_took_its_log_for_damaged(tmp_path: Path) -> None:
    with running_broker(tmp_path, *SETTINGS) as broker, RawClient(broker.address) as client:
        create_topics(broker.address, {"orders": "NORMAL"}, queue_count=QUEUES)
        fill(client)
        assert broker.stop() == 0
    with (
        running_broker(tmp_path, *SETTINGS) as broker,  # no file is mapped, or open for reading, yet
        RawClient(broker.address) as client,
        grpc.insecure_channel(broker.address) as channel,
    ):
        queries, worker = stub_of(QUERIES, channel), Worker(client)
        queries.QueueOffsets(query_pb2.QueueOffsetsRequest(topic="orders"), timeout=60)  # connects
        worker.receive()
        with limited(broker, 1):
            for number in range(0, COUNT, 10):
                worker.receive(poll_s=0.2)
                look_up(queries, number)
            client.send("orders", b"9999")
        while worker.receive(poll_s=1):
            pass
        numbers = [number for number in worker.numbers if number < COUNT]
        assert sorted(numbers) == list(range(COUNT)), "the group passed messages, or got some twice"
        assert all(look_up(queries, number) for number in range(COUNT))
        assert "trovemq_store_damaged_ranges_total{" not in broker.get("/metrics")[1]
        assert broker.stop() == 0


def test_idle_connections_without_credentials_took_all_descriptors(tmp_path: Path) -> None:
    idle: list[socket.socket] = []
    with running_broker(tmp_path, *SETTINGS) as broker, RawClient(broker.address) as client:
        create_topics(broker.address, {"orders": "NORMAL"}, queue_count=QUEUES)
        fill(client)
        with limited(broker, 200), grpc.insecure_channel(broker.address) as channel:
            queries, worker = stub_of(QUERIES, channel), Worker(client)
            assert look_up(queries, 0)
            host, _, port = broker.address.rpartition(":")
            for _ in range(IDLE):
                idle.append(one := socket.socket())
                one.connect((host, int(port)))
            while worker.receive(poll_s=1):
                pass
            assert sorted(worker.numbers) == list(range(COUNT))
            assert all(look_up(queries, number) for number in range(0, COUNT, 5))
            assert metric(broker, "trovemq_connections_above_limit_total") > 0
            limit = metric(broker, "trovemq_connections_max")
            assert CONNECTIONS_MIN <= limit < 200
            assert metric(broker, "trovemq_connections") <= limit
        for one in idle:
            one.close()
        with RawClient(broker.address) as later:
            assert later.send("orders", b"9999").status.code == v2.OK
        assert broker.stop() == 0
