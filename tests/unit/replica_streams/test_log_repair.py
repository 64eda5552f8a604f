"""A node repairs damaged records from another node's copy, over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.replica_streams.nodes_here import CLUSTER, GROUP, GroupHere, NodeHere, run
from trovemq_broker.cluster.nameserver_session import error_in
from trovemq_broker.daemon.replica.follower_scrub import EVERY_S, FIRST_S, FollowerScrub
from trovemq_broker.replica_streams.log_repair import AGAIN_S, LogRepair
from trovemq_broker.replication.frames import Offset
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_rpc.testing.loop import MemoryLoop

CHANNELS = ChannelSettings(transport="trovemq", message_size_max=16 << 20)


class Repairing:
    """The repair of one node's log. `asked`: the nodes that it asked, with offsets."""

    def __init__(self, node: NodeHere, *others: str) -> None:
        self.node = node
        self.asked: list[tuple[str, int]] = []
        self.change: Callable[[wire.LogRange], wire.LogRange] = lambda found: found
        self.repair = LogRepair(lambda: node.store, lambda: others, self._read)

    async def _read(self, name: str, offset: Offset, size_max: int) -> wire.LogRange:
        self.asked.append((name, offset))
        other, epoch = self.node.group[name], self.node.state.promised
        asked = wire.RangeAsked(CLUSTER, GROUP, epoch, offset, size_max, self.node.name)
        async with open_channel(str(other.address), CHANNELS) as channel:
            ask = channel.unary_unary(wire.READ_LOG, response_deserializer=bytes)
            try:
                answer = await ask(wire.range_request(asked), timeout=5)
            except grpc.aio.AioRpcError as error:
                raise error_in(error.trailing_metadata()) or TroveError(errors.BROKER_UNREACHABLE) from None
        return self.change(wire.range_of(answer))


def damage(node: NodeHere, number: int, *, is_met: bool = True) -> tuple[PhysicalOffset, PhysicalOffset]:
    """A bit of the body of that record is wrong, and a reader met it. Returns where it begins and ends."""
    begin, end = 0, int.from_bytes(node.store.log.read(PhysicalOffset(0), 4))
    for _ in range(number):
        begin, end = end, end + int.from_bytes(node.store.log.read(PhysicalOffset(end), 4))
    segment = node.store.log.segments.at(PhysicalOffset(begin))
    assert segment is not None
    content = node.files._files[segment.file.path]
    content.data[end - 150 - segment.start] ^= 4
    content.synced = bytes(content.data)
    if not is_met:
        return PhysicalOffset(begin), PhysicalOffset(end)
    with pytest.raises(TroveError) as met:
        node.store.record_at(PhysicalOffset(begin))
    assert met.value.spec is errors.RECORD_DAMAGED
    return PhysicalOffset(begin), PhysicalOffset(end)


def group_run(use: Callable[[GroupHere], Coroutine[Any, Any, None]]) -> None:
    """`a` leads, and all three nodes have the same records."""

    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        for _ in range(20):
            leader.send(3, 300)
        await group.until_equal()
        await use(group)
        leader.send(2)
        await group.until_equal()
        await group.stop()

    run(program)


def test_damage_of_a_follower_was_unknown_until_it_led() -> None:
    """The old records of a follower have one reader: its scrub, once a day."""
    slept: list[float] = []

    async def use(group: GroupHere) -> None:
        node, whole = group["b"], group["a"].log_bytes
        begin, _ = damage(node, 7, is_met=False)
        assert not node.store.damage.places
        again = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) > 1:
                again.set()
                await asyncio.Event().wait()

        scrub = FollowerScrub(node.store, Path("no-directory"), 1 << 30, sleep)
        running = asyncio.create_task(scrub.run())
        await again.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert list(node.store.damage.places) == [begin]
        repairing = Repairing(node, "a")
        await repairing.repair.look()
        assert node.log_bytes == whole
        assert node.store.damage.present == (0, 0)

    group_run(use)
    assert slept == [FIRST_S, EVERY_S]


@pytest.mark.parametrize(("damaged", "other"), [("b", "a"), ("a", "b"), ("c", "b")])
def test_a_damaged_record_is_repaired_from_another_node(damaged: str, other: str) -> None:
    async def use(group: GroupHere) -> None:
        node, whole = group[damaged], group[other].log_bytes
        begin, end = damage(node, 7)
        repairing = Repairing(node, other)
        await repairing.repair.look()
        assert node.log_bytes == whole
        assert repairing.asked == [(other, begin)]
        assert node.store.record_at(begin) is not None
        assert (node.store.damage.repaired_ranges, node.store.damage.repaired_bytes) == (1, end - begin)
        await repairing.repair.look()
        assert len(repairing.asked) == 1, "it is asked for once"

    group_run(use)


