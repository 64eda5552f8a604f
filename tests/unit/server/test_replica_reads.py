"""Reads from a follower: up to its commit, with its lag, and none on a store that is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS
from tests.support.fake_loop import fake_time, turns
from tests.support.followers import Leader, commit, copy, follower
from tests.support.rpc_context import RpcContext
from trovemq_broker.replication.read_lag import ReaderLag
from trovemq_broker.server.core.read_core import FollowerCore
from trovemq_broker.server.core.settings import CoreSettings
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.replica_reads import PATHS, READS, ReplicaReads
from trovemq_broker.server.wire import (
    admin_messages,
    query_messages,
    search_messages,
    send_messages,
    store_messages,
    track_messages,
)
from trovemq_daemon.calls import AwaitedCall
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import decode_received
from trovemq_proto.records.fields import split_records
from trovemq_proto.v1 import admin_pb2, biography_pb2, message_pb2, query_pb2, search_pb2, store_pb2
from trovemq_store.files.memory import MemoryFileSystem


class Replica:
    """A follower that has all of its leader's log, committed as far as the test says."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.leader.store.topics.create("orders", queue_count=2)
        for _ in range(6):
            self.leader.send("orders", 0, 1)
        self.lag = ReaderLag(300, 40)
        self.reads = ReplicaReads(lambda: TroveError(errors.NOT_LEADER, "another node leads"))
        self.open()

    def open(self) -> None:
        """The store is empty, and copied again."""
        self.store = follower(MemoryFileSystem(), settings=SEGMENT)
        copy(self.leader.store, self.store)
        self.core = FollowerCore(
            self.store,
            CoreSettings(),
            clock_ms=lambda: NOW_MS,
            traffic=Traffic(),
            replies=None,
            lag=lambda: self.lag,
        )
        self.reads.open(self.core, Path("no-directory"))

    def commit(self, count: int) -> None:
        """The first `count` messages are committed."""
        ends = self.leader.record_ends
        commit(self.store, PhysicalOffset(ends[count - 1]))
        self.reads.grown([("orders", QueueId(0))])

    async def ask(self, service: ServiceDescriptor, name: str, request: Any) -> Any:
        return await self.reads.handlers(service)[name](request, RpcContext())

    async def pages(self, service: ServiceDescriptor, name: str, request: Any) -> list[Any]:
        return [page async for page in self.reads.handlers(service)[name](request, RpcContext())]

    def begin_pull(self, **fields: Any) -> AwaitedCall:
        call = AwaitedCall(RpcContext(), None, message_pb2.FetchRequest(topic="orders", **fields))
        self.reads.on_calls(send_messages.SERVICE)["Pull"]([call])
        return call

    async def pull(self, **fields: Any) -> message_pb2.FetchReply:
        return message_pb2.FetchReply.FromString(await self.begin_pull(**fields).ending)


def bodies(records: bytes) -> list[bytes]:
    return [decode_received(one).body[:6] for one in split_records(records)]


@fake_time
async def test_every_read_ends_at_the_commit_and_says_its_lag() -> None:
    replica = Replica()
    replica.commit(3)
    seen = [b"%06d" % number for number in range(3)]
    pulled = await replica.pull(offset=0)
    assert (bodies(pulled.records), pulled.max_offset) == (seen, 3)
    found = await replica.pages(
        query_messages.SERVICE, "query_by_key", query_pb2.QueryByKeyRequest(topic="orders", key="000004")
    )
    assert [bodies(page.records) for page in found] == [[]], "it is in the log, and not committed"
    known = await replica.pages(
        query_messages.SERVICE, "query_by_key", query_pb2.QueryByKeyRequest(topic="orders", key="000002")
    )
    assert [bodies(page.records) for page in known] == [[b"000002"]]
    searched = await replica.pages(
        search_messages.SERVICE, "search", search_pb2.SearchRequest(topic="orders", oldest_first=True)
    )
    assert [one for page in searched for one in bodies(page.records)] == seen
    location = query_pb2.QueueLocation(topic="orders", queue_id=0, queue_offset=1)
    got = await replica.ask(
        query_messages.SERVICE, "get_message", query_pb2.GetMessageRequest(location=location)
    )
    assert bodies(got.records) == [b"000001"]
    offsets = await replica.ask(
        query_messages.SERVICE, "queue_offsets", query_pb2.QueueOffsetsRequest(topic="orders")
    )
    assert [one.max_offset for one in offsets.queues] == [3]
    at_time = await replica.ask(
        query_messages.SERVICE,
        "search_offset",
        query_pb2.SearchOffsetRequest(topic="orders", timestamp=NOW_MS + 1_000),
    )
    assert at_time.offset == 3
    for reply in (pulled, found[-1], known[-1], searched[-1], got, offsets, at_time):
        assert (reply.replica.bytes, reply.replica.ms) == (300, 40)


