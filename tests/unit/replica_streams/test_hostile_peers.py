"""Bad input and hostile peers, by a raw client: nothing changes, the answer names the error, and the other
followers go unharmed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

import grpc
import pytest

from tests.support.atomic import SEGMENT
from tests.support.logs import logged
from tests.unit.replica_streams.nodes_here import CLUSTER, GROUP, GroupHere, NodeHere, run
from trovemq_broker.cluster.nameserver_session import error_in
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replica_streams.taken_streams import TAKEN_LOG_EVERY_MS
from trovemq_broker.replication.frames import (
    FRAME_BYTES_MAX,
    Data,
    FollowerFrame,
    Heartbeat,
    Hello,
    Identity,
    LeaderFrame,
    Offset,
    Progress,
    Welcome,
)
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import ErrorSpec
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.records.layout import PHYSICAL_OFFSET_AT
from trovemq_proto.v1 import replication_pb2 as pb
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_store.replica.epochs import Epochs

CHANNELS = ChannelSettings(transport="trovemq", message_size_max=16 << 20)


class RawStream:
    """A stream of Follow, frame by frame."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, frame: FollowerFrame | bytes) -> None:
        await self.call.write(frame if isinstance(frame, bytes) else wire.follower_bytes(frame))

    async def read(self) -> LeaderFrame:
        return wire.leader_frame_of(await self.call.read())

    async def until(self, kind: type[LeaderFrame]) -> LeaderFrame:
        while not isinstance(frame := await self.read(), kind):
            pass
        return frame

    async def _read_all(self) -> None:
        while isinstance(await self.call.read(), bytes):
            pass

    async def error(self) -> ErrorSpec:
        """Why the leader has ended the stream."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self._read_all()
        found = error_in(caught.value.trailing_metadata())
        assert found is not None, caught.value
        return found.spec


@asynccontextmanager
async def raw(node: NodeHere, method: str = wire.FOLLOW) -> AsyncIterator[RawStream]:
    async with open_channel(str(node.address), CHANNELS) as channel:
        call = channel.stream_stream(method, response_deserializer=bytes)()
        try:
            yield RawStream(call)
        finally:
            call.cancel()


def hello_of(node: NodeHere, **fields: Any) -> Hello:
    """The hello of a node that is down."""
    made = Hello(
        CLUSTER,
        GROUP,
        node.identity,
        node.state.promised,
        node.state.epochs,
        node.log.begin,
        node.log.end,
        node.state.commit,
        node.in_sync,
        node.group.group.segment_size,
    )
    return replace(made, **fields)


def group_run(
    use: Callable[[GroupHere, NodeHere], Coroutine[Any, Any, None]], settings: StreamSettings | None = None
) -> None:
    """`a` leads, `b` follows, `c` is a raw client. In the end `b` still follows."""

    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c", settings=settings)
        leader = await group.start("a")
        leader.send(3)
        await group.until_equal()
        await group["c"].kill()
        await group.until(lambda: leader.leading().copies == 2)
        sets = leader.leading().leader.in_sync.newest
        await use(group, leader)
        leader.send(2)
        await group.until_equal()
        assert sets == leader.leading().leader.in_sync.newest, "the in-sync set is as before"
        await group.stop()

    run(program)


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"cluster": "other"}, errors.GROUP_MISMATCH),
        ({"group": "other"}, errors.GROUP_MISMATCH),
        ({"identity": Identity("stranger", "s", 0)}, errors.NOT_A_MEMBER),
        ({"identity": Identity("a", "s", 0)}, errors.NOT_A_MEMBER),
        ({"segment_size": 1_024}, errors.SEGMENT_SIZE_MISMATCH),
        ({"sealing_key_id": "another"}, errors.SEALING_KEY_MISMATCH),
        ({"commit": Offset(1 << 40)}, errors.REPLICA_FRAME_ILLEGAL),
        ({"epochs": Epochs.of([(1, 0), (9, 1 << 40)])}, errors.REPLICA_FRAME_ILLEGAL),
        ({"epochs": Epochs(), "commit": LOG_ORIGIN}, errors.STORE_DIVERGED),
    ],
)
def test_a_wrong_hello_is_refused(fields: dict[str, Any], spec: ErrorSpec) -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            await stream.send(hello_of(group["c"], **fields))
            assert await stream.error() is spec
        assert not leader.stepped_down

    group_run(use)


def test_a_strangers_promise_deposes_nobody() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        for fields in ({"identity": Identity("x", "s", 0)}, {"group": "other"}):
            async with raw(leader) as stream:
                await stream.send(hello_of(group["c"], promised=1 << 20, **fields))
                await stream.error()
        assert not leader.stepped_down

    group_run(use)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        pb.FollowRequest(progress=pb.ReplicaProgress(epoch=1)).SerializeToString(),
        pb.FollowRequest(hello=pb.ReplicaHello(epochs=bytes(12 * 4_097))).SerializeToString(),
        pb.FollowRequest(hello=pb.ReplicaHello(cluster="c" * 54_600)).SerializeToString(),
    ],
)
def test_bytes_that_are_no_hello_are_refused(data: bytes) -> None:
    async def use(_group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            await stream.send(data)
            assert await stream.error() is errors.REPLICA_FRAME_ILLEGAL
        assert leader.allowed.refusals.counts["REPLICA_FRAME_ILLEGAL"] == 1

    group_run(use)


def test_a_stream_without_a_hello_ends() -> None:
    async def use(_group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            assert await stream.error() is errors.REPLICA_FRAME_ILLEGAL

    group_run(use)


@pytest.mark.parametrize(
    "change",
    [
        lambda end: Progress(1, Offset(end + 1), Offset(end), 0),
        lambda end: Progress(1, Offset(end), Offset(end + 1), 0),
        lambda end: Progress(1, Offset(end - 1), Offset(0), 0),
        lambda end: Progress(1, Offset(end), Offset(end), 99),
        lambda _end: b"\xff\xff",
        lambda _end: wire.follower_bytes(Progress(1, LOG_ORIGIN, LOG_ORIGIN, 0)) + b"\x0a\x00",
    ],
)
def test_a_report_of_more_than_was_sent_ends_the_stream(change: Callable[[int], Progress | bytes]) -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        commit = leader.leading().commit_offset
        async with raw(leader) as stream:
            await stream.send(hello_of(group["c"]))
            welcome = await stream.until(Welcome)
            assert isinstance(welcome, Welcome)
            await stream.send(change(welcome.cut_to))
            assert await stream.error() is errors.REPLICA_FRAME_ILLEGAL
        assert leader.leading().commit_offset == commit

    group_run(use)


def test_a_report_of_a_lower_epoch_is_stale() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            await stream.send(hello_of(group["c"]))
            await stream.until(Welcome)
            await stream.send(Progress(0, group["c"].log.end, group["c"].log.end, 0))
            assert await stream.error() is errors.EPOCH_STALE

    group_run(use)


def test_three_illegal_frames_hold_a_node_out_for_a_minute() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async def answer() -> ErrorSpec:
            async with raw(leader) as stream:
                await stream.send(hello_of(group["c"]))
                await stream.send(Progress(1, Offset(1 << 40), LOG_ORIGIN, 0))
                return await stream.error()

        for _ in range(3):
            assert await answer() is errors.REPLICA_FRAME_ILLEGAL
        assert await answer() is errors.LIMIT_EXCEEDED
        await asyncio.sleep(61)
        assert await answer() is errors.REPLICA_FRAME_ILLEGAL

    group_run(use)


def test_a_second_stream_of_a_node_ends_the_first() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as first, raw(leader) as second:
            await first.send(hello_of(group["c"]))
            await first.until(Welcome)
            await second.send(hello_of(group["c"]))
            await second.until(Welcome)
            assert await first.error() is errors.REPLICA_STREAM_TAKEN
            assert leader.leading().leader.connected_copies == 2

    group_run(use)


def test_two_nodes_of_one_name_filled_the_log() -> None:
    """Each takes the stream from the other one at once: the first end is logged, then one within 10 s."""

    async def taken(group: GroupHere, leader: NodeHere, times: int) -> None:
        async with AsyncExitStack() as streams:
            for _ in range(times + 1):
                stream = await streams.enter_async_context(raw(leader))
                await stream.send(hello_of(group["c"]))
                await stream.until(Welcome)

    async def use(group: GroupHere, leader: NodeHere) -> None:
        await taken(group, leader, 3)
        await asyncio.sleep(TAKEN_LOG_EVERY_MS / 1_000)
        await taken(group, leader, 1)

    with logged() as lines:
        group_run(use)
    ended = [one for one in lines.getvalue().splitlines() if "REPLICA_STREAM_TAKEN" in one]
    assert [re.findall(r"count=(\d+)", one) for one in ended] == [["1"], ["3"]]


def test_a_slow_reader_gets_a_window_and_no_more() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            await stream.send(hello_of(group["c"]))
            await stream.until(Welcome)
            for _ in range(60):
                leader.send(4, 7_000)
                await asyncio.sleep(0.2)
            (link,) = [one for one in leader.leading()._links.values() if one.node == "c"]
            heartbeats = sum(isinstance(frame, Heartbeat) for frame in link.outgoing._log)
            assert heartbeats == 0
            assert len(link.outgoing) <= 61

    group_run(use)


def test_a_reader_that_never_reads_is_sent_away() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as stream:
            await stream.send(hello_of(group["c"]))
            await stream.until(Welcome)
            links = leader.leading()._links
            sent = 0
            while any(one.node == "c" for one in links.values()):
                sent += leader.send(4, 7_000) > 0
                assert sent < 500, "beyond the transport's window and 30 frames"
                await asyncio.sleep(0.01)

    group_run(use, StreamSettings(queued_frames_max=30))


def test_more_streams_than_the_limit_are_refused() -> None:
    async def use(_group: GroupHere, leader: NodeHere) -> None:
        async with raw(leader) as first, raw(leader) as second, raw(leader) as third:
            for one in (first, second, third):
                await one.send(b"")
            found = [await one.error() for one in (first, second, third)]
            assert errors.REPLICA_FRAME_ILLEGAL in found

    group_run(use)


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Watch", "/trovemq.v1.SecurityService/Authenticate"])
def test_the_listener_serves_nothing_else(path: str) -> None:
    async def use(_group: GroupHere, leader: NodeHere) -> None:
        async with open_channel(str(leader.address), CHANNELS) as channel:
            ask = channel.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(b"", timeout=5)
            assert caught.value.code().name in ("PERMISSION_DENIED", "UNIMPLEMENTED")

    group_run(use)


def test_committed_records_can_be_read_for_a_repair() -> None:
    async def use(_group: GroupHere, leader: NodeHere) -> None:
        async with open_channel(str(leader.address), CHANNELS) as channel:
            ask = channel.unary_unary(wire.READ_LOG, response_deserializer=bytes)
            asked = wire.RangeAsked(CLUSTER, GROUP, 1, LOG_ORIGIN, 1 << 20, "c")
            found = wire.range_of(await ask(wire.range_request(asked)))
            assert found.data == bytes(leader.store.log.read(LOG_ORIGIN, len(found.data)))
            for wrong in (
                asked._replace(offset=Offset(1 << 30)),
                asked._replace(epoch=0),
                asked._replace(group="x"),
                asked._replace(node="stranger"),
                asked._replace(node="a"),
            ):
                with pytest.raises(grpc.aio.AioRpcError):
                    await ask(wire.range_request(wrong))

    group_run(use)


def test_a_promise_is_asked_over_the_network() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        leader.send()
        await group.until_equal()
        async with open_channel(str(group["b"].address), CHANNELS) as channel:
            ask = channel.unary_unary(wire.PROMISE, response_deserializer=bytes)
            answer = wire.promised_of(await ask(wire.promise_request(wire.PromiseAsked(CLUSTER, GROUP, 128))))
        assert answer.promised == group["b"].replica.promised_epoch == 128
        assert answer.end == leader.store.end_offset
        assert answer.in_sync == group["b"].in_sync
        await group.stop()

    run(program)


# --- a hostile leader -------------------------------------------------------------------------------------
Change = Callable[[Data], Data]


def of_another_place(frame: Data) -> Data:
    """Its CRC is right, and the record says that it lies elsewhere."""
    data = bytearray(frame.data)
    data[PHYSICAL_OFFSET_AT + 7] ^= 1
    return replace(frame, data=bytes(data), crc=crc32(data))


def too_long(frame: Data) -> Data:
    data = bytes(frame.data) * (FRAME_BYTES_MAX // len(frame.data) + 1)
    return replace(frame, data=data, crc=crc32(data))


def over_the_segments_end(frame: Data) -> Data:
    """Whole records that state where they lie, and cross the end of their segment."""
    first = bytes(frame.data[: int.from_bytes(frame.data[:4])])
    data = bytearray()
    while len(data) <= SEGMENT.commit_log_file_size:
        place = (frame.offset + len(data)).to_bytes(8)
        data += first[:PHYSICAL_OFFSET_AT] + place + first[PHYSICAL_OFFSET_AT + 8 :]
    return replace(frame, data=bytes(data), crc=crc32(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, crc=one.crc ^ 1),
        lambda one: replace(one, offset=Offset(one.offset + 1)),
        lambda one: replace(one, offset=Offset(0)),
        lambda one: replace(one, data=one.data[:-1]),
        lambda one: replace(one, blank=1 << 30),
        lambda one: replace(one, epoch=7),
        of_another_place,
        over_the_segments_end,
        too_long,
    ],
)
def test_a_wrong_frame_of_a_leader_writes_nothing(change: Change) -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        await group.until_equal()
        before = group["b"].log_bytes
        link = next(iter(leader.leading()._links.values()))
        put = link.outgoing.put

        def changed(frame: LeaderFrame) -> None:
            put(change(frame) if isinstance(frame, Data) else frame)

        link.outgoing.put = changed  # type: ignore[method-assign]
        leader.send(2)
        following = group["b"].following
        assert following is not None
        await group.until(lambda: not following.is_following)
        assert group["b"].log_bytes == before
        await group.until_equal()
        assert group["b"].log_bytes == leader.log_bytes
        await group.stop()

    run(program)