def test_a_node_whose_copy_is_damaged_too_is_passed_over() -> None:
    async def use(group: GroupHere) -> None:
        whole = group["a"].log_bytes
        begin, _ = damage(group["b"], 7)
        damage(group["c"], 7)
        repairing = Repairing(group["b"], "c", "a")
        await repairing.repair.look()
        assert repairing.asked == [("c", begin), ("a", begin)]
        assert group["b"].log_bytes == whole != group["c"].log_bytes

    group_run(use)


def test_without_a_good_copy_the_log_stays_and_is_tried_again_later() -> None:
    async def use(group: GroupHere) -> None:
        begin, end = damage(group["b"], 7)
        before = group["b"].log_bytes
        damage(group["c"], 7)
        repairing = Repairing(group["b"], "c")
        await repairing.repair.look()
        await repairing.repair.look()
        assert len(repairing.asked) == 1
        assert group["b"].log_bytes == before
        assert group["b"].store.damage.present == (1, end - begin)
        await asyncio.sleep(AGAIN_S + 1)
        await Repairing(group["c"], "a").repair.look()
        await repairing.repair.look()
        assert group["b"].log_bytes == group["a"].log_bytes
        assert repairing.asked == [("c", begin)] * 2

    group_run(use)


def test_an_answer_of_another_place_or_with_wrong_bytes_is_not_written() -> None:
    async def use(group: GroupHere) -> None:
        damage(group["b"], 7)
        before = group["b"].log_bytes
        wrong: list[Callable[[wire.LogRange], wire.LogRange]] = [
            lambda found: found._replace(offset=Offset(found.offset + 1)),
            lambda found: found._replace(crc=found.crc ^ 1),
            lambda found: found._replace(data=found.data[:-1] + b"x"),
        ]
        for change in wrong:
            repairing = Repairing(group["b"], "a")
            repairing.change = change
            await repairing.repair.look()
            assert group["b"].log_bytes == before
        await Repairing(group["b"], "a").repair.look()
        assert group["b"].log_bytes == group["a"].log_bytes

    group_run(use)


def test_the_repair_runs_beside_load_and_a_kill() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        leader.send(20, 300)
        await group.until_equal()
        task = asyncio.create_task(Repairing(group["b"], "a", "c").repair.run())
        for number in range(12):
            damage(group["b"], number + 1)
            leader.send(2, 300)
            await asyncio.sleep(0.3)
        await group["c"].kill()
        await group.until(lambda: not group["b"].store.damage.places)
        await group.until(lambda: group["b"].store.end_offset == leader.store.end_offset)
        assert group["b"].log_bytes == leader.log_bytes
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await group.stop()

    run(program)


def test_a_leader_that_cannot_send_a_record_repairs_it() -> None:
    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        leader = await group.start("a")
        leader.send(20, 300)
        await group.until_equal()
        await group["c"].kill()
        group["c"].files = type(group["c"].files)()
        segment = leader.store.log.segments.last
        end = int.from_bytes(leader.store.log.read(PhysicalOffset(0), 4))
        second = end - segment.start
        leader.files._files[segment.file.path].data[second] = 0x7F  # of its size
        group["c"].in_sync = None
        await group["c"].start()
        await group["c"].follow()
        await group.until(lambda: bool(leader.store.damage.places))
        await Repairing(leader, "b").repair.look()
        assert leader.log_bytes == group["b"].log_bytes
        await group.until(lambda: group["c"].store.end_offset == leader.store.end_offset)
        await group.stop()

    run(program)


def test_a_node_has_two_calls_at_a_time() -> None:
    async def use(group: GroupHere) -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        held: list[int] = []
        inner = group["a"].read_log

        async def slow(offset: Offset, size_max: int) -> tuple[bytes, int]:
            held.append(offset)
            if len(held) == 2:
                entered.set()
            await leave.wait()
            return await inner(offset, size_max)

        group["a"].read_log = slow  # type: ignore[method-assign]
        of_b, of_c = Repairing(group["b"], "a"), Repairing(group["c"], "a")
        running = [asyncio.create_task(of_b._read("a", Offset(0), 1)) for _ in range(2)]
        await entered.wait()
        with pytest.raises(TroveError) as refused:
            await of_b._read("a", Offset(0), 1)
        assert refused.value.spec is errors.LIMIT_EXCEEDED
        running.append(asyncio.create_task(of_c._read("a", Offset(0), 1)))
        await group.until(lambda: len(held) == 3)
        leave.set()
        assert len({one.data for one in await asyncio.gather(*running)}) == 1
        await of_b._read("a", Offset(0), 1)

    group_run(use)