@fake_time
async def test_a_follower_refused_the_scrub_of_its_store() -> None:
    replica = Replica()
    replica.commit(3)
    done = (await replica.pages(store_messages.SERVICE, "scrub", store_pb2.ScrubRequest()))[-1]
    assert done.done
    assert (done.end, done.damages) == (replica.store.visible_offset, 0)
    assert done.records >= 3
    assert "backup" not in replica.reads.handlers(store_messages.SERVICE)


@fake_time
async def test_topics_are_described_up_to_the_commit() -> None:
    replica = Replica()
    replica.commit(2)
    listed = await replica.ask(admin_messages.SERVICE, "list_topics", admin_pb2.ListTopicsRequest())
    assert "orders" in [one.topic for one in listed.topics]
    described = await replica.ask(
        admin_messages.SERVICE, "describe_topic", admin_pb2.DescribeTopicRequest(topic="orders")
    )
    assert [one.max_offset for one in described.queues] == [2]


@fake_time
async def test_a_track_has_copies_and_no_groups() -> None:
    replica = Replica()
    replica.commit(6)
    location = query_pb2.QueueLocation(topic="orders", queue_id=0, queue_offset=1)
    found = await replica.ask(
        track_messages.SERVICE, "biography", biography_pb2.BiographyRequest(location=location)
    )
    assert ([one.queue_offset for one in found.copies], list(found.verdicts)) == ([1], [])
    assert not found.complete
    assert any("leader alone" in note for note in found.notes)
    assert found.replica.ms == 40


@fake_time
async def test_a_replica_that_never_had_all_says_so() -> None:
    replica = Replica()
    replica.commit(1)
    replica.lag = ReaderLag(None, None)
    pulled = await replica.pull(offset=0)
    assert pulled.HasField("replica")
    assert not pulled.replica.HasField("ms")
    assert not pulled.replica.HasField("bytes")


PLACE = query_pb2.QueueLocation(topic="orders")


@fake_time
@pytest.mark.parametrize(
    ("service", "name", "request_of"),
    [
        (query_messages.SERVICE, "get_message", lambda: query_pb2.GetMessageRequest(location=PLACE)),
        (
            query_messages.SERVICE,
            "query_by_key",
            lambda: query_pb2.QueryByKeyRequest(topic="orders", key="k"),
        ),
        (query_messages.SERVICE, "search_offset", lambda: query_pb2.SearchOffsetRequest(topic="orders")),
        (query_messages.SERVICE, "queue_offsets", lambda: query_pb2.QueueOffsetsRequest(topic="orders")),
        (search_messages.SERVICE, "search", lambda: search_pb2.SearchRequest(topic="orders")),
        (track_messages.SERVICE, "biography", lambda: biography_pb2.BiographyRequest(location=PLACE)),
    ],
)
async def test_a_replica_with_too_long_a_lag_refuses(
    service: ServiceDescriptor, name: str, request_of: Callable[[], Any]
) -> None:
    replica = Replica()
    replica.commit(6)
    replica.lag = ReaderLag(0, 101)
    request = request_of()
    calls = replica.pages if name in ("query_by_key", "search") else replica.ask
    for max_lag_ms, symbol in ((100, "REPLICA_LAG_EXCEEDED"), (-1, "REQUEST_ILLEGAL")):
        request.max_lag_ms = max_lag_ms
        with pytest.raises(TroveError, match=symbol):
            await calls(service, name, request)
    for borne in (101, 0):
        request.max_lag_ms = borne
        await calls(service, name, request)


