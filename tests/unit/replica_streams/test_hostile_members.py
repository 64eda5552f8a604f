"""Hostile peers that are members: a copy of the in-sync set with illegal reports, or one that reads nothing;
and a thousand connections. The other follower gets each record soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.replica_streams.nodes_here import GroupHere, NodeHere, run
from tests.unit.replica_streams.test_hostile_peers import RawStream, group_run, hello_of, raw
from trovemq_broker.replica_streams.peers_allowed import SOURCE_CONNECTIONS_MAX
from trovemq_broker.replication.frames import Data, Heartbeat, LeaderFrame, Offset, Progress, Welcome
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.v1 import replication_pb2 as pb
from trovemq_rpc.testing.loop import MemoryLoop

LAG_S = 1.5
SOON_S = 0.3


class RawCopy:
    """Node `c`: it reports all that it gets as synced, until `stop()`."""

    def __init__(self, group: GroupHere, leader: NodeHere, stream: RawStream) -> None:
        self.group, self.leader, self.stream = group, leader, stream
        self.progress = Progress(0, LOG_ORIGIN, LOG_ORIGIN, 0)
        self._answering: asyncio.Task[None] | None = None
        self._is_quiet = False

    async def join(self) -> None:
        """Returns when it is in the in-sync set, confirmed."""
        await self.stream.send(hello_of(self.group["c"]))
        self._answering = asyncio.create_task(self._answer())
        await self.group.until(lambda: self.leader.leading().copies == 3)
        await self.group.until(lambda: not self.leader.leading().leader.in_sync.proposed)

    async def _answer(self) -> None:
        while True:
            frame, one = await self.stream.read(), self.progress
            if self._is_quiet:
                return
            match frame:
                case Welcome():
                    one = Progress(frame.epoch, frame.cut_to, frame.cut_to, 0)
                case Data():
                    one = replace(one, end=frame.end, flushed=frame.end)
                case Heartbeat():
                    is_in = self.group["c"].identity in frame.in_sync.copies
                    version = frame.in_sync.version if is_in else one.set_version
                    one = replace(one, echo_ms=frame.sent_ms, set_version=version)
            self.progress = one
            await self.stream.send(one)

    async def stop(self) -> None:
        """It neither reads nor answers. A cancelled read would end the stream."""
        self._is_quiet = True
        if self._answering is not None:
            await asyncio.gather(self._answering, return_exceptions=True)


@asynccontextmanager
async def raw_copy(group: GroupHere, leader: NodeHere) -> AsyncIterator[RawCopy]:
    async with raw(leader) as stream:
        copy = RawCopy(group, leader, stream)
        await copy.join()
        try:
            yield copy
        finally:
            await copy.stop()


async def sent_s(group: GroupHere, leader: NodeHere) -> float:
    """How long one append takes to be committed."""
    loop = asyncio.get_running_loop()
    began, end = loop.time(), leader.send(1)
    await group.until(lambda: leader.leading().commit_offset >= end)
    return loop.time() - began


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, end=Offset(one.end - 1), flushed=Offset(one.end - 1)),
        lambda one: replace(one, flushed=Offset(one.flushed - 1)),
        lambda one: replace(one, end=Offset(one.end + 1)),
        lambda one: replace(one, set_version=one.set_version - 1),
    ],
)
def test_a_report_that_goes_back_ends_the_stream(change: Callable[[Progress], Progress]) -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw_copy(group, leader) as copy:
            await sent_s(group, leader)
            commit = leader.leading().commit_offset
            await copy.stop()
            await copy.stream.send(change(copy.progress))
            assert await copy.stream.error() is errors.REPLICA_FRAME_ILLEGAL
            assert leader.leading().commit_offset == commit
        await group.until(lambda: leader.leading().copies == 2)

    member_run(use)


def test_a_copy_with_three_illegal_frames_is_out_of_sync_and_waits() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        loop = asyncio.get_running_loop()

        async def hostile() -> ErrorSpec:
            async with raw(leader) as stream:
                await stream.send(hello_of(group["c"]))
                await stream.send(Progress(1, Offset(1 << 40), LOG_ORIGIN, 0))
                return await stream.error()

        async with raw_copy(group, leader) as copy:
            await copy.stop()
            await copy.stream.send(replace(copy.progress, end=Offset(1 << 40)))
            assert await copy.stream.error() is errors.REPLICA_FRAME_ILLEGAL
        began = loop.time()
        assert await hostile() is errors.REPLICA_FRAME_ILLEGAL
        assert await hostile() is errors.REPLICA_FRAME_ILLEGAL
        assert await hostile() is errors.LIMIT_EXCEEDED
        assert await sent_s(group, leader) <= LAG_S + 0.5
        assert leader.leading().copies == 2, "it is out of the set"
        while loop.time() < began + 55:
            assert await hostile() is errors.LIMIT_EXCEEDED
            assert await sent_s(group, leader) < SOON_S, "no commit waits for it"
            await asyncio.sleep(6)
        await asyncio.sleep(began + 62 - loop.time())
        async with raw_copy(group, leader):
            assert leader.leading().copies == 3

    member_run(use)


def test_a_copy_that_reads_nothing_is_waited_for_once() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        async with raw_copy(group, leader) as copy:
            assert await sent_s(group, leader) < SOON_S
            await copy.stop()
            assert LAG_S / 2 < await sent_s(group, leader) <= LAG_S + 0.5
            for _ in range(20):
                assert await sent_s(group, leader) < SOON_S
                await asyncio.sleep(0.2)
            assert leader.leading().copies == 2

    member_run(use)


def member_run(use: Callable[[GroupHere, NodeHere], Any]) -> None:
    """`a` leads, `b` follows all the time, `c` is a raw client that comes into the in-sync set."""

    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        leader.send(3)
        await group.until_equal()
        await group["c"].kill()
        await group.until(lambda: leader.leading().copies == 2)
        following = group["b"].following
        await use(group, leader)
        leader.send(2)
        await group.until_equal()
        assert group["b"].following is following
        assert not leader.stepped_down
        await group.stop()

    run(program)


def test_a_thousand_connections_slow_nobody() -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        loop = asyncio.get_running_loop()
        address = leader.address
        before = leader.connections.count
        ends = [Idle() for _ in range(1_000)]
        for one in ends:
            await loop.create_connection(one.itself, address.host, address.port)
        assert leader.connections.count <= SOURCE_CONNECTIONS_MAX
        assert before + 1 <= leader.connections.count
        for _ in range(10):
            assert await sent_s(group, leader) < SOON_S
        await asyncio.sleep(10)
        assert leader.connections.count == before, "those without a handshake are closed"
        assert all(one.is_lost for one in ends)

    group_run(use)


class Idle(asyncio.Protocol):
    """A connection that sends nothing."""

    def __init__(self) -> None:
        self.is_lost = False

    def itself(self) -> Idle:
        return self

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@pytest.mark.parametrize("epochs", [bytes(11), bytes(12 * 4_096), b"\xff" * 24, bytes(24)])
def test_epochs_that_do_not_rise_are_refused(epochs: bytes) -> None:
    """The third is of negative numbers, the others of an odd size, or of epoch 0 again."""

    async def use(group: GroupHere, leader: NodeHere) -> None:
        c = group["c"]
        identity = pb.ReplicaIdentity(node="c", store_id=c.identity.store_id)
        hello = pb.ReplicaHello(cluster="c", group="g", identity=identity, epochs=epochs)
        async with raw(leader) as stream:
            await stream.send(pb.FollowRequest(hello=hello).SerializeToString())
            assert await stream.error() is errors.REPLICA_FRAME_ILLEGAL

    group_run(use)


# --- a hostile leader -------------------------------------------------------------------------------------
def test_a_leader_with_three_illegal_frames_is_left_alone_for_a_minute() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        leader = await group.start("a")
        await group.until_equal()
        before = group["b"].log_bytes
        following = group["b"].following
        assert following is not None

        streams = leader.leading()
        send, spoils = streams._send, True

        def spoiled(stream: int, frame: LeaderFrame) -> None:
            if spoils and isinstance(frame, Data):
                frame = replace(frame, crc=frame.crc ^ 1)
            send(stream, frame)

        streams._send = spoiled  # type: ignore[method-assign]
        leader.send(1)
        await asyncio.sleep(10)
        assert "REPLICA_FRAME_ILLEGAL" in following.problem
        spoils = False
        await asyncio.sleep(45)
        assert not streams._links, "it waits"
        assert group["b"].log_bytes == before
        await asyncio.sleep(12)
        await group.until_equal()
        await group.stop()

    run(program)