@fake_time
async def test_a_pull_that_waits_at_a_replica_without_a_leader_is_refused() -> None:
    replica = Replica()
    replica.commit(6)
    replica.lag = ReaderLag(0, 0)
    call = replica.begin_pull(offset=6, wait_ms=20_000, max_lag_ms=1_000)
    await turns(5)
    assert not call.ending.done()
    replica.lag = ReaderLag(0, 1_100)  # no heartbeat came
    with pytest.raises(TroveError, match="REPLICA_LAG_EXCEEDED"):
        async with asyncio.timeout(1.5):
            await call.ending
    with pytest.raises(TroveError, match="REPLICA_LAG_EXCEEDED"):
        await replica.pull(offset=0, max_lag_ms=1_000)


@fake_time
async def test_a_reader_from_the_leader_began_again_at_a_replica_with_a_lag() -> None:
    """Its offset was after the end of the replica's queue: OFFSET_OUT_OF_RANGE."""
    replica = Replica()
    replica.commit(2)
    call = replica.begin_pull(offset=5, wait_ms=20_000)
    await turns(5)
    assert not call.ending.done()
    replica.commit(6)
    reply = message_pb2.FetchReply.FromString(await call.ending)
    assert (bodies(reply.records), reply.next_offset) == ([b"000005"], 6)
    later = await replica.pull(offset=50)  # of a message that this log does not have yet
    assert (later.records, later.next_offset, later.max_offset) == (b"", 50, 6)
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
        await replica.pull(offset=-1)


@fake_time
async def test_a_stream_of_fetches_sees_messages_as_they_are_committed() -> None:
    replica = Replica()
    replica.commit(1)
    context = RpcContext()
    fetching = asyncio.create_task(replica.reads.handlers(send_messages.SERVICE)["fetch"](None, context))
    request = message_pb2.FetchRequest(fetch_id=1, topic="orders", offset=1, wait_ms=60_000, replies_max=9)
    context.requests.put_nowait(request)
    await turns(5)
    replica.commit(2)
    await turns(5)
    replica.lag = ReaderLag(7, 8)
    replica.commit(4)
    await turns(5)
    replies = [message_pb2.FetchReply.FromString(one) for one in context.written]
    assert [bodies(one.records) for one in replies] == [[b"000001"], [b"000002", b"000003"]]
    assert [(one.replica.bytes, one.replica.ms) for one in replies] == [(300, 40), (7, 8)]
    fetching.cancel()
    await asyncio.wait((fetching,))


@fake_time
async def test_calls_end_before_the_store_is_closed_and_later_ones_read_the_next() -> None:
    replica = Replica()
    replica.commit(6)
    held = asyncio.Event()

    async def wait_long(*_: Any) -> None:
        await held.wait()

    replica.reads._open.by_name[query_messages.SERVICE.full_name].get_message = wait_long  # type: ignore[union-attr]
    asked = asyncio.create_task(
        replica.ask(query_messages.SERVICE, "get_message", query_pb2.GetMessageRequest(location=PLACE))
    )
    pulling = replica.begin_pull(offset=6, wait_ms=20_000)
    context = RpcContext()
    fetching = asyncio.create_task(replica.reads.handlers(send_messages.SERVICE)["fetch"](None, context))
    context.requests.put_nowait(message_pb2.FetchRequest(topic="orders", offset=6, wait_ms=60_000))
    await turns(5)
    await replica.reads.close()
    assert asked.done()
    assert fetching.done()
    for ended in (asked, fetching, pulling.ending):
        with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
            await ended
    with pytest.raises(TroveError, match="NOT_LEADER"):
        await replica.pull(offset=0)
    replica.store.close(NOW_MS)
    replica.open()
    replica.commit(2)
    assert bodies((await replica.pull(offset=0)).records) == [b"000000", b"000001"]


@fake_time
async def test_a_caller_that_leaves_is_no_end_of_the_store() -> None:
    replica = Replica()
    context = RpcContext()
    fetching = asyncio.create_task(replica.reads.handlers(send_messages.SERVICE)["fetch"](None, context))
    await turns(5)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await replica.reads.close()


def test_reads_are_methods_of_their_services() -> None:
    services = (
        admin_messages.SERVICE,
        query_messages.SERVICE,
        search_messages.SERVICE,
        send_messages.SERVICE,
        store_messages.SERVICE,
        track_messages.SERVICE,
    )
    known = {f"/{one.full_name}/{method.name}" for one in services for method in one.methods}
    assert known >= PATHS
    assert {one.full_name for one in services} == set(READS)
